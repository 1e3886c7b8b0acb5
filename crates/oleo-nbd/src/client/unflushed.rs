//! What a server may lose: the ranges that were written and not flushed since; and the witnesses, by which a server
//! that comes back is known to be the same.
//!
//! Normal path of a change: (1) [`Unflushed::begin`], before anything is sent; (2) [`Unflushed::end`], when all answers
//! are there. Of a flush: (1) [`Unflushed::begin_flush`], before it is sent; (2) [`Unflushed::end_flush`], when it has
//! succeeded.
//!
//! Invariants: a range leaves only by a flush that was begun after the answer to its last write, because a flush covers
//! no more, or by its own answer if that promises durability (FUA). A witness is the hash of bytes that a flush has
//! covered and that no change has been sent for since.
//! Bounds: [`RANGES_MAX`] ranges per set, then the set is everything; [`WITNESSES_MAX`] witnesses of what is flushed and
//! as many of what is not.

use std::collections::BTreeMap;
use std::hash::Hasher;

use twox_hash::XxHash64;

/// Most runs of one set.
const RANGES_MAX: usize = 4096;
/// Witnesses that are kept.
pub(super) const WITNESSES_MAX: usize = 8;
/// Longest witness, in bytes.
const WITNESS_LEN_MAX: usize = 16 << 10;
/// So many of the first writes after a flush are kept as witnesses however many follow: a superblock is the first that
/// is written then.
const WITNESSES_FIRST: usize = 2;

/// A set of bytes of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    /// Begin and end, which neither touch nor overlap.
    runs: BTreeMap<u64, u64>,
    /// There were too many: all bytes.
    everything: bool,
}

impl Ranges {
    /// Adds `start..end`.
    pub(super) fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end || self.everything {
            return;
        }
        while let Some((&from, &to)) = self.runs.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.runs.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
        if self.runs.len() > RANGES_MAX {
            self.runs.clear();
            self.everything = true;
        }
    }

    /// Adds all of another set.
    pub(super) fn merge(&mut self, other: &Ranges) {
        if other.everything {
            self.runs.clear();
            self.everything = true;
        }
        other.runs.iter().for_each(|(&start, &end)| self.add(start, end));
    }

    /// Whether a byte of `start..end` is in it.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end && (self.everything || self.runs.range(..end).next_back().is_some_and(|(_, &to)| to > start))
    }

    /// Whether it has nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && !self.everything
    }

    /// How many bytes; `u64::MAX` for everything.
    pub(super) fn bytes(&self) -> u64 {
        if self.everything { u64::MAX } else { self.runs.iter().map(|(start, end)| end - start).sum() }
    }
}

impl FromIterator<(u64, u64)> for Ranges {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(runs: I) -> Ranges {
        let mut set = Ranges::default();
        runs.into_iter().for_each(|(start, end)| set.add(start, end));
        set
    }
}

/// Bytes by which a device is known again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Witness {
    /// Offset in bytes.
    pub(super) offset: u64,
    /// How many.
    pub(super) len: u32,
    /// Their hash.
    pub(super) hash: u64,
}

impl Witness {
    /// The first bytes of a write.
    pub(super) fn of(offset: u64, parts: &[&[u8]]) -> Witness {
        let mut hasher = XxHash64::with_seed(0);
        let mut len = 0;
        for part in parts {
            let taken = &part[..part.len().min(WITNESS_LEN_MAX - len)];
            hasher.write(taken);
            len += taken.len();
        }
        Witness { offset, len: len as u32, hash: hasher.finish() }
    }

    /// Which of `count` writes of a batch are worth being witnesses.
    pub(super) fn worth(count: usize) -> impl Iterator<Item = usize> {
        (0..count).filter(move |n| *n < WITNESSES_FIRST || n + WITNESSES_MAX - WITNESSES_FIRST >= count)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len.into())
    }
}

/// How far a witness is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its call is not answered.
    UnderWay(u64),
    /// Answered.
    Landed,
    /// Answered before this flush was begun.
    Covered(u64),
    /// Durable.
    Flushed,
}

/// How a change has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// All of it was done.
    Written,
    /// All of it was done, and is durable.
    Durable,
    /// Some of it may have been done.
    Failed,
}

/// What was written and is not known to be durable; see the module's text.
#[derive(Default, Debug)]
pub(super) struct Unflushed {
    /// By call: not answered. As many as there are threads in calls.
    under_way: BTreeMap<u64, Ranges>,
    /// Answered since the last flush was begun.
    landed: Ranges,
    /// Answered before the flush of this number was begun, which has not succeeded yet.
    covered: BTreeMap<u64, Ranges>,
    /// The last numbers given.
    calls: u64,
    flushes: u64,
    /// The oldest first.
    witnesses: Vec<(Witness, Stage)>,
}

impl Unflushed {
    /// A change begins; returns its number.
    pub(super) fn begin(&mut self, ranges: Ranges, candidates: &[Witness]) -> u64 {
        self.calls += 1;
        self.witnesses.retain(|(w, _)| !ranges.overlaps(w.offset, w.end()));
        for witness in candidates.iter().filter(|w| w.len > 0) {
            // Two writes of the same bytes in parallel: nobody knows which will be last.
            if !self.under_way.values().any(|other| other.overlaps(witness.offset, witness.end())) {
                self.witnesses.push((*witness, Stage::UnderWay(self.calls)));
            }
        }
        let fresh = |stage: &Stage| matches!(stage, Stage::UnderWay(_) | Stage::Landed);
        while self.witnesses.iter().filter(|(_, stage)| fresh(stage)).count() > WITNESSES_MAX {
            let mut index = self.witnesses.iter().enumerate().filter(|(_, (_, stage))| fresh(stage)).map(|(i, _)| i);
            let dropped = index.nth(WITNESSES_FIRST);
            dropped.map(|i| self.witnesses.remove(i));
        }
        self.under_way.insert(self.calls, ranges);
        self.calls
    }

    /// All answers to a change are there.
    pub(super) fn end(&mut self, call: u64, how: Ended) {
        let Some(ranges) = self.under_way.remove(&call) else { return };
        if how != Ended::Durable {
            self.landed.merge(&ranges);
        }
        match how {
            Ended::Failed => self.witnesses.retain(|(_, stage)| *stage != Stage::UnderWay(call)),
            Ended::Written => self.promote(|stage| stage == Stage::UnderWay(call), Stage::Landed),
            Ended::Durable => self.promote(|stage| stage == Stage::UnderWay(call), Stage::Flushed),
        }
    }

    /// A flush is about to be sent; returns its number.
    pub(super) fn begin_flush(&mut self) -> u64 {
        self.flushes += 1;
        let landed = std::mem::take(&mut self.landed);
        if !landed.is_empty() {
            self.covered.insert(self.flushes, landed);
        }
        self.promote(|stage| stage == Stage::Landed, Stage::Covered(self.flushes));
        self.flushes
    }

    /// That flush has succeeded, and so it covers all that was answered before any earlier one was begun.
    pub(super) fn end_flush(&mut self, flush: u64) {
        self.covered = self.covered.split_off(&(flush + 1));
        self.promote(|stage| matches!(stage, Stage::Covered(n) if n <= flush), Stage::Flushed);
    }

    fn promote(&mut self, which: impl Fn(Stage) -> bool, to: Stage) {
        self.witnesses.iter_mut().filter(|(_, stage)| which(*stage)).for_each(|(_, stage)| *stage = to);
        let mut spare = self.flushed().count().saturating_sub(WITNESSES_MAX);
        self.witnesses.retain(|(_, stage)| {
            let dropped = spare > 0 && *stage == Stage::Flushed;
            spare -= usize::from(dropped);
            !dropped
        });
    }

    fn flushed(&self) -> impl Iterator<Item = &Witness> {
        self.witnesses.iter().filter(|(_, stage)| *stage == Stage::Flushed).map(|(witness, _)| witness)
    }

    /// The witnesses of what is durable.
    pub(super) fn witnesses(&self) -> Vec<Witness> {
        self.flushed().copied().collect()
    }

    /// Whether a change waits for its answers.
    pub(super) fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether everything is durable.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.landed.is_empty() && self.covered.is_empty()
    }

    /// All of it.
    pub(super) fn all(&self) -> Ranges {
        let mut all = self.landed.clone();
        self.under_way.values().chain(self.covered.values()).for_each(|ranges| all.merge(ranges));
        all
    }
}

#[cfg(test)]
mod tests {
    use oleo_sim::rng::Rng;

    use super::*;

    fn run(start: u64, end: u64) -> Ranges {
        Ranges::from_iter([(start, end)])
    }

    /// Goal: a set of ranges is a set of bytes. Method: random additions, mirrored in a vector of flags.
    #[test]
    fn ranges_are_as_flags() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut set, mut flags) = (Ranges::default(), vec![false; 200]);
            for _ in 0..40 {
                let start = rng.below(200);
                let end = (start + rng.below(20)).min(200);
                set.add(start, end);
                flags[start as usize..end as usize].fill(true);
                let from = rng.below(200);
                let to = (from + rng.below(20)).min(200);
                let want = flags[from as usize..to as usize].contains(&true);
                assert_eq!(set.overlaps(from, to), want, "seed {seed}: {from}..{to} of {set:?}");
            }
            assert_eq!(set.bytes(), flags.iter().filter(|f| **f).count() as u64);
            let alike = set.runs.iter().zip(set.runs.iter().skip(1)).all(|((_, end), (start, _))| end < start);
            assert!(alike, "runs that touch are one");
        }
    }

    /// Goal: memory is bounded, on the safe side.
    #[test]
    fn too_many_ranges_are_everything() {
        let mut set = Ranges::default();
        (0..=RANGES_MAX as u64).for_each(|n| set.add(n * 2, n * 2 + 1));
        assert!(set.overlaps(1 << 40, (1 << 40) + 1) && set.runs.is_empty() && !set.overlaps(5, 5));
    }

    /// Goal: a flush clears what was answered before it was begun and nothing else, whatever order flushes end in.
    #[test]
    fn a_flush_covers_what_was_answered_before() {
        let mut set = Unflushed::default();
        let before = set.begin(run(0, 10), &[]);
        set.end(before, Ended::Written);
        let during = set.begin(run(20, 30), &[]);
        let first = set.begin_flush();
        set.end(during, Ended::Written);
        let second = set.begin_flush();
        let after = set.begin(run(40, 50), &[]);
        set.end_flush(second);
        assert!(!set.all().overlaps(0, 40), "the second covers the first's");
        assert!(set.all().overlaps(40, 50) && set.is_under_way());
        set.end_flush(first);
        set.end(after, Ended::Failed);
        assert_eq!(set.all().bytes(), 10, "what failed may have been written");
        let durable = set.begin(run(60, 70), &[]);
        set.end(durable, Ended::Durable);
        let third = set.begin_flush();
        set.end_flush(third);
        assert!(set.is_empty());
    }

    /// Goal: a flush that was begun before an answer came does not cover it.
    #[test]
    fn a_flush_does_not_cover_what_was_answered_after() {
        let mut set = Unflushed::default();
        let write = set.begin(run(0, 10), &[]);
        let flush = set.begin_flush();
        set.end(write, Ended::Written);
        set.end_flush(flush);
        assert_eq!(set.all().bytes(), 10);
    }

    /// Goal: witnesses are durable and untouched since; the first writes after a flush stay among them.
    #[test]
    fn witnesses() {
        let mut set = Unflushed::default();
        let at = |n: u64| Witness::of(n * 100, &[&[n as u8; 10], &[1; 5]]);
        let flushed = |set: &Unflushed| set.witnesses().iter().map(|w| w.offset / 100).collect::<Vec<_>>();
        for n in 0..20 {
            let call = set.begin(run(n * 100, n * 100 + 15), &[at(n)]);
            set.end(call, Ended::Written);
        }
        assert_eq!(flushed(&set), [0; 0]);
        let flush = set.begin_flush();
        set.end_flush(flush);
        assert_eq!(flushed(&set), [0, 1, 14, 15, 16, 17, 18, 19]);
        let over = set.begin(run(1814, 1815), &[]);
        assert_eq!(flushed(&set), [0, 1, 14, 15, 16, 17, 19], "one that is being changed is none");
        let twice = set.begin(run(1800, 1815), &[at(18)]);
        set.end(twice, Ended::Durable);
        set.end(over, Ended::Written);
        assert_eq!(flushed(&set), [0, 1, 14, 15, 16, 17, 19], "nobody knows which was last");
        let failed = set.begin(run(2000, 2015), &[at(20)]);
        set.end(failed, Ended::Failed);
        let durable = set.begin(run(2100, 2115), &[at(21)]);
        set.end(durable, Ended::Durable);
        let next = set.begin(run(2200, 2215), &[at(22)]);
        set.end(next, Ended::Durable);
        assert_eq!(flushed(&set), [1, 14, 15, 16, 17, 19, 21, 22], "the oldest goes");
        assert_eq!(Witness::worth(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Witness::worth(10).collect::<Vec<_>>(), [0, 1, 4, 5, 6, 7, 8, 9]);
        let long = Witness::of(0, &[&vec![0; 10_000], &vec![0; 10_000]]);
        assert_eq!(long.len as usize, WITNESS_LEN_MAX);
        assert_ne!(Witness::of(0, &[b"ab"]).hash, Witness::of(0, &[b"ac"]).hash);
    }
}
