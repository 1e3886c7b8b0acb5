//! The transaction barrier: any number of operations are joined at a time, none while a transaction is frozen.
//!
//! Normal path: (1) an operation calls `join` and holds the guard while it changes things; (2) a freeze calls
//! `block_joins`, which waits until every guard has been dropped; operations are short and hold no guard over data I/O.
//!
//! Invariants: while a join guard lives the open generation stays the same; while a freeze guard lives no change is under way.
//! Locks: an operation holds the rank `Join`; a thread that blocks joins holds `BlockJoins`, which comes before it; `Condvars::waiting` is a leaf.
//! A thread must not call `join` or `block_joins` while it holds a guard.
//! `block_joins` first sets a flag that all shards see and then waits: nobody joins any more, so it waits for the longest
//! operation under way. `join` counts itself in, and out again if joins turn out to be blocked.
//! The count is split into `SHARDS` so that a join writes to a cache line that few threads share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use oleo_lock::{Condvar, Held, Mutex, MutexGuard, rank};

use crate::count::Count;

/// Enough that threads on today's machines rarely share one; `block_joins` reads them all, so no more than that.
pub(crate) const SHARDS: usize = 64;

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
struct Shard<C>(C);

/// How threads wait. Tests substitute one that `shuttle` schedules.
trait Waiting {
    fn new() -> Self;
    /// Waits until `over`, which is looked at again after each waking of this side.
    fn until(&self, side: Side, over: impl Fn() -> bool);
    /// What somebody of this side may wait for has changed before.
    fn wake(&self, side: Side);
}

/// Who waits.
#[derive(Clone, Copy)]
enum Side {
    /// Operations, until joins are allowed again.
    Joining,
    /// The thread that blocks joins, until all operations have ended.
    Blocking,
}

/// Locks of the house.
#[derive(Default)]
struct Condvars {
    /// Held while looking before a wait, and before waking those who wait.
    waiting: Mutex<rank::BarrierWaiting, ()>,
    unblocked: Condvar,
    left: Condvar,
}

impl Waiting for Condvars {
    fn new() -> Condvars {
        Condvars::default()
    }
    fn until(&self, side: Side, over: impl Fn() -> bool) {
        let mut waiting = self.waiting.lock();
        while !over() {
            match side {
                Side::Joining => self.unblocked.wait(&mut waiting),
                Side::Blocking => self.left.wait(&mut waiting),
            }
        }
    }
    fn wake(&self, side: Side) {
        drop(self.waiting.lock());
        match side {
            Side::Joining => drop(self.unblocked.notify_all()),
            Side::Blocking => drop(self.left.notify_one()),
        }
    }
}

/// The counts, and who waits for them.
struct Counts<C, W> {
    /// How many operations are joined.
    shards: Box<[Shard<C>]>,
    /// 1 while joins are blocked.
    blocked: C,
    waiting: W,
}

impl<C: Count, W: Waiting> Counts<C, W> {
    fn new(shards: usize) -> Counts<C, W> {
        Counts { shards: (0..shards).map(|_| Shard(C::new())).collect(), blocked: C::new(), waiting: W::new() }
    }

    fn are_blocked(&self) -> bool {
        self.blocked.get() > 0
    }

    fn enter(&self, shard: usize) {
        loop {
            self.shards[shard].0.add(1);
            if !self.are_blocked() {
                return;
            }
            self.leave(shard);
            self.waiting.until(Side::Joining, || !self.are_blocked());
        }
    }

    fn leave(&self, shard: usize) {
        self.shards[shard].0.sub(1);
        if self.are_blocked() {
            self.waiting.wake(Side::Blocking);
        }
    }

    /// One thread at a time. Returns when nobody is joined; nobody joins until [`Counts::unblock`].
    fn block(&self) {
        self.blocked.add(1);
        self.waiting.until(Side::Blocking, || self.shards.iter().all(|shard| shard.0.get() == 0));
    }

    fn unblock(&self) {
        self.blocked.sub(1);
        self.waiting.wake(Side::Joining);
    }
}

pub(crate) struct TransactionBarrier {
    counts: Counts<AtomicU64, Condvars>,
    /// One thread blocks joins at a time.
    blocking: Mutex<rank::BlockJoins, ()>,
}

pub(crate) struct JoinGuard<'a> {
    barrier: &'a TransactionBarrier,
    pub(crate) shard: usize,
    _held: Held<rank::Join>,
}

impl Drop for JoinGuard<'_> {
    fn drop(&mut self) {
        self.barrier.counts.leave(self.shard);
    }
}

pub(crate) struct FreezeGuard<'a> {
    barrier: &'a TransactionBarrier,
    _one: MutexGuard<'a, rank::BlockJoins, ()>,
}

impl Drop for FreezeGuard<'_> {
    fn drop(&mut self) {
        self.barrier.counts.unblock();
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
        TransactionBarrier { counts: Counts::new(SHARDS), blocking: Mutex::new(()) }
    }

    pub(crate) fn join(&self) -> JoinGuard<'_> {
        let (shard, held) = (thread_shard(), Held::enter());
        self.counts.enter(shard);
        JoinGuard { barrier: self, shard, _held: held }
    }

    pub(crate) fn block_joins(&self) -> FreezeGuard<'_> {
        let one = self.blocking.lock();
        self.counts.block();
        FreezeGuard { barrier: self, _one: one }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Those of `shuttle`.
    struct Scheduled {
        waiting: shuttle::sync::Mutex<()>,
        unblocked: shuttle::sync::Condvar,
        left: shuttle::sync::Condvar,
    }

    impl Waiting for Scheduled {
        fn new() -> Scheduled {
            let (unblocked, left) = Default::default();
            Scheduled { waiting: shuttle::sync::Mutex::new(()), unblocked, left }
        }
        fn until(&self, side: Side, over: impl Fn() -> bool) {
            let mut waiting = self.waiting.lock().unwrap();
            while !over() {
                waiting = match side {
                    Side::Joining => self.unblocked.wait(waiting).unwrap(),
                    Side::Blocking => self.left.wait(waiting).unwrap(),
                };
            }
        }
        fn wake(&self, side: Side) {
            drop(self.waiting.lock().unwrap());
            match side {
                Side::Joining => self.unblocked.notify_all(),
                Side::Blocking => self.left.notify_one(),
            }
        }
    }

    /// Goal: no operation is joined while joins are blocked, and nobody sleeps for good. Method: three threads join twice each, two of them in
    /// one shard, while a fourth blocks joins twice; under a scheduler that decides every step, at random and with few ill-timed
    /// interruptions, and finds it if all threads wait.
    #[test]
    fn blocked_means_empty_in_every_order() {
        use shuttle::sync::atomic::AtomicU64 as Number;
        let model = || {
            let counts = Arc::new(Counts::<Number, Scheduled>::new(2));
            let inside = Arc::new(Number::new(0));
            let joiners = [0, 1, 1].map(|shard| {
                let (counts, inside) = (counts.clone(), inside.clone());
                shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        counts.enter(shard);
                        inside.add(1);
                        inside.sub(1);
                        counts.leave(shard);
                    }
                })
            });
            for _ in 0..2 {
                counts.block();
                for _ in 0..2 {
                    assert_eq!(inside.get(), 0);
                }
                counts.unblock();
            }
            joiners.into_iter().for_each(|thread| thread.join().unwrap());
        };
        shuttle::check_random(model, 2000);
        shuttle::check_pct(model, 2000, 3);
    }

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
        assert!(longest < Duration::from_secs(30), "waited {longest:?}");
    }
}
