//! Memory for payloads of all connections: so many bytes, given out in the order in which they were asked for.
//!
//! A piece is allocated as long as the longest payload, of which only what is used takes memory: allocators give memory of
//! that length to the system again when it is freed, where smaller pieces would stay with the thread that had them.
//!
//! Whoever waits here does not receive, so the other side is held up by its own socket. Whoever holds some is bound to
//! a pace ([`crate::channel::Pace`]), so waiting ends.

use oleo_lock::{Condvar, Mutex, rank};

use crate::wire::PAYLOAD_LEN_MAX;

/// The length of each allocation. Beyond 32 MiB the C library's allocator maps memory for each.
const ALLOCATED_LEN: usize = PAYLOAD_LEN_MAX as usize + (1 << 20);

/// The memory.
pub(super) struct Budget {
    state: Mutex<rank::NbdBudget, State>,
    changed: Condvar,
    bytes_max: u64,
}

#[derive(Default)]
struct State {
    used: u64,
    /// The number of the next who asks, and of who is next to be served.
    next: u64,
    serving: u64,
}

/// Some of it, given back when it is dropped.
pub(super) struct Memory<'a> {
    // Freed before others may take it: fields are dropped in their order.
    bytes: Vec<u8>,
    len: usize,
    _permit: Permit<'a>,
}

impl Memory<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Budget {
        Budget { state: Mutex::default(), changed: Condvar::new(), bytes_max }
    }

    /// Waits for `len` zero bytes, no more than the longest payload.
    pub(super) fn take(&self, len: u32) -> Memory<'_> {
        let permit = self.permit(len.into());
        let len = len as usize;
        Memory { bytes: vec![0; ALLOCATED_LEN.max(len)], len, _permit: permit }
    }

    /// Waits for `bytes`, which are no more than there are at all.
    fn permit(&self, bytes: u64) -> Permit<'_> {
        let bytes = bytes.min(self.bytes_max);
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        while state.serving != ticket || state.used + bytes > self.bytes_max {
            self.changed.wait(&mut state);
        }
        state.serving += 1;
        state.used += bytes;
        drop(state);
        self.changed.notify_all();
        Permit { budget: self, bytes }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.budget.state.lock().used -= self.bytes;
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Goal: never more than there is, and all are served. Method: threads that take random sums and add them up.
    #[test]
    fn is_never_exceeded() {
        let (budget, used) = (Budget::new(100), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (budget, used) = (&budget, &used);
                scope.spawn(move || {
                    let mut rng = oleo_sim::rng::Rng::new(thread);
                    for _ in 0..2000 {
                        let bytes = 1 + rng.below(100);
                        let permit = budget.permit(bytes);
                        assert!(used.fetch_add(bytes, Ordering::SeqCst) + bytes <= 100);
                        used.fetch_sub(bytes, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(budget.state.lock().used, 0);
    }
}
