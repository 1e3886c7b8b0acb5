//! Sharing extents between files: clone and dedupe.
//!
//! Normal path of a clone, the `flush` locks of both files held (the lower number first) and nothing dirty: (1) the rules of the range
//! are checked; (2) the target's end is settled when the range begins behind it; (3) in steps, the extents of the source
//! are looked up, and put into the target clipped and moved, over whatever was there. Inline bytes have no
//! address to share: they are copied through the buffer. A dedupe compares the bytes first and changes neither size nor times.
//!
//! The source's extents cannot disappear between the look-up and the new items: a change of the source's map
//! waits for its `flush` lock, and the engine derives references from the items at the commit.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use oleo_format::{InodeFlags, TreeId};

use crate::FsError;
use crate::attributes::rules;
use crate::data::edges::Tail;
use crate::data::flush::Inline;
use crate::data::items::{MapMutOf, MapOf};
use crate::data::map::{self, Extent, ExtentMapMut};
use crate::data::pieces::BufferPieces;
use crate::data::{FILE_LEN_MAX, FlushGuard, install, read};
use crate::object::{Inode, Items, ItemsMut};

/// Extents that are cloned under one handle.
const STEP_EXTENTS: usize = 64;
/// Bytes that are compared at a time.
const COMPARE_LEN: u64 = 1 << 20;

/// A range of one file that becomes, or is compared with, a range of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CloneRange {
    /// Where it begins in the source; a multiple of the sector size.
    pub from: u64,
    /// Bytes; 0 is up to the source's end. Whole sectors, unless it ends at the source's end and at or behind the target's.
    pub len: u64,
    /// Where it begins in the target; a multiple of the sector size.
    pub to: u64,
}

/// What a dedupe found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dedupe {
    /// The bytes were equal and are shared now.
    Shared,
    /// The bytes differ; nothing was changed.
    Differs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Clone,
    Dedupe,
}

/// Makes a range of `dst` share the bytes of a range of `src`.
pub(crate) fn clone_range(src: &Arc<Inode>, dst: &Arc<Inode>, range: &CloneRange) -> Result<(), FsError> {
    dst.changeable(rules::change)?;
    let _locks = settle_both(src, dst)?;
    let len = checked_len(src, dst, range, Why::Clone)?;
    if len > 0 {
        share(src, dst, &CloneRange { len, ..*range }, Why::Clone)?;
    }
    dst.touch_now()
}

/// Makes a range of `dst` share a range of `src` if the bytes are equal.
pub(crate) fn dedupe_range(src: &Arc<Inode>, dst: &Arc<Inode>, range: &CloneRange) -> Result<Dedupe, FsError> {
    dst.changeable(rules::grow)?;
    let _locks = settle_both(src, dst)?;
    let len = checked_len(src, dst, range, Why::Dedupe)?;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < len {
        let n = (len - done).min(COMPARE_LEN);
        a.resize(n as usize, 0);
        b.resize(n as usize, 0);
        read::read_mapped(src, range.from + done, &mut a)?;
        read::read_mapped(dst, range.to + done, &mut b)?;
        if a != b {
            return Ok(Dedupe::Differs);
        }
        done += n;
    }
    if len > 0 {
        share(src, dst, &CloneRange { len, ..*range }, Why::Dedupe)?;
    }
    Ok(Dedupe::Shared)
}

/// Takes both `flush` locks, the lower number first, and writes out what is dirty.
fn settle_both<'a>(
    src: &'a Arc<Inode>,
    dst: &'a Arc<Inode>,
) -> Result<(FlushGuard<'a>, Option<FlushGuard<'a>>), FsError> {
    if Arc::ptr_eq(src, dst) {
        return Ok((src.settle()?, None));
    }
    let (first, second) = if src.rank() < dst.rank() { (src, dst) } else { (dst, src) };
    let first = first.settle()?;
    Ok((first, Some(second.settle()?)))
}

/// Checks the rules of FICLONERANGE and FIDEDUPERANGE and returns the length meant.
fn checked_len(src: &Inode, dst: &Inode, range: &CloneRange, why: Why) -> Result<u64, FsError> {
    let sector = u64::from(src.core().engine().sectorsize());
    // One after the other: a rename locks both, in their order.
    let a = *src.read().fields();
    let b = *dst.read().fields();
    let no_sum = InodeFlags::NODATASUM.bits();
    if a.flags & no_sum != b.flags & no_sum {
        return Err(FsError::Invalid("one file has checksums, the other has none"));
    }
    if a.kind() != crate::FileKind::File {
        return Err(FsError::Invalid("not a regular file"));
    }
    if !range.from.is_multiple_of(sector) || !range.to.is_multiple_of(sector) {
        return Err(FsError::Invalid("the range does not begin at a sector"));
    }
    let len = match (range.len, why) {
        (0, Why::Clone) => a.size.checked_sub(range.from).ok_or(FsError::Invalid("behind the end of the source"))?,
        (len, _) => len,
    };
    let from_end = range.from.checked_add(len).ok_or(FsError::Invalid("the range is too long"))?;
    let to_end = range.to.checked_add(len).filter(|end| *end <= FILE_LEN_MAX).ok_or(FsError::FileTooBig)?;
    if from_end > a.size {
        return Err(FsError::Invalid("the range ends behind the source's end"));
    }
    if why == Why::Dedupe && to_end > b.size {
        return Err(FsError::Invalid("the range ends behind the target's end"));
    }
    let to_the_end = from_end == a.size && (if why == Why::Dedupe { to_end == b.size } else { to_end >= b.size });
    if !len.is_multiple_of(sector) && !to_the_end {
        return Err(FsError::Invalid("the range does not end at a sector"));
    }
    let apart = range.from.next_multiple_of(sector) >= to_end.next_multiple_of(sector)
        || range.to >= from_end.next_multiple_of(sector);
    if std::ptr::eq(src, dst) && !apart {
        return Err(FsError::Invalid("the ranges overlap"));
    }
    Ok(len)
}

fn share(src: &Arc<Inode>, dst: &Arc<Inode>, range: &CloneRange, why: Why) -> Result<(), FsError> {
    let sector = u64::from(src.core().engine().sectorsize());
    if why == Why::Clone && range.to >= dst.read().fields().size {
        dst.settle_tail(range.to + range.len, Tail::Zero)?;
    }
    let end = (range.from + range.len).next_multiple_of(sector);
    let mut pos = range.from;
    // Each round clones at least one extent or reaches the end.
    while pos < end {
        dst.core().throttle_between_steps()?;
        // What was looked up is where it is until it has been named again.
        let addresses = src.core().engine().hold_addresses();
        let mut extents = Vec::new();
        let mut reached = end;
        let guard = src.read();
        map::walk(&MapOf { items: &guard, sector }, pos, end, |at, part, extent| {
            if extents.len() == STEP_EXTENTS {
                reached = part.start;
                return Ok(ControlFlow::Break(()));
            }
            extents.push((at, part, extent.clone()));
            Ok(ControlFlow::Continue(()))
        })?;
        drop(guard);
        if let Some((_, part, Extent::Inline { .. })) = extents.first() {
            reached = part.end.next_multiple_of(sector).min(end);
            drop(addresses);
            copy_inline(src, dst, range, why)?;
        } else {
            put_extents(src.tree(), dst, range, pos..reached, &extents, why)?;
        }
        pos = reached;
    }
    Ok(())
}

/// Copies the bytes of the source's inline extent.
fn copy_inline(src: &Arc<Inode>, dst: &Arc<Inode>, range: &CloneRange, why: Why) -> Result<(), FsError> {
    if why == Why::Dedupe {
        return Ok(()); // equal bytes, and nothing to share
    }
    let engine = src.core().engine();
    let sector = u64::from(engine.sectorsize());
    let mut bytes = vec![0; range.len.min(sector) as usize];
    read::read_mapped(src, range.from, &mut bytes)?;
    let small = range.to == 0 && range.len <= sector;
    let inline = if small { Inline::Allowed } else { Inline::Refused };
    dst.write_edge(range.to..range.to + sector, inline, |_, buffer| {
        let mut newer = BufferPieces::default();
        newer.write(range.to, &bytes);
        newer.put_under(std::mem::take(&mut buffer.dirty));
        buffer.dirty = newer;
    })
}

/// What extents take on disk, each once.
fn disk_bytes(extents: &[(u64, Range<u64>, Extent)]) -> u64 {
    let mut disk: Vec<_> = extents
        .iter()
        .filter_map(
            |(_, _, extent)| if let Extent::Span(span) = extent { Some((span.disk, span.disk_len)) } else { None },
        )
        .collect();
    disk.sort_unstable();
    disk.dedup_by_key(|(at, _)| *at);
    disk.iter().map(|(_, len)| *len).sum()
}

/// Puts what the source has at `part` into the target.
fn put_extents(
    src_tree: TreeId,
    dst: &Arc<Inode>,
    range: &CloneRange,
    part: Range<u64>,
    extents: &[(u64, Range<u64>, Extent)],
    why: Why,
) -> Result<(), FsError> {
    let engine = dst.core().engine();
    let sector = u64::from(engine.sectorsize());
    let moved = |at: u64| at - range.from + range.to;
    let old = install::count_items(dst, moved(part.start), moved(part.end), u32::MAX)?;
    // On volumes whose holes have items, each extent may have one in front.
    // The subvolume references already what it has.
    let gained = if src_tree == dst.tree() { 0 } else { disk_bytes(extents) };
    let handle =
        engine.join_with(dst.tree(), install::need_of(extents.len() * 2, old), gained, || Ok::<_, FsError>(()))?;
    let mut guard = dst.write();
    guard.alive()?;
    let size_end = guard.fields().size.next_multiple_of(sector);
    let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
    let (freed, added) = dst.core().poison_on_error(|| {
        let freed = map::drop_range(&mut items, moved(part.start), moved(part.end))?;
        let mut added = 0;
        for (at, clip, extent) in extents {
            if let Extent::Span(span) = extent {
                added += clip.end - clip.start;
                dst.core().data.note_clone(span.disk, handle.generation());
                let slice = span.slice(clip.start - at, clip.end - clip.start);
                items.put(moved(clip.start), Extent::Span(slice));
            }
        }
        if !engine.features().no_holes() {
            let from = size_end.min(moved(part.start));
            map::fill_gaps(&mut items, from, moved(part.end), handle.generation())?;
        }
        Ok((freed, added))
    })?;
    let fields = guard.fields_mut(&handle);
    fields.nbytes = fields.nbytes.saturating_sub(freed).saturating_add(added);
    if why == Why::Clone {
        fields.size = fields.size.max(moved(part.end).min(range.to + range.len));
        fields.changed(dst.data.time_of(dst.core().now()));
    }
    Ok(())
}
