//! Writing back: which files with buffered bytes are flushed, by whom, and when. The list of them is in `dirty`.
//!
//! Normal path: (1) a file enters the list with its first buffered byte; (2) above the background threshold, or when its
//! bytes are old, the thread in [`Fs::wait_write_back`] is woken and calls [`Fs::write_back`], which flushes the
//! files in the order in which they entered; (3) a file that was written to meanwhile enters again, at the end.
//!
//! Writers continue meanwhile, up to `dirty_bytes_max`. Beyond it a writer helps: it flushes its own file, or the oldest
//! one that nobody else is flushing, until there is room again or it has written out as much as it wrote: others, who go on writing or whose
//! flush takes long, do not keep it. If there is no write-back in the background (a program without a thread for it), a writer also
//! flushes its file every [`FILE_DIRTY_MAX`] bytes.
//!
//! A file that could not be flushed (a partly overwritten sector has gone bad since `write` read it, or the device refuses)
//! keeps the bytes it could not write, and they can be read. The file is set aside: other files' writes, write-back and waits
//! ignore it, and write-back tries it again only when its bytes have become old once more. Its own fsync tries, too, and fails as
//! long as the bytes are there: until they could be written, are overwritten by whole sectors, or are removed by `truncate` to 0 or
//! the file's deletion. If too much is buffered already, writes to it fail as well, which bounds what is kept.
//!
//! Locks: `Shared::waiting`, then `Shared::files`, a leaf. No lock is held while somebody waits for room.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::data::dirty::{Due, Flushed};
use crate::data::flush::Inline;
use crate::data::shared::Shared;
use crate::object::{Inode, Items};
use crate::options::Time;
use crate::{Fs, FsError};

/// Bytes that one file buffers before its writer flushes it, if nobody writes back in the background: a few large
/// extents' worth.
const FILE_DIRTY_MAX: u64 = 32 << 20;
/// Files that are flushed between two looks at how much is left.
const BATCH_FILES: usize = 16;
/// How long a writer waits for room before it looks again itself: the one it waits for may have failed.
const ROOM_WAIT: Duration = Duration::from_millis(50);

impl Shared {
    /// Says that nobody writes back in the background any more.
    pub(crate) fn without_background_flusher(&self) {
        self.has_background_flusher.store(false, Ordering::Relaxed);
    }

    /// Wakes the thread that waits for work, which looks again.
    pub(crate) fn wake_flusher(&self) {
        let _waiting = self.waiting.lock();
        self.work.notify_all();
    }

    /// Enters a file that has buffered bytes now.
    pub(super) fn enlist(&self, inode: &Arc<Inode>) {
        let now = inode.core().now();
        self.files.insert(inode, now);
    }

    /// A file was flushed and has something buffered: it has been written to meanwhile, or not all could be written.
    pub(super) fn renew(&self, inode: &Inode, flushed: Flushed) {
        self.files.renew(inode, inode.core().now(), flushed);
    }

    /// Wakes the thread that writes back, if too much is buffered.
    fn call(&self, background_max: u64) {
        if self.bytes() > background_max && self.has_background_flusher.load(Ordering::Relaxed) {
            self.wake_flusher();
        }
    }

    /// Somebody's bytes were written out.
    pub(super) fn made_room(&self) {
        if self.throttled_writers.load(Ordering::Relaxed) > 0 {
            let _waiting = self.waiting.lock();
            self.room.notify_all();
        }
    }

    /// Waits a moment for room.
    fn await_room(&self) {
        self.throttled_writers.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        self.room.wait_for(&mut waiting, ROOM_WAIT);
        drop(waiting);
        self.throttled_writers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fs {
    /// Flushes the files that have waited longest, until what is buffered is below the background threshold and not
    /// older than it should be. Whether anything was flushed. The first error of a file comes after all others had their turn.
    pub fn write_back(&self) -> Result<bool, FsError> {
        let (mut any, mut first) = (false, None);
        // A file that was flushed is younger than all others, so each round comes closer to the end.
        loop {
            let some = self.to_write_back();
            if some.is_empty() {
                return first.map_or(Ok(any), Err);
            }
            for file in some {
                match file.flush_unless_gone() {
                    Ok(some) => any |= some,
                    Err(e) => drop(first.get_or_insert(e)),
                }
                if !self.has_to_write_back() {
                    break;
                }
            }
        }
    }

    /// Waits until [`write_back`](Fs::write_back) has something to do, for that long at most; whether it has. Returns earlier if woken
    /// ([`wake_background`](Fs::wake_background)). The caller
    /// writes back in the background from now on, so writers leave that to it up to
    /// [`DataOptions::dirty_bytes_max`](crate::DataOptions).
    pub fn wait_write_back(&self, timeout: Duration) -> bool {
        let shared = &self.core().data;
        shared.has_background_flusher.store(true, Ordering::Relaxed);
        let deadline = Instant::now().checked_add(timeout);
        let mut waiting = shared.waiting.lock();
        if self.has_to_write_back() {
            return true;
        }
        match deadline {
            Some(deadline) => drop(shared.work.wait_until(&mut waiting, deadline)),
            None => shared.work.wait(&mut waiting),
        }
        self.has_to_write_back()
    }

    /// Files written to before this are old.
    fn old_before(&self) -> Time {
        let now = self.core().now();
        let age = i64::try_from(self.options().data.dirty_age_max.as_secs()).unwrap_or(i64::MAX);
        Time { sec: now.sec.saturating_sub(age), ..now }
    }

    fn has_to_write_back(&self) -> bool {
        let shared = &self.core().data;
        shared.files.has_due(self.due())
    }

    fn to_write_back(&self) -> Vec<Arc<Inode>> {
        let shared = &self.core().data;
        shared.files.due(self.due(), BATCH_FILES)
    }

    fn due(&self) -> Due {
        let too_much = self.core().data.bytes() > self.options().data.background_max();
        Due { too_much, old: self.old_before() }
    }
}

impl Inode {
    /// Flushes, or drops what nobody wants any more; whether there was something.
    pub(super) fn flush_unless_gone(self: &Arc<Self>) -> Result<bool, FsError> {
        if !self.data.is_dirty() {
            return Ok(false);
        }
        // Without a name and out of use: it is only waiting to be erased.
        if self.handles() == 0 && self.read().alive().is_ok() && self.read().fields().nlink == 0 {
            let _flush = self.lock_flush();
            self.discard();
            return Ok(true);
        }
        match self.flush() {
            // Deleted meanwhile: nobody wants its bytes.
            Err(FsError::Stale) => self.discard(),
            other => other?,
        }
        Ok(true)
    }
}

/// Comes after each step of a write, of `len` bytes: helps if too much is buffered, and waits if others are at it.
pub(super) fn throttle(inode: &Arc<Inode>, len: u64) -> Result<(), FsError> {
    let core = inode.core();
    let shared = &core.data;
    let opts = &core.opts.data;
    core.throttle_dirty_inodes()?;
    if !shared.has_background_flusher.load(Ordering::Relaxed)
        && inode.data.dirty_bytes() >= FILE_DIRTY_MAX.min(opts.dirty_bytes_max)
    {
        return inode.flush();
    }
    shared.call(opts.background_max());
    // If everybody writes out as much as he wrote, it does not become more.
    let mut written_out = 0;
    // Each round writes something out, sets a file aside, or waits for somebody who does.
    while shared.bytes() > opts.dirty_bytes_max {
        let own = inode.data.dirty_bytes();
        if inode.data.is_dirty() && inode.flush_if_free()? {
            written_out += own;
            if written_out >= len {
                return Ok(());
            }
            continue;
        }
        let others: Vec<Arc<Inode>> = shared.files.oldest(BATCH_FILES);
        if others.is_empty() && !inode.data.is_dirty() {
            // What is left cannot be written.
            return Ok(());
        }
        let mut helped = false;
        for other in others {
            let its = other.data.dirty_bytes();
            match other.flush_if_free() {
                Ok(false) => {}
                Ok(true) => {
                    helped = true;
                    written_out += its;
                }
                // Its own, and kept with it.
                Err(_) => helped = true,
            }
            if shared.bytes() <= opts.dirty_bytes_max || (written_out > 0 && written_out >= len) {
                return Ok(());
            }
        }
        if !helped {
            shared.await_room();
        }
    }
    Ok(())
}

impl Inode {
    /// Flushes unless somebody is at it; whether there was something to flush.
    pub(super) fn flush_if_free(self: &Arc<Self>) -> Result<bool, FsError> {
        let Some(_flush) = self.try_lock_flush() else { return Ok(false) };
        if !self.data.is_dirty() {
            return Ok(false);
        }
        match self.flush_locked(Inline::Allowed) {
            // Deleted meanwhile: nobody wants its bytes.
            Err(FsError::Stale) => {
                self.discard();
                Ok(true)
            }
            other => other.map(|()| true),
        }
    }
}
