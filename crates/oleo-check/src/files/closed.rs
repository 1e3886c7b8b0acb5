//! What is known of inodes that are complete.

use std::sync::Arc;

use super::claim::Sums;

/// What is known of inodes all of whose items have been seen, and of items that stand alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Closed {
    pub sums: Sums,
    /// Sum of [`claim::edge`](super::claim::edge)s.
    pub edges: u128,
    /// A directory lies in one with a higher number: only then can directories form a ring.
    pub upward: bool,
    /// Inode 256 is there, and whether it is a directory.
    pub root_dir: Option<bool>,
    /// A block is missing.
    pub lost: bool,
    /// Directories that are not in the root directory, and where they are: a list for each leaf, which all share.
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
