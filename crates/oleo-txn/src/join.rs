//! Joining the open transaction: room in the metadata reserve first, by growing it, by a commit, or alone.
//!
//! Normal path: (1) `charge` counts the operation in and returns whether what is reserved covers it: then it is joined; (2) if not,
//! [`Engine::join`] leaves again and makes room, with a commit if it must; (3) an operation that gives space back, or was promised it, joins alone
//! if not even that is enough (see `metadata_reserve`).
//!
//! A change that is made with the commit lock held (`stage`, `drop`) joins before it waits for the lock; if a commit took what it was charged,
//! it joins again ([`Engine::with_commit_lock`]).

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oleo_format::{ByteLen, Generation, Logical, TreeId};
use oleo_lock::{MutexGuard, rank};
use oleo_space::{Grant, Kind, Run};

use crate::TxnError;
use crate::barrier::JoinGuard;
use crate::engine::{Engine, Inner};
use crate::metadata_reserve::MetadataReserve;
use crate::options::{Claim, Need};

/// A place in the open transaction. Changes made while it lives go into one commit together.
pub struct Handle<'a> {
    inner: &'a Inner,
    join_guard: JoinGuard<'a>,
    generation: Generation,
}

impl Handle<'_> {
    /// The generation that the changes will be committed under.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// An item of this transaction names the granted data from now on (or did and no longer does: then it is given back at
    /// the commit). `owner` has written it.
    pub fn record_new_extent(&self, grant: Grant, owner: TreeId) {
        self.adopt(grant.keep(), owner);
    }

    /// The same for a run that was taken when the volume was opened.
    pub(crate) fn adopt(&self, run: Run, owner: TreeId) {
        self.inner.new_extents[self.join_guard.shard].0.lock().push((run.start, run.len, owner));
    }

    /// The checksums of data written at `at`, one per sector.
    pub fn add_csums(&self, at: Logical, csums: Vec<u8>) {
        if !csums.is_empty() {
            self.inner.csums.add(self.inner.layout, at, csums);
        }
    }
}

/// Times that an operation comes back with more room, which others may have taken meanwhile.
const TRIES_MAX: u32 = 32;
/// Commits that an operation makes to have room.
pub(crate) const COMMITS_MAX: u32 = 2;
/// How long an operation that would join alone waits each time for readers of older states, which keep what commits have freed.
const READERS_WAIT: Duration = Duration::from_millis(5);
/// How long in all: a reader is on a processor again by then, on a busy machine, too. Operations that a full volume may refuse wait a shorter time.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(10);
const RELEASE_PATIENCE: Duration = Duration::from_millis(160);

pub(crate) fn no_metadata(inner: &Inner, need: Need) -> TxnError {
    let wanted = ByteLen(u64::from(need.bytes) + u64::from(inner.rules.nodesize));
    TxnError::NoSpace { what: "metadata", wanted }
}

impl Engine {
    /// Reserves metadata for an operation and joins the open transaction. The caller holds no lock that
    /// [`DeltaSource`](crate::DeltaSource) needs and no other handle: if space is short, a commit happens in here.
    ///
    /// # Errors
    /// There is not enough space. An operation that is let in does not run out of metadata space later, and one that reclaims space
    /// or was promised it is always let in ([`Claim`]), with a commit of its own if it must be.
    pub fn join(&self, need: Need) -> Result<Handle<'_>, TxnError> {
        self.0.writable()?;
        match self.join_charged(|reserve, slab| reserve.charge(need, slab)) {
            Some(handle) => Ok(handle),
            None => self.join_slowly(need),
        }
    }

    /// Joins the open transaction if `charge` counts the operation in.
    fn join_charged(&self, charge: impl FnOnce(&MetadataReserve, usize) -> bool) -> Option<Handle<'_>> {
        let join_guard = self.0.barrier.join();
        if !charge(&self.0.metadata_reserve, join_guard.shard) {
            return None;
        }
        if !self.0.touched.load(Ordering::Relaxed) {
            self.0.touched.store(true, Ordering::Release);
        }
        let generation = self.generation();
        Some(Handle { inner: &self.0, join_guard, generation })
    }

    /// Makes room without being joined, then joins and tries again: others may have taken the room meanwhile.
    fn join_slowly(&self, need: Need) -> Result<Handle<'_>, TxnError> {
        let inner = &*self.0;
        let mut commits = 0;
        for _ in 0..TRIES_MAX {
            inner.metadata_reserve.wait_for_alone();
            let has_room = inner.grow_reserve_or_release_idle(need)?;
            if let Some(handle) = self.join_charged(|reserve, slab| reserve.charge(need, slab)) {
                return Ok(handle);
            }
            if has_room {
                continue;
            }
            if commits == COMMITS_MAX {
                break;
            }
            // Committing gives back what the open transaction holds beyond its real need, and what it freed.
            commits += 1;
            self.commit()?;
            inner.reap();
        }
        match need.claim {
            Claim::Ordinary => Err(no_metadata(inner, need)),
            Claim::Release | Claim::Promised | Claim::Reclaim => self.join_alone(need),
        }
    }

    /// Lets an operation in that nothing covers beside others, as the only one of its transaction so far.
    fn join_alone(&self, need: Need) -> Result<Handle<'_>, TxnError> {
        let inner = &*self.0;
        let alone = inner.metadata_reserve.alone();
        let begun = Instant::now();
        let patience = if need.claim == Claim::Release { RELEASE_PATIENCE } else { RECLAIM_PATIENCE };
        loop {
            self.commit()?;
            inner.reap();
            let has_room = inner.grow_reserve_alone(need)?;
            if has_room && let Some(handle) = self.join_charged(|reserve, _| reserve.charge_alone(&alone, need)) {
                return Ok(handle);
            }
            let is_hopeless = !has_room && inner.space.totals(Kind::Metadata).pinned.0 == 0;
            if is_hopeless || begun.elapsed() >= patience {
                return Err(no_metadata(inner, need));
            }
            std::thread::sleep(READERS_WAIT);
        }
    }

    /// Takes the commit lock with `need` charged to the transaction that is open then, which no commit ends while the lock is held. The caller
    /// holds no handle.
    pub(crate) fn with_commit_lock(&self, need: Need) -> Result<MutexGuard<'_, rank::Commit, ()>, TxnError> {
        let mut tries = 0;
        loop {
            let charged_to = self.join(need)?.generation();
            let commit_lock = self.0.commit_lock.lock();
            self.0.writable()?;
            // Commits of other threads leave space behind, so that no thread is overtaken for long.
            if self.generation() == charged_to || tries == TRIES_MAX {
                return Ok(commit_lock);
            }
            tries += 1;
        }
    }
}

impl Inner {
    /// Reserves what the open transaction lacks to let `need` in, at the price of promises that nobody needs; `false` if there is
    /// no room.
    pub(crate) fn grow_reserve_or_release_idle(&self, need: Need) -> Result<bool, TxnError> {
        Ok(self.grow_metadata_reserve(need)?
            || (self.release_idle_reservations() && self.grow_metadata_reserve(need)?))
    }

    /// Reserves what the open transaction lacks to let `need` in as the only operation; `false` if there is no room.
    fn grow_reserve_alone(&self, need: Need) -> Result<bool, TxnError> {
        self.measure_trees()?;
        for _ in 0..2 {
            let Some(missing) = self.metadata_reserve.shortfall_alone(need) else { return Ok(true) };
            if let Some(more) = self.reserve_growing(Kind::Metadata, missing)? {
                self.metadata_reserve.add(more);
                return Ok(true);
            }
            self.release_idle_reservations();
        }
        Ok(false)
    }

    /// Gives back what is reserved ahead, and has the crate above release reservations that it does not need; returns whether there
    /// were any.
    pub(crate) fn release_idle_reservations(&self) -> bool {
        let any = self.data_ahead.release();
        let source = self.source.read().as_ref().and_then(Weak::upgrade);
        source.is_some_and(|source| source.release_idle_reservations()) || any
    }
}
