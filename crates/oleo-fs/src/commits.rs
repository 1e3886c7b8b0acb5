//! When changes become durable: sync, timed commits, commits under pressure, and inodes whose flags require immediate durability.
//! (fsync: see `log`.)
//!
//! Concurrent callers share one commit (see `Engine::commit`). Pressure is the number of dirty inodes, or of changed items
//! if few inodes have many. Above `dirty_inodes_max` somebody has to commit: the thread in [`Fs::wait_commit`], if there has ever
//! been one; operations then continue up to twice that number, the slower the closer they come to it, so that nobody stands still for
//! all of a long commit. Otherwise one operation commits, and others wait only until the dirty
//! inodes are frozen. Operations in steps commit between their steps.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oleo_format::{Generation, InodeFlags};

use crate::FsError;
use crate::fs::Fs;
use crate::object::{Core, InodeRef, Items};

/// How often an operation that waits for a freeze looks whether it has come.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long an operation pauses when one, two and three quarters of the way from the soft to the hard limit are behind. By calculation eight threads
/// that create and write small files need some 20 s for that way, and a commit of what the soft limit allows took 1.2 s; no pause is longer than
/// what is aimed at (docs/decisions/0024-commits.md).
const PAUSES: [Duration; 3] = [Duration::from_micros(250), Duration::from_millis(1), Duration::from_millis(4)];

impl Fs {
    /// Writes everything to disk: all files' buffers, then a commit. Returns the generation on disk.
    ///
    /// # Errors
    /// If the commit fails, why. If a file could not be flushed or erased, all else was, and is on disk: then the error is the
    /// first of those.
    pub fn sync(&self) -> Result<Generation, FsError> {
        let flushed = self.core().flush_all(None);
        let erased = match self.core().evict_all() {
            // An inode without a name is an orphan on disk; the cleaner erases it when there is space.
            Err(FsError::NoSpace) => Ok(()),
            other => other,
        };
        let generation = self.engine().commit()?;
        flushed.and(erased).map(|()| generation)
    }

    /// Commits what is part of the open transaction. What is buffered of files stays so.
    pub fn commit(&self) -> Result<Generation, FsError> {
        Ok(self.engine().commit()?)
    }

    /// The same; calls `frozen` as soon as whatever is done from then on belongs to a later transaction. If it fails before,
    /// or there is nothing to commit, `frozen` is not called.
    pub fn commit_notifying(&self, frozen: &(dyn Fn() + Sync)) -> Result<Generation, FsError> {
        Ok(self.engine().commit_notifying(frozen)?)
    }

    /// Whether anything was changed that is not on disk: buffered bytes, or something for a commit to write.
    pub fn has_changes(&self) -> bool {
        self.core().data.has_bytes() || self.engine().has_changes() || !self.core().evictable.lock().is_empty()
    }

    /// Comes after a change of a file: makes it durable if the file's flags ask for that (`chattr +S`).
    pub(crate) fn keep_content(&self, file: &InodeRef) -> Result<(), FsError> {
        let flags = InodeFlags::from_bits_retain(file.read().fields().flags);
        if flags.contains(InodeFlags::SYNC) { self.fsync(file) } else { Ok(()) }
    }

    /// Comes after a change of a directory's entries: the same, also for `chattr +D`.
    pub(crate) fn keep_names(&self, dir: &InodeRef) -> Result<(), FsError> {
        let flags = dir.read().fields().flags;
        self.keep_names_by(flags, dir)
    }

    /// The same for a caller that knows the directory's flags.
    pub(crate) fn keep_names_by(&self, flags: u64, dir: &InodeRef) -> Result<(), FsError> {
        let flags = InodeFlags::from_bits_retain(flags);
        if flags.intersects(InodeFlags::SYNC | InodeFlags::DIRSYNC) { self.fsync(dir) } else { Ok(()) }
    }

    /// The error that made the file system refuse all changes, if one did.
    pub fn poisoned_by(&self) -> Option<String> {
        let engine = self.engine().poisoned_by().map(|why| why.to_string());
        engine.or_else(|| self.core().poisoned.lock().clone())
    }

    /// Waits until so much was changed that somebody should [`commit`](Fs::commit), for that long at most; whether it was. Returns earlier
    /// if woken ([`wake_background`](Fs::wake_background)).
    /// The caller commits in the background from now on.
    pub fn wait_commit(&self, timeout: Duration) -> bool {
        let core = self.core();
        core.has_background_committer.store(true, Ordering::Relaxed);
        let deadline = Instant::now().checked_add(timeout);
        let mut waiting = core.waiting.lock();
        if !core.over_soft_limit() {
            match deadline {
                Some(deadline) => drop(core.commit_wanted.wait_until(&mut waiting, deadline)),
                None => core.commit_wanted.wait(&mut waiting),
            }
        }
        core.over_soft_limit()
    }
}

impl Fs {
    /// Makes [`wait_commit`](Fs::wait_commit) and [`wait_write_back`](Fs::wait_write_back) return, if a thread waits there: it then
    /// checks whether to end.
    pub fn wake_background(&self) {
        let core = self.core();
        let waiting = core.waiting.lock();
        core.commit_wanted.notify_all();
        drop(waiting);
        core.data.wake_flusher();
    }

    /// Says that nobody commits or writes back in the background any more: operations and writers do it themselves again.
    pub fn background_has_ended(&self) {
        self.core().has_background_committer.store(false, Ordering::Relaxed);
        self.core().data.without_background_flusher();
    }
}

impl Core {
    /// Comes between the steps of an operation that may change any number of items of one file, so that what waits for a commit
    /// has a bound. The caller holds at most `flush` locks, which no commit takes.
    pub(crate) fn throttle_between_steps(&self) -> Result<(), FsError> {
        if self.over_soft_limit() {
            self.engine().commit()?;
        }
        Ok(())
    }

    /// Keeps the number of dirty inodes within bounds: wakes the background committer, or commits. The caller holds no
    /// handle and no lock.
    pub(crate) fn throttle_dirty_inodes(&self) -> Result<(), FsError> {
        if !self.over_soft_limit() {
            return Ok(());
        }
        if self.has_background_committer.load(Ordering::Relaxed) {
            let waiting = self.waiting.lock();
            self.commit_wanted.notify_all();
            drop(waiting);
            if !self.over_hard_limit() {
                self.pause();
                return Ok(());
            }
        }
        let before = self.epoch();
        // Ends with the freeze of somebody else's commit, or with its end if there is too much again by then.
        let _one = loop {
            match self.throttling.try_lock_for(LOOK_AGAIN) {
                Some(one) => break one,
                None if self.over_soft_limit() => {}
                None => return Ok(()),
            }
        };
        if self.epoch() == before {
            self.engine().commit()?;
        }
        Ok(())
    }

    /// Slows an operation down by how close to the hard limit it is.
    fn pause(&self) {
        let behind = (1..=PAUSES.len()).rev().find(|quarters| self.over_soft_limit_by(*quarters));
        if let Some(quarters) = behind {
            std::thread::sleep(PAUSES[quarters - 1]);
        }
    }
}
