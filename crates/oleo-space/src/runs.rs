//! The free runs of one block group: where they are, and which are long.
//!
//! [`Ranges`] is a set of byte ranges that merges neighbours. Each range is stored under its *end*: an allocation that
//! takes the front of a long run, which is what a sequential stream does all day, changes a value in place and moves
//! nothing. [`Runs`] adds an index by size: one ordered set of ends per order (the logarithm of the length in
//! sectors), so that "a run of at least this length, near this address" is a look into one or two small trees.
//!
//! Invariants: ranges never touch or overlap; `total` is their sum; a run is in exactly the set of its order; bit `o`
//! of `filled` says that the set of order `o` has something in it.
//!
//! Locks: none here; the group's lock covers its runs. Not here: which group to look into (`pick`), what counts as
//! reserved (`account`).

use std::collections::{BTreeMap, BTreeSet};

/// Orders that are told apart: the last one holds every run of at least 2²³ sectors (32 GiB of 4 KiB sectors), more
/// than a chunk has.
pub(crate) const ORDERS: usize = 24;

/// Runs looked at one by one before the index by size is asked. Near the goal is worth a few steps, not a walk.
const NEAR_STEPS_MAX: usize = 8;

/// Runs of the order just below the sure one that are tried for a lucky fit.
const MAYBE_STEPS_MAX: usize = 32;

/// The order of a run: the whole logarithm of its length in sectors.
pub(crate) fn order_of(len: u64, sector_shift: u32) -> usize {
    debug_assert!(len >> sector_shift > 0);
    ((len >> sector_shift).max(1).ilog2() as usize).min(ORDERS - 1)
}

/// The lowest order all of whose runs hold `len` bytes.
pub(crate) fn order_sure(len: u64, sector_shift: u32) -> usize {
    (len.div_ceil(1 << sector_shift).max(1).next_power_of_two().trailing_zeros() as usize).min(ORDERS - 1)
}

/// A set of byte ranges, neighbours merged, keyed by their ends.
#[derive(Default, Clone, Debug)]
pub(crate) struct Ranges {
    by_end: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    /// The bytes in the set.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn count(&self) -> usize {
        self.by_end.len()
    }

    /// All ranges as (start, end), rising.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_end.iter().map(|(&e, &s)| (s, e))
    }

    /// The first range that ends after `at`: the one that holds `at`, or the next one.
    pub(crate) fn at_or_after(&self, at: u64) -> Option<(u64, u64)> {
        self.by_end.range(at.saturating_add(1)..).next().map(|(&e, &s)| (s, e))
    }

    /// Whether any byte of `start..end` is in the set.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        self.at_or_after(start).is_some_and(|(s, _)| s < end)
    }

    /// Adds `start..end`; returns the neighbours it was merged with and the merged range, or `None`, and nothing is
    /// changed, where some of it is in the set.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> Option<Merge> {
        debug_assert!(start < end);
        let next = self.at_or_after(start);
        if next.is_some_and(|(s, _)| s < end) {
            return None;
        }
        let mut merge = Merge { before: None, after: next.filter(|&(s, _)| s == end), merged: (start, end) };
        if let Some(before) = self.by_end.remove(&start) {
            merge.before = Some((before, start));
            merge.merged.0 = before;
        }
        if let Some((_, e)) = merge.after {
            merge.merged.1 = e;
        }
        self.by_end.insert(merge.merged.1, merge.merged.0);
        self.total += end - start;
        Some(merge)
    }

    /// Adds whatever of `start..end` is not in the set yet; returns how many bytes that was.
    pub(crate) fn unite(&mut self, start: u64, end: u64) -> u64 {
        let mut added = 0;
        let mut at = start;
        while at < end {
            // Every turn passes one range of the set.
            let (s, e) = self.at_or_after(at).unwrap_or((end, end));
            let gap_end = s.min(end);
            if at < gap_end && self.insert(at, gap_end).is_some() {
                added += gap_end - at;
            }
            at = e.max(gap_end);
        }
        added
    }

    /// Takes `start..end` out, which lies whole in `range`, one of the set's.
    fn cut(&mut self, range: (u64, u64), start: u64, end: u64) {
        debug_assert!(range.0 <= start && start < end && end <= range.1);
        if end == range.1 {
            self.by_end.remove(&range.1);
        } else {
            // The end stays: only its value changes.
            self.by_end.insert(range.1, end);
        }
        if range.0 < start {
            self.by_end.insert(start, range.0);
        }
        self.total -= end - start;
    }

    /// Takes out whatever of `start..end` is in the set; returns how many bytes that was.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        while let Some((s, e)) = self.at_or_after(start)
            && s < end
        {
            self.cut((s, e), s.max(start), e.min(end));
            removed += e.min(end) - s.max(start);
        }
        removed
    }
}

/// What [`Ranges::insert`] did.
pub(crate) struct Merge {
    before: Option<(u64, u64)>,
    after: Option<(u64, u64)>,
    merged: (u64, u64),
}

/// How an allocation would like to lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    /// Bytes wanted.
    pub(crate) len: u64,
    /// Bytes that will do.
    pub(crate) min_len: u64,
    /// The start is a multiple of this power of two, and so is the length.
    pub(crate) align: u64,
}

impl Fit {
    /// The part of `start..end` that the allocation would get, from its front.
    fn within(&self, start: u64, end: u64, min_len: u64) -> Option<(u64, u64)> {
        let from = start.checked_add(self.align - 1)? & !(self.align - 1);
        let len = end.checked_sub(from)?.min(self.len) & !(self.align - 1);
        (len >= min_len && len > 0).then_some((from, from + len))
    }
}

/// The free runs of one group.
#[derive(Debug)]
pub(crate) struct Runs {
    ranges: Ranges,
    orders: Box<[BTreeSet<u64>; ORDERS]>,
    filled: u32,
    sector_shift: u32,
}

impl Runs {
    pub(crate) fn new(sector_shift: u32) -> Runs {
        Runs { ranges: Ranges::default(), orders: Box::default(), filled: 0, sector_shift }
    }

    pub(crate) fn from_ranges(ranges: Ranges, sector_shift: u32) -> Runs {
        let mut runs = Runs::new(sector_shift);
        for (s, e) in ranges.iter() {
            runs.file(s, e);
        }
        runs.ranges = ranges;
        runs
    }

    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// The order of the longest run, or `None` when nothing is free.
    pub(crate) fn top_order(&self) -> Option<usize> {
        (self.filled != 0).then(|| self.filled.ilog2() as usize)
    }

    fn file(&mut self, start: u64, end: u64) {
        let order = order_of(end - start, self.sector_shift);
        self.orders[order].insert(end);
        self.filled |= 1 << order;
    }

    fn unfile(&mut self, start: u64, end: u64) {
        let order = order_of(end - start, self.sector_shift);
        self.orders[order].remove(&end);
        if self.orders[order].is_empty() {
            self.filled &= !(1 << order);
        }
    }

    /// Puts `start..end` back; `false`, and nothing changed, where some of it is free.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> bool {
        let Some(merge) = self.ranges.insert(start, end) else { return false };
        let shift = self.sector_shift;
        if let Some((s, e)) = merge.before {
            self.unfile(s, e);
        }
        if let Some((s, e)) = merge.after {
            // The end stays, so the entry does too when the order does.
            if order_of(e - s, shift) == order_of(merge.merged.1 - merge.merged.0, shift) {
                return true;
            }
            self.unfile(s, e);
        }
        self.file(merge.merged.0, merge.merged.1);
        true
    }

    /// Takes `start..end`, which lies whole in one run; `false`, and nothing changed, where it does not.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> bool {
        let Some(run) = self.ranges.at_or_after(start) else { return false };
        if run.0 > start || run.1 < end {
            return false;
        }
        self.ranges.cut(run, start, end);
        let shift = self.sector_shift;
        let same = end < run.1 && order_of(run.1 - run.0, shift) == order_of(run.1 - end, shift);
        if !same {
            self.unfile(run.0, run.1);
            if end < run.1 {
                self.file(end, run.1);
            }
        }
        if run.0 < start {
            self.file(run.0, start);
        }
        true
    }

    /// Exactly at `at`: what is free there, up to the length wanted.
    pub(crate) fn find_at(&self, at: u64, fit: &Fit) -> Option<(u64, u64)> {
        let (start, end) = self.ranges.at_or_after(at)?;
        if start > at || at & (fit.align - 1) != 0 {
            return None;
        }
        fit.within(at, end, fit.min_len)
    }

    /// The full length: near `from` going up, else from the shortest order that surely holds it, going up from `from`
    /// and round.
    pub(crate) fn find_whole(&self, from: u64, fit: &Fit, thorough: bool) -> Option<(u64, u64)> {
        let near = self.ranges.by_end.range(from.saturating_add(1)..).take(NEAR_STEPS_MAX);
        if let Some(found) = near.filter_map(|(&e, &s)| fit.within(s.max(from), e, fit.len)).next() {
            return Some(found);
        }
        let sure = order_sure(fit.len + fit.align - (1 << self.sector_shift).min(fit.align), self.sector_shift);
        for order in bits(self.filled >> sure).map(|o| o + sure) {
            let set = &self.orders[order];
            let end = set.range(from.saturating_add(1)..).next().or_else(|| set.first());
            let found = end.and_then(|end| fit.within(*self.ranges.by_end.get(end)?, *end, fit.len));
            // The last order has no upper neighbour: its runs are long, not surely long enough.
            if found.is_some() {
                return found;
            }
        }
        let maybe = order_of(fit.len.max(1 << self.sector_shift), self.sector_shift);
        let steps_max = if thorough { usize::MAX } else { MAYBE_STEPS_MAX };
        for order in maybe..=sure {
            let set = &self.orders[order];
            let round = set.range(from.saturating_add(1)..).chain(set.range(..=from)).take(steps_max);
            let fits = |end: &u64| fit.within(*self.ranges.by_end.get(end)?, *end, fit.len);
            if let Some(found) = round.filter_map(fits).next() {
                return Some(found);
            }
        }
        None
    }

    /// Less than the full length: one of the longest runs.
    pub(crate) fn find_best(&self, fit: &Fit, thorough: bool) -> Option<(u64, u64)> {
        let steps_max = if thorough { usize::MAX } else { MAYBE_STEPS_MAX };
        for order in bits_down(self.filled) {
            let fits = |end: &u64| fit.within(*self.ranges.by_end.get(end)?, *end, fit.min_len);
            let found = self.orders[order].iter().take(steps_max).filter_map(fits);
            // Of equals the lowest address wins.
            let best = found.reduce(|best, next| if next.1 - next.0 > best.1 - best.0 { next } else { best });
            if best.is_some() {
                return best;
            }
        }
        None
    }

    /// Whether the index agrees with the ranges; for tests.
    #[cfg(test)]
    pub(crate) fn is_consistent(&self) -> bool {
        let filed: usize = self.orders.iter().map(BTreeSet::len).sum();
        let placed = self.ranges.iter().all(|(s, e)| self.orders[order_of(e - s, self.sector_shift)].contains(&e));
        let filled = (0..ORDERS).all(|o| self.orders[o].is_empty() == (self.filled & (1 << o) == 0));
        let total: u64 = self.ranges.iter().map(|(s, e)| e - s).sum();
        filed == self.ranges.count() && placed && filled && total == self.ranges.total()
    }
}

/// The numbers of the set bits, rising.
fn bits(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

/// The numbers of the set bits, falling.
fn bits_down(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.ilog2() as usize)?;
        word &= !(1 << bit);
        Some(bit)
    })
}

#[cfg(test)]
mod tests;
