//! An application as a job, and its first step: which blocks are touched, and their fates.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use oleo_format::{Key, Logical};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::share::{Fate, check_owner, fates};
use super::{ApplyEnv, Change, Op};
use crate::blocks::{Blocks, split_by_child};
use crate::node::LEVELS;
use crate::{Node, TreeError, TreeRoot};

/// With fewer changes than this a batch is handled by one thread: starting others would cost more.
pub(super) const PARALLEL_CHANGES_MIN: usize = 4096;

/// A place in the flow: the next old item and the next change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pos {
    pub leaf: usize,
    pub slot: usize,
    pub change: usize,
}

/// A block of the old tree that the new one does not have.
pub(super) struct Old {
    pub node: Arc<Node>,
    pub fate: Fate,
    /// How its parent referenced it. For the root: `Sole`.
    pub parent_fate: Fate,
    pub parent_at: Logical,
    /// Unwritten, and ours alone: a new block can take its address.
    pub in_place: bool,
    /// A new block has taken its address.
    pub reused: bool,
    /// In a node: the children that the new tree does not have either, as ranges of slots in rising order.
    pub gone: SmallVec<[Range<usize>; 2]>,
}

/// A block of the old tree under which something may change.
pub(super) struct Touched {
    pub old: Old,
    /// Index of its parent in the level above, and the slot there.
    pub parent: usize,
    pub slot: usize,
    pub changes: Range<usize>,
}

/// A child in a new node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// A child that stays: the old node of the run that has it, and its slot.
    Kept { old: usize, slot: usize },
    /// A new block: index among those of the level below.
    New(usize),
}

/// Neighbouring blocks of one parent that are replaced together, by any number of new blocks.
pub(super) struct Run {
    /// Index of the parent in the level above; `None` at the top.
    pub parent: Option<usize>,
    /// The slots of the parent that the new blocks replace.
    pub slots: Range<usize>,
    pub olds: Vec<Old>,
    pub body: Body,
    /// The new blocks, as indices among those of the level.
    pub outs: Range<usize>,
}

pub(super) enum Body {
    Leaves { changes: Range<usize>, cuts: Vec<Cut>, end: Pos },
    Nodes { entries: Vec<(Key, Entry)>, cuts: Vec<usize> },
}

/// The beginning of a new leaf.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub pos: Pos,
    pub first_key: Key,
}

/// A new block.
pub(super) struct Out {
    pub run: usize,
    /// Which of the new blocks of its run.
    pub nth: usize,
    pub first_key: Key,
    /// Its address, once that is assigned.
    pub at: Option<Logical>,
    /// It has a new address.
    pub fresh: bool,
    /// It has the address of an old block whose parent references implicitly: no reference comes or goes.
    pub silent: bool,
}

/// One level of the job.
#[derive(Default)]
pub(super) struct Level {
    pub touched: Vec<Touched>,
    pub runs: Vec<Run>,
    pub outs: Vec<Out>,
}

pub(super) struct Job<'a> {
    pub blocks: &'a Blocks,
    pub env: &'a ApplyEnv<'a>,
    pub batch: &'a [Change],
    pub levels: Vec<Level>,
    /// The level of the new root.
    pub top: usize,
    pub parallel: bool,
}

impl<'a> Job<'a> {
    /// A job on no tree at all.
    pub fn new(blocks: &'a Blocks, batch: &'a [Change], env: &'a ApplyEnv<'a>) -> Job<'a> {
        let parallel = env.threads && batch.len() >= PARALLEL_CHANGES_MIN;
        let levels = (0..LEVELS).map(|_| Level::default()).collect();
        Job { blocks, env, batch, levels, top: 0, parallel }
    }

    /// Finds the touched blocks, from the root down.
    pub fn plan(
        blocks: &'a Blocks,
        root: &TreeRoot,
        batch: &'a [Change],
        env: &'a ApplyEnv<'a>,
    ) -> Result<Job<'a>, TreeError> {
        let node = blocks.root_node_in(root, env.dirty)?;
        check_owner(env, &node)?;
        let top = usize::from(node.level());
        let mut job = Job { top, ..Job::new(blocks, batch, env) };
        let old = job.old(node, Fate::Sole, Fate::Sole, Logical(0));
        job.levels[top].touched.push(Touched { old, parent: 0, slot: 0, changes: 0..batch.len() });
        for level in (1..=top).rev() {
            job.levels[level - 1].touched = job.plan_children(&job.levels[level].touched)?;
        }
        job.drop_ineffective_leaves();
        Ok(job)
    }

    fn plan_children(&self, above: &[Touched]) -> Result<Vec<Touched>, TreeError> {
        let mut wanted: Vec<(usize, usize, Range<usize>)> = Vec::new();
        for (parent, touched) in above.iter().enumerate() {
            let key_of = |index: usize| &self.batch[index].key;
            split_by_child(&touched.old.node, touched.changes.clone(), key_of, |slot, part| {
                wanted.push((parent, slot, part));
            });
        }
        let places: Vec<(usize, usize)> = wanted.iter().map(|(parent, slot, _)| (*parent, *slot)).collect();
        let olds = self.load_olds(above, &places)?;
        Ok(olds
            .into_iter()
            .zip(wanted)
            .map(|(old, (parent, slot, changes))| Touched { old, parent, slot, changes })
            .collect())
    }

    /// Loads children of nodes (index of the parent in `above`, slot) and finds their fates.
    pub fn load_olds(&self, above: &[Touched], places: &[(usize, usize)]) -> Result<Vec<Old>, TreeError> {
        let wanted = places.iter().map(|&(parent, slot)| (&*above[parent].old.node, slot));
        let nodes = self.blocks.children(self.env.owner, wanted)?;
        self.find_fates(above, places, nodes)
    }

    /// Finds the fates of loaded children.
    pub fn find_fates(
        &self,
        above: &[Touched],
        places: &[(usize, usize)],
        nodes: Vec<Arc<Node>>,
    ) -> Result<Vec<Old>, TreeError> {
        let asked: Vec<(&Arc<Node>, Fate)> =
            nodes.iter().zip(places).map(|(node, (parent, _))| (node, above[*parent].old.fate)).collect();
        let fates = fates(self.env, &asked)?;
        Ok(nodes
            .into_iter()
            .zip(places)
            .zip(fates)
            .map(|((node, (parent, _)), fate)| {
                let parent = &above[*parent].old;
                self.old(node, fate, parent.fate, parent.node.logical())
            })
            .collect())
    }

    pub fn old(&self, node: Arc<Node>, fate: Fate, parent_fate: Fate, parent_at: Logical) -> Old {
        let in_place =
            fate == Fate::Sole && node.generation() == self.env.generation && self.env.dirty.contains(node.logical());
        Old { node, fate, parent_fate, parent_at, in_place, reused: false, gone: SmallVec::new() }
    }

    /// Forgets leaves whose changes have no effect: their items are already as they should be.
    fn drop_ineffective_leaves(&mut self) {
        let batch = self.batch;
        let leaves = &mut self.levels[0].touched;
        let effective = |touched: &Touched| has_effect(&touched.old.node, &batch[touched.changes.clone()]);
        if self.parallel {
            let keep: Vec<bool> = leaves.par_iter().map(effective).collect();
            let mut keep = keep.into_iter();
            leaves.retain(|_| keep.next().unwrap_or(true));
        } else {
            leaves.retain(effective);
        }
    }
}

/// Whether any of these changes changes anything in a leaf.
fn has_effect(leaf: &Node, changes: &[Change]) -> bool {
    changes.iter().any(|change| match (&change.op, leaf.search(&change.key)) {
        (Op::Put(item), Ok(slot)) => leaf.item(slot) != &**item,
        (Op::Put(_), Err(_)) | (Op::Delete, Ok(_)) => true,
        (Op::Delete, Err(_)) => false,
    })
}

/// Addresses of old blocks that new ones can take, in key order: index of the old block in its run.
pub(super) fn reusable(run: &Run) -> VecDeque<usize> {
    run.olds.iter().enumerate().filter(|(_, old)| old.in_place).map(|(index, _)| index).collect()
}
