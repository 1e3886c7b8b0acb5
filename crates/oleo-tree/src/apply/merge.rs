//! Leaves: merges old items and changes, and cuts them into new leaves.
//!
//! The merge is run twice. The first pass only measures: it finds where each new leaf begins ([`Cut`]), copying
//! nothing. The second (`build`) starts at every cut independently, so that one long run of new items, such as a
//! million new files under one old leaf, is filled by all cores, each item copied once, straight into its leaf.
//!
//! How full: leaves are packed full, since everything of a run is rewritten anyway. But if changes in the middle turned
//! a few leaves into a few more, the next changes will probably hit the middle again: then items are spread evenly. If
//! a run ends in a leaf under a third full and did not grow, it takes in an untouched neighbour, if both fit in one
//! leaf.

use std::ops::Range;

use oleo_format::{ITEM_LEN, Key, item_len_max, leaf_capacity};
use rayon::prelude::*;

use super::plan::{Body, Cut, Job, Old, Out, Pos, Run, Touched};
use super::{Change, Op};
use crate::{Node, TreeError};

/// If a run grew to at most this many blocks, they are filled evenly; in longer runs an uneven last one does not
/// matter.
pub(super) const SPREAD_MAX: usize = 4;

/// A run that ends in a block filled to less than one part in this many takes in a neighbour.
pub(super) const SPARSE_PART: usize = 3;

/// What the flow yields.
pub(super) enum Step<'a> {
    /// An old item stays.
    Keep { leaf: usize, slot: usize, key: Key },
    /// A new item, perhaps in place of an old one (leaf and slot).
    Put { key: Key, item: &'a [u8], over: Option<(usize, usize)> },
    /// An old item goes.
    Drop { leaf: usize, slot: usize },
}

/// Old items and changes in the order of their keys.
pub(super) struct Flow<'a> {
    olds: &'a [Old],
    changes: &'a [Change],
    pos: Pos,
    old_key: Option<Key>,
}

impl<'a> Flow<'a> {
    /// From a place on; `changes` are all of the run.
    pub fn at(olds: &'a [Old], changes: &'a [Change], pos: Pos) -> Flow<'a> {
        let mut flow = Flow { olds, changes, pos, old_key: None };
        flow.settle();
        flow
    }

    /// From the start of a run.
    pub fn new(olds: &'a [Old], changes: &'a [Change]) -> Flow<'a> {
        Flow::at(olds, changes, Pos { leaf: 0, slot: 0, change: 0 })
    }

    pub fn pos(&self) -> Pos {
        self.pos
    }

    /// Skips leaves that are used up and reads the next old key.
    fn settle(&mut self) {
        while let Some(old) = self.olds.get(self.pos.leaf) {
            if self.pos.slot < old.node.len() {
                self.old_key = Some(old.node.items()[self.pos.slot].key.into());
                return;
            }
            self.pos.leaf += 1;
            self.pos.slot = 0;
        }
        self.old_key = None;
    }

    fn take_old(&mut self) -> (usize, usize) {
        let at = (self.pos.leaf, self.pos.slot);
        self.pos.slot += 1;
        self.settle();
        at
    }
}

impl<'a> Iterator for Flow<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        loop {
            let changes: &'a [Change] = self.changes;
            let change = match (self.old_key, changes.get(self.pos.change)) {
                (None, None) => return None,
                (Some(key), change) if change.is_none_or(|c| key < c.key) => {
                    let (leaf, slot) = self.take_old();
                    return Some(Step::Keep { leaf, slot, key });
                }
                (_, None) => unreachable!("an old item without a change stays"),
                (_, Some(change)) => change,
            };
            self.pos.change += 1;
            let over = (self.old_key == Some(change.key)).then(|| self.take_old());
            match (&change.op, over) {
                (Op::Put(item), over) => return Some(Step::Put { key: change.key, item, over }),
                (Op::Delete, Some((leaf, slot))) => return Some(Step::Drop { leaf, slot }),
                (Op::Delete, None) => {}
            }
        }
    }
}

/// What a measuring pass found.
pub(super) struct Measured {
    pub cuts: Vec<Cut>,
    pub end: Pos,
    /// Bytes of all items.
    total: usize,
    /// Bytes in the last leaf.
    last: usize,
    /// The last item is a new one: the run is probably appended to.
    appended: bool,
}

impl Job<'_> {
    /// Forms runs of touched leaves and finds where the new leaves begin.
    pub fn merge_leaves(&mut self) -> Result<(), TreeError> {
        let touched = std::mem::take(&mut self.levels[0].touched);
        self.merge_runs(group(touched, self.top == 0))
    }

    /// Merges everything into one run over no old leaves: a new tree.
    pub fn merge_nothing(&mut self) -> Result<(), TreeError> {
        let start = Pos { leaf: 0, slot: 0, change: 0 };
        let body = Body::Leaves { changes: 0..self.batch.len(), cuts: Vec::new(), end: start };
        self.merge_runs(vec![Run { parent: None, slots: 0..0, olds: Vec::new(), body, outs: 0..0 }])
    }

    fn merge_runs(&mut self, mut runs: Vec<Run>) -> Result<(), TreeError> {
        let mut measured = self.measure_all(&runs)?;

        let capacity = leaf_capacity(self.blocks.nodesize());
        let sparse: Vec<Sparse> = runs
            .iter()
            .zip(&measured)
            .enumerate()
            .filter(|(_, (run, m))| is_sparse(run.olds.len(), m.cuts.len(), m.last, capacity))
            .map(|(index, (_, m))| Sparse { run: index, last: m.last })
            .collect();
        for absorbed in self.absorb(0, &mut runs, &sparse, |leaf| leaf.free_bytes())? {
            measured[absorbed.run] = self.measure(&runs[absorbed.run])?;
        }

        let mut outs = Vec::new();
        for (index, (run, m)) in runs.iter_mut().zip(measured).enumerate() {
            run.outs = outs.len()..outs.len() + m.cuts.len();
            outs.extend(m.cuts.iter().enumerate().map(|(nth, cut)| Out::new(index, nth, cut.first_key)));
            if let Body::Leaves { cuts, end, .. } = &mut run.body {
                (*cuts, *end) = (m.cuts, m.end);
            }
        }
        self.levels[0].runs = runs;
        self.levels[0].outs = outs;
        Ok(())
    }

    fn measure_all(&self, runs: &[Run]) -> Result<Vec<Measured>, TreeError> {
        if self.parallel {
            runs.par_iter().map(|run| self.measure(run)).collect()
        } else {
            runs.iter().map(|run| self.measure(run)).collect()
        }
    }

    fn measure(&self, run: &Run) -> Result<Measured, TreeError> {
        let full = self.measure_with(run, None)?;
        let (before, after) = (run.olds.len(), full.cuts.len());
        if after > before && after <= SPREAD_MAX && !full.appended {
            return self.measure_with(run, Some((full.total, after)));
        }
        Ok(full)
    }

    /// One pass over a run. `spread` gives the bytes of all items and the number of leaves to spread them over.
    fn measure_with(&self, run: &Run, spread: Option<(usize, usize)>) -> Result<Measured, TreeError> {
        let nodesize = self.blocks.nodesize();
        let capacity = leaf_capacity(nodesize);
        let item_max = item_len_max(nodesize);
        let Body::Leaves { changes, .. } = &run.body else { unreachable!("runs of the lowest level are leaves") };
        let mut flow = Flow::new(&run.olds, &self.batch[changes.clone()]);
        let mut m = Measured { cuts: Vec::new(), end: flow.pos(), total: 0, last: 0, appended: false };
        // The first leaf begins where the run does, even if deletions come first.
        let mut before = flow.pos();
        while let Some(step) = flow.next() {
            let (key, len) = match step {
                Step::Keep { leaf, slot, key } => {
                    m.appended = false;
                    (key, run.olds[leaf].node.items()[slot].size.get() as usize)
                }
                Step::Put { key, item, over } => {
                    m.appended = over.is_none();
                    (key, item.len())
                }
                Step::Drop { .. } => continue,
            };
            if len > item_max {
                return Err(TreeError::ItemTooLarge { tree: self.env.owner, key, len, max: item_max });
            }
            let size = len + ITEM_LEN;
            let due = spread.is_some_and(|(total, count)| {
                m.cuts.len() < count && (m.total + size / 2) * count >= total * m.cuts.len()
            });
            if m.cuts.is_empty() || m.last + size > capacity || (due && m.last > 0) {
                m.cuts.push(Cut { pos: before, first_key: key });
                m.last = 0;
            }
            m.last += size;
            m.total += size;
            before = flow.pos();
        }
        m.end = flow.pos();
        Ok(m)
    }
}

/// A run whose last new block is nearly empty.
pub(super) struct Sparse {
    pub run: usize,
    /// The fill of that block, in the unit of the level: bytes or children.
    pub last: usize,
}

/// Whether a run of `before` blocks that becomes `after` should take in a neighbour.
pub(super) fn is_sparse(before: usize, after: usize, last: usize, capacity: usize) -> bool {
    after > 0 && after <= before && last < capacity / SPARSE_PART
}

/// Groups touched leaves that are neighbours under one parent into runs.
fn group(touched: Vec<Touched>, is_top: bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let start = Pos { leaf: 0, slot: 0, change: 0 };
    for Touched { old, parent, slot, changes: part } in touched {
        if let Some(run) = runs.last_mut()
            && run.parent == Some(parent)
            && run.slots.end == slot
            && let Body::Leaves { changes, .. } = &mut run.body
        {
            run.slots.end += 1;
            changes.end = part.end;
            run.olds.push(old);
            continue;
        }
        runs.push(Run {
            parent: (!is_top).then_some(parent),
            slots: slot..slot + 1,
            olds: vec![old],
            body: Body::Leaves { changes: part, cuts: Vec::new(), end: start },
            outs: 0..0,
        });
    }
    runs
}

impl Out {
    pub fn new(run: usize, nth: usize, first_key: Key) -> Out {
        Out { run, nth, first_key, at: None, fresh: false, silent: false }
    }
}

/// A run that took in a neighbour, its first or its last old block now.
pub(super) struct Absorbed {
    pub run: usize,
    pub front: bool,
}

/// A neighbour that a run wants to take in.
struct Wanted {
    run: usize,
    parent: usize,
    slot: usize,
    last: usize,
}

impl Job<'_> {
    /// Lets sparse runs of a level take in an untouched neighbour under the same parent: the next one, else the one
    /// before, if its contents and the run's last block fit in one. `room_in` returns how much more a block could hold.
    pub fn absorb(
        &self,
        level: usize,
        runs: &mut [Run],
        sparse: &[Sparse],
        room_in: impl Fn(&Node) -> usize,
    ) -> Result<Vec<Absorbed>, TreeError> {
        if level == self.top || sparse.is_empty() {
            return Ok(Vec::new());
        }
        let above = &self.levels[level + 1].touched;
        let mut wanted = self.neighbours(above, runs, sparse);
        let places = wanted.iter().map(|w| (&*above[w.parent].old.node, w.slot));
        let nodes = self.blocks.children(self.env.owner, places)?;
        let fits: Vec<bool> = wanted.iter().zip(&nodes).map(|(w, node)| w.last <= room_in(node)).collect();
        let nodes = nodes.into_iter().zip(&fits).filter_map(|(node, fits)| fits.then_some(node)).collect();
        let mut fits = fits.into_iter();
        wanted.retain(|_| fits.next().unwrap_or(false));

        let places: Vec<(usize, usize)> = wanted.iter().map(|w| (w.parent, w.slot)).collect();
        let olds = self.find_fates(above, &places, nodes)?;
        let mut absorbed = Vec::with_capacity(wanted.len());
        for (old, w) in olds.into_iter().zip(&wanted) {
            let run = &mut runs[w.run];
            let front = w.slot < run.slots.start;
            if front {
                run.slots.start -= 1;
                run.olds.insert(0, old);
            } else {
                run.slots.end += 1;
                run.olds.push(old);
            }
            absorbed.push(Absorbed { run: w.run, front });
        }
        Ok(absorbed)
    }

    /// The untouched neighbour that each sparse run would take in; no block is promised to two runs.
    fn neighbours(&self, above: &[Touched], runs: &[Run], sparse: &[Sparse]) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = Vec::with_capacity(sparse.len());
        for &Sparse { run: index, last } in sparse {
            let run = &runs[index];
            let parent = run.parent.expect("a run below the top has a parent");
            let beside = |other: Option<&Run>| -> Option<Range<usize>> {
                other.filter(|other| other.parent == Some(parent)).map(|other| other.slots.clone())
            };
            let next = run.slots.end;
            let next_is_free = next < above[parent].old.node.len()
                && beside(runs.get(index + 1)).is_none_or(|slots| next < slots.start);
            if next_is_free {
                wanted.push(Wanted { run: index, parent, slot: next, last });
                continue;
            }
            let Some(before) = run.slots.start.checked_sub(1) else { continue };
            let promised = wanted.last().is_some_and(|w| (w.parent, w.slot) == (parent, before));
            let before_is_free =
                beside(index.checked_sub(1).and_then(|i| runs.get(i))).is_none_or(|slots| slots.end <= before);
            if before_is_free && !promised {
                wanted.push(Wanted { run: index, parent, slot: before, last });
            }
        }
        wanted
    }
}
