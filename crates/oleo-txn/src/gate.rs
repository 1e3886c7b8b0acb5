//! The gate that operations pass: many inside at once, nobody while a transaction is frozen.
//!
//! Normal path: (1) an operation takes `enter`, a shared pass that names the open generation; (2) a freeze takes `close`,
//! which waits for every pass to be given back; operations are short and hold no pass over data I/O.
//!
//! Invariants: whoever holds a pass sees one generation; who holds the gate closed sees no change under way.
//! Locks: rank 10, the outermost. A thread must not ask for a second pass, or for `close`, while it holds one.
//! Who closes says so first, to all shards at once, and then waits: nobody enters any more, and the wait is that for the longest
//! operation under way. Who enters counts itself in, and out again where the gate turns out to be closed.
//! The count is split in `SHARDS` so that entering writes to a cache line that few share.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Enough that threads on today's machines rarely share one; `close` looks at them all, so no more than that.
pub(crate) const SHARDS: usize = 16;

/// How many are inside.
#[repr(align(128))]
struct Shard(AtomicUsize);

pub(crate) struct Gate {
    shards: Vec<Shard>,
    closed: AtomicBool,
    /// One closes at a time.
    closing: Mutex<()>,
    /// Held for a look at `closed` or the shards before a wait, and for telling who waits.
    waiting: Mutex<()>,
    /// It is open again.
    opened: Condvar,
    /// Somebody left while it was closed.
    left: Condvar,
}

pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    pub(crate) shard: usize,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.shard);
    }
}

pub(crate) struct Closed<'a> {
    gate: &'a Gate,
    _one: MutexGuard<'a, ()>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.closed.store(false, Ordering::SeqCst);
        drop(self.gate.waiting.lock());
        self.gate.opened.notify_all();
    }
}

/// A small number per thread, so that threads spread over shards whatever their ids hash to.
pub(crate) fn thread_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|n| n % SHARDS)
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            shards: (0..SHARDS).map(|_| Shard(AtomicUsize::new(0))).collect(),
            closed: AtomicBool::new(false),
            closing: Mutex::new(()),
            waiting: Mutex::new(()),
            opened: Condvar::new(),
            left: Condvar::new(),
        }
    }

    pub(crate) fn enter(&self) -> Pass<'_> {
        let shard = thread_shard();
        loop {
            self.shards[shard].0.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return Pass { gate: self, shard };
            }
            self.leave(shard);
            let mut waiting = self.waiting.lock();
            while self.closed.load(Ordering::SeqCst) {
                self.opened.wait(&mut waiting);
            }
        }
    }

    fn leave(&self, shard: usize) {
        self.shards[shard].0.fetch_sub(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            drop(self.waiting.lock());
            self.left.notify_one();
        }
    }

    pub(crate) fn close(&self) -> Closed<'_> {
        let one = self.closing.lock();
        self.closed.store(true, Ordering::SeqCst);
        let mut waiting = self.waiting.lock();
        while self.shards.iter().any(|shard| shard.0.load(Ordering::SeqCst) > 0) {
            self.left.wait(&mut waiting);
        }
        drop(waiting);
        Closed { gate: self, _one: one }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Goal: nobody is inside while the gate is closed. Method: threads enter and move a counter away and back; whoever
    /// closes must always see zero.
    #[test]
    fn closed_means_empty() {
        let (gate, inside) = (Gate::new(), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    for _ in 0..5000 {
                        let _pass = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..200 {
                let _closed = gate.close();
                assert_eq!(inside.load(Ordering::SeqCst), 0);
            }
        });
    }

    /// Goal: who closes is not kept waiting by those who keep coming. Method: sixteen threads enter again and again, so that
    /// nearly always somebody is inside every shard; the gate is closed all the same, many times.
    #[test]
    fn comers_do_not_starve_the_closer() {
        use std::sync::atomic::AtomicBool;
        use std::time::{Duration, Instant};

        let (gate, over) = (Gate::new(), AtomicBool::new(false));
        let longest = std::thread::scope(|s| {
            for _ in 0..2 * SHARDS {
                s.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let _pass = gate.enter();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            let mut longest = Duration::ZERO;
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                let asked = Instant::now();
                drop(gate.close());
                longest = longest.max(asked.elapsed());
            }
            over.store(true, Ordering::Relaxed);
            longest
        });
        assert!(longest < Duration::from_secs(5), "waited {longest:?}");
    }
}
