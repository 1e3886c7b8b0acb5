//! Where a file's data is: extents as FIEMAP shows them, and the next data or hole.

use std::ops::{ControlFlow, Range};

use oleo_format::{Compression, ItemType, Logical};

use crate::FsError;
use crate::data::items::MapOf;
use crate::data::map::{self, Extent};
use crate::data::pieces;
use crate::object::{Direction, Inode, InodeFields, Items, ReadGuard};

/// Runs of buffered bytes that are compared with the extent map for a file's attributes.
const SHOWN_RUNS_MAX: usize = 64;

/// What a range of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Written, and not in the extent map yet.
    Delayed,
    /// In the item itself.
    Inline,
    /// On disk.
    Data,
    /// Has space, or is promised it, and reads as zeros.
    Unwritten,
}

/// One range of a file that is no hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentInfo {
    /// Where in the file it begins.
    pub at: u64,
    /// Bytes of the file.
    pub len: u64,
    /// What it is.
    pub kind: ExtentKind,
    /// Where it is; of a compressed extent the beginning of the whole extent. `None` unless it has space.
    pub disk: Option<Logical>,
    /// The beginning of the whole extent, which equals that of other parts of it.
    pub extent: Option<Logical>,
    /// How it is compressed.
    pub compression: Compression,
    /// Something else refers to the extent too: another file, or another part of this one. Sharing through a snapshot
    /// whose tree blocks are still shared is not seen here.
    pub shared: bool,
}

/// A run of bytes that may differ from zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataRun {
    /// Where in the file it is.
    pub range: Range<u64>,
    /// Chunks have its addresses. If not, none of it can be read.
    pub in_chunks: bool,
}

/// The extents that overlap a range, rising; neighbours that continue each other on disk are one.
pub(crate) fn extents(inode: &Inode, at: u64, len: u64) -> Result<Vec<ExtentInfo>, FsError> {
    let engine = inode.core().engine();
    let sector = u64::from(engine.sectorsize());
    let end = at.saturating_add(len);
    let mut found: Vec<ExtentInfo> = Vec::new();
    {
        let guard = inode.read();
        let (buffered, promised) = buffered_runs(inode, sector);
        let mut push = |range: Range<u64>, extent: &Extent, start: u64| {
            let mut info = describe(start, &range, extent);
            if let Some(i) = &mut info {
                i.at = range.start;
                i.len = range.end - range.start;
            }
            found.extend(info);
        };
        // Both rise.
        let mut first = 0;
        map::walk(&MapOf { items: &guard, sector }, at, end, |start, range, extent| {
            let mut pos = range.start;
            first += buffered[first..].iter().take_while(|run| run.end <= range.start).count();
            for run in buffered[first..].iter().take_while(|run| run.start < range.end) {
                if run.start > pos {
                    push(pos..run.start, extent, start);
                }
                pos = pos.max(run.end);
            }
            if pos < range.end {
                push(pos..range.end, extent, start);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let buffered = buffered.iter().map(|run| (run, ExtentKind::Delayed));
        let promised = promised.iter().map(|run| (run, ExtentKind::Unwritten));
        for (run, kind) in buffered.chain(promised).filter(|(r, _)| r.start < end && r.end > at) {
            let range = run.start.max(at)..run.end.min(end);
            found.push(ExtentInfo {
                at: range.start,
                len: range.end - range.start,
                kind,
                disk: None,
                extent: None,
                compression: Compression::None,
                shared: false,
            });
        }
    }
    found.sort_by_key(|i| i.at);
    for info in &mut found {
        if let Some(extent) = info.extent {
            info.shared = engine.extent_refs(extent)? > 1;
        }
    }
    Ok(merged(found))
}

/// The fields that users see, as [`FileData::show`](super::FileData::show), but for what is buffered over other space, on disk or
/// promised: that has been counted before.
pub(crate) fn shown(guard: &ReadGuard<'_>) -> InodeFields {
    let inode = guard.inode();
    let mut shown = inode.data.show(guard.fields());
    if shown.nbytes == guard.fields().nbytes {
        return shown;
    }
    let sector = u64::from(inode.core().engine().sectorsize());
    // If there are very many runs, the first of them are taken as a sample, and the number is nearly right. An error is reported by the
    // read that needs the block.
    let (runs, bytes, all_bytes, mut added, promised) = {
        let buffer = inode.data.buffer.lock();
        let Some(b) = &*buffer else { return shown };
        let (runs, bytes) = pieces::runs([&b.dirty, &b.writeback], sector, SHOWN_RUNS_MAX);
        let added: u64 = runs.iter().map(|run| b.unplaced.lacking(run)).sum();
        (runs, bytes, b.bytes(), added, b.unplaced.bytes())
    };
    if guard.extents_end() != Some(0) {
        for run in runs {
            let _ = map::walk(&MapOf { items: guard, sector }, run.start, run.end, |_, range, extent| {
                if !matches!(extent, Extent::Hole { .. }) {
                    added = added.saturating_sub(range.end - range.start);
                }
                Ok(ControlFlow::Continue(()))
            });
        }
    }
    if bytes < all_bytes {
        added = (u128::from(added) * u128::from(all_bytes) / u128::from(bytes.max(1))) as u64 / sector * sector;
    }
    shown.nbytes = guard.fields().nbytes.saturating_add(added).saturating_add(promised);
    shown
}

/// What is written, and what is preallocated beside it, and has no place yet.
fn buffered_runs(inode: &Inode, sector: u64) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let buffer = inode.data.buffer.lock();
    let Some(b) = &*buffer else { return Default::default() };
    let (runs, _) = pieces::runs([&b.dirty, &b.writeback], sector, usize::MAX);
    let mut promised = Vec::new();
    let mut first = 0;
    for range in b.unplaced.ranges() {
        let mut pos = range.start;
        first += runs[first..].iter().take_while(|run| run.end <= range.start).count();
        for run in runs[first..].iter().take_while(|run| run.start < range.end) {
            if run.start > pos {
                promised.push(pos..run.start);
            }
            pos = pos.max(run.end);
        }
        if pos < range.end {
            promised.push(pos..range.end);
        }
    }
    (runs, promised)
}

/// What an item that begins at `start` says about `range`; `None` for holes.
fn describe(start: u64, range: &Range<u64>, extent: &Extent) -> Option<ExtentInfo> {
    let plain = |kind, compression| ExtentInfo {
        at: range.start,
        len: range.end - range.start,
        kind,
        disk: None,
        extent: None,
        compression,
        shared: false,
    };
    match extent {
        Extent::Hole { .. } => None,
        Extent::Inline { compression, .. } => Some(plain(ExtentKind::Inline, *compression)),
        Extent::Span(s) => {
            let kind = if s.prealloc { ExtentKind::Unwritten } else { ExtentKind::Data };
            let disk = if s.compression == Compression::None {
                Logical(s.disk_start().0 + (range.start - start))
            } else {
                s.disk
            };
            Some(ExtentInfo { disk: Some(disk), extent: Some(s.disk), ..plain(kind, s.compression) })
        }
    }
}

fn merged(found: Vec<ExtentInfo>) -> Vec<ExtentInfo> {
    let mut out: Vec<ExtentInfo> = Vec::with_capacity(found.len());
    for info in found {
        if let Some(last) = out.last_mut()
            && last.at + last.len == info.at
            && (last.kind, last.compression, last.shared) == (info.kind, info.compression, info.shared)
            && last.compression == Compression::None
            && matches!((last.disk, info.disk), (Some(a), Some(b)) if a.0 + last.len == b.0)
        {
            last.len += info.len;
        } else {
            out.push(info);
        }
    }
    out
}

/// The first byte at or after `at` that may differ from zero; `None` behind the last.
pub(crate) fn seek_data(inode: &Inode, at: u64) -> Result<Option<u64>, FsError> {
    let guard = inode.read();
    let sector = u64::from(inode.core().engine().sectorsize());
    let size = inode.data.shown(guard.fields());
    // Data begins and ends with a sector, as it will once it is on disk.
    let mut found = next_buffered(inode, at / sector * sector).map(|r| at.max(r.start / sector * sector));
    map::walk(&MapOf { items: &guard, sector }, at, size, |_, range, extent| {
        if !extent.has_data() {
            return Ok(ControlFlow::Continue(()));
        }
        found = Some(found.map_or(range.start, |f| f.min(range.start)));
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found.filter(|f| *f < size))
}

/// The first byte at or after `at` that is in a hole, or the end of the file; `None` behind the end.
pub(crate) fn seek_hole(inode: &Inode, at: u64) -> Result<Option<u64>, FsError> {
    let guard = inode.read();
    let sector = u64::from(inode.core().engine().sectorsize());
    let size = inode.data.shown(guard.fields());
    if at >= size {
        return Ok(None);
    }
    let mut pos = at;
    // Each round moves on, over buffered bytes or over extents.
    loop {
        let before = pos;
        if let Some(run) = next_buffered(inode, pos / sector * sector)
            && run.start / sector * sector <= pos
        {
            pos = run.end.next_multiple_of(sector);
        }
        map::walk(&MapOf { items: &guard, sector }, pos, size.max(pos), |_, range, extent| {
            if range.start > pos || !extent.has_data() {
                return Ok(ControlFlow::Break(()));
            }
            pos = range.end;
            Ok(ControlFlow::Continue(()))
        })?;
        if pos == before || pos >= size {
            return Ok(Some(pos.min(size)));
        }
    }
}

/// The first run at or after `at`; it may continue behind its end. An error of the map behind the run's beginning is left to the next call.
pub(crate) fn data_run(inode: &Inode, at: u64) -> Result<Option<DataRun>, FsError> {
    let guard = inode.read();
    let sector = u64::from(inode.core().engine().sectorsize());
    let size = inode.data.shown(guard.fields());
    let mut found: Option<DataRun> = None;
    let walked = map::walk(&MapOf { items: &guard, sector }, at, size, |start, range, extent| {
        if !extent.has_data() {
            return Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
        }
        let (end, in_chunks) = end_in_chunks(inode, start, &range, extent);
        match &mut found {
            None => found = Some(DataRun { range: range.start..end, in_chunks }),
            Some(run) if (run.range.end, run.in_chunks) == (range.start, in_chunks) => run.range.end = end,
            Some(_) => return Ok(ControlFlow::Break(())),
        }
        Ok(if end < range.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    if found.is_none() {
        walked?;
    }
    if let Some(buffered) = next_buffered(inode, at / sector * sector) {
        let range = at.max(buffered.start / sector * sector)..buffered.end.next_multiple_of(sector).min(size);
        match &mut found {
            Some(run) if run.range.start < range.start => run.range.end = run.range.end.min(range.start),
            _ if range.start < range.end => found = Some(DataRun { range, in_chunks: true }),
            _ => {}
        }
    }
    Ok(found)
}

/// Up to which byte of `range`, which is in an extent that begins at `start`, all addresses are in chunks or none is; and which.
fn end_in_chunks(inode: &Inode, start: u64, range: &Range<u64>, extent: &Extent) -> (u64, bool) {
    let Extent::Span(span) = extent else { return (range.end, true) };
    let volume = inode.core().engine().volume();
    if span.compression != Compression::None {
        return (range.end, volume.chunk_of(span.disk).is_ok());
    }
    let address = span.disk_start().0.saturating_add(range.start - start);
    let end_at = |end: u64| range.end.min(range.start.saturating_add(end - address));
    match volume.chunk_of(Logical(address)) {
        Ok(chunk) => (end_at(chunk.end().0), true),
        Err(_) => {
            let next = volume.chunks().iter().map(|chunk| chunk.start.0).filter(|&start| start > address).min();
            (next.map_or(range.end, end_at), false)
        }
    }
}

/// The next run of buffered bytes that ends behind `at`.
fn next_buffered(inode: &Inode, at: u64) -> Option<Range<u64>> {
    let buffer = inode.data.buffer.lock();
    let b = buffer.as_ref()?;
    match (b.dirty.next_run(at), b.writeback.next_run(at)) {
        (Some(d), Some(f)) => Some(if d.start <= f.start { d } else { f }),
        (d, f) => d.or(f),
    }
}

/// Where the extents of a file end as far as that is known without asking the tree, and where they do.
pub(super) fn extents_end(file: &Inode) -> Result<(Option<u64>, u64), FsError> {
    let sector = u64::from(file.core().engine().sectorsize());
    let guard = file.read();
    let mut last = None;
    guard.walk(ItemType::EXTENT_DATA, 0, u64::MAX, Direction::Down, &mut |at, item| {
        last = Some(Extent::parse(at, item, sector).map(|extent| at + extent.len(sector).max(1)));
        ControlFlow::Break(())
    })?;
    Ok((guard.state().extents_end, last.transpose()?.unwrap_or(0)))
}
