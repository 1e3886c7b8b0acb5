//! How wide the sector numbers of a group's runs are.
//!
//! Four bytes do for what chunks are made like. A group of 2³² sectors and more, which the format allows (16 TiB of 4 KiB
//! sectors), has numbers of eight. The code is one; users of a group's runs do not see which width it has.

use std::fmt::Debug;
use std::ops::Sub;

use super::{Fit, Found, RunsIn};

/// A sector number, counted from the group's start.
pub(crate) trait Sector: Copy + Ord + Debug + Into<u64> + Sub<Output = Self> {
    /// A number that no sector has.
    const MAX: Self;

    /// `sector`, or [`Self::MAX`] if it is too large.
    fn clamped(sector: u64) -> Self;
}

impl Sector for u32 {
    const MAX: u32 = u32::MAX;

    fn clamped(sector: u64) -> u32 {
        u32::try_from(sector).unwrap_or(u32::MAX)
    }
}

impl Sector for u64 {
    const MAX: u64 = u64::MAX;

    fn clamped(sector: u64) -> u64 {
        sector
    }
}

/// The free runs of one group.
#[derive(Debug)]
pub(crate) enum Runs {
    Narrow(RunsIn<u32>),
    Wide(RunsIn<u64>),
}

/// The same of either width.
macro_rules! either {
    ($runs:expr, $name:ident => $what:expr) => {
        match $runs {
            Runs::Narrow($name) => $what,
            Runs::Wide($name) => $what,
        }
    };
}

impl Runs {
    /// The runs of a group, rising and apart.
    pub(crate) fn from_sorted(group: crate::Run, sector_shift: u32, runs: &[(u64, u64)]) -> Runs {
        let start = group.start.0;
        let mut new = if (group.len.0 >> sector_shift) + 1 < u64::from(u32::MAX) {
            Runs::Narrow(RunsIn::new(start, sector_shift))
        } else {
            Runs::Wide(RunsIn::new(start, sector_shift))
        };
        either!(&mut new, new => runs.iter().for_each(|&(from, to)| {
            new.insert(from, to);
        }));
        new
    }

    /// The free bytes.
    pub(crate) fn total(&self) -> u64 {
        either!(self, runs => runs.total())
    }

    /// The number of runs.
    pub(crate) fn count(&self) -> usize {
        either!(self, runs => runs.count())
    }

    /// Bytes of memory, about.
    pub(crate) fn memory(&self) -> usize {
        either!(self, runs => runs.memory())
    }

    /// The classes of lengths that occur, a bit for each.
    pub(crate) fn filled(&self) -> u64 {
        either!(self, runs => runs.filled())
    }

    /// All runs as (start, end), rising.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (narrow, wide) = match self {
            Runs::Narrow(runs) => (Some(runs), None),
            Runs::Wide(runs) => (None, Some(runs)),
        };
        narrow.into_iter().flat_map(RunsIn::iter).chain(wide.into_iter().flat_map(RunsIn::iter))
    }

    /// The first run that ends after `at`: the one that holds `at`, or the next one.
    pub(crate) fn at_or_after(&self, at: u64) -> Option<(u64, u64)> {
        either!(self, runs => runs.at_or_after(at))
    }

    /// Whether any byte of `start..end` is free.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        self.at_or_after(start).is_some_and(|(s, _)| s < end)
    }

    /// Puts `start..end` back; returns `false`, and changes nothing, if some of it is free.
    pub(crate) fn insert(&mut self, start: u64, end: u64) -> bool {
        either!(self, runs => runs.insert(start, end))
    }

    /// Takes `start..end`, which lies whole in one run; returns `false`, and changes nothing, if it does not.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> bool {
        either!(self, runs => runs.take(start, end))
    }

    /// Takes what was just found.
    pub(crate) fn take_found(&mut self, found: Found) {
        either!(self, runs => runs.take_found(found));
    }

    /// Adds whatever of `start..end` is not free yet; returns how many bytes that was.
    pub(crate) fn unite(&mut self, start: u64, end: u64) -> u64 {
        either!(self, runs => runs.unite(start, end))
    }

    /// Takes out whatever of `start..end` is free.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        either!(self, runs => runs.remove(start, end));
    }

    /// See [`RunsIn::find_at`].
    pub(crate) fn find_at(&self, at: u64, fit: &Fit) -> Option<Found> {
        either!(self, runs => runs.find_at(at, fit))
    }

    /// See [`RunsIn::find_whole`].
    pub(crate) fn find_whole(&self, from: u64, fit: &Fit, thorough: bool) -> Option<Found> {
        either!(self, runs => runs.find_whole(from, fit, thorough))
    }

    /// See [`RunsIn::find_apart`].
    pub(crate) fn find_apart(&self, at: u64, rest_len: u64, fit: &Fit) -> Option<Found> {
        either!(self, runs => runs.find_apart(at, rest_len, fit))
    }

    /// See [`RunsIn::find_tight`].
    pub(crate) fn find_tight(&self, fit: &Fit) -> Option<Found> {
        either!(self, runs => runs.find_tight(fit))
    }

    /// See [`RunsIn::find_best`].
    pub(crate) fn find_best(&self, fit: &Fit, thorough: bool) -> Option<Found> {
        either!(self, runs => runs.find_best(fit, thorough))
    }
}
