//! File data: the buffer of what is written but not on disk yet, the extent map, and every operation on them.
//!
//! The life of written bytes: (1) `write` reserves space, checks that sectors which the bytes cover in part can be read, and copies
//! the bytes into the inode's `dirty` pieces; (2) a flush (by `sync`, by the caller, or because too much is dirty) moves these to
//! `writeback`, completes partial sectors, compresses and computes checksums ([`Prepared`]), allocates space and writes; (3) it joins
//! the transaction, locks the inode, puts the extent items, records new extents and checksums, sets size and `nbytes`, and clears
//! what was under write-back, all under that lock; (4) the next commit makes it durable.
//!
//! A read combines three layers under the inode's lock, the first that has a byte wins: dirty bytes, bytes under write-back, the
//! extent map. So it sees every write that returned before it began. It does its I/O after the lock is dropped, under an
//! [`Engine::reader`] guard, which keeps the space it is about to read from being reused.
//!
//! The size on disk and the size that users see differ: dirty bytes are not in the inode item. So a
//! commit in between never makes a file longer than its written data. `FileData::shown` is the size users see: the
//! item's, or the end of the last dirty byte.
//!
//! Bytes of the last sector behind the end of the file are undefined: truncating a file does not rewrite
//! its last sector. An operation that makes a file longer first writes zeros from the old end to the end of that sector.
//!
//! Invariants:
//! - Only the holder of an inode's `flush` lock changes its extent map or moves `dirty` to `writeback`.
//! - `writeback` is empty whenever nobody holds the `flush` lock.
//! - The bytes of all inodes that are dirty or under write-back sum up to `Shared::bytes`, which stays near
//!   `dirty_bytes_max`: a writer that finds it exceeded makes room before it returns (`dirty`).
//! - A file with dirty bytes is in `Shared::files`, which keeps it in memory.
//! - Sectors with dirty bytes are covered by data reservations, so that a flush does not run out of space.
//!
//! Locks, in this order: `flush` (of several files by (tree, number)), then the engine's `join` and `reserve_data`, then the inode's
//! lock, then `buffer`, then `Shared::files`. Only `flush` is held over I/O of data; trees are
//! read under all but the last. A commit needs the inode's lock but none
//! of ours, so it may happen while `flush` is held, not while anything behind it is.
//! Crash: buffers are lost, and so is the open transaction, whose items name data that nothing else names.
//!
//! [`Engine::reader`]: oleo_txn::Engine::reader

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hashbrown::HashMap;
use oleo_format::{Generation, Logical, TreeId};
use oleo_lock::{Condvar, Mutex, MutexGuard, rank};
use oleo_txn::DataReservation;

use crate::inode::{Inode, InodeFields};
use crate::options::Time;

mod api;
mod dirty;
mod flush;
mod in_place;
mod install;
mod items;
pub(crate) mod map;
mod packed;
mod pieces;
mod policy;
mod prepare;
mod query;
mod read;
mod resize;
mod rewrite;
mod share;
mod unpacked;
mod unplaced;
mod write;

pub use api::Stamp;
pub use packed::PackedExtent;
pub use policy::DataOptions;
pub use prepare::{Compress, Encoded, Policy, Prepared, Whole};
pub use query::{ExtentInfo, ExtentKind};
pub use read::{read_plain, unpack_inline};
pub use resize::KeepSize;
pub use share::{CloneRange, Dedupe};

pub(crate) use flush::Flushing;
pub(crate) use items::{MapMutOf, MapOf};
pub(crate) use map::{Extent, ExtentMap, walk as map_walk};
pub(crate) use query::shown;
pub(crate) use resize::MAP_END;

use dirty::DirtyFiles;
use in_place::Place;
use pieces::BufferPieces;
use unpacked::Unpacked;
use unplaced::Unplaced;

/// The most bytes a file can have.
pub(crate) const FILE_LEN_MAX: u64 = i64::MAX as u64;

/// Cloned extents remembered before those that are on disk are dropped: a megabyte or two.
const CLONED_MAX: usize = 1 << 16;

/// Holds a file's extent map against changes by others.
pub(crate) type FlushGuard<'a> = MutexGuard<'a, rank::FileFlush, ()>;

/// What an inode holds for its data. Small while nothing is buffered.
#[derive(Default)]
pub(crate) struct FileData {
    /// Held by whoever changes the extent map, over its I/O too.
    pub flush: Mutex<rank::FileFlush, ()>,
    /// Of a file that is being deleted in steps: what lies before this offset is dropped. Changed under `flush`.
    dropped: AtomicU64,
    buffer: Mutex<rank::FileBuffer, Option<Box<Buffer>>>,
}

/// What is written but not in the extent map.
#[derive(Default)]
struct Buffer {
    /// Not being written out yet.
    dirty: BufferPieces,
    /// Being written out by the holder of `flush`, who reads it without the lock.
    writeback: Arc<BufferPieces>,
    /// Preallocated, and without addresses.
    unplaced: Unplaced,
    /// Space promised for `dirty` and `unplaced`.
    promises: Vec<DataReservation>,
    /// Bytes of `promises` that nothing needs yet.
    unused_reservation: u64,
    /// When something was last written; the inode's times once it is flushed.
    touched: Option<Time>,
    /// It is to be written even if nothing else is.
    flush_due: bool,
    /// The last flush could not write all of it.
    failed: bool,
}

/// What a file with anything in its buffer counts for at least, bytes: about what is promised for its data and items.
const FILE_WEIGHT: u64 = 16 << 10;

impl Buffer {
    fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.writeback.bytes()
    }

    fn end(&self) -> u64 {
        self.dirty.end().max(self.writeback.end()).max(self.unplaced.size())
    }

    /// Whether a flush would find nothing to do.
    fn is_empty(&self) -> bool {
        self.bytes() == 0 && self.unplaced.is_empty() && !self.flush_due
    }

    /// Whether nothing of the sector with this byte is here.
    fn is_untouched(&self, at: u64, sector: u64) -> bool {
        let whole = at / sector * sector..at / sector * sector + sector;
        [&self.dirty, &*self.writeback].iter().all(|pieces| pieces.sectors_missing(whole.clone(), sector) == sector)
    }

    /// How many bytes of a place a write would newly touch and find free: a preallocated part that is being written out is preallocated
    /// no more when that is done.
    fn placed_by(&self, place: &Place, sector: u64) -> u64 {
        let is_free = |at: &u64| match place.span.prealloc {
            true => self.is_untouched(*at, sector),
            false => self.dirty.sectors_missing(*at..*at + sector, sector) > 0,
        };
        place.range.clone().step_by(sector as usize).filter(is_free).count() as u64 * sector
    }

    /// What it counts for among all files.
    fn weight(&self) -> u64 {
        if self.is_empty() { 0 } else { self.bytes().max(FILE_WEIGHT) }
    }
}

impl Inode {
    /// Locks the extent map against changes; of several files in the order of [`Inode::rank`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock_flush(&self) -> FlushGuard<'_> {
        self.data.flush.lock_by(self.lock_key())
    }

    /// The same, if nobody has it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_lock_flush(&self) -> Option<FlushGuard<'_>> {
        self.data.flush.try_lock_by(self.lock_key())
    }
}

impl FileData {
    /// The size that users see, where the inode item says `fields`.
    pub fn shown(&self, fields: &InodeFields) -> u64 {
        self.buffer.lock().as_ref().map_or(fields.size, |b| fields.size.max(b.end()))
    }

    /// The fields that users see: with the size, the space and the times of what is buffered. Bytes that will replace
    /// others are counted beside them ([`shown`] does not).
    pub fn show(&self, fields: &InodeFields) -> InodeFields {
        let mut shown = *fields;
        if let Some(buffer) = &*self.buffer.lock() {
            shown.size = fields.size.max(buffer.end());
            shown.nbytes = fields.nbytes.saturating_add(buffer.bytes() + buffer.unplaced.bytes());
            if let Some(time) = buffer.touched {
                shown.mtime = time;
                // Something else may have changed since: a name, an attribute.
                shown.ctime = fields.ctime.max(time);
            }
        }
        shown
    }

    /// When what is buffered was last written, for whoever sets the inode's times: they are the inode's affair from now on.
    pub fn take_touched(&self) -> Option<Time> {
        self.buffer.lock().as_mut().and_then(|b| b.touched.take())
    }

    /// When what is buffered was last written.
    fn touched(&self) -> Option<Time> {
        self.buffer.lock().as_ref().and_then(|b| b.touched)
    }

    /// Bytes that nobody is writing out yet.
    fn dirty_bytes(&self) -> u64 {
        self.buffer.lock().as_ref().map_or(0, |b| b.dirty.bytes())
    }

    /// Whether the last flush left something that it could not write.
    fn has_failed(&self) -> bool {
        self.buffer.lock().as_ref().is_some_and(|b| b.failed)
    }

    /// Whether something is buffered.
    pub fn is_dirty(&self) -> bool {
        self.buffer.lock().as_ref().is_some_and(|b| !b.is_empty())
    }
}

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
    bytes: AtomicU64,
    /// The files that have them.
    files: Mutex<rank::DirtyFiles, DirtyFiles>,
    /// Somebody writes back in the background.
    has_background_flusher: AtomicBool,
    /// Whoever waits for work to be there or room to be made holds this while it looks.
    waiting: Mutex<rank::DataWaiting, ()>,
    /// There is something to write back.
    work: Condvar,
    /// Something was written back.
    room: Condvar,
    /// Who waits for room.
    throttled_writers: AtomicU32,
    /// Compressed extents that were read in part.
    unpacked: Unpacked,
    /// Extents that were cloned, and in which transaction: until that is committed, the extent tree does not show it.
    cloned: Mutex<rank::Cloned, Cloned>,
    /// Space for data was short: promises are for what is needed only.
    tight: AtomicBool,
    /// Some file may keep a promise that it does not need.
    keeps: AtomicBool,
}

impl Shared {
    pub(crate) fn new(opts: &DataOptions) -> Shared {
        Shared {
            bytes: AtomicU64::new(0),
            files: Mutex::default(),
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

    /// Bytes buffered in all files, each file that has anything buffered counted as [`FILE_WEIGHT`] at least.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Lets go of the files: what they buffer is lost.
    pub(crate) fn forget(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        drop(files);
    }

    /// An extent gained a user in the transaction `now`.
    fn note_clone(&self, extent: Logical, now: Generation) {
        self.cloned.lock().note(extent, now);
    }

    /// Whether an extent gained a user after the transaction `committed`.
    fn was_cloned(&self, extent: Logical, committed: Generation) -> bool {
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

    /// Promised space was let go: try promising more than needed again.
    fn relax(&self) {
        self.tight.store(false, Ordering::Relaxed);
    }

    /// A file's buffer grew or shrank: it weighed `before` and weighs `now`. One that holds a few bytes weighs more than they
    /// do: space for its items was promised, too.
    fn count(&self, before: u64, now: u64) {
        if now > before {
            self.bytes.fetch_add(now - before, Ordering::Relaxed);
        } else if now < before {
            self.bytes.fetch_sub(before - now, Ordering::Relaxed);
            self.made_room();
        }
    }

    /// The files that have buffered bytes, in rank order; of one subvolume, or all.
    fn files(&self, of: Option<TreeId>) -> Vec<Arc<Inode>> {
        self.files.lock().of(of)
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
