//! The runs of a region: which of its blocks are in which frame.
//!
//! They are kept in leaves of 4 MiB of the device, each a sorted list. No run crosses a multiple of 64 blocks, so none is in
//! two leaves, and a change moves at most the 16 KiB of one leaf.

use crate::format::REGION_BLOCKS;
use crate::format::map::Run;

/// Blocks of a leaf.
const LEAF_BLOCKS: u32 = 1024;
const LEAF_COUNT: usize = REGION_BLOCKS as usize / LEAF_BLOCKS as usize;

/// A run in 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Packed {
    start_blocks: u32,
    stored_skip: u32,
    row: u32,
    off: u32,
}

impl Packed {
    fn new(run: &Run) -> Packed {
        Packed {
            start_blocks: run.start << 8 | u32::from(run.blocks),
            stored_skip: run.stored << 8 | u32::from(run.skip),
            row: run.row,
            off: run.off,
        }
    }
    fn start(self) -> u32 {
        self.start_blocks >> 8
    }
    fn end(self) -> u32 {
        self.start() + (self.start_blocks & 0xff)
    }
    fn run(self) -> Run {
        Run {
            start: self.start(),
            blocks: self.start_blocks as u8,
            skip: self.stored_skip as u8,
            row: self.row,
            off: self.off,
            stored: self.stored_skip >> 8,
        }
    }
    /// The part of it in `from..to`, which it has blocks of.
    fn part(self, from: u32, to: u32) -> Packed {
        let mut run = self.run();
        let (from, to) = (from.max(run.start), to.min(run.end()));
        run.skip += (from - run.start) as u8;
        (run.start, run.blocks) = (from, (to - from) as u8);
        Packed::new(&run)
    }
}

/// The runs of one GiB.
#[derive(Clone, Default, Debug)]
pub(crate) struct Region {
    /// None, or one for each 4 MiB.
    leaves: Vec<Vec<Packed>>,
    runs: usize,
}

impl Region {
    /// Of the runs of a page, which are in order.
    pub(crate) fn of(runs: &[Run]) -> Region {
        let mut region = Region::default();
        if !runs.is_empty() {
            region.leaves = vec![Vec::new(); LEAF_COUNT];
        }
        for leaf in runs.chunk_by(|a, b| a.start / LEAF_BLOCKS == b.start / LEAF_BLOCKS) {
            region.leaves[(leaf[0].start / LEAF_BLOCKS) as usize] = leaf.iter().map(Packed::new).collect();
        }
        region.runs = runs.len();
        region
    }

    /// How many runs it has.
    pub(crate) fn len(&self) -> usize {
        self.runs
    }

    /// About how much memory it takes, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.leaves.len() * size_of::<Vec<Packed>>() + self.runs * size_of::<Packed>() * 3 / 2) as u64
    }

    /// Puts a run in the place of what is there; `lost` hears of which rows how many blocks are gone.
    pub(crate) fn set(&mut self, run: &Run, lost: &mut dyn FnMut(u32, u32)) {
        if self.leaves.is_empty() {
            self.leaves = vec![Vec::new(); LEAF_COUNT];
        }
        let leaf = &mut self.leaves[(run.start / LEAF_BLOCKS) as usize];
        let before = leaf.len();
        replace(leaf, run.start, run.end(), Some(Packed::new(run)), lost);
        self.runs = self.runs + leaf.len() - before;
    }

    /// Removes what is in `from..to`.
    pub(crate) fn clear(&mut self, from: u32, to: u32, lost: &mut dyn FnMut(u32, u32)) {
        if from >= to || self.leaves.is_empty() {
            return;
        }
        for n in from / LEAF_BLOCKS..=(to - 1) / LEAF_BLOCKS {
            let leaf = &mut self.leaves[n as usize];
            let before = leaf.len();
            replace(leaf, from, to, None, lost);
            self.runs = self.runs + leaf.len() - before;
        }
    }

    /// The runs with blocks in `from..to`, whole.
    pub(crate) fn range(&self, from: u32, to: u32) -> impl Iterator<Item = Run> + Clone + '_ {
        let first = (from / LEAF_BLOCKS) as usize;
        self.leaves
            .iter()
            .skip(first)
            .take_while(move |_| from < to)
            .enumerate()
            .map_while(move |(n, leaf)| {
                let begins = (first + n) as u32 * LEAF_BLOCKS;
                (begins < to).then(|| {
                    let at = leaf.partition_point(|run| run.end() <= from);
                    let end = leaf.partition_point(|run| run.start() < to);
                    leaf[at.min(end)..end].iter().map(|run| run.run())
                })
            })
            .flatten()
    }

    /// All runs.
    pub(crate) fn all(&self) -> impl Iterator<Item = Run> + Clone + '_ {
        self.range(0, REGION_BLOCKS as u32)
    }
}

/// Puts `new` in the place of everything in `from..to`.
fn replace(leaf: &mut Vec<Packed>, from: u32, to: u32, new: Option<Packed>, lost: &mut dyn FnMut(u32, u32)) {
    let at = leaf.partition_point(|run| run.end() <= from);
    let end = leaf.partition_point(|run| run.start() < to).max(at);
    let mut parts = [None, new, None];
    for run in &leaf[at..end] {
        lost(run.row, run.end().min(to) - run.start().max(from));
        if run.start() < from {
            parts[0] = Some(run.part(0, from));
        }
        if run.end() > to {
            parts[2] = Some(run.part(to, u32::MAX));
        }
    }
    if at < end || new.is_some() {
        leaf.splice(at..end, parts.into_iter().flatten());
    }
}
