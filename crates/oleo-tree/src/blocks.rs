//! Finds blocks: the verified cache over a volume, and reads of single items.
//!
//! Normal path of a read: (1) `root_node`, then for each level (2) the slot of the child, (3) the child itself: held by
//! its parent while unwritten, else kept by the thread (`kept`), else from the cache, else read and verified.
//!
//! Invariants: the cache holds at most one block of an address, and a hit has the generation of the parent's pointer, so that a block is
//! never confused with an older one at the same address. It is compared with the rest of the pointer, too. A block that no tree has any more
//! is [forgotten](Blocks::forget) before its address is used again. Levels fall by one with each step.
//! Locks: those inside the cache's shards, never held over I/O.

use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_format::{ByteLen, CheckedNode, Corruption, Key, Logical, NodeExpect, NodeRules, TreeId};
use oleo_volume::{Volume, VolumeError};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::kept::{self, Lent};
use crate::node::{LEVELS, check_place, has_foreign_blocks};
use crate::{Dirty, Node, TreeError, TreeRoot};

/// How many sibling blocks a pass over a tree reads in one batch.
pub(crate) const READ_AHEAD_BLOCKS: usize = 32;

/// What a cached block costs beside its bytes: two allocations, the entry, its key.
const NODE_OVERHEAD_BYTES: u64 = 160;

/// The source of verified blocks: a volume, or a map in tests.
pub trait BlockReader: Send + Sync {
    /// What all blocks have in common.
    fn rules(&self) -> &NodeRules;
    /// Reads and verifies one block.
    fn read_block(&self, expect: &NodeExpect) -> Result<CheckedNode, TreeError>;
    /// Reads many in one batch; results in the order of the expectations.
    fn read_blocks(&self, expects: &[NodeExpect]) -> Vec<Result<CheckedNode, TreeError>>;
}

impl BlockReader for Volume {
    fn rules(&self) -> &NodeRules {
        Volume::rules(self)
    }

    fn read_block(&self, expect: &NodeExpect) -> Result<CheckedNode, TreeError> {
        Volume::read_block(self, expect).map_err(TreeError::from)
    }

    fn read_blocks(&self, expects: &[NodeExpect]) -> Vec<Result<CheckedNode, TreeError>> {
        Volume::read_blocks(self, expects).into_iter().map(|r| r.map_err(TreeError::from)).collect()
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<u64, Arc<Node>> for ByBytes {
    fn weight(&self, _: &u64, node: &Arc<Node>) -> u64 {
        node.bytes().len() as u64 + NODE_OVERHEAD_BYTES
    }
}

impl From<VolumeError> for TreeError {
    fn from(error: VolumeError) -> TreeError {
        match error {
            VolumeError::Corrupt(corruption) => TreeError::Corrupt(*corruption),
            error => TreeError::Volume(error),
        }
    }
}

/// The tree blocks of a volume: a verified cache, and everything that reads and makes trees. Shared by all threads.
pub struct Blocks {
    reader: Arc<dyn BlockReader>,
    /// By address.
    cache: Cache<u64, Arc<Node>, ByBytes>,
    /// Under which threads keep blocks (see `kept`); no other value of this type has it or had it.
    number: AtomicU64,
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An item of a tree. It keeps the block that it is in.
#[derive(Clone, Debug)]
pub struct ItemRef {
    node: Arc<Node>,
    slot: usize,
}

impl ItemRef {
    pub(crate) fn new(node: Arc<Node>, slot: usize) -> ItemRef {
        ItemRef { node, slot }
    }

    /// Its key.
    pub fn key(&self) -> Key {
        self.node.key(self.slot)
    }
}

impl Deref for ItemRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.node.item(self.slot)
    }
}

impl Blocks {
    /// The blocks of `reader` (a [`Volume`] behind an `Arc`), of which about `cache_bytes` are kept in memory.
    pub fn new(reader: Arc<dyn BlockReader>, cache_bytes: usize) -> Blocks {
        let per_block = reader.rules().nodesize as usize + NODE_OVERHEAD_BYTES as usize;
        let cache = Cache::with_weighter((cache_bytes / per_block).max(16), cache_bytes as u64, ByBytes);
        Blocks { reader, cache, number: AtomicU64::new(next_number()) }
    }

    /// What all blocks have in common.
    pub fn rules(&self) -> &NodeRules {
        self.reader.rules()
    }

    pub(crate) fn nodesize(&self) -> u32 {
        self.rules().nodesize
    }

    /// Puts blocks that have just been written into the cache; they drop their children. Older roots should be replaced
    /// by [`TreeRoot::settled`] after this.
    pub fn publish(&self, written: &[Arc<Node>]) {
        for node in written {
            self.remember(node.clone());
        }
        self.renumber();
        // Only now: a reader finds a child with its parent, in the cache or on disk, at any moment.
        for node in written {
            node.release_children();
        }
    }

    /// Bytes that the cache may hold.
    pub fn cache_bytes_max(&self) -> u64 {
        self.cache.capacity()
    }

    /// Bytes that the cache holds now.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// Forgets the blocks of a run of addresses: no tree that is read has them any more, and others may come to be there.
    pub fn forget(&self, start: Logical, len: ByteLen) {
        for at in (start.0..start.0.saturating_add(len.0)).step_by(self.nodesize() as usize) {
            self.cache.remove(&at);
        }
    }

    /// Forgets everything in the cache, and what threads keep.
    pub fn forget_all(&self) {
        self.cache.clear();
        self.renumber();
    }

    /// What threads keep is not found any more.
    fn renumber(&self) {
        self.number.store(next_number(), Ordering::SeqCst);
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    fn remember(&self, node: Arc<Node>) {
        self.cache.insert(node.logical().0, node);
    }

    /// The root block of a tree.
    pub fn root_node(&self, root: &TreeRoot) -> Result<Arc<Node>, TreeError> {
        if let Some(node) = &root.node {
            return Ok(node.clone());
        }
        self.load(root.tree, &expect_root(root)?)
    }

    /// The same for a look-up: from what this thread keeps, if it is there.
    pub(crate) fn lend_root(&self, root: &TreeRoot) -> Result<Lent, TreeError> {
        if let Some(node) = &root.node {
            return Ok(Lent::unkept(node.clone()));
        }
        self.lend(root.tree, &expect_root(root)?)
    }

    /// The child of a node in a slot, as [`lend_root`](Self::lend_root).
    #[inline]
    pub(crate) fn lend_child(&self, tree: TreeId, parent: &Node, slot: usize) -> Result<Lent, TreeError> {
        if let Some(kid) = parent.kid(slot) {
            return Ok(Lent::unkept(kid));
        }
        self.lend(tree, &NodeExpect::child(&parent.child(slot), parent.level()))
    }

    fn lend(&self, tree: TreeId, expect: &NodeExpect) -> Result<Lent, TreeError> {
        // Before anything is looked up: what is kept is kept as of then.
        let number = self.number();
        let (Some(generation), Some(level)) = (expect.generation, expect.level) else {
            return Ok(Lent::unkept(self.load(tree, expect)?));
        };
        let Some(kept) = kept::take(number, expect.logical, generation, level) else {
            return Ok(Lent::cached(self.load(tree, expect)?, number));
        };
        let lent = Lent::cached(kept.node, number);
        check_place(&lent, tree, expect)?;
        if kept.is_due && self.cached(tree, expect)?.is_none() {
            self.remember(Arc::clone(&lent));
        }
        Ok(lent)
    }

    /// As [`root_node`](Self::root_node) inside a transaction, whose unwritten blocks count.
    pub(crate) fn root_node_in(&self, root: &TreeRoot, dirty: &Dirty) -> Result<Arc<Node>, TreeError> {
        if root.node.is_none()
            && let Some(node) = dirty.get(root.logical)
            && node.generation() == root.generation
        {
            return Ok(node);
        }
        self.root_node(root)
    }

    fn load(&self, tree: TreeId, expect: &NodeExpect) -> Result<Arc<Node>, TreeError> {
        if let Some(node) = self.cached(tree, expect)? {
            return Ok(node);
        }
        self.admit(tree, expect, self.reader.read_block(&self.for_reader(tree, expect)))
    }

    /// A block from the cache, its place checked.
    fn cached(&self, tree: TreeId, expect: &NodeExpect) -> Result<Option<Arc<Node>>, Corruption> {
        if expect.generation.is_none() {
            return Ok(None);
        }
        let found = self.cache.get(&expect.logical.0).filter(|node| Some(node.generation()) == expect.generation);
        if let Some(node) = &found {
            check_place(node, tree, expect)?;
        }
        Ok(found)
    }

    /// Takes what the reader gave into the cache.
    fn admit(
        &self,
        tree: TreeId,
        expect: &NodeExpect,
        read: Result<CheckedNode, TreeError>,
    ) -> Result<Arc<Node>, TreeError> {
        let block = read?;
        check_place(&block, tree, expect)?;
        let node = Arc::new(Node::new(block));
        self.remember(node.clone());
        Ok(node)
    }

    /// Reads a block without going through a parent. It goes into the cache, where its parents find it.
    pub(crate) fn read_any(&self, expect: &NodeExpect) -> Result<Arc<Node>, TreeError> {
        let node = Arc::new(Node::new(self.reader.read_block(expect)?));
        self.remember(node.clone());
        Ok(node)
    }

    /// As [`read_any`](Self::read_any) for many, in one batch; without those that cannot be read. Leaves of subvolumes do
    /// not go into the cache: whoever reads those of a whole group has no use for them afterwards, and they would drive out
    /// what others have use for.
    pub(crate) fn read_any_many(&self, expects: &[NodeExpect]) -> Vec<Arc<Node>> {
        let read = self.reader.read_blocks(expects).into_iter().flatten();
        read.map(|block| {
            let node = Arc::new(Node::new(block));
            if !node.is_leaf() || !has_foreign_blocks(node.owner()) {
                self.remember(node.clone());
            }
            node
        })
        .collect()
    }

    fn for_reader(&self, tree: TreeId, expect: &NodeExpect) -> NodeExpect {
        NodeExpect { owner: (!has_foreign_blocks(tree)).then_some(tree), ..*expect }
    }

    /// The child of a node in a slot.
    #[inline]
    pub(crate) fn child(&self, tree: TreeId, parent: &Node, slot: usize) -> Result<Arc<Node>, TreeError> {
        if let Some(kid) = parent.kid(slot) {
            return Ok(kid);
        }
        self.load(tree, &NodeExpect::child(&parent.child(slot), parent.level()))
    }

    /// Returns many children of any parents: those that are not in memory are read in one batch.
    pub(crate) fn children<'n>(
        &self,
        tree: TreeId,
        wanted: impl Iterator<Item = (&'n Node, usize)>,
    ) -> Result<Vec<Arc<Node>>, TreeError> {
        let mut found: Vec<Option<Arc<Node>>> = Vec::with_capacity(wanted.size_hint().0);
        let mut missing: Vec<(usize, NodeExpect)> = Vec::new();
        for (index, (parent, slot)) in wanted.enumerate() {
            if let Some(kid) = parent.kid(slot) {
                found.push(Some(kid));
                continue;
            }
            let expect = NodeExpect::child(&parent.child(slot), parent.level());
            let hit = self.cached(tree, &expect)?;
            if hit.is_none() {
                missing.push((index, expect));
            }
            found.push(hit);
        }
        match missing.as_slice() {
            [] => {}
            [(index, expect)] => found[*index] = Some(self.load(tree, expect)?),
            _ => {
                let expects: Vec<NodeExpect> = missing.iter().map(|(_, e)| self.for_reader(tree, e)).collect();
                for ((index, expect), read) in missing.iter().zip(self.reader.read_blocks(&expects)) {
                    found[*index] = Some(self.admit(tree, expect, read)?);
                }
            }
        }
        let count = found.len();
        let found: Vec<Arc<Node>> = found.into_iter().flatten().collect();
        assert_eq!(found.len(), count, "the reader answered every request");
        Ok(found)
    }

    /// The item of this very key.
    pub fn get(&self, root: &TreeRoot, key: &Key) -> Result<Option<ItemRef>, TreeError> {
        let leaf = self.leaf_of(root, key)?;
        Ok(leaf.search(key).ok().map(|slot| ItemRef::new(Arc::clone(&leaf), slot)))
    }

    /// What `f` makes of the item of this very key, or of its absence. Writes to no line that other threads use, if all blocks on the
    /// way are kept by this thread.
    pub fn get_with<R>(&self, root: &TreeRoot, key: &Key, f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, TreeError> {
        let leaf = self.leaf_of(root, key)?;
        Ok(f(leaf.search(key).ok().map(|slot| leaf.item(slot))))
    }

    fn leaf_of(&self, root: &TreeRoot, key: &Key) -> Result<Lent, TreeError> {
        let mut node = self.lend_root(root)?;
        while !node.is_leaf() {
            node = self.lend_child(root.tree, &node, node.child_slot(key))?;
        }
        Ok(node)
    }

    /// The last item at or below a key, for who only compares: nothing is read for it, nor kept. `None` if that cannot be said from the
    /// blocks that are in memory.
    #[doc(hidden)]
    pub fn last_in_memory(&self, root: &TreeRoot, at_or_below: &Key) -> Option<Option<ItemRef>> {
        let is_it = |node: &Arc<Node>, expect: &NodeExpect| Some(node.generation()) == expect.generation;
        let in_memory = |expect: &NodeExpect| self.cache.peek(&expect.logical.0).filter(|node| is_it(node, expect));
        let mut node = root.node.clone().or_else(|| in_memory(&expect_root(root).ok()?))?;
        let mut leftmost = true;
        while !node.is_leaf() {
            let slot = node.child_slot(at_or_below);
            leftmost &= slot == 0;
            let child = node.kid(slot).or_else(|| in_memory(&NodeExpect::child(&node.child(slot), node.level())))?;
            node = child;
        }
        match node.search(at_or_below) {
            Ok(slot) => Some(Some(ItemRef::new(node, slot))),
            Err(0) => leftmost.then_some(None),
            Err(slot) => Some(Some(ItemRef::new(node, slot - 1))),
        }
    }

    /// The items of many keys in one pass. `sorted` rises (equal neighbours are allowed); `each` is given the index into it
    /// and the item, if there is one, in order.
    pub fn get_many(
        &self,
        root: &TreeRoot,
        sorted: &[Key],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TreeError> {
        if sorted.is_empty() {
            return Ok(());
        }
        let node = self.root_node(root)?;
        self.get_many_below(root.tree, &node, sorted, 0..sorted.len(), &mut each)
    }

    fn get_many_below(
        &self,
        tree: TreeId,
        node: &Arc<Node>,
        sorted: &[Key],
        range: Range<usize>,
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TreeError> {
        if node.is_leaf() {
            for index in range {
                each(index, node.search(&sorted[index]).ok().map(|slot| node.item(slot)));
            }
            return Ok(());
        }
        let mut wanted: Vec<(usize, Range<usize>)> = Vec::new();
        split_by_child(node, range, |index| &sorted[index], |slot, part| wanted.push((slot, part)));
        for some in wanted.chunks(READ_AHEAD_BLOCKS) {
            let children = self.children(tree, some.iter().map(|(slot, _)| (&**node, *slot)))?;
            for (child, (_, part)) in children.iter().zip(some) {
                self.get_many_below(tree, child, sorted, part.clone(), each)?;
            }
        }
        Ok(())
    }
}

fn expect_root(root: &TreeRoot) -> Result<NodeExpect, TreeError> {
    if usize::from(root.level) >= LEVELS {
        let have = root.level;
        return Err(TreeError::corrupt(root.tree, "level of the root", have, "7 at most", root.logical));
    }
    Ok(NodeExpect {
        logical: root.logical,
        generation: Some(root.generation),
        level: Some(root.level),
        owner: None,
        first_key: None,
    })
}

/// Splits a range of sorted things among the children of a node: calls `part(slot, range)` for each child that gets any.
pub(crate) fn split_by_child<'k>(
    node: &Node,
    range: Range<usize>,
    key_of: impl Fn(usize) -> &'k Key,
    mut part: impl FnMut(usize, Range<usize>),
) {
    let mut start = range.start;
    while start < range.end {
        let slot = node.child_slot(key_of(start));
        let end = if slot + 1 == node.len() {
            range.end
        } else {
            let next = node.key(slot + 1);
            first_not_below(start, range.end, |index| *key_of(index) < next)
        };
        // The first key of the part is below the next child's, so that at least one thing is taken: this ends.
        let end = end.max(start + 1);
        part(slot, start..end);
        start = end;
    }
}

/// The first index in `start..end` for which `below` does not hold, which then does not hold for any later one either.
/// Gallops: cheap when it is near.
fn first_not_below(start: usize, end: usize, below: impl Fn(usize) -> bool) -> usize {
    let mut low = start;
    let mut step = 1;
    while low + step < end && below(low + step) {
        low += step;
        step *= 2;
    }
    let mut high = (low + step).min(end);
    if low == start && !below(low) {
        return start;
    }
    low += 1;
    while low < high {
        let middle = low + (high - low) / 2;
        if below(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Whether a callback wants no more.
pub(crate) fn stopped(flow: &ControlFlow<()>) -> bool {
    flow.is_break()
}
