//! Held free runs: set aside for a moment, so that the caller can discard them on the devices.
//!
//! 1. [`Space::hold_free`] walks the free runs of a range of addresses, rising, group by group, in pieces. It keeps nothing
//!    but an address between pieces, so it sees what happens to the groups meanwhile.
//! 2. It returns each piece as a [`HeldRun`]: no allocation gets any of it until that is dropped. It still counts as free:
//!    reservations are kept and made as if nobody held it, and the index counts it. An allocation that finds
//!    nothing elsewhere waits, in its last pass, until the run is released.
//!
//! Invariants: what is held is neither in the group's runs nor pinned nor in use; `Group::free` counts it.
//!
//! Locks: the group's state while a piece is taken and put back, none while it is held. A thread that holds a piece must
//! not allocate: it could wait for itself.

use std::fmt;

use oleo_format::{ByteLen, Logical};

use crate::group::GroupRef;
use crate::inner::Share;
use crate::{LoadError, Run, Space};

/// Which free runs are wanted, and in what pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldWant {
    /// From this address on.
    pub start: Logical,
    /// Up to, and without, this one.
    pub end: Logical,
    /// Shorter runs are passed over.
    pub min_len: ByteLen,
    /// Pieces are not longer than this; one sector at least.
    pub piece_max: ByteLen,
}

/// The free runs of a range, one piece at a time: see [`Space::hold_free`].
pub struct HoldFree {
    inner: Share,
    want: HoldWant,
}

/// A piece of a free run that nobody else is given. Dropping it releases it.
#[must_use = "a run that is not kept is not held"]
pub struct HeldRun {
    inner: Share,
    group: GroupRef,
    run: Run,
}

impl HeldRun {
    /// What is held.
    pub fn run(&self) -> Run {
        self.run
    }
}

impl fmt::Debug for HeldRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldRun({:?})", self.run)
    }
}

impl Drop for HeldRun {
    fn drop(&mut self) {
        let table = self.inner.tables.read();
        let mut state = self.group.state.lock();
        let (start, end) = (self.run.start.0, self.run.end().0);
        state.with_sets(|sets| sets.held.remove(start, end));
        if let Some(runs) = state.runs_mut() {
            let free_again = runs.insert(start, end);
            debug_assert!(free_again, "{:?} was held and free", self.run);
        }
        self.inner.refile(&table, &self.group, &mut state, self.run.len.0);
        drop((state, table));
        self.inner.wakeups.notify();
    }
}

impl HoldFree {
    /// Holds the next piece of `group` at or after `want.start`.
    fn hold_in(&self, group: &GroupRef) -> Result<Option<HeldRun>, LoadError> {
        let want = &self.want;
        let run = self.inner.with_loaded(group, |table, state, inner| {
            let piece_max = want.piece_max.0.max(1 << inner.sector_shift);
            let mut at = want.start.0.max(group.start);
            while let Some((start, end)) = state.runs().and_then(|runs| runs.at_or_after(at)) {
                let from = start.max(at);
                if from >= want.end.0 {
                    break;
                }
                let to = end.min(want.end.0).min(from.saturating_add(piece_max));
                if end - start >= want.min_len.0 && state.runs_mut().is_some_and(|runs| runs.take(from, to)) {
                    state.with_sets(|sets| sets.held.unite(from, to));
                    inner.refile(table, group, state, 0);
                    return Some(Run::between(from, to));
                }
                at = end;
            }
            None
        })?;
        Ok(run.map(|run| HeldRun { inner: self.inner.clone(), group: group.clone(), run }))
    }
}

impl Iterator for HoldFree {
    type Item = Result<HeldRun, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.want.start < self.want.end {
            let group = self.inner.tables.read().group_from(self.want.start.0)?.keep();
            let held = self.hold_in(&group);
            self.want.start = match &held {
                Ok(Some(held)) => held.run.end(),
                Ok(None) | Err(_) => Logical(group.end),
            };
            if let Some(held) = held.transpose() {
                return Some(held);
            }
        }
        None
    }
}

impl Space {
    /// Holds the free runs of a range piece by piece: drop each before the next one is asked for, and allocate nothing in
    /// between. Free space that was not read yet is; a group for which that fails is an error in its place, and the walk goes on
    /// behind it.
    pub fn hold_free(&self, want: HoldWant) -> HoldFree {
        HoldFree { inner: self.share(), want }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    use oleo_format::BlockGroupFlags;

    use super::*;
    use crate::testing::{MIB, SECTOR, run, space_of};
    use crate::{Goal, Kind, Want};

    const BASE: u64 = 1 << 30;

    fn all(min_len: u64, piece_max: u64) -> HoldWant {
        let (min_len, piece_max) = (ByteLen(min_len), ByteLen(piece_max));
        HoldWant { start: Logical(0), end: Logical(u64::MAX), min_len, piece_max }
    }

    fn alloc(space: &Space, len: u64) -> Run {
        let want = Want {
            kind: Kind::Data,
            len: ByteLen(len),
            min_len: ByteLen(len),
            align: ByteLen(SECTOR),
            goal: Goal::Stream(1),
        };
        space.alloc(&want).unwrap().keep()
    }

    /// Goal: the walk names what is free, in pieces, and leaves everything as it was. Method: two groups with holes; runs
    /// too short passed over; a range that cuts runs; totals and free runs before and after.
    #[test]
    fn the_walk_names_what_is_free_and_changes_nothing() {
        let space = space_of(2, 4 * MIB, BlockGroupFlags::DATA);
        let _full = [alloc(&space, 4 * MIB), alloc(&space, 4 * MIB)];
        for (at, len) in [(0, 2 * SECTOR), (MIB, MIB), (3 * MIB, SECTOR), (4 * MIB, 3 * MIB)] {
            space.give_back(run(BASE + at, len));
        }
        let before = (space.totals(Kind::Data), space.free_runs(Logical(BASE)).unwrap());
        let walk = |want| -> Vec<Run> { space.hold_free(want).map(|held| held.unwrap().run()).collect() };
        let want = [(0, 2 * SECTOR), (MIB, MIB), (4 * MIB, 2 * MIB), (6 * MIB, MIB)];
        assert_eq!(walk(all(2 * SECTOR, 2 * MIB)), want.map(|(at, len)| run(BASE + at, len)));
        let part = HoldWant { start: Logical(BASE + MIB + SECTOR), end: Logical(BASE + 5 * MIB), ..all(0, u64::MAX) };
        let want = [(MIB + SECTOR, MIB - SECTOR), (3 * MIB, SECTOR), (4 * MIB, MIB)];
        assert_eq!(walk(part), want.map(|(at, len)| run(BASE + at, len)));
        assert_eq!((space.totals(Kind::Data), space.free_runs(Logical(BASE)).unwrap()), before);
    }

    /// Goal: nobody is given what is held; it counts as free; an allocation that finds nothing else waits for it.
    /// Method: all of a group held; a promise is made, an allocation waits until the piece is dropped.
    #[test]
    fn what_is_held_is_waited_for_and_never_given_out() {
        let space = space_of(1, 4 * MIB, BlockGroupFlags::DATA);
        let _used = alloc(&space, MIB);
        let held = space.hold_free(all(0, u64::MAX)).next().unwrap().unwrap();
        assert_eq!(held.run(), run(BASE + MIB, 3 * MIB));
        assert!(space.pin(run(BASE + 2 * MIB, SECTOR)).is_err(), "what is held is free");
        assert_eq!(space.free_runs(Logical(BASE)).unwrap(), [run(BASE + MIB, 3 * MIB)]);
        drop(space.reserve(Kind::Data, ByteLen(3 * MIB)).unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let got = alloc(&space, 3 * MIB);
                done.store(true, SeqCst);
                got
            });
            std::thread::sleep(Duration::from_millis(30));
            assert!(!done.load(SeqCst));
            drop(held);
            assert_eq!(waiter.join().unwrap(), run(BASE + MIB, 3 * MIB));
        });
        assert_eq!(space.totals(Kind::Data).free.0, 0);
    }

    /// Goal: a trimmer and writers disturb each other in nothing but time. Method: one thread holds everything free again
    /// and again in small pieces, two allocate and give back all there is; nobody is refused.
    #[test]
    fn a_trimmer_never_makes_an_allocation_fail() {
        let space = space_of(2, MIB, BlockGroupFlags::DATA);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let trimmer = scope.spawn(|| {
                let mut pieces = 0u64;
                while !stop.load(SeqCst) {
                    pieces += space.hold_free(all(0, 16 * SECTOR)).map(|held| drop(held.unwrap())).count() as u64;
                }
                pieces
            });
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..300 {
                            let mut mine = Vec::new();
                            while mine.iter().map(|run: &Run| run.len.0).sum::<u64>() < MIB {
                                mine.push(alloc(&space, SECTOR * 8));
                            }
                            mine.into_iter().for_each(|run| space.give_back(run));
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, SeqCst);
            assert!(trimmer.join().unwrap() > 0);
        });
        assert_eq!(space.totals(Kind::Data).free.0, 2 * MIB);
        for i in 0..2 {
            assert_eq!(space.free_runs(Logical(BASE + i * MIB)).unwrap(), [run(BASE + i * MIB, MIB)]);
        }
    }
}
