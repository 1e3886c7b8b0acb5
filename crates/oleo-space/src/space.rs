//! The block groups of a volume and everything that is known of their space.
//!
//! The life of a stretch of space:
//!
//! ```text
//!          alloc                  keep, then referenced                  pin              take_pinned, release
//!   free ─────────► granted ────────────────────────────► in use ──────────────► pinned ─────────────────────► free
//!    ▲                 │ drop                                │ give_back (born and dropped in one transaction)
//!    └─────────────────┴─────────────────────────────────────┘
//! ```
//!
//! 1. At mount, `txn` calls [`Space::add_group`] for every block group, in rising order, with what the disk's summary
//!    says; free space is read later, when an allocation looks into the group.
//! 2. Calls that will need space [`Space::reserve`] it; [`Space::alloc_from`] and [`Space::alloc_blocks`] give
//!    addresses (`pick` chooses them).
//! 3. Settling [`pin`](Space::pin)s what the transaction freed and tells [`Space::note_used`]; [`Space::drain_used`]
//!    says which block group items have to be rewritten.
//! 4. Before the superblocks are written [`Space::take_pinned`] takes the pins of this transaction out; once they are
//!    durable [`Space::release`] makes them free, neighbours merged.
//!
//! Invariants: every byte of a group is in one of the states above, and only in one; see `account` for the promises.
//!
//! Locks: group state (rank 20), pins, dirty list, source (rank 25, one at a time), group table (rank 30); in this
//! order, none of them held while the source reads. Crash: memory only.
//!
//! Not here: which address (`pick`), how a group is loaded (`group`), the on-disk records (`txn`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::account::Pool;
use crate::deny::{Ask, Denials};
use crate::group::{Content, Group, GroupRef, State, check_runs};
use crate::index::OrderIndex;
use crate::pick::Goals;
use crate::runs::{Ranges, Runs};
use crate::{GroupInfo, Kind, LoadError, PinSet, Refusal, Reservation, Run, SpaceError};

/// Slots of a new table; it doubles when they are taken.
const SLOTS_MIN: usize = 64;

/// Where the free space of a group is known: the free-space tree, or the extent tree where there is none.
///
/// The answer must be at least as new as the newest state whose pins were released, and leave out the superblock
/// mirrors. No lock of this room that another thread needs is held during the call.
pub trait FreeSource: Send + Sync {
    /// The free runs of the group that starts at `group`, rising, not overlapping.
    fn load(&self, group: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError>;
}

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
    /// What new chunks could add, as last told.
    pub growth: ByteLen,
}

/// The groups in the order of their addresses, each in a slot whose number the index uses.
pub(crate) struct Table {
    starts: Vec<u64>,
    groups: Vec<Option<GroupRef>>,
    slots: usize,
    index: [OrderIndex; 3],
}

impl Table {
    fn new() -> Table {
        Table {
            starts: Vec::new(),
            groups: Vec::new(),
            slots: SLOTS_MIN,
            index: std::array::from_fn(|_| OrderIndex::new(SLOTS_MIN)),
        }
    }

    /// The slot whose group holds `at`, if one does.
    fn slot_of(&self, at: u64) -> Option<usize> {
        let slot = self.starts.partition_point(|&start| start <= at).checked_sub(1)?;
        self.groups[slot].as_ref().is_some_and(|group| at < group.end).then_some(slot)
    }

    /// The group that holds `at`.
    pub(crate) fn group_of(&self, at: u64) -> Option<&GroupRef> {
        self.groups[self.slot_of(at)?].as_ref()
    }

    /// The first slot whose group ends after `at`.
    pub(crate) fn slot_from(&self, at: u64) -> usize {
        self.slot_of(at).unwrap_or_else(|| self.starts.partition_point(|&start| start <= at))
    }

    /// The group that holds `at`, or the next one.
    pub(crate) fn group_from(&self, at: u64) -> Option<GroupRef> {
        self.groups.get(self.slot_from(at)..)?.iter().flatten().next().cloned()
    }

    /// The next group of `kind` at or after slot `from` whose longest run has at least `order`.
    pub(crate) fn next(&self, kind: Kind, order: usize, from: usize, thorough: bool) -> Option<(usize, GroupRef)> {
        let mut from = from;
        loop {
            // A slot without a group has no bit; one that loses its group just now is stepped over.
            let slot = self.index[kind as usize].next(order, from, thorough)?;
            match self.groups.get(slot)? {
                Some(group) => return Some((slot, group.clone())),
                None => from = slot + 1,
            }
        }
    }

    fn change(&self, group: &Group, old: u8, new: u8) {
        let Some(slot) = self.slot_of(group.start) else { return };
        for kind in Kind::ALL {
            if group.serves(kind) {
                self.index[kind as usize].change(slot, old, new);
            }
        }
    }

    fn insert(&mut self, group: GroupRef) -> Result<(), SpaceError> {
        let slot = self.starts.partition_point(|&start| start < group.start);
        let before = self.groups[..slot].iter().rev().flatten().next();
        let after = self.groups[slot..].iter().flatten().next();
        if before.is_some_and(|g| g.end > group.start) || after.is_some_and(|g| g.start < group.end) {
            return Err(SpaceError::BadGroup(group.run()));
        }
        let last = slot == self.starts.len();
        if self.starts.get(slot) == Some(&group.start) {
            self.groups[slot] = Some(group.clone());
        } else {
            self.starts.insert(slot, group.start);
            self.groups.insert(slot, Some(group.clone()));
        }
        if self.starts.len() > self.slots || !last {
            self.rebuild();
        } else {
            self.change(&group, 0, group.order.load(SeqCst));
        }
        Ok(())
    }

    /// Makes the index anew, after slots have moved. A group whose order is being changed by another thread waits for
    /// the table and then applies its change to the new index.
    fn rebuild(&mut self) {
        let keep: Vec<bool> = self.groups.iter().map(Option::is_some).collect();
        let mut kept = keep.iter();
        self.starts.retain(|_| kept.next().copied().unwrap_or(true));
        self.groups.retain(Option::is_some);
        self.slots = self.slots.max(self.starts.len().next_power_of_two());
        self.index = std::array::from_fn(|_| OrderIndex::new(self.slots));
        for group in self.groups.iter().flatten() {
            self.change(group, 0, group.order.load(SeqCst));
        }
    }
}

/// What [`Space`] shares with its guards.
pub(crate) struct Inner {
    pub(crate) sector_shift: u32,
    pub(crate) nodesize: u64,
    source: RwLock<Arc<dyn FreeSource>>,
    pub(crate) table: RwLock<Table>,
    pools: [Pool; 3],
    /// Data and metadata share groups, so they share pool 0.
    mixed: AtomicBool,
    pub(crate) goals: Goals,
    pins: Mutex<Vec<Run>>,
    /// Groups whose used bytes changed since the last drain.
    used_dirty: Mutex<Vec<GroupRef>>,
    pub(crate) denials: Denials,
}

impl Inner {
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

    pub(crate) fn group_of(&self, at: u64) -> Option<GroupRef> {
        self.table.read().group_of(at).cloned()
    }

    /// The group that holds all of `run`.
    fn group_holding(&self, run: Run) -> Result<GroupRef, SpaceError> {
        let group = self.group_of(run.start.0).ok_or(SpaceError::NoGroup(run))?;
        let end = run.start.checked_add(run.len);
        if run.len.0 > 0 && end.is_some_and(|end| end.0 <= group.end) {
            Ok(group)
        } else {
            Err(SpaceError::NoGroup(run))
        }
    }

    /// Brings the index up to date after a group's runs have changed.
    pub(crate) fn refile(&self, group: &Group, state: &State, freed_len: u64) {
        let old = group.order.load(SeqCst);
        let new = group.order_now(state, freed_len, self.sector_shift);
        if old != new {
            group.order.store(new, SeqCst);
            self.table.read().change(group, old, new);
        }
        if freed_len > 0 {
            self.pool_of(group).frees.fetch_add(1, SeqCst);
        }
    }

    /// Makes `start..end` of the group free. Bytes that are free already stay so, once.
    fn free_in(&self, group: &Group, state: &mut State, start: u64, end: u64) {
        let freed = match &mut state.content {
            Content::Unloaded { freed } | Content::Loading { freed } => freed.unite(start, end),
            Content::Loaded(runs) => {
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
        group.free.fetch_add(freed, SeqCst);
        if !state.read_only && !state.removed {
            self.pool_of(group).uncommit(freed);
        }
    }

    /// Takes `start..end`, free in a loaded group, out of its runs.
    pub(crate) fn take_in(&self, group: &Group, runs: &mut Runs, start: u64, end: u64) -> bool {
        let taken = runs.take(start, end);
        if taken {
            group.free.fetch_sub(end - start, SeqCst);
        }
        taken
    }

    /// Makes a run free at once.
    pub(crate) fn put_back(&self, run: Run) {
        // A group that was removed has taken its space with it.
        let Some(group) = self.group_of(run.start.0) else { return };
        let mut state = group.state.lock();
        self.free_in(&group, &mut state, run.start.0, run.end().0.min(group.end));
        self.refile(&group, &state, run.len.0);
    }

    /// The group's state once its runs are known; `None` where another thread is reading them and `wait` is not set.
    pub(crate) fn load<'g>(
        &self,
        group: &'g Group,
        mut state: MutexGuard<'g, State>,
        wait: bool,
    ) -> Result<Option<MutexGuard<'g, State>>, LoadError> {
        loop {
            match &mut state.content {
                Content::Loaded(_) => return Ok(Some(state)),
                Content::Loading { .. } if !wait => return Ok(None),
                Content::Loading { .. } => group.changed.wait(&mut state),
                Content::Unloaded { freed } => {
                    state.content = Content::Loading { freed: std::mem::take(freed) };
                    drop(state);
                    let source = self.source.read().clone();
                    let answer = source.load(Logical(group.start));
                    let answer = answer.and_then(|runs| {
                        let runs = runs.into_iter().map(|(start, len)| Run { start, len });
                        check_runs(group.run(), runs, self.sector_shift)
                    });
                    state = group.state.lock();
                    let failed = self.loaded(group, &mut state, answer).err();
                    group.changed.notify_all();
                    if let Some(error) = failed {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Takes the source's answer in.
    fn loaded(&self, group: &Group, state: &mut State, answer: Result<Ranges, LoadError>) -> Result<(), LoadError> {
        let Content::Loading { freed } = &mut state.content else { return Ok(()) };
        let freed = std::mem::take(freed);
        let mut free = match answer {
            Ok(free) => free,
            Err(error) => {
                state.content = Content::Unloaded { freed };
                return Err(error);
            }
        };
        for (start, end) in freed.iter() {
            free.unite(start, end);
        }
        for (start, end) in state.pinned.iter() {
            free.remove(start, end);
        }
        let (hoped, known) = (group.free.load(SeqCst), free.total());
        group.free.store(known, SeqCst);
        if !state.read_only && !state.removed {
            let pool = self.pool_of(group);
            pool.overdraw(hoped.saturating_sub(known));
            pool.uncommit(known.saturating_sub(hoped));
        }
        state.content = Content::Loaded(Runs::from_ranges(free, self.sector_shift));
        self.refile(group, state, 0);
        Ok(())
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

    /// Takes a group's space out of what may be promised; `false` where it has been promised.
    fn close(&self, group: &Group) -> bool {
        let pool = self.pool_of(group);
        let free = group.free.load(SeqCst);
        if pool.commit_some(free, free, 1).is_none() {
            return false;
        }
        pool.capacity.fetch_sub(group.len(), SeqCst);
        pool.uncommit(group.len());
        true
    }

    /// The opposite of [`Self::close`].
    fn reopen(&self, group: &Group) {
        let pool = self.pool_of(group);
        pool.overdraw(group.len());
        pool.capacity.fetch_add(group.len(), SeqCst);
        pool.uncommit(group.free.load(SeqCst));
    }
}

/// The space of a volume. Clones share it; all methods may be called by many threads.
#[derive(Clone)]
pub struct Space {
    pub(crate) inner: Arc<Inner>,
}

impl Space {
    /// A space without groups. Both sizes are in bytes and powers of two, as a verified superblock has them.
    pub fn new(sectorsize: u32, nodesize: u32, source: Arc<dyn FreeSource>) -> Space {
        assert!(sectorsize.is_power_of_two() && nodesize.is_power_of_two() && nodesize >= sectorsize);
        Space {
            inner: Arc::new(Inner {
                sector_shift: sectorsize.trailing_zeros(),
                nodesize: nodesize.into(),
                source: RwLock::new(source),
                table: RwLock::new(Table::new()),
                pools: Default::default(),
                mixed: AtomicBool::new(false),
                goals: Goals::new(),
                pins: Mutex::default(),
                used_dirty: Mutex::default(),
                denials: Denials::default(),
            }),
        }
    }

    /// From now on asks `source` what is free.
    pub fn set_source(&self, source: Arc<dyn FreeSource>) {
        *self.inner.source.write() = source;
    }

    /// Adds a block group. `free`: its free runs where they are known (a new chunk: all of it), else they are loaded
    /// when needed. Cheapest in rising order.
    pub fn add_group(&self, info: GroupInfo, free: Option<Vec<Run>>) -> Result<(), SpaceError> {
        let run = Run::new(info.start, info.len);
        let used_fits = info.used <= info.len;
        if info.len.0 == 0 || info.start.checked_add(info.len).is_none() || !used_fits {
            return Err(SpaceError::BadGroup(run));
        }
        let inner = &*self.inner;
        let shift = inner.sector_shift;
        let ranges = free.map(|mut runs| {
            runs.sort_unstable();
            check_runs(run, runs.into_iter(), shift).map_err(|_| SpaceError::BadGroup(run))
        });
        let group = Group::new(&info, ranges.transpose()?, shift);
        let group = Arc::new(group);
        let mut table = inner.table.write();
        table.insert(group.clone())?;
        if info.flags.contains(BlockGroupFlags::DATA | BlockGroupFlags::METADATA) && !inner.mixed.swap(true, SeqCst) {
            inner.pools[0].absorb(&inner.pools[1]);
        }
        let pool = inner.pool_of(&group);
        pool.total.fetch_add(group.len(), SeqCst);
        pool.used.fetch_add(info.used.0, SeqCst);
        if !info.read_only {
            inner.reopen(&group);
        }
        Ok(())
    }

    /// Forgets a group, whatever is in it; returns what was known of it. Refused while something in it is pinned, and
    /// when its free space is promised.
    pub fn remove_group(&self, start: Logical) -> Result<GroupInfo, SpaceError> {
        let inner = &*self.inner;
        let group = self.group_at(start)?;
        let info = group.info();
        let mut state = group.state.lock();
        if state.removed {
            return Err(SpaceError::NoGroup(Run::new(start, ByteLen(0))));
        }
        if state.pinned.total() > 0 {
            return Err(SpaceError::Pinned(start));
        }
        if !state.read_only && !inner.close(&group) {
            return Err(SpaceError::Reserved(start));
        }
        state.removed = true;
        inner.refile(&group, &state, 0);
        let pool = inner.pool_of(&group);
        pool.total.fetch_sub(group.len(), SeqCst);
        pool.used.fetch_sub(group.used.load(SeqCst), SeqCst);
        let mut table = inner.table.write();
        if let Some(slot) = table.slot_of(group.start) {
            table.groups[slot] = None;
        }
        Ok(info)
    }

    /// Closes a group for allocation or opens it again. Closing is refused when its free space is promised.
    pub fn set_read_only(&self, start: Logical, read_only: bool) -> Result<(), SpaceError> {
        let group = self.group_at(start)?;
        let mut state = group.state.lock();
        if state.read_only == read_only || state.removed {
            return Ok(());
        }
        if read_only && !self.inner.close(&group) {
            return Err(SpaceError::Reserved(start));
        }
        state.read_only = read_only;
        if !read_only {
            self.inner.reopen(&group);
        }
        self.inner.refile(&group, &state, 0);
        Ok(())
    }

    fn group_at(&self, at: Logical) -> Result<GroupRef, SpaceError> {
        self.inner.group_of(at.0).ok_or(SpaceError::NoGroup(Run::new(at, ByteLen(0))))
    }

    /// All groups in rising order.
    pub fn groups(&self) -> Vec<GroupInfo> {
        let groups: Vec<GroupRef> = self.inner.table.read().groups.iter().flatten().cloned().collect();
        groups.iter().map(|group| group.info()).collect()
    }

    /// The group that holds `at`.
    pub fn group(&self, at: Logical) -> Result<GroupInfo, SpaceError> {
        Ok(self.group_at(at)?.info())
    }

    /// The free runs of the group that holds `at`, rising, loaded if need be.
    pub fn free_runs(&self, at: Logical) -> Result<Vec<Run>, FreeRunsError> {
        let group = self.group_at(at)?;
        let state = group.state.lock();
        let state = self.inner.load(&group, state, true)?;
        Ok(match state.as_deref() {
            Some(State { content: Content::Loaded(runs), held, .. }) => {
                let mut free = runs.ranges().clone();
                for (start, end) in held.iter() {
                    free.unite(start, end);
                }
                free.iter().map(|(start, end)| Run::between(start, end)).collect()
            }
            _ => Vec::new(),
        })
    }

    /// Makes a run free at once: it was born and dropped in one transaction, and nothing on disk ever named it.
    pub fn give_back(&self, run: Run) {
        if run.len.0 > 0 {
            self.inner.put_back(run);
        }
    }

    /// Notes that the open transaction freed `run`: it becomes free when the transaction is durable.
    pub fn pin(&self, run: Run) -> Result<(), SpaceError> {
        let group = self.inner.group_holding(run)?;
        let (start, end) = (run.start.0, run.end().0);
        let mut state = group.state.lock();
        let is_free = match &state.content {
            Content::Loaded(runs) => runs.ranges().touches(start, end),
            Content::Unloaded { freed } | Content::Loading { freed } => freed.touches(start, end),
        };
        if is_free || state.held.touches(start, end) || state.pinned.insert(start, end).is_none() {
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
        let table = self.inner.table.read();
        runs.dedup_by(|next, run| {
            let merges = run.end() == next.start && table.starts.binary_search(&next.start.0).is_err();
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
            let Some(group) = self.inner.group_of(first.start.0) else { continue };
            let mut state = group.state.lock();
            let mut longest = 0;
            let mut next = Some(first);
            while let Some(run) = next {
                let (start, end) = (run.start.0, run.end().0.min(group.end));
                state.pinned.remove(start, end);
                self.inner.free_in(&group, &mut state, start, end);
                self.inner.pool_of(&group).pinned.fetch_sub(end - start, SeqCst);
                longest = longest.max(end - start);
                next = runs.next_if(|run| run.start.0 < group.end);
            }
            self.inner.refile(&group, &state, longest);
        }
    }

    /// Promises `len` bytes: they fit in what is free and what new chunks could add, next to all that is promised.
    pub fn reserve(&self, kind: Kind, len: ByteLen) -> Result<Reservation, Refusal> {
        self.inner.denials.check(Ask::Promise, kind)?;
        self.inner.reserve_some(kind, len.0, len.0)?;
        Ok(Reservation { inner: self.inner.clone(), kind, left: AtomicU64::new(len.0) })
    }

    /// Tells how many bytes new chunks could add to a kind. When a chunk is made, first lower the growth, then add the
    /// group.
    pub fn set_growth(&self, kind: Kind, len: ByteLen) {
        self.inner.pool(kind).growth.store(len.0, SeqCst);
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
        Ok(ByteLen(self.group_at(at)?.used.load(SeqCst)))
    }

    /// Settling has changed the bytes used of the group that holds `at`.
    pub fn note_used(&self, at: Logical, delta: i64) -> Result<(), SpaceError> {
        let group = self.group_at(at)?;
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
            .filter(|&(start, _)| self.inner.group_of(start.0).is_some())
            .collect();
        out.sort_unstable();
        out
    }
}

/// Why a group's free runs cannot be told.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FreeRunsError {
    /// There is no such group.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// They could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
}

#[cfg(test)]
mod tests;
