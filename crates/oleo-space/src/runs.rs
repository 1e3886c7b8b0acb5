//! The free runs of one block group: where they are, and which are long.
//!
//! Runs are kept in rising order in leaves of up to [`LEAF_RUNS`], as pairs of sector numbers counted from the group's
//! start: eight bytes a run, sixteen in a group that large (`width`), and a look-up touches the directory of leaves and one
//! leaf. By length they are found through *classes* (four between a power of two sectors and the next): the directory has for each leaf a mask of
//! the classes that occur in it, each leaf counts how many runs of each class it has. "The next run of this class, going up from here" is a scan
//! over masks, eight bytes a leaf, that a processor does many at a time.
//!
//! 1. [`Runs::take`] finds the leaf and the run, and shortens, splits or removes it; [`Runs::insert`] lengthens the neighbour
//!    that it finds there, joins two, or adds one.
//! 2. A leaf that overflows is cut in two; one that runs low is joined to a neighbour that has room.
//!
//! Invariants: runs never touch or overlap; no leaf is empty; `last[i]` is the end of leaf `i`'s last run; `masks[i]` has the
//! bit of exactly the classes that leaf `i` counts; `counts`, `count` and `total` are the sums.
//!
//! Bounds: a sector number is less than [`Sector::MAX`]. Taking and putting back cost a directory shift (16 bytes a leaf) once
//! in some thirty times at worst.
//!
//! Locks: none here; the group's lock covers its runs. Not here: which group to look into (`pick`), what counts as
//! reserved (`account`).

pub(crate) mod find;
mod leaf;
mod width;

use leaf::{LEAF_RUNS, Leaf, class};
pub(crate) use width::{Runs, Sector};

/// Classes of lengths that are distinguished: each length below eight sectors is one, then four between a power of two and
/// the next; the last one holds every run of at least 2¹⁷ sectors (512 MiB of 4 KiB sectors).
pub(crate) const CLASSES: usize = 64;

/// Classes in which lengths double.
pub(crate) const CLASSES_PER_DOUBLE: usize = 4;

/// A leaf with this few runs is joined to a neighbour, if both together are not more than [`JOIN_RUNS_MAX`].
const LOW_RUNS: usize = LEAF_RUNS / 4;

/// So that a leaf just joined is not cut by the next few runs.
const JOIN_RUNS_MAX: usize = LEAF_RUNS * 3 / 4;

/// The class of a length in sectors, one at least.
fn class_of_sectors(sectors: u64) -> usize {
    if sectors < 4 {
        return (sectors.max(1) - 1) as usize;
    }
    let shift = sectors.ilog2() as usize - 2;
    (3 + shift * CLASSES_PER_DOUBLE + (sectors >> shift & 3) as usize).min(CLASSES - 1)
}

/// The class of a run of `len` bytes.
pub(crate) fn class_of(len: u64, sector_shift: u32) -> usize {
    debug_assert!(len >> sector_shift > 0);
    class_of_sectors(len >> sector_shift)
}

/// The lowest class all of whose runs hold `len` bytes. (The last one is open-ended, so nothing is sure there.)
pub(crate) fn class_sure(len: u64, sector_shift: u32) -> usize {
    let sectors = len.div_ceil(1 << sector_shift).max(1);
    let unit = 1 << sectors.ilog2().saturating_sub(2);
    class_of_sectors(sectors.checked_next_multiple_of(unit).unwrap_or(u64::MAX))
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
    /// It begins where a row does that is free as a whole.
    pub(crate) rows: Option<(Rows, Wish)>,
}

/// The rows of a group with parity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Where the first begins.
    pub(crate) base: u64,
    /// Bytes of each.
    pub(crate) len: u64,
}

impl Rows {
    /// Where the next row begins, at or behind an address of the group; `None` if there is none.
    pub(crate) fn border(self, at: u64) -> Option<u64> {
        self.base.checked_add(at.saturating_sub(self.base).checked_next_multiple_of(self.len)?)
    }
}

/// How much something is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// If it can be had.
    May,
    /// Nothing else will do.
    Must,
}

impl Fit {
    /// The least that a run must have, bytes.
    fn least(&self) -> u64 {
        match self.rows {
            Some((rows, Wish::Must)) => rows.len,
            _ => self.len,
        }
    }

    /// The part of `start..end` that the allocation would get.
    fn within(&self, start: u64, end: u64, min_len: u64) -> Option<(u64, u64)> {
        let Some((rows, wish)) = self.rows else { return self.front(start, end, min_len) };
        let border = rows.border(start).filter(|border| border.checked_add(rows.len).is_some_and(|next| next <= end));
        let fresh = border.and_then(|border| self.front(border, end, min_len));
        match wish {
            Wish::Must => fresh,
            Wish::May => fresh.or_else(|| self.front(start, end, min_len)),
        }
    }

    /// From the front.
    fn front(&self, start: u64, end: u64, min_len: u64) -> Option<(u64, u64)> {
        let from = start.checked_add(self.align - 1)? & !(self.align - 1);
        let len = end.checked_sub(from)?.min(self.len) & !(self.align - 1);
        (len >= min_len && len > 0).then_some((from, from + len))
    }
}

/// Where a run is: leaf and slot.
type Place = (usize, usize);

/// What a search has found: a part of a run, which can be [taken](Runs::take_found) while nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    place: Place,
    /// Bytes.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Bytes of the run.
    pub(crate) run_len: u64,
}

impl Found {
    fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// The free runs of one group, in sector numbers of one width.
#[derive(Debug)]
pub(crate) struct RunsIn<S> {
    /// What sector 0 is, bytes.
    base: u64,
    sector_shift: u32,
    last: Vec<S>,
    masks: Vec<u64>,
    #[allow(clippy::vec_box, reason = "a leaf is half a kilobyte: the directory shifts pointers")]
    leaves: Vec<Box<Leaf<S>>>,
    /// Runs of each class.
    counts: [u32; CLASSES],
    /// The classes that have any, a bit for each.
    filled: u64,
    count: u32,
    /// Free bytes.
    total: u64,
}

impl<S: Sector> RunsIn<S> {
    /// No runs, of a group that starts at `start`.
    pub(crate) fn new(start: u64, sector_shift: u32) -> RunsIn<S> {
        RunsIn {
            base: start >> sector_shift << sector_shift,
            sector_shift,
            last: Vec::new(),
            masks: Vec::new(),
            leaves: Vec::new(),
            counts: [0; CLASSES],
            filled: 0,
            count: 0,
            total: 0,
        }
    }

    /// The free bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The number of runs.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes of memory, about.
    pub(crate) fn memory(&self) -> usize {
        let per_leaf = size_of::<Leaf<S>>() + size_of::<Box<Leaf<S>>>() + size_of::<S>() + size_of::<u64>();
        self.leaves.len() * per_leaf + size_of::<Self>()
    }

    /// The classes that occur, a bit for each.
    pub(crate) fn filled(&self) -> u64 {
        self.filled
    }

    /// The class of the longest run, or `None` when nothing is free.
    pub(crate) fn top_class(&self) -> Option<usize> {
        (self.filled != 0).then(|| self.filled.ilog2() as usize)
    }

    fn bytes(&self, (start, end): (S, S)) -> (u64, u64) {
        (self.base + (start.into() << self.sector_shift), self.base + (end.into() << self.sector_shift))
    }

    /// The sector that `at` is in, or the last there can be.
    fn sector(&self, at: u64) -> S {
        S::clamped(at.saturating_sub(self.base) >> self.sector_shift)
    }

    /// The first run that ends after sector `at`.
    fn seek(&self, at: S) -> Option<Place> {
        let leaf = self.last.partition_point(|&end| end <= at);
        Some((leaf, self.leaves.get(leaf)?.seek(at)))
    }

    fn run(&self, (leaf, slot): Place) -> (S, S) {
        self.leaves[leaf].run(slot)
    }

    fn step(&self, (leaf, slot): Place) -> Option<Place> {
        if slot + 1 < self.leaves[leaf].len() {
            return Some((leaf, slot + 1));
        }
        (leaf + 1 < self.leaves.len()).then_some((leaf + 1, 0))
    }

    /// The run before a place, or the last one.
    fn before(&self, place: Option<Place>) -> Option<Place> {
        match place {
            Some((leaf, slot)) if slot > 0 => Some((leaf, slot - 1)),
            place => {
                let leaf = place.map_or(self.leaves.len(), |(leaf, _)| leaf).checked_sub(1)?;
                Some((leaf, self.leaves[leaf].len() - 1))
            }
        }
    }

    /// All runs as (start, end), rising.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.leaves.iter().flat_map(|leaf| (0..leaf.len()).map(|slot| self.bytes(leaf.run(slot))))
    }

    /// The first run that ends after `at`: the one that holds `at`, or the next one.
    pub(crate) fn at_or_after(&self, at: u64) -> Option<(u64, u64)> {
        Some(self.bytes(self.run(self.seek(self.sector(at))?)))
    }

    fn add_class(&mut self, leaf: usize, class: usize) {
        let counts = &mut self.leaves[leaf].counts;
        counts[class] += 1;
        self.masks[leaf] |= 1 << class;
        self.counts[class] += 1;
        self.filled |= 1 << class;
    }

    fn drop_class(&mut self, leaf: usize, class: usize) {
        let counts = &mut self.leaves[leaf].counts;
        counts[class] -= 1;
        if counts[class] == 0 {
            self.masks[leaf] &= !(1 << class);
        }
        self.counts[class] -= 1;
        if self.counts[class] == 0 {
            self.filled &= !(1 << class);
        }
    }

    /// A run becomes another that lies between the same neighbours.
    fn change(&mut self, (leaf, slot): Place, start: S, end: S) {
        let (old, new) = (class(self.run((leaf, slot))), class((start, end)));
        if old != new {
            self.drop_class(leaf, old);
            self.add_class(leaf, new);
        }
        let runs = &mut self.leaves[leaf];
        runs.starts[slot] = start;
        runs.ends[slot] = end;
        if slot + 1 == runs.len() {
            self.last[leaf] = end;
        }
    }

    /// A new run before the one at `place`, or behind all.
    fn add(&mut self, place: Option<Place>, start: S, end: S) {
        let (mut leaf, mut slot) = match place {
            Some(place) => place,
            None => self.leaves.len().checked_sub(1).map_or((0, 0), |leaf| (leaf, self.leaves[leaf].len())),
        };
        if self.leaves.is_empty() {
            self.add_leaf(0, Leaf::new());
        } else if self.leaves[leaf].len() == LEAF_RUNS {
            // Behind all, as when a group is loaded: leaves stay full.
            let keep = if place.is_none() { LEAF_RUNS } else { LEAF_RUNS / 2 };
            let mut upper = Leaf::new();
            self.leaves[leaf].move_to(keep, &mut upper);
            self.refresh(leaf);
            self.add_leaf(leaf + 1, upper);
            if slot > keep || keep == LEAF_RUNS {
                (leaf, slot) = (leaf + 1, slot - keep);
            }
        }
        self.leaves[leaf].insert(slot, start, end);
        self.last[leaf] = self.leaves[leaf].last_end();
        self.add_class(leaf, class((start, end)));
        self.count += 1;
    }

    fn delete(&mut self, (leaf, slot): Place) {
        self.drop_class(leaf, class(self.run((leaf, slot))));
        self.count -= 1;
        self.leaves[leaf].remove(slot);
        let len = self.leaves[leaf].len();
        if len == 0 {
            self.drop_leaf(leaf);
            return;
        }
        self.last[leaf] = self.leaves[leaf].last_end();
        if len <= LOW_RUNS {
            let with = |other: usize| self.leaves.get(other).is_some_and(|o| o.len() + len <= JOIN_RUNS_MAX);
            if with(leaf + 1) {
                self.join(leaf);
            } else if leaf > 0 && with(leaf - 1) {
                self.join(leaf - 1);
            }
        }
    }

    /// Joins the leaf behind `leaf` to it.
    fn join(&mut self, leaf: usize) {
        let mut upper = self.drop_leaf(leaf + 1);
        upper.move_to(0, &mut self.leaves[leaf]);
        self.refresh(leaf);
    }

    fn add_leaf(&mut self, at: usize, leaf: Box<Leaf<S>>) {
        self.last.insert(at, leaf.len().checked_sub(1).map_or(S::MAX, |slot| leaf.ends[slot]));
        self.masks.insert(at, leaf.mask());
        self.leaves.insert(at, leaf);
    }

    fn drop_leaf(&mut self, at: usize) -> Box<Leaf<S>> {
        self.last.remove(at);
        self.masks.remove(at);
        self.leaves.remove(at)
    }

    fn refresh(&mut self, leaf: usize) {
        self.last[leaf] = self.leaves[leaf].last_end();
        self.masks[leaf] = self.leaves[leaf].mask();
    }

    /// Puts `start..end` back; returns `false`, and changes nothing, if some of it is free.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> bool {
        debug_assert!(start < end && start >= self.base);
        let bytes = end - start;
        let (start, end) = (self.sector(start), self.sector(end));
        let next = self.seek(start);
        let after = next.map(|place| self.run(place));
        if after.is_some_and(|(s, _)| s < end) {
            return false;
        }
        let before = self.before(next).filter(|&place| self.run(place).1 == start);
        match (before, after.filter(|&(s, _)| s == end), next) {
            (Some(before), Some((_, e)), Some(next)) => {
                let s = self.run(before).0;
                self.change(next, s, e);
                self.delete(before);
            }
            (Some(before), ..) => self.change(before, self.run(before).0, end),
            (None, Some((_, e)), Some(next)) => self.change(next, start, e),
            _ => self.add(next, start, end),
        }
        self.total += bytes;
        true
    }

    /// Takes `start..end`, which lies whole in one run; returns `false`, and changes nothing, if it does not.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> bool {
        if start < self.base || start >= end {
            return false;
        }
        let Some(place) = self.seek(self.sector(start)) else { return false };
        let (s, e) = self.bytes(self.run(place));
        let whole = s <= start && end <= e;
        if whole {
            self.take_found(Found { place, start, end, run_len: e - s });
        }
        whole
    }

    /// Takes what was just found.
    pub(crate) fn take_found(&mut self, found: Found) {
        let Found { place, start, end, .. } = found;
        debug_assert!(start < end, "{found:?} is empty");
        self.total -= end - start;
        let (start, end) = (self.sector(start), self.sector(end));
        let (s, e) = self.run(place);
        debug_assert!(s <= start && end <= e, "{found:?} was found in another state");
        match (s < start, end < e) {
            (false, false) => self.delete(place),
            (false, true) => self.change(place, end, e),
            (true, false) => self.change(place, s, start),
            (true, true) => {
                self.change(place, end, e);
                self.add(Some(place), s, start);
            }
        }
    }

    /// Adds whatever of `start..end` is not free yet; returns how many bytes that was.
    pub(crate) fn unite(&mut self, start: u64, end: u64) -> u64 {
        let mut added = 0;
        let mut at = start;
        while at < end {
            // Every turn passes one run.
            let (s, e) = self.at_or_after(at).unwrap_or((end, end));
            let gap_end = s.min(end);
            if at < gap_end && self.insert(at, gap_end) {
                added += gap_end - at;
            }
            at = e.max(gap_end);
        }
        added
    }

    /// Takes out whatever of `start..end` is free.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        while let Some((s, e)) = self.at_or_after(start)
            && s < end
            && self.take(s.max(start), e.min(end))
        {}
    }

    /// Whether all that is said twice agrees; for tests.
    #[cfg(test)]
    pub(crate) fn is_consistent(&self) -> bool {
        let mut counts = [0; CLASSES];
        let mut total = 0;
        for (i, leaf) in self.leaves.iter().enumerate() {
            let mut own = [0; CLASSES];
            for run in (0..leaf.len()).map(|slot| leaf.run(slot)) {
                own[class(run)] += 1;
                counts[class(run)] += 1;
                total += (run.1 - run.0).into() << self.sector_shift;
            }
            let dir = (self.last[i], self.masks[i]) == (leaf.last_end(), leaf.mask());
            let blank = leaf.ends[leaf.len()..].iter().all(|&end| end == S::MAX);
            if leaf.len() == 0 || own != leaf.counts || !dir || !blank {
                return false;
            }
        }
        let runs: Vec<_> = self.iter().collect();
        let apart = runs.windows(2).all(|w| w[0].1 < w[1].0) && runs.iter().all(|(s, e)| s < e);
        let filled = (0..CLASSES).all(|c| (counts[c] == 0) == (self.filled & (1 << c) == 0));
        let sums = counts == self.counts && total == self.total && runs.len() == self.count();
        apart && filled && sums && self.last.len() == self.leaves.len() && self.masks.len() == self.leaves.len()
    }
}

#[cfg(test)]
mod tests;
