//! What the engine knows of the log that it has written since the last commit.

use std::collections::BTreeMap;

use oleo_format::{Generation, Logical, SuperBlock, TreeId};
use oleo_space::Ledger;
use oleo_tree::{Dirty, TreeRoot};

/// The log of the open transaction.
#[derive(Default)]
pub(crate) struct LogState {
    /// The generation of the blocks; 0: there is no log.
    pub(super) generation: u64,
    pub(super) root: Option<TreeRoot>,
    pub(super) trees: BTreeMap<TreeId, TreeRoot>,
    /// Every block that was taken for it.
    pub(super) taken: Vec<Logical>,
    /// Those of them that no superblock on disk leads to.
    pub(super) idle: Vec<Logical>,
    /// How many blocks the last `put` made.
    pub(super) made: u64,
    /// What was put since the last log commit was sealed: blocks that were made, and those that they replaced.
    pub(super) dirty: Dirty,
    pub(super) ledger: Ledger,
    /// Why nothing may be logged any more in the generation.
    pub(super) refused: Option<(u64, &'static str)>,
}

impl LogState {
    /// The log is that of another generation.
    pub(super) fn begin(&mut self, generation: Generation) {
        debug_assert!(self.taken.is_empty(), "a freeze has taken the log of before");
        let refused = self.refused;
        *self = LogState { generation: generation.0, refused, ..LogState::default() };
    }

    /// Blocks that the changes since the last call have replaced, or made and replaced.
    pub(super) fn take_replaced(&mut self) -> Vec<Logical> {
        let mut replaced = Vec::new();
        loop {
            let batch = self.ledger.drain(usize::MAX);
            if batch.is_empty() {
                return replaced;
            }
            replaced.extend(batch.heads().filter(|head| head.net() <= 0).map(|head| head.at));
        }
    }
}

/// The superblocks on disk, as far as the log has to do with them. Whoever writes one holds the lock of this.
pub(crate) struct LogOnDisk {
    /// That of the last commit.
    pub(super) committed: SuperBlock,
    /// The same with the log in it, as last written.
    pub(super) logged: Option<SuperBlock>,
    /// Of the log last written, in a field that kernels keep and do not look at: with it no two superblocks are the same, though
    /// logs of a transaction take each other's addresses. Records of stripes in flight tell by it whether they are done with.
    pub(super) number: u64,
    /// A commit's superblock is being written, or is to be written again: the log in the one before has ended.
    pub(super) closed: bool,
}

impl LogOnDisk {
    pub(crate) fn new(committed: SuperBlock) -> LogOnDisk {
        // A log that was found is as dear as one of ours.
        let logged = (committed.log_root.get() != 0).then_some(committed);
        LogOnDisk { committed, logged, number: committed.__unused_log_root_transid.get(), closed: false }
    }

    /// Whether a log of this generation may be named by the superblock.
    pub(super) fn takes(&self, generation: Generation) -> bool {
        !self.closed && self.committed.generation.get() + 1 == generation.0
    }

    /// Whether a commit has made all durable that this generation has.
    pub(super) fn has(&self, generation: Generation) -> bool {
        self.committed.generation.get() >= generation.0
    }

    /// A commit is about to write its superblock: no log commit of its generation comes any more. Returns the superblock with its
    /// log, which the other mirrors are to get first.
    pub(crate) fn close(&mut self) -> Option<SuperBlock> {
        self.closed = true;
        self.logged.take()
    }

    /// The superblock of a commit is on disk.
    pub(crate) fn opened(&mut self, committed: &SuperBlock) {
        *self = LogOnDisk { committed: *committed, logged: None, number: 0, closed: false };
    }
}
