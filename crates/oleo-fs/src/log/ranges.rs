//! Ranges of numbers: parts of a file, indices of a directory.

use std::collections::BTreeMap;

/// Ranges from a number up to below another, without overlap; those that touch are one.
#[derive(Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `from..to`.
    pub(super) fn add(&mut self, mut from: u64, mut to: u64) {
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

    /// The parts of `start..end` that are in here.
    pub(super) fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.0.range(..=start).next_back().map_or(start, |(from, _)| *from);
        let touching = self.0.range(first..end.max(first)).map(|(from, to)| ((*from).max(start), (*to).min(end)));
        touching.filter(|(from, to)| from < to).collect()
    }

    /// A copy of all of them, rising.
    pub(super) fn list(&self) -> Vec<(u64, u64)> {
        self.iter().collect()
    }

    /// All of them, rising.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
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
    }
}
