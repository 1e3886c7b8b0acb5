//! The inodes in memory, by subvolume and number.
//!
//! Normal path: [`InodeCache::get_or_load`] finds the inode or loads it outside the lock; an insertion that takes a
//! shard over its bound sweeps it. A sweep evicts what nobody else holds and nobody has used since the last sweep.
//!
//! Invariants: at most one [`Inode`] in memory per number: a thread that evicts one while another thread is loading it
//! makes that one load again, since what it read may be older than what the evicted one had written.
//! A thread finds what it found before without the lock (`known`).
//! Inodes of a deleted subvolume are evicted as others are, once nobody uses them: each reports that it is stale, and no other
//! subvolume ever has its number.
//! Locks: a shard's lock, held for a look-up or a sweep, never over I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use oleo_lock::{Mutex, rank};

use crate::FsError;
use crate::object::inode::Inode;
use crate::object::known::{self, CacheKey, Removals};

/// At the most, a power of two, several times the number of threads.
const SHARDS: usize = 256;
/// Loads that may be overtaken by an eviction in a row: each needs a whole cycle of load, use and sweep to happen
/// within one read of a tree.
const LOADS_MAX: usize = 100;

/// How much a shard grows after a sweep that could not evict enough before the next: dirty inodes cannot go, nor those that the kernel
/// knows, and looking at each of them time and again would cost more than it frees. If nothing is committed, this is how many there are
/// at most for each that is held.
const SWEEP_GROWTH: usize = 2;

/// A sweep after a commit was worth it if it evicted one of so many.
const WORTH_PART: usize = 16;
/// Commits at most between two sweeps that were not worth it: usually some minutes.
const PAUSE_MAX: u32 = 15;

pub(crate) struct InodeCache {
    /// Tells apart the caches of several file systems.
    number: u64,
    shards: Box<[OnLines]>,
    /// Of each shard.
    removals: Box<[Removals]>,
    /// Inodes per shard beyond which unused ones go.
    shard_max: usize,
}

/// A shard on lines of its own.
#[repr(align(128))]
struct OnLines(Mutex<rank::InodeCache, Shard>);

/// The removals of a shard when an inode was not found there.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u64);

#[derive(Default)]
struct Shard {
    inodes: HashMap<CacheKey, Arc<Inode>>,
    /// Entries at which the next sweep happens.
    sweep_at: usize,
    pace: Pace,
}

/// Which commits look for what they have unpinned. If nearly all of many inodes are held by others (the kernel knows them), looking at
/// all of them with each commit is waste: the less it is worth, the longer the pause.
#[derive(Default)]
struct Pace {
    /// Commits to be passed over before the next look.
    rest: u32,
    /// How many that were the last time.
    pause: u32,
}

impl Pace {
    fn is_due(&mut self, len: usize, max: usize) -> bool {
        if len <= max {
            *self = Pace::default();
            return false;
        }
        let due = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        due
    }

    fn swept(&mut self, before: usize, after: usize, max: usize) {
        let worth_it = after <= max || (before - after) * WORTH_PART >= before;
        self.pause = if worth_it { 0 } else { (self.pause * 2 + 1).min(PAUSE_MAX) };
        self.rest = self.pause;
    }
}

impl Shard {
    fn sweep(&mut self, max: usize, removals: &Removals) {
        removals.begin();
        for _pass in 0..2 {
            if self.inodes.len() <= max {
                break;
            }
            self.inodes.retain(|_, inode| Arc::strong_count(inode) > 1 || inode.used.swap(false, Ordering::Relaxed));
        }
        self.sweep_at = max.max(self.inodes.len() * SWEEP_GROWTH);
    }

    /// A commit has unpinned some, perhaps.
    fn trim(&mut self, max: usize, removals: &Removals) {
        let before = self.inodes.len();
        if self.pace.is_due(before, max) {
            self.sweep(max, removals);
            self.pace.swept(before, self.inodes.len(), max);
        }
    }
}

/// Where an inode lies among so many shards, a power of two. Numbers in a row have shards of their own, so that threads which make files at the
/// same time do not meet in one; each row begins somewhere else, so that numbers at equal distances do not all lie in one either.
fn shard_of((tree, ino): CacheKey, shards: usize) -> usize {
    let row = (tree.0.rotate_left(32) ^ (ino / SHARDS as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (row >> 32).wrapping_add(ino) as usize % shards
}

impl InodeCache {
    pub(crate) fn new(inodes_max: usize) -> InodeCache {
        // A shard keeps one at least.
        let shards = inodes_max.next_power_of_two().clamp(1, SHARDS);
        let shard_max = inodes_max / shards + 1;
        let shard = || OnLines(Mutex::new(Shard { sweep_at: shard_max, ..Shard::default() }));
        static NEXT: AtomicU64 = AtomicU64::new(1);
        InodeCache {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            shards: (0..shards).map(|_| shard()).collect(),
            removals: (0..shards).map(|_| Removals::default()).collect(),
            shard_max,
        }
    }

    /// The inode from memory, or from `load`, which may be called more than once.
    pub(crate) fn get_or_load(
        &self,
        key: CacheKey,
        load: impl Fn() -> Result<Option<Arc<Inode>>, FsError>,
    ) -> Result<Option<Arc<Inode>>, FsError> {
        for _ in 0..LOADS_MAX {
            let ticket = match self.peek(key) {
                Ok(inode) => return Ok(Some(inode)),
                Err(ticket) => ticket,
            };
            let Some(loaded) = load()? else { return Ok(None) };
            if let Some(inode) = self.enter(key, loaded, ticket) {
                return Ok(Some(inode));
            }
        }
        Err(FsError::Busy("the inode cache is too small"))
    }

    /// The inode from memory, or the token that [`enter`](Self::enter) needs after the caller has loaded it.
    pub(crate) fn peek(&self, key: CacheKey) -> Result<Arc<Inode>, Ticket> {
        let at = self.shard_of(key);
        if let Some(inode) = known::find(self.number, key, &self.removals[at]) {
            inode.note_used();
            return Ok(inode);
        }
        let shard = self.shards[at].0.lock();
        let removals = self.removals[at].count();
        let Some(inode) = shard.inodes.get(&key).cloned() else { return Err(Ticket(removals)) };
        drop(shard);
        inode.note_used();
        known::keep(self.number, key, removals, &inode);
        Ok(inode)
    }

    fn shard_of(&self, key: CacheKey) -> usize {
        shard_of(key, self.shards.len())
    }

    /// Enters a loaded inode, unless another thread has; returns the one that is in memory now. `None`: what was loaded may
    /// be out of date by an eviction since the ticket was given.
    pub(crate) fn enter(&self, key: CacheKey, loaded: Arc<Inode>, ticket: Ticket) -> Option<Arc<Inode>> {
        let at = self.shard_of(key);
        let mut shard = self.shards[at].0.lock();
        if let Some(inode) = shard.inodes.get(&key) {
            return Some(inode.clone());
        }
        if self.removals[at].count() != ticket.0 {
            return None;
        }
        self.insert_locked(&mut shard, at, key, loaded.clone());
        Some(loaded)
    }

    /// Enters a new inode.
    pub(crate) fn insert(&self, key: CacheKey, inode: Arc<Inode>) {
        let at = self.shard_of(key);
        self.insert_locked(&mut self.shards[at].0.lock(), at, key, inode);
    }

    fn insert_locked(&self, shard: &mut Shard, at: usize, key: CacheKey, inode: Arc<Inode>) {
        if shard.inodes.insert(key, inode).is_some() {
            self.removals[at].begin();
        }
        if shard.inodes.len() > shard.sweep_at {
            shard.sweep(self.shard_max, &self.removals[at]);
        }
    }

    /// Takes out an inode that is deleted.
    pub(crate) fn remove(&self, key: CacheKey) {
        let at = self.shard_of(key);
        let mut shard = self.shards[at].0.lock();
        if shard.inodes.contains_key(&key) {
            self.removals[at].begin();
            let gone = shard.inodes.remove(&key);
            drop(shard);
            drop(gone);
        }
    }

    /// Evicts what a commit has unpinned.
    pub(crate) fn trim(&self) {
        for (shard, removals) in self.shards.iter().zip(&self.removals) {
            shard.0.lock().trim(self.shard_max, removals);
        }
    }

    /// Evicts what nobody holds any more, if that may be a lot.
    pub(crate) fn shed(&self) {
        for (shard, removals) in self.shards.iter().zip(&self.removals) {
            let mut shard = shard.0.lock();
            if shard.inodes.len() > self.shard_max {
                shard.sweep(self.shard_max, removals);
            }
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().inodes.len()).sum()
    }

    /// Everything in memory, dropped: for the end.
    pub(crate) fn clear(&self) {
        for (shard, removals) in self.shards.iter().zip(&self.removals) {
            let mut shard = shard.0.lock();
            removals.begin();
            let gone = std::mem::take(&mut shard.inodes);
            drop(shard);
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_format::TreeId;

    use super::*;

    /// Goal: inodes made one after the other lie in different shards, and shards are evenly filled whatever the distance of the numbers. Method: rows
    /// that begin anywhere; numbers at distances of powers of two and beside them; the same number in many trees.
    #[test]
    fn shards_are_evenly_filled() {
        let fullest = |keys: &mut dyn Iterator<Item = CacheKey>| {
            let mut counts = [0; SHARDS];
            keys.for_each(|key| counts[shard_of(key, SHARDS)] += 1);
            counts.into_iter().max()
        };
        for from in [256, 257, 70_000, 1 << 40] {
            let end = (from / SHARDS as u64 + 1) * SHARDS as u64;
            assert_eq!(fullest(&mut (from..end).map(|ino| (TreeId::FS, ino))), Some(1));
            assert!(fullest(&mut (from..from + SHARDS as u64).map(|ino| (TreeId::FS, ino))) <= Some(2));
        }
        let each = 64;
        for distance in [2, 3, 255, 256, 257, 512, 4096, 65_536, 1 << 32] {
            let numbers = (0..each * SHARDS as u64).map(|n| (TreeId::FS, 257 + n * distance));
            assert!(fullest(&mut { numbers }) <= Some(2 * each), "{distance} apart");
        }
        let trees = (0..each * SHARDS as u64).map(|n| (TreeId(256 + n), 257));
        assert!(fullest(&mut { trees }) <= Some(2 * each));
    }

    /// Goal: commits look at inodes that others hold seldom, and at such as they have unpinned each time.
    /// Method: the commits that look are counted, for entries that stay and for entries that go.
    #[test]
    fn pinned_inodes_are_seldom_looked_at() {
        let mut pace = Pace::default();
        let mut looks = |after: usize| {
            let mut count = 0;
            for _ in 0..160 {
                if pace.is_due(100, 10) {
                    pace.swept(100, after, 10);
                    count += 1;
                }
            }
            count
        };
        assert_eq!(looks(100), 13);
        // The pause that has begun ends first.
        assert!(looks(80) >= 160 - PAUSE_MAX);
        assert_eq!(looks(80), 160);
        assert_eq!(looks(10), 160);
    }
}
