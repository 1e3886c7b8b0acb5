//! What all inodes share for the log: the rounds of callers of fsync, and which logged inodes have other names by now.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::TreeId;
use oleo_lock::{Condvar, Mutex, rank};

use crate::log::stats::Counters;
use crate::object::Inode;

/// What all inodes share for the log.
#[derive(Default)]
pub(crate) struct Shared {
    pub(super) queue: Mutex<rank::LogQueue, Queue>,
    pub(super) turn: Condvar,
    /// Inodes in the log whose names have changed since, by subvolume.
    pub(super) renamed: Mutex<rank::LogRenamed, HashMap<TreeId, Vec<Arc<Inode>>>>,
    pub(crate) stats: Counters,
}

/// Rounds are counted from 1 on.
#[derive(Default)]
pub(super) struct Queue {
    /// Entered for the round after `begun`.
    pub(super) waiting: Vec<Arc<Inode>>,
    pub(super) begun: u64,
    pub(super) done: u64,
    /// The last round that failed.
    pub(super) failed: u64,
    pub(super) leading: bool,
}

impl Shared {
    /// A logged inode's names change.
    pub(crate) fn renamed(&self, inode: &Arc<Inode>) {
        self.renamed.lock().entry(inode.tree()).or_default().push(inode.clone());
    }

    /// The transaction ends, and its log with it.
    pub(crate) fn forget(&self) {
        let gone = std::mem::take(&mut *self.renamed.lock());
        drop(gone);
    }

    pub(super) fn has_renamed(&self, tree: TreeId) -> bool {
        self.renamed.lock().contains_key(&tree)
    }

    pub(super) fn take_renamed(&self, tree: TreeId) -> Vec<Arc<Inode>> {
        self.renamed.lock().remove(&tree).unwrap_or_default()
    }
}
