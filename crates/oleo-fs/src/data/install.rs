//! Installing prepared bytes: allocate space, write data, put items.
//!
//! Normal path: (1) `place` takes space for the pieces of all files in the caller's order, so that the same input gives the
//! same addresses whatever prepared it; (2) all data is written in one batch, before any item names it; (3) per file,
//! `finish` joins the transaction, locks the inode, drops what the map said about the range, puts the new extents, and
//! reports to the engine which extents are new and which checksums belong to them.
//!
//! A piece that no single free run can hold becomes several extents; a compressed one that does not fit in one run is
//! written plain, in parts.
//! Errors: grants that no item names yet give their space back when they are dropped.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use oleo_format::{ByteLen, Compression, Incompat, Logical, decompress};
use oleo_space::Grant;
use oleo_txn::{Claim, DataReservation, DataWant, Engine, Handle, Need, TxnError};

use crate::FsError;
use crate::data::items::{MapMutOf, MapOf};
use crate::data::map::{self, Extent, ExtentMapMut, Span};
use crate::data::prepare::{Body, DataPiece, Prepared};
use crate::object::{Inode, Items, ItemsMut};
use crate::options::Time;

/// Extents that are put under one handle: bounds what one operation asks of the metadata reserve. If that is short, one.
const EXTENTS_PER_JOIN: usize = 64;
/// Bytes of an extent item with its head in the leaf (25 + 53), rounded up.
const EXTENT_ITEM_BYTES: u32 = 80;

/// One file's part of a batch.
pub(super) struct Install<'a> {
    pub inode: &'a Arc<Inode>,
    pub prepared: &'a Prepared<'a>,
    /// The new change times; for bytes under write-back also those of the buffer.
    pub time: Option<Time>,
    /// The file's size afterwards, whatever it was; else it only grows.
    pub exact_size: Option<u64>,
    /// Space that was promised for the bytes.
    pub promise: Option<&'a DataReservation>,
    /// The bytes come from those of the inode under write-back and leave them; its `flush` lock is held.
    pub from_writeback: bool,
    /// The metadata space that it may use; one that releases is that of the subvolume.
    pub claim: Claim,
}

impl Install<'_> {
    /// Whether this and `before`, which rises, can be put together: runs of one write-back.
    fn goes_on(&self, before: &Install<'_>) -> bool {
        let plain = |i: &Install<'_>| i.from_writeback && i.time.is_none() && i.exact_size.is_none();
        Arc::ptr_eq(self.inode, before.inode) && plain(self) && plain(before)
    }
}

/// What is left to do for one file once its bytes are on disk.
struct Finish<'a> {
    inode: &'a Arc<Inode>,
    time: Option<Time>,
    exact_size: Option<u64>,
    from_writeback: bool,
    claim: Claim,
    /// Where the bytes end.
    end: u64,
}

/// A piece, or a part of one, and its place.
struct Placed {
    /// Where in the file.
    at: u64,
    len: u64,
    kind: PlacedKind,
    csums: Vec<u8>,
}

enum PlacedKind {
    Inline { compression: Compression, data: Box<[u8]> },
    Disk { grant: Grant, disk_len: u64, packed: Option<Packed> },
}

/// What a compressed extent decompresses to, and where in that its bytes of the file begin.
#[derive(Clone, Copy)]
struct Packed {
    compression: Compression,
    ram_len: u64,
    skip: u64,
}

/// The plain bytes of a compressed piece that had to be taken apart, for each piece.
type Unpacked = Vec<Option<Vec<u8>>>;

/// Writes the prepared bytes of some files and puts their items.
pub(super) fn install(batch: &[Install<'_>]) -> Result<(), FsError> {
    let Some(first) = batch.first() else { return Ok(()) };
    let engine = first.inode.core().engine();
    let mut unpacked: Vec<Unpacked> = Vec::new();
    let mut placed = Vec::with_capacity(batch.len());
    for item in batch {
        let (mine, plain) = place(engine, item)?;
        placed.push(mine);
        unpacked.push(plain);
    }
    let mut parts: Vec<(Logical, &[u8])> = Vec::new();
    for ((item, mine), plain) in batch.iter().zip(&placed).zip(&unpacked) {
        copies_of(item.prepared, mine, plain, &mut parts);
    }
    if !parts.is_empty() {
        engine.write_data(&parts)?;
    }
    let mut rest = batch.iter().zip(placed).peekable();
    while let Some((item, mut mine)) = rest.next() {
        let Install { inode, time, exact_size, from_writeback, claim, .. } = *item;
        let mut end = item.prepared.at + item.prepared.len;
        while let Some((next, more)) = rest.next_if(|(next, _)| next.goes_on(item)) {
            mine.extend(more);
            end = next.prepared.at + next.prepared.len;
        }
        let _flush = (!from_writeback).then(|| inode.lock_flush());
        finish(&Finish { inode, time, exact_size, from_writeback, claim, end }, mine)?;
    }
    Ok(())
}

/// Takes space for one file's pieces.
fn place(engine: &Engine, item: &Install<'_>) -> Result<(Vec<Placed>, Unpacked), FsError> {
    let sector = u64::from(engine.sectorsize());
    let mut placed = Vec::with_capacity(item.prepared.pieces.len());
    let mut unpacked = Vec::new();
    for piece in &item.prepared.pieces {
        let mut plain = None;
        match &piece.body {
            Body::Inline { compression, data } => {
                let kind = PlacedKind::Inline { compression: *compression, data: data.clone() };
                placed.push(Placed { at: piece.at, len: piece.len, kind, csums: Vec::new() });
            }
            Body::Compressed { compression, data, ram_len, skip } => {
                let packed = Packed { compression: *compression, ram_len: *ram_len, skip: *skip };
                let len = ByteLen(data.len() as u64);
                match take_space(engine, item.promise, DataWant { min_len: len, ..want(item.inode, len.0) }) {
                    Ok(grant) => {
                        let kind = PlacedKind::Disk { grant, disk_len: len.0, packed: Some(packed) };
                        placed.push(Placed { at: piece.at, len: piece.len, kind, csums: piece.csums.clone() });
                    }
                    Err(TxnError::NoSpace { .. }) if len.0 > sector => {
                        let bytes = unpack(piece, &packed, data, engine.sectorsize())?;
                        let mut csums = Vec::new();
                        if !piece.csums.is_empty() {
                            engine.csum_type().csum_sectors(&bytes, engine.sectorsize(), &mut csums);
                        }
                        place_plain(item, piece, &csums, &mut placed)?;
                        plain = Some(bytes);
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            Body::Plain { .. } => place_plain(item, piece, &piece.csums, &mut placed)?,
        }
        unpacked.push(plain);
    }
    Ok((placed, unpacked))
}

/// The plain bytes of a compressed piece.
fn unpack(piece: &DataPiece, packed: &Packed, data: &[u8], sectorsize: u32) -> Result<Vec<u8>, FsError> {
    let broken =
        |e: &dyn std::fmt::Display| FsError::corrupt("compressed data", piece.at, "stream", e, "what was compressed");
    let mut bytes =
        decompress(packed.compression, data, packed.ram_len as usize, sectorsize).map_err(|e| broken(&e))?;
    bytes.drain(..packed.skip as usize);
    bytes.truncate(piece.len as usize);
    Ok(bytes)
}

pub(super) fn take_space(
    engine: &Engine,
    promise: Option<&DataReservation>,
    want: DataWant,
) -> Result<Grant, TxnError> {
    match promise {
        Some(promise) => engine.alloc_data_from(promise, want),
        None => engine.alloc_data(want),
    }
}

/// What one extent of a file wants.
pub(super) fn want(inode: &Inode, len: u64) -> DataWant {
    let sector = inode.core().engine().sectorsize();
    let (stream, directory) = (inode.ino().0, inode.directory().0);
    DataWant { len: ByteLen(len), min_len: ByteLen(u64::from(sector)), stream, directory }
}

/// Puts the item of one plain extent that has been written at `at`, out of the inode's write-back. The bytes under
/// write-back end at `end`; the `flush` lock is held.
pub(super) fn finish_plain(inode: &Arc<Inode>, at: u64, grant: Grant, csums: Vec<u8>, end: u64) -> Result<(), FsError> {
    let len = grant.run().len.0;
    let kind = PlacedKind::Disk { grant, disk_len: len, packed: None };
    let place = Placed { at, len, kind, csums };
    let claim = Claim::Promised;
    finish(&Finish { inode, time: None, exact_size: None, from_writeback: true, claim, end }, vec![place])
}

fn place_plain(item: &Install<'_>, piece: &DataPiece, csums: &[u8], placed: &mut Vec<Placed>) -> Result<(), FsError> {
    let engine = item.inode.core().engine();
    let sector = u64::from(engine.sectorsize());
    let csum_len = if csums.is_empty() { 0 } else { engine.csum_type().csum_len() };
    let mut done = 0;
    while done < piece.len {
        let grant = take_space(engine, item.promise, want(item.inode, piece.len - done))?;
        let len = grant.run().len.0;
        let sums = (done / sector) as usize * csum_len..((done + len) / sector) as usize * csum_len;
        let kind = PlacedKind::Disk { grant, disk_len: len, packed: None };
        placed.push(Placed { at: piece.at + done, len, kind, csums: csums[sums].to_vec() });
        done += len;
    }
    Ok(())
}

/// What is to be written of one file, and where.
fn copies_of<'a>(
    prepared: &'a Prepared<'_>,
    placed: &[Placed],
    unpacked: &'a [Option<Vec<u8>>],
    parts: &mut Vec<(Logical, &'a [u8])>,
) {
    let mut pieces = prepared.pieces.iter().zip(unpacked).peekable();
    for place in placed {
        let PlacedKind::Disk { grant, disk_len, .. } = &place.kind else { continue };
        while pieces.peek().is_some_and(|(p, _)| p.at + p.len <= place.at) {
            pieces.next();
        }
        let Some((piece, plain)) = pieces.peek() else { return };
        let skip = place.at - piece.at;
        let mut to = grant.run().start;
        let mut push = |bytes: &'a [u8]| {
            parts.push((to, bytes));
            to += ByteLen(bytes.len() as u64);
        };
        match plain {
            Some(plain) => push(&plain[skip as usize..(skip + disk_len) as usize]),
            None => prepared.disk_bytes(piece, skip, *disk_len, push),
        }
    }
}

/// Puts the items of one file, its `flush` lock held.
fn finish(item: &Finish<'_>, placed: Vec<Placed>) -> Result<(), FsError> {
    let engine = item.inode.core().engine();
    let mut rest = VecDeque::from(placed);
    let mut group_max = EXTENTS_PER_JOIN;
    // Each round takes at least one extent, but for the one that finds that groups are too large.
    while !rest.is_empty() {
        let group = rest.len().min(group_max);
        let mut old = 0u32;
        let mut inline_len = 0;
        for place in rest.iter().take(group) {
            old = old.saturating_add(count_items(item.inode, place.at, place.at + place.len, u32::MAX)?);
            inline_len += if let PlacedKind::Inline { data, .. } = &place.kind { data.len() } else { 0 };
        }
        // Each may split an extent, and on volumes whose holes have items have a hole in front.
        let mut need = need_of(group * 2, old);
        need.bytes += inline_len as u32;
        need.claim = item.claim;
        let handle = match item.claim {
            Claim::Release | Claim::Reclaim => item.inode.core().join_to_release(item.inode.subvol(), need)?,
            Claim::Ordinary | Claim::Promised => match engine.join(need) {
                Err(TxnError::NoSpace { .. }) if group > 1 => {
                    group_max = 1;
                    continue;
                }
                other => other?,
            },
        };
        finish_group(item, rest.drain(..group).collect(), &handle)?;
    }
    Ok(())
}

/// Places at which such a change rewrites blocks: the inode item, and both ends of what changes.
const PLACES: u32 = 3;

/// What putting `new` extents over `old` ones may need: with the inode item, a hole in front, and what splitting the extents
/// at both ends leaves.
pub(super) fn need_of(new: usize, old: u32) -> Need {
    let new = u32::try_from(new).unwrap_or(u32::MAX / 256).saturating_add(if old > 0 { 3 } else { 1 });
    let items = new.saturating_add(old).saturating_add(1);
    Need {
        items,
        // All but the inode item are neighbours.
        row: items.saturating_sub(PLACES),
        bytes: new.saturating_mul(EXTENT_ITEM_BYTES),
        ..Need::default()
    }
}

/// How many items the map has in a range, as far as `max`.
pub(super) fn count_items(inode: &Inode, from: u64, to: u64, max: u32) -> Result<u32, FsError> {
    let guard = inode.read();
    let sector = u64::from(inode.core().engine().sectorsize());
    let mut count = 0u32;
    map::walk(&MapOf { items: &guard, sector }, from, to, |_, _, _| {
        count += 1;
        Ok(if count < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(count)
}

fn finish_group(item: &Finish<'_>, group: Vec<Placed>, handle: &Handle<'_>) -> Result<(), FsError> {
    let core = item.inode.core();
    let engine = core.engine();
    let sector = u64::from(engine.sectorsize());
    let generation = handle.generation();
    let no_holes = engine.features().no_holes();
    let mut guard = item.inode.write();
    guard.alive()?;
    let ranges: Vec<Range<u64>> = group.iter().map(|p| p.at..p.at + p.len).collect();
    let mut reached = guard.fields().size.next_multiple_of(sector);
    let mut items = MapMutOf { guard: &mut guard, handle, sector };
    let (freed, added) = core.poison_on_error(|| {
        let (mut freed, mut added) = (0, 0);
        for place in group {
            if !no_holes && place.at > reached {
                map::fill_gaps(&mut items, reached, place.at, generation)?;
            }
            let end = (place.at + place.len).next_multiple_of(sector);
            reached = reached.max(end);
            freed += map::drop_range(&mut items, place.at, end)?;
            let (at, extent) = extent_of(place, handle, item.inode);
            added += extent.counted();
            items.put(at, extent);
        }
        Ok((freed, added))
    })?;
    let end = ranges.last().map_or(0, |last| last.end).min(item.end);
    if item.time.is_some() {
        item.inode.data.take_touched();
    }
    let time = item.time.or_else(|| item.inode.data.touched().filter(|_| item.from_writeback));
    let fields = guard.fields_mut(handle);
    fields.nbytes = fields.nbytes.saturating_sub(freed).saturating_add(added);
    fields.size = item.exact_size.unwrap_or(fields.size.max(end));
    if let Some(time) = time {
        fields.mtime = time;
        // Something else may have changed since it was written.
        fields.ctime = fields.ctime.max(time);
        fields.sequence = fields.sequence.wrapping_add(1);
    }
    let mut slot = item.inode.data.buffer.lock();
    if let Some(buffer) = &mut *slot {
        let before = buffer.weight();
        let pieces = if item.from_writeback { Arc::make_mut(&mut buffer.writeback) } else { &mut buffer.dirty };
        ranges.into_iter().for_each(|range| pieces.cut(range));
        core.data.count(before, buffer.weight());
    }
    Ok(())
}

/// The extent for a placed piece, whose space becomes a new extent with it.
fn extent_of(place: Placed, handle: &Handle<'_>, inode: &Inode) -> (u64, Extent) {
    let (engine, generation) = (inode.core().engine(), handle.generation());
    let at = place.at;
    match place.kind {
        PlacedKind::Inline { compression, data } => {
            require(engine, compression);
            (at, Extent::Inline { generation, ram_len: place.len, compression, data })
        }
        PlacedKind::Disk { grant, disk_len, packed } => {
            let len = place.len;
            let plain = Packed { compression: Compression::None, ram_len: len, skip: 0 };
            let Packed { compression, ram_len, skip } = packed.unwrap_or(plain);
            require(engine, compression);
            let disk = grant.run().start;
            handle.record_new_extent(grant, inode.tree());
            handle.add_csums(disk, place.csums);
            let prealloc = false;
            (at, Extent::Span(Span { generation, disk, disk_len, ram_len, offset: skip, len, compression, prealloc }))
        }
    }
}

/// Notes in the superblock what a reader has to understand.
fn require(engine: &Engine, compression: Compression) {
    match compression {
        Compression::Lzo => engine.require_incompat(Incompat::COMPRESS_LZO),
        Compression::Zstd => engine.require_incompat(Incompat::COMPRESS_ZSTD),
        Compression::None | Compression::Zlib => {}
    }
}
