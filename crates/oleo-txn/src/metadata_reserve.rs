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
//! Normal path: (1) once joined, `charge` counts an operation in and returns whether what is held covers it: it takes from what was counted
//! in ahead for its thread (`slabs`) or counts in itself, and if what is held covers that, more ahead; (2) if not, the operation leaves again, `Inner::grow_metadata_reserve` reserves more,
//! growing a chunk when the allocator says so, and the operation comes back; (3) a freeze moves what the frozen
//! transaction may need aside (`freeze`) and leaves what the promises need; (4) the commit takes its blocks out of the
//! former, and its end (`settled`) hands what is left of it to the open transaction as far as that lacks it, before
//! anybody else can have it.
//!
//! What is ahead in slabs is counted like operations, so it is covered when it is taken, unless operations that free space have used since what
//! covered it: so who takes it looks, which only reads. It is collected before anybody is
//! refused, before a freeze counts, and when more metadata is in use, since then the bound is higher. Thus it costs no operation its place.
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

use crate::barrier::SHARDS;
use crate::counted::Counted;
use crate::options::Need;
use crate::slabs::{Amount, Slabs};

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
    /// Operations of the open transaction, with what is ahead.
    charged: Counted,
    charged_ahead: Slabs,
    /// What writes that are still buffered will need when they are flushed, in whichever transaction that is.
    promised: Counted,
    promised_ahead: Slabs,
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

fn amount_of(need: Need) -> Amount {
    Amount { items: need.items.into(), bytes: need.bytes.into() }
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
            charged: Counted::new(),
            charged_ahead: Slabs::new(SHARDS),
            promised: Counted::new(),
            promised_ahead: Slabs::new(SHARDS),
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
    fn shortfall(&self, charged: Amount, releasing: bool) -> Option<u64> {
        let (bound, last) = if releasing {
            (self.bound(charged.items, charged.bytes), self.last.load(Ordering::Relaxed))
        } else {
            let all = charged.plus(self.promised.get());
            (self.bound(all.items, all.bytes), 0)
        };
        // Read only once: others add to it meanwhile.
        let covered = self.covered.load(Ordering::Acquire) + last;
        if bound <= covered { None } else { Some(bound - covered) }
    }

    /// Items that the open transaction was asked for; while operations go on, about that.
    pub(crate) fn items(&self) -> u64 {
        self.charged.get().items.saturating_sub(self.charged_ahead.left().items)
    }

    /// No less than that, and cheaper to know: what is ahead is counted.
    pub(crate) fn items_at_most(&self) -> u64 {
        self.charged.items()
    }

    /// Counts out what is ahead; whether anything was. The lock is held since a freeze counts anew, and only what it has not seen is
    /// to be counted out.
    fn collect(&self, _held: &MutexGuard<'_, rank::ReserveHeld, Held>) -> bool {
        let (charged, promised) = (self.charged_ahead.drain(), self.promised_ahead.drain());
        self.charged.sub(charged);
        self.promised.sub(promised);
        charged.plus(promised) != Amount::default()
    }

    /// Counts `need` in; returns whether what is held covers it. Called with the join guard held, so that the
    /// transaction in which it is counted is the one in which it is used. `slab` is the caller's thread's.
    pub(crate) fn charge(&self, need: Need, slab: usize) -> bool {
        let amount = amount_of(need);
        if self.alone.load(Ordering::SeqCst) {
            return false;
        }
        if self.charged_ahead.take(slab, amount) {
            // Operations that free space may have used since what covered it.
            if self.shortfall(self.charged.get(), need.releasing).is_none() {
                return true;
            }
            self.charged.sub(amount);
        }
        let ahead = Slabs::<AtomicU64>::ahead(amount, self.charged.get());
        // What is ahead may be taken by any operation: it is covered as for an ordinary one.
        if self.count_in(amount.plus(ahead), false) {
            if !self.charged_ahead.put(slab, ahead) {
                self.charged.sub(ahead);
            }
            return true;
        }
        self.count_in(amount, need.releasing)
            || (self.collect(&self.held.lock()) && self.count_in(amount, need.releasing))
    }

    /// Counts so much in if what is held covers it.
    fn count_in(&self, amount: Amount, releasing: bool) -> bool {
        let is_covered = |all| !self.alone.load(Ordering::SeqCst) && self.shortfall(all, releasing).is_none();
        self.charged.add_if(amount, is_covered)
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
        // A commit that had nothing to write has not collected it.
        self.collect(&self.held.lock());
        // Others add for a moment what they take away again.
        free.0 >= least && self.charged.add_first(Amount { items, bytes })
    }

    /// Counts in what a later operation will need, whatever transactions begin and end meanwhile; returns whether what is held covers it.
    /// It is counted in either case. Called with the join guard held, `slab` is the caller's thread's.
    pub(crate) fn promise(&self, need: Need, slab: usize) -> bool {
        let amount = amount_of(need);
        let is_covered = || self.shortfall(self.charged.get(), false).is_none();
        if self.promised_ahead.take(slab, amount) {
            // Operations that free space may have used since what covered it.
            return is_covered() || (self.collect(&self.held.lock()) && is_covered());
        }
        let ahead = Slabs::<AtomicU64>::ahead(amount, self.promised.get());
        self.promised.add(amount.plus(ahead));
        if is_covered() && self.promised_ahead.put(slab, ahead) {
            return true;
        }
        self.promised.sub(ahead);
        is_covered() || (self.collect(&self.held.lock()) && is_covered())
    }

    /// The later operation is counted for itself now, or will not come. `slab` is the caller's thread's.
    pub(crate) fn cancel_promise(&self, need: Need, slab: usize) {
        let amount = amount_of(need);
        if !self.promised_ahead.put(slab, amount) {
            self.promised.sub(amount);
        }
    }

    /// How much more must be reserved for the counts and `need`, or `None` when what is held covers them.
    pub(crate) fn shortfall_for(&self, need: Need) -> Option<ByteLen> {
        self.collect(&self.held.lock());
        self.shortfall_now(need)
    }

    fn shortfall_now(&self, need: Need) -> Option<ByteLen> {
        self.shortfall(self.charged.get().plus(amount_of(need)), need.releasing).map(ByteLen)
    }

    /// What a reservation is rounded up to while there is plenty.
    pub(crate) fn rounded_up(&self, missing: ByteLen) -> ByteLen {
        ByteLen(missing.0 + STEP_BYTES)
    }

    pub(crate) fn set_existing(&self, used: ByteLen) {
        let existing = used.0.saturating_mul(2);
        let before = self.existing.swap(existing, Ordering::Relaxed);
        if existing > before {
            self.collect(&self.held.lock());
        }
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
        self.collect(&held);
        let charged = self.charged.take();
        held.frozen_items += charged.items;
        held.frozen_bytes += charged.bytes;
        let Some(open) = held.open.take() else { return };
        let needed = self.bound(held.frozen_items, held.frozen_bytes).saturating_sub(held.frozen_len);
        let frozen = open.split(ByteLen(needed));
        held.frozen_len += frozen.left().0;
        match &held.frozen {
            Some(before) => before.join(frozen),
            None => held.frozen = Some(Arc::new(frozen)),
        }
        let promised = self.promised.get();
        let for_promises = match promised.items {
            0 => 0,
            items => self.bound(items, promised.bytes),
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
        self.collect(&held);
        if let Some(missing) = self.shortfall_now(Need::default()) {
            let more = frozen.split(missing);
            self.covered.fetch_add(more.left().0, Ordering::Release);
            join(&mut held.open, more);
        }
        drop(held);
        drop(frozen);
    }
}
