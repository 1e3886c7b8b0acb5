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
use oleo_space::{Kind, Refusal, Reservation, Space};

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

    /// A promise out of what is ahead, or else out of what the groups have: then more is reserved ahead, if there is more. No chunk is made
    /// for what is only ahead: that is given back before `NeedChunk` is returned. So who makes a chunk, and when, does not depend on threads.
    pub(crate) fn take(&self, space: &Space, len: ByteLen) -> Result<Reservation, Refusal> {
        if let Some(promise) = self.take_ahead(space, len)? {
            return Ok(promise);
        }
        match space.reserve(Kind::Data, len) {
            Err(Refusal::NeedChunk(_)) if self.release() => space.reserve(Kind::Data, len),
            promise => promise,
        }
    }

    /// `None`: nothing may be ahead, or there is not enough for that.
    fn take_ahead(&self, space: &Space, len: ByteLen) -> Result<Option<Reservation>, Refusal> {
        if len.0 > AHEAD_LEN / 2 {
            return Ok(None);
        }
        let mut own = self.of_threads[thread_shard()].0.lock();
        // With the lock, so that who releases what is ahead either sees what is reserved here or is seen.
        if self.is_short.load(Ordering::SeqCst) {
            return Ok(None);
        }
        if let Some(ahead) = own.as_ref().filter(|ahead| ahead.left() >= len) {
            return Ok(Some(ahead.split(len)));
        }
        let more = match space.reserve(Kind::Data, ByteLen(len.0 + AHEAD_LEN)) {
            Ok(more) => more,
            // It may be enough for what is needed.
            Err(Refusal::NeedChunk(_)) => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        let promise = more.split(len);
        match own.as_ref() {
            Some(ahead) => ahead.join(more),
            None => *own = Some(more),
        }
        Ok(Some(promise))
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
