//! References as sums: the references that the extent tree claims for an extent, less those that the trees hold, must
//! be zero.
//!
//! A reference is hashed with a key drawn for this run. The sum of the hashes of all references to an extent, each
//! times its count, represents the whole multiset of them. Claims are added, references found in trees are subtracted;
//! an extent whose sum and count are zero at the end is right, but for one chance in 2⁶⁴. So an extent costs 40 bytes,
//! whether one file has it or a thousand snapshots. `details` reads the other extents again to find out what is wrong
//! with them.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oleo_format::{BackRef, Ino, Logical, TreeId};

use crate::files::claim::Hash;

/// A reference without its count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum RefKey {
    /// A tree has the block.
    Tree(TreeId),
    /// A node with full backrefs has the block.
    Parent(Logical),
    /// File extents of a file have the data.
    Data { root: TreeId, ino: Ino, offset: u64 },
    /// A leaf with full backrefs has the data.
    DataParent(Logical),
}

impl std::fmt::Display for RefKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RefKey::Tree(root) => write!(f, "tree {root}"),
            RefKey::Parent(at) => write!(f, "node {at}"),
            RefKey::Data { root, ino, offset } => write!(f, "tree {root} inode {ino} offset {offset}"),
            RefKey::DataParent(at) => write!(f, "leaf {at}"),
        }
    }
}

impl RefKey {
    /// The lowest.
    pub const MIN: RefKey = RefKey::Tree(TreeId(0));

    /// The reference in a record and its count; `None` if it is not a reference.
    pub fn of(backref: &BackRef) -> Option<(RefKey, u32)> {
        Some(match *backref {
            BackRef::Owner { .. } => return None,
            BackRef::TreeBlock { root } => (RefKey::Tree(root), 1),
            BackRef::SharedBlock { parent } => (RefKey::Parent(parent), 1),
            BackRef::Data { root, ino, offset, count } => (RefKey::Data { root, ino, offset }, count),
            BackRef::SharedData { parent, count } => (RefKey::DataParent(parent), count),
        })
    }
}

/// The keyed hash of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefHash(Hash);

impl RefHash {
    /// With a new random key.
    pub fn new() -> RefHash {
        let random = RandomState::new();
        RefHash(Hash::from_key(random.hash_one(0), random.hash_one(1)))
    }

    pub fn of(&self, key: RefKey) -> u64 {
        let (kind, a, b, c) = match key {
            RefKey::Tree(root) => (1, root.0, 0, 0),
            RefKey::Parent(at) => (2, at.0, 0, 0),
            RefKey::Data { root, ino, offset } => (3, root.0, ino.0, offset),
            RefKey::DataParent(at) => (4, at.0, 0, 0),
        };
        self.0.word(kind).word(a).word(b).word(c).end() as u64
    }
}

/// An extent as its record describes it.
#[derive(Debug)]
pub(crate) struct Extent {
    /// Claims less findings.
    sum: AtomicU64,
    /// Number of claims less number of findings, wrapping.
    count: AtomicU32,
    /// In sectors.
    pub sectors: u32,
    pub generation: u64,
    pub kind: ExtentKind,
    /// Of a tree block.
    pub level: u8,
    /// Which trees the record claims to have the block, as a filter: one bit of 32 for each.
    roots: u32,
}

fn root_bit(root: TreeId) -> u32 {
    1 << (root.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59)
}

/// Data or tree block; and for a tree block, how its children are referenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExtentKind {
    Data,
    Block,
    /// With FULL_BACKREF: references from it name it as parent.
    FullBlock,
}

impl Extent {
    pub fn new(sectors: u32, generation: u64, kind: ExtentKind, level: u8) -> Extent {
        Extent { sum: AtomicU64::new(0), count: AtomicU32::new(0), sectors, generation, kind, level, roots: 0 }
    }

    /// Adds the claim that a tree has the block.
    pub fn claim_root(&mut self, root: TreeId) {
        self.roots |= root_bit(root);
    }

    /// Adds the claim that a block references this one by address. Then any tree may have it: a shared block that was
    /// moved refers in this way to blocks that were not.
    pub fn claim_parent(&mut self) {
        self.roots = u32::MAX;
    }

    /// Whether the record may claim that a tree has the block. If not, it certainly does not.
    pub fn may_have_root(&self, root: TreeId) -> bool {
        self.roots & root_bit(root) != 0
    }

    pub fn is_data(&self) -> bool {
        self.kind == ExtentKind::Data
    }

    /// Adds a reference that the record claims.
    pub fn claim(&self, hash: u64, count: u32) {
        self.sum.fetch_add(hash.wrapping_mul(count.into()), Ordering::Relaxed);
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts a reference that a tree has.
    pub fn found(&self, hash: u64) {
        self.sum.fetch_sub(hash, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn adds_up(&self) -> bool {
        self.sum.load(Ordering::Relaxed) == 0 && self.count.load(Ordering::Relaxed) == 0
    }
}

/// All extents by address.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    pub at: Vec<u64>,
    pub of: Vec<Extent>,
}

impl Extents {
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// The extent that starts here.
    pub fn find(&self, at: u64) -> Option<usize> {
        self.at.binary_search(&at).ok()
    }

    pub fn get(&self, at: u64) -> Option<&Extent> {
        self.find(at).map(|i| &self.of[i])
    }

    /// The first extent that reaches beyond an address.
    pub fn first_beyond(&self, at: u64, sectorsize: u64) -> usize {
        let i = self.at.partition_point(|&start| start <= at);
        match i.checked_sub(1) {
            Some(before) if self.end(before, sectorsize) > at => before,
            _ => i,
        }
    }

    pub fn bytes(&self, i: usize, sectorsize: u64) -> u64 {
        u64::from(self.of[i].sectors) * sectorsize
    }

    pub fn end(&self, i: usize, sectorsize: u64) -> u64 {
        self.at[i].saturating_add(self.bytes(i, sectorsize))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Goal: sums tell multisets of references apart. Method: claim and find the same in other orders; then change one
    /// field at a time.
    #[test]
    fn sums_cancel_only_when_all_is_the_same() {
        let hash = RefHash::new();
        let data = |root, ino, offset| RefKey::Data { root: TreeId(root), ino: Ino(ino), offset };
        let keys = [data(5, 257, 0), data(5, 257, 4096), data(256, 257, 0), RefKey::DataParent(Logical(1 << 20))];
        let extent = || {
            let e = Extent::new(1, 1, ExtentKind::Data, 0);
            keys.iter().for_each(|k| e.claim(hash.of(*k), 2));
            e
        };
        let right = extent();
        keys.iter().rev().chain(&keys).for_each(|k| right.found(hash.of(*k)));
        assert!(right.adds_up());
        for other in [data(5, 257, 8192), data(5, 258, 0), data(6, 257, 0), RefKey::Parent(Logical(1 << 20))] {
            let wrong = extent();
            keys.iter().chain(&keys[1..]).for_each(|k| wrong.found(hash.of(*k)));
            wrong.found(hash.of(other));
            assert!(!wrong.adds_up(), "{other:?}");
        }
    }

    /// Goal: no bit of a reference is without effect on its hash. Method: change one or two bits of the fields of each
    /// kind of reference; all hashes differ.
    #[test]
    fn each_bit_counts() {
        let hash = RefHash::new();
        let masks: Vec<u64> = (0..64).flat_map(|i| (i..64).map(move |j| 1 << i | 1 << j)).chain([0]).collect();
        let mut seen = HashMap::new();
        for mask in masks {
            let (root, ino, offset) = (TreeId(5), Ino(277), 4096);
            for key in [
                RefKey::Tree(TreeId(5 ^ mask)),
                RefKey::Parent(Logical(30_408_704 ^ mask)),
                RefKey::DataParent(Logical(30_408_704 ^ mask)),
                RefKey::Data { root: TreeId(5 ^ mask), ino, offset },
                RefKey::Data { root, ino: Ino(277 ^ mask), offset },
                RefKey::Data { root, ino, offset: offset ^ mask },
            ] {
                if let Some(other) = seen.insert(hash.of(key), key) {
                    assert_eq!(other, key, "both have one hash");
                }
            }
        }
    }
}
