//! Unplaced preallocation: reserved space that has no addresses yet.
//!
//! Allocating addresses costs a search, a record of the new extent and an item and, when the file is truncated again, the
//! reverse of all three. Programs that preallocate and truncate in turn do that for nothing, and in one transaction
//! never get the same addresses twice. So for files without extents the allocation is postponed, as it is for written bytes:
//!
//! 1. [`promise`](Inode::promise) reserves what the range lacks, data and metadata, and notes the range in the buffer: "no
//!    space" comes from the call. Reads, sizes and block counts go by the buffer, so nobody sees a difference.
//! 2. A flush (by sync, fsync, age, or anything else that reads the extent map) calls [`place`](Inode::place): it allocates
//!    addresses from the reservation and puts the items, in file order, before it writes the bytes that were written meanwhile,
//!    which then go into these extents, in place.
//! 3. A truncate to nothing before that ([`cut_unplaced`](Inode::cut_unplaced)) only forgets the ranges. The file
//!    stays listed, since its times are due, and may keep the reservation for the next time.
//!
//! Nobody needs kept reservations: they are small ([`KEPT_MAX`]), kept only while few files have buffers, and released
//! before any request fails for lack of space ([`Shared::release_idle_reservations`]).
//!
//! Crash: as for written bytes, what was not flushed is lost.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::InodeFlags;
use oleo_txn::{Claim, DataReservation, Need, TxnError};

use crate::FsError;
use crate::data::FILE_LEN_MAX;
use crate::data::buffer::FILE_WEIGHT;
use crate::data::items::MapOf;
use crate::data::map::{self, Extent};
use crate::data::shared::Shared;
use crate::object::{Inode, Items, ItemsMut};
use crate::options::Time;

/// What putting one extent may need.
pub(super) const ONE_NEED: Need = Need { items: 8, row: 4, bytes: 1024, claim: Claim::Ordinary };
/// The same if room was promised.
pub(super) const PROMISED_NEED: Need = Need { claim: Claim::Promised, ..ONE_NEED };
/// The most bytes of one file that wait for addresses; beyond it they get them immediately.
const UNPLACED_MAX: u64 = 1 << 20;
/// Ranges that they may be in.
const RANGES_MAX: usize = 16;
/// Bytes of a promise that a file keeps after it was cut to nothing.
const KEPT_MAX: u64 = 64 << 10;
/// Promises are kept while all buffers together weigh no more: so are no more than this over the weight of a file.
const KEPT_WEIGHT_MAX: u64 = 256 * FILE_WEIGHT;

/// What a preallocation or zeroing does at the end of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepSize {
    /// The file's size stays, even if space behind its end is taken.
    Yes,
    /// The file grows to the end of the range.
    No,
}

impl Inode {
    /// Fails if the file system refuses changes since an error: for operations that change nothing but the buffer.
    pub(super) fn not_failed(&self) -> Result<(), FsError> {
        match self.core().engine().poisoned_by() {
            Some(why) => Err(TxnError::ReadOnly(why).into()),
            None => Ok(()),
        }
    }

    /// Promises the file space for a range; `false` if it has to get addresses immediately. The `flush` lock is held.
    pub(super) fn promise(self: &Arc<Self>, at: u64, len: u64, keep: KeepSize) -> Result<bool, FsError> {
        let Some(end) = at.checked_add(len).filter(|end| *end <= FILE_LEN_MAX && len > 0) else { return Ok(false) };
        if len > UNPLACED_MAX {
            return Ok(false);
        }
        self.not_failed()?;
        let core = self.core();
        let sector = u64::from(core.engine().sectorsize());
        let range = at / sector * sector..end.next_multiple_of(sector);
        let mut more: Option<(DataReservation, u64)> = None;
        // Each round but the last promises what writers of the same file may use up before the next.
        loop {
            let guard = self.read();
            guard.alive()?;
            let known = guard.extents_end();
            let mut slot = self.data.buffer.lock();
            if known != Some(0) || slot.as_ref().is_some_and(|b| !b.dirty.is_empty()) {
                return Ok(false);
            }
            let buffer = slot.get_or_insert_default();
            if let Some((promise, len)) = more.take() {
                buffer.promises.push(promise);
                buffer.unused_reservation += len;
            }
            let lacks = buffer.unplaced.lacking(&range);
            let too_many = buffer.unplaced.ranges().len() >= RANGES_MAX;
            if lacks > 0 && (too_many || buffer.unplaced.bytes() + lacks > UNPLACED_MAX) {
                return Ok(false);
            }
            if buffer.unused_reservation < lacks {
                let lacks = lacks - buffer.unused_reservation;
                drop(slot);
                drop(guard);
                more = Some((core.reserve_in(self.tree(), lacks)?, lacks));
                continue;
            }
            let before = buffer.weight();
            buffer.unused_reservation -= lacks;
            buffer.unplaced.insert(range);
            if keep == KeepSize::No {
                buffer.unplaced.size = buffer.unplaced.size.max(end);
            }
            if let Some(time) = self.data.time_of(core.now()) {
                buffer.touched = Some(time);
            }
            core.data.count(before, buffer.weight());
            if before == 0 {
                core.data.enlist(self);
            }
            return Ok(true);
        }
    }

    /// Forgets what is buffered of a file that is to be empty and has nothing but its buffer; false if there is more to
    /// do. The `flush` lock is held.
    pub(super) fn cut_unplaced(self: &Arc<Self>, time: Time) -> Result<bool, FsError> {
        self.not_failed()?;
        let shared = &self.core().data;
        let guard = self.read();
        guard.alive()?;
        if guard.extents_end() != Some(0) || guard.fields().size > 0 {
            return Ok(false);
        }
        let mut slot = self.data.buffer.lock();
        let Some(buffer) = slot.as_mut().filter(|b| !b.is_empty()) else { return Ok(false) };
        let before = buffer.weight();
        let unused_reservation = buffer.unused_reservation + buffer.unplaced.bytes();
        let keeps = buffer.dirty.is_empty() && unused_reservation <= KEPT_MAX && shared.bytes() <= KEPT_WEIGHT_MAX;
        buffer.unplaced.clear();
        buffer.touched = Some(time);
        buffer.flush_due = true;
        buffer.failed = false;
        buffer.unused_reservation = if keeps { unused_reservation } else { 0 };
        let gone = (!keeps).then(|| (std::mem::take(&mut buffer.promises), std::mem::take(&mut buffer.dirty)));
        shared.count(before, buffer.weight());
        drop(slot);
        drop(guard);
        drop(gone);
        if keeps && !shared.keeps.load(Ordering::Relaxed) {
            shared.keeps.store(true, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Gives what is promised addresses and items, drawing on the promise. The `flush` lock is held.
    pub(super) fn place(self: &Arc<Self>, promise: Option<&DataReservation>) -> Result<(), FsError> {
        let (mut any, mut size) = (false, 0);
        // Each round takes a range away.
        loop {
            let range = {
                let buffer = self.data.buffer.lock();
                let Some(b) = &*buffer else { break };
                size = b.unplaced.size;
                b.unplaced.ranges().first().cloned()
            };
            let Some(range) = range else { break };
            let mut pos = range.start;
            while pos < range.end
                && let Some(gap) = self.next_gap(pos, range.end)?
            {
                pos = self.preallocate_step(gap, promise, PROMISED_NEED)?;
            }
            any = true;
            if let Some(buffer) = &mut *self.data.buffer.lock() {
                // What it weighs is counted off with the times, at the end of the flush.
                buffer.flush_due = true;
                buffer.unplaced.pop_front();
            }
        }
        if !any {
            return Ok(());
        }
        let time = self.data.touched();
        let handle = self.core().engine().join(PROMISED_NEED)?;
        let mut guard = self.write();
        guard.alive()?;
        let fields = guard.fields_mut(&handle);
        fields.flags |= InodeFlags::PREALLOC.bits();
        fields.size = fields.size.max(size);
        if let Some(time) = time {
            fields.touch(time);
        }
        if let Some(buffer) = &mut *self.data.buffer.lock() {
            buffer.unplaced.size = 0;
        }
        Ok(())
    }

    /// Writes the times of a file of which nothing but its times is left in the buffer. The `flush` lock is held.
    pub(super) fn stamp(self: &Arc<Self>) -> Result<(), FsError> {
        let handle = self.core().engine().join(PROMISED_NEED)?;
        let mut guard = self.write();
        guard.alive()?;
        // An operation that has set the times since has taken it.
        let Some(time) = self.data.take_touched() else { return Ok(()) };
        let fields = guard.fields_mut(&handle);
        let mtime = fields.mtime.max(time);
        fields.touch(mtime);
        Ok(())
    }

    /// The next range of `from..to` that has no space.
    pub(super) fn next_gap(&self, from: u64, to: u64) -> Result<Option<Range<u64>>, FsError> {
        let guard = self.read();
        let sector = u64::from(self.core().engine().sectorsize());
        let mut pos = from;
        let mut found = None;
        map::walk(&MapOf { items: &guard, sector }, from, to, |_, range, extent| {
            if range.start > pos {
                found = Some(pos..range.start);
            } else if matches!(extent, Extent::Hole { .. }) {
                found = Some(range);
            } else {
                pos = range.end;
            }
            Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found.or_else(|| (pos < to).then_some(pos..to)))
    }
}

impl Shared {
    /// Gives up promises that files keep and do not need; whether there were any.
    pub(crate) fn release_idle_reservations(&self) -> bool {
        if !self.keeps.swap(false, Ordering::Relaxed) {
            return false;
        }
        let mut any = false;
        for file in self.files(None) {
            any |= file.release_unused_reservation();
        }
        any
    }
}

impl Inode {
    /// Gives up promises of a file that has nothing buffered; whether there were any.
    pub(super) fn release_unused_reservation(&self) -> bool {
        let mut slot = self.data.buffer.lock();
        let Some(buffer) = slot.as_mut().filter(|b| b.is_idle() && !b.promises.is_empty()) else { return false };
        buffer.unused_reservation = 0;
        let gone = std::mem::take(&mut buffer.promises);
        drop(slot);
        drop(gone);
        true
    }
}
