//! What is promised: reservations, so that "no space" comes from the call that asks, never from the commit.
//!
//! A pool is the space of one kind (data, metadata, system; on a mixed volume data and metadata are one pool). Its one
//! number that matters is `committed`: everything in writable groups that is not free, plus everything reserved.
//!
//! 1. `Reservation`s raise it by compare-and-swap, never past `limit`, which is `capacity + growth`.
//! 2. An allocation against a reservation turns reserved bytes into used ones: `committed` stays as it is, so nothing
//!    is counted twice and nothing can slip in between.
//! 3. Freed bytes lower it once they are really free (pinned ones are not).
//! 4. What is taken out of the limit is first committed, so that it is nobody's; then the limit is lowered, and then it is
//!    uncommitted. A reservation that has read the old limit may find `committed` at the value it knows all the same (what was taken
//!    was an empty group, say); so it looks at the limit again when it is in, and steps back.
//! 5. A group that is made out of growth raises and lowers the limit in one step: it is never higher than what there is.
//!
//! Invariants: at rest `committed = reserved + Σ (len − free)` over writable groups. The one way past the limit is
//! [`Pool::overdraw`], for tree blocks that a running commit cannot do without.
//!
//! Locks: none, atomics only. `reserved` is for show and may lag behind by one operation; `committed` never does.
//! Crash: memory only.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::atomic::AtomicCell;
use crate::threads::CachePadded;

/// The numbers of one pool, in bytes.
#[derive(Default)]
pub(crate) struct Pool<W = AtomicU64> {
    /// Bytes of all groups.
    pub(crate) total: W,
    /// Bytes of writable groups.
    pub(crate) capacity: W,
    /// Bytes of writable groups that are not free, and bytes reserved.
    pub(crate) committed: W,
    /// Bytes reserved: promised, and no address given yet.
    pub(crate) reserved: W,
    /// What new chunks could add, as last set.
    pub(crate) growth: W,
    /// The sum of the two: a number of its own, so that both can change in one step.
    pub(crate) limit: W,
    /// Bytes freed by a transaction that is not durable yet.
    pub(crate) pinned: W,
    /// Searches of the sort that must not miss anything, in their last pass.
    searches: CachePadded<W>,
    /// Grows whenever something has become free in a group and its index while there are such searches: one that found nothing
    /// while this grew may have looked too early.
    frees: W,
    /// Bytes used as the block group items will have it.
    pub(crate) used: W,
}

impl<W: AtomicCell> Pool<W> {
    /// Commits up to `max` bytes, at least `min`, as much as there is; a multiple of `unit` when less than `max`.
    pub(crate) fn commit_some(&self, max: u64, min: u64, unit: u64) -> Option<u64> {
        let mut now = self.committed.load();
        loop {
            let room = self.limit.load().saturating_sub(now);
            let got = if room >= max { max } else { room / unit * unit };
            if got < min {
                return None;
            }
            match self.committed.exchange(now, now + got) {
                Ok(_) if got == 0 || self.limit.load() >= now + got => return Some(got),
                // The limit has sunk since it was read.
                Ok(_) => now = self.committed.sub(got) - got,
                Err(seen) => now = seen,
            }
        }
    }

    /// Lowers the limit by `len` bytes, if that many are nobody's, and has `change` say so elsewhere; of them, `free` were to be had.
    pub(crate) fn take_out(&self, len: u64, free: u64, change: impl FnOnce()) -> bool {
        if self.commit_some(free, free, 1).is_none() {
            return false;
        }
        change();
        self.limit.sub(len);
        self.uncommit(len);
        true
    }

    /// Commits `len` bytes whether or not they fit.
    pub(crate) fn overdraw(&self, len: u64) {
        self.committed.add(len);
    }

    /// Takes `len` bytes back from what is committed.
    pub(crate) fn uncommit(&self, len: u64) {
        let before = self.committed.sub(len);
        debug_assert!(before >= len, "more bytes given back than were committed");
    }
}

/// A search that must not miss what becomes free behind its back.
pub(crate) struct Search<'a, W: AtomicCell>(&'a Pool<W>);

impl<W: AtomicCell> Search<'_, W> {
    /// Changes whenever something has become free.
    pub(crate) fn frees(&self) -> u64 {
        self.0.frees.load()
    }
}

impl<W: AtomicCell> Drop for Search<'_, W> {
    fn drop(&mut self) {
        self.0.searches.0.sub(1);
    }
}

impl<W: AtomicCell> Pool<W> {
    /// From here on what becomes free is counted.
    pub(crate) fn search(&self) -> Search<'_, W> {
        self.searches.0.add(1);
        Search(self)
    }

    /// Something has become free in a group and its index. Called with the group's state held: a search that is not seen here
    /// has yet to look into the group.
    pub(crate) fn notify_searchers(&self) {
        if self.searches.0.load() > 0 {
            self.frees.add(1);
        }
    }
}

impl Pool {
    /// Moves all of another pool's numbers here.
    pub(crate) fn absorb(&self, other: &Pool) {
        let pairs = [
            (&self.total, &other.total),
            (&self.capacity, &other.capacity),
            (&self.committed, &other.committed),
            (&self.reserved, &other.reserved),
            (&self.growth, &other.growth),
            (&self.limit, &other.limit),
            (&self.pinned, &other.pinned),
            (&self.used, &other.used),
        ];
        for (here, there) in pairs {
            here.fetch_add(there.swap(0, SeqCst), SeqCst);
        }
    }
}
