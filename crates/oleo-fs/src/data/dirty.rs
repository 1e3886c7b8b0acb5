//! The list of files with buffered bytes, in the order in which they are written back. What they are written back for: `write_back`.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_format::{Ino, TreeId};

use crate::object::Inode;
use crate::options::Time;

type Rank = (TreeId, Ino);

/// The files with buffered bytes: in the order of their ranks, and in the order in which they were written to.
#[derive(Default)]
pub(super) struct DirtyFiles {
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

pub(super) struct Entry {
    pub(super) inode: Arc<Inode>,
    turn: u64,
    /// When the first of its bytes was buffered, or the last flush failed.
    since: Time,
}

impl DirtyFiles {
    /// Enters a file, unless it is there.
    pub(super) fn insert(&mut self, inode: &Arc<Inode>, since: Time) {
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

    pub(super) fn remove(&mut self, rank: Rank) -> Option<Arc<Inode>> {
        let entry = self.by_rank.remove(&rank)?;
        self.by_turn.remove(&entry.turn);
        self.failed.remove(&entry.turn);
        Some(entry.inode)
    }

    /// Puts a file at the end of the order, or sets it aside.
    pub(super) fn renew(&mut self, rank: Rank, since: Time, flushed: Flushed) {
        if let Some(inode) = self.remove(rank) {
            let turn = self.put(inode, since);
            let order = if flushed == Flushed::Well { &mut self.by_turn } else { &mut self.failed };
            order.insert(turn, rank);
        }
    }

    pub(super) fn oldest(&self) -> impl Iterator<Item = &Entry> {
        self.by_turn.values().filter_map(|rank| self.by_rank.get(rank))
    }

    /// What write-back is to take first: those that wait, if there is too much or as far as they are old, and those set aside that
    /// have become old again.
    pub(super) fn due(&self, too_much: bool, old: Time) -> impl Iterator<Item = &Entry> {
        let again = self.failed.values().filter_map(|rank| self.by_rank.get(rank)).take_while(move |e| e.since < old);
        self.oldest().take_while(move |e| too_much || e.since < old).chain(again)
    }

    /// All of them in rank order; of one subvolume, or of all.
    pub(super) fn of(&self, tree: Option<TreeId>) -> Vec<Arc<Inode>> {
        let of_tree = |rank: &Rank| tree.is_none_or(|t| t == rank.0);
        self.by_rank.iter().filter(|(rank, _)| of_tree(rank)).map(|(_, e)| e.inode.clone()).collect()
    }
}
