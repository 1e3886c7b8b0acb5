//! Removes the references of a deleted tree, in steps of bounded size.
//!
//! Normal path of a step: go down from the root in key order, starting at the key where the last step ended. A child
//! block
//! - that only we reference is entered; when all below it has been dropped, our reference to it is removed, and so the
//!   block;
//! - that others reference too stays. If its references are in our name (owner, implicit), that name is about to
//!   vanish: it and all blocks below it that are ours in the same way are converted to full backrefs first. Then our
//!   reference to it is removed.
//!
//! No other block is rewritten. The blocks on the path from the root to the current place still point at what has been
//! dropped already; that it is gone follows from the key and level of the progress, which the root item carries
//! (`drop_progress`, `drop_level`), as in the kernel.
//!
//! If everything below a shared block must not change owners in one step (quota counts it), the caller requests that,
//! and the reference to the block is not dropped at its top: a copy replaces it (`copies`).
//!
//! Converting a large shared subtree to full backrefs takes many steps. Its own progress is kept in memory only: a
//! block that has been converted has its flag set on disk, so that starting the subtree again after a crash passes
//! through it without converting it twice.
//!
//! Crash between steps: the progress is part of the same transaction as the changes. Within a step: nothing has
//! happened.

mod copies;

use std::collections::VecDeque;
use std::sync::Arc;

use oleo_format::{Generation, Key, Logical, data_use};
use oleo_space::ExtentKind;

use crate::apply::share::{check_owner, lookup_states};
use crate::apply::{ApplyEnv, ExtentState, Refs, first_key};
use crate::blocks::{Blocks, READ_AHEAD_BLOCKS};
use crate::{Node, TreeError, TreeRoot};

/// How far the dropping of a tree has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropProgress {
    /// Everything before this key is gone (`drop_progress` of the root item).
    pub key: Key,
    /// The level of the node in which the key is (`drop_level`), at least 1.
    pub level: u8,
    /// Where the conversion of a shared subtree to full backrefs continues: key and level of the next block. In memory
    /// only: `None` after a mount.
    pub backref_conversion: Option<(Key, u8)>,
}

/// One step of dropping a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropPlan {
    /// The generation in which the tree was made as a snapshot (offset of its root item's key), 0 if it was not: older
    /// blocks are not its own.
    pub created: Generation,
    /// The end of the last step, if there was one.
    pub from: Option<DropProgress>,
    /// About how many blocks to look at, at least one.
    pub budget_blocks: usize,
    /// The root block is referred to by its own address, and refers to others by it: a relocation tree of the kernel's.
    pub full_root: bool,
}

/// What a step of dropping a tree came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropStep {
    /// There is more to do.
    More(DropProgress),
    /// Nothing is referenced any more, the root block included.
    Done,
}

/// What a step did.
#[derive(Clone, Debug)]
pub struct Dropping {
    /// How far it came.
    pub step: DropStep,
    /// The root, if copies have replaced shared blocks.
    pub root: Option<TreeRoot>,
    /// Blocks that only we referenced, or that were dropped piece by piece; not those whose reference was dropped at
    /// the top of something shared.
    pub looked_at: usize,
}

/// Says of which blocks that others reference too the children are to change hands one by one.
pub struct TakesApart<'a> {
    /// Not of those with more references than this, ours included.
    pub refs_max: u64,
    /// Of which of the others.
    pub asks: &'a mut dyn FnMut(&Node) -> Result<bool, TreeError>,
}

/// A node on the way down that only we reference; or one that others keep, of which we continue with a copy.
struct Frame {
    node: Arc<Node>,
    /// Its references are keyed by its address.
    full: bool,
    /// Others keep the node. Ours is a copy of it with the children from `slot` on, which is made only when the step
    /// ends: until then our references to its children, which are in `states`, are not recorded.
    copied: bool,
    slot: usize,
    /// The states of its children, from `first` on.
    states: Vec<ExtentState>,
    first: usize,
    /// Leaves read ahead, by slot.
    ahead: VecDeque<(usize, Arc<Node>)>,
}

impl Frame {
    fn by(&self) -> Option<Logical> {
        self.full.then(|| self.node.logical())
    }

    fn state(&self) -> ExtentState {
        self.states[self.slot - self.first]
    }
}

struct Dropper<'a> {
    blocks: &'a Blocks,
    env: &'a ApplyEnv<'a>,
    created: Generation,
    full_root: bool,
    budget: usize,
    looked_at: usize,
    takes_apart: Option<TakesApart<'a>>,
    refs: Refs,
    /// Blocks that were converted to full backrefs: address, level, first key.
    converted: Vec<(Logical, u8, Key)>,
}

impl Blocks {
    /// One step of taking away what a deleted tree references. The tree must not be read or changed any more.
    pub fn drop_tree(&self, root: &TreeRoot, plan: &DropPlan, env: &ApplyEnv<'_>) -> Result<DropStep, TreeError> {
        Ok(self.drop_tree_slowly(root, plan, env, None)?.step)
    }

    /// The same, but `takes_apart` decides, for each node that others reference too, whether what is below it must
    /// change owners in small steps. For each such node on the path to the place where the step ends a block is
    /// written; if there is no space for them, the step does without. The nodes above that place are rewritten, too.
    pub fn drop_tree_slowly<'a>(
        &'a self,
        root: &TreeRoot,
        plan: &DropPlan,
        env: &'a ApplyEnv<'a>,
        takes_apart: Option<TakesApart<'a>>,
    ) -> Result<Dropping, TreeError> {
        assert_eq!(root.tree, env.owner, "the environment is that of the tree");
        assert!(!plan.full_root || takes_apart.is_none(), "what is copied references in our name");
        let _sharing = env.shareable().then(|| env.dirty.sharing());
        let node = self.root_node_in(root, env.dirty)?;
        if !plan.full_root {
            check_owner(env, &node)?;
        }
        let mut dropper = Dropper {
            blocks: self,
            env,
            created: plan.created,
            full_root: plan.full_root,
            budget: plan.budget_blocks.max(1),
            looked_at: 0,
            takes_apart,
            refs: Refs::new(env, self.nodesize()),
            converted: Vec::new(),
        };
        let (step, path) = dropper.run(node, plan.from)?;
        let made = dropper.make_copies(&path)?;
        let Dropper { mut refs, converted, looked_at, .. } = dropper;
        for (at, level, first_key) in converted {
            env.ledger.set_full_backref(at, refs.block_len(), ExtentKind::Tree { level, first_key });
        }
        let kind = |node: &Node| ExtentKind::Tree { level: node.level(), first_key: first_key(node) };
        for node in &made {
            env.ledger.record_new_extent(node.logical(), refs.block_len(), kind(node));
        }
        env.ledger.record_batch(&mut refs.changes);
        let root = made.last().map(|node| TreeRoot::of(env.owner, node.clone()));
        env.dirty.replace(&[], made.into_iter());
        Ok(Dropping { step, root, looked_at })
    }
}

impl Dropper<'_> {
    /// Runs the step; returns the nodes on the path to its end, too.
    fn run(&mut self, root: Arc<Node>, from: Option<DropProgress>) -> Result<(DropStep, Vec<Frame>), TreeError> {
        if root.is_leaf() {
            self.drop_leaf(&root, self.full_root);
            self.refs.block(root.logical(), 0, first_key(&root), self.full_root.then(|| root.logical()), -1);
            return Ok((DropStep::Done, Vec::new()));
        }
        let mut backref_conversion = from.and_then(|from| from.backref_conversion);
        let mut path = self.resume(root, from)?;
        while let Some(frame) = path.last_mut() {
            if frame.slot == frame.node.len() {
                let (at, level, key) = (frame.node.logical(), frame.node.level(), first_key(&frame.node));
                path.pop();
                self.drop_reference(path.last(), at, level, key);
                if let Some(parent) = path.last_mut() {
                    parent.slot += 1;
                }
                continue;
            }
            let here =
                DropProgress { key: frame.node.key(frame.slot), level: frame.node.level(), backref_conversion: None };
            if self.budget == 0 {
                return Ok((DropStep::More(here), path));
            }
            let child = frame.node.child(frame.slot);
            let level = frame.node.level() - 1;
            let state = frame.state();
            self.looked_at += usize::from(state.refs == 1 || frame.copied);
            if state.refs > 1 {
                if let Some(next) = self.take_apart(frame)? {
                    backref_conversion = None;
                    path.push(next);
                    self.budget -= 1;
                    continue;
                }
                let settled = level == 0 && state.full_backref;
                if child.generation >= self.created && !settled {
                    let node = self.blocks.child(self.env.owner, &frame.node, frame.slot)?;
                    let backref_conversion =
                        self.convert_to_full_backref(node, state.full_backref, backref_conversion.take())?;
                    if backref_conversion.is_some() {
                        return Ok((DropStep::More(DropProgress { backref_conversion, ..here }), path));
                    }
                }
            } else if level == 0 {
                let leaf = self.leaf(frame)?;
                if !state.full_backref {
                    self.check_owner(&leaf)?;
                }
                self.drop_leaf(&leaf, state.full_backref);
            } else {
                let node = self.blocks.child(self.env.owner, &frame.node, frame.slot)?;
                let next = self.enter(node, state, 0)?;
                path.push(next);
                self.budget = self.budget.saturating_sub(1);
                continue;
            }
            self.budget = self.budget.saturating_sub(1);
            self.drop_reference(path.last(), child.logical, level, child.key);
            path.last_mut().expect("it has not been popped").slot += 1;
        }
        Ok((DropStep::Done, path))
    }

    /// Our reference to a block goes, which is by this parent; without one the block is the root.
    fn drop_reference(&mut self, parent: Option<&Frame>, at: Logical, level: u8, key: Key) {
        let by = match parent {
            // It was not counted.
            Some(parent) if parent.copied => return,
            Some(parent) => {
                self.refs.owner = parent.node.owner();
                parent.by()
            }
            None => {
                self.refs.owner = self.env.owner;
                self.full_root.then_some(at)
            }
        };
        self.refs.block(at, level, key, by, -1);
    }

    /// A block that only we reference, and that references in its owner's name, is ours. Blocks that the kernel has swapped into a
    /// relocation tree keep the name of the subvolume that they come from.
    fn check_owner(&self, node: &Node) -> Result<(), TreeError> {
        if self.full_root { Ok(()) } else { check_owner(self.env, node) }
    }

    /// The path to the end of the last step.
    fn resume(&mut self, root: Arc<Node>, from: Option<DropProgress>) -> Result<Vec<Frame>, TreeError> {
        let owned = ExtentState { refs: 1, full_backref: self.full_root };
        let Some(from) = from else { return Ok(vec![self.enter(root, owned, 0)?]) };
        let place = || format!("progress {} at level {}", from.key, from.level);
        if from.level == 0 || from.level > root.level() {
            return Err(TreeError::corrupt(self.env.owner, "level of drop progress", from.level, "a node's", place()));
        }
        let slot = root.child_slot(&from.key);
        let mut path = vec![self.enter(root, owned, slot)?];
        while let Some(frame) = path.last()
            && frame.node.level() > from.level
        {
            let state = frame.state();
            if state.refs != 1 {
                return Err(TreeError::corrupt(
                    self.env.owner,
                    "references on the way of dropping",
                    state.refs,
                    1,
                    place(),
                ));
            }
            let node = self.blocks.child(self.env.owner, &frame.node, frame.slot)?;
            let slot = node.child_slot(&from.key);
            let next = self.enter(node, state, slot)?;
            path.push(next);
        }
        Ok(path)
    }

    /// Starts on a node that only we reference.
    fn enter(&mut self, node: Arc<Node>, state: ExtentState, slot: usize) -> Result<Frame, TreeError> {
        if !state.full_backref {
            self.check_owner(&node)?;
        }
        let states = self.states(&node, slot)?;
        let full = state.full_backref;
        Ok(Frame { node, full, copied: false, slot, states, first: slot, ahead: VecDeque::new() })
    }

    /// The states of the children of a node from a slot on.
    fn states(&self, node: &Node, first: usize) -> Result<Vec<ExtentState>, TreeError> {
        let mut states = vec![ExtentState { refs: 1, full_backref: false }; node.len() - first];
        if !self.env.shareable() {
            return Ok(states);
        }
        // Generations alone are not enough: whether relocation moved a child is in its flags, which are in the child.
        let asked: Vec<(Logical, u8)> =
            (first..node.len()).map(|slot| (node.child(slot).logical, node.level() - 1)).collect();
        states.copy_from_slice(&lookup_states(self.env, &asked)?);
        Ok(states)
    }

    /// The leaf at the current slot; reads those ahead that only we reference.
    fn leaf(&self, frame: &mut Frame) -> Result<Arc<Node>, TreeError> {
        if frame.ahead.front().is_none_or(|(slot, _)| *slot != frame.slot) {
            let slots: Vec<usize> = (frame.slot..frame.node.len())
                .filter(|slot| frame.states[slot - frame.first].refs == 1)
                .take(READ_AHEAD_BLOCKS)
                .collect();
            let leaves = self.blocks.children(self.env.owner, slots.iter().map(|&slot| (&*frame.node, slot)))?;
            frame.ahead = slots.into_iter().zip(leaves).collect();
        }
        let (_, leaf) = frame.ahead.pop_front().expect("the current leaf is the first of those just read");
        Ok(leaf)
    }

    fn drop_leaf(&mut self, leaf: &Node, full: bool) {
        if !self.env.shareable() {
            return;
        }
        self.refs.owner = leaf.owner();
        for (key, item) in leaf.iter() {
            if let Some(used) = data_use(&key, item) {
                self.refs.data(&used, full.then(|| leaf.logical()), -1);
            }
        }
    }

    /// Converts a shared block, and the blocks below it that are ours in the same way, to full backrefs, from some
    /// place on. Returns the place to continue from when the budget is used up. Blocks that are converted already are
    /// passed through, since blocks below them may not be.
    fn convert_to_full_backref(
        &mut self,
        top: Arc<Node>,
        full: bool,
        from: Option<(Key, u8)>,
    ) -> Result<Option<(Key, u8)>, TreeError> {
        if top.owner() != self.env.owner {
            return Ok(None);
        }
        let mut from = from;
        self.refs.owner = self.env.owner;
        self.convert_block(&top, full);
        let mut path = Vec::new();
        path.extend(ConversionFrame::over(top, from));
        while let Some(frame) = path.last_mut() {
            self.read_ahead(frame)?;
            let Some((node, full)) = frame.ahead.pop_front() else {
                path.pop();
                continue;
            };
            let key = first_key(&node);
            let on_the_way = from.is_some_and(|(_, level)| node.level() > level);
            if !on_the_way {
                from = None;
                if self.budget == 0 {
                    return Ok(Some((key, node.level())));
                }
                self.budget -= 1;
            }
            self.convert_block(&node, full);
            path.extend(ConversionFrame::over(node, from));
        }
        Ok(None)
    }

    /// Reads those of the next children of a node that may have to be converted, and asks whether they have been.
    fn read_ahead(&self, frame: &mut ConversionFrame) -> Result<(), TreeError> {
        while frame.ahead.is_empty() && frame.slot < frame.node.len() {
            let end = frame.node.len().min(frame.slot + READ_AHEAD_BLOCKS);
            let young = |slot: &usize| frame.node.child(*slot).generation >= self.created;
            let slots = (frame.slot..end).filter(young).map(|slot| (&*frame.node, slot));
            let mut nodes = self.blocks.children(self.env.owner, slots)?;
            nodes.retain(|node| node.owner() == self.env.owner);
            let asked: Vec<(Logical, u8)> = nodes.iter().map(|node| (node.logical(), node.level())).collect();
            let states = lookup_states(self.env, &asked)?;
            frame.ahead = nodes.into_iter().zip(states).map(|(node, state)| (node, state.full_backref)).collect();
            frame.slot = end;
        }
        Ok(())
    }

    /// Converts one block to full backrefs, unless that has been done.
    fn convert_block(&mut self, node: &Node, full: bool) {
        if full {
            return;
        }
        let at = node.logical();
        if node.is_leaf() {
            for (key, item) in node.iter() {
                if let Some(used) = data_use(&key, item) {
                    self.refs.data(&used, None, -1);
                    self.refs.data(&used, Some(at), 1);
                }
            }
        } else {
            for slot in 0..node.len() {
                let child = node.child(slot);
                self.refs.block(child.logical, node.level() - 1, child.key, None, -1);
                self.refs.block(child.logical, node.level() - 1, child.key, Some(at), 1);
            }
        }
        self.converted.push((at, node.level(), first_key(node)));
    }
}

/// A node whose children may have to be converted.
struct ConversionFrame {
    node: Arc<Node>,
    /// The next child to read.
    slot: usize,
    /// Children that are ours, and whether they are converted already.
    ahead: VecDeque<(Arc<Node>, bool)>,
}

impl ConversionFrame {
    /// Over the children of a block, if it has any, from some place on.
    fn over(node: Arc<Node>, from: Option<(Key, u8)>) -> Option<ConversionFrame> {
        if node.is_leaf() {
            return None;
        }
        let slot = from.map_or(0, |(key, _)| node.child_slot(&key));
        Some(ConversionFrame { node, slot, ahead: VecDeque::new() })
    }
}
