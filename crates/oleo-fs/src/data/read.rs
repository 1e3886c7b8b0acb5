//! Reading: buffered bytes over the extent map.
//!
//! Normal path: (1) `read` takes an engine reader and the inode's lock, copies out what is buffered and looks up the
//! extents of the rest (`plan`), and drops the lock; (2) `run` reads, verifies and decompresses the parts, large requests on
//! several threads; (3) the reader is dropped. The engine's reader keeps the space of every extent in the plan from
//! being used again, even if the file is overwritten and committed meanwhile.
//!
//! Bytes that no extent covers, holes and preallocated extents are zeros, and so is what the map has behind the size in
//! the inode item.
//! A compressed extent is always read whole. One that is needed in part only is kept for a while (`unpacked`).

use std::ops::{ControlFlow, Range};

use oleo_format::compress::DecompressError;
use oleo_format::{Compression, Ino, InodeFlags, Logical, decompress_inline};
use oleo_txn::{CsumCheck, Engine, TxnError};
use rayon::prelude::*;

use crate::FsError;
use crate::data::FILE_LEN_MAX;
use crate::data::items::MapOf;
use crate::data::map::{self, Extent, Span};
use crate::data::packed::PackedExtent;
use crate::object::{Inode, Items, ReadGuard};

/// Bytes that one task of a large read handles: enough to pay for handing it out.
const TASK_LEN: u64 = 1 << 20;

/// Where a range of the file comes from.
enum Source {
    Inline {
        compression: Compression,
        ram_len: u64,
        data: Box<[u8]>,
    },
    /// The extent, and the range within its part.
    Disk {
        at: Logical,
    },
    Packed {
        span: Span,
        skip: u64,
    },
}

/// A range of the file to be read; what is not in any is zeros.
struct Part {
    range: Range<u64>,
    source: Source,
}

/// What a read has to do once the lock is dropped.
struct Plan {
    parts: Vec<Part>,
    check: CsumCheck,
}

impl Plan {
    /// Zeroes what is not read from disk as it is; `out` stands for the file's bytes from `at` on.
    fn clear_rest(&self, at: u64, out: &mut [u8]) {
        let mut done = 0;
        for part in self.parts.iter().filter(|part| matches!(part.source, Source::Disk { .. })) {
            out[done..(part.range.start - at) as usize].fill(0);
            done = (part.range.end - at) as usize;
        }
        out[done..].fill(0);
    }
}

/// Times that a read starts over because checksums were missing: each time a commit went by between looking up the
/// extents and reading them. If they are really missing, the answer is the same every time.
const TRIES_MAX: usize = 8;

/// Reads from `at` on and returns how many bytes there were before the end of the file.
///
/// What is read may be overwritten meanwhile. Its space is not reused while the reader's guard lives, but its checksums
/// go with the commit: then the extents are looked up again.
pub(crate) fn read(inode: &Inode, at: u64, out: &mut [u8]) -> Result<usize, FsError> {
    for _ in 1..TRIES_MAX {
        match read_once(inode, at, out) {
            Err(FsError::Data { source, .. }) if matches!(*source, TxnError::NoChecksum(_)) => {}
            other => return other,
        }
    }
    read_once(inode, at, out)
}

fn read_once(inode: &Inode, at: u64, out: &mut [u8]) -> Result<usize, FsError> {
    let engine = inode.core().engine();
    let _reader = engine.reader();
    let (plan, len) = {
        let guard = inode.read();
        guard.alive()?;
        let buffer = inode.data.buffer.lock();
        let size = buffer.as_ref().map_or(guard.fields().size, |b| guard.fields().size.max(b.end()));
        let len = size.min(FILE_LEN_MAX).saturating_sub(at).min(out.len() as u64);
        let out = &mut out[..len as usize];
        let want = at..at + len;
        let mut gaps = Vec::new();
        match &*buffer {
            None => gaps.push(want),
            Some(b) => {
                for gap in b.dirty.missing(want) {
                    gaps.append(&mut b.writeback.missing(gap));
                }
            }
        }
        let plan = plan(&guard, &gaps)?;
        plan.clear_rest(at, out);
        if let Some(b) = &*buffer {
            b.writeback.read_over(at, out);
            b.dirty.read_over(at, out);
        }
        (plan, len as usize)
    };
    run(inode, &plan, at, &mut out[..len])?;
    Ok(len)
}

/// Reads what the extent map alone says; for the holder of the `flush` lock.
pub(super) fn read_mapped(inode: &Inode, at: u64, out: &mut [u8]) -> Result<(), FsError> {
    let _reader = inode.core().engine().reader();
    let range = at..at + out.len() as u64;
    let plan = plan(&inode.read(), std::slice::from_ref(&range))?;
    plan.clear_rest(at, out);
    run(inode, &plan, at, out)
}

/// The bytes of the file's inline extent, cut at the size in the inode item; `None` if it has none.
pub(super) fn inline_bytes(inode: &Inode) -> Result<Option<Vec<u8>>, FsError> {
    let guard = inode.read();
    let sector = inode.core().engine().sectorsize();
    let found = map::ExtentMap::last(&MapOf { items: &guard, sector: u64::from(sector) }, 0)?;
    let Some((_, Extent::Inline { ram_len, compression, data, .. })) = found else { return Ok(None) };
    let mut bytes = unpack_inline(inode.ino(), compression, &data, ram_len, sector)?;
    bytes.truncate(usize::try_from(guard.fields().size).unwrap_or(usize::MAX));
    Ok(Some(bytes))
}

/// Looks up the extents of some ranges, which rise.
fn plan(guard: &ReadGuard<'_>, ranges: &[Range<u64>]) -> Result<Plan, FsError> {
    let sector = u64::from(guard.inode().core().engine().sectorsize());
    let fields = guard.fields();
    let no_sum = InodeFlags::from_bits_retain(fields.flags).contains(InodeFlags::NODATASUM);
    let mut parts: Vec<Part> = Vec::new();
    for range in ranges {
        let end = range.end.min(fields.size);
        map::walk(&MapOf { items: guard, sector }, range.start, end, |at, range, extent| {
            match extent {
                Extent::Hole { .. } => {}
                Extent::Span(s) if s.prealloc => {}
                Extent::Span(s) if s.compression != Compression::None => {
                    let skip = range.start - at;
                    parts.push(Part { range, source: Source::Packed { span: *s, skip } });
                }
                Extent::Span(s) => {
                    let from = Logical(s.disk_start().0 + (range.start - at));
                    match parts.last_mut() {
                        Some(Part { range: last, source: Source::Disk { at } })
                            if last.end == range.start && at.0 + (last.end - last.start) == from.0 =>
                        {
                            last.end = range.end;
                        }
                        _ => parts.push(Part { range, source: Source::Disk { at: from } }),
                    }
                }
                Extent::Inline { ram_len, compression, data, .. } => {
                    let range = range.start..range.end.min(*ram_len);
                    if !range.is_empty() {
                        let (compression, data) = (*compression, data.clone());
                        parts.push(Part { range, source: Source::Inline { compression, ram_len: *ram_len, data } });
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    let skip = no_sum || guard.inode().core().opts.data.ignore_csums;
    Ok(Plan { parts, check: if skip { CsumCheck::Skip } else { CsumCheck::Verify } })
}

/// One part and the bytes it goes to.
struct Task<'a> {
    from: u64,
    source: &'a Source,
    /// How far into the part the bytes are.
    skip: u64,
    out: &'a mut [u8],
}

/// Does what is planned. `out` stands for the file's bytes from `at` on.
fn run(inode: &Inode, plan: &Plan, at: u64, out: &mut [u8]) -> Result<(), FsError> {
    let sector = u64::from(inode.core().engine().sectorsize());
    let mut tasks = Vec::with_capacity(plan.parts.len());
    let mut rest = out;
    let mut pos = at;
    for part in &plan.parts {
        let (_, tail) = rest.split_at_mut((part.range.start - pos) as usize);
        let (mut mine, tail) = tail.split_at_mut((part.range.end - part.range.start) as usize);
        (rest, pos) = (tail, part.range.end);
        let mut from = part.range.start;
        while !mine.is_empty() {
            // Long plain parts are cut at sectors, so that no sector is read twice.
            let cut = ((from / sector * sector) + TASK_LEN - from).min(mine.len() as u64);
            let cut = if matches!(part.source, Source::Disk { .. }) { cut as usize } else { mine.len() };
            let (head, tail) = std::mem::take(&mut mine).split_at_mut(cut);
            mine = tail;
            tasks.push(Task { from, source: &part.source, skip: from - part.range.start, out: head });
            from += cut as u64;
        }
    }
    let total: u64 = tasks.iter().map(|t| t.out.len() as u64).sum();
    if tasks.len() > 1 && total >= TASK_LEN && inode.core().opts.data.threads {
        let engine = inode.core().engine();
        engine.compute(|| tasks.into_par_iter().try_for_each(|task| run_one(inode, task, plan.check)))
    } else {
        tasks.into_iter().try_for_each(|task| run_one(inode, task, plan.check))
    }
}

fn run_one(inode: &Inode, task: Task<'_>, check: CsumCheck) -> Result<(), FsError> {
    let engine = inode.core().engine();
    let failed = |e: TxnError| unreadable(inode, task.from, e);
    match task.source {
        Source::Disk { at } => read_plain(engine, Logical(at.0 + task.skip), task.out, check).map_err(failed),
        Source::Inline { compression, ram_len, data } => {
            let bytes = unpack_inline(inode.ino(), *compression, data, *ram_len, engine.sectorsize())?;
            // The part begins where the range does: inline extents are at offset 0.
            let from = task.from as usize;
            task.out.copy_from_slice(&bytes[from..from + task.out.len()]);
            Ok(())
        }
        Source::Packed { span, skip } => read_packed(inode, span, *skip, task, check),
    }
}

/// Reads plain data; if it does not begin or end at a sector, through a sector in between.
///
/// # Errors
/// No copy can be read that matches its checksums.
pub fn read_plain(engine: &Engine, at: Logical, out: &mut [u8], check: CsumCheck) -> Result<(), TxnError> {
    let sector = u64::from(engine.sectorsize());
    let head_skip = at.0 % sector;
    let mut pos = at.0;
    let mut out = out;
    if head_skip != 0 || (out.len() as u64) < sector {
        let mut whole = vec![0; sector as usize];
        engine.read_data(Logical(pos - head_skip), &mut whole, check)?;
        let n = ((sector - head_skip) as usize).min(out.len());
        out[..n].copy_from_slice(&whole[head_skip as usize..head_skip as usize + n]);
        (out, pos) = (&mut out[n..], pos + n as u64);
    }
    let middle = out.len() / sector as usize * sector as usize;
    if middle > 0 {
        engine.read_data(Logical(pos), &mut out[..middle], check)?;
        (out, pos) = (&mut out[middle..], pos + middle as u64);
    }
    if !out.is_empty() {
        let mut whole = vec![0; sector as usize];
        engine.read_data(Logical(pos), &mut whole, check)?;
        let n = out.len();
        out.copy_from_slice(&whole[..n]);
    }
    Ok(())
}

fn read_packed(inode: &Inode, span: &Span, skip: u64, task: Task<'_>, check: CsumCheck) -> Result<(), FsError> {
    let from = span.offset + skip + task.skip;
    let whole = from == 0 && task.out.len() as u64 == span.ram_len;
    let engine = inode.core().engine();
    // After a read up to the last sector the extent is hardly read again soon.
    let to_the_end = from + task.out.len() as u64 + u64::from(engine.sectorsize()) > span.ram_len;
    let unpacked = &inode.core().data.unpacked;
    if let Some(kept) = unpacked.get(span)
        && let Some(bytes) = kept.get(from as usize..from as usize + task.out.len())
    {
        task.out.copy_from_slice(bytes);
        if to_the_end {
            unpacked.drop_one(span);
        }
        return Ok(());
    }
    let (at, compression) = (span.disk, span.compression);
    let extent = PackedExtent { at, disk_len: span.disk_len, ram_len: span.ram_len, compression };
    let failed = |e| match e {
        TxnError::Corrupt(corrupt) => FsError::Corruption(corrupt),
        e => unreadable(inode, task.from, e),
    };
    if whole {
        return extent.read_into(engine, check, task.out).map_err(failed);
    }
    let bytes = extent.read(engine, check).map_err(failed)?;
    task.out.copy_from_slice(&bytes[from as usize..from as usize + task.out.len()]);
    if !to_the_end {
        unpacked.keep(span, bytes.into());
    }
    Ok(())
}

/// The bytes of an inline extent, decompressed. The item was checked, its length is that of a tree block at most.
///
/// # Errors
/// It cannot be decompressed: the image is damaged, or this build is without that kind of compression.
pub fn unpack_inline(
    ino: Ino,
    compression: Compression,
    data: &[u8],
    ram_len: u64,
    sectorsize: u32,
) -> Result<Vec<u8>, FsError> {
    // The length was checked when the item was parsed.
    let len = ram_len as usize;
    if compression == Compression::None {
        let mut bytes = data.to_vec();
        bytes.resize(len, 0);
        return Ok(bytes);
    }
    decompress_inline(compression, data, len, sectorsize).map_err(|error| match error {
        DecompressError::FeatureOff(_) => TxnError::NotSupported(error.to_string()).into(),
        broken => FsError::corrupt("inline file extent", ino, "data", broken, "a stream that can be decompressed"),
    })
}

/// Data of a file could not be read at `at`.
fn unreadable(inode: &Inode, at: u64, source: TxnError) -> FsError {
    FsError::Data { tree: inode.tree(), ino: inode.ino(), at, source: Box::new(source) }
}
