//! How much work is done: a count of the items and keys that are looked at, for the test of growth (`tests/growth` of `oleo`).
//!
//! Times differ from run to run on a machine that is shared; a count does not. Only debug builds count, and only
//! while `count` is on.

#[cfg(debug_assertions)]
mod counted {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

    /// Threads that count in one place: those of a pool would all wait for one line of memory.
    const SHARDS: usize = 16;

    #[repr(align(128))]
    struct Shard(AtomicU64);

    static ON: AtomicBool = AtomicBool::new(false);
    static SHARD: [Shard; SHARDS] = [const { Shard(AtomicU64::new(0)) }; SHARDS];
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }

    #[inline]
    pub fn step() {
        if ON.load(Ordering::Relaxed) {
            add();
        }
    }

    #[cold]
    fn add() {
        let shard = MINE.try_with(Cell::get).unwrap_or(0);
        SHARD[shard].0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(on: bool) {
        ON.store(on, Ordering::Relaxed);
    }

    pub fn steps() -> u64 {
        SHARD.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

/// One item or key is looked at.
#[inline]
pub fn step() {
    #[cfg(debug_assertions)]
    counted::step();
}

/// Begins to count, or ends it.
pub fn count(on: bool) {
    #[cfg(debug_assertions)]
    counted::count(on);
    #[cfg(not(debug_assertions))]
    let _ = on;
}

/// How many there were while they were counted; `None` in release builds.
pub fn steps() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(counted::steps());
    #[cfg(not(debug_assertions))]
    None
}
