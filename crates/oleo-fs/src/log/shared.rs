//! What all inodes share for the log: the rounds of callers of fsync, and which logged inodes have other names by now.

use std::sync::Arc;

use hashbrown::HashMap;
use oleo_format::{Generation, TreeId};
use oleo_lock::{Mutex, rank};
use oleo_tree::Change;

use crate::log::stats::Counters;
use crate::log::waiter::{Waiter, Word};
use crate::object::Inode;

/// What all inodes share for the log.
#[derive(Default)]
pub(crate) struct Shared {
    pub(super) queue: Mutex<rank::LogQueue, Queue>,
    /// Inodes in the log whose names have changed since, by subvolume.
    pub(super) renamed: Mutex<rank::LogRenamed, HashMap<TreeId, Vec<Arc<Inode>>>>,
    pub(crate) stats: Counters,
}

/// The changes of one round that its callers have recorded themselves: lists by subvolume, each sorted.
pub(super) type Lists = Vec<(TreeId, Vec<Change>)>;

/// The rounds, counted from 1 on: an open one, and perhaps one that is being written. If anybody waits, somebody leads or has been told to look.
pub(super) struct Queue {
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
    waiting: Vec<Arc<Waiter>>,
    /// Callers of the round before, which is being written.
    of_written: Vec<Arc<Waiter>>,
}

impl Default for Queue {
    fn default() -> Queue {
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
pub(super) enum Role {
    /// It leads the round.
    Lead,
    /// It waits until the round is over, or until it is told to lead.
    Wait(Arc<Waiter>),
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

impl Queue {
    /// Enters an inode that the leader is to record.
    pub(super) fn enter_named(&mut self, inode: &Arc<Inode>) -> Role {
        self.named.push(inode.clone());
        self.enter()
    }

    /// Enters changes that the caller has recorded, in a generation.
    pub(super) fn enter_list(&mut self, generation: Generation, tree: TreeId, changes: Vec<Change>) -> Role {
        if self.generation != generation {
            // What was recorded before that freeze is part of its commit, which a later log commit waits for.
            self.lists.clear();
            self.generation = generation;
        }
        self.lists.push((tree, changes));
        self.enter()
    }

    /// Enters a caller whose changes are in a round already.
    pub(super) fn enter_with(&mut self, round: u64) -> Role {
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

    fn enter(&mut self) -> Role {
        if !std::mem::replace(&mut self.leading, true) {
            return Role::Lead;
        }
        let waiter = Arc::new(Waiter::new());
        self.waiting.push(waiter.clone());
        Role::Wait(waiter)
    }

    /// A waiter that was told to look: whether it leads.
    pub(super) fn look(&mut self, waiter: &Arc<Waiter>) -> bool {
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

    /// The round that was closed last is over. Returns who may lead the next, if anybody waits for it, and who waited for this
    /// one: the caller wakes them when it has let the queue go.
    /// Somebody who is running and comes before it has woken up leads in its place: that costs no wake-up.
    fn finish(&mut self, good: bool) -> (Option<Arc<Waiter>>, Vec<Arc<Waiter>>) {
        self.being_written = false;
        if !good {
            self.failed = self.open - 1;
        }
        self.leading = false;
        (self.waiting.first().cloned(), std::mem::take(&mut self.of_written))
    }
}

impl Shared {
    /// The round is over: hands the lead on and wakes its callers, and nobody else.
    pub(super) fn finish(&self, good: bool) {
        let (next, over) = self.queue.lock().finish(good);
        // It has most to do.
        if let Some(next) = next {
            next.wake(Word::Look);
        }
        over.iter().for_each(|waiter| waiter.wake(if good { Word::Done } else { Word::Failed }));
    }

    /// A logged inode's names change.
    pub(crate) fn renamed(&self, inode: &Arc<Inode>) {
        self.renamed.lock().entry(inode.tree()).or_default().push(inode.clone());
    }

    /// The transaction ends, and its log with it.
    pub(crate) fn forget(&self) {
        let gone = std::mem::take(&mut *self.renamed.lock());
        drop(gone);
    }

    pub(super) fn has_renamed(&self, tree: TreeId) -> bool {
        self.renamed.lock().contains_key(&tree)
    }

    pub(super) fn take_renamed(&self, tree: TreeId) -> Vec<Arc<Inode>> {
        self.renamed.lock().remove(&tree).unwrap_or_default()
    }
}
