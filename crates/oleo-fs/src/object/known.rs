//! Inodes that a thread found in the cache, so that it finds them again without the cache's lock.
//!
//! Normal path: (1) who has found an inode under the lock of its shard twice in a row keeps it here ([`keep`]), weakly, with how often
//! something had been taken out of the shard until then ([`Removals`]); (2) from then on [`find`] holds the inode first and then reads that
//! count: if it is the same, the inode is in the cache.
//!
//! Invariants: whoever takes inodes out of a shard raises the count first and then looks whether anybody holds them. So either it sees that the
//! inode is held, and leaves it where it is, or [`find`] sees that the count has changed, and gives the inode up. What is kept here does not
//! keep an inode from being evicted, only its memory from being used again, [`PLACES`] of them for each thread.
//! Locks: none.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use oleo_format::TreeId;

use crate::object::inode::Inode;

/// Which inode.
pub(crate) type CacheKey = (TreeId, u64);

/// A power of two. Numbers in a row, as those of new files are, have places of their own.
const PLACES: usize = 256;

/// How often something was taken out of a shard. On lines of its own, since those who look only read it.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Removals(AtomicU64);

impl Removals {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Something may be taken out, if nobody holds it; comes before the look whether anybody does. The caller holds the shard's lock.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // Counts of holders are read after this (see `held_and_known`).
        fence(Ordering::SeqCst);
    }
}

/// Holds something and says whether it may be used: nothing was taken out since the count was `noted`.
fn held_and_known<H>(
    hold: impl FnOnce() -> Option<H>,
    removals: impl FnOnce() -> u64,
    noted: u64,
) -> (Option<H>, bool) {
    let held = hold();
    // Orders the count of holders, which has been raised, before the count of removals, which is read; `Removals::begin` orders them the
    // other way round.
    fence(Ordering::SeqCst);
    let known = held.is_some() && removals() == noted;
    (held, known)
}

struct Place {
    cache: u64,
    key: CacheKey,
    removals: u64,
    inode: Weak<Inode>,
    /// Who was found here last and is not kept.
    wanted: CacheKey,
}

thread_local! {
    static KNOWN: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

fn place_of(key: CacheKey) -> usize {
    (key.1.wrapping_add(key.0.0 << 4)) as usize % PLACES
}

/// The inode, if this thread knows it and it is still in the cache of that number.
pub(crate) fn find(cache: u64, key: CacheKey, removals: &Removals) -> Option<Arc<Inode>> {
    let look = |known: &RefCell<Vec<Place>>| {
        let known = known.borrow();
        let place = known.get(place_of(key))?;
        if place.cache != cache || place.key != key {
            return None;
        }
        Some(held_and_known(|| place.inode.upgrade(), || removals.count(), place.removals))
    };
    // What is not in the cache any more is dropped outside.
    let (held, is_known) = KNOWN.try_with(look).ok()??;
    held.filter(|_| is_known)
}

/// Keeps an inode that was found in the cache when the count of removals was this; not the first time, which may be the last.
pub(crate) fn keep(cache: u64, key: CacheKey, removals: u64, inode: &Arc<Inode>) {
    let keep = |known: &RefCell<Vec<Place>>| {
        let mut known = known.borrow_mut();
        if known.is_empty() {
            let none = || Place {
                cache: 0,
                key: Default::default(),
                removals: 0,
                inode: Weak::new(),
                wanted: Default::default(),
            };
            known.resize_with(PLACES, none);
        }
        let place = &mut known[place_of(key)];
        if place.wanted != key {
            place.wanted = key;
            return Weak::new();
        }
        (place.cache, place.key, place.removals) = (cache, key, removals);
        std::mem::replace(&mut place.inode, Arc::downgrade(inode))
    };
    // The last one frees the memory, outside.
    let _gone = KNOWN.try_with(keep);
}

#[cfg(test)]
mod tests {
    use shuttle::sync::atomic::{AtomicBool, AtomicU64 as Scheduled};

    use super::*;

    /// Goal: what a thread knows and holds is not evicted, whenever the two meet. Method: the cache holds an object once, a thread finds it by what
    /// it knows and keeps it; another evicts it if nobody else holds it. Under a scheduler that decides every step.
    #[test]
    fn what_is_found_is_not_evicted() {
        let model = || {
            // Holders, the cache among them; 0: it is gone.
            let holders = Arc::new(Scheduled::new(1));
            let removals = Arc::new(Scheduled::new(0));
            let evicted = Arc::new(AtomicBool::new(false));
            let (h, r) = (holders.clone(), removals.clone());
            let finder = shuttle::thread::spawn(move || {
                let hold = || {
                    let mut now = h.load(Ordering::SeqCst);
                    while now > 0 {
                        match h.compare_exchange(now, now + 1, Ordering::SeqCst, Ordering::SeqCst) {
                            Ok(_) => return Some(()),
                            Err(seen) => now = seen,
                        }
                    }
                    None
                };
                held_and_known(hold, || r.load(Ordering::SeqCst), 0).1
            });
            let (h, r, e) = (holders.clone(), removals.clone(), evicted.clone());
            let sweeper = shuttle::thread::spawn(move || {
                r.fetch_add(1, Ordering::SeqCst);
                if h.load(Ordering::SeqCst) == 1 {
                    e.store(true, Ordering::SeqCst);
                    h.fetch_sub(1, Ordering::SeqCst);
                }
            });
            let found = finder.join().unwrap();
            sweeper.join().unwrap();
            assert!(!(found && evicted.load(Ordering::SeqCst)), "in use, and not in the cache");
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }
}
