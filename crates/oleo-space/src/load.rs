//! How a group's free runs come into memory and leave it again.
//!
//! 1. At mount a group is known by the bytes used in it. When a search is about to read its free runs, `learn_counts` first
//!    asks the source how many runs this group and the next candidates have ([`COUNTS_BATCH`] at a time, which lie next to
//!    each other on disk), and files them anew: the search goes on with what is worth reading.
//! 2. `load` reads one group's runs, with no lock held. A search that has to read a second group is a scan: `expect` names to the
//!    source the next candidates, to be read ahead.
//! 3. When the runs in memory take more than [`Space::set_runs_memory_max`] allows, `evict_some` visits the groups in the
//!    order in which they were loaded. A group that was used since its last visit stays until the next one; another is evicted
//!    *if the source, asked again, returns exactly what is in memory*. So a group whose allocations are not on disk yet
//!    stays, and an evicted one is in the same state as one never loaded, for which the rules are known (see `group`).
//!
//! Locks: the table, then the group's state; none while the source is asked. `Residents::queue` is a leaf. Errors: a source that fails leaves the group as it was.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use oleo_format::{ByteLen, Logical};

use crate::group::{COUNT_UNKNOWN, COUNT_UNPUBLISHED, Content, Group, GroupRef, State, check_runs};
use crate::index::By;
use crate::inner::Inner;
use crate::runs::Runs;
use crate::space::Space;
use crate::table::Table;
use crate::{Kind, LoadError, Run};

/// Groups that are read ahead when a scan has begun: a few leaves of the free-space tree.
pub(crate) const AHEAD_GROUPS: usize = 16;

/// Groups whose numbers of free runs are asked for in one batch.
const COUNTS_BATCH: usize = 64;

/// Groups looked at after one load while there is too much in memory; each may cost a read.
const EVICT_STEPS_MAX: usize = 4;

impl Inner {
    fn ask(&self, group: &Group) -> Result<Vec<(u64, u64)>, LoadError> {
        let source = self.source.read().clone();
        let runs = source.load(Logical(group.start))?;
        let runs = runs.into_iter().map(|(start, len)| Run { start, len });
        check_runs(group.run(), runs, self.sector_shift)
    }

    /// Reads a group's runs, with no lock held; `false` if another thread is reading them and `wait` is not set. A removed
    /// group has none.
    pub(crate) fn load(&self, group: &GroupRef, wait: bool) -> Result<bool, LoadError> {
        loop {
            let seen = self.wakeups.seen();
            let mut state = group.state.lock();
            match state.content() {
                _ if group.is_removed() => return Ok(true),
                Content::Loaded(_) => return Ok(true),
                Content::Loading if !wait => return Ok(false),
                Content::Loading => {
                    drop(state);
                    self.wakeups.wait(seen);
                }
                Content::Unloaded => {
                    self.residents.set_content(&mut state, Content::Loading);
                    drop(state);
                    let answer = self.ask(group);
                    let table = self.tables.read();
                    let mut state = group.state.lock();
                    let taken = self.loaded(&table, group, &mut state, answer);
                    drop((state, table));
                    self.wakeups.notify();
                    taken?;
                    // In this order: what was just read is wanted, and must not go before it was looked at.
                    self.evict_some(EVICT_STEPS_MAX);
                    self.residents.push(group);
                    return Ok(true);
                }
            }
        }
    }

    /// Takes in what the source returned.
    fn loaded(
        &self,
        table: &Table,
        group: &Group,
        state: &mut State,
        answer: Result<Vec<(u64, u64)>, LoadError>,
    ) -> Result<(), LoadError> {
        let free = match answer {
            Ok(free) if !group.is_removed() => free,
            gone => {
                self.residents.set_content(state, Content::Unloaded);
                return gone.map(drop);
            }
        };
        let mut runs = Runs::from_sorted(group.run(), self.sector_shift, &free);
        state.with_sets(|sets| {
            for (start, end) in std::mem::take(&mut sets.freed).iter() {
                runs.unite(start, end);
            }
            for (start, end) in sets.pinned.iter() {
                runs.remove(start, end);
            }
        });
        let (hoped, known) = (group.free.load(SeqCst), runs.total());
        group.free.store(known, SeqCst);
        if group.is_open() {
            let pool = self.pool_of(group);
            pool.overdraw(hoped.saturating_sub(known));
            pool.uncommit(known.saturating_sub(hoped));
        }
        self.residents.set_content(state, Content::Loaded(Box::new(runs)));
        self.refile(table, group, state, 0);
        Ok(())
    }

    /// Does something with a group whose runs are known, reading them first if need be, or that is removed and has none.
    /// Called with no lock held.
    pub(crate) fn with_loaded<T>(
        &self,
        group: &GroupRef,
        mut with: impl FnMut(&Table, &mut State, &Inner) -> T,
    ) -> Result<T, LoadError> {
        loop {
            // Every turn loads the group; an eviction in between is possible once in a long while.
            let table = self.tables.read();
            let mut state = group.state.lock();
            if state.runs().is_some() || group.is_removed() {
                state.set_recent(true);
                return Ok(with(&table, &mut state, self));
            }
            drop((state, table));
            self.load(group, true)?;
        }
    }

    /// Asks how many free runs the groups at and after a slot have of which that is not known, and files them by it.
    pub(crate) fn learn_counts(&self, kind: Kind, by: By, slot: usize) {
        let table = self.tables.read();
        let mut groups: Vec<GroupRef> = Vec::new();
        let mut at = slot;
        // Candidates of which the number is known are few so near to one of which it is not.
        for _ in 0..2 * COUNTS_BATCH {
            let Some((next, group)) = table.next(kind, by, at) else { break };
            if groups.len() < COUNTS_BATCH && group.count.load(SeqCst) == COUNT_UNKNOWN {
                groups.push(group.keep());
            }
            at = next + 1;
        }
        drop(table);
        let starts: Vec<Logical> = groups.iter().map(|group| Logical(group.start)).collect();
        let source = self.source.read().clone();
        let counts = source.counts(&starts);
        for (i, group) in groups.iter().enumerate() {
            let table = self.tables.read();
            let mut state = group.state.lock();
            let count =
                counts.get(i).copied().flatten().map_or(COUNT_UNPUBLISHED, |count| count.min(COUNT_UNPUBLISHED - 1));
            let first = group.count.compare_exchange(COUNT_UNKNOWN, count, SeqCst, SeqCst).is_ok();
            let known = state.runs().is_some() || state.sets().freed.total() > 0;
            if first && !known && count != COUNT_UNPUBLISHED && group.is_open() {
                let lengths = group.lengths_published(count, self.sector_shift);
                self.file(&table, group, &mut state, lengths);
            }
        }
    }

    /// A scan continues at a slot: the source gets a hint of what is probably requested next, [`AHEAD_GROUPS`] groups from there
    /// on, so that it reads them in one go.
    pub(crate) fn expect(&self, kind: Kind, by: By, slot: usize) {
        let table = self.tables.read();
        let found = |at: usize| table.next(kind, by, at);
        let candidates = std::iter::successors(found(slot), |&(slot, _)| found(slot + 1)).take(AHEAD_GROUPS);
        let unloaded = |group: &Group| group.state.try_lock().is_some_and(|s| matches!(s.content(), Content::Unloaded));
        let groups: Vec<Logical> =
            candidates.filter(|(_, group)| unloaded(group)).map(|(_, group)| Logical(group.start)).collect();
        drop(table);
        let source = self.source.read().clone();
        source.expect(&groups);
    }

    /// Evicts groups nobody looks at, while there is more in memory than there should be; looks at `steps_max`.
    fn evict_some(&self, steps_max: usize) {
        let residents = &self.residents;
        let over = || residents.bytes.load(Relaxed) > residents.bytes_max.load(Relaxed);
        if !over() || residents.busy.swap(true, SeqCst) {
            return;
        }
        for _ in 0..steps_max {
            if !over() {
                break;
            }
            let Some(weak) = residents.queue.lock().pop_front() else { break };
            if let Some(group) = weak.upgrade()
                && !self.evict(&group)
            {
                residents.queue.lock().push_back(weak);
            }
        }
        residents.busy.store(false, SeqCst);
    }

    /// Evicts a group's runs, if nobody has looked at them since the last time and the source says the same; returns `true`
    /// if they are not in memory any more.
    fn evict(&self, group: &Group) -> bool {
        let Some(mut state) = group.state.try_lock() else { return false };
        let changes = state.changes();
        match state.content() {
            Content::Loaded(_) if !state.recent() && state.sets().held.total() == 0 => {}
            Content::Loaded(_) | Content::Loading => {
                state.set_recent(false);
                return false;
            }
            Content::Unloaded => return true,
        }
        drop(state);
        let Ok(answer) = self.ask(group) else { return false };
        let mut state = group.state.lock();
        let Some(runs) = state.runs() else { return group.is_removed() };
        if state.changes() != changes {
            return false;
        }
        let pinned = &state.sets().pinned;
        let same = if pinned.total() == 0 {
            runs.iter().eq(answer.iter().copied())
        } else {
            let mut reported = Runs::from_sorted(group.run(), self.sector_shift, &answer);
            pinned.iter().for_each(|(start, end)| reported.remove(start, end));
            runs.iter().eq(reported.iter())
        };
        if same {
            group.count.store(u32::try_from(runs.count()).unwrap_or(COUNT_UNPUBLISHED).min(COUNT_UNPUBLISHED), SeqCst);
            self.residents.set_content(&mut state, Content::Unloaded);
        }
        same
    }
}

impl Space {
    /// Bounds the memory that free runs take, in bytes, about. Groups that are in use stay beyond it.
    pub fn set_runs_memory_max(&self, len: ByteLen) {
        self.inner.residents.bytes_max.store(len.0, SeqCst);
    }

    /// The memory that free runs take now, in bytes, about.
    pub fn runs_memory(&self) -> ByteLen {
        ByteLen(self.inner.residents.bytes.load(SeqCst))
    }
}

#[cfg(test)]
mod tests;
