//! What was found of a log that a crash left.

use std::collections::BTreeMap;

use oleo_format::{Logical, TreeId};
use oleo_tree::TreeRoot;

/// The log of an interrupted session, not replayed yet.
pub struct UnreplayedLog {
    pub(super) trees: Vec<LogTree>,
    /// Addresses of all its blocks.
    pub(super) blocks: Vec<Logical>,
    /// Data that the log names and the extent tree does not.
    pub(super) uncommitted: UncommittedExtents,
    pub(super) items: u64,
    pub(super) item_bytes: u64,
}

/// Data by its start: its length, and the subvolume in whose log it is. Of several that is the one of the highest number, as with the
/// kernel, which begins with that.
pub(super) type UncommittedExtents = BTreeMap<u64, (u64, TreeId)>;

/// The log of one subvolume.
#[derive(Clone, Debug)]
pub struct LogTree {
    /// Whose changes it holds.
    pub subvol: TreeId,
    /// Where it is.
    pub root: TreeRoot,
}

impl UnreplayedLog {
    /// The logs, in the order of their subvolumes' numbers.
    pub fn trees(&self) -> &[LogTree] {
        &self.trees
    }
    /// Items of all logs.
    pub fn items(&self) -> u64 {
        self.items
    }
    /// Bytes of these items.
    pub fn item_bytes(&self) -> u64 {
        self.item_bytes
    }
    /// Tree blocks of the log, the root's included.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }
    /// Whether this data is in the log only.
    pub fn is_uncommitted(&self, at: Logical) -> bool {
        self.uncommitted.contains_key(&at.0)
    }
}
