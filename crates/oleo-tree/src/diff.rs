//! The difference of two trees, without reading what they share.
//!
//! Two walkers go through both trees side by side. If both are at the same block (address and generation) of the same
//! level, both step over it. Otherwise the one at the higher level goes down, or the one with the lower key; items are
//! compared when both walkers are at items. An item is reported as soon as the other side is known to be past it.

use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{ChildPtr, Key, TreeId};
use smallvec::SmallVec;

use crate::blocks::{Blocks, stopped};
use crate::node::LEVELS;
use crate::{Node, TreeError, TreeRoot};

/// One difference between the trees A and B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Diff<'a> {
    /// Only A has this item.
    OnlyA {
        /// Its key.
        key: Key,
        /// What A has.
        a: &'a [u8],
    },
    /// Only B has this item.
    OnlyB {
        /// Its key.
        key: Key,
        /// What B has.
        b: &'a [u8],
    },
    /// Both have this item, and it differs.
    Changed {
        /// Its key.
        key: Key,
        /// What A has.
        a: &'a [u8],
        /// What B has.
        b: &'a [u8],
    },
}

pub(crate) struct Walker {
    tree: TreeId,
    stack: SmallVec<[(Arc<Node>, usize); LEVELS]>,
}

/// The position of a walker: at an item (level 0), or at a pointer in a node of that level.
pub(crate) struct Spot {
    pub key: Key,
    pub level: u8,
}

impl Walker {
    /// One that is past the end.
    pub fn nowhere() -> Walker {
        Walker { tree: TreeId(0), stack: SmallVec::new() }
    }

    pub fn new(tree: TreeId, root: Arc<Node>) -> Walker {
        let mut stack = SmallVec::new();
        if !root.is_empty() {
            stack.push((root, 0));
        }
        Walker { tree, stack }
    }

    pub fn spot(&self) -> Option<Spot> {
        let (node, slot) = self.stack.last()?;
        Some(Spot { key: node.key(*slot), level: node.level() })
    }

    fn top(&self) -> &(Arc<Node>, usize) {
        self.stack.last().expect("a walker that has a spot has a block")
    }

    fn item(&self) -> &[u8] {
        let (node, slot) = self.top();
        node.item(*slot)
    }

    /// Past the item, or the whole subtree, here.
    pub fn step_over(&mut self) {
        while let Some((node, slot)) = self.stack.last_mut() {
            *slot += 1;
            if *slot < node.len() {
                return;
            }
            self.stack.pop();
        }
    }

    /// The pointer here.
    pub fn pointer(&self) -> ChildPtr {
        let (node, slot) = self.top();
        node.child(*slot)
    }

    /// The block that the pointer here leads to.
    pub fn child(&self, blocks: &Blocks) -> Result<Arc<Node>, TreeError> {
        let (node, slot) = self.top();
        blocks.child(self.tree, node, *slot)
    }

    /// Goes on in a block, which is that of the pointer here.
    pub fn push(&mut self, child: Arc<Node>) {
        self.stack.push((child, 0));
    }

    fn step_into(&mut self, blocks: &Blocks) -> Result<(), TreeError> {
        let child = self.child(blocks)?;
        self.push(child);
        Ok(())
    }
}

impl Blocks {
    /// Calls `f` for every difference between two trees in key order, until it breaks off or fails. Subtrees that both
    /// share are not read.
    pub fn diff<E: From<TreeError>>(
        &self,
        a: &TreeRoot,
        b: &TreeRoot,
        mut f: impl FnMut(Diff<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        if a.same_block(b) {
            return Ok(());
        }
        let mut left = Walker::new(a.tree, self.root_node(a)?);
        let mut right = Walker::new(b.tree, self.root_node(b)?);
        loop {
            let (l, r) = (left.spot(), right.spot());
            let flow = match (l, r) {
                (None, None) => return Ok(()),
                (Some(l), r) if l.level == 0 && r.as_ref().is_none_or(|r| l.key < r.key) => {
                    let flow = f(Diff::OnlyA { key: l.key, a: left.item() })?;
                    left.step_over();
                    flow
                }
                (l, Some(r)) if r.level == 0 && l.as_ref().is_none_or(|l| r.key < l.key) => {
                    let flow = f(Diff::OnlyB { key: r.key, b: right.item() })?;
                    right.step_over();
                    flow
                }
                (Some(l), Some(r)) if l.level == 0 && r.level == 0 => {
                    let flow = if left.item() == right.item() {
                        ControlFlow::Continue(())
                    } else {
                        f(Diff::Changed { key: l.key, a: left.item(), b: right.item() })?
                    };
                    left.step_over();
                    right.step_over();
                    flow
                }
                (l, r) => {
                    self.diff_blocks(&mut left, &mut right, l, r)?;
                    ControlFlow::Continue(())
                }
            };
            if stopped(&flow) {
                return Ok(());
            }
        }
    }

    /// One step if at least one side is at a block.
    fn diff_blocks(
        &self,
        left: &mut Walker,
        right: &mut Walker,
        l: Option<Spot>,
        r: Option<Spot>,
    ) -> Result<(), TreeError> {
        match (l, r) {
            (Some(l), Some(r)) if l.level == r.level => {
                if left.pointer() == right.pointer() {
                    left.step_over();
                    right.step_over();
                    return Ok(());
                }
                if l.key <= r.key {
                    left.step_into(self)?;
                }
                if r.key <= l.key {
                    right.step_into(self)?;
                }
                Ok(())
            }
            (Some(l), r) if r.as_ref().is_none_or(|r| l.level > r.level) => left.step_into(self),
            _ => right.step_into(self),
        }
    }
}
