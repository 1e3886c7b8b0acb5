//! From the buffer to extents.
//!
//! Normal path of a flush, the `flush` lock held: (1) `take` moves what is dirty to write-back; (2) the bytes of an inline extent
//! join it, since any change of the first sector replaces such an extent; (3) each run of sectors is completed at its edges
//! from the map, prepared and installed, which takes it out of write-back; (4) the reservations for data and items are
//! released: until then nobody else gets that space.
//!
//! Errors: if a sector cannot be completed, because the rest of it cannot be read, everything but that sector is written; if anything
//! else fails, the flush ends. Bytes still under write-back become dirty again, below what was written since, with
//! their reservations, so that a later flush tries again (see `write_back`).

use std::ops::Range;
use std::sync::Arc;

use oleo_format::{ByteLen, Logical};
use oleo_txn::{Claim, DataReservation};
use rayon::prelude::*;

use crate::FsError;
use crate::data::dirty::Flushed;
use crate::data::install::{self, Install};
use crate::data::items::MapOf;
use crate::data::map::ExtentMap;
use crate::data::pieces::BufferPieces;
use crate::data::prepare::{self, EXTENT_LEN_MAX, Policy, Prepared, Whole};
use crate::data::{FILE_LEN_MAX, FlushGuard, in_place, read};
use crate::object::{Inode, Items};

/// Bytes that are completed, prepared and written at a time if they are compressed.
const RUN_LEN_MAX: u64 = 32 << 20;
/// Bytes from which on plain data is written step by step: below, one step would be all of it.
const PLAIN_LEN_MIN: u64 = 2 * STEP_LEN;
/// Bytes of plain data that are completed, summed and written at a time by one thread: they stay in its cache.
const STEP_LEN: u64 = 2 << 20;
/// Bytes of short runs that are written together.
const BATCH_LEN: u64 = 4 << 20;
/// Runs that are written together.
const BATCH_RUNS: usize = 1024;
/// Bytes from which on preparing them is worth handing out to other threads.
const THREADS_LEN_MIN: usize = 256 << 10;

/// Whether a flush may put a small file into its item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Inline {
    Allowed,
    Refused,
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

    /// Writes out what is buffered and puts the extents into the open transaction.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<(), FsError> {
        let _flush = self.lock_flush();
        self.flush_locked(Inline::Allowed)
    }

    /// The same for the holder of the `flush` lock.
    pub(super) fn flush_locked(self: &Arc<Self>, inline: Inline) -> Result<(), FsError> {
        let Some(Taken { promises, bytes, unplaced }) = self.take() else { return Ok(()) };
        let mut promises = promises.into_iter();
        let mut promise = promises.next();
        if let Some(promise) = &mut promise {
            promises.for_each(|other| promise.absorb(other));
        }
        let mut outcome = if unplaced { self.place(promise.as_ref()) } else { Ok(()) };
        if bytes && outcome.is_ok() {
            outcome = self.flush_writeback(inline, promise.as_ref());
        }
        if !bytes && !unplaced {
            outcome = self.stamp();
        }
        match outcome {
            Ok(()) => self.clear_flush_due(),
            Err(_) => self.put_back(promise.take()),
        }
        drop(promise);
        self.unlist(if outcome.is_ok() { Flushed::Well } else { Flushed::Badly });
        outcome
    }

    /// Puts what is dirty under write-back.
    fn take(&self) -> Option<Taken> {
        let mut slot = self.data.buffer.lock();
        let buffer = slot.as_mut().filter(|b| !b.is_empty())?;
        debug_assert!(buffer.writeback.is_empty(), "one flush at a time");
        let (bytes, unplaced) = (!buffer.dirty.is_empty(), !buffer.unplaced.is_empty());
        if bytes {
            buffer.writeback = Arc::new(std::mem::take(&mut buffer.dirty));
        }
        buffer.unused_reservation = 0;
        Some(Taken { promises: std::mem::take(&mut buffer.promises), bytes, unplaced })
    }

    fn put_back(&self, promise: Option<DataReservation>) {
        if let Some(buffer) = &mut *self.data.buffer.lock() {
            let before = buffer.weight();
            buffer.dirty.put_under(Arc::unwrap_or_clone(std::mem::take(&mut buffer.writeback)));
            buffer.promises.extend(promise);
            buffer.flush_due = true;
            buffer.failed = true;
            self.core().data.count(before, buffer.weight());
        }
    }

    /// The times have been written with the data.
    fn clear_flush_due(&self) {
        if let Some(buffer) = &mut *self.data.buffer.lock() {
            let before = buffer.weight();
            buffer.flush_due = false;
            buffer.failed = false;
            self.core().data.count(before, buffer.weight());
        }
    }

    /// Drops the buffer if nothing is in it any more.
    fn unlist(&self, flushed: Flushed) {
        let mut slot = self.data.buffer.lock();
        if slot.as_ref().is_some_and(|b| b.is_empty()) {
            *slot = None;
            let file = self.core().data.files.remove(self);
            drop(slot);
            drop(file);
        } else if slot.is_some() {
            self.core().data.renew(self, flushed);
        }
    }

    /// Forgets what is buffered: for a file that is cut to nothing or deleted, the `flush` lock held.
    pub(crate) fn discard(&self) {
        let mut slot = self.data.buffer.lock();
        if let Some(buffer) = slot.take() {
            self.core().data.count(buffer.weight(), 0);
            let file = self.core().data.files.remove(self);
            drop(slot);
            drop(file);
        }
    }

    fn flush_writeback(self: &Arc<Self>, inline: Inline, promise: Option<&DataReservation>) -> Result<(), FsError> {
        if let Some(bytes) = read::inline_bytes(self)?
            && let Some(buffer) = &mut *self.data.buffer.lock()
        {
            let before = buffer.weight();
            let mut older = BufferPieces::default();
            older.write(0, &bytes);
            Arc::make_mut(&mut buffer.writeback).put_under(older);
            self.core().data.count(before, buffer.weight());
        }
        let sector = u64::from(self.core().engine().sectorsize());
        let (policy, size, whole, in_place) = {
            let guard = self.read();
            guard.alive()?;
            let policy = self.core().policy(guard.fields(), &guard)?;
            let buffer = self.data.buffer.lock();
            let Some(b) = &*buffer else { return Ok(()) };
            let size = guard.fields().size.max(b.writeback.end());
            let mut whole = inline == Inline::Allowed && size <= sector && b.writeback.missing(0..size).is_empty();
            if whole {
                let last = MapOf { items: &guard, sector }.last(u64::MAX)?;
                whole = last.is_none_or(|(at, extent)| at + extent.len(sector) <= sector);
            }
            // What may be overwritten in place is read into memory as a whole.
            let in_place = in_place::may_be(guard.fields().flags);
            (policy, size, whole, in_place)
        };
        let plain = policy.compress.is_none() && !in_place;
        let mut batch = Batch { inode: self, policy: &policy, promise, prepared: Vec::new(), bytes: 0 };
        let shape = Shape { size, whole, in_place };
        let (mut pos, mut outcome) = (0, Ok(()));
        // Each round takes a run, which is out of write-back once the batch is installed.
        while let Some(run) = self.next_run(pos, sector, plain) {
            pos = run.end;
            match self.flush_around(run, &shape, &mut batch) {
                Err(e) if outcome.is_ok() && is_unreadable(&e) => outcome = Err(e),
                Err(e) if !is_unreadable(&e) => return Err(e),
                _ => {}
            }
        }
        batch.install()?;
        outcome
    }

    /// A run, but for sectors that cannot be completed: the error of the first of them. Any other error ends it.
    fn flush_around(self: &Arc<Self>, run: Range<u64>, shape: &Shape, batch: &mut Batch<'_>) -> Result<(), FsError> {
        let sector = u64::from(batch.policy.sectorsize);
        let mut first = Ok(());
        let mut todo = vec![run];
        // A part that fails is halved until it is a sector: all parts of a run are twice its sectors at most.
        while let Some(part) = todo.pop() {
            let mut pos = part.start;
            let Err(e) = self.flush_run(&mut pos, part.end, shape, batch) else { continue };
            if !is_unreadable(&e) {
                return Err(e);
            }
            let sectors = (part.end - pos).div_ceil(sector);
            if sectors > 1 {
                let middle = pos + sectors / 2 * sector;
                todo.extend([middle..part.end, pos..middle]);
            } else if first.is_ok() {
                first = Err(e);
            }
        }
        first
    }

    /// A run up to `end`; `pos` is how far it came, in whole sectors.
    fn flush_run(
        self: &Arc<Self>,
        pos: &mut u64,
        end: u64,
        shape: &Shape,
        batch: &mut Batch<'_>,
    ) -> Result<(), FsError> {
        // Data stays where it is until it has been written over.
        let _addresses = shape.in_place.then(|| self.core().engine().hold_addresses());
        let places = in_place::places(self, &self.read(), *pos..end)?;
        let whole = if shape.whole && places.is_empty() { Whole::File } else { Whole::Part };
        for place in &places {
            batch.add(pos, place.range.start.min(shape.size), whole)?;
            batch.install()?;
            let data = self.complete(place.range.start..place.range.end.min(shape.size))?;
            in_place::overwrite(self, place, &data, batch.policy)?;
            *pos = place.range.end;
        }
        batch.add(pos, end.min(shape.size), whole)
    }

    /// A long part that is not compressed: it becomes as few extents as space allows, written step by step. `pos` is how far it came.
    fn write_plain(
        self: &Arc<Self>,
        pos: &mut u64,
        end: u64,
        policy: &Policy,
        promise: Option<&DataReservation>,
    ) -> Result<(), FsError> {
        let engine = self.core().engine();
        let sector = u64::from(policy.sectorsize);
        // Each round fills at least one sector.
        while *pos < end {
            let at = *pos;
            let len = (end - at).next_multiple_of(sector).min(EXTENT_LEN_MAX);
            let grant = install::take_space(engine, promise, install::want(self, len))?;
            let run = grant.run();
            let writeback = self.data.buffer.lock().as_ref().map(|b| b.writeback.clone()).unwrap_or_default();
            let one = |skip: &u64| {
                let to = (at + skip + STEP_LEN).min(at + run.len.0).min(end);
                self.write_step(&writeback, at + skip..to, run.start + ByteLen(*skip), policy)
            };
            let steps: Vec<u64> = (0..run.len.0).step_by(STEP_LEN as usize).collect();
            let sums: Vec<Vec<u8>> = if policy.threads {
                engine.compute(|| steps.par_iter().map(one).collect::<Result<_, _>>())?
            } else {
                steps.iter().map(one).collect::<Result<_, _>>()?
            };
            // What is put leaves `writeback`, which nobody may share then.
            drop(writeback);
            install::finish_plain(self, at, grant, sums.concat(), end)?;
            *pos += run.len.0;
        }
        Ok(())
    }

    /// Writes some plain bytes to where they belong and returns their checksums: from where they are in memory, if they are
    /// there in whole sectors.
    fn write_step(
        &self,
        writeback: &BufferPieces,
        range: Range<u64>,
        to: Logical,
        policy: &Policy,
    ) -> Result<Vec<u8>, FsError> {
        let engine = self.core().engine();
        let sector = u64::from(policy.sectorsize);
        if let Some(slices) = writeback.slices(range.clone(), sector) {
            let place = |at: u64| to + ByteLen(at - range.start);
            let parts: Vec<(Logical, &[u8])> = slices.iter().map(|(at, bytes)| (place(*at), *bytes)).collect();
            engine.write_data(&parts)?;
            return Ok(slices.iter().flat_map(|(_, bytes)| prepare::sums(bytes, policy)).collect());
        }
        let mut data = self.complete(range)?;
        data.resize(data.len().next_multiple_of(sector as usize), 0);
        let sums = prepare::sums(&data, policy);
        engine.write_data(&[(to, &data)])?;
        Ok(sums)
    }

    /// The next sectors with bytes under write-back.
    fn next_run(&self, pos: u64, sector: u64, plain: bool) -> Option<Range<u64>> {
        let buffer = self.data.buffer.lock();
        let writeback = &buffer.as_ref()?.writeback;
        let first = writeback.next_run(pos)?;
        let start = first.start / sector * sector;
        let mut end = first.end.next_multiple_of(sector);
        let max = if plain { EXTENT_LEN_MAX } else { RUN_LEN_MAX };
        // Runs that meet in a sector or side by side are one.
        while end - start < max
            && let Some(next) = writeback.next_run(end.min(FILE_LEN_MAX))
            && next.start / sector * sector <= end
        {
            end = next.end.next_multiple_of(sector);
        }
        Some(start..end.min(start + max))
    }

    /// The bytes of a run: those under write-back, and what the map has elsewhere.
    fn complete(&self, range: Range<u64>) -> Result<Vec<u8>, FsError> {
        let mut data = vec![0; (range.end - range.start) as usize];
        let writeback = {
            let buffer = self.data.buffer.lock();
            let Some(b) = &*buffer else { return Ok(data) };
            b.writeback.clone()
        };
        writeback.read_over(range.start, &mut data);
        let gaps = writeback.missing(range.clone());
        drop(writeback);
        for gap in gaps {
            let part = &mut data[(gap.start - range.start) as usize..(gap.end - range.start) as usize];
            read::read_mapped(self, gap.start, part)?;
        }
        Ok(data)
    }
}

/// What a flush has taken out of a buffer.
struct Taken {
    promises: Vec<DataReservation>,
    /// Something was dirty and is under write-back now.
    bytes: bool,
    /// Something has to get addresses.
    unplaced: bool,
}

/// What holds for all runs of a flush.
struct Shape {
    /// The file's size afterwards.
    size: u64,
    /// All of it may go into one item.
    whole: bool,
    /// Some of it may be written where it is.
    in_place: bool,
}

/// Whether the rest of a sector cannot be read: others of the file may be.
fn is_unreadable(error: &FsError) -> bool {
    matches!(error, FsError::Data { .. })
}

/// Parts of runs on their way to new space: many short ones are written and put together.
struct Batch<'a> {
    inode: &'a Arc<Inode>,
    policy: &'a Policy,
    promise: Option<&'a DataReservation>,
    prepared: Vec<Prepared<'static>>,
    bytes: u64,
}

impl Batch<'_> {
    /// Adds what lies between `pos` and `end`; `pos` is how far it came.
    fn add(&mut self, pos: &mut u64, end: u64, whole: Whole) -> Result<(), FsError> {
        let range = *pos..end;
        if range.is_empty() {
            return Ok(());
        }
        let (inode, policy) = (self.inode, self.policy);
        if whole == Whole::Part && policy.compress.is_none() && range.end - range.start >= PLAIN_LEN_MIN {
            self.install()?;
            return inode.write_plain(pos, end, policy, self.promise);
        }
        let data = inode.complete(range.clone())?;
        *pos = end;
        self.bytes += data.len() as u64;
        self.prepared.push(if policy.threads && data.len() >= THREADS_LEN_MIN {
            inode.core().engine().compute(|| Prepared::new(data, range.start, whole, policy))
        } else {
            Prepared::new(data, range.start, whole, policy)
        });
        if self.bytes >= BATCH_LEN || self.prepared.len() >= BATCH_RUNS { self.install() } else { Ok(()) }
    }

    fn install(&mut self) -> Result<(), FsError> {
        self.bytes = 0;
        let prepared = std::mem::take(&mut self.prepared);
        let (inode, promise) = (self.inode, self.promise);
        let claim = Claim::Promised;
        let one =
            |prepared| Install { inode, prepared, time: None, exact_size: None, promise, from_writeback: true, claim };
        install::install(&prepared.iter().map(one).collect::<Vec<_>>())
    }
}
