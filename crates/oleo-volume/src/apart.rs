//! Two sides of a volume that were each written without the other, told from one that only missed writes.
//!
//! A device that missed writes knows the beginning of the other's history: what its superblock says was once said by the other's, too. So of each root
//! that both superblocks name:
//!
//! | the newer superblock names | the older one, of transaction *a* | is |
//! |---|---|---|
//! | a root of a transaction up to *a* | the same, at the same address, with the same bytes | one history |
//! | | anything else | two |
//! | a root of a later transaction | one of the same transaction or an earlier one | nothing is known |
//!
//! Roots are those of the chunk tree, and of the trees that the newest backup in each superblock names; of one and the same transaction that of the root
//! tree, too, which every commit writes anew. Backups of one transaction have to name the same root tree.
//!
//! Whatever is found here is certain: nothing but two histories leads to it. (Zeros in backups, and roots from beyond their own transaction, which the kernel writes
//! there at times, say nothing. Neither does a copy of a root that is no sound block of that transaction: it may have rotted.) What is not found may still be two
//! histories: if nothing was left where it was since they parted, there is nothing that could differ.

use oleo_format::{CheckedNode, DevId, Generation, Logical, NodeExpect, NodeRules, RootBackup, SuperBlock};

use crate::table::Table;

/// The root of a tree, as a superblock names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Root {
    generation: u64,
    at: u64,
    level: u8,
}

/// Trees whose roots a superblock names: the chunk tree, and those of a backup.
const TREES: usize = 5;

/// The roots that a superblock names besides that of the root tree; none where it says nothing.
fn roots(sb: &SuperBlock) -> [Option<Root>; TREES] {
    let is_own = |b: &&RootBackup| b.tree_root_gen == sb.generation && b.tree_root == sb.root;
    let backup = sb.super_roots.iter().find(is_own).copied().unwrap_or_default();
    let root = |generation: u64, at: u64, level: u8| {
        let says = generation != 0 && at != 0 && generation <= sb.generation.get();
        says.then_some(Root { generation, at, level })
    };
    [
        root(sb.chunk_root_generation.get(), sb.chunk_root.get(), sb.chunk_root_level),
        root(backup.extent_root_gen.get(), backup.extent_root.get(), backup.extent_root_level),
        root(backup.fs_root_gen.get(), backup.fs_root.get(), backup.fs_root_level),
        root(backup.dev_root_gen.get(), backup.dev_root.get(), backup.dev_root_level),
        root(backup.csum_root_gen.get(), backup.csum_root.get(), backup.csum_root_level),
    ]
}

/// Whether superblocks say by themselves that their devices have two histories.
pub(crate) fn written_apart(newer: &SuperBlock, older: &SuperBlock) -> bool {
    let last = older.generation.get();
    let contradict = |(new, old): (Option<Root>, Option<Root>)| match (new, old) {
        (Some(new), Some(old)) => new.generation < old.generation || (new.generation <= last && new != old),
        _ => false,
    };
    let is_kept = |b: &RootBackup, sb: &SuperBlock| b.tree_root.get() != 0 && b.tree_root_gen <= sb.generation;
    let mut backups = newer.super_roots.iter().filter(|b| is_kept(b, newer));
    let of_one = |b: &RootBackup| {
        let is_other = |o: &RootBackup| o.tree_root_gen == b.tree_root_gen && o.tree_root != b.tree_root;
        older.super_roots.iter().any(|o| is_kept(o, older) && is_other(o))
    };
    (newer.generation == older.generation && newer.root != older.root)
        || roots(newer).into_iter().zip(roots(older)).any(contradict)
        || backups.any(of_one)
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
    let mut common = roots(newer).into_iter().chain([of_root_tree]).flatten().filter(|root| root.generation <= last);
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
mod tests {
    use super::*;

    /// A superblock of a transaction: where its root tree is, and the trees with their transactions and addresses.
    fn sb(generation: u64, root: u64, chunk: (u64, u64), fs: (u64, u64)) -> SuperBlock {
        let mut sb = SuperBlock::default();
        (sb.generation, sb.root) = (generation.into(), root.into());
        (sb.chunk_root_generation, sb.chunk_root) = (chunk.0.into(), chunk.1.into());
        sb.super_roots[generation as usize % 4] = RootBackup {
            tree_root: root.into(),
            tree_root_gen: generation.into(),
            fs_root_gen: fs.0.into(),
            fs_root: fs.1.into(),
            ..RootBackup::default()
        };
        sb
    }

    /// Goal: exactly what contradicts is found. Method: pairs by hand.
    #[test]
    fn contradictions() {
        let old = sb(10, 100, (7, 70), (9, 90));
        for (apart, new) in [
            (false, sb(10, 100, (7, 70), (9, 90))),
            (false, sb(20, 200, (7, 70), (9, 90))),
            (false, sb(20, 200, (11, 110), (12, 120))),
            (false, sb(11, 100, (7, 70), (9, 90))),
            // Roots that are from beyond, or missing, say nothing.
            (false, sb(20, 200, (7, 70), (21, 5))),
            (false, sb(20, 200, (7, 70), (0, 0))),
            (true, sb(10, 101, (7, 70), (9, 90))),
            (true, sb(20, 200, (6, 60), (12, 120))),
            (true, sb(20, 200, (8, 80), (12, 120))),
            (true, sb(20, 200, (7, 71), (12, 120))),
            (true, sb(20, 200, (7, 70), (8, 80))),
            (true, sb(20, 200, (7, 70), (10, 90))),
        ] {
            assert_eq!(written_apart(&new, &old), apart, "{new:?}");
        }
        let mut new = sb(12, 200, (11, 110), (12, 120));
        new.super_roots[2] = RootBackup { tree_root: 100.into(), tree_root_gen: 10.into(), ..RootBackup::default() };
        assert!(!written_apart(&new, &old));
        new.super_roots[2].tree_root = 101.into();
        assert!(written_apart(&new, &old), "their backups");
        new.super_roots[2].tree_root_gen = 0.into();
        assert!(!written_apart(&new, &old));
    }
}
