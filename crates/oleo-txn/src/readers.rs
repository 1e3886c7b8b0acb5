//! Readers hold no lock; this keeps what they may still look at from being reused.
//!
//! A commit frees blocks and data that older roots name. They become free space when the commit is durable *and* nobody who
//! may have taken a root before it is left. Each published generation has a token; a reader holds the newest one; a freed
//! set waits until every token older than its commit is held by nobody but this queue.
//!
//! Locks: one, a leaf. Crash: memory only.

use std::collections::VecDeque;
use std::sync::Arc;

use oleo_lock::{RwLock, rank};
use oleo_space::PinSet;

/// While it lives, nothing that was reachable when it was taken is overwritten.
#[derive(Clone, Debug)]
pub struct Reader(#[allow(dead_code, reason = "held for its count only")] Arc<()>);

pub(crate) struct Readers {
    queue: RwLock<rank::Readers, Queue>,
}

struct Queue {
    current: Arc<()>,
    waiting: VecDeque<(Arc<()>, PinSet)>,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers { queue: RwLock::new(Queue { current: Arc::new(()), waiting: VecDeque::new() }) }
    }

    pub(crate) fn enter(&self) -> Reader {
        Reader(self.queue.read().current.clone())
    }

    /// A commit is durable and its roots are published; `pins` is what it freed.
    pub(crate) fn published(&self, pins: PinSet) {
        let mut q = self.queue.write();
        let before = std::mem::replace(&mut q.current, Arc::new(()));
        q.waiting.push_back((before, pins));
    }

    /// What nobody can look at any more, oldest first.
    pub(crate) fn reap(&self) -> Vec<PinSet> {
        let mut q = self.queue.write();
        let mut free = Vec::new();
        while q.waiting.front().is_some_and(|(token, _)| Arc::strong_count(token) == 1) {
            free.extend(q.waiting.pop_front().map(|(_, pins)| pins));
        }
        free
    }
}
