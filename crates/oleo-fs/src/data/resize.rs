//! Cutting files short, making them longer, preallocating, punching holes. (Preallocating files that have nothing: `unplaced`.)
//!
//! All of it happens under the inode's `flush` lock with nothing dirty: first what is buffered is written out, then bytes at
//! unaligned edges are zeroed through the buffer, then whole sectors are changed in the map, in steps that each fit into
//! one handle's reservation and each leave a sound file: a shrinking file is cut from its end, a growing one is filled from its
//! old end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{Compression, InodeFlags};
use oleo_txn::{DataReservation, Engine, Handle, Need, TxnError};

use crate::attributes::rules;
use crate::data::edges::Tail;
use crate::data::flush::Inline;
use crate::data::install::{self, Install};
use crate::data::items::MapMutOf;
use crate::data::map::{self, Extent, ExtentMap, ExtentMapMut, MAP_BATCH, Span};
use crate::data::prepare::{EXTENT_LEN_MAX, Prepared, Whole};
use crate::data::read;
use crate::data::unplaced::{KeepSize, ONE_NEED};
use crate::data::write_back::throttle;
use crate::data::{FILE_LEN_MAX, FlushGuard};
use crate::object::{Inode, InodeFields, Items, ItemsMut};
use crate::options::Time;
use crate::{FileKind, FsError};

/// Items that a step goes over at least, if space is short.
const MAP_BATCH_SHORT: usize = 4;
/// Where the offsets end that a file can have; a multiple of every sector size.
pub(crate) const MAP_END: u64 = 1 << 63;

/// What the inode's flags have to allow.
type Rule = fn(&InodeFields) -> Result<(), FsError>;

impl Inode {
    /// Takes the `flush` lock and writes out what is dirty.
    pub(super) fn settle(self: &Arc<Self>) -> Result<FlushGuard<'_>, FsError> {
        let lock = self.lock_flush();
        self.flush_locked(Inline::Allowed)?;
        Ok(lock)
    }

    /// Fails unless this is a file whose data may change, as far as `rule` allows.
    pub(super) fn changeable(&self, rule: Rule) -> Result<(), FsError> {
        self.subvol().writable()?;
        let guard = self.read();
        guard.alive()?;
        match guard.fields().kind() {
            FileKind::File => rules::content(guard.fields()).and_then(|()| rule(guard.fields())),
            FileKind::Dir => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Makes the file `size` bytes long.
    pub(crate) fn truncate(self: &Arc<Self>, size: u64) -> Result<(), FsError> {
        self.changeable(rules::change)?;
        if size > FILE_LEN_MAX {
            return Err(FsError::FileTooBig);
        }
        let _flush = self.lock_flush();
        let time = self.core().now();
        if size == 0 {
            if self.cut_unplaced(time)? {
                return Ok(());
            }
            // What is buffered goes with the last extent: until then it can fail.
        } else {
            self.flush_locked(Inline::Allowed)?;
        }
        let old = self.read().fields().size;
        if size > old { self.grow(size, time) } else { self.shrink(size, time) }
    }

    fn grow(self: &Arc<Self>, size: u64, time: Time) -> Result<(), FsError> {
        self.settle_tail(size, Tail::Zero)?;
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let handle = engine.join(ONE_NEED)?;
        let mut guard = self.write();
        guard.alive()?;
        let old = guard.fields().size;
        if !engine.features().no_holes() {
            let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
            let (from, to) = (old.next_multiple_of(sector), size.next_multiple_of(sector));
            self.core().poison_on_error(|| map::fill_gaps(&mut items, from, to, handle.generation()))?;
        }
        let fields = guard.fields_mut(&handle);
        fields.size = size.max(fields.size);
        fields.touch(time);
        Ok(())
    }

    fn shrink(self: &Arc<Self>, size: u64, time: Time) -> Result<(), FsError> {
        if size > 0
            && size < self.read().fields().size
            && let Some(mut bytes) = read::inline_bytes(self)?
            && (size as usize) < bytes.len()
        {
            bytes.truncate(size as usize);
            let policy = {
                let guard = self.read();
                self.core().policy(guard.fields(), &guard)?
            };
            let prepared = Prepared::new(bytes, 0, Whole::File, &policy);
            let exact_size = Some(size);
            return install::install(&[Install {
                inode: self,
                prepared: &prepared,
                time: Some(time),
                exact_size,
                promise: None,
                from_writeback: true,
                claim: self.core().claim_of(self.subvol()),
            }]);
        }
        // Each round drops at least one item; the last finds none.
        let mut last = MAP_END;
        while !self.shrink_step(size, time, &mut last)? {
            self.core().throttle_between_steps()?;
        }
        Ok(())
    }

    /// Joins for a step over the items of a range; over how many. If there is no room for what many may need, it is few: releasing
    /// must go on with what is kept back for it.
    fn join_step<'a>(&'a self, engine: &'a Engine, from: u64, to: u64) -> Result<(Handle<'a>, usize), FsError> {
        let mut batch = MAP_BATCH;
        // Where there cannot be many, they need not be counted: none is shorter than a sector.
        let sector = u64::from(engine.sectorsize());
        let most = self.read().extents_end().map(|end| end.saturating_sub(from).div_ceil(sector));
        let few = most.filter(|most| *most <= MAP_BATCH_SHORT as u64);
        loop {
            let old = match few {
                Some(few) => few as u32,
                None => install::count_items(self, from, to, batch as u32)?,
            };
            let holes = if engine.features().no_holes() { 0 } else { old as usize };
            let (subvol, need) = (self.subvol(), install::need_of(holes, old));
            match self.core().join_with_claim(subvol, need) {
                Err(TxnError::NoSpace { .. }) if batch > MAP_BATCH_SHORT => batch /= 8,
                Err(TxnError::NoSpace { .. }) => return Ok((self.core().join_to_release(subvol, need)?, batch)),
                handle => return Ok((handle?, batch)),
            }
        }
    }

    /// Drops some items from the end of the map; returns whether nothing behind `size` is left. `last` is where the last item
    /// can be: steps do not look again at what those before them have dropped, which the tree has until the next commit.
    fn shrink_step(self: &Arc<Self>, size: u64, time: Time, last: &mut u64) -> Result<bool, FsError> {
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let keep = size.next_multiple_of(sector);
        let (handle, batch) = self.join_step(engine, keep, (*last).max(keep))?;
        let mut guard = self.write();
        guard.alive()?;
        let mut shown = guard.fields().size;
        let mut freed = 0;
        let mut done = false;
        let highest = *last;
        let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
        self.core().poison_on_error(|| {
            for _ in 0..batch {
                match items.last(*last)? {
                    Some((at, extent)) if at >= keep => {
                        freed += extent.counted();
                        items.delete(at);
                        shown = shown.min(at);
                        *last = at;
                        done = at == 0;
                    }
                    Some((at, extent)) if at + extent.len(sector) > keep => {
                        freed += map::drop_range(&mut items, keep, at + extent.len(sector))?;
                        done = true;
                    }
                    _ => done = true,
                }
                if done {
                    break;
                }
            }
            // Only the offsets that this step has looked at: they were looked at under this guard.
            if *last < highest {
                items.note_empty(*last, highest.saturating_add(1));
            }
            Ok(())
        })?;
        if done {
            guard.state_mut().extents_end = Some(keep);
        }
        let fields = guard.fields_mut(&handle);
        fields.nbytes = fields.nbytes.saturating_sub(freed);
        fields.size = if done { size } else { shown.max(size) };
        fields.touch(time);
        // What was written while the file was being cut is dropped, too: as if it had been written before.
        if done && size == 0 {
            self.discard();
        } else if done && let Some(buffer) = &mut *self.data.buffer.lock() {
            let before = buffer.weight();
            buffer.dirty.cut(size..u64::MAX);
            self.core().data.count(before, buffer.weight());
        }
        Ok(done)
    }

    /// One step of dropping all data of a file that is being deleted; returns whether none is left.
    pub(crate) fn drop_data_step(self: &Arc<Self>) -> Result<bool, FsError> {
        self.core().throttle_between_steps()?;
        let _flush = self.lock_flush();
        self.discard();
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let from = self.data.dropped.load(Ordering::Relaxed);
        let (handle, batch) = self.join_step(engine, from, MAP_END)?;
        let mut guard = self.write();
        // Queued more than once, it may have been erased while this waited to join.
        if guard.state().gone {
            return Ok(true);
        }
        let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
        let (freed, pos) = self.core().poison_on_error(|| map::drop_more(&mut items, from, MAP_END, batch))?;
        // If it comes into use again and is closed again, it is looked at from its beginning.
        self.data.dropped.store(if pos >= MAP_END { 0 } else { pos }, Ordering::Relaxed);
        let fields = guard.fields_mut(&handle);
        fields.nbytes = fields.nbytes.saturating_sub(freed);
        if pos >= MAP_END {
            fields.size = 0;
        }
        Ok(pos >= MAP_END)
    }

    /// Makes the range a hole. What lies behind the end of the file stays as it is.
    pub(crate) fn punch_hole(self: &Arc<Self>, at: u64, len: u64) -> Result<(), FsError> {
        self.changeable(rules::change)?;
        let _flush = self.settle()?;
        let size = self.read().fields().size;
        let end = at.checked_add(len).ok_or(FsError::FileTooBig)?.min(size);
        if at >= end {
            return Ok(());
        }
        self.clear(at, end, size)?;
        self.touch_now()
    }

    /// Turns a range within the file into zeros: a hole, and zero bytes at unaligned edges.
    fn clear(self: &Arc<Self>, at: u64, end: u64, size: u64) -> Result<(), FsError> {
        let sector = u64::from(self.core().engine().sectorsize());
        let from = at.next_multiple_of(sector);
        let to = if end >= size { end.next_multiple_of(sector) } else { end / sector * sector };
        if from > to {
            return self.zero_bytes(at..end);
        }
        self.zero_bytes(at..from.min(end))?;
        if to < end {
            self.zero_bytes(to.max(at)..end)?;
        }
        self.hole(from, to)
    }

    /// Drops what the map says about whole sectors.
    pub(super) fn hole(self: &Arc<Self>, from: u64, to: u64) -> Result<(), FsError> {
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let mut pos = from;
        // Each round drops at least one item, or reaches the end.
        while pos < to {
            self.core().throttle_between_steps()?;
            let (handle, batch) = self.join_step(engine, pos, to)?;
            let mut guard = self.write();
            guard.alive()?;
            let size_end = guard.fields().size.next_multiple_of(sector);
            let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
            let (freed, reached) = self.core().poison_on_error(|| {
                let (freed, reached) = if pos == from {
                    map::drop_some(&mut items, pos, to, batch)?
                } else {
                    map::drop_more(&mut items, pos, to, batch)?
                };
                if !engine.features().no_holes() && pos < size_end {
                    map::fill_gaps(&mut items, pos, reached.min(size_end), handle.generation())?;
                }
                Ok((freed, reached))
            })?;
            let fields = guard.fields_mut(&handle);
            fields.nbytes = fields.nbytes.saturating_sub(freed);
            pos = reached;
        }
        Ok(())
    }

    /// Takes space for the range where it has none; it reads as zeros.
    pub(crate) fn preallocate(self: &Arc<Self>, at: u64, len: u64, keep: KeepSize) -> Result<(), FsError> {
        self.changeable(rules::grow)?;
        {
            let _flush = self.lock_flush();
            if !self.promise(at, len, keep)? {
                self.flush_locked(Inline::Allowed)?;
                return self.preallocate_settled(at, len, keep);
            }
        }
        throttle(self, 0)
    }

    /// Turns the range into zeros that have space.
    pub(crate) fn zero_range(self: &Arc<Self>, at: u64, len: u64, keep: KeepSize) -> Result<(), FsError> {
        self.changeable(rules::change)?;
        let _flush = self.settle()?;
        let size = self.read().fields().size;
        let end = at.checked_add(len).filter(|end| *end <= FILE_LEN_MAX).ok_or(FsError::FileTooBig)?;
        if at < end.min(size) {
            self.clear(at, end.min(size), size)?;
        }
        self.preallocate_settled(at, len, keep)
    }

    fn preallocate_settled(self: &Arc<Self>, at: u64, len: u64, keep: KeepSize) -> Result<(), FsError> {
        let end = at.checked_add(len).filter(|end| *end <= FILE_LEN_MAX).ok_or(FsError::FileTooBig)?;
        if len == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        self.settle_tail(end, if keep == KeepSize::Yes { Tail::Keep } else { Tail::Zero })?;
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let (from, to) = (at / sector * sector, end.next_multiple_of(sector));
        let mut lacking = 0;
        let mut pos = from;
        while let Some(gap) = self.next_gap(pos, to)? {
            lacking += gap.end - gap.start;
            pos = gap.end;
        }
        let promise = self.core().reserve_in(self.tree(), lacking)?;
        pos = from;
        while let Some(gap) = self.next_gap(pos, to)? {
            pos = self.preallocate_step(gap, Some(&promise), ONE_NEED)?;
            self.core().throttle_between_steps()?;
        }
        let handle = engine.join(ONE_NEED)?;
        let mut guard = self.write();
        guard.alive()?;
        let time = self.data.time_of(self.core().now());
        let fields = guard.fields_mut(&handle);
        fields.flags |= InodeFlags::PREALLOC.bits();
        if keep == KeepSize::No {
            fields.size = fields.size.max(end);
        }
        fields.changed(time);
        Ok(())
    }

    /// Puts a preallocated extent at the beginning of a gap, with the need of one, and returns where it ends.
    pub(super) fn preallocate_step(
        self: &Arc<Self>,
        gap: Range<u64>,
        promise: Option<&DataReservation>,
        need: Need,
    ) -> Result<u64, FsError> {
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let len = (gap.end - gap.start).min(EXTENT_LEN_MAX);
        let grant = install::take_space(engine, promise, install::want(self, len))?;
        let run = grant.run();
        let handle = engine.join(need)?;
        let mut guard = self.write();
        guard.alive()?;
        let size_end = guard.fields().size.next_multiple_of(sector);
        let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
        self.core().poison_on_error(|| {
            if !engine.features().no_holes() && gap.start > size_end {
                map::fill_gaps(&mut items, size_end, gap.start, handle.generation())?;
            }
            map::drop_range(&mut items, gap.start, gap.start + run.len.0)
        })?;
        let span = Span {
            generation: handle.generation(),
            disk: run.start,
            disk_len: run.len.0,
            ram_len: run.len.0,
            offset: 0,
            len: run.len.0,
            compression: Compression::None,
            prealloc: true,
        };
        items.put(gap.start, Extent::Span(span));
        handle.record_new_extent(grant, self.tree());
        let fields = guard.fields_mut(&handle);
        fields.nbytes = fields.nbytes.saturating_add(run.len.0);
        fields.flags |= InodeFlags::PREALLOC.bits();
        Ok(gap.start + run.len.0)
    }

    /// Sets the change times to now.
    pub(super) fn touch_now(self: &Arc<Self>) -> Result<(), FsError> {
        let handle = self.core().join_to_release(self.subvol(), ONE_NEED)?;
        let mut guard = self.write();
        guard.alive()?;
        let time = self.data.time_of(self.core().now());
        guard.fields_mut(&handle).changed(time);
        Ok(())
    }
}
