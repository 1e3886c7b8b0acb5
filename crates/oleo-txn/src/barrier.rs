//! The transaction barrier: any number of operations are joined at a time, none while a transaction is frozen.
//!
//! Normal path: (1) an operation calls `join` and holds the guard while it changes things; (2) a freeze calls
//! `block_joins`, which waits until every guard has been dropped; operations are short and hold no guard over data I/O.
//!
//! Invariants: while a join guard lives the open generation stays the same; while a freeze guard lives no change is under way.
//! Locks: an operation holds the rank `Join`; a thread that blocks joins holds `BlockJoins`, which comes before it; `waiting` is a leaf.
//! A thread must not call `join` or `block_joins` while it holds a guard.
//! `block_joins` first sets a flag that all shards see and then waits: nobody joins any more, so it waits for the longest
//! operation under way. `join` counts itself in, and out again if joins turn out to be blocked.
//! The count is split into `SHARDS` so that a join writes to a cache line that few threads share.

use oleo_lock::{Condvar, Held, Mutex, MutexGuard, rank};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Enough that threads on today's machines rarely share one; `block_joins` reads them all, so no more than that.
pub(crate) const SHARDS: usize = 64;

/// How many operations are joined.
#[repr(align(128))]
struct Shard(AtomicUsize);

pub(crate) struct TransactionBarrier {
    shards: Vec<Shard>,
    blocked: AtomicBool,
    /// One thread blocks joins at a time.
    blocking: Mutex<rank::BlockJoins, ()>,
    /// Held while reading `blocked` or the shards before a wait, and while waking those who wait.
    waiting: Mutex<rank::BarrierWaiting, ()>,
    /// Joins are allowed again.
    unblocked: Condvar,
    /// An operation ended while joins were blocked.
    left: Condvar,
}

pub(crate) struct JoinGuard<'a> {
    barrier: &'a TransactionBarrier,
    pub(crate) shard: usize,
    _held: Held<rank::Join>,
}

impl Drop for JoinGuard<'_> {
    fn drop(&mut self) {
        self.barrier.leave(self.shard);
    }
}

pub(crate) struct FreezeGuard<'a> {
    barrier: &'a TransactionBarrier,
    _one: MutexGuard<'a, rank::BlockJoins, ()>,
}

impl Drop for FreezeGuard<'_> {
    fn drop(&mut self) {
        self.barrier.blocked.store(false, Ordering::SeqCst);
        drop(self.barrier.waiting.lock());
        self.barrier.unblocked.notify_all();
    }
}

/// A small number per thread, whatever its id: threads that are started one after the other have numbers in a row.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|n| *n)
}

/// The shard of the calling thread.
pub(crate) fn thread_shard() -> usize {
    thread_number() % SHARDS
}

impl TransactionBarrier {
    pub(crate) fn new() -> TransactionBarrier {
        TransactionBarrier {
            shards: (0..SHARDS).map(|_| Shard(AtomicUsize::new(0))).collect(),
            blocked: AtomicBool::new(false),
            blocking: Mutex::new(()),
            waiting: Mutex::new(()),
            unblocked: Condvar::new(),
            left: Condvar::new(),
        }
    }

    pub(crate) fn join(&self) -> JoinGuard<'_> {
        let (shard, held) = (thread_shard(), Held::enter());
        loop {
            self.shards[shard].0.fetch_add(1, Ordering::SeqCst);
            if !self.blocked.load(Ordering::SeqCst) {
                return JoinGuard { barrier: self, shard, _held: held };
            }
            self.leave(shard);
            let mut waiting = self.waiting.lock();
            while self.blocked.load(Ordering::SeqCst) {
                self.unblocked.wait(&mut waiting);
            }
        }
    }

    fn leave(&self, shard: usize) {
        self.shards[shard].0.fetch_sub(1, Ordering::SeqCst);
        if self.blocked.load(Ordering::SeqCst) {
            drop(self.waiting.lock());
            self.left.notify_one();
        }
    }

    pub(crate) fn block_joins(&self) -> FreezeGuard<'_> {
        let one = self.blocking.lock();
        self.blocked.store(true, Ordering::SeqCst);
        let mut waiting = self.waiting.lock();
        while self.shards.iter().any(|shard| shard.0.load(Ordering::SeqCst) > 0) {
            self.left.wait(&mut waiting);
        }
        drop(waiting);
        FreezeGuard { barrier: self, _one: one }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Goal: no operation is joined while joins are blocked. Method: threads join and move a counter away and back;
    /// the thread that blocks joins must always see zero.
    #[test]
    fn blocked_means_empty() {
        let (barrier, inside) = (TransactionBarrier::new(), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    for _ in 0..5000 {
                        let _join_guard = barrier.join();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                let _blocked = barrier.block_joins();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            }
        });
    }

    /// Goal: a thread that blocks joins is not kept waiting by those who keep joining. Method: sixteen threads join again and
    /// again, so that nearly always some operation is in every shard; joins are blocked all the same, many times.
    #[test]
    fn joins_do_not_starve_the_blocker() {
        use std::sync::atomic::AtomicBool;
        use std::time::{Duration, Instant};

        let (barrier, over) = (TransactionBarrier::new(), AtomicBool::new(false));
        let longest = std::thread::scope(|s| {
            for _ in 0..2 * SHARDS {
                s.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _join_guard = barrier.join();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            let mut longest = Duration::ZERO;
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                let asked = Instant::now();
                drop(barrier.block_joins());
                longest = longest.max(asked.elapsed());
            }
            over.store(true, Ordering::Relaxed);
            longest
        });
        assert!(longest < Duration::from_secs(5), "waited {longest:?}");
    }
}
