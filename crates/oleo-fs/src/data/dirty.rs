//! The lists of files with buffered bytes, in the order in which they are written back. What they are written back for: `write_back`.
//!
//! Each file is in the list of the threads that wrote to it first; which one that is, is noted with its buffer, under whose lock it enters and
//! leaves. So threads that write to different files change different lists. The order is that of time, and within the same time and list
//! that of entry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Ino, TreeId};
use oleo_lock::{Mutex, rank};
use oleo_txn::thread_number;

use crate::object::Inode;
use crate::options::Time;

type Rank = (TreeId, Ino);

/// More threads than that share lists. Fits in a byte with one to spare.
const LISTS: usize = 64;

/// The files with buffered bytes.
pub(super) struct DirtyFiles(Box<[List]>);

/// A list on lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct List(Mutex<rank::DirtyFiles, FileList>);

/// What waits to be written back, and when a file is old.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) too_much: bool,
    pub(super) old: Time,
}

impl Default for DirtyFiles {
    fn default() -> DirtyFiles {
        DirtyFiles((0..LISTS).map(|_| List::default()).collect())
    }
}

impl DirtyFiles {
    fn list_of(&self, inode: &Inode) -> Option<&List> {
        usize::from(inode.data.listed.load(Ordering::Relaxed)).checked_sub(1).map(|list| &self.0[list])
    }

    /// Enters a file, unless it is there. This and what follows: with the lock of the file's buffer held.
    pub(super) fn insert(&self, inode: &Arc<Inode>, since: Time) {
        if self.list_of(inode).is_none() {
            let list = thread_number() % LISTS;
            inode.data.listed.store(list as u8 + 1, Ordering::Relaxed);
            self.0[list].0.lock().insert(inode, since);
        }
    }

    pub(super) fn remove(&self, inode: &Inode) -> Option<Arc<Inode>> {
        let list = self.list_of(inode)?;
        inode.data.listed.store(0, Ordering::Relaxed);
        list.0.lock().remove(inode.rank())
    }

    /// Puts a file at the end of the order, or sets it aside.
    pub(super) fn renew(&self, inode: &Inode, since: Time, flushed: Flushed) {
        if let Some(list) = self.list_of(inode) {
            list.0.lock().renew(inode.rank(), since, flushed);
        }
    }

    /// Whether anything is due.
    pub(super) fn has_due(&self, due: Due) -> bool {
        self.0.iter().any(|list| list.0.lock().due(due).next().is_some())
    }

    /// What write-back is to take first, at most `max` files.
    pub(super) fn due(&self, due: Due, max: usize) -> Vec<Arc<Inode>> {
        self.first(max, |list, out| out.extend(list.due(due).take(max).map(|e| (e.since, e.inode.clone()))))
    }

    /// Those that have waited longest, at most `max`, without those set aside.
    pub(super) fn oldest(&self, max: usize) -> Vec<Arc<Inode>> {
        self.first(max, |list, out| out.extend(list.oldest().take(max).map(|e| (e.since, e.inode.clone()))))
    }

    /// The first of all lists by time, of what `some` takes from each.
    fn first(&self, max: usize, some: impl Fn(&FileList, &mut Vec<(Time, Arc<Inode>)>)) -> Vec<Arc<Inode>> {
        let mut all = Vec::new();
        for list in &self.0 {
            some(&list.0.lock(), &mut all);
        }
        // Stable: equal times stay in the order of their list.
        all.sort_by_key(|(since, _)| *since);
        all.truncate(max);
        all.into_iter().map(|(_, inode)| inode).collect()
    }

    /// All of them in rank order; of one subvolume, or of all.
    pub(super) fn of(&self, tree: Option<TreeId>) -> Vec<Arc<Inode>> {
        let mut all: Vec<_> = self.0.iter().flat_map(|list| list.0.lock().of(tree)).collect();
        all.sort_by_key(|inode| inode.rank());
        all
    }

    /// Drops the files: what they buffer is lost.
    pub(super) fn forget(&self) {
        for list in &self.0 {
            let gone = std::mem::take(&mut *list.0.lock());
            drop(gone);
        }
    }
}

/// Some files: in the order of their ranks, and in the order in which they were written to.
#[derive(Default)]
struct FileList {
    by_rank: BTreeMap<Rank, Entry>,
    by_turn: BTreeMap<u64, Rank>,
    /// Those of which the last flush failed, in the order in which that was found.
    failed: BTreeMap<u64, Rank>,
    next_turn: u64,
}

/// How a file's last flush ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// What it had was written; it has been written to since.
    Well,
    /// Not all could be written.
    Badly,
}

struct Entry {
    inode: Arc<Inode>,
    turn: u64,
    /// When the first of its bytes was buffered, or the last flush failed.
    since: Time,
}

impl FileList {
    /// Enters a file, unless it is there.
    fn insert(&mut self, inode: &Arc<Inode>, since: Time) {
        let rank = inode.rank();
        if !self.by_rank.contains_key(&rank) {
            let turn = self.put(inode.clone(), since);
            self.by_turn.insert(turn, rank);
        }
    }

    fn put(&mut self, inode: Arc<Inode>, since: Time) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.by_rank.insert(inode.rank(), Entry { inode, turn, since });
        turn
    }

    fn remove(&mut self, rank: Rank) -> Option<Arc<Inode>> {
        let entry = self.by_rank.remove(&rank)?;
        self.by_turn.remove(&entry.turn);
        self.failed.remove(&entry.turn);
        Some(entry.inode)
    }

    /// Puts a file at the end of the order, or sets it aside.
    fn renew(&mut self, rank: Rank, since: Time, flushed: Flushed) {
        if let Some(inode) = self.remove(rank) {
            let turn = self.put(inode, since);
            let order = if flushed == Flushed::Well { &mut self.by_turn } else { &mut self.failed };
            order.insert(turn, rank);
        }
    }

    fn oldest(&self) -> impl Iterator<Item = &Entry> {
        self.by_turn.values().filter_map(|rank| self.by_rank.get(rank))
    }

    /// What write-back is to take first: those that wait, if there is too much or as far as they are old, and those set aside that
    /// have become old again.
    fn due(&self, due: Due) -> impl Iterator<Item = &Entry> {
        let Due { too_much, old } = due;
        let again = self.failed.values().filter_map(|rank| self.by_rank.get(rank)).take_while(move |e| e.since < old);
        self.oldest().take_while(move |e| too_much || e.since < old).chain(again)
    }

    /// Those of one subvolume, or all.
    fn of(&self, tree: Option<TreeId>) -> Vec<Arc<Inode>> {
        let of_tree = |rank: &Rank| tree.is_none_or(|t| t == rank.0);
        self.by_rank.iter().filter(|(rank, _)| of_tree(rank)).map(|(_, e)| e.inode.clone()).collect()
    }
}
