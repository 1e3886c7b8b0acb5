//! Passes over a tree in key order: items of a range, or all blocks. Both read siblings ahead in batches.

use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{Key, TreeId};

use crate::blocks::{Blocks, READ_AHEAD_BLOCKS, stopped};
use crate::{Node, TreeError, TreeRoot};

/// What a visitor of blocks wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// The children of this block.
    Into,
    /// The next block that is not below this one.
    Over,
    /// Nothing more.
    Stop,
}

type ItemVisitor<'f, E> = dyn FnMut(&Key, &[u8]) -> Result<ControlFlow<()>, E> + 'f;
type BlockVisitor<'f, E> = dyn FnMut(&Arc<Node>, usize) -> Result<Walk, E> + 'f;

struct Bounds {
    tree: TreeId,
    from: Key,
    to_incl: Key,
}

impl Blocks {
    /// Calls `f` for every item from `from` to `to_incl` in key order, until it breaks off or fails. Siblings are
    /// read ahead in batches.
    pub fn scan<E: From<TreeError>>(
        &self,
        root: &TreeRoot,
        from: Key,
        to_incl: Key,
        mut f: impl FnMut(&Key, &[u8]) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let bounds = Bounds { tree: root.tree, from, to_incl };
        let node = self.root_node(root)?;
        self.scan_below(&bounds, &node, &mut f).map(|_| ())
    }

    fn scan_below<E: From<TreeError>>(
        &self,
        bounds: &Bounds,
        node: &Arc<Node>,
        f: &mut ItemVisitor<'_, E>,
    ) -> Result<ControlFlow<()>, E> {
        if node.is_leaf() {
            let (Ok(start) | Err(start)) = node.search(&bounds.from);
            for slot in start..node.len() {
                let key = node.key(slot);
                if key > bounds.to_incl || stopped(&f(&key, node.item(slot))?) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            return Ok(ControlFlow::Continue(()));
        }
        let first = node.child_slot(&bounds.from);
        let end = match node.search(&bounds.to_incl) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        };
        let mut slot = first;
        // A search for one item at the start of a range should not pay for 32 blocks: read ahead twice as far each
        // time.
        let mut batch = 1;
        while slot < end {
            let stop = end.min(slot + if node.level() == 1 { batch } else { 1 });
            for child in self.children(bounds.tree, (slot..stop).map(|slot| (&**node, slot)))? {
                if stopped(&self.scan_below(bounds, &child, f)?) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            slot = stop;
            batch = (batch * 2).min(READ_AHEAD_BLOCKS);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Calls `f` for every block of a tree, parents before their children, in key order. The depth of the root is 0.
    pub fn walk<E: From<TreeError>>(
        &self,
        root: &TreeRoot,
        mut f: impl FnMut(&Arc<Node>, usize) -> Result<Walk, E>,
    ) -> Result<(), E> {
        let node = self.root_node(root)?;
        self.walk_below(root.tree, &node, 0, &mut f).map(|_| ())
    }

    fn walk_below<E: From<TreeError>>(
        &self,
        tree: TreeId,
        node: &Arc<Node>,
        depth: usize,
        f: &mut BlockVisitor<'_, E>,
    ) -> Result<ControlFlow<()>, E> {
        match f(node, depth)? {
            Walk::Stop => return Ok(ControlFlow::Break(())),
            Walk::Over => return Ok(ControlFlow::Continue(())),
            Walk::Into if node.is_leaf() => return Ok(ControlFlow::Continue(())),
            Walk::Into => {}
        }
        let batch = if node.level() == 1 { READ_AHEAD_BLOCKS } else { 1 };
        for start in (0..node.len()).step_by(batch) {
            let end = node.len().min(start + batch);
            for child in self.children(tree, (start..end).map(|slot| (&**node, slot)))? {
                if stopped(&self.walk_below(tree, &child, depth + 1, f)?) {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
