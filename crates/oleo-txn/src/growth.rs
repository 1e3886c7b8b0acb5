//! Growth: new chunks, and the allocations that may need one.
//!
//! Normal path: (1) an allocation or reservation asks `space`; (2) "nothing fits" comes back as a value; (3) `grow` has the
//! volume propose a chunk, adds it to the chunk map and to the allocator, and keeps its items in `plans`; (4) the next
//! settling records the plans. Until then nothing on disk names the chunk, and nothing that names space in it can be
//! committed before it.
//!
//! Data is reserved against groups that exist: reservations that do not fit grow a chunk immediately. Metadata is reserved against
//! what is unallocated, too (see `outlook`): bursts of promises come and go, and a group is made when a block finds no other place. So an
//! operation that was let in cannot meet a full disk in its commit. No chunk is made for a request that could not be met even if all
//! that is unallocated became chunks for it.
//!
//! Locks: `growing`, one grower at a time, before those of `space`; `plans` and what is known of idle groups are leaves. Crash: a chunk that was not recorded never was.

pub(crate) mod state;

use std::sync::atomic::Ordering;

use oleo_format::{BlockGroupFlags, ByteLen, DevId, Key, Logical, TreeId};
use oleo_space::{Goal, Grant, GroupInfo, Kind, Refusal, Reservation, Run, Want};
use oleo_tree::{Change, TreeRoot, Walk};
use oleo_volume::{ChunkPlan, ChunkWant, KeptFree, Outlook, VolumeError};

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::free_runs::{sum_of, without};
use crate::metadata_reserve::Sizes;
use crate::options::{DataWant, Need};
use state::NewChunk;

/// Chunks that one request may make: the largest request over the smallest chunk, with room to spare.
const GROW_MAX: u32 = 1 << 20;
/// System space kept ahead for the chunk tree, in blocks beyond its own size.
const SYSTEM_AHEAD_BLOCKS: u64 = 16;

/// Metadata groups to come that may be promised before they are there: gigabytes. If that is not enough, groups are made.
const OUTLOOK_CHUNKS_MAX: u32 = 8;
/// Blocks that such a group has at least: shorter ones would hold little but their own records.
const OUTLOOK_BLOCKS_MIN: u64 = 256;
/// Blocks of each that are not promised: its records change leaves of five trees, a path each, twice.
const OUTLOOK_BLOCKS_LOST: u64 = 64;
/// Times that a chunk of data is tried again at half the length, so that what is promised to metadata has its place.
const SHORTER_MAX: u32 = 12;
/// No data chunk is made shorter than this for that reason, bytes.
const SHORTEST_LEN: u64 = 1 << 20;

/// A new chunk of an image that is to be cut to size may be as large as this part of all chunks before it.
const CHUNK_SHARE: u64 = 16;

/// Bookkeeping trees that have root items, except the tree of checksums.
const BOOKKEEPING: [TreeId; 7] = [
    TreeId::EXTENT,
    TreeId::DEV,
    TreeId::QUOTA,
    TreeId::UUID,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
    TreeId::RAID_STRIPE,
];

impl Inner {
    /// Makes one chunk of a kind; `false` when the devices have no room for one.
    pub(crate) fn grow(&self, kind: Kind) -> Result<bool, TxnError> {
        let _one = self.growth.growing.lock();
        self.grow_held(kind)
    }

    /// The same for a caller that found nothing in the groups that there were: several callers together are served by one chunk.
    fn grow_beyond(&self, kind: Kind, seen: ByteLen) -> Result<bool, TxnError> {
        let _one = self.growth.growing.lock();
        if self.space.totals(kind).total > seen {
            return Ok(true);
        }
        self.grow_held(kind)
    }

    fn grow_held(&self, kind: Kind) -> Result<bool, TxnError> {
        if kind != Kind::System {
            self.grow_system()?;
        }
        self.grow_locked(kind)
    }

    /// The chunk tree must find room for a record of the chunk to come.
    fn grow_system(&self) -> Result<(), TxnError> {
        let t = self.space.totals(Kind::System);
        let ahead = t.used.0 + SYSTEM_AHEAD_BLOCKS * u64::from(self.rules.nodesize);
        if t.free.0 < ahead {
            self.grow_locked(Kind::System)?;
        }
        Ok(())
    }

    /// The same for when a system group is about to be closed; `false` if there is no room.
    pub(crate) fn grow_system_without(&self, start: Logical) -> Result<bool, TxnError> {
        let _one = self.growth.growing.lock();
        let group = self.space.group(start)?;
        let t = self.space.totals(Kind::System);
        let ahead = t.used.0 + SYSTEM_AHEAD_BLOCKS * u64::from(self.rules.nodesize);
        let free = t.free.0.saturating_sub((group.len - group.used).0);
        if free < ahead { self.grow_locked(Kind::System) } else { Ok(true) }
    }

    /// The bound asked for, or a part of what there is already: a large image need not have tens of thousands of chunks.
    fn chunk_len_max(&self) -> Option<ByteLen> {
        let asked = self.rules.chunk_len_max?;
        Some(asked.max(ByteLen(self.volume.mapped_bytes().0 / CHUNK_SHARE)))
    }

    fn grow_locked(&self, kind: Kind) -> Result<bool, TxnError> {
        let flags = self.profile_of(kind);
        let mut want = ChunkWant { len_max: self.chunk_len_max(), ..ChunkWant::new(flags) };
        for _ in 0..SHORTER_MAX {
            let plan = match self.volume.propose_chunk(&want) {
                Ok(plan) => plan,
                Err(VolumeError::NoRoom { .. } | VolumeError::SystemArrayFull) => return Ok(false),
                Err(e) => return Err(e.into()),
            };
            let growth = self.outlook(Some(&plan));
            // What is promised to metadata is no place for data. The chunk tree must go on whatever happens.
            if kind == Kind::System {
                self.space.set_growth(Kind::Metadata, growth);
            }
            if kind != Kind::Data || self.rules.mixed || self.space.offer_growth(Kind::Metadata, growth) {
                self.add_planned(kind, flags, plan, growth)?;
                return Ok(true);
            }
            want.len_max = Some(ByteLen(plan.map.len.0 / 2));
            if plan.map.len.0 / 2 < SHORTEST_LEN {
                break;
            }
        }
        Ok(false)
    }

    /// A chunk that is made; `growth` is what metadata may grow by beside it.
    fn add_planned(
        &self,
        kind: Kind,
        flags: BlockGroupFlags,
        plan: ChunkPlan,
        growth: ByteLen,
    ) -> Result<(), TxnError> {
        self.volume.add_chunk(&plan);
        let (start, len) = (plan.map.start, plan.map.len);
        let withheld = self.volume.withheld_ranges_in(&plan.map);
        let run = Run::new(start, len);
        let free = without(run, &withheld);
        let info = GroupInfo {
            start,
            len,
            flags,
            used: ByteLen(0),
            excluded: sum_of(&withheld),
            free_extents: Some(free.len() as u32),
            read_only: false,
            row_len: plan.map.row_len(),
        };
        let put = |(key, data): (Key, Vec<u8>)| Change::put(key, data);
        let mut chunk_tree: Vec<Change> = plan.dev_items.into_iter().chain([plan.chunk_item]).map(put).collect();
        let mut dev_tree: Vec<Change> = plan.dev_extents.into_iter().map(put).collect();
        chunk_tree.sort_unstable_by_key(|c| c.key);
        dev_tree.sort_unstable_by_key(|c| c.key);
        let runs = free.iter().map(|(at, len)| Run::new(*at, *len)).collect();
        self.growth.plans.lock().push(NewChunk { start, len, flags, free, chunk_tree, dev_tree });
        match kind {
            Kind::Metadata if !self.rules.mixed => self.space.add_grown(info, runs, growth)?,
            _ => self.space.add_group(info, Some(runs))?,
        }
        self.growth.reported_of.store(self.unallocated_metadata(), Ordering::Relaxed);
        Ok(())
    }

    fn unallocated_metadata(&self) -> u64 {
        self.volume.unallocated(self.profile_of(Kind::Metadata)).0
    }

    /// What may be promised to metadata of what no group has, after one more chunk. Cautious: of each group to come, so much is left out
    /// that recording it cannot make it less than was promised, and only those of some length count. Nothing if groups serve
    /// both, and for images that shall have no more groups than they need.
    fn outlook(&self, taken: Option<&ChunkPlan>) -> ByteLen {
        if self.rules.mixed || self.rules.chunk_len_max.is_some() || self.rules.read_only {
            return ByteLen(0);
        }
        let nodesize = u64::from(self.rules.nodesize);
        let system = self.space.totals(Kind::System);
        let ahead = 2 * (system.used.0 + SYSTEM_AHEAD_BLOCKS * nodesize);
        self.volume.outlook(&Outlook {
            flags: self.profile_of(Kind::Metadata),
            taken,
            first: (system.free.0 < ahead).then(|| self.profile_of(Kind::System)),
            chunks_max: OUTLOOK_CHUNKS_MAX,
            len_min: ByteLen(OUTLOOK_BLOCKS_MIN * nodesize),
            lost: ByteLen(OUTLOOK_BLOCKS_LOST * nodesize),
        })
    }

    /// Makes sure that more may be promised, with a new chunk if it takes one; `false` if nothing helps.
    pub(crate) fn widen_limit(&self, kind: Kind) -> Result<bool, TxnError> {
        if kind != Kind::Metadata || self.rules.mixed {
            return self.grow(kind);
        }
        let before = self.limit();
        if self.growth.reported_of.load(Ordering::Relaxed) != self.unallocated_metadata() {
            let _one = self.growth.growing.lock();
            let of = self.unallocated_metadata();
            if self.space.offer_growth(kind, self.outlook(None)) {
                self.growth.reported_of.store(of, Ordering::Relaxed);
            }
            if self.limit() > before {
                return Ok(true);
            }
        }
        // Either all that is unallocated is promised already, but for what is too small to be, or there is very much of it.
        Ok(self.grow(kind)? && self.limit() > before)
    }

    /// Bytes that metadata may come to.
    fn limit(&self) -> u64 {
        let totals = self.space.totals(Kind::Metadata);
        (totals.total.0 + totals.growth.0).saturating_sub(totals.read_only.0)
    }

    /// Makes groups for all metadata that is promised and has none, and promises no more of what is unallocated until it is asked
    /// for again; before somebody else can ask, `then` makes what is unallocated less, or groups to come of another profile.
    fn found_promises<R>(&self, then: impl FnOnce() -> R) -> Result<R, TxnError> {
        let _one = self.growth.growing.lock();
        for _ in 0..GROW_MAX {
            if self.space.offer_growth(Kind::Metadata, ByteLen(0)) {
                self.growth.reported_of.store(u64::MAX, Ordering::Relaxed);
                return Ok(then());
            }
            if !self.grow_locked(Kind::Metadata)? {
                break;
            }
        }
        Err(TxnError::NoSpace { what: "metadata", wanted: self.space.totals(Kind::Metadata).growth })
    }

    /// Type and profile for a new group.
    fn profile_of(&self, kind: Kind) -> BlockGroupFlags {
        let wanted = match self.growth.profiles[kind as usize].load(Ordering::Relaxed) {
            0 if self.rules.mixed && kind != Kind::System => BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
            0 => kind.flag(),
            newest => BlockGroupFlags::from_bits_retain(newest),
        };
        // With devices lost, as well as the others can.
        self.volume.attainable(wanted)
    }

    /// Takes blocks for a tree.
    pub(crate) fn alloc_blocks(&self, kind: Kind, count: usize, out: &mut Vec<Logical>) -> Result<(), TxnError> {
        let had = out.len();
        for _ in 0..GROW_MAX {
            let seen = self.space.totals(kind).total;
            match self.space.alloc_blocks(kind, count - (out.len() - had), out) {
                Ok(()) => return Ok(()),
                Err(Refusal::NeedChunk(_)) => {
                    if !self.grow_beyond(kind, seen)? {
                        break;
                    }
                }
                Err(e) => return Err(refused(e)),
            }
        }
        Err(TxnError::NoSpace { what: "metadata", wanted: ByteLen(count as u64 * u64::from(self.rules.nodesize)) })
    }

    /// The same out of a promise, as far as there is one.
    pub(crate) fn alloc_blocks_from(
        &self,
        hold: Option<&Reservation>,
        kind: Kind,
        count: usize,
        out: &mut Vec<Logical>,
    ) -> Result<(), TxnError> {
        let Some(hold) = hold else { return self.alloc_blocks(kind, count, out) };
        for _ in 0..GROW_MAX {
            let seen = self.space.totals(kind).total;
            match self.space.alloc_blocks_from(hold, count, out) {
                Ok(()) => return Ok(()),
                Err(Refusal::NeedChunk(_)) if self.grow_beyond(kind, seen)? => {}
                Err(_) => break,
            }
        }
        self.alloc_blocks(kind, count, out)
    }

    /// Takes space for data, out of the promise as far as it goes.
    pub(crate) fn alloc_data(&self, promise: Option<&Reservation>, want: DataWant) -> Result<Grant, TxnError> {
        let goal = match (want.stream, want.directory) {
            (stream, 0) => Goal::Stream(stream),
            (stream, directory) => Goal::File { stream, directory },
        };
        let want_inner = Want {
            kind: Kind::Data,
            len: want.len,
            min_len: want.min_len,
            align: ByteLen(u64::from(self.rules.sectorsize)),
            goal,
        };
        for _ in 0..GROW_MAX {
            let taken = match promise {
                Some(promise) => self.space.alloc_from(promise, &want_inner),
                None => self.space.alloc(&want_inner),
            };
            match taken {
                Ok(grant) => return Ok(grant),
                Err(Refusal::NeedChunk(_)) => {
                    if !self.grow(Kind::Data)? {
                        break;
                    }
                }
                Err(e) => return Err(refused(e)),
            }
        }
        Err(TxnError::NoSpace { what: "data", wanted: want.min_len })
    }

    /// A reservation, making chunks for it as needed; `None` when there is no room. None is made for what cannot fit.
    pub(crate) fn reserve_growing(&self, kind: Kind, len: ByteLen) -> Result<Option<Reservation>, TxnError> {
        for _ in 0..GROW_MAX {
            match self.space.reserve(kind, len) {
                Ok(guard) => return Ok(Some(guard)),
                Err(Refusal::NeedChunk(_)) => {
                    if self.most(kind) < len.0 || !self.widen_limit(kind)? {
                        return Ok(None);
                    }
                }
                Err(Refusal::NoSpace(_)) => return Ok(None),
                Err(e) => return Err(refused(e)),
            }
        }
        Ok(None)
    }

    /// Bytes that could be promised if all that is unallocated became chunks of this kind.
    fn most(&self, kind: Kind) -> u64 {
        let totals = self.space.totals(kind);
        let unallocated = self.volume.unallocated(self.profile_of(kind)).0;
        let free = totals.free.0.saturating_sub(totals.reserved.0);
        // What is promised to metadata beyond its groups is to come out of the same.
        let metadata = self.space.totals(Kind::Metadata);
        let over = u128::from(metadata.reserved.0.saturating_sub(metadata.free.0));
        let all = u128::from(self.unallocated_metadata().max(1));
        let theirs = over * u128::from(unallocated) / all;
        free.saturating_add(unallocated.saturating_sub(u64::try_from(theirs).unwrap_or(u64::MAX)))
    }

    /// Reserves what the open transaction lacks to let `need` in; `false` when there is no room.
    pub(crate) fn grow_metadata_reserve(&self, need: Need) -> Result<bool, TxnError> {
        self.measure_trees()?;
        let Some(missing) = self.metadata_reserve.shortfall_for(need) else { return Ok(true) };
        let rounded_up = self.metadata_reserve.rounded_up(missing);
        for len in [rounded_up, missing] {
            if let Some(guard) = self.reserve_growing(Kind::Metadata, len)? {
                self.metadata_reserve.add(guard);
                return Ok(true);
            }
        }
        self.replenish_reserve();
        Ok(self.metadata_reserve.shortfall_for(need).is_none())
    }

    /// Reserves as much as there is of what the next transaction should find, before others take it for data.
    pub(crate) fn replenish_reserve(&self) {
        let node = u64::from(self.rules.nodesize);
        let Some(ByteLen(mut missing)) = self.metadata_reserve.shortfall_for(Need::default()) else { return };
        let mut part = missing;
        // Halves at every refusal.
        while missing > 0 && part >= node {
            match self.space.reserve(Kind::Metadata, ByteLen(part.min(missing))) {
                Ok(more) => {
                    missing -= more.left().0;
                    self.metadata_reserve.add(more);
                }
                Err(_) => part = part / 2 / node * node,
            }
        }
    }

    /// Measures what the bounds of the metadata reserve depend on.
    pub(crate) fn measure_trees(&self) -> Result<(), TxnError> {
        let _reader = self.readers.enter();
        let bytes_of = |tree| -> Result<u64, TxnError> {
            let item = self.trees.get(&self.blocks, tree)?.and_then(|state| state.item);
            Ok(item.map_or(0, |item| item.bytes_used.get()))
        };
        let used = self.space.totals(Kind::Metadata).used.0;
        let mut bookkeeping = self.root_tree_blocks.load(Ordering::Relaxed) * u64::from(self.rules.nodesize);
        for tree in BOOKKEEPING {
            bookkeeping = bookkeeping.saturating_add(bytes_of(tree)?);
        }
        // What root items say is not more than there is.
        let (bookkeeping, csums) = (bookkeeping.min(used), bytes_of(TreeId::CSUM)?.min(used));
        self.metadata_reserve.set_sizes(Sizes { used, bookkeeping, csums, limit: self.limit() });
        Ok(())
    }

    /// Blocks of a tree; those of the lowest level are only counted.
    pub(crate) fn count_blocks(&self, root: &TreeRoot) -> Result<u64, TxnError> {
        let mut blocks = 0;
        self.blocks.walk(root, |node, _| {
            let counts_leaves = node.level() == 1;
            blocks += 1 + if counts_leaves { node.len() as u64 } else { 0 };
            Ok::<_, TxnError>(if counts_leaves { Walk::Over } else { Walk::Into })
        })?;
        Ok(blocks)
    }
}

impl Engine {
    /// New groups of this kind have this profile from now on: `flags` as a block group has them. Groups that are needed for what is
    /// promised already are made before that, as they were.
    ///
    /// # Errors
    /// What is promised to metadata has no place yet, and there is none for groups as they were.
    pub fn set_profile(&self, flags: BlockGroupFlags) -> Result<(), TxnError> {
        if !flags.contains(BlockGroupFlags::METADATA) || flags == self.0.profile_of(Kind::Metadata) {
            self.0.growth.note_group(flags);
            return Ok(());
        }
        self.found_promises(|| self.0.growth.note_group(flags))
    }

    /// Keeps new chunks away from what lies behind `end` of a device, for as long as the result lives: so that chunks can
    /// be moved away from there before it shrinks.
    ///
    /// # Errors
    /// There is no such device, or what is promised to metadata has no place yet.
    pub fn keep_free_behind(&self, devid: DevId, end: ByteLen) -> Result<KeptFree, TxnError> {
        Ok(self.found_promises(|| self.0.volume.keep_free_behind(devid, end))??)
    }

    fn found_promises<R>(&self, then: impl Fn() -> R) -> Result<R, TxnError> {
        self.0.writable()?;
        match self.0.found_promises(&then) {
            Err(TxnError::NoSpace { .. }) => {
                // A commit gives back what was promised and not needed.
                self.commit()?;
                self.0.reap();
                self.0.found_promises(&then)
            }
            done => done,
        }
    }
}

fn refused(e: Refusal) -> TxnError {
    match e {
        Refusal::NeedChunk(kind) | Refusal::NoSpace(kind) => {
            TxnError::NoSpace { what: if kind == Kind::Data { "data" } else { "metadata" }, wanted: ByteLen(0) }
        }
        Refusal::Load(e) => e.into(),
    }
}
