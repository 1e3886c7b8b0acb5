//! What an inode holds for its data: what is written, or preallocated, and not in the extent map yet.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use oleo_lock::{Mutex, rank};
use oleo_txn::DataReservation;
use smallvec::SmallVec;

use crate::data::pieces::BufferPieces;
use crate::object::InodeFields;
use crate::options::Time;

/// What an inode holds for its data. Small while nothing is buffered.
#[derive(Default)]
pub(crate) struct FileData {
    /// Held while the extent map is changed, over I/O too.
    pub flush: Mutex<rank::FileFlush, ()>,
    /// Of a file that is being deleted in steps: what lies before this offset is dropped. Changed under `flush`.
    pub(super) dropped: AtomicU64,
    /// Somebody else sets the times of changes; see [`Fs::leave_times`](crate::Fs::leave_times).
    pub(super) times_left: AtomicBool,
    /// In which list of dirty files it is, counted from 1; 0: in none. Changed with the lock of `buffer` held.
    pub(super) listed: AtomicU8,
    pub(super) buffer: Mutex<rank::FileBuffer, Option<Box<Buffer>>>,
}

/// What is written but not in the extent map.
#[derive(Default)]
pub(super) struct Buffer {
    /// Not being written out yet.
    pub(super) dirty: BufferPieces,
    /// Being written out by the holder of `flush`, who reads it without the lock.
    pub(super) writeback: Arc<BufferPieces>,
    /// Preallocated, and without addresses.
    pub(super) unplaced: Unplaced,
    /// Space promised for `dirty` and `unplaced`.
    pub(super) promises: Vec<DataReservation>,
    /// Bytes of `promises` that nothing needs yet.
    pub(super) unused_reservation: u64,
    /// When something was last written; the inode's times once it is flushed.
    pub(super) touched: Option<Time>,
    /// It is to be written even if nothing else is.
    pub(super) flush_due: bool,
    /// The last flush could not write all of it.
    pub(super) failed: bool,
}

/// What a file with anything in its buffer counts for at least, bytes: about what is promised for its data and items.
pub(super) const FILE_WEIGHT: u64 = 16 << 10;

impl Buffer {
    pub(super) fn bytes(&self) -> u64 {
        self.dirty.bytes() + self.writeback.bytes()
    }

    pub(super) fn end(&self) -> u64 {
        self.dirty.end().max(self.writeback.end()).max(self.unplaced.size())
    }

    /// Whether a flush would find nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes() == 0 && self.unplaced.is_empty() && !self.flush_due
    }

    /// Whether nothing of the sector with this byte is here.
    pub(super) fn is_untouched(&self, at: u64, sector: u64) -> bool {
        let whole = at / sector * sector..at / sector * sector + sector;
        [&self.dirty, &*self.writeback].iter().all(|pieces| pieces.sectors_missing(whole.clone(), sector) == sector)
    }

    /// Whether nothing but kept promises and times are in it.
    pub(super) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.writeback.is_empty() && self.unplaced.is_empty()
    }

    /// What it counts for among all files.
    pub(super) fn weight(&self) -> u64 {
        if self.is_empty() { 0 } else { self.bytes().max(FILE_WEIGHT) }
    }
}

impl FileData {
    /// The size that users see, if the inode item says `fields`.
    pub fn shown(&self, fields: &InodeFields) -> u64 {
        self.buffer.lock().as_ref().map_or(fields.size, |b| fields.size.max(b.end()))
    }

    /// The fields that users see: with the size, the space and the times of what is buffered. Bytes that will replace
    /// others are counted beside them ([`shown`](crate::data::shown) does not).
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

    /// The time of a change of the content, if it is ours to set.
    pub(super) fn time_of(&self, now: Time) -> Option<Time> {
        (!self.times_left.load(Ordering::Relaxed)).then_some(now)
    }

    /// When what is buffered was last written, for an operation that sets the inode's times: from now on they are kept in the inode.
    pub fn take_touched(&self) -> Option<Time> {
        self.buffer.lock().as_mut().and_then(|b| b.touched.take())
    }

    /// When what is buffered was last written.
    pub(super) fn touched(&self) -> Option<Time> {
        self.buffer.lock().as_ref().and_then(|b| b.touched)
    }

    /// Bytes that nobody is writing out yet.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.buffer.lock().as_ref().map_or(0, |b| b.dirty.bytes())
    }

    /// Whether the last flush left something that it could not write.
    pub(super) fn has_failed(&self) -> bool {
        self.buffer.lock().as_ref().is_some_and(|b| b.failed)
    }

    /// Whether something is buffered.
    pub fn is_dirty(&self) -> bool {
        self.buffer.lock().as_ref().is_some_and(|b| !b.is_empty())
    }
}

/// Ranges that are promised.
#[derive(Default)]
pub(super) struct Unplaced {
    /// Whole sectors, rising, apart from each other.
    ranges: SmallVec<[Range<u64>; 1]>,
    /// The file is at least so long.
    pub(super) size: u64,
}

impl Unplaced {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The bytes of a range that are not in here.
    pub(super) fn lacking(&self, range: &Range<u64>) -> u64 {
        let has = |r: &Range<u64>| r.end.min(range.end).saturating_sub(r.start.max(range.start));
        range.end - range.start - self.ranges.iter().map(has).sum::<u64>()
    }

    pub(super) fn insert(&mut self, mut new: Range<u64>) {
        let first = self.ranges.partition_point(|r| r.end < new.start);
        let last = self.ranges.partition_point(|r| r.start <= new.end);
        for old in self.ranges.drain(first..last) {
            new = new.start.min(old.start)..new.end.max(old.end);
        }
        self.ranges.insert(first, new);
    }

    pub(super) fn pop_front(&mut self) {
        if !self.ranges.is_empty() {
            self.ranges.remove(0);
        }
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        self.size = 0;
    }
}
