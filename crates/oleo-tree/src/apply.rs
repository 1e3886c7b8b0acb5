//! Sorted batch application: one list of changes in, one new tree out, each touched block written once.
//!
//! Normal path of `apply`:
//! 1. `plan`: from the root down, level by level, split the changes among the children, load the touched blocks in one
//!    batch per level, and find the fate of each: who references it besides us (one batch of lookups per level).
//! 2. `merge`: at the leaves, neighbouring touched leaves of one parent form a run; a pass over its old items and
//!    changes finds where the new leaves begin. A run that ends in a nearly empty leaf takes in an untouched neighbour.
//! 3. `rebuild_parents`: level by level upwards, list the children of touched nodes anew and cut them into new nodes;
//!    the tree grows or shrinks at the root. So far nothing has been copied, allocated or recorded.
//! 4. `build`: one pass in key order, leaves before nodes, assigns addresses: that of a block that is replaced in
//!    place, else new ones, allocated together. Then leaves are filled (on all cores), then the nodes of each level.
//! 5. The differences are recorded in the ledger, and `Dirty` gets the new blocks.
//!
//! Invariants: until 5 nothing is visible, so an error leaves everything as it was (4 may have allocated: these
//! addresses are lost until the transaction ends). The same root and batch give the same bytes and the same addresses
//! whatever the number of threads. A block that other trees keep is never changed itself.
//!
//! The fates of a block that must change, and what each means for what it references (a block references its children, a
//! leaf of a shareable tree its data extents; *implicit* references are keyed by the tree that owns the block, *full* ones
//! by the block's address):
//!
//! | fate | other references to it | it references | what becomes of it | what it references gets |
//! |---|---|---|---|---|
//! | `Sole` | none | implicitly | dropped, or rewritten in place | −implicit |
//! | `SoleFull` | none | fully | dropped | −full |
//! | `SharedOurs` | some | implicitly, as ours | stays, is converted to full | −implicit +full |
//! | `SharedOther` | some | fully, or as another tree's | stays | nothing |
//!
//! Each new block is ours and references implicitly: what it references gets +implicit. Changes that cancel are not
//! recorded. Blocks below one that stays have one reference more than is on record: the new copy of their parent.

mod build;
mod merge;
mod plan;
mod rebuild_parents;
pub(crate) mod share;

pub(crate) use build::{Refs, first_key};

use oleo_format::{BlockHead, Generation, Key, Logical, TreeId};
use oleo_space::Ledger;

use crate::blocks::Blocks;
use crate::item_bytes::ItemBytes;
use crate::{Dirty, TreeError, TreeRoot};

/// What happens to one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// The item has this content afterwards, whatever was before.
    Put(ItemBytes),
    /// The item does not exist afterwards, whatever was before.
    Delete,
}

/// A change of one item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Which item.
    pub key: Key,
    /// What happens to it.
    pub op: Op,
}

impl Change {
    /// The item is there with this content.
    pub fn put(key: Key, item: impl Into<ItemBytes>) -> Change {
        Change { key, op: Op::Put(item.into()) }
    }

    /// The item is not there.
    pub fn delete(key: Key) -> Change {
        Change { key, op: Op::Delete }
    }
}

/// Gives out addresses for new blocks.
pub trait BlockAlloc: Sync {
    /// Appends `count` addresses. The same calls in the same order give the same addresses.
    fn alloc(&self, count: usize, out: &mut Vec<Logical>) -> Result<(), TreeError>;
}

/// How often a block is referenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentState {
    /// References on disk and in the ledger together.
    pub refs: u64,
    /// Whether what the block references is keyed by its address.
    pub full_backref: bool,
}

/// Knows how often blocks are referenced, on disk and in the ledger together.
pub trait ExtentInfo: Sync {
    /// The states of these blocks (address and level, sorted by address) in their order.
    fn lookup(&self, blocks: &[(Logical, u8)]) -> Result<Vec<ExtentState>, TreeError>;
}

/// What a change of a tree needs to know and to use.
pub struct ApplyEnv<'a> {
    /// The open transaction.
    pub generation: Generation,
    /// The tree that is changed.
    pub owner: TreeId,
    /// The last transaction in which the tree was snapshotted (0: never), if it is of the kind that shares blocks.
    pub last_snapshot: Option<Generation>,
    /// The blocks that the transaction has made.
    pub dirty: &'a Dirty,
    /// Receives the references that are added and dropped.
    pub ledger: &'a Ledger,
    /// Gives addresses.
    pub alloc: &'a dyn BlockAlloc,
    /// Knows references.
    pub extents: &'a dyn ExtentInfo,
    /// Header of new blocks; address, generation, owner and level are filled in.
    pub head: &'a BlockHead,
    /// Whether to use all cores for large batches.
    pub threads: bool,
}

impl ApplyEnv<'_> {
    /// The header of a new block.
    pub(crate) fn head_of(&self, at: Logical, level: u8) -> BlockHead {
        BlockHead { logical: at, generation: self.generation, owner: self.owner, level, ..*self.head }
    }

    pub(crate) fn shareable(&self) -> bool {
        self.last_snapshot.is_some()
    }
}

impl Blocks {
    /// Returns the tree with these changes. `batch` is sorted by key, with one change per key. The old root stays as it
    /// was: a block that was made in this transaction gives its address to the one that replaces it, but a reader's node is
    /// never touched.
    ///
    /// New blocks and all changes of references are recorded in `env.ledger`, the reference to the root block by the tree
    /// included, so the caller records nothing for tree blocks. Shareable trees are changed one after another, with whatever
    /// method; trees of other kinds may be changed in parallel.
    ///
    /// # Panics
    /// The batch is not sorted, or two shareable trees are changed in parallel.
    pub fn apply(&self, root: &TreeRoot, batch: &[Change], env: &ApplyEnv<'_>) -> Result<TreeRoot, TreeError> {
        assert_eq!(root.tree, env.owner, "the changes are for this tree");
        check_order(batch);
        if batch.is_empty() {
            return Ok(root.clone());
        }
        let _sharing = env.shareable().then(|| env.dirty.sharing());
        let mut job = plan::Job::plan(self, root, batch, env)?;
        job.merge_leaves()?;
        job.rebuild_parents()?;
        if job.unchanged() {
            return Ok(root.clone());
        }
        job.build()
    }

    /// Returns a new tree, `env.owner`, with the items that the batch puts: none if the batch is empty. References are recorded
    /// as by [`apply`](Self::apply).
    pub fn create_tree(&self, batch: &[Change], env: &ApplyEnv<'_>) -> Result<TreeRoot, TreeError> {
        check_order(batch);
        let mut job = plan::Job::new(self, batch, env);
        job.merge_nothing()?;
        job.rebuild_parents()?;
        job.build()
    }
}

fn check_order(batch: &[Change]) {
    assert!(batch.is_sorted_by(|a, b| a.key < b.key), "a batch is sorted, with one change per key");
}
