//! The content of a file in the log: the extents that changed, holes where something was, space behind the end.
//!
//! A replay takes the logged extents in the order of their offsets; each drops what was in its range. So the log is right when
//! its items, in that order, over the extents of the last commit give the extents of now. From a set of changed items
//! follows the part of the file to record: their ranges now, in the last commit, and in the log. Within it the log's old items
//! are deleted, and the current ones, with holes between them, are added. Items of a log must not overlap: the kernel rejects such
//! a leaf as damaged.

use std::ops::ControlFlow;

use oleo_format::{ByteLen, Compression, InodeFlags, ItemType, Key};
use oleo_txn::fallback;

use crate::FsError;
use crate::data::{Extent, ExtentMap, MapOf, map_walk};
use crate::log::record::{Recorder, end_of};
use crate::object::{Items, WriteGuard};
use crate::ranges::Ranges;

impl Recorder<'_> {
    /// The extents of a file of which the items at `offsets` have changed since the last commit or, with `again`, since it was
    /// logged whole.
    pub(super) fn extents(
        &mut self,
        guard: &WriteGuard<'_>,
        offsets: &[u64],
        uncommitted: bool,
        again: bool,
    ) -> Result<(), FsError> {
        let engine = self.core.engine();
        let sector = u64::from(engine.sectorsize());
        let ino = guard.inode().ino();
        let fields = *guard.fields();
        let mut ranges = Ranges::default();
        for &at in offsets {
            let key = Key::new(ino.0, ItemType::EXTENT_DATA, at);
            let now = guard.get(ItemType::EXTENT_DATA, at)?;
            let end = now.map_or(Ok(0), |item| end_of(&key, &item, sector))?;
            ranges.add(at, end.max(at.saturating_add(sector)));
            if !uncommitted && let Some(item) = self.committed(&key)? {
                ranges.add(at, end_of(&key, &item, sector)?);
            }
        }
        let map = MapOf { items: guard, sector };
        // Each range grows until no item of the log or of now reaches over an edge. `done` is the end of the part that is finished.
        let mut done = 0;
        for (first, _) in ranges.list() {
            if first < done {
                continue;
            }
            let (mut low, mut high) = (first, first);
            while let Some((from, to)) = ranges.first_at_or_below(first)
                && (from.max(done), to) != (low, high)
            {
                let from = from.max(done);
                for (from, to) in [(from, low), (high, to)].into_iter().filter(|(from, to)| from < to) {
                    self.drop_logged(guard, &mut ranges, (from, to), sector)?;
                    map_walk(&map, from, to, |at, _, extent| {
                        ranges.add(at, at + extent.len(sector).max(sector));
                        Ok(ControlFlow::Continue(()))
                    })?;
                }
                (low, high) = (from, to);
            }
            done = high;
        }
        let end = fields.size.next_multiple_of(sector);
        let holes_end = if engine.features().no_holes() { u64::MAX } else { end };
        let mut found: Vec<(u64, Extent)> = Vec::new();
        let mut holes: Vec<(u64, u64)> = Vec::new();
        for (from, to) in ranges.list() {
            let mut pos = from;
            map_walk(&map, from, to, |at, range, extent| {
                if range.start > pos {
                    holes.push((pos, range.start));
                }
                pos = range.end;
                found.push((at, extent.clone()));
                Ok(ControlFlow::Continue(()))
            })?;
            if pos < to {
                holes.push((pos, to));
            }
        }
        let preallocated = InodeFlags::from_bits_retain(fields.flags).contains(InodeFlags::PREALLOC);
        if preallocated && !again {
            let last = map.last(u64::MAX)?.map_or(0, |(at, extent)| at + extent.len(sector));
            map_walk(&map, end, last.max(end), |at, _, extent| {
                found.push((at, extent.clone()));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        for (at, extent) in found {
            self.extent(Key::new(ino.0, ItemType::EXTENT_DATA, at), &extent);
        }
        // What was never in a tree leaves nothing behind.
        for (from, to) in holes.into_iter().filter(|_| !uncommitted) {
            let to = to.min(holes_end);
            if from < to {
                let hole = Extent::Hole { generation: self.log.generation(), len: to - from };
                self.put(Key::new(ino.0, ItemType::EXTENT_DATA, from), hole.encode());
            }
        }
        Ok(())
    }

    /// Takes the log's items that reach into a range out; the ranges grow to cover them.
    fn drop_logged(
        &mut self,
        guard: &WriteGuard<'_>,
        ranges: &mut Ranges,
        (from, to): (u64, u64),
        sector: u64,
    ) -> Result<(), FsError> {
        let ino = guard.inode().ino();
        let before = self.last_logged(Key::new(ino.0, ItemType::EXTENT_DATA, from))?;
        let inside = self.logged_items(ino, ItemType::EXTENT_DATA, from, to.saturating_sub(1))?;
        for (key, item) in before.into_iter().chain(inside) {
            let end = end_of(&key, &item, sector)?;
            if end > from || key.offset == from {
                ranges.add(key.offset, end);
                self.delete(key);
                self.drop_csums(&key, &item, sector)?;
            }
        }
        Ok(())
    }

    /// An extent item leaves the log, and its checksums with it, if it alone needs them: the extent is of this transaction, was not
    /// cloned, and the item covers all that an item of checksums is of. (What else the file has of such an extent lies elsewhere in the
    /// extent as it does in the file.) If the extent stays, what is recorded of it afterwards puts them back.
    pub(super) fn drop_csums(&mut self, key: &Key, item: &[u8], sector: u64) -> Result<(), FsError> {
        let Extent::Span(span) = Extent::parse(key.offset, item, sector)? else { return Ok(()) };
        if span.generation != self.log.generation() || self.core.was_cloned(span.disk) {
            return Ok(());
        }
        let (at, len) = match span.compression {
            Compression::None => (span.disk_start(), span.len),
            _ if span.len == span.ram_len => (span.disk, span.disk_len),
            _ => return Ok(()),
        };
        for key in self.log.csum_items_within(self.logged.as_ref(), at, ByteLen(len))? {
            self.delete(key);
        }
        Ok(())
    }

    fn extent(&mut self, key: Key, extent: &Extent) {
        if let Extent::Span(span) = extent {
            if self.log.is_uncommitted(span.disk) {
                self.refused = Some(fallback::NEW_CHUNK);
                return;
            }
            if !span.prealloc {
                let (at, len) = match span.compression {
                    Compression::None => (span.disk_start(), span.len),
                    // A reader needs all of it to unpack any of it.
                    _ => (span.disk, span.disk_len),
                };
                self.log.csum_items(at, ByteLen(len), &mut self.items);
            }
        }
        self.put(key, extent.encode());
    }
}
