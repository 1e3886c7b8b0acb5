//! A set of byte ranges that merges neighbours, for sets that are small or short-lived: what is pinned, what is held, what
//! was freed in a group whose free space nobody has read. (The free runs themselves are [`Runs`](crate::runs::Runs).)
//!
//! Each range is stored under its *end*, so that taking the front of one changes a value in place.
//!
//! Invariants: ranges never touch or overlap; `total` is their sum.

use std::collections::BTreeMap;

/// A set of byte ranges, neighbours merged, keyed by their ends.
#[derive(Default, Clone, Debug)]
pub(crate) struct Ranges {
    by_end: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    /// Nothing.
    pub(crate) const EMPTY: Ranges = Ranges { by_end: BTreeMap::new(), total: 0 };

    /// The bytes in the set.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// How many ranges there are.
    pub(crate) fn count(&self) -> usize {
        self.by_end.len()
    }

    /// Bytes that it takes, about: nodes of the tree are filled by two thirds.
    pub(crate) fn memory(&self) -> usize {
        self.by_end.len() * size_of::<(u64, u64)>() * 3 / 2
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

    /// Adds `start..end`; returns `false`, and changes nothing, if some of it is in the set.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> bool {
        debug_assert!(start < end);
        let next = self.at_or_after(start);
        if next.is_some_and(|(s, _)| s < end) {
            return false;
        }
        let from = self.by_end.remove(&start).unwrap_or(start);
        let to = next.filter(|&(s, _)| s == end).map_or(end, |(_, e)| e);
        self.by_end.insert(to, from);
        self.total += end - start;
        true
    }

    /// Adds whatever of `start..end` is not in the set yet; returns how many bytes that was.
    pub(crate) fn unite(&mut self, start: u64, end: u64) -> u64 {
        let mut added = 0;
        let mut at = start;
        while at < end {
            // Every turn passes one range of the set.
            let (s, e) = self.at_or_after(at).unwrap_or((end, end));
            let gap_end = s.min(end);
            if at < gap_end && self.insert(at, gap_end) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::Rng;

    /// Goal: ranges unite and remove like sets. Method: random unions and removals beside a set of sectors.
    #[test]
    fn ranges_unite_and_remove_like_sets() {
        let mut rng = Rng::new(7);
        let mut ranges = Ranges::default();
        let mut model = BTreeSet::new();
        for _ in 0..5000 {
            let start = rng.below(200);
            let end = start + 1 + rng.below(20);
            if rng.below(2) == 0 {
                let added = (start..end).filter(|&at| model.insert(at)).count();
                assert_eq!(ranges.unite(start, end), added as u64);
            } else {
                let removed = (start..end).filter(|at| model.remove(at)).count();
                assert_eq!(ranges.remove(start, end), removed as u64);
            }
            assert_eq!(ranges.total(), model.len() as u64);
            let flat: BTreeSet<u64> = ranges.iter().flat_map(|(s, e)| s..e).collect();
            assert_eq!(flat, model);
            assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0), "neighbours not merged");
        }
    }
}
