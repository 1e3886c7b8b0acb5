//! Memory for payloads of all connections: so many bytes, given out in the order in which they were asked for, except that a
//! client waits by itself while it holds its share. So one that is slow with all of its share holds up no other client.
//!
//! A piece is allocated as long as the longest payload, of which only what is used takes memory: allocators give memory of
//! that length to the system again when it is freed, where smaller pieces would stay with the thread that had them.
//!
//! Whoever waits here does not receive, so the other side is held up by its own socket. Whoever holds some is bound to
//! a pace ([`crate::channel::Pace`]), so waiting ends.

use std::collections::{HashMap, VecDeque};

use oleo_lock::{Condvar, Mutex, rank};

use super::share_of;
use crate::channel::Peer;
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
    /// Bytes that each client holds; no zeros.
    held: HashMap<Peer, u64>,
    /// The number of the next request.
    next: u64,
    /// Those that wait, in their order; no more than there are threads.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    number: u64,
    peer: Peer,
    bytes: u64,
}

impl State {
    /// The first that waits for anything but its own client's memory, if there is enough for it.
    fn next(&self, bytes_max: u64) -> Option<u64> {
        let within = |of: &&Waiting| {
            // One request is always possible.
            self.held.get(&of.peer).is_none_or(|held| held + of.bytes <= share_of(bytes_max))
        };
        let first = self.waiting.iter().find(within)?;
        (self.used + first.bytes <= bytes_max).then_some(first.number)
    }
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
    peer: Peer,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Budget {
        Budget { state: Mutex::default(), changed: Condvar::new(), bytes_max }
    }

    /// Waits for `len` zero bytes for a client, no more than the longest payload.
    pub(super) fn take(&self, peer: Peer, len: u32) -> Memory<'_> {
        let permit = self.permit(peer, len.into());
        let len = len as usize;
        Memory { bytes: vec![0; ALLOCATED_LEN.max(len)], len, _permit: permit }
    }

    /// Waits for `bytes`, which are no more than there are at all.
    fn permit(&self, peer: Peer, bytes: u64) -> Permit<'_> {
        let bytes = bytes.min(self.bytes_max);
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(Waiting { number, peer, bytes });
        while state.next(self.bytes_max) != Some(number) {
            self.changed.wait(&mut state);
        }
        state.waiting.retain(|waiting| waiting.number != number);
        state.used += bytes;
        *state.held.entry(peer).or_default() += bytes;
        drop(state);
        self.changed.notify_all();
        Permit { budget: self, peer, bytes }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.used -= self.bytes;
        let held = state.held.remove(&self.peer).unwrap_or(0).saturating_sub(self.bytes);
        if held > 0 {
            state.held.insert(self.peer, held);
        }
        drop(state);
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
                        let permit = budget.permit(Peer::Process(thread as i32 / 3), bytes);
                        assert!(used.fetch_add(bytes, Ordering::SeqCst) + bytes <= 100);
                        used.fetch_sub(bytes, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        let state = budget.state.lock();
        assert!(state.used == 0 && state.held.is_empty() && state.waiting.is_empty());
    }

    /// Goal: a client that holds its share waits alone, and the others keep their order. Method: who would be next, by hand.
    #[test]
    fn a_share_for_each() {
        let (ours, theirs) = (Peer::Process(7), Peer::Process(8));
        let mut state = State { used: 70, held: HashMap::from([(ours, 70)]), ..State::default() };
        let wait = |state: &mut State, number, peer, bytes| state.waiting.push_back(Waiting { number, peer, bytes });
        wait(&mut state, 0, ours, 10);
        assert_eq!(state.next(100), None, "more than three quarters");
        wait(&mut state, 1, ours, 5);
        assert_eq!(state.next(100), Some(1), "what fits its share");
        state.waiting.pop_back();
        wait(&mut state, 2, theirs, 31);
        wait(&mut state, 3, theirs, 1);
        assert_eq!(state.next(100), None, "in their order");
        state.waiting.remove(1);
        assert_eq!(state.next(100), Some(3));
        let alone = State {
            waiting: state.waiting.drain(..1).map(|w| Waiting { bytes: 100, ..w }).collect(),
            ..State::default()
        };
        assert_eq!(alone.next(100), Some(0), "all of it for one request");
    }
}
