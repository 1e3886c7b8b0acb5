//! What the engine knows of the log that it has written since the last commit.

use std::collections::BTreeMap;

use oleo_format::{Logical, SuperBlock, TreeId};
use oleo_tree::TreeRoot;

/// The log of the open transaction.
pub(crate) struct LogState {
    /// The generation of the blocks; 0: there is no log.
    pub(super) generation: u64,
    pub(super) root: Option<TreeRoot>,
    pub(super) trees: BTreeMap<TreeId, TreeRoot>,
    /// Every block that was taken for it.
    pub(super) taken: Vec<Logical>,
    /// Those of them that no superblock on disk leads to.
    pub(super) idle: Vec<Logical>,
    /// The superblock on disk, of the last commit.
    pub(super) committed: SuperBlock,
    /// The same with the log in it, as last written.
    pub(super) logged: Option<SuperBlock>,
    /// Why nothing may be logged any more in the generation.
    pub(super) refused: Option<(u64, &'static str)>,
}

impl LogState {
    pub(crate) fn new(committed: SuperBlock) -> LogState {
        LogState {
            generation: 0,
            root: None,
            trees: BTreeMap::new(),
            taken: Vec::new(),
            idle: Vec::new(),
            committed,
            // A log that was found is as dear as one of ours.
            logged: (committed.log_root.get() != 0).then_some(committed),
            refused: None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.generation = 0;
        self.root = None;
        self.trees = BTreeMap::new();
        self.taken = Vec::new();
        self.idle = Vec::new();
        self.logged = None;
    }
}
