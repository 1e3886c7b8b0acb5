//! A tree block in memory, and the root of a tree.
//!
//! A [`Node`] that is not on disk yet holds its children that are not on disk either, so that its root alone keeps the
//! whole new tree alive. Once all are written and in the cache it drops these references: from then on the cache alone
//! bounds the memory.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oleo_format::{CheckedNode, Corruption, Generation, LEVELS_MAX, Logical, NodeExpect, TreeId};
use oleo_lock::{RwLock, rank};

/// How many levels a tree may have.
pub(crate) const LEVELS: usize = LEVELS_MAX as usize;

/// The unwritten children of a block, one place per child.
type Kids = Option<Box<[Option<Arc<Node>>]>>;

/// A verified, immutable tree block.
#[derive(Debug)]
pub struct Node {
    block: CheckedNode,
    /// Whether there are kids: blocks from disk are spared the lock.
    holds: AtomicBool,
    kids: RwLock<rank::NodeKids, Kids>,
}

impl Deref for Node {
    type Target = CheckedNode;
    #[inline]
    fn deref(&self) -> &CheckedNode {
        &self.block
    }
}

impl Node {
    /// A block from disk, or one without unwritten children.
    pub fn new(block: CheckedNode) -> Node {
        Node::holding(block, None)
    }

    /// A new block over children of which some are new.
    pub(crate) fn with_kids(block: CheckedNode, kids: Vec<Option<Arc<Node>>>) -> Node {
        debug_assert_eq!(block.len(), kids.len());
        let kids = kids.iter().any(Option::is_some).then(|| kids.into_boxed_slice());
        Node::holding(block, kids)
    }

    /// A copy of `other` as another block, over the same children.
    pub(crate) fn over_kids_of(block: CheckedNode, other: &Node) -> Node {
        Node::holding(block, other.kids.read().clone())
    }

    fn holding(block: CheckedNode, kids: Kids) -> Node {
        Node { block, holds: AtomicBool::new(kids.is_some()), kids: RwLock::new(kids) }
    }

    /// The child in a slot if this block holds it.
    #[inline]
    pub(crate) fn kid(&self, slot: usize) -> Option<Arc<Node>> {
        if !self.holds.load(Ordering::Relaxed) {
            return None;
        }
        self.kids.read().as_ref()?[slot].clone()
    }

    /// The bytes of a block that is to be another: its own if nobody else has it, else a copy.
    pub(crate) fn bytes_of(node: Arc<Node>) -> Box<[u8]> {
        match Arc::try_unwrap(node) {
            Ok(node) => node.block.into_bytes(),
            Err(node) => node.bytes().into(),
        }
    }

    /// Releases the children: they are on disk now.
    pub(crate) fn release_children(&self) {
        if self.holds.swap(false, Ordering::Relaxed) {
            drop(self.kids.write().take());
        }
    }
}

/// The root of a tree as of some moment: with it the whole tree can be read as it was then.
#[derive(Clone, Debug)]
pub struct TreeRoot {
    /// Which tree this is.
    pub tree: TreeId,
    /// Its root block.
    pub logical: Logical,
    /// The generation of that block.
    pub generation: Generation,
    /// The level of that block.
    pub level: u8,
    /// The block itself while it is not on disk yet.
    pub(crate) node: Option<Arc<Node>>,
}

impl TreeRoot {
    /// A tree that is on disk.
    pub fn on_disk(tree: TreeId, logical: Logical, generation: Generation, level: u8) -> TreeRoot {
        TreeRoot { tree, logical, generation, level, node: None }
    }

    /// The root of a tree whose root block is `node`.
    pub(crate) fn of(tree: TreeId, node: Arc<Node>) -> TreeRoot {
        TreeRoot { tree, logical: node.logical(), generation: node.generation(), level: node.level(), node: Some(node) }
    }

    /// The same root without hold on unwritten blocks: what to keep once they are written and in the cache.
    pub fn settled(&self) -> TreeRoot {
        TreeRoot { node: None, ..self.clone() }
    }

    /// Whether it holds no unwritten blocks.
    pub fn is_settled(&self) -> bool {
        self.node.is_none()
    }

    /// Whether both are the same block, and so the same tree content.
    pub fn same_block(&self, other: &TreeRoot) -> bool {
        (self.logical, self.generation) == (other.logical, other.generation)
    }
}

/// Whether a block of this owner may be in that tree. Subvolumes share blocks with their snapshots.
pub(crate) fn owner_fits(tree: TreeId, owner: TreeId) -> bool {
    let of_reloc = tree == TreeId::TREE_RELOC && owner == TreeId::DATA_RELOC;
    if has_foreign_blocks(tree) { owner.is_subvol() || owner == TreeId::TREE_RELOC || of_reloc } else { owner == tree }
}

/// Whether blocks of other trees may be in this one.
pub(crate) fn has_foreign_blocks(tree: TreeId) -> bool {
    tree.is_subvol() || tree == TreeId::TREE_RELOC
}

/// Compares a block with its parent's pointer. Blocks from the volume were compared once; blocks from the cache may
/// have come there through another parent.
pub(crate) fn check_place(node: &CheckedNode, tree: TreeId, expect: &NodeExpect) -> Result<(), Corruption> {
    let wrong = |what: &'static str, have: String, want: String| {
        Err(Corruption::new("tree block", what, have, want).within(format!("tree {tree}, block {}", expect.logical)))
    };
    // The address is in another cache line than the rest. It need not be compared again: the verifier has done so, and
    // it is the cache's key.
    debug_assert_eq!(node.logical(), expect.logical);
    if expect.level.is_some_and(|level| level != node.level()) {
        return wrong("level", node.level().to_string(), format!("{:?}", expect.level));
    }
    if expect.generation.is_some_and(|generation| generation != node.generation()) {
        return wrong("generation", node.generation().to_string(), format!("{:?}", expect.generation));
    }
    if !owner_fits(tree, node.owner()) {
        return wrong("owner", node.owner().to_string(), tree.to_string());
    }
    if let Some(want) = expect.first_key
        && (node.is_empty() || node.key(0) != want)
    {
        let have = if node.is_empty() { "none".to_string() } else { node.key(0).to_string() };
        return wrong("first key", have, want.to_string());
    }
    if node.is_empty() && node.level() > 0 {
        return wrong("count of children", "0".into(), "1 or more".into());
    }
    Ok(())
}
