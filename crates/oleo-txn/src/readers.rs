//! Readers hold no lock; this keeps what they may still look at from being reused.
//!
//! A commit frees blocks and data that older roots name. They become free space when the commit is durable *and* nobody who
//! may have taken a root before it is left. There are two sorts of readers:
//! - A [`Reader`] lives as long as anybody likes (a send). Each published generation has a token; a reader holds the newest one; a
//!   freed set waits until every token older than its commit is held by nobody but this queue.
//! - A [`Look`] is short: one look-up. It counts itself in a slot of its thread's, so that it writes to no line that all share, and a
//!   freed set waits until all looks that began before it are over (`phases`).
//!
//! Locks: one, a leaf; looks take none. Crash: memory only.

use std::collections::VecDeque;
use std::sync::Arc;

use oleo_lock::{RwLock, rank};
use oleo_space::PinSet;

use crate::barrier::thread_number;
use crate::phases::{Began, Phases};

/// More threads than that share lines. A commit reads them all, twice.
const SLOTS: usize = 64;
/// Turns after which all looks that were under way are over.
const TURNS: u64 = 2;
/// Turns tried in a row.
const TRIES_MAX: usize = 16;

/// While it lives, nothing that was reachable when it was taken is overwritten.
#[derive(Clone, Debug)]
pub struct Reader(#[allow(dead_code, reason = "held for its count only")] Arc<()>);

/// The same for one look-up, on one thread: what commits freed waits for it.
pub struct Look<'a> {
    phases: &'a Phases,
    began: Began,
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.phases.end(self.began);
    }
}

pub(crate) struct Readers {
    phases: Phases,
    queue: RwLock<rank::Readers, Queue>,
}

struct Queue {
    current: Arc<()>,
    waiting: VecDeque<Waiting>,
}

/// What a commit freed.
struct Waiting {
    token: Arc<()>,
    /// Turns of the phases after which no look of before is left.
    turns: u64,
    pins: PinSet,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        let queue = Queue { current: Arc::new(()), waiting: VecDeque::new() };
        Readers { phases: Phases::new(SLOTS), queue: RwLock::new(queue) }
    }

    pub(crate) fn enter(&self) -> Reader {
        Reader(self.queue.read().current.clone())
    }

    pub(crate) fn look(&self) -> Look<'_> {
        Look { phases: &self.phases, began: self.phases.begin(thread_number() % SLOTS) }
    }

    /// A commit is durable and its roots are published; `pins` is what it freed.
    pub(crate) fn published(&self, pins: PinSet) {
        let mut q = self.queue.write();
        let token = std::mem::replace(&mut q.current, Arc::new(()));
        let turns = self.phases.turns() + TURNS;
        q.waiting.push_back(Waiting { token, turns, pins });
    }

    /// What nobody can look at any more, oldest first.
    pub(crate) fn reap(&self) -> Vec<PinSet> {
        let mut q = self.queue.write();
        let mut free = Vec::new();
        let Some(last) = q.waiting.back().map(|last| last.turns) else { return free };
        // Looks are short, so that those of a moment ago are over in the next; one that reads a device is not waited for.
        for _ in 0..TRIES_MAX {
            if self.phases.turns() >= last {
                break;
            }
            if !self.phases.turn() {
                std::thread::yield_now();
            }
        }
        let turns = self.phases.turns();
        while q.waiting.front().is_some_and(|first| first.turns <= turns && Arc::strong_count(&first.token) == 1) {
            free.extend(q.waiting.pop_front().map(|first| first.pins));
        }
        free
    }
}
