//! Searches among a group's free runs: what part of which run an allocation would get.

use super::leaf;
use super::{CLASSES_PER_DOUBLE, Fit, Found, Place, RunsIn, Sector, class_of, class_sure};

/// Runs looked at one by one before the index by size is asked. Near the goal is worth a few steps, not a walk.
const NEAR_STEPS_MAX: usize = 8;

/// Runs of a class that are tried: for a lucky fit where none is sure, or for a tighter one.
const CLASS_STEPS_MAX: usize = 64;

/// Classes in which a run counts as about as long as what is wanted, which is less than four times as long.
pub(crate) const NEAR_CLASSES: usize = 2 * CLASSES_PER_DOUBLE;

impl<S: Sector> RunsIn<S> {
    /// The part of the run at a place that the allocation would get, if it begins at `from` or later.
    fn part(&self, place: Place, from: u64, fit: &Fit, min_len: u64) -> Option<Found> {
        let (run_start, run_end) = self.bytes(self.run(place));
        let (start, end) = fit.within(run_start.max(from), run_end, min_len)?;
        Some(Found { place, start, end, run_len: run_end - run_start })
    }

    /// Exactly at `at`: what is free there, up to the length wanted.
    pub(crate) fn find_at(&self, at: u64, fit: &Fit) -> Option<Found> {
        let sector = self.sector(at);
        let place = self.seek(sector)?;
        self.part(place, at, fit, fit.min_len).filter(|found| found.start == at && self.run(place).0 <= sector)
    }

    /// The next run of a class at or behind a place.
    fn next_of(&self, class: usize, place: Place) -> Option<Place> {
        let (mut leaf, mut slot) = place;
        let bit = 1 << class;
        loop {
            leaf += self.masks.get(leaf..)?.iter().position(|mask| mask & bit != 0)?;
            if leaf != place.0 {
                slot = 0;
            }
            let runs = &self.leaves[leaf];
            let found = (slot..runs.len()).find(|&slot| leaf::class(runs.run(slot)) == class);
            if let Some(slot) = found {
                return Some((leaf, slot));
            }
            leaf += 1;
        }
    }

    /// All runs of a class, going up from a place and round.
    pub(super) fn of_class(&self, class: usize, from: Option<Place>) -> impl Iterator<Item = Place> + '_ {
        let first = from.unwrap_or((self.leaves.len(), 0));
        let (mut next, mut round) = (Some(first), false);
        std::iter::from_fn(move || {
            let mut found = next.and_then(|place| self.next_of(class, place));
            if found.is_none() && !round {
                round = true;
                found = self.next_of(class, (0, 0));
            }
            let place = found.filter(|&place| !round || place < first);
            next = place.and_then(|place| self.step(place));
            round |= place.is_none();
            place
        })
    }

    /// The full length: near `from` going up, else from the shortest class that surely holds it, going up from `from`
    /// and round.
    pub(crate) fn find_whole(&self, from: u64, fit: &Fit, thorough: bool) -> Option<Found> {
        let first = self.seek(self.sector(from));
        let near = std::iter::successors(first, |&place| self.step(place)).take(NEAR_STEPS_MAX);
        let near = near.filter_map(|place| self.part(place, from, fit, fit.len)).next();
        near.or_else(|| self.find_shortest(first, fit, thorough))
    }

    /// The full length at a place where one can go on, for a stream that finds its place taken: at `at` or as soon behind as can be, in a run that
    /// goes on for `rest_len` bytes; else in the middle of one of the longest runs, if its halves are an eighth of that. (From
    /// its front on another may just be going, or come next.)
    pub(crate) fn find_apart(&self, at: u64, rest_len: u64, fit: &Fit) -> Option<Found> {
        let top = self.top_class()?;
        let rest = |found: &Found| self.bytes(self.run(found.place)).1 - found.end;
        if top >= class_sure(rest_len, self.sector_shift) {
            let next = self.seek(self.sector(at)).and_then(|place| self.part(place, at, fit, fit.len));
            if let Some(next) = next.filter(|found| rest(found) >= rest_len) {
                return Some(next);
            }
        }
        if top < class_sure(rest_len / 4, self.sector_shift) {
            return None;
        }
        let place = self.next_of(top, (0, 0))?;
        let (start, end) = self.bytes(self.run(place));
        let half = ((end - start) / 2) >> self.sector_shift << self.sector_shift;
        let middle = start + half;
        self.part(place, middle, fit, fit.len)
    }

    /// The full length, from the shortest run that holds it; of equals the lowest.
    pub(crate) fn find_tight(&self, fit: &Fit) -> Option<Found> {
        let own = class_of(fit.least().max(1 << self.sector_shift), self.sector_shift);
        for class in bits(self.filled >> own << own) {
            // Where runs are far longer it does not matter which of them is cut.
            let steps = if class < own + NEAR_CLASSES { CLASS_STEPS_MAX } else { 1 };
            let mut best: Option<Found> = None;
            for place in self.of_class(class, Some((0, 0))).take(steps) {
                let Some(found) = self.part(place, 0, fit, fit.len) else { continue };
                if best.is_none_or(|best| found.run_len < best.run_len) {
                    best = Some(found);
                }
                if found.run_len == fit.len {
                    break;
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    fn find_shortest(&self, first: Option<Place>, fit: &Fit, thorough: bool) -> Option<Found> {
        let sure = class_sure(fit.len + fit.align - (1 << self.sector_shift).min(fit.align), self.sector_shift);
        let part = |place| self.part(place, 0, fit, fit.len);
        for class in bits(self.filled >> sure << sure) {
            // The last class has no upper neighbour: its runs are long, not surely long enough.
            let next = first.and_then(|first| self.next_of(class, first)).or_else(|| self.next_of(class, (0, 0)));
            let found = next.and_then(part);
            if found.is_some() {
                return found;
            }
        }
        let maybe = class_of(fit.len.max(1 << self.sector_shift), self.sector_shift);
        let steps_max = if thorough { usize::MAX } else { CLASS_STEPS_MAX };
        (maybe..=sure)
            .filter(|class| self.filled & 1 << class != 0)
            .find_map(|class| self.of_class(class, first).take(steps_max).find_map(part))
    }

    /// Less than the full length: one of the longest runs.
    pub(crate) fn find_best(&self, fit: &Fit, thorough: bool) -> Option<Found> {
        let steps_max = if thorough { usize::MAX } else { CLASS_STEPS_MAX };
        for class in bits_down(self.filled) {
            let found = self.of_class(class, Some((0, 0))).take(steps_max);
            let found = found.filter_map(|place| self.part(place, 0, fit, fit.min_len));
            // Of equals the lowest address wins.
            let best = found.reduce(|best, next| if next.len() > best.len() { next } else { best });
            if best.is_some() {
                return best;
            }
        }
        None
    }
}

/// The numbers of the set bits, rising.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

/// The numbers of the set bits, falling.
pub(crate) fn bits_down(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.ilog2() as usize)?;
        word &= !(1 << bit);
        Some(bit)
    })
}
