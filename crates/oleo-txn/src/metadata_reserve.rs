//! The metadata reserve: what operations may need, reserved before they change anything, so that ENOSPC comes from the call.
//!
//! A transaction writes each block once however many changes hit it, so its need is bounded twice: by what its changes can
//! touch (`items` × blocks per item) and by what exists (every block of the volume rewritten once, twice with the
//! references that un-sharing adds) plus the new bytes. The smaller bound is reserved.
//!
//! Three sorts of needs:
//! - An ordinary operation joins if what is held covers everything charged to the open transaction and everything promised.
//! - A promise ([`promise`](MetadataReserve::promise)) is for a later operation, in whichever transaction that is: the
//!   flush of buffered data. It counts until that operation has joined.
//! - An operation that frees space, or that was promised space, joins if what is held, promises and the last reserve included,
//!   covers what is charged to its transaction: other promises are for later transactions and no reason to wait. If not even
//!   that is enough, it joins alone (`Engine::join_alone`), so that deleting and flushing work when nothing else does, if
//!   necessary with a commit each.
//!
//! Normal path: (1) once joined, `charge` counts an operation in and returns whether what is held covers it: two atomic
//! additions and a comparison; (2) if not, the operation leaves again, `Inner::grow_metadata_reserve` reserves more,
//! growing a chunk when the allocator says so, and the operation comes back; (3) a freeze moves what the frozen
//! transaction may need aside (`freeze`) and leaves what the promises need; (4) the commit takes its blocks out of the
//! former, and its end (`settled`) hands what is left of it to the open transaction as far as that lacks it, before
//! anybody else can have it.
//!
//! Invariants: an operation is counted in the transaction in which it makes its changes. Held and last reserve ≥ bound(counts
//! of operations) but for the one that came in alone, which rewrites a few paths, far less than the bound says. Locks:
//! `held`, never over I/O; `alone_lock` is taken before joining and before the commit
//! lock. Crash: memory only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oleo_format::ByteLen;
use oleo_lock::{Mutex, MutexGuard, rank};
use oleo_space::Reservation;

use crate::options::Need;

/// Blocks that one changed item may make the transaction rewrite: its leaf, the leaf a split adds, and for both the leaves
/// of the extent tree and the free-space tree that record them, plus ancestors, which neighbours share.
const BLOCKS_PER_ITEM: u64 = 8;
/// New item bytes take room: heads, half-filled leaves after splits, records of the new leaves.
const BYTES_FACTOR: u64 = 3;
/// Blocks that any transaction needs: paths of the bookkeeping trees, root items, chunk records.
const BASE_BLOCKS: u64 = 48;
/// Blocks kept back for operations that free space, or as much of that as there is when they are asked for.
const LAST_RESERVE_BLOCKS: [u64; 3] = [128, 64, 32];
/// Blocks that must really be free for one operation to be let in alone, beside one per item.
const ALONE_BLOCKS: u64 = 32;
/// Reserved beyond the need of the moment, so that the slow path is rare.
const STEP_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Held {
    open: Option<Reservation>,
    frozen: Option<Arc<Reservation>>,
    /// What the operations of the frozen transaction asked for, in all the stages that it has had.
    frozen_items: u64,
    frozen_bytes: u64,
    /// Bytes that were moved to `frozen` for them.
    frozen_len: u64,
    last: Option<Reservation>,
}

pub(crate) struct MetadataReserve {
    nodesize: u64,
    items: AtomicU64,
    bytes: AtomicU64,
    /// What writes that are still buffered will need when they are flushed, in whichever transaction that is.
    promised_items: AtomicU64,
    promised_bytes: AtomicU64,
    /// Bytes in `open`.
    covered: AtomicU64,
    /// Twice the metadata in use.
    existing: AtomicU64,
    /// Bytes in `last`.
    last: AtomicU64,
    /// An operation is about to join alone: all others wait for `alone_lock`.
    alone: AtomicBool,
    alone_lock: Mutex<rank::JoinAlone, ()>,
    held: Mutex<rank::ReserveHeld, Held>,
}

/// While it lives no other operation is charged.
pub(crate) struct Alone<'a> {
    metadata_reserve: &'a MetadataReserve,
    _alone_lock: MutexGuard<'a, rank::JoinAlone, ()>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.metadata_reserve.alone.store(false, Ordering::SeqCst);
    }
}

fn join(to: &mut Option<Reservation>, more: Reservation) {
    match to {
        Some(have) => have.join(more),
        None => *to = Some(more),
    }
}

impl MetadataReserve {
    pub(crate) fn new(nodesize: u32) -> MetadataReserve {
        MetadataReserve {
            nodesize: u64::from(nodesize),
            items: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            promised_items: AtomicU64::new(0),
            promised_bytes: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            existing: AtomicU64::new(0),
            last: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            alone_lock: Mutex::new(()),
            held: Mutex::new(Held::default()),
        }
    }

    fn bound(&self, items: u64, bytes: u64) -> u64 {
        let touched = items.saturating_mul(BLOCKS_PER_ITEM * self.nodesize);
        let existing = self.existing.load(Ordering::Relaxed);
        touched.min(existing) + bytes.saturating_mul(BYTES_FACTOR) + BASE_BLOCKS * self.nodesize
    }

    /// By how much what is held falls short of what so much needs; `None` when it covers that.
    fn shortfall(&self, items: u64, bytes: u64, releasing: bool) -> Option<u64> {
        let (bound, last) = if releasing {
            (self.bound(items, bytes), self.last.load(Ordering::Relaxed))
        } else {
            let items = items + self.promised_items.load(Ordering::Relaxed);
            (self.bound(items, bytes + self.promised_bytes.load(Ordering::Relaxed)), 0)
        };
        // Read only once: others add to it meanwhile.
        let covered = self.covered.load(Ordering::Acquire) + last;
        if bound <= covered { None } else { Some(bound - covered) }
    }

    /// Items that the open transaction was asked for.
    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Counts `need` in; returns whether what is held covers it. Called with the join guard held, so that the
    /// transaction in which it is counted is the one in which it is used.
    pub(crate) fn charge(&self, need: Need) -> bool {
        let (items, bytes) = (u64::from(need.items), u64::from(need.bytes));
        let all_items = self.items.fetch_add(items, Ordering::SeqCst) + items;
        let all_bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let charged =
            !self.alone.load(Ordering::SeqCst) && self.shortfall(all_items, all_bytes, need.releasing).is_none();
        if !charged {
            self.items.fetch_sub(items, Ordering::Relaxed);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        charged
    }

    /// Until the value is dropped no other operation is charged; those charged before are part of the next freeze.
    pub(crate) fn alone(&self) -> Alone<'_> {
        let alone_lock = self.alone_lock.lock();
        self.alone.store(true, Ordering::SeqCst);
        Alone { metadata_reserve: self, _alone_lock: alone_lock }
    }

    /// Waits for an operation that is about to join alone.
    pub(crate) fn wait_for_alone(&self) {
        if self.alone.load(Ordering::SeqCst) {
            drop(self.alone_lock.lock());
        }
    }

    /// As [`Self::charge`], for the holder of `alone`: counts it in if nothing else is counted, and `free` bytes,
    /// which no block has, are enough for what one operation comes to.
    pub(crate) fn charge_alone(&self, _alone: &Alone<'_>, need: Need, free: ByteLen) -> bool {
        let (items, bytes) = (u64::from(need.items), u64::from(need.bytes));
        let used = self.existing.load(Ordering::Relaxed) / 2;
        let least = ((items + ALONE_BLOCKS) * self.nodesize).min(used / 2) + bytes;
        // Others add for a moment what they take away again.
        let charged = self.items.compare_exchange(0, items, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if charged && free.0 < least {
            self.items.fetch_sub(items, Ordering::Relaxed);
            return false;
        }
        if charged {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        charged
    }

    /// Counts in what a later operation will need, whatever transactions begin and end meanwhile. Called with the join
    /// guard held.
    pub(crate) fn promise(&self, need: Need) {
        self.promised_items.fetch_add(u64::from(need.items), Ordering::Relaxed);
        self.promised_bytes.fetch_add(u64::from(need.bytes), Ordering::Relaxed);
    }

    /// The later operation is counted for itself now, or will not come.
    pub(crate) fn cancel_promise(&self, need: Need) {
        self.promised_items.fetch_sub(u64::from(need.items), Ordering::Relaxed);
        self.promised_bytes.fetch_sub(u64::from(need.bytes), Ordering::Relaxed);
    }

    /// How much more must be reserved for the counts and `need`, or `None` when what is held covers them.
    pub(crate) fn shortfall_for(&self, need: Need) -> Option<ByteLen> {
        let items = self.items.load(Ordering::Relaxed) + u64::from(need.items);
        let bytes = self.bytes.load(Ordering::Relaxed) + u64::from(need.bytes);
        self.shortfall(items, bytes, need.releasing).map(ByteLen)
    }

    /// What a reservation is rounded up to while there is plenty.
    pub(crate) fn rounded_up(&self, missing: ByteLen) -> ByteLen {
        ByteLen(missing.0 + STEP_BYTES)
    }

    pub(crate) fn set_existing(&self, used: ByteLen) {
        self.existing.store(used.0.saturating_mul(2), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, guard: Reservation) {
        let mut held = self.held.lock();
        self.covered.fetch_add(guard.left().0, Ordering::Release);
        join(&mut held.open, guard);
    }

    /// Bytes to set aside for operations that free space: the first that there is room for.
    pub(crate) fn last_reserves(&self) -> impl Iterator<Item = ByteLen> + '_ {
        LAST_RESERVE_BLOCKS.iter().map(|blocks| ByteLen(blocks * self.nodesize))
    }

    pub(crate) fn set_last(&self, guard: Reservation) {
        let mut held = self.held.lock();
        self.last.store(guard.left().0, Ordering::Relaxed);
        held.last = Some(guard);
    }

    pub(crate) fn has_last(&self) -> bool {
        self.last.load(Ordering::Relaxed) > 0
    }

    /// What blocks of the frozen transaction are taken out of.
    pub(crate) fn frozen(&self) -> Option<Arc<Reservation>> {
        self.held.lock().frozen.clone()
    }

    /// Joins are blocked: counts start anew. What the frozen transaction may need is its own, what promises need stays, and the
    /// rest goes back.
    pub(crate) fn freeze(&self) {
        let mut held = self.held.lock();
        held.frozen_items += self.items.swap(0, Ordering::SeqCst);
        held.frozen_bytes += self.bytes.swap(0, Ordering::Relaxed);
        let Some(open) = held.open.take() else { return };
        let needed = self.bound(held.frozen_items, held.frozen_bytes).saturating_sub(held.frozen_len);
        let frozen = open.split(ByteLen(needed));
        held.frozen_len += frozen.left().0;
        match &held.frozen {
            Some(before) => before.join(frozen),
            None => held.frozen = Some(Arc::new(frozen)),
        }
        let for_promises = match self.promised_items.load(Ordering::Relaxed) {
            0 => 0,
            items => self.bound(items, self.promised_bytes.load(Ordering::Relaxed)),
        };
        let keep = open.split(ByteLen(for_promises));
        self.covered.store(keep.left().0, Ordering::Release);
        held.open = Some(keep);
        drop(held);
        drop(open);
    }

    /// The frozen transaction has taken its blocks: what it did not need serves the open one as far as that lacks it, and the
    /// rest goes back.
    pub(crate) fn settled(&self) {
        let mut held = self.held.lock();
        (held.frozen_items, held.frozen_bytes, held.frozen_len) = (0, 0, 0);
        let Some(frozen) = held.frozen.take() else { return };
        if let Some(missing) = self.shortfall_for(Need::default()) {
            let more = frozen.split(missing);
            self.covered.fetch_add(more.left().0, Ordering::Release);
            join(&mut held.open, more);
        }
        drop(held);
        drop(frozen);
    }
}
