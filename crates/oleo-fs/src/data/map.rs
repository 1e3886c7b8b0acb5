//! The extent map of one file as EXTENT_DATA items: cutting ranges out of it, filling gaps, walking it.
//!
//! Normal path of any change: (1) `drop_range` takes away what the items say about a range, splitting the ones that
//! stick out; (2) the caller puts the new items; (3) `fill_gaps`, on volumes whose holes have items. Each returns by
//! how much the inode's `nbytes` changed, so that nothing is counted twice.
//!
//! Invariants, as the format has them: items do not overlap; offsets and lengths are multiples of the sector size; an
//! inline extent is alone in the first sector and is dropped only whole; a part of a compressed extent keeps
//! `disk_bytenr`, `disk_num_bytes` and `ram_bytes` and says with `offset` where in the *uncompressed* bytes it begins; a
//! hole's `disk_bytenr` is 0. `nbytes` counts inline bytes (uncompressed) and the lengths of regular and preallocated
//! extents, holes not.
//!
//! Not here: who may change the map (`data`), space and references (the engine derives them from these items).

use std::ops::{ControlFlow, Range};

use oleo_format::{ByteLen, Compression, DiskExtent, FileExtent, Generation, Logical};

use crate::FsError;

/// Items that one step looks at: bounds memory however long the file's map is.
pub(crate) const MAP_BATCH: usize = 256;
/// Items that a walk looks at first.
const FIRST_BATCH: usize = 4;
/// The most bytes that an inline extent may stand for: the largest sector there is.
const INLINE_LEN_MAX: u64 = 64 * 1024;

/// A part of an extent that has a place on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Transaction that made the extent.
    pub generation: Generation,
    /// Start of the extent, not of the part.
    pub disk: Logical,
    /// Bytes on disk of the whole extent.
    pub disk_len: u64,
    /// Bytes of the whole extent once uncompressed.
    pub ram_len: u64,
    /// Where in the uncompressed bytes the part begins.
    pub offset: u64,
    /// Bytes of the file that the part stands for.
    pub len: u64,
    pub compression: Compression,
    /// Allocated but not written: reads as zeros.
    pub prealloc: bool,
}

impl Span {
    /// The part of this part that begins `skip` bytes in and is `len` long.
    pub fn slice(self, skip: u64, len: u64) -> Span {
        Span { offset: self.offset + skip, len, ..self }
    }

    /// Where the part's bytes are; for extents that are not compressed.
    pub fn disk_start(&self) -> Logical {
        Logical(self.disk.0 + self.offset)
    }
}

/// What one EXTENT_DATA item says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// The bytes are in the item.
    Inline {
        generation: Generation,
        /// Bytes once uncompressed.
        ram_len: u64,
        compression: Compression,
        data: Box<[u8]>,
    },
    /// Nothing: zeros.
    Hole { generation: Generation, len: u64 },
    /// On disk.
    Span(Span),
}

impl Extent {
    /// Takes an item apart and checks that its range is one a file can have.
    pub fn parse(at: u64, item: &[u8], sector: u64) -> Result<Extent, FsError> {
        let (e, prealloc) = match FileExtent::parse(item)? {
            FileExtent::Inline { generation, ram_bytes, compression, data } => {
                let ram_len = ram_bytes.0;
                if at != 0 || ram_len > INLINE_LEN_MAX {
                    return Err(FsError::corrupt("inline file extent", at, "length", ram_len, "a sector, at offset 0"));
                }
                return Ok(Extent::Inline { generation, ram_len, compression, data: data.into() });
            }
            FileExtent::Regular(e) => (e, false),
            FileExtent::Prealloc(e) => (e, true),
        };
        let len = e.num_bytes.0;
        if len == 0 || !at.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return Err(FsError::corrupt("file extent", at, "num_bytes", len, "whole sectors, more than 0"));
        }
        if at.checked_add(len).is_none_or(|end| end > i64::MAX as u64 + 1) {
            return Err(FsError::corrupt("file extent", at, "num_bytes", len, "an end that a file can have"));
        }
        if e.is_hole() {
            return Ok(Extent::Hole { generation: e.generation, len });
        }
        // Some kernels wrote a `ram_bytes` that is too small for parts of uncompressed extents; and one that is too large must
        // not lead into what is another's. The length on disk is right.
        let ram_len = if e.compression == Compression::None { e.disk_num_bytes.0 } else { e.ram_bytes.0 };
        if e.offset.0.checked_add(len).is_none_or(|end| end > ram_len) {
            return Err(FsError::corrupt("file extent", at, "offset and num_bytes", e.offset, "within the extent"));
        }
        if e.disk_bytenr.0.checked_add(e.disk_num_bytes.0.max(ram_len)).is_none() {
            return Err(FsError::corrupt("file extent", at, "disk_bytenr", e.disk_bytenr, "an end that is a number"));
        }
        Ok(Extent::Span(Span {
            generation: e.generation,
            disk: e.disk_bytenr,
            disk_len: e.disk_num_bytes.0,
            ram_len,
            offset: e.offset.0,
            len,
            compression: e.compression,
            prealloc,
        }))
    }

    /// The item that says this.
    pub fn encode(&self) -> oleo_tree::ItemBytes {
        let item = match self {
            Extent::Inline { generation, ram_len, compression, data } => FileExtent::Inline {
                generation: *generation,
                ram_bytes: ByteLen(*ram_len),
                compression: *compression,
                data: data.to_vec(),
            },
            Extent::Hole { generation, len } => FileExtent::Regular(DiskExtent::hole(*generation, ByteLen(*len))),
            Extent::Span(s) => {
                let extent = DiskExtent {
                    generation: s.generation,
                    ram_bytes: ByteLen(s.ram_len),
                    compression: s.compression,
                    disk_bytenr: s.disk,
                    disk_num_bytes: ByteLen(s.disk_len),
                    offset: ByteLen(s.offset),
                    num_bytes: ByteLen(s.len),
                };
                if s.prealloc { FileExtent::Prealloc(extent) } else { FileExtent::Regular(extent) }
            }
        };
        item.encode().into()
    }

    /// Bytes of the file that this stands for; an inline extent stands for whole sectors.
    pub fn len(&self, sector: u64) -> u64 {
        match self {
            Extent::Inline { ram_len, .. } => (*ram_len).min(i64::MAX as u64).next_multiple_of(sector),
            Extent::Hole { len, .. } => *len,
            Extent::Span(s) => s.len,
        }
    }

    /// What this adds to the inode's `nbytes`.
    pub fn counted(&self) -> u64 {
        match self {
            Extent::Inline { ram_len, .. } => *ram_len,
            Extent::Hole { .. } => 0,
            Extent::Span(s) => s.len,
        }
    }

    /// Whether this has bytes that are not known to be zeros.
    pub fn has_data(&self) -> bool {
        match self {
            Extent::Inline { .. } => true,
            Extent::Hole { .. } => false,
            Extent::Span(s) => !s.prealloc,
        }
    }

    /// The part that begins `skip` bytes in. Inline extents have no parts.
    fn slice(&self, skip: u64, len: u64) -> Option<Extent> {
        match self {
            Extent::Inline { .. } => None,
            Extent::Hole { generation, .. } => Some(Extent::Hole { generation: *generation, len }),
            Extent::Span(s) => Some(Extent::Span(s.slice(skip, len))),
        }
    }
}

/// The extent items of one file.
pub(crate) trait ExtentMap {
    fn sector(&self) -> u64;
    /// The last item that begins at or below.
    fn last(&self, at_or_below: u64) -> Result<Option<(u64, Extent)>, FsError>;
    /// The first items that begin in `from..=to_incl`, at most `limit`.
    fn batch(&self, from: u64, to_incl: u64, limit: usize) -> Result<Vec<(u64, Extent)>, FsError>;
}

/// The extent items of one file, to be changed.
pub(crate) trait ExtentMapMut: ExtentMap {
    fn put(&mut self, at: u64, extent: Extent);
    fn delete(&mut self, at: u64);
    /// Notes that no item begins from one offset up to another, so that walks pass over deleted items there.
    fn note_empty(&mut self, from: u64, to: u64) {
        let _ = (from, to);
    }
}

/// Walks what the map says about `from..to`: each item's offset, clipped range and the item, in order; gaps are skipped.
pub(crate) fn walk(
    map: &(impl ExtentMap + ?Sized),
    from: u64,
    to: u64,
    mut each: impl FnMut(u64, Range<u64>, &Extent) -> Result<ControlFlow<()>, FsError>,
) -> Result<(), FsError> {
    let sector = map.sector();
    let mut pos = from;
    if let Some((at, extent)) = map.last(from)? {
        let end = at + extent.len(sector);
        if end > from {
            if from < to && each(at, from..end.min(to), &extent)?.is_break() {
                return Ok(());
            }
            pos = end;
        } else if at == from {
            pos = from + 1; // an empty inline extent
        }
    }
    // Most callers want the first few items only.
    let mut limit = FIRST_BATCH;
    while pos < to {
        let batch = map.batch(pos, to - 1, limit)?;
        let full = batch.len() == limit;
        limit = MAP_BATCH;
        for (at, extent) in batch {
            let end = at + extent.len(sector);
            if each(at, at..end.min(to), &extent)?.is_break() {
                return Ok(());
            }
            pos = end.max(at + 1);
        }
        if !full {
            break;
        }
    }
    Ok(())
}

/// Whether the map has bytes in the range that are not known to be zeros.
pub(crate) fn has_data(map: &(impl ExtentMap + ?Sized), range: Range<u64>) -> Result<bool, FsError> {
    let mut found = false;
    walk(map, range.start, range.end, |_, _, extent| {
        found = extent.has_data();
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

/// When a drop of items notes that the range is empty.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Note {
    /// Whenever items were dropped: none takes their place.
    Holes,
    /// If more than one item was dropped: the item that is about to be put has the key of one of them at most.
    Many,
}

/// Makes a hole: takes away what the map says about `from..to` (both multiples of the sector size) and returns by how much `nbytes`
/// shrinks. Looks at `limit` items at most; the second answer is where it stopped: `to` when all is done.
pub(crate) fn drop_some(
    map: &mut (impl ExtentMapMut + ?Sized),
    from: u64,
    to: u64,
    limit: usize,
) -> Result<(u64, u64), FsError> {
    drop_first(map, from, to, limit, Note::Holes)
}

/// Continues a hole at the offset where [`drop_some`] has stopped: no item reaches over it, so there is no look back.
pub(crate) fn drop_more(
    map: &mut (impl ExtentMapMut + ?Sized),
    from: u64,
    to: u64,
    limit: usize,
) -> Result<(u64, u64), FsError> {
    drop_next(map, from, from, to, limit, Note::Holes)
}

fn drop_first(
    map: &mut (impl ExtentMapMut + ?Sized),
    from: u64,
    to: u64,
    limit: usize,
    note: Note,
) -> Result<(u64, u64), FsError> {
    let sector = map.sector();
    let mut freed = 0;
    let mut pos = from;
    // Between the item before the range and the range no item begins.
    let mut empty_from = 0;
    if from > 0
        && let Some((at, extent)) = map.last(from - 1)?
    {
        empty_from = at + 1;
        let end = at + extent.len(sector);
        if end > from {
            let Some(head) = extent.slice(0, from - at) else {
                return Err(FsError::corrupt("file extent", at, "inline bytes", extent.len(sector), sector));
            };
            freed += extent.counted() - head.counted();
            map.put(at, head);
            if end > to {
                freed -= put_tail(map, at, &extent, to, end)?;
            }
            pos = end.min(to);
        }
    }
    let (more, pos) = drop_next(map, empty_from, pos, to, limit, note)?;
    Ok((freed + more, pos))
}

/// Drops the items that begin in `from..to`. The caller has seen that none begins in `empty_from..from`.
fn drop_next(
    map: &mut (impl ExtentMapMut + ?Sized),
    empty_from: u64,
    from: u64,
    to: u64,
    limit: usize,
    note: Note,
) -> Result<(u64, u64), FsError> {
    let sector = map.sector();
    let (mut freed, mut pos) = (0, from);
    let mut left = limit;
    while pos < to && left > 0 {
        let batch = map.batch(pos, to - 1, left.min(MAP_BATCH))?;
        if batch.is_empty() {
            pos = to;
            break;
        }
        left -= batch.len();
        for (at, extent) in batch {
            let end = at + extent.len(sector);
            freed += extent.counted();
            map.delete(at);
            if end > to {
                freed -= put_tail(map, at, &extent, to, end)?;
            }
            pos = end.max(at + 1).min(to);
        }
    }
    let dropped = limit - left;
    if dropped > 1 || (dropped == 1 && note == Note::Holes) {
        map.note_empty(empty_from, pos);
    }
    Ok((freed, pos))
}

/// Puts what is left of an extent behind `to` and returns what of it counts. An inline extent has no tail.
fn put_tail(
    map: &mut (impl ExtentMapMut + ?Sized),
    at: u64,
    extent: &Extent,
    to: u64,
    end: u64,
) -> Result<u64, FsError> {
    let Some(tail) = extent.slice(to - at, end - to) else {
        return Err(FsError::corrupt("inline file extent", at, "length", extent.counted(), map.sector()));
    };
    let counted = tail.counted();
    map.put(to, tail);
    Ok(counted)
}

/// Drops the items of `from..to`, before others are put there. Returns by how much `nbytes` shrinks.
pub(crate) fn drop_range(map: &mut (impl ExtentMapMut + ?Sized), from: u64, to: u64) -> Result<u64, FsError> {
    drop_all(map, from, to, Note::Many)
}

/// The same if no others are put.
pub(crate) fn make_hole(map: &mut (impl ExtentMapMut + ?Sized), from: u64, to: u64) -> Result<u64, FsError> {
    drop_all(map, from, to, Note::Holes)
}

fn drop_all(map: &mut (impl ExtentMapMut + ?Sized), from: u64, to: u64, note: Note) -> Result<u64, FsError> {
    let mut freed = 0;
    let mut pos = from;
    while pos < to {
        let (bytes, done) = drop_first(map, pos, to, MAP_BATCH, note)?;
        freed += bytes;
        pos = done;
    }
    Ok(freed)
}

/// Puts hole items where the map says nothing between `from` and `to`, both multiples of the sector size.
pub(crate) fn fill_gaps(
    map: &mut (impl ExtentMapMut + ?Sized),
    from: u64,
    to: u64,
    generation: Generation,
) -> Result<(), FsError> {
    let mut gaps = Vec::new();
    let mut pos = from;
    walk(map, from, to, |_, range, _| {
        if range.start > pos {
            gaps.push(pos..range.start);
        }
        pos = pos.max(range.end);
        Ok(ControlFlow::Continue(()))
    })?;
    if pos < to {
        gaps.push(pos..to);
    }
    for gap in gaps {
        let mut at = gap.start;
        if at > 0
            && let Some((before, Extent::Hole { len, .. })) = map.last(at - 1)?
            && before + len == at
        {
            at = before;
        }
        map.put(at, Extent::Hole { generation, len: gap.end - at });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
