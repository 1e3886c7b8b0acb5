//! What all inodes share for the log: the rounds of callers of fsync, and which logged inodes have other names by now.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{Generation, TreeId};
use oleo_lock::{Mutex, rank};
use oleo_tree::Change;

use crate::log::stats::Counters;
use crate::log::waiter::{Parking, SystemThread, Waiter, Word};
use crate::object::Inode;

/// What all inodes share for the log.
#[derive(Default)]
pub(crate) struct Shared {
    pub(super) queue: Mutex<rank::LogQueue, Queue>,
    renamed: Mutex<rank::LogRenamed, Renamed>,
    pub(crate) stats: Counters,
}

/// Inodes in the log of one transaction whose names have changed since, by subvolume.
#[derive(Default)]
struct Renamed {
    generation: Generation,
    inodes: HashMap<TreeId, Vec<Arc<Inode>>>,
}

/// The changes of one round that its callers have recorded themselves: lists by subvolume, each sorted.
pub(super) type Lists = Vec<(TreeId, Vec<Change>)>;

/// The rounds, counted from 1 on: an open one, and perhaps one that is being written. If anybody waits, somebody leads or has been told to look.
pub(super) struct Queue<P = SystemThread> {
    /// The round that callers enter.
    pub(super) open: u64,
    /// The last round that is in the log's trees, if not on disk; so are all before it.
    pub(super) put: u64,
    leading: bool,
    /// The round before the open one is being written.
    being_written: bool,
    /// The last round that failed.
    failed: u64,
    /// Callers of the round that was closed last.
    callers: usize,
    /// Of the open round.
    generation: Generation,
    lists: Lists,
    named: Vec<Arc<Inode>>,
    waiting: Vec<Arc<Waiter<P>>>,
    /// Callers of the round before, which is being written.
    of_written: Vec<Arc<Waiter<P>>>,
}

impl<P> Default for Queue<P> {
    fn default() -> Queue<P> {
        Queue {
            open: 1,
            put: 0,
            leading: false,
            being_written: false,
            failed: 0,
            callers: 0,
            generation: Generation(0),
            lists: Vec::new(),
            named: Vec::new(),
            waiting: Vec::new(),
            of_written: Vec::new(),
        }
    }
}

/// What a caller that has entered a round does.
pub(super) enum Role<P = SystemThread> {
    /// It leads the round.
    Lead,
    /// It waits until the round is over, or until it is told to lead.
    Wait(Arc<Waiter<P>>),
    /// What it asks for was durable before.
    Durable,
    /// What it asks for was to be durable by now, and is not.
    Refused,
}

/// What a closed round is to write.
pub(super) struct Round {
    pub(super) number: u64,
    /// The open generation when its lists were recorded.
    pub(super) generation: Generation,
    pub(super) lists: Lists,
    /// Inodes that the leader records.
    pub(super) named: Vec<Arc<Inode>>,
    /// How many callers it has.
    pub(super) callers: usize,
}

impl<P: Parking> Queue<P> {
    /// Enters an inode that the leader is to record.
    pub(super) fn enter_named(&mut self, inode: &Arc<Inode>) -> Role<P> {
        self.named.push(inode.clone());
        self.enter()
    }

    /// Enters changes that the caller has recorded, in a generation.
    pub(super) fn enter_list(&mut self, generation: Generation, tree: TreeId, changes: Vec<Change>) -> Role<P> {
        if self.generation != generation {
            // What was recorded before that freeze is part of its commit, which a later log commit waits for.
            self.lists.clear();
            self.generation = generation;
        }
        self.lists.push((tree, changes));
        self.enter()
    }

    /// Enters a caller whose changes are in a round already.
    pub(super) fn enter_with(&mut self, round: u64) -> Role<P> {
        if round == self.open {
            self.enter()
        } else if self.being_written && round + 1 == self.open {
            let waiter = Arc::new(Waiter::new());
            self.of_written.push(waiter.clone());
            Role::Wait(waiter)
        } else if round <= self.failed {
            Role::Refused
        } else {
            Role::Durable
        }
    }

    fn enter(&mut self) -> Role<P> {
        if !std::mem::replace(&mut self.leading, true) {
            return Role::Lead;
        }
        let waiter = Arc::new(Waiter::new());
        self.waiting.push(waiter.clone());
        Role::Wait(waiter)
    }

    /// A waiter that was told to look: whether it leads.
    pub(super) fn look(&mut self, waiter: &Arc<Waiter<P>>) -> bool {
        let Some(at) = self.waiting.iter().position(|other| Arc::ptr_eq(other, waiter)) else { return false };
        if std::mem::replace(&mut self.leading, true) {
            return false;
        }
        self.waiting.remove(at);
        true
    }

    /// How many callers wait for the open round, and how many the one before had.
    pub(super) fn callers(&self) -> (usize, usize) {
        (self.waiting.len(), self.callers)
    }

    /// Whether the leader has something to record.
    pub(super) fn has_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Closes the open round: callers enter the next from now on.
    pub(super) fn close(&mut self) -> Round {
        let number = self.open;
        self.open += 1;
        debug_assert!(!self.being_written && self.of_written.is_empty(), "one round is written at a time");
        self.being_written = true;
        self.of_written = std::mem::take(&mut self.waiting);
        self.callers = self.of_written.len() + 1;
        Round {
            number,
            generation: self.generation,
            lists: std::mem::take(&mut self.lists),
            named: std::mem::take(&mut self.named),
            callers: self.callers,
        }
    }

    /// The round that was closed last is over. The caller wakes those who are to hear of it when it has let the queue go.
    /// Somebody who is running and comes before it has woken up leads in its place: that costs no wake-up.
    fn finish(&mut self, good: bool) -> Over<P> {
        self.being_written = false;
        if !good {
            self.failed = self.open - 1;
        }
        self.leading = false;
        Over { next: self.waiting.first().cloned(), callers: std::mem::take(&mut self.of_written), good }
    }
}

/// Who is to be woken after a round.
struct Over<P> {
    /// It may lead the next.
    next: Option<Arc<Waiter<P>>>,
    callers: Vec<Arc<Waiter<P>>>,
    good: bool,
}

impl<P: Parking> Over<P> {
    /// Wakes them, and nobody else.
    fn wake(self) {
        // It has most to do.
        if let Some(next) = self.next {
            next.wake(Word::Look);
        }
        let word = if self.good { Word::Done } else { Word::Failed };
        self.callers.iter().for_each(|waiter| waiter.wake(word));
    }
}

impl Shared {
    /// The round is over: hands the lead on and wakes its callers.
    pub(super) fn finish(&self, good: bool) {
        let over = self.queue.lock().finish(good);
        over.wake();
    }

    /// A logged inode's names change in a transaction.
    pub(crate) fn renamed(&self, inode: &Arc<Inode>, generation: Generation) {
        let mut renamed = self.renamed.lock();
        let before = (renamed.generation != generation).then(|| std::mem::take(&mut *renamed));
        renamed.generation = generation;
        renamed.inodes.entry(inode.tree()).or_default().push(inode.clone());
        drop(renamed);
        drop(before);
    }

    /// The changes of a transaction are frozen, perhaps not the last of it: lets the inodes of those before go.
    pub(crate) fn forget_before(&self, generation: Generation) {
        let mut renamed = self.renamed.lock();
        let gone = (renamed.generation < generation).then(|| std::mem::take(&mut *renamed));
        drop(renamed);
        drop(gone);
    }

    pub(super) fn has_renamed(&self, tree: TreeId, generation: Generation) -> bool {
        let renamed = self.renamed.lock();
        renamed.generation == generation && renamed.inodes.contains_key(&tree)
    }

    /// A copy of the list of one subvolume.
    pub(super) fn all_renamed(&self, tree: TreeId, generation: Generation) -> Vec<Arc<Inode>> {
        let renamed = self.renamed.lock();
        if renamed.generation != generation {
            return Vec::new();
        }
        renamed.inodes.get(&tree).cloned().unwrap_or_default()
    }

    pub(super) fn take_renamed(&self, tree: TreeId, generation: Generation) -> Vec<Arc<Inode>> {
        let mut renamed = self.renamed.lock();
        if renamed.generation != generation {
            return Vec::new();
        }
        renamed.inodes.remove(&tree).unwrap_or_default()
    }
}

#[cfg(test)]
mod models;
