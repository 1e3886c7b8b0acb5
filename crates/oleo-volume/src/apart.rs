//! Two sides of a volume that were each written without the other, told from one that only missed writes.
//!
//! A device that missed writes knows the beginning of the other's history. Two histories are told by the roots of trees that superblocks name: of the chunk tree,
//! and of five trees in each of four backups. What is named was the root of its tree from the transaction that wrote it to the one in which the superblock, or the backup,
//! was made. Where two superblocks say so of one moment, both name the same root at the same address, or there are two histories. If the newer superblock's own roots
//! are as old as the older superblock, both devices have them, byte for byte, or there are two.
//!
//! The kernel makes a backup while the next transaction has begun already, so it says less than it seems to:
//!
//! | a backup that names a root tree of transaction *t* | was made in | so |
//! |---|---|---|
//! | *t* is that of the superblock, the address is the superblock's, no other backup is like that, none is newer | *t* | its roots stood to the end of *t* |
//! | any other | *t* or the transaction before | what it names of transactions before *t* stood to the end of *t* - 1; what it names of *t* may have moved since |
//!
//! Whatever is found here is certain: nothing but two histories leads to it. (Zeros in backups, and roots from beyond, say nothing. Neither do backups that contradict
//! others of the same superblock, which happens if the kernel was told to go back to one, nor a copy of a root that is no sound block of that transaction: it may have
//! rotted.) What is not found may still be two histories: if nothing was left where it was since they parted, there is nothing that could differ.

use oleo_format::{CheckedNode, DevId, Generation, Logical, NodeExpect, NodeRules, RootBackup, SuperBlock};

use crate::table::Table;

/// The root of a tree, as a superblock names it.
#[derive(Clone, Copy, Debug)]
struct Root {
    generation: u64,
    at: u64,
    level: u8,
}

/// The root of a tree at all times from the transaction that wrote it to another.
#[derive(Clone, Copy, Debug)]
struct Stood {
    /// Its place among the roots of a backup; the chunk tree's is 0.
    tree: usize,
    root: Root,
    until: u64,
}

impl Stood {
    /// Whether both speak of one moment, and name different roots.
    fn contradicts(&self, other: &Stood) -> bool {
        let is_common = self.root.generation.max(other.root.generation) <= self.until.min(other.until);
        // The level is read last, and may be that of the next root.
        let place = |root: Root| (root.generation, root.at);
        self.tree == other.tree && is_common && place(self.root) != place(other.root)
    }
}

/// The backup that was made in the superblock's own transaction, if there is but one that can be.
fn own_backup(sb: &SuperBlock) -> Option<usize> {
    let is_later = |b: &RootBackup| b.tree_root.get() != 0 && b.tree_root_gen > sb.generation;
    let is_like_it = |b: &RootBackup| b.tree_root_gen == sb.generation && b.tree_root == sb.root;
    let mut found = (0..sb.super_roots.len()).filter(|&i| is_like_it(&sb.super_roots[i]));
    let own = found.next()?;
    (found.next().is_none() && !sb.super_roots.iter().any(is_later)).then_some(own)
}

/// What a superblock says of its own transaction: the chunk tree's root, and those of its own backup.
fn own_roots(sb: &SuperBlock) -> Vec<Stood> {
    let until = sb.generation.get();
    let chunk = root(sb.chunk_root_generation.get(), sb.chunk_root.get(), sb.chunk_root_level);
    let backup = own_backup(sb).map(|own| of_backup(&sb.super_roots[own], until));
    let chunk = chunk.map(|root| Stood { tree: 0, root, until }).filter(|stood| stood.root.generation <= until);
    let all: Vec<Stood> = chunk.into_iter().chain(backup.into_iter().flatten()).collect();
    if is_one_history(&all) { all } else { chunk.into_iter().collect() }
}

/// All that a superblock says.
fn roots(sb: &SuperBlock) -> Vec<Stood> {
    let is_past =
        |b: &&RootBackup| b.tree_root.get() != 0 && b.tree_root_gen.get() <= sb.generation.get().saturating_add(1);
    let backups = sb.super_roots.iter().filter(is_past);
    let of_backups = backups.flat_map(|b| of_backup(b, b.tree_root_gen.get().saturating_sub(1)));
    let own = own_roots(sb);
    let all: Vec<Stood> = own.iter().copied().chain(of_backups).collect();
    if is_one_history(&all) { all } else { own }
}

fn is_one_history(all: &[Stood]) -> bool {
    all.iter().all(|a| all.iter().all(|b| !a.contradicts(b)))
}

fn root(generation: u64, at: u64, level: u8) -> Option<Root> {
    (generation != 0 && at != 0).then_some(Root { generation, at, level })
}

/// What a backup names that stood to the end of a transaction.
fn of_backup(b: &RootBackup, until: u64) -> impl Iterator<Item = Stood> {
    let roots = [
        root(b.chunk_root_gen.get(), b.chunk_root.get(), b.chunk_root_level),
        root(b.extent_root_gen.get(), b.extent_root.get(), b.extent_root_level),
        root(b.fs_root_gen.get(), b.fs_root.get(), b.fs_root_level),
        root(b.dev_root_gen.get(), b.dev_root.get(), b.dev_root_level),
        root(b.csum_root_gen.get(), b.csum_root.get(), b.csum_root_level),
    ];
    let stood = move |(tree, root): (usize, Option<Root>)| {
        let root = root.filter(|root| root.generation <= until)?;
        Some(Stood { tree, root, until })
    };
    roots.into_iter().enumerate().filter_map(stood)
}

/// Whether superblocks say by themselves that their devices have two histories.
pub(crate) fn written_apart(newer: &SuperBlock, older: &SuperBlock) -> bool {
    let (of_newer, of_older) = (roots(newer), roots(older));
    (newer.generation == older.generation && newer.root != older.root)
        || of_newer.iter().any(|new| of_older.iter().any(|old| new.contradicts(old)))
}

/// Whether a device has another block where both superblocks name one and the same root. They do not contradict each other.
pub(crate) fn roots_differ(
    newer: &SuperBlock,
    older: &SuperBlock,
    (of_older, rules): (DevId, &NodeRules),
    table: &Table,
) -> bool {
    let last = older.generation.get();
    let of_root_tree = (newer.generation == older.generation).then_some(Root {
        generation: last,
        at: newer.root.get(),
        level: newer.root_level,
    });
    let mut common =
        own_roots(newer).into_iter().map(|stood| stood.root).chain(of_root_tree).filter(|root| root.generation <= last);
    common.any(|root| {
        let (mine, others): (Vec<_>, Vec<_>) =
            copies(&root, rules, table).into_iter().partition(|(devid, _)| *devid == of_older);
        mine.iter().any(|(_, mine)| others.iter().any(|(_, other)| mine != other))
    })
}

/// The sound copies of a root, and their devices. With parity there is but one.
fn copies(root: &Root, rules: &NodeRules, table: &Table) -> Vec<(DevId, Box<[u8]>)> {
    let (at, len) = (Logical(root.at), u64::from(rules.nodesize));
    let Some(placed) =
        table.find(at).filter(|placed| root.at - placed.map.start.0 <= placed.map.len.0.saturating_sub(len))
    else {
        return Vec::new();
    };
    let piece = placed.map.piece(root.at - placed.map.start.0, len);
    if piece.len < len || placed.map.profile.has_parity() {
        return Vec::new();
    }
    let expect =
        NodeExpect { generation: Some(Generation(root.generation)), level: Some(root.level), ..NodeExpect::at(at) };
    let read = |stripe: usize| {
        let member = placed.on.get(stripe)?;
        let mut bytes = vec![0; len as usize].into_boxed_slice();
        member.plain()?.read_at(placed.map.physical(stripe, piece.offset).0, &mut bytes).ok()?;
        let node = CheckedNode::verify(bytes, rules, &expect).ok()?;
        Some((member.devid, node.bytes().into()))
    };
    (piece.stripe..piece.stripe + piece.copies).filter_map(read).collect()
}

#[cfg(test)]
mod tests;
