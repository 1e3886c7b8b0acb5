//! The block groups of a volume and everything that is known of their space.
//!
//! The life of a stretch of space:
//!
//! ```text
//!          alloc                  keep, then referenced                  pin              take_pinned, release
//!   free ─────────► granted ────────────────────────────► in use ──────────────► pinned ─────────────────────► free
//!    ▲                 │ drop                                │ give_back (new and dropped in one transaction)
//!    └─────────────────┴─────────────────────────────────────┘
//! ```
//!
//! 1. At mount, `txn` calls [`Space::add_groups`] for all block groups, in rising order, with what the disk's summary
//!    says; free space is read later, when an allocation looks into the group.
//! 2. Calls that will need space [`Space::reserve`] it; [`Space::alloc_from`] and [`Space::alloc_blocks`] give
//!    addresses (`pick` chooses them).
//! 3. Settling [`pin`](Space::pin)s what the transaction freed and calls [`Space::note_used`]; [`Space::drain_used`]
//!    says which block group items have to be rewritten.
//! 4. Before the superblocks are written [`Space::take_pinned`] takes the pins of this transaction out; once they are
//!    durable [`Space::release`] makes them free, neighbours merged.
//!
//! Invariants: every byte of a group is in one of the states above, and only in one; see `account` for the promises.
//!
//! Locks: the group table, a group's state, then one of pins, dirty list and source, which are leaves; in this
//! order, none of them held while the source reads. Crash: memory only.
//!
//! Not here: which address (`pick`), how a group is loaded and evicted (`load`), the on-disk records (`txn`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use oleo_format::{BlockGroupFlags, ByteLen, Logical};

use crate::faults::{FaultSpec, RequestKind};
use crate::group::{Block, Content, Group, GroupHere, check_runs};
use crate::inner::{Inner, Share};
use crate::ranges::Ranges;
use crate::source::FreeSource;
use crate::table::{BLOCK_GROUPS_MAX, Table};
use crate::threads::{self, CachePadded};
use crate::{FreeRunsError, GroupInfo, Kind, PinSet, Refusal, Reservation, Run, SpaceError};

/// The bytes of one kind of space. On a mixed volume data and metadata are the same space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Bytes of all groups.
    pub total: ByteLen,
    /// Bytes used, as the block group items will have it.
    pub used: ByteLen,
    /// Bytes free in writable groups, promised ones included; an estimate for groups nobody has looked into yet.
    pub free: ByteLen,
    /// Bytes promised and not given an address.
    pub reserved: ByteLen,
    /// Bytes freed by transactions that are not durable.
    pub pinned: ByteLen,
    /// Bytes of read-only groups.
    pub read_only: ByteLen,
    /// What new chunks could add, as last set.
    pub growth: ByteLen,
}

/// The space of a volume. Clones share it; all methods may be called by many threads.
#[derive(Clone)]
pub struct Space {
    pub(crate) inner: Arc<Inner>,
    shares: Arc<[CachePadded<Share>]>,
}

impl Space {
    /// A space without groups. Both sizes are in bytes and powers of two, as a verified superblock has them.
    pub fn new(sectorsize: u32, nodesize: u32, source: Arc<dyn FreeSource>) -> Space {
        assert!(sectorsize.is_power_of_two() && nodesize.is_power_of_two() && nodesize >= sectorsize);
        let inner = Arc::new(Inner::new(sectorsize, nodesize, source));
        let shares = (0..threads::spread()).map(|_| CachePadded(Arc::new(inner.clone()))).collect();
        Space { inner, shares }
    }

    /// What a new guard holds.
    pub(crate) fn share(&self) -> Share {
        threads::own(&self.shares).0.clone()
    }

    /// From now on asks `source` what is free.
    pub fn set_source(&self, source: Arc<dyn FreeSource>) {
        *self.inner.source.write() = source;
    }

    /// Adds a block group. `free`: its free runs if they are known (a new chunk: all of it), else they are loaded
    /// when needed. Cheapest in rising order.
    pub fn add_group(&self, info: GroupInfo, free: Option<Vec<Run>>) -> Result<(), SpaceError> {
        self.add_group_telling(info, free, None)
    }

    /// The same for a group that was made out of growth: of that, so much is left.
    pub fn add_grown(&self, info: GroupInfo, free: Vec<Run>, growth: ByteLen) -> Result<(), SpaceError> {
        self.add_group_telling(info, Some(free), Some(growth.0))
    }

    fn add_group_telling(
        &self,
        info: GroupInfo,
        free: Option<Vec<Run>>,
        growth: Option<u64>,
    ) -> Result<(), SpaceError> {
        let inner = &*self.inner;
        let ranges = free.map(|mut runs| {
            runs.sort_unstable();
            let run = Run::new(info.start, info.len);
            check_runs(run, runs.into_iter(), inner.sector_shift).map_err(|_| SpaceError::BadGroup(run))
        });
        let ranges = ranges.transpose()?;
        let loaded = ranges.is_some();
        self.add_block(std::slice::from_ref(&info), ranges, growth)?;
        if loaded && let Ok(group) = self.with_group(info.start, |_, group| group.keep()) {
            inner.residents.note(&mut group.state.lock());
            inner.residents.push(&group);
        }
        Ok(())
    }

    /// Adds many groups whose free runs are not known: for less memory than one by one. If one is refused, those before
    /// it may have been added.
    pub fn add_groups(&self, infos: &[GroupInfo]) -> Result<(), SpaceError> {
        infos.chunks(BLOCK_GROUPS_MAX).try_for_each(|some| self.add_block(some, None, None))
    }

    /// Adds groups that share a piece of memory; `free` is of the first, and `growth` what is left with it.
    fn add_block(
        &self,
        infos: &[GroupInfo],
        mut free: Option<Vec<(u64, u64)>>,
        growth: Option<u64>,
    ) -> Result<(), SpaceError> {
        let is_whole =
            |info: &GroupInfo| info.len.0 > 0 && info.start.checked_add(info.len).is_some() && info.used <= info.len;
        if let Some(bad) = infos.iter().find(|info| !is_whole(info)) {
            return Err(SpaceError::BadGroup(Run::new(bad.start, bad.len)));
        }
        let inner = &*self.inner;
        let block: Block = infos.iter().map(|info| Group::new(info, free.take(), inner.sector_shift)).collect();
        inner.tables.write(|table| {
            table.insert(block.clone())?;
            for group in &*block {
                let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
                if group.flags.contains(both) && !inner.mixed.swap(true, SeqCst) {
                    inner.pools[0].absorb(&inner.pools[1]);
                }
                for kind in Kind::ALL.into_iter().filter(|&kind| group.serves(kind)) {
                    inner.row_len[kind as usize].fetch_max(group.row_len(), SeqCst);
                    inner.groups_with_rows[kind as usize].fetch_add(u64::from(group.row_len() > 0), SeqCst);
                }
                let pool = inner.pool_of(group);
                pool.total.fetch_add(group.len(), SeqCst);
                pool.used.fetch_add(group.used.load(SeqCst), SeqCst);
                if group.is_open() {
                    inner.reopen(group, growth);
                }
            }
            Ok(())
        })
    }

    /// Forgets a group, whatever is in it; returns what was known of it. Refused while something in it is pinned, and
    /// when its free space is promised.
    pub fn remove_group(&self, start: Logical) -> Result<GroupInfo, SpaceError> {
        let inner = &*self.inner;
        let (info, kinds) = self.with_group(start, |table, group| {
            let info = group.info();
            let kinds = Kind::ALL.map(|kind| group.serves(kind));
            let mut state = group.state.lock();
            if group.is_removed() {
                return Err(SpaceError::NoGroup(Run::new(start, ByteLen(0))));
            }
            if state.sets().pinned.total() > 0 {
                return Err(SpaceError::Pinned(start));
            }
            if !group.read_only.load(SeqCst) && !inner.close(&group) {
                return Err(SpaceError::Reserved(start));
            }
            group.removed.store(true, SeqCst);
            // Others may keep its memory. A thread that is loading it drops the runs by itself.
            if state.runs().is_some() {
                inner.residents.set_content(&mut state, Content::Unloaded);
            }
            inner.refile(table, &group, &mut state, 0);
            let pool = inner.pool_of(&group);
            pool.total.fetch_sub(group.len(), SeqCst);
            pool.used.fetch_sub(group.used.load(SeqCst), SeqCst);
            Ok((info, kinds))
        })??;
        inner.tables.write(|table| {
            table.remove(info.start.0);
            let with_rows = inner.groups_with_rows.iter().zip(&inner.row_len).zip(kinds);
            for ((count, row_len), _) in with_rows.filter(|(_, serves)| *serves && info.row_len.0 > 0) {
                if count.fetch_sub(1, SeqCst) == 1 {
                    row_len.store(0, SeqCst);
                }
            }
        });
        Ok(info)
    }

    /// Closes a group for allocation or opens it again. Closing is refused when its free space is promised.
    pub fn set_read_only(&self, start: Logical, read_only: bool) -> Result<(), SpaceError> {
        let inner = &*self.inner;
        self.with_group(start, |table, group| {
            let mut state = group.state.lock();
            if group.read_only.load(SeqCst) == read_only || group.is_removed() {
                return Ok(());
            }
            if read_only && !inner.close(&group) {
                return Err(SpaceError::Reserved(start));
            }
            group.read_only.store(read_only, SeqCst);
            if !read_only {
                inner.reopen(&group, None);
            }
            let freed_len = if read_only { 0 } else { group.free.load(SeqCst) };
            inner.refile(table, &group, &mut state, freed_len);
            Ok(())
        })?
    }

    fn with_group<T>(&self, at: Logical, with: impl FnOnce(&Table, GroupHere<'_>) -> T) -> Result<T, SpaceError> {
        let table = self.inner.tables.read();
        let group = table.group_of(at.0).ok_or(SpaceError::NoGroup(Run::new(at, ByteLen(0))))?;
        Ok(with(&table, group))
    }

    /// All groups in rising order.
    pub fn groups(&self) -> Vec<GroupInfo> {
        self.inner.tables.read().groups().map(|group| group.info()).collect()
    }

    /// The group that holds `at`.
    pub fn group(&self, at: Logical) -> Result<GroupInfo, SpaceError> {
        self.with_group(at, |_, group| group.info())
    }

    /// The free runs of the group that holds `at`, rising, loaded if need be.
    pub fn free_runs(&self, at: Logical) -> Result<Vec<Run>, FreeRunsError> {
        let group = self.with_group(at, |_, group| group.keep())?;
        Ok(self.inner.with_loaded(&group, |_, state, _| {
            let Some(runs) = state.runs() else { return Vec::new() };
            let mut free = Ranges::EMPTY;
            for (start, end) in runs.iter().chain(state.sets().held.iter()) {
                free.unite(start, end);
            }
            free.iter().map(|(start, end)| Run::between(start, end)).collect()
        })?)
    }

    /// Whether all of a run is free and nobody has it; `false` where that is not known, since the group's free space is not in memory.
    pub fn is_free(&self, run: Run) -> bool {
        let table = self.inner.tables.read();
        let Some(group) = table.group_of(run.start.0) else { return false };
        group.state.lock().is_free(run.start.0, run.end().0)
    }

    /// Whether no state on a device names any of a run, and none will that is written before the next [`turn`](Self::turn) began: all of it is free, or all was
    /// given out in the present turn. `false` where that is not known. Of groups with rows only.
    pub fn is_unnamed(&self, run: Run) -> bool {
        let table = self.inner.tables.read();
        let Some(group) = table.group_of(run.start.0) else { return false };
        let (start, end) = (run.start.0, run.end().0);
        let state = group.state.lock();
        state.is_free(start, end) || state.was_granted(self.inner.hints.turn(), start, end)
    }

    /// Frees a run immediately: it was made and dropped in one transaction, and nothing on disk ever named it.
    pub fn give_back(&self, run: Run) {
        if run.len.0 > 0 {
            self.inner.put_back(run);
        }
    }

    /// Notes that the open transaction freed `run`: it becomes free when the transaction is durable.
    pub fn pin(&self, run: Run) -> Result<(), SpaceError> {
        let table = self.inner.tables.read();
        let group = Inner::group_holding(&table, run)?;
        let (start, end) = (run.start.0, run.end().0);
        let mut state = group.state.lock();
        let is_free =
            state.runs().map_or_else(|| state.sets().freed.touches(start, end), |runs| runs.touches(start, end));
        let is_free = is_free || state.sets().held.touches(start, end);
        if is_free || !state.with_sets(|sets| sets.pinned.insert(start, end)) {
            return Err(SpaceError::FreedTwice(run));
        }
        self.inner.pool_of(&group).pinned.fetch_add(run.len.0, SeqCst);
        self.inner.pins.lock().push(run);
        Ok(())
    }

    /// Takes out everything pinned since the last call, neighbours merged within their groups.
    pub fn take_pinned(&self) -> PinSet {
        let mut runs = std::mem::take(&mut *self.inner.pins.lock());
        runs.sort_unstable();
        let table = self.inner.tables.read();
        let begins = |at: Logical| table.group_of(at.0).is_some_and(|group| group.start == at.0);
        runs.dedup_by(|next, run| {
            let merges = run.end() == next.start && !begins(next.start);
            if merges {
                run.len += next.len;
            }
            merges
        });
        PinSet { runs }
    }

    /// Makes a commit's pins free: the commit is durable.
    pub fn release(&self, pins: PinSet) {
        let mut runs = pins.runs.into_iter().peekable();
        while let Some(first) = runs.next() {
            let table = self.inner.tables.read();
            let Some(group) = table.group_of(first.start.0) else { continue };
            let mut state = group.state.lock();
            let mut longest = 0;
            let mut next = Some(first);
            while let Some(run) = next {
                let (start, end) = (run.start.0, run.end().0.min(group.end));
                state.with_sets(|sets| sets.pinned.remove(start, end));
                self.inner.free_in(&group, &mut state, start, end);
                self.inner.pool_of(&group).pinned.fetch_sub(end - start, SeqCst);
                longest = longest.max(end - start);
                next = runs.next_if(|run| run.start.0 < group.end);
            }
            self.inner.refile(&table, &group, &mut state, longest);
        }
    }

    /// Promises `len` bytes: they fit in what is free and what new chunks could add, next to all that is promised.
    pub fn reserve(&self, kind: Kind, len: ByteLen) -> Result<Reservation, Refusal> {
        self.inner.faults.check(RequestKind::Promise, kind)?;
        self.inner.reserve_some(kind, len.0, len.0)?;
        Ok(Reservation { inner: self.share(), kind, left: AtomicU64::new(len.0) })
    }

    /// Sets how many bytes new chunks could add to a kind, whatever of it is promised already. When a chunk is made of them,
    /// [`add_grown`](Self::add_grown) sets what is left. Only one thread at a time may call either.
    pub fn set_growth(&self, kind: Kind, len: ByteLen) {
        let pool = self.inner.pool(kind);
        // Wrapping addition of a negative number is subtraction.
        pool.limit.fetch_add(len.0.wrapping_sub(pool.growth.swap(len.0, SeqCst)), SeqCst);
    }

    /// The same, but lowers it only if nothing of the difference is reserved; returns whether it was set.
    pub fn offer_growth(&self, kind: Kind, len: ByteLen) -> bool {
        let pool = self.inner.pool(kind);
        let less = pool.growth.load(SeqCst).saturating_sub(len.0);
        if less > 0 {
            return pool.take_out(less, less, || pool.growth.store(len.0, SeqCst));
        }
        self.set_growth(kind, len);
        true
    }

    /// The bytes of a kind. Exact while nothing is going on; each number by itself is right at any time.
    pub fn totals(&self, kind: Kind) -> Totals {
        let pool = self.inner.pool(kind);
        let [total, capacity, committed, reserved, growth, pinned, used] =
            [&pool.total, &pool.capacity, &pool.committed, &pool.reserved, &pool.growth, &pool.pinned, &pool.used]
                .map(|number| number.load(SeqCst));
        Totals {
            total: ByteLen(total),
            used: ByteLen(used),
            free: ByteLen(capacity.saturating_sub(committed.saturating_sub(reserved))),
            reserved: ByteLen(reserved),
            pinned: ByteLen(pinned),
            read_only: ByteLen(total.saturating_sub(capacity)),
            growth: ByteLen(growth),
        }
    }

    /// Bytes used of the group that holds `at`, as its block group item will have it.
    pub fn used(&self, at: Logical) -> Result<ByteLen, SpaceError> {
        self.with_group(at, |_, group| ByteLen(group.used.load(SeqCst)))
    }

    /// Settling has changed the bytes used of the group that holds `at`.
    pub fn note_used(&self, at: Logical, delta: i64) -> Result<(), SpaceError> {
        let group = self.with_group(at, |_, group| group.keep())?;
        let change = |used: u64| used.checked_add_signed(delta).filter(|&used| used <= group.len());
        group.used.fetch_update(SeqCst, SeqCst, change).map_err(|used| SpaceError::UsedOutOfRange {
            group: Logical(group.start),
            used: ByteLen(used),
            delta,
            len: ByteLen(group.len()),
        })?;
        // Wrapping addition of a negative number is subtraction.
        self.inner.pool_of(&group).used.fetch_add(delta.cast_unsigned(), SeqCst);
        if delta != 0 && !group.used_dirty.swap(true, SeqCst) {
            self.inner.used_dirty.lock().push(group);
        }
        Ok(())
    }

    /// The groups whose bytes used have changed since the last call, and how many they are now, in rising order.
    pub fn drain_used(&self) -> Vec<(Logical, ByteLen)> {
        let dirty = std::mem::take(&mut *self.inner.used_dirty.lock());
        let mut out: Vec<_> = dirty
            .iter()
            .map(|group| {
                group.used_dirty.store(false, SeqCst);
                (Logical(group.start), ByteLen(group.used.load(SeqCst)))
            })
            .filter(|&(start, _)| self.with_group(start, |_, _| ()).is_ok())
            .collect();
        out.sort_unstable();
        out
    }

    /// From now on fails the requests that `spec` says, and counts from zero. For tests.
    #[doc(hidden)]
    pub fn fail_requests(&self, spec: FaultSpec) {
        self.inner.faults.set(spec);
    }

    /// How many requests of the sorts in the last [`Space::fail_requests`] there were since. For tests.
    #[doc(hidden)]
    pub fn requests_counted(&self) -> u64 {
        self.inner.faults.counted()
    }
}

#[cfg(test)]
mod tests;
