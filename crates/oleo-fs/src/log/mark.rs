//! What an inode remembers of its place in the log of the open transaction.

use std::collections::BTreeSet;

use oleo_format::{Generation, ItemType};

use crate::object::Slot;

/// How much of an inode is in the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Depth {
    /// That it exists, with its names and extended attributes.
    Exists,
    /// All of it, as it was when it was logged.
    Whole,
}

/// An inode was logged. Means nothing any more once another generation is open.
pub(crate) struct LogMark {
    pub(crate) generation: Generation,
    pub(crate) depth: Depth,
    /// The round of callers that it was logged in.
    pub(crate) round: u64,
    /// What has changed since. Extents and entries are kept only of what is there whole.
    pub(crate) item: bool,
    pub(crate) xattrs: bool,
    pub(crate) renamed: bool,
    pub(crate) slots: BTreeSet<Slot>,
}

impl LogMark {
    pub(crate) fn new(generation: Generation, depth: Depth, round: u64) -> LogMark {
        LogMark { generation, depth, round, item: false, xattrs: false, renamed: false, slots: BTreeSet::new() }
    }

    /// An item changes; whether it is the first change of the names.
    pub(crate) fn note(&mut self, slot: Slot) -> bool {
        match slot.0 {
            ItemType::INODE_ITEM => self.item = true,
            ItemType::XATTR_ITEM => self.xattrs = true,
            ItemType::INODE_REF | ItemType::INODE_EXTREF => return !std::mem::replace(&mut self.renamed, true),
            ItemType::EXTENT_DATA | ItemType::DIR_INDEX if self.depth == Depth::Whole => {
                self.slots.insert(slot);
            }
            _ => {}
        }
        false
    }

    /// Whether the log has all of the inode that `depth` asks for.
    pub(crate) fn has(&self, depth: Depth) -> bool {
        let as_it_is = !self.item && !self.xattrs && self.slots.is_empty();
        self.depth >= depth && !self.renamed && (depth == Depth::Exists || as_it_is)
    }
}
