//! What all parts of a space work on: the groups, the pools, the hints, and how a group's runs and counts change together.
//!
//! `space` has the calls, `pick` chooses addresses, `load` reads groups, `hold` sets runs aside, `guard` gives back what is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use oleo_lock::{Mutex, RwLock, rank};

use crate::account::Pool;
use crate::faults::FaultInjector;
use crate::group::{Group, GroupHere, GroupRef, Lengths, State};
use crate::hints::AllocationHints;
use crate::residents::Residents;
use crate::source::FreeSource;
use crate::table::{Table, Tables};
use crate::wakeups::Wakeups;
use crate::{Kind, Refusal, Run, SpaceError};

/// What [`Space`](crate::Space) shares with its guards.
pub(crate) struct Inner {
    pub(crate) sector_shift: u32,
    pub(crate) nodesize: u64,
    pub(crate) source: RwLock<rank::FreeSource, Arc<dyn FreeSource>>,
    pub(crate) tables: Tables,
    pub(crate) residents: Residents,
    /// Loads that have ended, held runs that were released.
    pub(crate) wakeups: Wakeups,
    pub(crate) pools: [Pool; 3],
    /// Data and metadata share groups, so they share pool 0.
    pub(crate) mixed: AtomicBool,
    pub(crate) hints: AllocationHints,
    pub(crate) pins: Mutex<rank::Pins, Vec<Run>>,
    /// Groups whose used bytes changed since the last drain.
    pub(crate) used_dirty: Mutex<rank::UsedDirty, Vec<GroupRef>>,
    pub(crate) faults: FaultInjector,
    /// By kind: data bytes of the longest rows with parity; 0 if no group has any.
    pub(crate) row_len: [AtomicU64; 3],
    /// By kind: groups that have such rows. This and `row_len` change while the tables are written.
    pub(crate) groups_with_rows: [AtomicU64; 3],
    /// Rows are nobody's business, to see what they are for.
    pub(crate) ignores_rows: AtomicBool,
}

impl Inner {
    /// A space without groups; `sectorsize` and `nodesize` are in bytes.
    pub(crate) fn new(sectorsize: u32, nodesize: u32, source: Arc<dyn FreeSource>) -> Inner {
        Inner {
            sector_shift: sectorsize.trailing_zeros(),
            nodesize: nodesize.into(),
            source: RwLock::new(source),
            tables: Tables::new(),
            residents: Residents::new(),
            wakeups: Wakeups::default(),
            pools: Default::default(),
            mixed: AtomicBool::new(false),
            hints: AllocationHints::new(),
            pins: Mutex::default(),
            used_dirty: Mutex::default(),
            faults: FaultInjector::default(),
            row_len: Default::default(),
            groups_with_rows: Default::default(),
            ignores_rows: AtomicBool::new(false),
        }
    }

    pub(crate) fn pool(&self, kind: Kind) -> &Pool {
        match kind {
            Kind::Metadata if self.mixed.load(SeqCst) => &self.pools[0],
            _ => &self.pools[kind as usize],
        }
    }

    pub(crate) fn pool_of(&self, group: &Group) -> &Pool {
        let kind = Kind::ALL.into_iter().find(|&kind| group.serves(kind));
        self.pool(kind.unwrap_or(Kind::Data))
    }

    /// The group that holds all of `run`.
    pub(crate) fn group_holding(table: &Table, run: Run) -> Result<GroupHere<'_>, SpaceError> {
        let group = table.group_of(run.start.0).ok_or(SpaceError::NoGroup(run))?;
        let end = run.start.checked_add(run.len);
        if run.len.0 > 0 && end.is_some_and(|end| end.0 <= group.end) {
            Ok(group)
        } else {
            Err(SpaceError::NoGroup(run))
        }
    }

    /// Brings the index up to date after a group's runs have changed.
    pub(crate) fn refile(&self, table: &Table, group: &Group, state: &mut State, freed_len: u64) {
        state.changed();
        self.residents.note(state);
        self.file(table, group, state, group.lengths_now(state, freed_len, self.sector_shift));
        if freed_len > 0 {
            self.pool_of(group).notify_searchers();
        }
    }

    /// Puts a group where the index should have it. The caller holds `_state`.
    pub(crate) fn file(&self, table: &Table, group: &Group, _state: &mut State, new: Lengths) {
        let old = group.lengths();
        if old != new {
            group.set_lengths(new);
            table.change(group, old, new);
        }
    }

    /// Makes `start..end` of the group free. Bytes that are free already stay so, once.
    pub(crate) fn free_in(&self, group: &Group, state: &mut State, start: u64, end: u64) {
        let freed = match state.runs_mut() {
            None => state.with_sets(|sets| sets.freed.unite(start, end)),
            Some(runs) => {
                if runs.insert(start, end) {
                    end - start
                } else {
                    0
                }
            }
        };
        // Only an image whose free space and references contradict each other gets here otherwise, or a bug of ours.
        #[cfg(test)]
        assert!(freed == end - start, "{start}..{end} was given back but was free");
        group.add_free(freed.cast_signed());
        if group.is_open() {
            self.pool_of(group).uncommit(freed);
        }
    }

    /// Frees a run immediately.
    pub(crate) fn put_back(&self, run: Run) {
        let table = self.tables.read();
        // A group that was removed has taken its space with it.
        let Some(group) = table.group_of(run.start.0) else { return };
        let mut state = group.state.lock();
        self.free_in(&group, &mut state, run.start.0, run.end().0.min(group.end));
        self.refile(&table, &group, &mut state, run.len.0);
    }

    /// Commits between `min` and `max` bytes of a kind; returns how many.
    pub(crate) fn reserve_some(&self, kind: Kind, max: u64, min: u64) -> Result<u64, Refusal> {
        let pool = self.pool(kind);
        let got = pool.commit_some(max, min, 1 << self.sector_shift).ok_or(Refusal::NeedChunk(kind))?;
        pool.reserved.fetch_add(got, SeqCst);
        Ok(got)
    }

    pub(crate) fn unreserve(&self, kind: Kind, len: u64) {
        let pool = self.pool(kind);
        pool.reserved.fetch_sub(len, SeqCst);
        pool.uncommit(len);
    }

    /// Takes a group's space out of what may be promised; `false` if it has been promised.
    pub(crate) fn close(&self, group: &Group) -> bool {
        let pool = self.pool_of(group);
        let len = group.len();
        pool.take_out(len, group.free.load(SeqCst), || {
            pool.capacity.fetch_sub(len, SeqCst);
        })
    }

    /// The opposite of [`Self::close`]; `growth` is the new growth, if it changes.
    pub(crate) fn reopen(&self, group: &Group, growth: Option<u64>) {
        let pool = self.pool_of(group);
        pool.overdraw(group.len());
        pool.capacity.fetch_add(group.len(), SeqCst);
        let reported = growth.map_or(0, |growth| growth.wrapping_sub(pool.growth.swap(growth, SeqCst)));
        // Wrapping addition of a negative number is subtraction.
        pool.limit.fetch_add(group.len().wrapping_add(reported), SeqCst);
        pool.uncommit(group.free.load(SeqCst));
    }
}

/// What guards hold of a space: each thread's are counted in one place, so that threads do not share a count.
pub(crate) type Share = Arc<Arc<Inner>>;
