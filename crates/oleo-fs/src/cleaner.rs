//! Cleaning in the background: inodes without names, what a crash left, deleted subvolumes, empty block groups.

use std::sync::atomic::Ordering;
use std::time::Duration;

use oleo_format::TreeId;

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
    pub fn clean(&self, budget_blocks: usize) -> Result<bool, FsError> {
        let evicted = self.core().evict_some(BATCH_INODES);
        evicted.result?;
        if evicted.taken > 0 {
            return Ok(true);
        }
        self.clean_orphans()?;
        let Some(dead) = self.engine().dead_tree_from(TreeId(0))? else {
            return Ok(self.engine().remove_idle_group(GROUP_IDLE)?.is_some());
        };
        self.engine().drop_step(dead, budget_blocks)?;
        Ok(true)
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
        for id in self.subvol_ids()? {
            match self.subvol(id) {
                Ok(subvol) if subvol.writable().is_ok() => self.core().clean_orphans(&subvol)?,
                Ok(_) | Err(FsError::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
