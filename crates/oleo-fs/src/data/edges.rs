//! Parts of sectors beside a range: whether they can be read, and the zeros behind the end of a file that gets longer.

use std::ops::Range;
use std::sync::Arc;

use oleo_format::ByteLen;
use oleo_txn::{Addresses, DataReservation, TxnError};

use crate::FsError;
use crate::data::buffer::Buffer;
use crate::data::flush::Inline;
use crate::data::in_place;
use crate::data::items::MapOf;
use crate::data::map;
use crate::data::pieces::BufferPieces;
use crate::data::read;
use crate::data::room::Flushing;
use crate::object::{Inode, Items, ReadGuard};

/// Whether the bytes behind the old end of a file become part of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// They do, and read as zeros.
    Zero,
    /// They do not.
    Keep,
}

impl Inode {
    /// Makes the end of the file fit for a file of `to` bytes, or for extents up to there: no inline extent, and zeros
    /// behind the old end if `tail` asks for them. The `flush` lock is held and nothing is dirty.
    pub(super) fn settle_tail(self: &Arc<Self>, to: u64, tail: Tail) -> Result<(), FsError> {
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        if self.read().fields().size >= to {
            return Ok(());
        }
        let inline = read::inline_bytes(self)?.unwrap_or_default();
        let zeros = tail == Tail::Zero && {
            let guard = self.read();
            tail_gap(&guard, None, to, sector)?
        };
        if inline.is_empty() && !zeros {
            return Ok(());
        }
        if zeros {
            let size = self.read().fields().size;
            readable_beside(self, size..to)?;
        }
        let small = tail == Tail::Zero && to <= u64::from(self.core().opts.data.inline_max);
        let inline_as = if small { Inline::Allowed } else { Inline::Refused };
        let size = self.read().fields().size;
        self.write_edge(size / sector * sector..size.next_multiple_of(sector), inline_as, |size, buffer| {
            let mut older = BufferPieces::default();
            older.write(0, &inline);
            buffer.dirty.put_under(older);
            if zeros {
                buffer.dirty.zero_gaps(size..size.next_multiple_of(sector).min(to));
            }
        })
    }

    /// Buffers zeros for a range within the file where the map has data and writes them out. The `flush` lock is held.
    pub(super) fn zero_bytes(self: &Arc<Self>, range: Range<u64>) -> Result<(), FsError> {
        let engine = self.core().engine();
        let sector = u64::from(engine.sectorsize());
        let has_data = {
            let guard = self.read();
            map::has_data(&MapOf { items: &guard, sector }, range.clone())?
        };
        if range.is_empty() || !has_data {
            return Ok(());
        }
        readable_beside(self, range.clone())?;
        let sectors = range.start / sector * sector..range.end.next_multiple_of(sector);
        self.write_edge(sectors, Inline::Allowed, |_, buffer| {
            buffer.dirty.cut(range.clone());
            buffer.dirty.zero_gaps(range);
        })
    }

    /// Buffers what `put` adds to the sectors of an edge, two at the most, and writes it out; `put` gets the file's size. The `flush`
    /// lock is held: bytes that are written in place need no space, and have their place until then.
    pub(super) fn write_edge(
        self: &Arc<Self>,
        sectors: Range<u64>,
        inline: Inline,
        put: impl FnOnce(u64, &mut Buffer),
    ) -> Result<(), FsError> {
        let (promise, addresses) = self.promise_edge(sectors)?;
        {
            let guard = self.read();
            let mut slot = self.data.buffer.lock();
            let buffer = slot.get_or_insert_default();
            let before = buffer.weight();
            buffer.promises.push(promise);
            put(guard.fields().size, buffer);
            self.core().data.count(before, buffer.weight());
            self.core().data.enlist(self);
        }
        drop(addresses);
        self.flush_locked(inline)
    }

    /// Promises space for an edge. If there is none and all of it is written in place, it needs none, but addresses must be held until
    /// it is buffered.
    fn promise_edge(
        self: &Arc<Self>,
        sectors: Range<u64>,
    ) -> Result<(DataReservation, Option<Addresses<'_>>), FsError> {
        let engine = self.core().engine();
        let space = ByteLen(2 * u64::from(engine.sectorsize()));
        let mut has_made_room = false;
        loop {
            let refused = match engine.reserve_data(space) {
                Err(refused @ TxnError::NoSpace { .. }) => refused,
                promise => return Ok((promise?, None)),
            };
            let addresses = engine.hold_addresses();
            if !self.subvol().is_being_shared() {
                let places = in_place::places(self, &self.read(), sectors.clone())?;
                let placed: u64 = places.iter().map(|place| place.range.end - place.range.start).sum();
                if !sectors.is_empty()
                    && placed == sectors.end - sectors.start
                    && let Ok(promise) = engine.reserve_data(ByteLen(0))
                {
                    return Ok((promise, Some(addresses)));
                }
            }
            drop(addresses);
            if has_made_room {
                return Err(refused.into());
            }
            self.core().make_room(Flushing::Some)?;
            has_made_room = true;
        }
    }
}

/// What lies beside a range in its first and last sector, up to the end of the file.
pub(super) fn parts_beside(range: Range<u64>, size: u64, sector: u64) -> Vec<Range<u64>> {
    let before = range.start / sector * sector..range.start.min(size);
    let after = range.end..range.end.next_multiple_of(sector).min(size);
    [before, after].into_iter().filter(|part| !part.is_empty()).collect()
}

pub(super) fn read_part(inode: &Inode, part: &Range<u64>) -> Result<(), FsError> {
    let mut bytes = vec![0; (part.end - part.start) as usize];
    read::read(inode, part.start, &mut bytes).map(drop)
}

/// Fails if a part of the range's first or last sector that is not in it cannot be read: such a sector could not be completed.
pub(super) fn readable_beside(inode: &Inode, range: Range<u64>) -> Result<(), FsError> {
    let sector = u64::from(inode.core().engine().sectorsize());
    let size = inode.data.shown(inode.read().fields());
    parts_beside(range, size, sector).iter().try_for_each(|part| read_part(inode, part))
}

/// Whether a write at `at`, or a longer file, leaves bytes behind the old end in its sector that are not known to be zeros.
/// What is buffered behind the old end was buffered by a writer that has taken care of that.
pub(super) fn tail_gap(guard: &ReadGuard<'_>, buffer: Option<&Buffer>, at: u64, sector: u64) -> Result<bool, FsError> {
    let size = guard.fields().size;
    let end = size.next_multiple_of(sector).min(at);
    if size >= end || buffer.is_some_and(|b| b.end() > size) {
        return Ok(false);
    }
    map::has_data(&MapOf { items: guard, sector }, size..end)
}
