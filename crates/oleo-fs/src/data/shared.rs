//! What all files of an open file system share for their data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hashbrown::HashMap;
use oleo_format::{Generation, Logical, TreeId};
use oleo_lock::{Condvar, Mutex, rank};

use crate::data::buffered_bytes::BufferedBytes;
use crate::data::dirty::DirtyFiles;
use crate::data::options::DataOptions;
use crate::data::unpacked::Unpacked;
use crate::object::Inode;

/// Cloned extents remembered before those that are on disk are dropped: a megabyte or two.
const CLONED_MAX: usize = 1 << 16;

/// Extents and the transaction in which they were last cloned.
struct Cloned {
    extents: HashMap<Logical, Generation>,
    /// With so many, those that are on disk are looked for: twice as many as were left the last time, so that one that is noted
    /// costs looking at two.
    sweep_at: usize,
}

impl Cloned {
    fn note(&mut self, extent: Logical, now: Generation) {
        if self.extents.len() >= self.sweep_at {
            // At most the open transaction and the one being written are not on disk yet.
            self.extents.retain(|_, generation| generation.0 + 1 >= now.0);
            self.sweep_at = CLONED_MAX.max(2 * self.extents.len());
        }
        self.extents.insert(extent, now);
    }
}

/// What all files of an open file system share.
pub(crate) struct Shared {
    /// Bytes that are dirty or under write-back, over all files.
    bytes: BufferedBytes,
    /// The files that have them.
    pub(super) files: DirtyFiles,
    /// Somebody writes back in the background.
    pub(super) has_background_flusher: AtomicBool,
    /// Held while a thread looks whether it has to wait for work or for room.
    pub(super) waiting: Mutex<rank::DataWaiting, ()>,
    /// There is something to write back.
    pub(super) work: Condvar,
    /// Something was written back.
    pub(super) room: Condvar,
    /// Who waits for room.
    pub(super) throttled_writers: AtomicU32,
    /// Compressed extents that were read in part.
    pub(super) unpacked: Unpacked,
    /// Extents that were cloned, and in which transaction: until that is committed, the extent tree does not show it.
    cloned: Mutex<rank::Cloned, Cloned>,
    /// Space for data was short: promises are for what is needed only.
    pub(super) tight: AtomicBool,
    /// Some file may keep a promise that it does not need.
    pub(super) keeps: AtomicBool,
}

impl Shared {
    pub(crate) fn new(opts: &DataOptions) -> Shared {
        Shared {
            bytes: BufferedBytes::new(opts.dirty_bytes_max),
            files: DirtyFiles::default(),
            has_background_flusher: AtomicBool::new(false),
            waiting: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            throttled_writers: AtomicU32::new(0),
            unpacked: Unpacked::new(opts.unpacked_bytes_max),
            cloned: Mutex::new(Cloned { extents: HashMap::new(), sweep_at: CLONED_MAX }),
            tight: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
        }
    }

    /// Bytes buffered in all files, each file that has anything buffered counted as [`FILE_WEIGHT`](super::buffer::FILE_WEIGHT) at least:
    /// not more than a sixteenth of [`DataOptions::dirty_bytes_max`] beside the truth.
    pub fn bytes(&self) -> u64 {
        self.bytes.about()
    }

    /// Whether anything is buffered.
    pub fn has_bytes(&self) -> bool {
        self.bytes.sum() > 0
    }

    /// Drops the files: what they buffer is lost.
    pub(crate) fn forget(&self) {
        self.files.forget();
    }

    /// An extent gained a user in the transaction `now`.
    pub(super) fn note_clone(&self, extent: Logical, now: Generation) {
        self.cloned.lock().note(extent, now);
    }

    /// Whether an extent gained a user after the transaction `committed`.
    pub(super) fn was_cloned(&self, extent: Logical, committed: Generation) -> bool {
        let mut cloned = self.cloned.lock();
        match cloned.extents.get(&extent) {
            Some(generation) if *generation > committed => true,
            Some(_) => {
                cloned.extents.remove(&extent);
                false
            }
            None => false,
        }
    }

    /// Promised space was released: try promising more than needed again.
    pub(super) fn relax(&self) {
        self.tight.store(false, Ordering::Relaxed);
    }

    /// A file's buffer grew or shrank: it weighed `before` and weighs `now`. One that holds a few bytes weighs more than they
    /// do: space for its items was promised, too.
    pub(super) fn count(&self, before: u64, now: u64) {
        if now != before {
            self.bytes.add(now.wrapping_sub(before).cast_signed());
        }
        if now < before {
            self.made_room();
        }
    }

    /// The files that have buffered bytes, in rank order; of one subvolume, or all.
    pub(super) fn files(&self, of: Option<TreeId>) -> Vec<Arc<Inode>> {
        self.files.of(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: noting a clone costs the same however many there are in a transaction, and those that are on disk are forgotten.
    /// Method: sixteen times as many as are kept without a look, counted by how often a look was worth it.
    #[test]
    fn clones_are_noted_in_passing() {
        let mut cloned = Cloned { extents: HashMap::new(), sweep_at: CLONED_MAX };
        let mut looks = 0;
        for n in 0..16 * CLONED_MAX as u64 {
            let before = cloned.sweep_at;
            cloned.note(Logical(n), Generation(7));
            looks += usize::from(cloned.sweep_at != before);
        }
        assert_eq!((cloned.extents.len(), looks), (16 * CLONED_MAX, 4));
        for n in 0..=16 * CLONED_MAX as u64 {
            cloned.note(Logical(n), Generation(9));
        }
        assert!(cloned.extents.values().all(|generation| generation.0 == 9));
    }
}
