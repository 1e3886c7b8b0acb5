//! Ranges of numbers: parts of a file, indices of a directory.

use std::collections::BTreeMap;

/// Ranges from a number up to below another, without overlap; those that touch are one.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `from..to`.
    pub(crate) fn add(&mut self, mut from: u64, mut to: u64) {
        while let Some((&start, &end)) = self.0.range(..=to).next_back() {
            if end < from {
                break;
            }
            self.0.remove(&start);
            from = from.min(start);
            to = to.max(end);
        }
        self.0.insert(from, to);
    }

    /// Takes one number out; the range it was in becomes two.
    pub(crate) fn remove(&mut self, at: u64) {
        let Some((from, to)) = self.around(at) else { return };
        self.0.remove(&from);
        if from < at {
            self.0.insert(from, at);
        }
        if at + 1 < to {
            self.0.insert(at + 1, to);
        }
    }

    /// The range that has a number.
    fn around(&self, at: u64) -> Option<(u64, u64)> {
        self.first_at_or_below(at).filter(|(_, to)| at < *to)
    }

    /// The range that has a number, or else the next above it.
    pub(crate) fn first_at_or_above(&self, at: u64) -> Option<(u64, u64)> {
        self.around(at).or_else(|| self.0.range(at..).next().map(|(from, to)| (*from, *to)))
    }

    /// The range that has a number, or else the next below it.
    pub(crate) fn first_at_or_below(&self, at: u64) -> Option<(u64, u64)> {
        self.0.range(..=at).next_back().map(|(from, to)| (*from, *to))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The parts of `start..end` that are in here.
    pub(crate) fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.0.range(..=start).next_back().map_or(start, |(from, _)| *from);
        let touching = self.0.range(first..end.max(first)).map(|(from, to)| ((*from).max(start), (*to).min(end)));
        touching.filter(|(from, to)| from < to).collect()
    }

    /// A copy of all of them, rising.
    pub(crate) fn list(&self) -> Vec<(u64, u64)> {
        self.iter().collect()
    }

    /// All of them, rising.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(from, to)| (*from, *to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_is_one() {
        let mut ranges = Ranges::default();
        for (from, to) in [(10, 20), (30, 40), (50, 60), (20, 25), (28, 30), (5, 6)] {
            ranges.add(from, to);
        }
        assert_eq!(ranges.list(), [(5, 6), (10, 25), (28, 40), (50, 60)]);
        ranges.add(24, 55);
        assert_eq!(ranges.list(), [(5, 6), (10, 60)]);
        assert_eq!(ranges.within(0, 12), [(5, 6), (10, 12)]);
        assert_eq!(ranges.within(20, 30), [(20, 30)]);
        assert_eq!(ranges.within(6, 10), []);
        assert_eq!([5, 6, 59].map(|at| ranges.first_at_or_above(at)), [Some((5, 6)), Some((10, 60)), Some((10, 60))]);
        assert_eq!([60, u64::MAX].map(|at| ranges.first_at_or_above(at)), [None, None]);
        assert_eq!(
            [4, 5, 9, 10].map(|at| ranges.first_at_or_below(at)),
            [None, Some((5, 6)), Some((5, 6)), Some((10, 60))]
        );
    }

    /// Goal: taking a number out leaves all others. Method: at both edges, inside, outside, and from a range of one.
    #[test]
    fn numbers_are_taken_out() {
        let mut ranges = Ranges::default();
        ranges.add(10, 20);
        ranges.add(30, 31);
        for at in [10, 19, 15, 20, 30, 5] {
            ranges.remove(at);
        }
        assert_eq!(ranges.list(), [(11, 15), (16, 19)]);
        assert_eq!(ranges.len(), 2);
    }
}
