//! Space that has to be made before it can be given out: new chunks, and the allocations that may need one.
//!
//! Normal path: (1) an allocation or reservation asks `space`; (2) "nothing fits" comes back as a value; (3) `grow` has the
//! volume propose a chunk, adds it to the chunk map and to the allocator, and keeps its items in `plans`; (4) the next
//! settling records the plans. Until then nothing on disk names the chunk, and nothing that names space in it can be
//! committed before it.
//!
//! Metadata is reserved against groups that exist, never against hope: reservations that do not fit grow a chunk at once.
//! So an operation that was let in cannot meet a full disk in its commit. No chunk is made for a request that could not be met
//! even if all that is unallocated became chunks for it.
//!
//! Locks: rank 12, one grower at a time; below those of `space`. Crash: a chunk that was not recorded never was.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use hashbrown::HashMap;
use oleo_format::{BlockGroupFlags, ByteLen, Key, Logical};
use oleo_space::{Goal, Grant, GroupInfo, Kind, Refusal, Reservation, Run, Want};
use oleo_tree::Change;
use oleo_volume::{ChunkWant, VolumeError};
use parking_lot::{Mutex, MutexGuard};

use crate::TxnError;
use crate::engine::{DataWant, Inner, Need};

/// Chunks that one request may make: the largest request over the smallest chunk, with room to spare.
const GROW_MAX: u32 = 1 << 20;
/// System space kept ahead for the chunk tree, in blocks beyond its own size.
const SYSTEM_AHEAD_BLOCKS: u64 = 16;

/// A chunk on its way into the trees.
pub(crate) struct NewChunk {
    pub(crate) start: Logical,
    pub(crate) len: ByteLen,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) free: Vec<(Logical, ByteLen)>,
    pub(crate) chunk_tree: Vec<Change>,
    pub(crate) dev_tree: Vec<Change>,
}

pub(crate) struct Growth {
    plans: Mutex<Vec<NewChunk>>,
    growing: Mutex<()>,
    /// Groups that nothing is in, and since when that is known (see `relocate::idle`).
    pub(crate) idle: Mutex<HashMap<Logical, Instant>>,
    bytes_used: AtomicI64,
    /// Type and profile of the newest group of each kind as the volume was opened, which those to come are made like; 0 where
    /// there was none.
    profiles: [AtomicU64; 3],
}

impl Growth {
    pub(crate) fn new(bytes_used: u64) -> Growth {
        Growth {
            plans: Mutex::new(Vec::new()),
            growing: Mutex::new(()),
            idle: Mutex::new(HashMap::new()),
            bytes_used: AtomicI64::new(i64::try_from(bytes_used).unwrap_or(i64::MAX)),
            profiles: Default::default(),
        }
    }

    /// A group that the volume has; they are told in the order of their addresses.
    pub(crate) fn note_group(&self, flags: BlockGroupFlags) {
        for kind in Kind::ALL.into_iter().filter(|kind| flags.contains(bit_of(*kind))) {
            self.profiles[kind as usize].store(flags.bits(), Ordering::Relaxed);
        }
    }

    pub(crate) fn take_plans(&self) -> Vec<NewChunk> {
        std::mem::take(&mut *self.plans.lock())
    }

    /// An item of the chunk tree is another now: chunks that wait to be recorded must not bring back the old one. No
    /// chunk is made meanwhile.
    pub(crate) fn replace_in_plans(&self, _held: &MutexGuard<'_, ()>, key: &Key, item: &[u8]) {
        for plan in self.plans.lock().iter_mut() {
            for change in plan.chunk_tree.iter_mut().filter(|change| change.key == *key) {
                *change = Change::put(*key, item.to_vec());
            }
        }
    }

    /// The space of chunks that are not recorded yet.
    pub(crate) fn young(&self) -> Vec<Run> {
        self.plans.lock().iter().map(|plan| Run::new(plan.start, plan.len)).collect()
    }

    pub(crate) fn has_plans(&self) -> bool {
        !self.plans.lock().is_empty()
    }

    /// While held, no chunk is made.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.growing.lock()
    }

    pub(crate) fn add_bytes_used(&self, delta: i64) {
        self.bytes_used.fetch_add(delta, Ordering::Relaxed);
    }

    pub(crate) fn bytes_used(&self) -> u64 {
        u64::try_from(self.bytes_used.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

pub(crate) fn bit_of(kind: Kind) -> BlockGroupFlags {
    match kind {
        Kind::Data => BlockGroupFlags::DATA,
        Kind::Metadata => BlockGroupFlags::METADATA,
        Kind::System => BlockGroupFlags::SYSTEM,
    }
}

/// How long all of them are.
pub(crate) fn sum_of(runs: &[(Logical, ByteLen)]) -> ByteLen {
    ByteLen(runs.iter().map(|(_, len)| len.0).sum())
}

/// `all` without `cut`, which is sorted and may go beyond it.
pub(crate) fn without(all: Run, cut: &[(Logical, ByteLen)]) -> Vec<(Logical, ByteLen)> {
    let (mut free, mut from) = (Vec::new(), all.start);
    for (at, len) in cut.iter().take_while(|(at, _)| *at < all.end()) {
        if *at > from {
            free.push((from, *at - from));
        }
        from = from.max(*at + *len);
    }
    if from < all.end() {
        free.push((from, all.end() - from));
    }
    free
}

/// A new chunk of an image that is to be cut to size may be as large as this part of all chunks before it.
const CHUNK_SHARE: u64 = 16;

impl Inner {
    /// Makes one chunk of a kind; `false` when the devices have no room for one.
    pub(crate) fn grow(&self, kind: Kind) -> Result<bool, TxnError> {
        let _one = self.growth.growing.lock();
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

    /// The same for when a system group is about to be closed; `false` where there is no room.
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
        let want = ChunkWant { len_max: self.chunk_len_max(), ..ChunkWant::new(flags) };
        let plan = match self.volume.propose_chunk(&want) {
            Ok(plan) => plan,
            Err(VolumeError::NoRoom { .. } | VolumeError::SystemArrayFull) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
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
        };
        let put = |(key, data): (Key, Vec<u8>)| Change::put(key, data);
        let mut chunk_tree: Vec<Change> = plan.dev_items.into_iter().chain([plan.chunk_item]).map(put).collect();
        let mut dev_tree: Vec<Change> = plan.dev_extents.into_iter().map(put).collect();
        chunk_tree.sort_unstable_by_key(|c| c.key);
        dev_tree.sort_unstable_by_key(|c| c.key);
        let runs = free.iter().map(|(at, len)| Run::new(*at, *len)).collect();
        self.growth.plans.lock().push(NewChunk { start, len, flags, free, chunk_tree, dev_tree });
        self.space.add_group(info, Some(runs))?;
        Ok(true)
    }

    /// Type and profile for a new group.
    fn profile_of(&self, kind: Kind) -> BlockGroupFlags {
        match self.growth.profiles[kind as usize].load(Ordering::Relaxed) {
            0 if self.rules.mixed && kind != Kind::System => BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
            0 => bit_of(kind),
            newest => BlockGroupFlags::from_bits_retain(newest),
        }
    }

    /// Takes blocks for a tree.
    pub(crate) fn alloc_blocks(&self, kind: Kind, count: usize, out: &mut Vec<Logical>) -> Result<(), TxnError> {
        let had = out.len();
        for _ in 0..GROW_MAX {
            match self.space.alloc_blocks(kind, count - (out.len() - had), out) {
                Ok(()) => return Ok(()),
                Err(Refusal::NeedChunk(_)) => {
                    if !self.grow(kind)? {
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
        if let Some(hold) = hold
            && self.space.alloc_blocks_from(hold, count, out).is_ok()
        {
            return Ok(());
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
                    if self.most(kind) < len.0 || !self.grow(kind)? {
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
        let free = totals.free.0.saturating_sub(totals.reserved.0);
        free.saturating_add(self.volume.unallocated(self.profile_of(kind)).0)
    }

    /// Reserves what the open transaction lacks to let `need` in; `false` when there is no room.
    pub(crate) fn widen_credit(&self, need: Need) -> Result<bool, TxnError> {
        self.credit.set_existing(self.space.totals(Kind::Metadata).used);
        if !self.credit.has_last() {
            for last in self.credit.last_reserves() {
                if let Some(guard) = self.reserve_growing(Kind::Metadata, last)? {
                    self.credit.set_last(guard);
                    break;
                }
            }
        }
        let Some(missing) = self.credit.missing(need) else { return Ok(true) };
        let generous = self.credit.generous(missing);
        for len in [generous, missing] {
            if let Some(guard) = self.reserve_growing(Kind::Metadata, len)? {
                self.credit.add(guard);
                return Ok(true);
            }
        }
        Ok(self.credit.missing(need).is_none())
    }

    /// Bytes that tree blocks could still take: those of free blocks, and what could become metadata chunks.
    pub(crate) fn free_metadata(&self) -> ByteLen {
        let unallocated = self.volume.unallocated(self.profile_of(Kind::Metadata));
        ByteLen(self.space.totals(Kind::Metadata).free.0.saturating_add(unallocated.0))
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
