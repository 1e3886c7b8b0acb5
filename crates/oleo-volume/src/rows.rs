//! Who may change or rebuild which rows of chunks with parity, what of them was written lately, and what was counted.
//!
//! A row's parity fits its data only between two writes. So whoever writes to a part of a row, or rebuilds from it, has it for
//! himself; reading what is there needs nothing.
//!
//! *Turns*: each flush begins a new one ([`Rows::turn`]). What was written in the present turn is named by no superblock that is on a device: one that
//! names it is written behind a flush that came later. [`Rows::stamp`] notes it. What was noted may be forgotten: more is taken for live then, which costs
//! a record. What was given to somebody lately and may not be written yet is named by nothing, either ([`Occupancy::is_unnamed`]): so two who write the two
//! ends of one row need no record. A flush waits for who has a row, since what he found not to be live may be so behind it.
//!
//! Locks: a shard for some of the rows; of several, in the order of their numbers; then the right to write records (`records`). They are held over the
//! devices' work. Leaves: `bases`, `stamps`, `patches`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use oleo_format::{ByteLen, DevId, Logical, SuperBlock};
use oleo_lock::{Mutex, MutexGuard, RwLock, rank};

use crate::geometry::STRIPE_LEN;
use crate::records::{Bases, Records};

/// Shards: more than threads that write, so that two rarely meet.
const SHARDS: usize = 64;

/// Bytes that are looked at together when it is asked what is live, and that one [`Verdict`] is of: the smallest sector.
pub const GRAIN: usize = 4096;
/// Rows of which it is known what was written in the present turn; of more it is forgotten.
const STAMPS_MAX: usize = 1 << 14;

/// Says what bytes are to those who would lose them. Asked while rows are held, so it neither reads nor writes.
pub trait Occupancy: Send + Sync {
    /// Whether no state on a device names any of these bytes, and none will before somebody writes them again. `false` if that is not known.
    fn is_free(&self, at: Logical, len: ByteLen) -> bool;

    /// Whether no state on a device names any of these bytes, and none will before the next flush: they are free, or were given to somebody so lately
    /// that nothing that is durable can say so. `false` if that is not known.
    fn is_unnamed(&self, at: Logical, len: ByteLen) -> bool {
        self.is_free(at, len)
    }
}

/// What is known of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is what it should be.
    Good,
    /// It is not.
    Bad,
    /// There is nothing to tell by.
    Unknown,
}

/// Knows what live sectors should be. Asked while no row is held, so it may read, from the volume that asks, too.
pub trait Witness: Send + Sync {
    /// Of bytes that were read at an address: what is known of each [`GRAIN`] of them, the last of which may be fewer.
    fn verdicts(&self, at: Logical, bytes: &[u8]) -> Vec<Verdict>;
}

/// How rows of chunks with parity were written since the volume was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RowStats {
    /// Rows that were written whole: nothing was read.
    pub whole: u64,
    /// Parts of rows, each the same run of bytes of all units, of which something else was read first.
    pub parts: u64,
    /// Of these, runs that have live sectors beside what was written, and were recorded before.
    pub recorded: u64,
    /// The same, where no record can be kept.
    pub unrecorded: u64,
    /// Records that were written, each with a flush.
    pub records: u64,
    /// Bytes that were read for parts.
    pub read_bytes: u64,
    /// Bytes of parity that were written.
    pub parity_bytes: u64,
    /// Parts whose parity did not fit something live when they were to be written.
    pub misfits: u64,
    /// Sectors of these that had rotted and were rebuilt, in pieces of 4096 bytes.
    pub healed: u64,
    /// The same that could not be rebuilt: parity was left as it was there.
    pub lost: u64,
}

/// The locks and the counters.
#[derive(Default)]
pub(crate) struct Rows {
    shards: Shards,
    /// Somebody has had a row. Set before the row is taken and its turn is read: who finds it unset need not wait for anybody.
    used: AtomicBool,
    pub records: Mutex<rank::StripeRecords, Records>,
    /// The superblocks that may be the newest while something is written.
    bases: Mutex<rank::RecordBases, Bases>,
    turn: AtomicU64,
    stamps: Mutex<rank::RowStamps, HashMap<(Logical, u64), Stamp>>,
    occupancy: OnceLock<Weak<dyn Occupancy>>,
    witness: OnceLock<Weak<dyn Witness>>,
    /// Nothing is live: the volume is being made.
    nothing_is_live: bool,
    patches: RwLock<rank::RowPatches, Patches>,
    whole: AtomicU64,
    parts: AtomicU64,
    recorded: AtomicU64,
    unrecorded: AtomicU64,
    record_count: AtomicU64,
    read_bytes: AtomicU64,
    parity_bytes: AtomicU64,
    misfits: AtomicU64,
    healed: AtomicU64,
    lost: AtomicU64,
}

/// Parity that is not on the devices: by device and place.
pub(crate) type Patches = BTreeMap<(DevId, u64), Vec<u8>>;

/// What was written of a row in one turn: units and grains in them.
struct Stamp {
    turn: u64,
    grains: BTreeMap<usize, u16>,
}

struct Shards([Mutex<rank::StripeRow, ()>; SHARDS]);

impl Default for Shards {
    fn default() -> Shards {
        Shards(std::array::from_fn(|_| Mutex::new(())))
    }
}

/// Rows that nobody else changes or rebuilds.
pub(crate) type Held<'a> = Vec<MutexGuard<'a, rank::StripeRow, ()>>;

fn shard_of(chunk: Logical, row: u64) -> usize {
    let mixed = (chunk.0 ^ row).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize % SHARDS
}

impl Rows {
    /// Waits until nobody else has one of these rows (start of the chunk, number of the row).
    pub fn lock(&self, rows: impl Iterator<Item = (Logical, u64)>) -> Held<'_> {
        let mut shards: Vec<usize> = rows.map(|(chunk, row)| shard_of(chunk, row)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| self.lock_shard(shard)).collect()
    }

    /// The same for one row.
    pub fn lock_one(&self, chunk: Logical, row: u64) -> MutexGuard<'_, rank::StripeRow, ()> {
        self.lock_shard(shard_of(chunk, row))
    }

    fn lock_shard(&self, shard: usize) -> MutexGuard<'_, rank::StripeRow, ()> {
        if !self.used.load(SeqCst) {
            self.used.store(true, SeqCst);
        }
        self.shards.0[shard].lock_by([shard as u64, 0, 0])
    }

    /// For a volume that is being made.
    pub fn of_new_volume() -> Rows {
        Rows { nothing_is_live: true, ..Rows::default() }
    }

    pub fn set_occupancy(&self, by: Weak<dyn Occupancy>) {
        let _ = self.occupancy.set(by);
    }

    pub fn set_witness(&self, by: Weak<dyn Witness>) {
        let _ = self.witness.set(by);
    }

    /// Who knows what live sectors should be.
    pub fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.witness.get().and_then(Weak::upgrade)
    }

    /// The superblocks that may be the newest while rows are written; asked by whoever has them, before he asks what is live in them.
    pub fn bases(&self) -> Bases {
        *self.bases.lock()
    }

    /// A superblock is about to be written. Whoever finds it in [`bases`](Self::bases) may be under way when it is the newest, and is told
    /// afterwards that what was stamped before is live. Whoever does not find it is waited for by the barrier before it. `false`: it must not
    /// be written, since too many others may be on disk.
    #[must_use]
    pub fn is_to_be_newest(&self, sb: &SuperBlock) -> bool {
        // In this order.
        self.turn.fetch_add(1, SeqCst);
        self.bases.lock().add(sb.into())
    }

    /// A superblock is the newest, and durable.
    pub fn is_newest(&self, sb: &SuperBlock) {
        *self.bases.lock() = Bases::only(sb.into());
    }

    /// The present turn, for what is about to be written.
    pub fn now(&self) -> u64 {
        self.turn.load(SeqCst)
    }

    /// A flush is about to begin. What was found not to be live before is written, with its parity, when this returns: behind the flush a superblock may
    /// name it.
    pub fn turn(&self) {
        self.turn.fetch_add(1, SeqCst);
        if self.used.load(SeqCst) {
            (0..SHARDS).for_each(|shard| drop(self.lock_shard(shard)));
        }
    }

    /// Notes that a piece of a unit was written; `turn`: the one in which that began.
    pub fn stamp(&self, row: (Logical, u64), unit: usize, from: usize, len: usize, turn: u64) {
        let mut stamps = self.stamps.lock();
        if stamps.len() >= STAMPS_MAX && !stamps.contains_key(&row) {
            let now = self.now();
            stamps.retain(|_, stamp| stamp.turn == now);
            if stamps.len() >= STAMPS_MAX {
                stamps.clear();
            }
        }
        let stamp = stamps.entry(row).or_insert_with(|| Stamp { turn, grains: BTreeMap::new() });
        if stamp.turn != turn {
            *stamp = Stamp { turn, grains: BTreeMap::new() };
        }
        // What is not whole is not noted.
        let (first, end) = (from.div_ceil(GRAIN), (from + len) / GRAIN);
        let bits = (first..end).fold(0u16, |bits, grain| bits | 1 << grain);
        *stamp.grains.entry(unit).or_default() |= bits;
    }

    /// Whether a grain of a row, at `at`, may be something that a crash must not take. The caller holds the row.
    pub fn is_live(&self, row: (Logical, u64), unit: usize, grain: usize, at: Logical) -> bool {
        if self.nothing_is_live {
            return false;
        }
        let fresh = self.stamps.lock().get(&row).is_some_and(|stamp| {
            stamp.turn == self.now() && stamp.grains.get(&unit).is_some_and(|bits| bits >> grain & 1 == 1)
        });
        let is_unnamed =
            |by: &Weak<dyn Occupancy>| by.upgrade().is_some_and(|by| by.is_unnamed(at, ByteLen(GRAIN as u64)));
        !fresh && !self.occupancy.get().is_some_and(is_unnamed)
    }

    /// Whether nobody has these bytes; `false` where that is not known.
    pub fn is_free(&self, at: Logical, len: ByteLen) -> bool {
        let is_free = |by: &Weak<dyn Occupancy>| by.upgrade().is_some_and(|by| by.is_free(at, len));
        self.occupancy.get().is_some_and(is_free)
    }

    pub fn set_patches(&self, patches: Patches) {
        *self.patches.write() = patches;
    }

    /// Puts what is known to be right over parity that was read from a place.
    pub fn patch(&self, devid: DevId, at: u64, bytes: &mut [u8]) {
        let patches = self.patches.read();
        let end = at + bytes.len() as u64;
        for ((_, start), right) in patches.range((devid, at.saturating_sub(STRIPE_LEN))..(devid, end)) {
            let (from, to) = (at.max(*start), end.min(start + right.len() as u64));
            if from < to {
                let source = &right[(from - start) as usize..(to - start) as usize];
                bytes[(from - at) as usize..(to - at) as usize].copy_from_slice(source);
            }
        }
    }

    pub fn count_records(&self, recorded: u64, unrecorded: u64, records: u64) {
        self.recorded.fetch_add(recorded, Relaxed);
        self.unrecorded.fetch_add(unrecorded, Relaxed);
        self.record_count.fetch_add(records, Relaxed);
    }

    pub fn count_whole(&self, rows: u64) {
        self.whole.fetch_add(rows, Relaxed);
    }

    pub fn count_parts(&self, parts: u64, read_bytes: u64) {
        self.parts.fetch_add(parts, Relaxed);
        self.read_bytes.fetch_add(read_bytes, Relaxed);
    }

    pub fn count_misfit(&self, healed: u64, lost: u64) {
        self.misfits.fetch_add(1, Relaxed);
        self.healed.fetch_add(healed, Relaxed);
        self.lost.fetch_add(lost, Relaxed);
    }

    pub fn count_parity(&self, bytes: u64) {
        self.parity_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn stats(&self) -> RowStats {
        RowStats {
            whole: self.whole.load(Relaxed),
            parts: self.parts.load(Relaxed),
            recorded: self.recorded.load(Relaxed),
            unrecorded: self.unrecorded.load(Relaxed),
            records: self.record_count.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            parity_bytes: self.parity_bytes.load(Relaxed),
            misfits: self.misfits.load(Relaxed),
            healed: self.healed.load(Relaxed),
            lost: self.lost.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use oleo_format::new_super_block;

    use super::*;

    /// Goal: a turn begins before a superblock is named: who found the name, and the turn of before, would take what was stamped for not live, though that superblock may name it. Method: the name
    /// is held up; the turn begins all the same.
    #[test]
    fn a_turn_begins_before_a_name() {
        let rows = Rows::default();
        let before = rows.now();
        let bases = rows.bases.lock();
        std::thread::scope(|threads| {
            let named = threads.spawn(|| rows.is_to_be_newest(&new_super_block()));
            let began = Instant::now();
            while rows.now() == before && began.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            let has_begun = rows.now() > before;
            drop(bases);
            assert!(named.join().expect("no panic"), "there is room for a name");
            assert!(has_begun, "the name came first");
        });
    }
}
