//! Readers hold no lock; this keeps what they may still look at from being reused.
//!
//! A commit frees blocks and data that older roots name. They become free space when the commit is durable *and* nobody who
//! may have taken a root before it is left. There are two sorts of readers:
//! - A [`Reader`] lives as long as anybody likes (a send). Each published generation has a token for each of some groups of threads; a
//!   reader holds the newest one of its thread's; a freed set waits until every token older than its commit is held by nobody but this queue.
//! - A [`Look`] is short: one look-up. It counts itself in a slot of its thread's, so that it writes to no line that all share, and a
//!   freed set waits until all looks that began before it are over (`phases`).
//!
//! Locks: that of the queue, and those of the newest tokens, all leaves; looks take none. Crash: memory only.

use std::collections::VecDeque;
use std::sync::Arc;

use oleo_lock::{Mutex, RwLock, rank};
use oleo_space::PinSet;

use crate::barrier::thread_number;
use crate::phases::{Began, Phases};

/// More threads than that share lines. A commit reads them all, twice.
const SLOTS: usize = 64;
/// The same for readers; each commit makes a token for each.
const TOKENS: usize = 32;
/// Turns after which all looks that were under way are over.
const TURNS: u64 = 2;
/// Turns tried in a row.
const TRIES_MAX: usize = 16;

/// While it lives, nothing that was reachable when it was taken is overwritten.
#[derive(Clone, Debug)]
pub struct Reader(#[allow(dead_code, reason = "held for its count only")] Arc<Token>);

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
    newest: Box<[Newest]>,
    queue: Mutex<rank::Readers, VecDeque<Waiting>>,
}

/// The newest token of some threads, on a line of its own, as the token is.
#[repr(align(128))]
struct Newest(RwLock<rank::ReaderToken, Arc<Token>>);

#[repr(align(128))]
#[derive(Debug)]
struct Token;

fn token() -> Arc<Token> {
    Arc::new(Token)
}

/// What a commit freed.
struct Waiting {
    tokens: Vec<Arc<Token>>,
    /// Turns of the phases after which no look of before is left.
    turns: u64,
    pins: PinSet,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        let newest = (0..TOKENS).map(|_| Newest(RwLock::new(token()))).collect();
        Readers { phases: Phases::new(SLOTS), newest, queue: Mutex::default() }
    }

    pub(crate) fn enter(&self) -> Reader {
        Reader(self.newest[thread_number() % TOKENS].0.read().clone())
    }

    pub(crate) fn look(&self) -> Look<'_> {
        Look { phases: &self.phases, began: self.phases.begin(thread_number() % SLOTS) }
    }

    /// A commit is durable and its roots are published; `pins` is what it freed.
    pub(crate) fn published(&self, pins: PinSet) {
        // Whoever enters from here on sees the new roots, whichever token it gets. One commit at a time is here.
        let tokens = self.newest.iter().map(|newest| std::mem::replace(&mut *newest.0.write(), token())).collect();
        let turns = self.phases.turns() + TURNS;
        self.queue.lock().push_back(Waiting { tokens, turns, pins });
    }

    /// What nobody can look at any more, oldest first.
    pub(crate) fn reap(&self) -> Vec<PinSet> {
        let mut queue = self.queue.lock();
        let mut free = Vec::new();
        let Some(last) = queue.back().map(|last| last.turns) else { return free };
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
        let is_left = |token: &Arc<Token>| Arc::strong_count(token) == 1;
        while queue.front().is_some_and(|first| first.turns <= turns && first.tokens.iter().all(is_left)) {
            free.extend(queue.pop_front().map(|first| first.pins));
        }
        free
    }
}
