//! Which regions are in memory, and what is to be done to those that are not.
//!
//! A change to a region that is not in memory is kept until the region is loaded: nothing is read to be written. The blocks
//! that such a change overwrites are counted as lost when it is applied. Nor is a region kept in memory because it was changed:
//! what was changed since its page is remembered, and with that it can be made again.
//!
//! A checkpoint writes one region after the other while changes go on: [`Regions::stage`] gives it what a region is now,
//! [`Regions::settle`] is called when that is stored. What a region's blocks have changed in the counts of rows since its
//! page is kept with it, so that the table that is written agrees with the pages that are, whenever each was made.

use std::collections::BTreeMap;

use oleo_format::Corruption;

use super::{Missing, Region, Table};
use crate::error::RemoteError;
use crate::format::map::Run;
use crate::format::{ObjectRef, REGION_BLOCKS};

/// Regions that stay in memory whatever they take.
const KEPT_COUNT: usize = 2;

/// A change that waits for its region.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Set(Run),
    Clear(u32, u32),
}

#[derive(Debug)]
struct Slot {
    /// The page of the last checkpoint.
    page: Option<ObjectRef>,
    /// A page that is being stored; it may be that of a region without runs, which has none.
    staged: Option<Option<ObjectRef>>,
    /// The runs, if they are in memory; they are where there is no page.
    runs: Option<Region>,
    /// What was changed since the page, or since the one that is being stored: with these the runs can be made again.
    pending: Vec<Pending>,
    /// How many of them have been applied once, so that what they overwrite is counted.
    counted: usize,
    /// Whether it differs from its page, or from the one that is being stored.
    dirty: bool,
    /// By how many live blocks of which rows it differs from that page, by row.
    delta: Vec<(u32, i64)>,
    /// When it was last looked at.
    used: u64,
}

impl Slot {
    fn new(page: Option<ObjectRef>) -> Slot {
        let runs = page.is_none().then(Region::default);
        Slot { page, staged: None, runs, pending: Vec::new(), counted: 0, dirty: false, delta: Vec::new(), used: 0 }
    }

    fn bytes(&self) -> u64 {
        let lists = self.pending.len() * size_of::<Pending>() + self.delta.len() * size_of::<(u32, i64)>();
        self.runs.as_ref().map_or(0, Region::bytes) + (lists + size_of::<Slot>()) as u64
    }

    /// Changes the runs, now or when they come to be in memory; says what that overwrites, as far as it is known.
    fn apply(&mut self, change: Pending) -> Losses {
        let mut losses = Losses::default();
        let was_loaded = self.runs.is_some();
        if let Some(runs) = &mut self.runs {
            change.apply(runs, &mut losses);
        }
        if self.page.is_some() || self.staged.is_some() {
            self.pending.push(change);
            if was_loaded {
                self.counted = self.pending.len();
            }
        }
        if let Pending::Set(run) = change {
            self.adjust(run.row, run.blocks.into());
        }
        self.dirty |= !was_loaded || !losses.0.is_empty() || matches!(change, Pending::Set(_));
        self.lose(&losses);
        losses
    }

    fn adjust(&mut self, row: u32, blocks: i64) {
        match self.delta.binary_search_by_key(&row, |(row, _)| *row) {
            Ok(at) => self.delta[at].1 += blocks,
            Err(at) => self.delta.insert(at, (row, blocks)),
        }
    }

    fn lose(&mut self, losses: &Losses) {
        losses.0.iter().for_each(|(row, blocks)| self.adjust(*row, -i64::from(*blocks)));
    }
}

impl Pending {
    fn apply(&self, runs: &mut Region, losses: &mut Losses) {
        let mut lost = |row, blocks| losses.add(row, blocks);
        match self {
            Pending::Set(run) => runs.set(run, &mut lost),
            Pending::Clear(from, to) => runs.clear(*from, *to, &mut lost),
        }
    }
}

/// See the module's text.
#[derive(Default, Debug)]
pub(crate) struct Regions {
    slots: BTreeMap<u32, Slot>,
    /// Counts looks.
    clock: u64,
    /// Sum of the slots' memory, bytes.
    bytes: u64,
    dirty_bytes: u64,
}

impl Regions {
    /// Memory that it takes, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of that, what a checkpoint would make clean.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// A region has a page.
    pub(crate) fn restore(&mut self, region: u32, page: ObjectRef) {
        let slot = Slot::new(Some(page));
        self.bytes += slot.bytes();
        self.slots.insert(region, slot);
    }

    /// Changes a slot and counts what that costs.
    fn change<T>(&mut self, region: u32, change: impl FnOnce(&mut Slot) -> T) -> T {
        self.clock += 1;
        let used = self.clock;
        let mut is_new = false;
        let slot = self.slots.entry(region).or_insert_with(|| {
            is_new = true;
            Slot::new(None)
        });
        let before = if is_new { (0, 0) } else { (slot.bytes(), if slot.dirty { slot.bytes() } else { 0 }) };
        slot.used = used;
        let out = change(slot);
        let after = (slot.bytes(), if slot.dirty { slot.bytes() } else { 0 });
        self.bytes = self.bytes + after.0 - before.0;
        self.dirty_bytes = self.dirty_bytes + after.1 - before.1;
        out
    }

    /// Puts a run into a region, which may be away.
    pub(crate) fn set(&mut self, region: u32, run: Run, table: &mut Table) -> Result<(), RemoteError> {
        self.change(region, |slot| slot.apply(Pending::Set(run))).apply(table)
    }

    /// Removes the blocks `from..to` of the device.
    pub(crate) fn clear(&mut self, from: u64, to: u64, table: &mut Table) -> Result<(), RemoteError> {
        let last = (to.saturating_sub(1) / REGION_BLOCKS).min(u32::MAX.into()) as u32;
        let first = (from / REGION_BLOCKS).min(u32::MAX.into()) as u32;
        if from >= to {
            return Ok(());
        }
        let touched: Vec<u32> = self.slots.range(first..=last).map(|(region, _)| *region).collect();
        for region in touched {
            let base = u64::from(region) * REGION_BLOCKS;
            let low = from.saturating_sub(base) as u32;
            let high = (to - base).min(REGION_BLOCKS) as u32;
            self.change(region, |slot| slot.apply(Pending::Clear(low, high))).apply(table)?;
        }
        Ok(())
    }

    /// The runs of a region; none: all of it is zeros.
    pub(crate) fn loaded(&mut self, region: u32) -> Result<Option<&Region>, Missing> {
        self.clock += 1;
        let Some(slot) = self.slots.get_mut(&region) else { return Ok(None) };
        slot.used = self.clock;
        match (&slot.runs, slot.page) {
            (Some(runs), _) => Ok(Some(runs)),
            (None, Some(page)) => Err(Missing { region, page }),
            (None, None) => unreachable!("a region without a page is in memory"),
        }
    }

    /// The page of a region has been read. If it is not the region's any more nothing happens.
    pub(crate) fn install(&mut self, of: Missing, runs: &[Run], table: &mut Table) -> Result<(), RemoteError> {
        // First: a page that was replaced meanwhile may name rows that are no more.
        if self.slots.get(&of.region).is_none_or(|slot| slot.runs.is_some() || slot.page != Some(of.page)) {
            return Ok(());
        }
        let odd = runs.iter().find(|run| table.get(run.row).is_none());
        if let Some(run) = odd {
            return Err(Corruption::new("map page", "row of a run", run.row, "one of the table")
                .within(of.page.id)
                .into());
        }
        let losses = self.change(of.region, |slot| {
            let (mut losses, mut known) = (Losses::default(), Losses::default());
            let mut region = Region::of(runs);
            for (n, change) in slot.pending.iter().enumerate() {
                change.apply(&mut region, if n < slot.counted { &mut known } else { &mut losses });
            }
            slot.counted = slot.pending.len();
            slot.runs = Some(region);
            slot.lose(&losses);
            losses
        });
        losses.apply(table)
    }

    /// The numbers of all regions that have something.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.slots.keys().copied().collect()
    }

    /// The first region, from `from` on, that a checkpoint must write; with the page that must be read before, if it is not
    /// in memory.
    pub(crate) fn next_dirty(&self, from: u32) -> Option<(u32, Option<Missing>)> {
        let (region, slot) = self.slots.range(from..).find(|(_, slot)| slot.dirty)?;
        let missing = match (&slot.runs, slot.page) {
            (None, Some(page)) => Some(Missing { region: *region, page }),
            _ => None,
        };
        Some((*region, missing))
    }

    /// Gives the runs of a region in memory to `write`, which makes a page of them; later changes are not in it. From now on
    /// the counts of the table that is written are those of this page.
    pub(crate) fn stage(
        &mut self,
        region: u32,
        table: &mut Table,
        write: impl FnOnce(&Region) -> ObjectRef,
    ) -> Result<(), RemoteError> {
        let delta = self.change(region, |slot| {
            let Some(runs) = &slot.runs else { return Vec::new() };
            slot.staged = Some((runs.len() > 0).then(|| write(runs)));
            slot.dirty = false;
            slot.pending.clear();
            slot.counted = 0;
            std::mem::take(&mut slot.delta)
        });
        delta.into_iter().try_for_each(|(row, blocks)| table.settle(row, blocks))
    }

    /// Where the page of a region is that was staged before that was known.
    pub(crate) fn restage(&mut self, region: u32, page: ObjectRef) {
        self.change(region, |slot| {
            debug_assert!(slot.staged.flatten().is_some(), "a page that was staged");
            slot.staged = Some(Some(page));
        });
    }

    /// The page of a region that was staged is stored; returns the page that it had before.
    pub(crate) fn settle(&mut self, region: u32) -> Option<ObjectRef> {
        let before = self.change(region, |slot| {
            let page = slot.staged.take()?;
            if page.is_none() {
                slot.pending.clear();
                slot.counted = 0;
            }
            std::mem::replace(&mut slot.page, page)
        });
        let is_blank =
            |slot: &Slot| slot.page.is_none() && !slot.dirty && slot.runs.as_ref().is_some_and(|runs| runs.len() == 0);
        if self.slots.get(&region).is_some_and(is_blank) {
            let slot = self.slots.remove(&region);
            self.bytes -= slot.map_or(0, |slot| slot.bytes());
        }
        before
    }

    /// Regions whose page is in an object of another volume are written with the next checkpoint.
    pub(crate) fn touch_foreign(&mut self) {
        let foreign = self.slots.iter().filter(|(_, slot)| slot.page.is_some_and(|page| page.id.origin > 0));
        let foreign: Vec<u32> = foreign.map(|(region, _)| *region).collect();
        foreign.into_iter().for_each(|region| self.change(region, |slot| slot.dirty = true));
    }

    /// The regions that have a page.
    pub(crate) fn with_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter(|(_, slot)| slot.page.is_some()).map(|(region, _)| *region)
    }

    /// The pages of `count` regions from `from` on.
    pub(crate) fn pages_of(&self, from: u32, count: u32) -> Vec<(u32, ObjectRef)> {
        let slots = self.slots.range(from..=from.saturating_add(count - 1));
        slots.filter_map(|(region, slot)| Some((*region, slot.page?))).collect()
    }

    /// Lets go of regions that have a page, those first that were not looked at for longest, until the memory is down to
    /// `bytes_max`. What was changed since the page stays, and so do the last two: whoever reads over a border needs both.
    pub(crate) fn evict(&mut self, bytes_max: u64) {
        self.evict_all_but(KEPT_COUNT, bytes_max);
    }

    /// The same, with so many that stay.
    pub(crate) fn evict_all_but(&mut self, count: usize, bytes_max: u64) {
        if self.bytes <= bytes_max {
            return;
        }
        let may_go = |slot: &Slot| slot.page.is_some() && slot.staged.is_none() && slot.runs.is_some();
        let some = self.slots.iter().filter(|(_, slot)| may_go(slot));
        let mut by_use: Vec<(u64, u32)> = some.map(|(region, slot)| (slot.used, *region)).collect();
        by_use.sort_unstable();
        by_use.truncate(by_use.len().saturating_sub(count));
        for (used, region) in by_use {
            if self.bytes <= bytes_max {
                break;
            }
            self.change(region, |slot| (slot.runs, slot.used) = (None, used));
        }
    }

    /// All runs in memory, with changes that wait; for tests.
    #[cfg(test)]
    pub(crate) fn all_runs(&self) -> Vec<Run> {
        let mut out = Vec::new();
        for slot in self.slots.values() {
            out.extend(slot.runs.as_ref().expect("in memory").all());
            assert!(slot.counted == slot.pending.len());
        }
        let sum: u64 = self.slots.values().map(Slot::bytes).sum();
        assert_eq!(sum, self.bytes);
        let dirty: u64 = self.slots.values().filter(|slot| slot.dirty).map(Slot::bytes).sum();
        assert_eq!(dirty, self.dirty_bytes);
        out
    }
}

/// Blocks that rows have lost by a change, most often of one or two.
#[derive(Default)]
struct Losses(Vec<(u32, u32)>);

impl Losses {
    fn add(&mut self, row: u32, blocks: u32) {
        match self.0.last_mut() {
            Some(last) if last.0 == row => last.1 += blocks,
            _ => self.0.push((row, blocks)),
        }
    }
    fn apply(self, table: &mut Table) -> Result<(), RemoteError> {
        self.0.into_iter().try_for_each(|(row, blocks)| table.lose(row, blocks))
    }
}
