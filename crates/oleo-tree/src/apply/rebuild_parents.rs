//! Nodes: rebuilds each level, up to the root, from the changes below.
//!
//! The children of a touched node under which something really changed are listed anew: those that stay, and new blocks
//! in place of those that do not. Neighbours are listed together and cut into new nodes by the same rules as leaves. At
//! the top the tree grows by levels while there is more than one block, and shrinks while the root has one child: that
//! child becomes the root. If the child is a block that stayed it is copied first, since a root is never shared.

use oleo_format::{Key, node_capacity};

use super::merge::{SPREAD_MAX, Sparse, is_sparse};
use super::plan::{Body, Cut, Entry, Job, Old, Out, Pos, Run};
use super::share::fates;
use crate::TreeError;
use crate::node::LEVELS;

impl Job<'_> {
    /// Whether no change had any effect.
    pub fn unchanged(&self) -> bool {
        self.levels.iter().all(|level| level.runs.is_empty())
    }

    /// Finds the new nodes of all levels.
    pub fn rebuild_parents(&mut self) -> Result<(), TreeError> {
        for level in 1..=self.top {
            self.rise_level(level)?;
        }
        if self.unchanged() { Ok(()) } else { self.settle_root() }
    }

    fn rise_level(&mut self, level: usize) -> Result<(), TreeError> {
        let capacity = node_capacity(self.blocks.nodesize());
        let mut runs = self.node_runs(level);
        for run in &mut runs {
            cut(run, capacity);
        }
        let sparse: Vec<Sparse> = runs
            .iter()
            .enumerate()
            .filter_map(|(index, run)| {
                let (count, last) = counts(run);
                is_sparse(run.olds.len(), count, last, capacity).then_some(Sparse { run: index, last })
            })
            .collect();
        for absorbed in self.absorb(level, &mut runs, &sparse, |node| capacity - node.len())? {
            let run = &mut runs[absorbed.run];
            take_in(run, absorbed.front);
            cut(run, capacity);
        }
        let mut outs = Vec::new();
        for (index, run) in runs.iter_mut().enumerate() {
            push_outs(run, index, &mut outs);
        }
        self.levels[level].runs = runs;
        self.levels[level].outs = outs;
        Ok(())
    }

    /// Forms runs of the touched nodes of a level that have new children, or fewer.
    fn node_runs(&mut self, level: usize) -> Vec<Run> {
        let touched = std::mem::take(&mut self.levels[level].touched);
        let below = &self.levels[level - 1];
        let is_top = level == self.top;
        let mut changed = below.runs.iter().peekable();
        let mut runs: Vec<Run> = Vec::new();
        for (index, mut touched) in touched.into_iter().enumerate() {
            if changed.peek().is_none_or(|run| run.parent != Some(index)) {
                continue;
            }
            let joins =
                runs.last().is_some_and(|run| run.parent == Some(touched.parent) && run.slots.end == touched.slot);
            if joins && !is_top {
                runs.last_mut().expect("there is one to join").slots.end += 1;
            } else {
                runs.push(Run {
                    parent: (!is_top).then_some(touched.parent),
                    slots: touched.slot..touched.slot + 1,
                    olds: Vec::new(),
                    body: Body::Nodes { entries: Vec::new(), cuts: Vec::new() },
                    outs: 0..0,
                });
            }
            let run = runs.last_mut().expect("one has just been found or pushed");
            let Body::Nodes { entries, .. } = &mut run.body else { unreachable!("it was made with nodes") };
            let old = run.olds.len();
            let mut slot = 0;
            while let Some(run) = changed.next_if(|run| run.parent == Some(index)) {
                keep(entries, old, &touched.old, slot..run.slots.start);
                entries.extend(run.outs.clone().map(|out| (below.outs[out].first_key, Entry::New(out))));
                touched.old.gone.push(run.slots.clone());
                slot = run.slots.end;
            }
            keep(entries, old, &touched.old, slot..touched.old.node.len());
            run.olds.push(touched.old);
        }
        runs
    }

    /// Makes the blocks of the highest level into one root.
    fn settle_root(&mut self) -> Result<(), TreeError> {
        // Down at most to a leaf, then up at most to the highest level.
        for _ in 0..2 * LEVELS {
            let top = &self.levels[self.top];
            match top.outs.as_slice() {
                [] => self.plant_empty_leaf(),
                [out] => match &top.runs[out.run].body {
                    Body::Nodes { entries, .. } if entries.len() == 1 => {
                        let entry = entries[0];
                        self.shrink(entry)?;
                    }
                    _ => return Ok(()),
                },
                _ => self.grow()?,
            }
        }
        unreachable!("a tree shrinks to one root or grows to one")
    }

    /// Everything is gone: an empty tree is an empty leaf.
    fn plant_empty_leaf(&mut self) {
        let start = Pos { leaf: 0, slot: 0, change: 0 };
        let root_is_leaf = self.top == 0;
        self.top = 0;
        let level = &mut self.levels[0];
        if !root_is_leaf {
            level.runs.push(Run {
                parent: None,
                slots: 0..0,
                olds: Vec::new(),
                body: Body::Leaves { changes: 0..0, cuts: Vec::new(), end: start },
                outs: 0..0,
            });
        }
        let index = level.runs.len() - 1;
        let run = &mut level.runs[index];
        if let Body::Leaves { cuts, .. } = &mut run.body {
            cuts.push(Cut { pos: start, first_key: Key::MIN });
        }
        run.outs = 0..1;
        level.outs.push(Out::new(index, 0, Key::MIN));
    }

    /// The new root would have one child: that is the root.
    fn shrink(&mut self, (_, entry): (Key, Entry)) -> Result<(), TreeError> {
        let level = self.top;
        let index = self.levels[level].outs[0].run;
        let top = &mut self.levels[level];
        top.outs.clear();
        top.runs.iter_mut().for_each(|run| run.outs = 0..0);
        let run = &mut top.runs[index];
        if let Body::Nodes { entries, cuts } = &mut run.body {
            entries.clear();
            cuts.clear();
        }
        self.top -= 1;
        let Entry::Kept { old, slot } = entry else { return Ok(()) };

        let parent = &mut run.olds[old];
        let (parent_fate, parent_at) = (parent.fate, parent.node.logical());
        parent.gone.push(slot..slot + 1);
        let parent = parent.node.clone();
        let child = self.blocks.child(self.env.owner, &parent, slot)?;
        let fate = fates(self.env, &[(&child, parent_fate)])?[0];
        let end = Pos { leaf: 1, slot: 0, change: 0 };
        let start = Cut { pos: Pos { leaf: 0, slot: 0, change: 0 }, first_key: child.key(0) };
        let mut run = Run {
            parent: None,
            slots: 0..1,
            olds: Vec::new(),
            body: Body::Nodes { entries: Vec::new(), cuts: vec![0] },
            outs: 0..1,
        };
        run.olds.push(self.old(child.clone(), fate, parent_fate, parent_at));
        match &mut run.body {
            Body::Nodes { entries, .. } if !child.is_leaf() => keep(entries, 0, &run.olds[0], 0..child.len()),
            body => *body = Body::Leaves { changes: 0..0, cuts: vec![start], end },
        }
        let below = &mut self.levels[level - 1];
        below.outs.push(Out::new(below.runs.len(), 0, child.key(0)));
        below.runs.push(run);
        Ok(())
    }

    /// There is more than one block at the top: a level above them.
    fn grow(&mut self) -> Result<(), TreeError> {
        let entries =
            self.levels[self.top].outs.iter().enumerate().map(|(i, out)| (out.first_key, Entry::New(i))).collect();
        self.top += 1;
        if self.top >= LEVELS {
            return Err(TreeError::TooHigh { tree: self.env.owner, max: LEVELS });
        }
        let mut run = Run {
            parent: None,
            slots: 0..0,
            olds: Vec::new(),
            body: Body::Nodes { entries, cuts: Vec::new() },
            outs: 0..0,
        };
        cut(&mut run, node_capacity(self.blocks.nodesize()));
        let level = &mut self.levels[self.top];
        // A node of this level that had one child left may be here, without new blocks.
        push_outs(&mut run, level.runs.len(), &mut level.outs);
        level.runs.push(run);
        Ok(())
    }
}

/// Lists children of an old node that stay.
fn keep(entries: &mut Vec<(Key, Entry)>, old: usize, node: &Old, slots: std::ops::Range<usize>) {
    entries.extend(slots.map(|slot| (node.node.key(slot), Entry::Kept { old, slot })));
}

/// Lists the children of a neighbour that was just added at either end.
fn take_in(run: &mut Run, front: bool) {
    let Body::Nodes { entries, .. } = &mut run.body else { unreachable!("runs above the lowest level are nodes") };
    if front {
        let mut all = Vec::new();
        keep(&mut all, 0, &run.olds[0], 0..run.olds[0].node.len());
        all.extend(entries.iter().map(|&(key, entry)| match entry {
            Entry::Kept { old, slot } => (key, Entry::Kept { old: old + 1, slot }),
            Entry::New(out) => (key, Entry::New(out)),
        }));
        *entries = all;
    } else {
        let old = run.olds.len() - 1;
        keep(entries, old, &run.olds[old], 0..run.olds[old].node.len());
    }
}

/// Finds where the new nodes of a run begin.
fn cut(run: &mut Run, capacity: usize) {
    let before = run.olds.len();
    let Body::Nodes { entries, cuts } = &mut run.body else { unreachable!("runs above the lowest level are nodes") };
    let count = entries.len().div_ceil(capacity);
    let appended = matches!(entries.last(), Some((_, Entry::New(_))));
    let spread = count > before && count <= SPREAD_MAX && !appended;
    *cuts = (0..count).map(|nth| if spread { nth * entries.len() / count } else { nth * capacity }).collect();
}

/// How many new nodes a run has, and how many children the last of them.
fn counts(run: &Run) -> (usize, usize) {
    let Body::Nodes { entries, cuts } = &run.body else { unreachable!("runs above the lowest level are nodes") };
    (cuts.len(), cuts.last().map_or(0, |start| entries.len() - start))
}

fn push_outs(run: &mut Run, index: usize, outs: &mut Vec<Out>) {
    let Body::Nodes { entries, cuts } = &run.body else { unreachable!("runs above the lowest level are nodes") };
    run.outs = outs.len()..outs.len() + cuts.len();
    outs.extend(cuts.iter().enumerate().map(|(nth, &start)| Out::new(index, nth, entries[start].0)));
}
