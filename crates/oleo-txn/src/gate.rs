//! The gate that operations pass: many inside at once, nobody while a transaction is frozen.
//!
//! Normal path: (1) an operation takes `enter`, a shared pass that names the open generation; (2) a freeze takes `close`,
//! which waits for every pass to be given back; operations are short and hold no pass over data I/O.
//!
//! Invariants: whoever holds a pass sees one generation; who holds the gate closed sees no change under way.
//! Locks: rank 10, the outermost; shards are taken in order by `close`. A thread must not ask for a second pass, or for
//! `close`, while it holds one… except that `enter` is recursive-safe for readers already inside.
//! The lock is split in `SHARDS` so that entering writes to a cache line that few share.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Enough that threads on today's machines rarely share one; `close` takes them all, so no more than that.
pub(crate) const SHARDS: usize = 16;

#[repr(align(128))]
struct Shard(RwLock<()>);

pub(crate) struct Gate {
    shards: Vec<Shard>,
}

pub(crate) struct Pass<'a> {
    _guard: RwLockReadGuard<'a, ()>,
    pub(crate) shard: usize,
}

pub(crate) struct Closed<'a> {
    _guards: Vec<RwLockWriteGuard<'a, ()>>,
}

/// A small number per thread, so that threads spread over shards whatever their ids hash to.
pub(crate) fn thread_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|n| n % SHARDS)
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { shards: (0..SHARDS).map(|_| Shard(RwLock::new(()))).collect() }
    }

    pub(crate) fn enter(&self) -> Pass<'_> {
        let shard = thread_shard();
        Pass { _guard: self.shards[shard].0.read_recursive(), shard }
    }

    pub(crate) fn close(&self) -> Closed<'_> {
        Closed { _guards: self.shards.iter().map(|s| s.0.write()).collect() }
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
}
