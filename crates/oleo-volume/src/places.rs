//! The parts of one device that chunks occupy: runs of bytes, neighbours merged.
//!
//! A volume that was filled from the front has one run, however many chunks it has, so the cost of finding a place for
//! a new one depends on the number of holes, not of chunks.
//!
//! Invariants: runs do not touch. Stripes that overlap (possible only in an image opened for reading) count once.

use std::collections::BTreeMap;

use crate::geometry::STRIPE_LEN;

/// The parts of a device that chunks have.
#[derive(Default)]
pub(crate) struct Places {
    /// End by start.
    runs: BTreeMap<u64, u64>,
}

impl Places {
    /// Bytes from `start` to `end` have an owner from now on.
    pub fn take(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        // Each run found is merged, so all calls together remove at most as many runs as they have added.
        while let Some((&from, &to)) = self.runs.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.runs.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
    }

    /// Bytes from `start` to `end` have none any more.
    pub fn give_back(&mut self, start: u64, end: u64) {
        while let Some((&from, &to)) = self.runs.range(..end).next_back().filter(|(_, to)| **to > start) {
            self.runs.remove(&from);
            if from < start {
                self.runs.insert(from, start);
            }
            if to > end {
                self.runs.insert(end, to);
            }
        }
    }

    /// The end of the last run.
    pub fn end(&self) -> Option<u64> {
        self.runs.values().next_back().copied()
    }

    /// Free runs of a device of `total` bytes from `head` on, start and length, in whole stripe units.
    pub fn holes(&self, head: u64, total: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut next = head;
        self.runs.iter().map(|(&start, &end)| (start, end)).chain([(total, total)]).filter_map(move |(start, end)| {
            let from = next;
            let len = start.min(total).saturating_sub(from) / STRIPE_LEN * STRIPE_LEN;
            next = next.max(end.checked_next_multiple_of(STRIPE_LEN).unwrap_or(u64::MAX));
            (len > 0).then_some((from, len))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn holes(used: &[(u64, u64)], total: u64) -> Vec<(u64, u64)> {
        let mut places = Places::default();
        used.iter().for_each(|&(start, end)| places.take(start, end));
        places.holes(MIB, total).collect()
    }

    /// Goal: holes and used runs add up to the device, apart from its head.
    #[test]
    fn holes_are_what_is_left() {
        assert_eq!(holes(&[], 10 * MIB), [(MIB, 9 * MIB)]);
        assert_eq!(holes(&[(MIB, 3 * MIB), (4 * MIB, 10 * MIB)], 10 * MIB), [(3 * MIB, MIB)]);
        assert_eq!(holes(&[(2 * MIB, 30 * MIB)], 10 * MIB), [(MIB, MIB)]);
        assert_eq!(holes(&[(0, u64::MAX)], 10 * MIB), []);
        assert_eq!(holes(&[], 5), []);
    }

    /// Goal: whatever is taken and released in whatever order, the runs are the merged set of what is taken. Method: a
    /// vector of units as the model, ranges that overlap and touch, every state compared.
    #[test]
    fn places_are_a_set() {
        const UNITS: usize = 40;
        let mut places = Places::default();
        let mut model = [false; UNITS];
        let mut state = 12_345_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for step in 0..4000 {
            let from = random(UNITS);
            let to = from + 1 + random((UNITS - from).min(8));
            let taken = random(2) == 0;
            let (start, end) = (from as u64 * STRIPE_LEN, to as u64 * STRIPE_LEN);
            if taken {
                places.take(start, end)
            } else {
                places.give_back(start, end)
            }
            model[from..to].fill(taken);
            let unit = |n: usize| n as u64 * STRIPE_LEN;
            let mut want = Vec::new();
            for n in (0..UNITS).filter(|&n| !model[n]) {
                match want.last_mut() {
                    Some((start, len)) if *start + *len == unit(n) => *len += STRIPE_LEN,
                    _ => want.push((unit(n), STRIPE_LEN)),
                }
            }
            assert_eq!(places.holes(0, unit(UNITS)).collect::<Vec<_>>(), want, "step {step}");
            let last = model.iter().rposition(|&taken| taken).map(|n| unit(n + 1));
            assert_eq!(places.end(), last, "step {step}");
        }
    }
}
