//! Metadata credit: what operations may need, reserved before they change anything, so that ENOSPC comes from the call.
//!
//! A transaction writes each block once however many changes hit it, so its need is bounded twice: by what its changes can
//! touch (`items` × blocks per item) and by what exists (every block of the volume rewritten once, twice with the
//! references that un-sharing adds) plus the new bytes. The smaller bound is reserved.
//!
//! Normal path: (1) `take` adds an operation's need to the open transaction's counts and says whether what is held covers
//! the bound: two atomic additions and a comparison; (2) where not, `Inner::widen_credit` reserves more, growing a chunk
//! when the allocator says so; (3) a freeze moves what is held aside (`freeze`), the end of the commit drops it.
//!
//! Invariants: held ≥ bound(counts) for every operation that was let in, but for releasing ones, which may use the last
//! reserve, and one of them at a time does so whatever its bound: a single operation on an otherwise empty transaction
//! rewrites a few paths, far less than the bound says. So deleting works when nothing else does, if need be with a commit
//! each. Locks: rank 20 (`held`), never over I/O but for a chunk being planned. Crash: memory only.

use std::sync::atomic::{AtomicU64, Ordering};

use oleo_format::ByteLen;
use oleo_space::Reservation;
use parking_lot::Mutex;

use crate::engine::Need;

/// Blocks that one changed item may make the transaction rewrite: its leaf, the leaf a split adds, and for both the leaves
/// of the extent tree and the free-space tree that record them, plus ancestors, which neighbours share.
const BLOCKS_PER_ITEM: u64 = 8;
/// New item bytes take room: heads, half-filled leaves after splits, records of the new leaves.
const BYTES_FACTOR: u64 = 3;
/// Blocks that any transaction needs: paths of the bookkeeping trees, root items, chunk records.
const BASE_BLOCKS: u64 = 48;
/// Blocks kept back for operations that free space.
const LAST_RESERVE_BLOCKS: u64 = 128;
/// Reserved at once beyond the need of the moment, so that the slow path is rare.
const STEP_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Held {
    open: Vec<Reservation>,
    frozen: Vec<Reservation>,
    last: Vec<Reservation>,
}

pub(crate) struct Credit {
    nodesize: u64,
    items: AtomicU64,
    bytes: AtomicU64,
    /// What writes that are still buffered will need when they are flushed, in whichever transaction that is.
    promised_items: AtomicU64,
    promised_bytes: AtomicU64,
    /// Bytes in `open`.
    covered: AtomicU64,
    /// Twice the metadata in use, refreshed by the slow path.
    existing: AtomicU64,
    /// Bytes in `last`.
    last: AtomicU64,
    held: Mutex<Held>,
}

impl Credit {
    pub(crate) fn new(nodesize: u32) -> Credit {
        Credit {
            nodesize: u64::from(nodesize),
            items: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            promised_items: AtomicU64::new(0),
            promised_bytes: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            existing: AtomicU64::new(0),
            last: AtomicU64::new(0),
            held: Mutex::new(Held::default()),
        }
    }

    fn bound(&self, items: u64, bytes: u64) -> u64 {
        let items = items + self.promised_items.load(Ordering::Relaxed);
        let bytes = bytes + self.promised_bytes.load(Ordering::Relaxed);
        let touched = items.saturating_mul(BLOCKS_PER_ITEM * self.nodesize);
        let existing = self.existing.load(Ordering::Relaxed);
        touched.min(existing) + bytes * BYTES_FACTOR + BASE_BLOCKS * self.nodesize
    }

    /// By how much what is held falls short of `bound`, the last reserve left out; `None` when it covers it.
    fn shortfall(&self, bound: u64, releasing: bool) -> Option<u64> {
        let last = if releasing { self.last.load(Ordering::Relaxed) } else { 0 };
        // Looked at once: others add to it meanwhile.
        let covered = self.covered.load(Ordering::Acquire);
        if bound <= covered + last { None } else { Some(bound - covered) }
    }

    /// Items that the open transaction was asked for.
    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Counts `need` in; whether what is held covers it. If not, widen or `untake`.
    pub(crate) fn take(&self, need: Need) -> bool {
        let items = self.items.fetch_add(u64::from(need.items), Ordering::Relaxed) + u64::from(need.items);
        let bytes = self.bytes.fetch_add(u64::from(need.bytes), Ordering::Relaxed) + u64::from(need.bytes);
        self.shortfall(self.bound(items, bytes), need.releasing).is_none()
    }

    /// Counts in what a later operation will need, whatever transactions begin and end meanwhile; whether what is held
    /// covers it. If not, widen or `unpromise`.
    pub(crate) fn promise(&self, need: Need) -> bool {
        self.promised_items.fetch_add(u64::from(need.items), Ordering::Relaxed);
        self.promised_bytes.fetch_add(u64::from(need.bytes), Ordering::Relaxed);
        self.missing(false).is_none()
    }

    /// The later operation asks for itself now, or will not come.
    pub(crate) fn unpromise(&self, need: Need) {
        self.promised_items.fetch_sub(u64::from(need.items), Ordering::Relaxed);
        self.promised_bytes.fetch_sub(u64::from(need.bytes), Ordering::Relaxed);
    }

    /// The operation gave up. Its counts may have gone with a freeze meanwhile, so they never fall below zero.
    pub(crate) fn untake(&self, need: Need) {
        let sub = |n: &AtomicU64, by: u32| {
            let _ = n.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(v.saturating_sub(u64::from(by))));
        };
        sub(&self.items, need.items);
        sub(&self.bytes, need.bytes);
    }

    /// How much more must be reserved to cover the counts, or `None` when they are.
    pub(crate) fn missing(&self, releasing: bool) -> Option<ByteLen> {
        let bound = self.bound(self.items.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        self.shortfall(bound, releasing).map(ByteLen)
    }

    /// What a reservation is rounded up to while there is plenty.
    pub(crate) fn generous(&self, missing: ByteLen) -> ByteLen {
        ByteLen(missing.0 + STEP_BYTES)
    }

    pub(crate) fn set_existing(&self, used: ByteLen) {
        self.existing.store(used.0.saturating_mul(2), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, guard: Reservation, len: ByteLen) {
        let mut held = self.held.lock();
        held.open.push(guard);
        self.covered.fetch_add(len.0, Ordering::Release);
    }

    /// Bytes to set aside for operations that free space.
    pub(crate) fn last_reserve(&self) -> ByteLen {
        ByteLen(LAST_RESERVE_BLOCKS * self.nodesize)
    }

    pub(crate) fn set_last(&self, guard: Reservation, len: ByteLen) {
        self.held.lock().last = vec![guard];
        self.last.store(len.0, Ordering::Relaxed);
    }

    pub(crate) fn has_last(&self) -> bool {
        self.last.load(Ordering::Relaxed) > 0
    }

    /// Whether `need` is all that the open transaction was asked for (once or, where nothing was there to commit, twice), and there is a last reserve to do it with.
    pub(crate) fn is_all(&self, need: Need) -> bool {
        self.has_last() && self.items.load(Ordering::Relaxed) <= 2 * u64::from(need.items)
    }

    /// The gate is closed: counts start anew; what is held belongs to the frozen transaction.
    pub(crate) fn freeze(&self) {
        let mut held = self.held.lock();
        let open = std::mem::take(&mut held.open);
        held.frozen.extend(open);
        self.covered.store(0, Ordering::Release);
        self.items.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// The frozen transaction has taken its blocks: the rest of its reservation goes back.
    pub(crate) fn settled(&self) {
        let frozen = std::mem::take(&mut self.held.lock().frozen);
        drop(frozen);
    }
}
