//! The free runs of one block group: where they are, and which are long.
//!
//! Runs are kept in rising order in leaves of up to [`LEAF_RUNS`], as pairs of sector numbers counted from the group's
//! start: eight bytes a run, sixteen in a group that large (`width`), and a look-up touches the directory of leaves and one
//! leaf. By length they are found through *orders* (the whole logarithm of the length in sectors): the directory has for each leaf a mask of the orders that occur
//! in it, each leaf counts how many runs of each order it has. "The next run of this order, going up from here" is a scan
//! over masks, four bytes a leaf, that a processor does many at a time.
//!
//! 1. [`Runs::take`] finds the leaf and the run, and shortens, splits or removes it; [`Runs::insert`] lengthens the neighbour
//!    that it finds there, joins two, or adds one.
//! 2. A leaf that overflows is cut in two; one that runs low is joined to a neighbour that has room.
//!
//! Invariants: runs never touch or overlap; no leaf is empty; `last[i]` is the end of leaf `i`'s last run; `masks[i]` has the
//! bit of exactly the orders that leaf `i` counts; `counts`, `count` and `total` are the sums.
//!
//! Bounds: a sector number is less than [`Sector::MAX`]. Taking and putting back cost a directory shift (16 bytes a leaf) once
//! in some thirty times at worst.
//!
//! Locks: none here; the group's lock covers its runs. Not here: which group to look into (`pick`), what counts as
//! reserved (`account`).

mod width;

pub(crate) use width::{Runs, Sector};

/// Orders that are distinguished: the last one holds every run of at least 2²³ sectors (32 GiB of 4 KiB sectors), more
/// than a chunk has.
pub(crate) const ORDERS: usize = 24;

/// Runs in a leaf: 512 bytes of them, eight cache lines. Half and double cost the same within the noise.
const LEAF_RUNS: usize = 64;

/// A leaf with this few runs is joined to a neighbour, if both together are not more than [`JOIN_RUNS_MAX`].
const LOW_RUNS: usize = LEAF_RUNS / 4;

/// So that a leaf just joined is not cut by the next few runs.
const JOIN_RUNS_MAX: usize = LEAF_RUNS * 3 / 4;

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

/// The order of a run of some sectors.
fn order<S: Sector>((start, end): (S, S)) -> usize {
    ((end - start).into().max(1).ilog2() as usize).min(ORDERS - 1)
}

/// Some runs that follow one another.
#[derive(Debug)]
struct Leaf<S> {
    len: u8,
    /// Runs of each order.
    counts: [u8; ORDERS],
    starts: [S; LEAF_RUNS],
    /// [`Sector::MAX`], an end that no run has, behind the last one.
    ends: [S; LEAF_RUNS],
}

impl<S: Sector> Leaf<S> {
    fn new() -> Box<Leaf<S>> {
        Box::new(Leaf { len: 0, counts: [0; ORDERS], starts: [S::MAX; LEAF_RUNS], ends: [S::MAX; LEAF_RUNS] })
    }

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    fn run(&self, slot: usize) -> (S, S) {
        (self.starts[slot], self.ends[slot])
    }

    fn last_end(&self) -> S {
        self.ends[self.len() - 1]
    }

    /// The first run that ends after `at`.
    fn seek(&self, at: S) -> usize {
        // Of all of them, which a processor does many at a time; a search by halves waits for each look.
        let before: u32 = self.ends.iter().map(|end| u32::from(*end <= at)).sum();
        (before as usize).min(self.len())
    }

    fn insert(&mut self, slot: usize, start: S, end: S) {
        let len = self.len();
        self.starts.copy_within(slot..len, slot + 1);
        self.ends.copy_within(slot..len, slot + 1);
        self.starts[slot] = start;
        self.ends[slot] = end;
        self.len += 1;
    }

    fn remove(&mut self, slot: usize) {
        let len = self.len();
        self.starts.copy_within(slot + 1..len, slot);
        self.ends.copy_within(slot + 1..len, slot);
        self.ends[len - 1] = S::MAX;
        self.len -= 1;
    }

    /// Moves the runs from slot `from` on behind those of `to`.
    fn move_to(&mut self, from: usize, to: &mut Leaf<S>) {
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
        self.counts = [0; ORDERS];
        for slot in 0..self.len() {
            self.counts[order(self.run(slot))] += 1;
        }
    }

    fn mask(&self) -> u32 {
        self.counts.iter().enumerate().fold(0, |mask, (order, &count)| mask | u32::from(count > 0) << order)
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
    masks: Vec<u32>,
    #[allow(clippy::vec_box, reason = "a leaf is half a kilobyte: the directory shifts pointers")]
    leaves: Vec<Box<Leaf<S>>>,
    /// Runs of each order.
    counts: [u32; ORDERS],
    /// The orders that have any.
    filled: u32,
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
            counts: [0; ORDERS],
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
        let per_leaf = size_of::<Leaf<S>>() + size_of::<Box<Leaf<S>>>() + size_of::<S>() + size_of::<u32>();
        self.leaves.len() * per_leaf + size_of::<Self>()
    }

    /// The order of the longest run, or `None` when nothing is free.
    pub(crate) fn top_order(&self) -> Option<usize> {
        (self.filled != 0).then(|| self.filled.ilog2() as usize)
    }

    /// The order of the average run, or `None` when nothing is free.
    pub(crate) fn average_order(&self) -> Option<usize> {
        let (sectors, count) = (self.total >> self.sector_shift, u64::from(self.count));
        // Of the quotient's two possible logarithms, without dividing.
        let guess = sectors.checked_ilog2()? - count.checked_ilog2()?;
        let order = if count << guess > sectors { guess - 1 } else { guess };
        Some((order as usize).min(ORDERS - 1))
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

    fn add_order(&mut self, leaf: usize, order: usize) {
        let counts = &mut self.leaves[leaf].counts;
        counts[order] += 1;
        self.masks[leaf] |= 1 << order;
        self.counts[order] += 1;
        self.filled |= 1 << order;
    }

    fn drop_order(&mut self, leaf: usize, order: usize) {
        let counts = &mut self.leaves[leaf].counts;
        counts[order] -= 1;
        if counts[order] == 0 {
            self.masks[leaf] &= !(1 << order);
        }
        self.counts[order] -= 1;
        if self.counts[order] == 0 {
            self.filled &= !(1 << order);
        }
    }

    /// A run becomes another that lies between the same neighbours.
    fn change(&mut self, (leaf, slot): Place, start: S, end: S) {
        let (old, new) = (order(self.run((leaf, slot))), order((start, end)));
        if old != new {
            self.drop_order(leaf, old);
            self.add_order(leaf, new);
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
        self.add_order(leaf, order((start, end)));
        self.count += 1;
    }

    fn delete(&mut self, (leaf, slot): Place) {
        self.drop_order(leaf, order(self.run((leaf, slot))));
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

    /// Puts `start..end` back; `false`, and nothing changed, where some of it is free.
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

    /// Takes `start..end`, which lies whole in one run; `false`, and nothing changed, where it does not.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> bool {
        if start < self.base || start >= end {
            return false;
        }
        let Some(place) = self.seek(self.sector(start)) else { return false };
        let (s, e) = self.bytes(self.run(place));
        let whole = s <= start && end <= e;
        if whole {
            self.take_found(Found { place, start, end });
        }
        whole
    }

    /// Takes what was just found.
    pub(crate) fn take_found(&mut self, found: Found) {
        let Found { place, start, end } = found;
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

    /// The part of the run at a place that the allocation would get, if it begins at `from` or later.
    fn part(&self, place: Place, from: u64, fit: &Fit, min_len: u64) -> Option<Found> {
        let (start, end) = self.bytes(self.run(place));
        let (start, end) = fit.within(start.max(from), end, min_len)?;
        Some(Found { place, start, end })
    }

    /// Exactly at `at`: what is free there, up to the length wanted.
    pub(crate) fn find_at(&self, at: u64, fit: &Fit) -> Option<Found> {
        let sector = self.sector(at);
        let place = self.seek(sector)?;
        self.part(place, at, fit, fit.min_len).filter(|found| found.start == at && self.run(place).0 <= sector)
    }

    /// The next run of an order at or behind a place.
    fn next_of(&self, order: usize, place: Place) -> Option<Place> {
        let (mut leaf, mut slot) = place;
        let bit = 1 << order;
        loop {
            leaf += self.masks.get(leaf..)?.iter().position(|mask| mask & bit != 0)?;
            if leaf != place.0 {
                slot = 0;
            }
            let runs = &self.leaves[leaf];
            let found = (slot..runs.len()).find(|&slot| self::order(runs.run(slot)) == order);
            if let Some(slot) = found {
                return Some((leaf, slot));
            }
            leaf += 1;
        }
    }

    /// All runs of an order, going up from a place and round.
    fn of_order(&self, order: usize, from: Option<Place>) -> impl Iterator<Item = Place> + '_ {
        let first = from.unwrap_or((self.leaves.len(), 0));
        let (mut next, mut round) = (Some(first), false);
        std::iter::from_fn(move || {
            let mut found = next.and_then(|place| self.next_of(order, place));
            if found.is_none() && !round {
                round = true;
                found = self.next_of(order, (0, 0));
            }
            let place = found.filter(|&place| !round || place < first);
            next = place.and_then(|place| self.step(place));
            round |= place.is_none();
            place
        })
    }

    /// The full length: near `from` going up, else from the shortest order that surely holds it, going up from `from`
    /// and round.
    pub(crate) fn find_whole(&self, from: u64, fit: &Fit, thorough: bool) -> Option<Found> {
        let first = self.seek(self.sector(from));
        let near = std::iter::successors(first, |&place| self.step(place)).take(NEAR_STEPS_MAX);
        let near = near.filter_map(|place| self.part(place, from, fit, fit.len)).next();
        near.or_else(|| self.find_shortest(first, fit, thorough))
    }

    /// The full length where one can go on, for who finds its place taken: at `at` or as soon behind as can be, in a run that
    /// goes on for `rest_len` bytes; else in the middle of one of the longest runs, if its halves are an eighth of that. (From
    /// its front on another may just be going, or come next.)
    pub(crate) fn find_apart(&self, at: u64, rest_len: u64, fit: &Fit) -> Option<Found> {
        let top = self.top_order()?;
        let rest = |found: &Found| self.bytes(self.run(found.place)).1 - found.end;
        if top >= order_sure(rest_len, self.sector_shift) {
            let next = self.seek(self.sector(at)).and_then(|place| self.part(place, at, fit, fit.len));
            if let Some(next) = next.filter(|found| rest(found) >= rest_len) {
                return Some(next);
            }
        }
        if top <= order_sure(rest_len / 8, self.sector_shift) {
            return None;
        }
        let place = self.next_of(top, (0, 0))?;
        let (start, end) = self.bytes(self.run(place));
        let half = ((end - start) / 2) >> self.sector_shift << self.sector_shift;
        let middle = start + half;
        self.part(place, middle, fit, fit.len)
    }

    /// The full length, from the shortest order that surely holds it, the lowest run.
    pub(crate) fn find_tight(&self, fit: &Fit) -> Option<Found> {
        self.find_shortest(Some((0, 0)), fit, false)
    }

    fn find_shortest(&self, first: Option<Place>, fit: &Fit, thorough: bool) -> Option<Found> {
        let sure = order_sure(fit.len + fit.align - (1 << self.sector_shift).min(fit.align), self.sector_shift);
        let part = |place| self.part(place, 0, fit, fit.len);
        for order in bits(self.filled >> sure).map(|o| o + sure) {
            // The last order has no upper neighbour: its runs are long, not surely long enough.
            let next = first.and_then(|first| self.next_of(order, first)).or_else(|| self.next_of(order, (0, 0)));
            let found = next.and_then(part);
            if found.is_some() {
                return found;
            }
        }
        let maybe = order_of(fit.len.max(1 << self.sector_shift), self.sector_shift);
        let steps_max = if thorough { usize::MAX } else { MAYBE_STEPS_MAX };
        (maybe..=sure)
            .filter(|order| self.filled & 1 << order != 0)
            .find_map(|order| self.of_order(order, first).take(steps_max).find_map(part))
    }

    /// Less than the full length: one of the longest runs.
    pub(crate) fn find_best(&self, fit: &Fit, thorough: bool) -> Option<Found> {
        let steps_max = if thorough { usize::MAX } else { MAYBE_STEPS_MAX };
        for order in bits_down(self.filled) {
            let found = self.of_order(order, Some((0, 0))).take(steps_max);
            let found = found.filter_map(|place| self.part(place, 0, fit, fit.min_len));
            // Of equals the lowest address wins.
            let best = found.reduce(|best, next| if next.len() > best.len() { next } else { best });
            if best.is_some() {
                return best;
            }
        }
        None
    }

    /// Whether all that is said twice agrees; for tests.
    #[cfg(test)]
    pub(crate) fn is_consistent(&self) -> bool {
        let mut counts = [0; ORDERS];
        let mut total = 0;
        for (i, leaf) in self.leaves.iter().enumerate() {
            let mut own = [0; ORDERS];
            for run in (0..leaf.len()).map(|slot| leaf.run(slot)) {
                own[order(run)] += 1;
                counts[order(run)] += 1;
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
        let filled = (0..ORDERS).all(|o| (counts[o] == 0) == (self.filled & (1 << o) == 0));
        let sums = counts == self.counts && total == self.total && runs.len() == self.count();
        apart && filled && sums && self.last.len() == self.leaves.len() && self.masks.len() == self.leaves.len()
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
