//! The summary of a run of adjacent leaves: complete inodes are checked and summed up, the first and the last stay
//! open.
//!
//! `LeafSummary` is a monoid: [`LeafSummary::default`] is its zero, [`LeafSummary::then`] joins. A block that cannot be
//! read is [`LeafSummary::lost`]: inodes that touch it are not checked, nor is the tree as a whole.

use oleo_format::{
    CheckedNode, DirEntryRef, Ino, InodeExtrefEntryRef, InodeItem, InodeRefEntryRef, ItemType, Key, TreeId,
};

use super::claim::{self, Pair};
use super::closed::Closed;
use super::extents::Extent;
use super::inode_summary::{Fields, InodeSummary};
use super::{Context, Reporter};
use crate::finding::Kind;
use crate::input::Env;

/// The inodes at the two ends, which may continue in the neighbouring leaves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(clippy::large_enum_variant, reason = "nearly all have two ends")]
enum Ends {
    /// No inode at all.
    #[default]
    None,
    /// All items are of one inode.
    One(InodeSummary),
    /// The first and the last. `None` if the block next to it is lost, since that may have held more of the inode.
    Two(Option<InodeSummary>, Option<InodeSummary>),
}

/// The summary of a run of adjacent leaves. About 500 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LeafSummary {
    ends: Ends,
    pub(crate) closed: Closed,
}

impl LeafSummary {
    /// Summarises a leaf; findings name its owner. Called once for each leaf, from any thread.
    pub(crate) fn of_leaf(env: &Env, leaf: &CheckedNode, reporter: Reporter<'_>) -> LeafSummary {
        let mut c = Context::new(env, leaf.owner(), reporter);
        c.block = Some(leaf.logical());
        LeafSummary::of_items(&c, leaf.iter())
    }

    /// Adds the summary of the run of leaves directly after this one.
    pub(crate) fn join(&mut self, right: &LeafSummary, env: &Env, tree: TreeId, reporter: Reporter<'_>) {
        *self = self.then(right, &Context::new(env, tree, reporter));
    }

    /// Summarises items whose keys rise.
    pub(super) fn of_items<'a>(c: &Context<'_>, items: impl IntoIterator<Item = (Key, &'a [u8])>) -> LeafSummary {
        let mut leaf = Leaf::default();
        for (key, data) in items {
            leaf.item(c, &key, data);
        }
        leaf.end(c)
    }

    /// The summary of a block that cannot be read, or of the deleted part of a tree.
    pub(crate) fn lost() -> LeafSummary {
        LeafSummary { ends: Ends::Two(None, None), closed: Closed { lost: true, ..Closed::default() } }
    }

    /// Joins this summary and `next`, which follows it.
    #[must_use]
    pub(super) fn then(&self, next: &LeafSummary, c: &Context<'_>) -> LeafSummary {
        let mut closed = self.closed.clone();
        closed.join(&next.closed);
        let mut dirs = Vec::new();
        let ends = join_ends(&self.ends, &next.ends, c, &mut closed, &mut dirs);
        closed.push_dirs(dirs);
        LeafSummary { ends, closed }
    }

    /// Ends the tree: checks the inodes at its two ends.
    pub(super) fn finish(self, c: &Context<'_>) -> Closed {
        let mut closed = self.closed;
        let mut dirs = Vec::new();
        match self.ends {
            Ends::None => {}
            Ends::One(only) => only.check(c, &mut closed, &mut dirs),
            Ends::Two(first, last) => {
                first.into_iter().chain(last).for_each(|part| part.check(c, &mut closed, &mut dirs));
            }
        }
        closed.push_dirs(dirs);
        closed
    }
}

fn join_ends(a: &Ends, b: &Ends, c: &Context<'_>, closed: &mut Closed, dirs: &mut Vec<(u64, u64)>) -> Ends {
    let (head, left) = match a {
        Ends::None => return b.clone(),
        Ends::One(part) => (None, Some(part)),
        Ends::Two(first, last) => (Some(first), last.as_ref()),
    };
    let (right, tail) = match b {
        Ends::None => return a.clone(),
        Ends::One(part) => (Some(part), None),
        Ends::Two(first, last) => (first.as_ref(), Some(last)),
    };
    match (left, right) {
        // The inode continues across the border.
        (Some(l), Some(r)) if l.ino == r.ino => {
            let whole = l.then(r, c);
            match (head, tail) {
                (None, None) => Ends::One(whole),
                (Some(first), None) => Ends::Two(first.clone(), Some(whole)),
                (None, Some(last)) => Ends::Two(Some(whole), last.clone()),
                (Some(first), Some(last)) => {
                    whole.check(c, closed, dirs);
                    Ends::Two(first.clone(), last.clone())
                }
            }
        }
        (l, r) => {
            let torn = |part: &InodeSummary, is_torn| InodeSummary { torn: part.torn || is_torn, ..part.clone() };
            // The inode is complete only if nothing was lost on the other side of the border.
            if let (Some(part), Some(_), true) = (l, r, head.is_some()) {
                part.check(c, closed, dirs);
            }
            if let (Some(part), Some(_), true) = (r, l, tail.is_some()) {
                part.check(c, closed, dirs);
            }
            let first = head.cloned().unwrap_or_else(|| l.map(|part| torn(part, r.is_none())));
            let last = tail.cloned().unwrap_or_else(|| r.map(|part| torn(part, l.is_none())));
            Ends::Two(first, last)
        }
    }
}

/// Gathers the items of one leaf.
#[derive(Debug, Default)]
struct Leaf {
    /// The first inode, once a second one begins.
    first: Option<InodeSummary>,
    current: Option<InodeSummary>,
    closed: Closed,
    dirs: Vec<(u64, u64)>,
    fresh: Vec<(u64, u64)>,
}

impl Leaf {
    fn end(mut self, c: &Context<'_>) -> LeafSummary {
        let current = self.take(c, true);
        self.closed.push_dirs(self.dirs);
        let ends = match (self.first, current) {
            (None, None) => Ends::None,
            (None, Some(only)) | (Some(only), None) => Ends::One(only),
            (Some(first), last) => Ends::Two(Some(first), last),
        };
        LeafSummary { ends, closed: self.closed }
    }

    /// Ends the current inode. The first and the last one of the leaf are kept; all others are complete.
    fn take(&mut self, c: &Context<'_>, at_end: bool) -> Option<InodeSummary> {
        let mut part = self.current.take()?;
        if !self.fresh.is_empty() {
            part.pending.push(std::mem::take(&mut self.fresh).into());
        }
        if at_end {
            return Some(part);
        }
        if self.first.is_none() {
            self.first = Some(part);
        } else {
            part.check(c, &mut self.closed, &mut self.dirs);
        }
        None
    }

    fn item(&mut self, c: &Context<'_>, key: &Key, data: &[u8]) {
        match key.item_type {
            ItemType::ORPHAN_ITEM => {
                if key.objectid == Key::ORPHAN {
                    self.closed.sums.minus(Pair::Orphans, claim::orphan(key.offset), 1);
                }
                return;
            }
            ItemType::INODE_ITEM
            | ItemType::INODE_REF
            | ItemType::INODE_EXTREF
            | ItemType::XATTR_ITEM
            | ItemType::VERITY_DESC_ITEM
            | ItemType::VERITY_MERKLE_ITEM
            | ItemType::DIR_ITEM
            | ItemType::DIR_INDEX
            | ItemType::EXTENT_DATA => {}
            // The block verifier refuses items that do not belong into a tree of files; logs are checked elsewhere. The
            // cache of free inode numbers has two items of no type.
            ItemType(0) if key.objectid == Key::FREE_SPACE => return,
            other => {
                c.error(
                    Kind::ItemUnknown,
                    *key,
                    format_args!("an item of type {}", other.0),
                    "a type of trees of files",
                );
                return;
            }
        }
        if self.current.as_ref().is_some_and(|part| part.ino != key.objectid) {
            self.take(c, false);
        }
        let part = self.current.get_or_insert_with(|| InodeSummary::new(key.objectid, c));
        let closed = &mut self.closed;
        match key.item_type {
            ItemType::INODE_ITEM => {
                if let Ok(item) = InodeItem::parse(data) {
                    part.fields = Some(Fields::of(item));
                    let newest = item.generation.get().max(item.transid.get());
                    young(c, key, newest);
                }
            }
            ItemType::INODE_REF => {
                let refs = InodeRefEntryRef::iter(data).flatten().map(|e| (Ino(key.offset), e.index, e.name));
                names(part, closed, c, key, refs);
            }
            ItemType::INODE_EXTREF => {
                let refs = InodeExtrefEntryRef::iter(data).flatten().map(|e| (e.parent, e.index, e.name));
                names(part, closed, c, key, refs);
            }
            ItemType::VERITY_DESC_ITEM => part.verity.descriptor = true,
            ItemType::VERITY_MERKLE_ITEM => part.verity.merkle = true,
            ItemType::XATTR_ITEM => unique(c, key, data, Kind::XattrTwice),
            ItemType::DIR_ITEM => {
                encrypted(c, key, data);
                unique(c, key, data, Kind::DirEntryTwice);
                for e in DirEntryRef::iter(data).flatten() {
                    part.entry_bytes = part.entry_bytes.wrapping_add(e.name.len() as u64);
                    closed
                        .sums
                        .plus(Pair::Entries, claim::entry(claim::named(key.objectid, e.name), e.location, e.file_type));
                }
            }
            ItemType::DIR_INDEX => {
                encrypted(c, key, data);
                for e in DirEntryRef::iter(data).flatten() {
                    part.entry_bytes = part.entry_bytes.wrapping_add(e.name.len() as u64);
                    part.entries = part.entries.saturating_add(1);
                    index(closed, key, &e);
                }
            }
            ItemType::EXTENT_DATA => {
                if let Some(e) = Extent::parse(key.offset, data, u64::from(c.sectorsize)) {
                    young(c, key, e.generation);
                    part.extent(c, &e, &mut self.fresh);
                }
            }
            _ => {}
        }
    }
}

/// Checks that no entry says that its name is encrypted. The kernel and Oleo read it as if it did not.
fn encrypted(c: &Context<'_>, key: &Key, item: &[u8]) {
    if DirEntryRef::claims_encryption(item) {
        c.warning(Kind::DirEntryType, *key, "an encrypted name", "a type alone");
    }
}

/// Checks that an item is not younger than the superblock.
fn young(c: &Context<'_>, key: &Key, generation: u64) {
    if generation > c.generation.0 {
        c.error(Kind::ItemGeneration, *key, generation, format_args!("at most {}", c.generation));
    }
}

/// Adds the names of an inode.
fn names<'a>(
    part: &mut InodeSummary,
    closed: &mut Closed,
    c: &Context<'_>,
    key: &Key,
    refs: impl Iterator<Item = (Ino, u64, &'a [u8])>,
) {
    for (dir, index, name) in refs {
        part.refs = part.refs.saturating_add(1);
        if part.parent == 0 {
            part.parent = dir.0;
        }
        let own = part.ino == Ino::ROOT_DIR.0 && dir == Ino::ROOT_DIR;
        if own {
            if name != b".." || index != 0 {
                let have = format_args!("`{}` at index {index}", name.escape_ascii()).to_string();
                c.error(Kind::InodeRef, *key, have, "`..` at index 0 for the root directory");
            }
            continue;
        }
        if key.item_type == ItemType::INODE_EXTREF {
            let hash = oleo_format::extref_hash(dir, name);
            if hash != key.offset {
                c.error(Kind::InodeRef, *key, format_args!("a name with hash {hash}"), key.offset);
            }
        }
        closed.sums.minus(Pair::Names, claim::name(claim::named(dir.0, name), index, part.ino), 1);
    }
}

/// Adds an entry by index.
fn index(closed: &mut Closed, key: &Key, e: &DirEntryRef<'_>) {
    let named = claim::named(key.objectid, e.name);
    closed.sums.minus(Pair::Entries, claim::entry(named, e.location, e.file_type), 1);
    let child = e.location.objectid;
    if e.location.item_type == ItemType::ROOT_ITEM {
        // A subvolume, or the empty directory that a snapshot has in its place: compared with the root tree.
        return;
    }
    closed.sums.plus(Pair::Names, claim::name(named, key.offset, child));
    closed.sums.plus(Pair::Types, claim::kind(child, e.file_type));
}

/// Checks that the names in one item differ.
fn unique(c: &Context<'_>, key: &Key, data: &[u8], kind: Kind) {
    let mut entries = DirEntryRef::iter(data).flatten();
    let Some(first) = entries.next() else { return };
    // Nearly all items have one entry.
    let rest: Vec<&[u8]> = entries.map(|e| e.name).collect();
    if rest.is_empty() {
        return;
    }
    let mut all = rest;
    all.push(first.name);
    all.sort_unstable();
    for pair in all.windows(2) {
        if let [a, b] = pair
            && a == b
        {
            c.error(kind, *key, format_args!("`{}` twice", a.escape_ascii()), "each name once");
        }
    }
}
