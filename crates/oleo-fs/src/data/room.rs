//! Space and quota for what adds data or names: what is buffered or waits to be erased gives way before anything is refused.

use std::sync::Arc;
use std::time::Duration;

use oleo_format::{ByteLen, TreeId};
use oleo_txn::{Claim, DataReservation, Dropped, Handle, Need, TxnError};

use crate::FsError;
use crate::object::{Core, Subvol};

/// Which `flush` locks the caller of [`Core::make_room`] holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushing {
    /// None.
    None,
    /// Those of some files.
    Some,
}

/// How often a caller that finds no space looks whether what was unlinked has been evicted.
const LET_GO_TRIES: u32 = 10;
/// How long in between.
const LET_GO_WAIT: Duration = Duration::from_millis(10);
/// Blocks of a deleted subvolume that a caller without space takes apart in one step, before it looks whether there is space.
const DROP_BLOCKS: usize = 256;
/// Such steps of a caller that adds something, at the most: it is not to wait for all that was ever deleted.
const DROP_STEPS_MAX: u32 = 8;

impl Core {
    /// Promises space for data of a subvolume, as far as its quota goes. May commit; the caller may hold `flush` locks.
    pub(crate) fn reserve_in(self: &Arc<Self>, tree: TreeId, len: u64) -> Result<DataReservation, FsError> {
        match self.engine().reserve_data_in(tree, ByteLen(len)) {
            Err(TxnError::QuotaExceeded(_)) => {}
            Err(TxnError::NoSpace { .. }) => {
                self.make_room(Flushing::Some)?;
                return Ok(self.engine().reserve_data_in(tree, ByteLen(len))?);
            }
            other => return Ok(other?),
        }
        // What others were charged may have come to less.
        let settle = || -> Result<(), FsError> { Ok(self.engine().commit().map(drop)?) };
        self.engine().reserve_data_alone(tree, ByteLen(len), settle)
    }

    /// Joins for what adds names or attributes to a subvolume, as far as its quota and the space go. Before that refuses, what is
    /// buffered is written out: it may come to less than what was charged or promised for it. May commit; the caller holds no lock
    /// of an inode.
    pub(crate) fn join_in(self: &Arc<Self>, tree: TreeId, need: Need) -> Result<Handle<'_>, FsError> {
        let join = || {
            self.engine().join_with(tree, need, 0, || {
                self.data.release_idle_reservations();
                self.flush_what_can_be();
                Ok(())
            })
        };
        match join() {
            Err(FsError::NoSpace) => {}
            other => return other,
        }
        self.make_room(Flushing::None)?;
        join()
    }

    /// Returns the claim of an operation that deletes something in a subvolume.
    pub(crate) fn claim_of(&self, subvol: &Subvol) -> Claim {
        if subvol.may_share() { Claim::Release } else { Claim::Reclaim }
    }

    /// Joins for an operation that deletes something in a subvolume; the claim of `need` is that of the subvolume.
    pub(crate) fn join_with_claim(&self, subvol: &Subvol, need: Need) -> Result<Handle<'_>, TxnError> {
        let claim = self.claim_of(subvol);
        let handle = self.engine().join(Need { claim, ..need })?;
        if claim == self.claim_of(subvol) {
            return Ok(handle);
        }
        // A snapshot of the subvolume was made meanwhile. From now on its claim stays as it is.
        drop(handle);
        self.engine().join(Need { claim: self.claim_of(subvol), ..need })
    }

    /// The same. If there is no space, deleted subvolumes are taken apart until there is. May commit; the caller may hold `flush` locks.
    pub(crate) fn join_to_release(&self, subvol: &Subvol, need: Need) -> Result<Handle<'_>, FsError> {
        // Ends since each round takes a part of a deleted subvolume apart.
        loop {
            match self.join_with_claim(subvol, need) {
                Err(TxnError::NoSpace { .. }) if self.drop_some()? => {}
                handle => return Ok(handle?),
            }
        }
    }

    /// Takes a part of a deleted subvolume apart and commits, so that what it had is free; whether there was one.
    pub(crate) fn drop_some(&self) -> Result<bool, FsError> {
        let any = self.drop_step(DROP_BLOCKS)?;
        if any {
            self.engine().commit()?;
        }
        Ok(any)
    }

    /// Takes at most `budget_blocks` blocks of a deleted subvolume apart; whether there was one. One that cannot be does not keep
    /// the others.
    ///
    /// # Errors
    /// None can be taken apart: the first reason.
    pub(crate) fn drop_step(&self, budget_blocks: usize) -> Result<bool, FsError> {
        let (mut from, mut first) = (TreeId(0), None);
        while let Some(dead) = self.engine().dead_tree_from(from)? {
            match self.engine().drop_step(dead, budget_blocks) {
                Ok(Dropped::Partly | Dropped::Whole) => return Ok(true),
                Err(e) => first = first.or(Some(e)),
            }
            from = TreeId(dead.0 + 1);
        }
        first.map_or(Ok(false), |e| Err(e.into()))
    }

    /// Space is short: writes out what is buffered, which may need less than it was promised, erases what nobody holds any more,
    /// takes some of what was deleted apart, and commits, so that what was freed is free. The caller holds no lock of an inode but those `flushing` names.
    pub(crate) fn make_room(self: &Arc<Self>, flushing: Flushing) -> Result<(), FsError> {
        self.data.release_idle_reservations();
        for inode in self.data.files(None) {
            // If the bytes of a file cannot be written out, a sync reports it.
            let _ = match flushing {
                Flushing::None => inode.flush_unless_gone(),
                Flushing::Some => inode.flush_if_free(),
            };
        }
        self.data.relax();
        for _ in 0..LET_GO_TRIES {
            let any = !self.evictable.lock().is_empty();
            // What cannot be erased is left for later.
            let _ = self.evict_all();
            // On a mount the kernel reports only after a moment that a file that has lost its name is closed.
            if any || !self.awaits_eviction() {
                break;
            }
            std::thread::sleep(LET_GO_WAIT);
        }
        self.engine().commit()?;
        for _ in 0..DROP_STEPS_MAX {
            // The cleaner reports a subvolume that cannot be taken apart.
            if !self.drop_some().unwrap_or(false) {
                break;
            }
        }
        Ok(())
    }

    /// Does what may be refused for quota while others have data buffered, which may come to less than what was charged for it: then that
    /// is written out and counted, and it is tried once more. The caller holds no lock of an inode; what was done in part is done over.
    pub(crate) fn twice_for_quota<T>(&self, mut work: impl FnMut() -> Result<T, FsError>) -> Result<T, FsError> {
        match work() {
            Err(FsError::Txn(TxnError::QuotaExceeded(_))) => {}
            other => return other,
        }
        self.data.release_idle_reservations();
        self.flush_what_can_be();
        self.engine().commit()?;
        work()
    }

    /// Flushes every file, for a caller that needs the room: what cannot be written is reported by a flush of that file.
    pub(crate) fn flush_what_can_be(&self) {
        let _ = self.flush_all(None);
    }

    /// Flushes every file, or every file of one subvolume; the error is that of the first that could not be.
    pub(crate) fn flush_all(&self, of: Option<TreeId>) -> Result<(), FsError> {
        let mut outcome = Ok(());
        for inode in self.data.files(of) {
            if let Err(e) = inode.flush_unless_gone()
                && outcome.is_ok()
            {
                outcome = Err(e);
            }
        }
        self.data.relax();
        outcome
    }
}
