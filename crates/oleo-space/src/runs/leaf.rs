//! A leaf of a group's free runs: some runs that follow one another, and how many there are of each class.

use super::{CLASSES, Sector, class_of_sectors};

/// Runs in a leaf: 512 bytes of them, eight cache lines. Half and double cost the same within the noise.
pub(super) const LEAF_RUNS: usize = 64;

/// The class of a run of some sectors.
pub(super) fn class<S: Sector>((start, end): (S, S)) -> usize {
    class_of_sectors((end - start).into())
}

/// Some runs that follow one another.
#[derive(Debug)]
pub(super) struct Leaf<S> {
    len: u8,
    /// Runs of each class.
    pub(super) counts: [u8; CLASSES],
    pub(super) starts: [S; LEAF_RUNS],
    /// [`Sector::MAX`], an end that no run has, behind the last one.
    pub(super) ends: [S; LEAF_RUNS],
}

impl<S: Sector> Leaf<S> {
    pub(super) fn new() -> Box<Leaf<S>> {
        Box::new(Leaf { len: 0, counts: [0; CLASSES], starts: [S::MAX; LEAF_RUNS], ends: [S::MAX; LEAF_RUNS] })
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(super) fn run(&self, slot: usize) -> (S, S) {
        (self.starts[slot], self.ends[slot])
    }

    pub(super) fn last_end(&self) -> S {
        self.ends[self.len() - 1]
    }

    /// The first run that ends after `at`.
    pub(super) fn seek(&self, at: S) -> usize {
        // Of all of them, which a processor does many at a time; a search by halves waits for each look.
        let before: u32 = self.ends.iter().map(|end| u32::from(*end <= at)).sum();
        (before as usize).min(self.len())
    }

    pub(super) fn insert(&mut self, slot: usize, start: S, end: S) {
        let len = self.len();
        self.starts.copy_within(slot..len, slot + 1);
        self.ends.copy_within(slot..len, slot + 1);
        self.starts[slot] = start;
        self.ends[slot] = end;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let len = self.len();
        self.starts.copy_within(slot + 1..len, slot);
        self.ends.copy_within(slot + 1..len, slot);
        self.ends[len - 1] = S::MAX;
        self.len -= 1;
    }

    /// Moves the runs from slot `from` on behind those of `to`.
    pub(super) fn move_to(&mut self, from: usize, to: &mut Leaf<S>) {
        let (moved, at) = (self.len() - from, to.len());
        to.starts[at..at + moved].copy_from_slice(&self.starts[from..from + moved]);
        to.ends[at..at + moved].copy_from_slice(&self.ends[from..from + moved]);
        to.len += moved as u8;
        self.ends[from..].fill(S::MAX);
        self.len = from as u8;
        self.recount();
        to.recount();
    }

    fn recount(&mut self) {
        self.counts = [0; CLASSES];
        for slot in 0..self.len() {
            self.counts[class(self.run(slot))] += 1;
        }
    }

    pub(super) fn mask(&self) -> u64 {
        self.counts.iter().enumerate().fold(0, |mask, (class, &count)| mask | u64::from(count > 0) << class)
    }
}
