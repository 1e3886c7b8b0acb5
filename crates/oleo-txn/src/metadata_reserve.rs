//! The metadata reserve: space for the blocks that operations may need, reserved before they change anything, so that ENOSPC
//! comes from the call and never from a commit.
//!
//! A transaction takes blocks for two kinds of trees:
//! - *Trees of files* ([`Inner::touched`](MetadataReserve::touched)). A commit writes each block once, however many changes hit it. So
//!   the need is bounded twice: by what the changes can touch (`items` × blocks per item), and by what exists (all metadata in use,
//!   once for each subvolume in memory, since subvolumes share blocks and each may come to have copies of its own). The smaller bound is charged
//!   to the transaction, with the bytes of new items.
//! - *Bookkeeping trees*: extents, free space, checksums, groups, roots, quota. Items are no bound for these: the first change of a
//!   leaf that a snapshot shares adds a reference to each extent and block below it, anywhere in the extent tree. Their size is a bound, since
//!   they share no blocks and a commit writes each block once. So every transaction has their size, and it is counted once ([`Sizes`]).
//!
//! | reserved beyond what is charged | for | who leaves it alone |
//! |---|---|---|
//! | `bookkeeping` | one rewrite of the bookkeeping trees | all |
//! | `splits` | one split of each of their leaves, which un-sharing makes, and a rewrite of them then | all but an operation that reclaims, alone |
//! | `last` | one operation that reclaims | ordinary and releasing operations |
//! | `spare` | operations that release | ordinary operations |
//!
//! docs/decisions/0034-last-blocks.md has the proof that deleting snapshots always works with that, and what the bounds take for granted.
//!
//! Sorts of operations ([`Claim`]):
//! - An ordinary operation joins if what is held covers everything charged to the open transaction, everything promised, and all four rows.
//! - One that releases space may copy shared blocks first, which stay: it leaves promises and the first three rows alone.
//! - A promise ([`promise`](MetadataReserve::promise)) is for a later operation, in whichever transaction that is: the
//!   flush of buffered data. It counts until that operation has joined.
//! - An operation that was promised space, or that reclaims space and adds nothing that stays, leaves the first two rows alone: other promises
//!   are for later transactions and no reason to wait.
//!
//! If what is held is not even enough for one of the last three, it joins alone (`Engine::join`), so that deleting and flushing work when
//! nothing else does, if necessary with a commit each.
//!
//! Normal path: (1) once joined, `charge` counts an operation in and returns whether what is held covers it: it takes from what was counted
//! in ahead for its thread (`slabs`) or counts in itself, and if what is held covers that, more ahead; (2) if not, the operation leaves again, `Inner::grow_metadata_reserve` reserves more,
//! growing a chunk when the allocator says so, and the operation comes back; (3) a freeze moves what the frozen
//! transaction may need aside (`freeze`) and leaves what promises and the next transaction need, as far as it goes; (4) the commit takes its blocks out of the
//! former, and its end (`settled`) hands what is left of it to the open transaction as far as that lacks it, before
//! another operation can take it. Space that the commit freed is reserved as soon as it is free (`Inner::replenish_reserve`).
//!
//! What is ahead in slabs is counted like operations, so it is covered when it is taken, unless operations that free space have used since what
//! covered it: so who takes it looks, which only reads. It is collected before anybody is
//! refused, before a freeze counts, and when more metadata is in use, since then the bound is higher. Thus it costs no operation its place.
//!
//! Invariants: an operation is counted in the transaction in which it makes its changes. Held bytes ≥ touched(counts of operations) +
//! `bookkeeping`, also of the one that came in alone; a commit takes no more blocks than that ([`Inner::overdrawn`](crate::engine::Inner::overdrawn)
//! counts those that it does, for tests). Locks:
//! `held`, never over I/O; `alone_lock` is taken before joining and before the commit
//! lock. Crash: memory only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oleo_format::ByteLen;
use oleo_lock::{Mutex, MutexGuard, rank};
use oleo_space::Reservation;

use crate::barrier::SHARDS;
use crate::counted::Counted;
use crate::options::{Claim, Need};
use crate::slabs::{Amount, Slabs};

/// Blocks that one changed item may make a transaction add to a tree of files, beside those of each level: the leaf that a split adds, and
/// a neighbour that is merged with.
const BLOCKS_PER_ITEM: u64 = 2;
/// The same for each level: the block, and what records it and what it refers to, in half-filled leaves. References of an unshared
/// leaf take 29 bytes for each 78 of it, those of a node 9 for each 33.
const BLOCKS_PER_LEVEL: u64 = 2;
/// Levels of a tree that are counted at least.
const LEVELS_MIN: u64 = 3;
/// New item bytes take room: heads, half-filled leaves after splits, records of the new leaves.
const BYTES_FACTOR: u64 = 3;
/// Blocks that bookkeeping trees may grow by in any transaction, beside one part in [`GROWTH_PART`]: chunk records, roots.
const GROWTH_BLOCKS: u64 = 16;
const GROWTH_PART: u64 = 8;
/// Bytes of bookkeeping trees that are counted at most: of all except checksums, and of checksums. A transaction rewrites checksums only at the
/// ends of the ranges that it frees.
const BOOKKEEPING_MAX: u64 = 512 << 20;
const CSUMS_MAX: u64 = 64 << 20;
/// Bytes of their leaves that are counted as split at most.
const SPLITS_MAX: u64 = 64 << 20;
/// Places at which an operation that reclaims space may change a tree of files: an unlink changes the most.
const LAST_PLACES: u64 = 8;
/// The most that is kept back for it: one part in so many of the bytes that metadata may come to.
const LAST_PART: u64 = 32;
/// Blocks kept back for operations that release space, and the same for small volumes.
const SPARE_BLOCKS: u64 = 128;
const SPARE_PART: u64 = 16;
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
}

/// How large the trees of a volume are, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sizes {
    /// All metadata in use.
    pub(crate) used: u64,
    /// Bookkeeping trees except the tree of checksums.
    pub(crate) bookkeeping: u64,
    pub(crate) csums: u64,
    /// What metadata may come to.
    pub(crate) limit: u64,
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
    /// Metadata in use.
    used: AtomicU64,
    /// Levels of the highest tree.
    levels: Arc<AtomicU64>,
    /// Subvolumes in memory that may be changed, the most there were.
    subvols: AtomicU64,
    /// The rows of the table above.
    bookkeeping: AtomicU64,
    splits: AtomicU64,
    last: AtomicU64,
    spare: AtomicU64,
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
    /// `levels`: of the highest tree, as they become known.
    pub(crate) fn new(nodesize: u32, levels: Arc<AtomicU64>) -> MetadataReserve {
        MetadataReserve {
            nodesize: u64::from(nodesize),
            charged: Counted::new(),
            charged_ahead: Slabs::new(SHARDS),
            promised: Counted::new(),
            promised_ahead: Slabs::new(SHARDS),
            covered: AtomicU64::new(0),
            used: AtomicU64::new(0),
            levels,
            subvols: AtomicU64::new(1),
            bookkeeping: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            last: AtomicU64::new(0),
            spare: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            alone_lock: Mutex::new(()),
            held: Mutex::new(Held::default()),
        }
    }

    /// Bytes that one changed item takes in a tree of files.
    fn per_item(&self) -> u64 {
        let levels = self.levels.load(Ordering::Relaxed).max(LEVELS_MIN);
        (BLOCKS_PER_ITEM + BLOCKS_PER_LEVEL * levels) * self.nodesize
    }

    /// What so many changed items take in trees of files.
    fn touched(&self, of: Amount) -> u64 {
        let existing = self.used.load(Ordering::Relaxed).saturating_mul(self.subvols.load(Ordering::Relaxed) + 1);
        of.items.saturating_mul(self.per_item()).min(existing) + of.bytes.saturating_mul(BYTES_FACTOR)
    }

    /// Bytes that an operation leaves alone beside those charged.
    fn kept(&self, claim: Claim) -> u64 {
        let sum = |rows: &[&AtomicU64]| rows.iter().map(|row| row.load(Ordering::Relaxed)).sum();
        let Self { bookkeeping, splits, last, spare, .. } = self;
        match claim {
            Claim::Ordinary => sum(&[bookkeeping, splits, last, spare]),
            Claim::Release => sum(&[bookkeeping, splits, last]),
            Claim::Promised | Claim::Reclaim => sum(&[bookkeeping, splits]),
        }
    }

    /// By how much what is held falls short of what so much needs; `None` when it covers that.
    fn shortfall(&self, charged: Amount, claim: Claim) -> Option<u64> {
        let all = match claim {
            Claim::Ordinary | Claim::Release => charged.plus(self.promised.get()),
            Claim::Promised | Claim::Reclaim => charged,
        };
        self.lacks(self.touched(all) + self.kept(claim))
    }

    fn lacks(&self, bound: u64) -> Option<u64> {
        bound.checked_sub(self.covered.load(Ordering::Acquire)).filter(|missing| *missing > 0)
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
            if self.shortfall(self.charged.get(), need.claim).is_none() {
                return true;
            }
            self.charged.sub(amount);
        }
        let ahead = Slabs::<AtomicU64>::ahead(amount, self.charged.get());
        // What is ahead may be taken by any operation: it is covered as for an ordinary one.
        if self.count_in(amount.plus(ahead), Claim::Ordinary) {
            if !self.charged_ahead.put(slab, ahead) {
                self.charged.sub(ahead);
            }
            return true;
        }
        self.count_in(amount, need.claim) || (self.collect(&self.held.lock()) && self.count_in(amount, need.claim))
    }

    /// Counts so much in if what is held covers it.
    fn count_in(&self, amount: Amount, claim: Claim) -> bool {
        let is_covered = |all| !self.alone.load(Ordering::SeqCst) && self.shortfall(all, claim).is_none();
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

    /// By how much what is held falls short of what `need` takes in a transaction of its own.
    pub(crate) fn shortfall_alone(&self, need: Need) -> Option<ByteLen> {
        let places = Amount { items: need.items.saturating_sub(need.row).into(), bytes: need.bytes.into() };
        let bound = match need.claim {
            Claim::Ordinary | Claim::Release => self.touched(places.plus(self.promised.get())) + self.kept(need.claim),
            Claim::Promised => self.touched(places) + self.kept(need.claim),
            Claim::Reclaim => self.touched(places) + self.bookkeeping.load(Ordering::Relaxed),
        };
        self.lacks(bound).map(ByteLen)
    }

    /// As [`Self::charge`], for the holder of `alone`: counts it in if nothing else is counted, and what is held is enough for it alone.
    pub(crate) fn charge_alone(&self, _alone: &Alone<'_>, need: Need) -> bool {
        // A commit that had nothing to write has not collected it.
        self.collect(&self.held.lock());
        // Others add for a moment what they take away again.
        self.shortfall_alone(need).is_none() && self.charged.add_first(amount_of(need))
    }

    /// Counts in what a later operation will need, whatever transactions begin and end meanwhile; returns whether what is held covers it.
    /// It is counted in either case. Called with the join guard held, `slab` is the caller's thread's.
    pub(crate) fn promise(&self, need: Need, slab: usize) -> bool {
        let amount = amount_of(need);
        let is_covered = || self.shortfall(self.charged.get(), Claim::Ordinary).is_none();
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
        self.shortfall(self.charged.get().plus(amount_of(need)), need.claim).map(ByteLen)
    }

    /// What a reservation is rounded up to while there is plenty.
    pub(crate) fn rounded_up(&self, missing: ByteLen) -> ByteLen {
        ByteLen(missing.0 + STEP_BYTES)
    }

    /// Says how large the trees are now.
    pub(crate) fn set_sizes(&self, sizes: Sizes) {
        let Sizes { used, bookkeeping, csums, limit } = sizes;
        let counted = bookkeeping.min(BOOKKEEPING_MAX) + csums.min(CSUMS_MAX);
        let rewritten = |bytes: u64| bytes + bytes / GROWTH_PART;
        let splits = counted.min(SPLITS_MAX);
        self.bookkeeping.store(rewritten(counted) + GROWTH_BLOCKS * self.nodesize, Ordering::Relaxed);
        // As many bytes more, which are then written anew like the others.
        self.splits.store(splits + rewritten(splits), Ordering::Relaxed);
        self.last.store((LAST_PLACES * self.per_item()).min(limit / LAST_PART), Ordering::Relaxed);
        self.spare.store((SPARE_BLOCKS * self.nodesize).min(limit / SPARE_PART), Ordering::Relaxed);
        let before = self.used.swap(used, Ordering::Relaxed);
        if used > before {
            self.collect(&self.held.lock());
        }
    }

    /// So many subvolumes that may be changed are in memory.
    pub(crate) fn note_subvols(&self, count: u64) {
        self.subvols.fetch_max(count, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, guard: Reservation) {
        let mut held = self.held.lock();
        self.covered.fetch_add(guard.left().0, Ordering::Release);
        join(&mut held.open, guard);
    }

    /// What blocks of the frozen transaction are taken out of.
    pub(crate) fn frozen(&self) -> Option<Arc<Reservation>> {
        self.held.lock().frozen.clone()
    }

    /// Joins are blocked: counts start anew. The frozen transaction gets the bytes that it may need; those that promises and the next
    /// transaction need stay here, as far as there are any; the rest is released.
    pub(crate) fn freeze(&self) {
        let mut held = self.held.lock();
        self.collect(&held);
        let charged = self.charged.take();
        held.frozen_items += charged.items;
        held.frozen_bytes += charged.bytes;
        let Some(open) = held.open.take() else { return };
        let counted = Amount { items: held.frozen_items, bytes: held.frozen_bytes };
        let needed = (self.touched(counted) + self.kept(Claim::Reclaim)).saturating_sub(held.frozen_len);
        let frozen = open.split(ByteLen(needed));
        held.frozen_len += frozen.left().0;
        match &held.frozen {
            Some(before) => before.join(frozen),
            None => held.frozen = Some(Arc::new(frozen)),
        }
        let keep = open.split(ByteLen(self.touched(self.promised.get()) + self.kept(Claim::Ordinary)));
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

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16 << 10;

    fn reserve(used: u64, bookkeeping: u64) -> MetadataReserve {
        let reserve = MetadataReserve::new(NODE as u32, Arc::new(AtomicU64::new(3)));
        reserve.set_sizes(Sizes { used, bookkeeping, csums: 0, limit: 100 * used });
        reserve
    }

    /// How much must be reserved for an operation, in blocks.
    fn blocks(reserve: &MetadataReserve, items: u32, claim: Claim) -> u64 {
        reserve.shortfall_for(Need { items, claim, ..Need::default() }).map_or(0, |bytes| bytes.0 / NODE)
    }

    /// Goal: all other operations leave alone the space that the last operations need, in steps. Method: the blocks that each claim must find for the same need.
    #[test]
    fn claims_leave_rows_alone() {
        let reserve = reserve(10_000 * NODE, 80 * NODE);
        let claims = [Claim::Ordinary, Claim::Release, Claim::Promised, Claim::Reclaim];
        let need = claims.map(|claim| blocks(&reserve, 10, claim));
        let (touched, bookkeeping, splits) = (10 * 8, 80 + 10 + 16, 80 + 80 + 10);
        let all = touched + bookkeeping + splits;
        let last = LAST_PLACES * 8;
        assert_eq!(need, [all + last + SPARE_BLOCKS, all + last, all, all]);
        let need = Need { items: 10, row: 7, claim: Claim::Reclaim, ..Need::default() };
        let alone = reserve.shortfall_alone(need).map(|bytes| bytes.0 / NODE);
        assert_eq!(alone, Some(3 * 8 + bookkeeping));
    }

    /// Goal: promises are left alone by what adds or may copy something, not by what frees.
    #[test]
    fn promises_are_left_alone() {
        let reserve = reserve(10_000 * NODE, 80 * NODE);
        let before = [Claim::Ordinary, Claim::Release, Claim::Reclaim].map(|claim| blocks(&reserve, 1, claim));
        reserve.promise(Need { items: 100, ..Need::default() }, 0);
        let after = [Claim::Ordinary, Claim::Release, Claim::Reclaim].map(|claim| blocks(&reserve, 1, claim));
        assert_eq!(after, [before[0] + 800, before[1] + 800, before[2]]);
    }

    /// Goal: a transaction may make a copy of every block for each subvolume that it changes, and no more. Method: very many items.
    #[test]
    fn subvolumes_have_copies_of_their_own() {
        let reserve = reserve(1000 * NODE, 0);
        let need = |reserve: &MetadataReserve| {
            blocks(reserve, u32::MAX, Claim::Ordinary) - blocks(reserve, 0, Claim::Ordinary)
        };
        assert_eq!(need(&reserve), 2 * 1000);
        reserve.note_subvols(10);
        reserve.note_subvols(3);
        assert_eq!(need(&reserve), 11 * 1000);
    }

    /// Goal: the space that is kept is bounded on large volumes, and a part of small ones.
    #[test]
    fn what_is_kept_is_bounded() {
        let large = reserve(1 << 42, 1 << 40);
        let kept = blocks(&large, 0, Claim::Ordinary) * NODE;
        let rewritten = BOOKKEEPING_MAX + BOOKKEEPING_MAX / GROWTH_PART;
        assert!(kept < rewritten + 3 * SPLITS_MAX, "{kept}");
        let small = MetadataReserve::new(NODE as u32, Arc::default());
        small.set_sizes(Sizes { used: 20 * NODE, bookkeeping: 8 * NODE, csums: 0, limit: 320 * NODE });
        assert_eq!(blocks(&small, 0, Claim::Ordinary), (9 + GROWTH_BLOCKS) + (8 + 9) + 10 + 20);
    }
}
