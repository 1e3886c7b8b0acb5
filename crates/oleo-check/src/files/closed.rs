//! What is known of inodes that are complete.

use std::sync::Arc;

use super::claim::Sums;

/// What is known of inodes whose items have all been seen, and of items that belong to no inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Closed {
    pub sums: Sums,
    /// Sum of [`claim::edge`](super::claim::edge)s.
    pub edges: u128,
    /// A directory lies in one with a higher number; without that, directories cannot form a ring.
    pub upward: bool,
    /// Inode 256 is there, and whether it is a directory.
    pub root_dir: Option<bool>,
    /// A block is missing.
    pub lost: bool,
    /// Directories that are not in the root directory, with their parents: one list per leaf, shared by all that
    /// contain the leaf.
    pub dirs: Vec<Arc<[(u64, u64)]>>,
}

impl Closed {
    pub(super) fn join(&mut self, other: &Closed) {
        self.dirs.extend(other.dirs.iter().cloned());
        self.sums.add(&other.sums);
        self.edges = self.edges.wrapping_add(other.edges);
        self.upward |= other.upward;
        self.root_dir = self.root_dir.or(other.root_dir);
        self.lost |= other.lost;
    }

    pub(super) fn push_dirs(&mut self, dirs: Vec<(u64, u64)>) {
        if !dirs.is_empty() {
            self.dirs.push(dirs.into());
        }
    }
}
