//! Node ids: the numbers by which the kernel names inodes, and how often each was given to it.
//!
//! The scheme, which `st_ino` also shows, makes inode numbers unique over the whole mount:
//! - an inode of the top-level subvolume (tree 5) keeps its number, if that is below 2⁴⁰;
//! - an inode of another subvolume is `tree · 2⁴⁰ + number`, if the tree is below 2²³ and the number below 2⁴⁰;
//! - all others get a number from 2⁶³ on, made of a number for the subvolume and the upper half of the inode's number,
//!   which is kept as long as the mount, and the lower half;
//! - the root of the mount is node 1 to the kernel, whatever its `st_ino`;
//! - an empty directory in place of a nested subvolume gets a fresh node at each look-up, from 2⁶³ + 2⁶² on, because
//!   many of them have the same inode number.
//!
//! Each node in the table holds an [`InodeRef`]: while the kernel knows an inode, it stays usable without a name.
//!
//! Invariants: a node is in the table exactly while the kernel has got it more often than it has forgotten it; the root
//! always is. Locks: one shard at a time, a leaf.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashMap;
use oleo::TreeId;
use oleo::fs::Ino;
use oleo_fs::InodeRef;
use oleo_lock::{Mutex, rank};

use crate::wire::abi::ROOT_ID;

const SHARDS: usize = 64;
const INO_BITS: u32 = 40;
const TREE_BITS: u32 = 23;
/// The first number outside of the scheme.
const ODD: u64 = 1 << 63;
/// The first of those that are given for a single look-up.
const FRESH: u64 = ODD | 1 << 62;
/// Bits that an odd number has of the inode's own.
const ODD_BITS: u32 = 32;

struct Node {
    inode: InodeRef,
    lookups: u64,
    /// Some of its pages may be in the kernel's cache.
    cached: bool,
    /// The highest index that listing it goes up to; see [`Nodes::list_up_to`].
    listed_to: u64,
    /// A request has named it since the last [`Nodes::idle`].
    used: bool,
}

impl Node {
    fn new(inode: InodeRef) -> Node {
        Node { inode, lookups: 0, cached: false, listed_to: u64::MAX, used: true }
    }
}

/// Numbers outside of the scheme. The table takes some tens of bytes for each subvolume that was created as the 2²³rd
/// or later and shown since the mount began; an inode of it takes nothing, unless four thousand million others lie
/// between.
#[derive(Default)]
struct ForeignInodes {
    fresh: u64,
    of: HashMap<(TreeId, u64), u64>,
}

impl ForeignInodes {
    /// A number for one look-up.
    fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        FRESH + self.fresh
    }

    /// The same number for the same inode; 2³⁰ subvolumes and no more, which is beyond what memory holds.
    fn number(&mut self, tree: TreeId, ino: Ino) -> u64 {
        let next = self.of.len() as u64;
        let slot = *self.of.entry((tree, ino.0 >> ODD_BITS)).or_insert(next);
        assert!(slot < 1 << (62 - ODD_BITS), "fewer subvolumes than that");
        ODD | slot << ODD_BITS | ino.0 & ((1 << ODD_BITS) - 1)
    }
}

/// The table of nodes.
pub(crate) struct Nodes {
    shards: Vec<Mutex<rank::FuseNodes, HashMap<u64, Node>>>,
    root: InodeRef,
    root_listed_to: AtomicU64,
    odd: Mutex<rank::FuseForeign, ForeignInodes>,
    count: AtomicUsize,
    /// The next shard for [`Nodes::idle`].
    hand: AtomicUsize,
}

impl Nodes {
    pub(crate) fn new(root: InodeRef) -> Nodes {
        Nodes {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            root,
            root_listed_to: AtomicU64::new(u64::MAX),
            odd: Mutex::default(),
            count: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
        }
    }

    fn shard(&self, node: u64) -> &Mutex<rank::FuseNodes, HashMap<u64, Node>> {
        // Numbers are assigned in sequence, so the low bits spread them.
        &self.shards[(node % SHARDS as u64) as usize]
    }

    /// The inode of a node.
    pub(crate) fn get(&self, node: u64) -> Option<InodeRef> {
        if node == ROOT_ID {
            return Some(self.root.clone());
        }
        let mut shard = self.shard(node).lock();
        let known = shard.get_mut(&node)?;
        known.used = true;
        Some(known.inode.clone())
    }

    /// The same for requests whose bytes go through the kernel's cache.
    pub(crate) fn get_cached(&self, node: u64) -> Option<InodeRef> {
        let mut shard = self.shard(node).lock();
        let known = shard.get_mut(&node)?;
        known.cached = true;
        known.used = true;
        Some(known.inode.clone())
    }

    /// Whether the kernel's cache may have bytes of a node.
    pub(crate) fn is_cached(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.cached)
    }

    /// A listing begins: it ends at this index, however many entries are added meanwhile. There are no handles of open
    /// directories, so another listing of the same directory moves the end for both.
    pub(crate) fn list_up_to(&self, node: u64, index: u64) {
        if node == ROOT_ID {
            self.root_listed_to.store(index, Ordering::Relaxed);
        } else if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.listed_to = index;
        }
    }

    /// The index that a listing under way goes up to.
    pub(crate) fn listed_to(&self, node: u64) -> u64 {
        if node == ROOT_ID {
            return self.root_listed_to.load(Ordering::Relaxed);
        }
        self.shard(node).lock().get(&node).map_or(u64::MAX, |known| known.listed_to)
    }

    /// The inode that a number follows from by rule.
    pub(crate) fn named(node: u64) -> Option<(TreeId, Ino)> {
        let (tree, ino) = (TreeId(node >> INO_BITS), Ino(node & ((1 << INO_BITS) - 1)));
        match tree.0 {
            0 => Some((TreeId::FS, ino)),
            _ => (tree.0 >> TREE_BITS == 0 && tree.is_subvol()).then_some((tree, ino)),
        }
    }

    /// The number that an inode shows.
    pub(crate) fn number(&self, tree: TreeId, ino: Ino) -> u64 {
        if ino.0 >> INO_BITS == 0 {
            if tree == TreeId::FS {
                return ino.0;
            }
            if tree.0 >> TREE_BITS == 0 {
                return tree.0 << INO_BITS | ino.0;
            }
        }
        self.odd.lock().number(tree, ino)
    }

    /// The node of an inode, known to the kernel or not.
    pub(crate) fn id(&self, tree: TreeId, ino: Ino) -> u64 {
        if (tree, ino) == (self.root.tree(), self.root.ino()) { ROOT_ID } else { self.number(tree, ino) }
    }

    /// Counts a node that is about to be given to the kernel.
    pub(crate) fn enter(&self, inode: InodeRef) -> u64 {
        if inode.is_empty_subvol_dir() {
            let node = self.odd.lock().fresh();
            self.shard(node).lock().insert(node, Node { lookups: 1, ..Node::new(inode) });
            self.count.fetch_add(1, Ordering::Relaxed);
            return node;
        }
        let node = self.id(inode.tree(), inode.ino());
        if node != ROOT_ID {
            let mut shard = self.shard(node).lock();
            let known = shard.entry(node).or_insert_with(|| Node::new(inode));
            if known.lookups == 0 {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            known.lookups += 1;
            known.used = true;
        }
        node
    }

    /// The kernel forgets a node `lookups` times.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.get_mut(&node) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            let gone = shard.remove(&node);
            self.count.fetch_sub(1, Ordering::Relaxed);
            drop(shard);
            // The last handle may erase the inode.
            drop(gone);
        }
    }

    /// How many nodes the kernel knows.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns about `want` nodes, with their inodes, that no request has named since they were last checked. Every
    /// call continues where the one before has stopped, and goes around at most once.
    pub(crate) fn idle(&self, want: usize) -> Vec<(u64, InodeRef)> {
        let mut found = Vec::new();
        for _ in 0..SHARDS {
            let shard = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            for (node, known) in self.shards[shard].lock().iter_mut() {
                if !std::mem::replace(&mut known.used, false) {
                    found.push((*node, known.inode.clone()));
                }
            }
            if found.len() >= want {
                break;
            }
        }
        found
    }

    /// All nodes of a subvolume that the kernel knows.
    pub(crate) fn of_tree(&self, tree: TreeId) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().iter().filter(|(_, n)| n.inode.tree() == tree).map(|(node, _)| *node));
        }
        if self.root.tree() == tree {
            found.push(ROOT_ID);
        }
        found
    }

    /// Forgets everything: the file system is unmounted.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            drop(nodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers outside of the scheme differ from each other and from all others, do not change, and cost memory
    /// by subvolumes, not by inodes. Method: many inodes of two late subvolumes, and of one with huge numbers,
    /// requested twice.
    #[test]
    fn odd_numbers() {
        let mut odd = ForeignInodes::default();
        let late = TreeId(1 << TREE_BITS);
        let inodes =
            || (256..10_000).map(Ino).chain([Ino(1 << INO_BITS | 300), Ino((1 << INO_BITS) + (1 << 33) + 300)]);
        let all: Vec<_> =
            [late, TreeId(late.0 + 1), TreeId::FS].into_iter().flat_map(|t| inodes().map(move |i| (t, i))).collect();
        let numbers: Vec<u64> = all.iter().map(|(t, i)| odd.number(*t, *i)).collect();
        let again: Vec<u64> = all.iter().map(|(t, i)| odd.number(*t, *i)).collect();
        assert_eq!(numbers, again);
        let mut distinct: std::collections::BTreeSet<u64> = numbers.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(distinct.iter().all(|n| *n >= ODD && Nodes::named(*n).is_none()));
        assert!(distinct.insert(odd.fresh()) && distinct.insert(odd.fresh()));
        assert_eq!(odd.of.len(), 9);
    }
}
