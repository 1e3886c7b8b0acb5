//! Compares the blocks of trees: of two trees, and of a tree that is being dropped.
//!
//! `diff` compares items; this compares the blocks themselves, for quota accounting. A block is in at most one place of
//! a tree, and its address and generation determine its contents. So two walkers that go side by side and step over the
//! blocks that both point at see every other block. One may have entered a block before the other reaches it: blocks
//! that both entered are removed from the result at the end.

use std::sync::Arc;

use oleo_format::{ChildPtr, Logical, NodeExpect, TreeId};

use crate::blocks::Blocks;
use crate::diff::Walker;
use crate::{Dirty, DropProgress, Node, TreeError, TreeRoot, Walk};

/// Blocks that only one of two trees has, each list in the order of addresses.
#[derive(Default, Debug)]
pub struct BlockDiff {
    /// Only the first tree has them.
    pub only_a: Vec<Arc<Node>>,
    /// Only the second tree has them.
    pub only_b: Vec<Arc<Node>>,
}

impl BlockDiff {
    /// Removes what is in both lists.
    fn cancel(&mut self) {
        let id = |node: &Arc<Node>| (node.logical(), node.generation());
        self.only_a.sort_unstable_by_key(id);
        self.only_b.sort_unstable_by_key(id);
        let (mut a, mut b) = (std::mem::take(&mut self.only_a).into_iter(), self.only_b.drain(..).peekable());
        let mut rest_b = Vec::new();
        for node in a.by_ref() {
            while let Some(other) = b.next_if(|other| id(other) < id(&node)) {
                rest_b.push(other);
            }
            if b.next_if(|other| id(other) == id(&node)).is_none() {
                self.only_a.push(node);
            }
        }
        rest_b.extend(b);
        self.only_b = rest_b;
    }
}

/// A tree that is being dropped, at some moment.
#[derive(Clone, Copy, Debug)]
pub struct DropMoment<'a> {
    /// Its root.
    pub root: &'a TreeRoot,
    /// How far the drop has come.
    pub progress: Option<&'a DropProgress>,
}

/// What became of a block of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockChange {
    /// The tree has it no more.
    Lost,
    /// The tree has it now.
    Gained,
}

/// Receives the lost and gained blocks of a tree.
pub trait DropVisit<E> {
    /// Whether a block that a lost parent points to, and everything below it, is neither to be reported nor read.
    fn passes_over(&mut self, child: &ChildPtr, level: u8) -> Result<bool, E>;
    /// Reports a block. Only [`Walk::Over`] and [`Walk::Into`] are meaningful: everything below a lost block is lost,
    /// too.
    fn meet(&mut self, node: &Arc<Node>, block_change: BlockChange) -> Result<Walk, E>;
}

/// Enters the block at a walker's place, and reports it to `seen`.
fn enter(blocks: &Blocks, walker: &mut Walker, seen: &mut Vec<Arc<Node>>) -> Result<(), TreeError> {
    let child = walker.child(blocks)?;
    seen.push(child.clone());
    if child.is_leaf() || child.is_empty() {
        walker.step_over();
    } else {
        walker.push(child);
    }
    Ok(())
}

impl Blocks {
    /// The blocks that only one of two trees has. Subtrees that both have are not read. No tree is one without blocks.
    pub fn block_diff(&self, a: Option<&TreeRoot>, b: Option<&TreeRoot>) -> Result<BlockDiff, TreeError> {
        let mut differing = BlockDiff::default();
        if let (Some(a), Some(b)) = (a, b)
            && a.same_block(b)
        {
            return Ok(differing);
        }
        let start = |root: Option<&TreeRoot>, seen: &mut Vec<Arc<Node>>| -> Result<Walker, TreeError> {
            let Some(root) = root else { return Ok(Walker::nowhere()) };
            let node = self.root_node(root)?;
            seen.push(node.clone());
            Ok(if node.is_leaf() { Walker::nowhere() } else { Walker::new(root.tree, node) })
        };
        let mut left = start(a, &mut differing.only_a)?;
        let mut right = start(b, &mut differing.only_b)?;
        loop {
            match (left.spot(), right.spot()) {
                (None, None) => break,
                (Some(l), Some(r)) if l.level == r.level => {
                    if left.pointer() == right.pointer() {
                        left.step_over();
                        right.step_over();
                        continue;
                    }
                    if l.key <= r.key {
                        enter(self, &mut left, &mut differing.only_a)?;
                    }
                    if r.key <= l.key {
                        enter(self, &mut right, &mut differing.only_b)?;
                    }
                }
                (Some(l), r) if r.as_ref().is_none_or(|r| l.level > r.level) => {
                    enter(self, &mut left, &mut differing.only_a)?;
                }
                _ => enter(self, &mut right, &mut differing.only_b)?,
            }
        }
        differing.cancel();
        Ok(differing)
    }

    /// A block of which only the address is known: made by the open transaction, or on disk.
    pub fn at(&self, at: Logical, dirty: &Dirty) -> Result<Arc<Node>, TreeError> {
        match dirty.get(at) {
            Some(node) => Ok(node),
            None => self.read_any(&NodeExpect::at(at)),
        }
    }

    /// As [`at`](Self::at) for many blocks, each of which some tree must name: those that are not of the open transaction are
    /// read in one batch. Blocks that cannot be read are left out; `at` reads them again and says what is wrong. Leaves of
    /// subvolumes that are read are the caller's alone.
    pub fn at_many(&self, wanted: &[Logical], dirty: &Dirty) -> Vec<Arc<Node>> {
        let mut found = Vec::with_capacity(wanted.len());
        let mut missing = Vec::with_capacity(wanted.len());
        for at in wanted {
            match dirty.get(*at) {
                Some(node) => found.push(node),
                None => missing.push(NodeExpect::at(*at)),
            }
        }
        found.extend(self.read_any_many(&missing));
        found
    }

    /// Reports the blocks that a tree being dropped has lost and gained between two moments, nodes before their
    /// children; `to` of `None` means that all of it is gone. A block may be reported both as gained and as lost, which
    /// cancels out.
    pub fn dropped<E: From<TreeError>>(
        &self,
        from: DropMoment<'_>,
        to: Option<DropMoment<'_>>,
        visit: &mut dyn DropVisit<E>,
    ) -> Result<(), E> {
        let tree = from.root.tree;
        let old = self.root_node(from.root)?;
        let Some(to) = to else { return self.lost_below(tree, &old, from.progress, None, visit) };
        let new = self.root_node(to.root)?;
        match to.progress {
            Some(progress) => self.replaced_below(tree, &old, from.progress, (&new, progress), visit),
            // The drop has not begun.
            None => Ok(()),
        }
    }

    /// A node on the path to the drop's place, and the node it replaced.
    fn replaced_below<E: From<TreeError>>(
        &self,
        tree: TreeId,
        old: &Arc<Node>,
        from: Option<&DropProgress>,
        (new, to): (&Arc<Node>, &DropProgress),
        visit: &mut dyn DropVisit<E>,
    ) -> Result<(), E> {
        if (old.logical(), old.generation()) == (new.logical(), new.generation()) {
            return self.lost_below(tree, old, from, Some(to), visit);
        }
        if old.level() != new.level() {
            return Err(TreeError::corrupt(tree, "level of a copy", new.level(), old.level(), new.logical()).into());
        }
        visit.meet(new, BlockChange::Gained)?;
        let wants = visit.meet(old, BlockChange::Lost)? == Walk::Into;
        if old.is_leaf() {
            return Ok(());
        }
        let (first, in_part) = slot_in(old, from).unwrap_or((0, false));
        let end = old.child_slot(&to.key);
        let rest_of = |slot| from.filter(|_| in_part && slot == first);
        for slot in (first..end).filter(|_| wants) {
            self.lost_child(tree, old, slot, rest_of(slot), visit)?;
        }
        if new.level() > to.level {
            let (old, now) = (self.child(tree, old, end)?, self.child(tree, new, new.child_slot(&to.key))?);
            self.replaced_below(tree, &old, rest_of(end), (&now, to), visit)?;
        }
        Ok(())
    }

    fn lost_below<E: From<TreeError>>(
        &self,
        tree: TreeId,
        node: &Arc<Node>,
        from: Option<&DropProgress>,
        to: Option<&DropProgress>,
        visit: &mut dyn DropVisit<E>,
    ) -> Result<(), E> {
        // A node on the path to the drop's place is kept, with everything after that place.
        if to.is_none() && visit.meet(node, BlockChange::Lost)? != Walk::Into {
            return Ok(());
        }
        if node.is_leaf() {
            return Ok(());
        }
        let (first, first_in_part) = slot_in(node, from).unwrap_or((0, false));
        let (end, end_in_part) = slot_in(node, to).unwrap_or((node.len(), false));
        for slot in first..end {
            let from = from.filter(|_| first_in_part && slot == first);
            self.lost_child(tree, node, slot, from, visit)?;
        }
        if end_in_part {
            let from = from.filter(|_| first_in_part && end == first);
            let child = self.child(tree, node, end)?;
            self.lost_below(tree, &child, from, to, visit)?;
        }
        Ok(())
    }

    /// A child that is lost, with all that was left of it.
    fn lost_child<E: From<TreeError>>(
        &self,
        tree: TreeId,
        node: &Arc<Node>,
        slot: usize,
        from: Option<&DropProgress>,
        visit: &mut dyn DropVisit<E>,
    ) -> Result<(), E> {
        if visit.passes_over(&node.child(slot), node.level().saturating_sub(1))? {
            return Ok(());
        }
        let child = self.child(tree, node, slot)?;
        self.lost_below(tree, &child, from, None, visit)
    }
}

/// The slot of a node that a drop has reached, and whether the drop is inside that child.
fn slot_in(node: &Node, progress: Option<&DropProgress>) -> Option<(usize, bool)> {
    progress.map(|p| (node.child_slot(&p.key), node.level() > p.level))
}
