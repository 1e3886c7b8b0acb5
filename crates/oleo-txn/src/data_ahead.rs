//! Data space that was promised ahead: so that threads which buffer small writes do not all change the counts of the pool.
//!
//! Normal path: a writer takes its promise out of what is ahead for its thread ([`DataAhead::take`]). If that is not enough, more is
//! reserved than it asks for, if there is more, and the rest is ahead. What a promise has left in the end goes back there ([`DataAhead::put`]).
//!
//! Invariants: what is ahead is an ordinary reservation. It is given back ([`DataAhead::release`]) before anybody is refused, and by each freeze;
//! from when space was short to the next freeze nothing is reserved ahead.
//! Locks: one for each of some threads, leaves. Crash: memory only.

use std::sync::atomic::{AtomicBool, Ordering};

use oleo_format::ByteLen;
use oleo_lock::{Mutex, rank};
use oleo_space::{Kind, Reservation, Space};

use crate::barrier::{SHARDS, thread_shard};

/// Bytes reserved ahead. Half of it is the longest promise that is made out of it.
const AHEAD_LEN: u64 = 1 << 20;

#[repr(align(128))]
struct Own(Mutex<rank::DataAhead, Option<Reservation>>);

pub(crate) struct DataAhead {
    of_threads: Box<[Own]>,
    /// Space was short.
    is_short: AtomicBool,
}

impl DataAhead {
    pub(crate) fn new() -> DataAhead {
        let own = || Own(Mutex::new(None));
        DataAhead { of_threads: (0..SHARDS).map(|_| own()).collect(), is_short: AtomicBool::new(false) }
    }

    /// A promise out of what is ahead; `None` if nothing may be ahead, or what the groups have is not enough.
    pub(crate) fn take(&self, space: &Space, len: ByteLen) -> Option<Reservation> {
        if len.0 > AHEAD_LEN / 2 {
            return None;
        }
        let mut own = self.of_threads[thread_shard()].0.lock();
        // With the lock, so that who releases what is ahead either sees what is reserved here or is seen.
        if self.is_short.load(Ordering::SeqCst) {
            return None;
        }
        if let Some(ahead) = own.as_ref().filter(|ahead| ahead.left() >= len) {
            return Some(ahead.split(len));
        }
        let Ok(more) = space.reserve(Kind::Data, ByteLen(len.0 + AHEAD_LEN)) else {
            // It may be enough for what is needed; if not, a chunk is made.
            return None;
        };
        let promise = more.split(len);
        match own.as_ref() {
            Some(ahead) => ahead.join(more),
            None => *own = Some(more),
        }
        Some(promise)
    }

    /// What is left of a promise. Never waits: the caller may hold anything.
    pub(crate) fn put(&self, left: Reservation) {
        let Some(own) = self.of_threads[thread_shard()].0.try_lock() else { return };
        if self.is_short.load(Ordering::SeqCst) {
            return;
        }
        if let Some(ahead) = own.as_ref().filter(|ahead| ahead.left() + left.left() <= ByteLen(2 * AHEAD_LEN)) {
            ahead.join(left);
        }
    }

    /// Space is short: gives back what is ahead, and nothing is reserved ahead until the next freeze. Whether anything was.
    pub(crate) fn release(&self) -> bool {
        self.is_short.store(true, Ordering::SeqCst);
        let mut any = false;
        for own in &self.of_threads {
            any |= own.0.lock().take().is_some_and(|ahead| ahead.left().0 > 0);
        }
        any
    }

    /// Joins are blocked: what was reserved ahead for the transaction that ends is given back.
    pub(crate) fn freeze(&self) {
        self.release();
        self.is_short.store(false, Ordering::SeqCst);
    }
}
