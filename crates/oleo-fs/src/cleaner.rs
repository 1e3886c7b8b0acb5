//! Cleaning in the background: inodes without names, what a crash left, deleted subvolumes, empty block groups.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::FsError;
use crate::fs::Fs;
use crate::names::BATCH_INODES;

/// Inodes erased by an operation that dropped one, at the most, so that erasing keeps up with unlinking.
const ERASE_STEPS: usize = 4;
/// How long a block group without contents is kept.
const GROUP_IDLE: Duration = Duration::from_secs(10);

impl Fs {
    /// One step of cleaning: inodes without names, what a crash left, deleted subvolumes, of which at most
    /// `budget_blocks` blocks are taken apart, block groups that have been empty for a while. False when nothing is left to do.
    ///
    /// # Errors
    /// Something could not be cleaned, and there was nothing else to do: the first reason.
    pub fn clean(&self, budget_blocks: usize) -> Result<bool, FsError> {
        let evicted = self.core().evict_some(BATCH_INODES);
        if evicted.taken > evicted.failed {
            return Ok(true);
        }
        // An inode that cannot be erased does not stop the rest: the rest may free the space that erasing needs.
        let cleaned = evicted.result.and(self.clean_orphans());
        let dropped = self.core().drop_step(budget_blocks);
        if let Ok(true) = dropped {
            return Ok(true);
        }
        let removed = self.engine().remove_idle_group(GROUP_IDLE);
        if let Ok(Some(_)) = removed {
            return Ok(true);
        }
        cleaned.and(dropped.map(drop)).and(removed.map(drop).map_err(FsError::from)).map(|()| false)
    }

    /// Comes after the removal of a name: if more inodes wait to be erased than should, erases some. Their last handles are dropped by others, and
    /// one thread that cleans may be slower than many that remove.
    pub(crate) fn keep_up(&self) {
        if self.core().many_evictable.load(Ordering::Relaxed) {
            self.erase_some();
        }
    }

    /// Erases some of the inodes that are to be evicted. A failure is reported by the next sync or cleaner step, not here.
    pub(crate) fn erase_some(&self) {
        let _ = self.core().evict_some(ERASE_STEPS).result;
    }

    /// Erases what a crash left without names, in every subvolume that may be changed.
    fn clean_orphans(&self) -> Result<(), FsError> {
        if self.core().orphans_seen.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.clean_orphans_everywhere().inspect_err(|_| self.core().orphans_seen.store(false, Ordering::Release))
    }

    fn clean_orphans_everywhere(&self) -> Result<(), FsError> {
        let mut first = Ok(());
        for id in self.subvol_ids()? {
            let cleaned = match self.subvol(id) {
                Ok(subvol) if subvol.writable().is_ok() => self.core().clean_orphans(&subvol),
                Ok(_) | Err(FsError::NotFound) => Ok(()),
                Err(e) => Err(e),
            };
            first = first.and(cleaned);
        }
        first
    }
}
