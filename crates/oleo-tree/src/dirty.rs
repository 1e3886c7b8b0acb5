//! The blocks that a transaction has made, that are still in use, and that are not yet on disk.
//!
//! Normal path: `apply` adds new blocks and removes those that they replace; the transaction removes blocks that lost
//! their last reference; `drain_sorted` hands all of them over for writing.
//!
//! Blocks are sealed (checksum) as they are built, while they are in the processor's cache: a block here never changes.
//! Locks: `map` (never over I/O); `sharing` is held by a change of a shareable tree and never waited for: what one
//! change makes of a shared block decides what the next one sees, so the caller makes them one after another; two in
//! parallel are a bug.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{CheckedNode, Logical, NodeExpect, NodeRules};
use oleo_lock::{Mutex, MutexGuard, rank};
use rayon::prelude::*;

use crate::{Node, TreeError};

/// Every block made in this transaction and still alive, by address.
#[derive(Default)]
pub struct Dirty {
    map: Mutex<rank::DirtyBlocks, HashMap<u64, Arc<Node>>>,
    sharing: Mutex<rank::Sharing, ()>,
}

impl Dirty {
    /// None yet.
    pub fn new() -> Dirty {
        Dirty::default()
    }

    /// The block at an address.
    pub fn get(&self, at: Logical) -> Option<Arc<Node>> {
        self.map.lock().get(&at.0).cloned()
    }

    /// Whether there is a block at an address.
    pub fn contains(&self, at: Logical) -> bool {
        self.map.lock().contains_key(&at.0)
    }

    /// Takes a block out that has lost its last reference.
    pub fn remove(&self, at: Logical) -> Option<Arc<Node>> {
        self.map.lock().remove(&at.0)
    }

    /// How many blocks.
    pub fn len(&self) -> usize {
        self.map.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map.lock().is_empty()
    }

    /// All blocks in the order of their addresses; none are left. They are sealed: their bytes can be written as they are.
    pub fn drain_sorted(&self) -> Vec<Arc<Node>> {
        let mut all: Vec<Arc<Node>> = std::mem::take(&mut *self.map.lock()).into_values().collect();
        all.par_sort_unstable_by_key(|node| node.logical());
        all
    }

    /// All blocks in the order of their addresses.
    pub fn sorted(&self) -> Vec<Arc<Node>> {
        let mut all: Vec<Arc<Node>> = self.map.lock().values().cloned().collect();
        all.par_sort_unstable_by_key(|node| node.logical());
        all
    }

    /// Verifies blocks from scratch, as a reader of the disk will, on all cores.
    pub fn verify(blocks: &[Arc<Node>], rules: &NodeRules) -> Result<(), TreeError> {
        blocks.par_iter().try_for_each(|node| {
            let expect = NodeExpect {
                generation: Some(node.generation()),
                level: Some(node.level()),
                ..NodeExpect::at(node.logical())
            };
            CheckedNode::verify(node.bytes().into(), rules, &expect)?;
            Ok(())
        })
    }

    /// Replaces blocks: `gone` leave, `new` come.
    pub(crate) fn replace(&self, gone: &[Logical], new: impl Iterator<Item = Arc<Node>>) {
        let mut map = self.map.lock();
        for at in gone {
            map.remove(&at.0);
        }
        map.extend(new.map(|node| (node.logical().0, node)));
    }

    /// One change of a shareable tree at a time.
    pub(crate) fn sharing(&self) -> MutexGuard<'_, rank::Sharing, ()> {
        // Not waited for: a thread that helps out in a pool while it holds the lock could meet itself here.
        self.sharing.try_lock().expect("shareable trees are changed one after another")
    }
}
