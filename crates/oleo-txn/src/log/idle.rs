//! Log blocks that wait to be used again, as runs of adjacent ones.
//!
//! A log commit writes a handful of blocks. Adjacent ones are one write to each device, scattered ones a write each, and an fsync waits for
//! all of them. So the shortest run is taken that has room for all that the commit is expected to make; what is left of it waits again.

use std::collections::BTreeSet;

use oleo_format::Logical;

/// Runs of blocks that no superblock on disk leads to.
pub(super) struct IdleRuns {
    nodesize: u64,
    /// Blocks in the run, its first address.
    runs: BTreeSet<(u64, u64)>,
    blocks: u64,
}

impl IdleRuns {
    /// Of blocks in any order, none twice.
    pub(super) fn new(mut blocks: Vec<Logical>, nodesize: u32) -> IdleRuns {
        let nodesize = u64::from(nodesize);
        blocks.sort_unstable();
        let runs = blocks.chunk_by(|a, b| a.0 + nodesize == b.0);
        let runs = runs.map(|run| (run.len() as u64, run[0].0)).collect();
        IdleRuns { nodesize, runs, blocks: blocks.len() as u64 }
    }

    /// How many wait.
    pub(super) fn len(&self) -> u64 {
        self.blocks
    }

    /// The first `count` blocks of the shortest run that has them.
    pub(super) fn take_adjacent(&mut self, count: u64, out: &mut Vec<Logical>) -> bool {
        let Some(&run) = self.runs.range((count, 0)..).next() else { return false };
        self.take(run, count, out);
        true
    }

    /// As many blocks as there are, up to `count`, of as few runs as possible.
    pub(super) fn take_any(&mut self, count: u64, out: &mut Vec<Logical>) {
        let mut missing = count;
        while missing > 0 {
            let Some(&run) = self.runs.range((missing, 0)..).next().or_else(|| self.runs.last()) else { break };
            let taken = run.0.min(missing);
            self.take(run, taken, out);
            missing -= taken;
        }
    }

    fn take(&mut self, run: (u64, u64), count: u64, out: &mut Vec<Logical>) {
        self.runs.remove(&run);
        self.blocks -= count;
        let (len, start) = run;
        out.extend((0..count).map(|nth| Logical(start + nth * self.nodesize)));
        if len > count {
            self.runs.insert((len - count, start + count * self.nodesize));
        }
    }

    /// All that still wait.
    pub(super) fn into_blocks(self) -> Vec<Logical> {
        let runs = self.runs.iter();
        runs.flat_map(|&(len, start)| (0..len).map(move |nth| Logical(start + nth * self.nodesize))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16 << 10;

    fn runs(blocks: &[u64]) -> IdleRuns {
        IdleRuns::new(blocks.iter().map(|n| Logical(n * NODE)).collect(), NODE as u32)
    }

    fn numbers(blocks: &[Logical]) -> Vec<u64> {
        blocks.iter().map(|at| at.0 / NODE).collect()
    }

    /// Goal: the shortest run that fits is used, and what is left of it is a run. Method: runs of 3, 1 and 5 blocks in any order.
    #[test]
    fn the_shortest_that_fits() {
        let mut idle = runs(&[24, 1, 20, 10, 2, 22, 3, 23, 21]);
        let mut out = Vec::new();
        assert!(idle.take_adjacent(2, &mut out));
        assert_eq!((numbers(&out), idle.len()), (vec![1, 2], 7));
        assert!(idle.take_adjacent(1, &mut out) && idle.take_adjacent(4, &mut out));
        assert_eq!(numbers(&out), [1, 2, 3, 20, 21, 22, 23]);
        assert!(!idle.take_adjacent(2, &mut out), "10 and 24 are apart");
        assert_eq!(out.len(), 7);
        let mut rest = numbers(&idle.into_blocks());
        rest.sort_unstable();
        assert_eq!(rest, [10, 24]);
    }

    /// Goal: of scattered blocks long runs come first, and never more than there are.
    #[test]
    fn any() {
        let mut idle = runs(&[5, 1, 2, 9, 10, 11]);
        let mut out = Vec::new();
        idle.take_any(4, &mut out);
        assert_eq!(numbers(&out), [9, 10, 11, 5]);
        idle.take_any(4, &mut out);
        assert_eq!((numbers(&out), idle.len()), (vec![9, 10, 11, 5, 1, 2], 0));
        assert!(!idle.take_adjacent(1, &mut out) && idle.into_blocks().is_empty());
    }
}
