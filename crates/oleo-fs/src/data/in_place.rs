//! Writing into space that a file has already: preallocated extents, and any extent of a file that is not copied on write.
//!
//! That is allowed only if nobody else can see the extent. It belongs to this file alone if
//! - it was made after the last snapshot of the subvolume: then no snapshot shares the leaf that names it;
//! - all references to it in the extent tree are this file's, and put it in one place of the file: parts of it do not overlap;
//! - it has not been cloned in a transaction that the extent tree does not show yet (`Shared::cloned`);
//! - it is not on its way to another place (`Engine::is_open_place`).
//!
//! Bytes that can be read are not overwritten where the chunk has parity: a crash may leave the new bytes of one device beside the
//! old parity of another, and with a third device lost neither the old nor the new bytes of its own can be had. Preallocated space has no
//! bytes to lose.
//!
//! Otherwise the data is written elsewhere, which is always correct.
//!
//! The result of the test stays valid until the data is written: the caller holds addresses meanwhile
//! (`Engine::hold_addresses`), and a snapshot is taken only while nobody does.
//!
//! Normal path, within a flush: (1) `places` finds the parts of a run that can be written in place; (2) `overwrite` writes the
//! data, then joins and turns preallocated parts into regular ones with their checksums.
//! Crash: a preallocated part that was written still reads as zeros, since its item says so; a file without copy-on-write has
//! the old or the new bytes, sector by sector: that is what no copy-on-write means.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use oleo_format::{ByteLen, Compression, Generation, InodeFlags, Logical};
use oleo_space::RefKey;
use oleo_txn::{Claim, Need};

use crate::FsError;
use crate::data::buffer::Buffer;
use crate::data::items::{MapMutOf, MapOf};
use crate::data::map::{self, Extent, ExtentMapMut, Span};
use crate::data::prepare::Policy;
use crate::object::{Core, Inode, Items, ItemsMut, ReadGuard};

/// A part of a run that can be written in place.
pub(super) struct Place {
    /// The part of the file, whole sectors.
    pub range: Range<u64>,
    /// The part of the extent.
    pub span: Span,
}

impl Buffer {
    /// How many bytes of a place a write would newly touch and find free: a preallocated part that is being written out is preallocated
    /// no more when that is done.
    pub(super) fn placed_by(&self, place: &Place, sector: u64) -> u64 {
        let is_free = |at: &u64| match place.span.prealloc {
            true => self.is_untouched(*at, sector),
            false => self.dirty.sectors_missing(*at..*at + sector, sector) > 0,
        };
        place.range.clone().step_by(sector as usize).filter(is_free).count() as u64 * sector
    }
}

/// Whether a file with these flags may have parts that can.
pub(super) fn may_be(flags: u64) -> bool {
    InodeFlags::from_bits_retain(flags).intersects(InodeFlags::PREALLOC | InodeFlags::NODATACOW)
}

/// The parts of `range` that can be written in place, in order. They stay so as long as the caller, who has taken them before,
/// keeps addresses from changing (`Engine::hold_addresses`).
pub(super) fn places(inode: &Inode, guard: &ReadGuard<'_>, range: Range<u64>) -> Result<Vec<Place>, FsError> {
    if !may_be(guard.fields().flags) {
        return Ok(Vec::new());
    }
    let flags = InodeFlags::from_bits_retain(guard.fields().flags);
    let sector = u64::from(inode.core().engine().sectorsize());
    // Data with checksums is never overwritten: for a moment the two would not match.
    let no_cow = flags.contains(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
    let mut found = Vec::new();
    map::walk(&MapOf { items: guard, sector }, range.start, range.end, |at, range, extent| {
        if let Extent::Span(s) = extent
            && (s.prealloc || (no_cow && !has_parity(inode, s.disk)))
            && s.compression == Compression::None
        {
            let span = s.slice(range.start - at, range.end - range.start);
            found.push(Place { range, span });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let last_snapshot = last_snapshot(inode)?;
    // Parts of one extent follow each other: ask once for all of them.
    let mut known: Option<(Logical, u64, bool)> = None;
    let mut ours = Vec::with_capacity(found.len());
    for place in found {
        let (at, base) = (place.span.disk, place.range.start.wrapping_sub(place.span.offset));
        let exclusive = match known {
            Some((extent, of, answer)) if extent == at && of == base => answer,
            _ => {
                let open = inode.core().engine().is_open_place(at);
                open && place.span.generation > last_snapshot && is_ours(inode, at, base)?
            }
        };
        known = Some((at, base, exclusive));
        if exclusive {
            ours.push(place);
        }
    }
    Ok(ours)
}

/// Whether an extent lies in a chunk with parity.
fn has_parity(inode: &Inode, extent: Logical) -> bool {
    inode.core().engine().volume().chunk_of(extent).is_ok_and(|chunk| chunk.profile.has_parity())
}

/// The transaction of the subvolume's last snapshot.
fn last_snapshot(inode: &Inode) -> Result<Generation, FsError> {
    let item = inode.core().engine().root_item(inode.tree())?;
    Ok(Generation(item.map_or(u64::MAX, |i| i.last_snapshot.get())))
}

impl Core {
    /// Whether an extent gained a user in a transaction that is not on disk yet: its records do not show that.
    pub(crate) fn was_cloned(&self, extent: Logical) -> bool {
        self.data.was_cloned(extent, Generation(self.engine().super_block().generation.get()))
    }
}

/// Whether nobody but this file refers to the extent, and this file only in one place: `base` is the place in the file that the
/// beginning of the extent has, or would have.
fn is_ours(inode: &Inode, at: Logical, base: u64) -> Result<bool, FsError> {
    let core = inode.core();
    if core.was_cloned(at) {
        return Ok(false);
    }
    let users = core.engine().extent_users(at)?;
    let this = RefKey::DataRoot { root: inode.tree(), ino: inode.ino(), offset: base };
    Ok(users.iter().all(|user| *user == this))
}

/// Writes `data`, the bytes of `place` as far as the file goes, in place. The `flush` lock is held.
pub(super) fn overwrite(inode: &Arc<Inode>, place: &Place, data: &[u8], policy: &Policy) -> Result<(), FsError> {
    let engine = inode.core().engine();
    let sector = u64::from(engine.sectorsize());
    let whole = data.len() / sector as usize * sector as usize;
    let mut tail = data[whole..].to_vec();
    if !tail.is_empty() {
        tail.resize(sector as usize, 0);
    }
    let disk = place.span.disk_start();
    let mut csums = Vec::new();
    if let Some(csum) = policy.csum {
        csum.csum_sectors(&data[..whole], policy.sectorsize, &mut csums);
        csum.csum_sectors(&tail, policy.sectorsize, &mut csums);
    }
    let parts = [(disk, &data[..whole]), (disk + ByteLen(whole as u64), &tail[..])];
    let parts: Vec<_> = parts.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    engine.write_data(&parts)?;
    let written = place.range.start..place.range.start + (whole + tail.len()) as u64;
    let handle = engine.join(Need { items: 10, row: 6, bytes: 1024, claim: Claim::Promised })?;
    let mut guard = inode.write();
    guard.alive()?;
    if place.span.prealloc {
        let mut items = MapMutOf { guard: &mut guard, handle: &handle, sector };
        // `nbytes` stays: the same sectors are counted before and after.
        inode.core().poison_on_error(|| map::drop_range(&mut items, written.start, written.end))?;
        let span = place.span.slice(0, written.end - written.start);
        items.put(written.start, Extent::Span(Span { prealloc: false, generation: handle.generation(), ..span }));
        handle.add_csums(disk, csums);
    }
    let end = place.range.start + data.len() as u64;
    let time = inode.data.touched();
    let fields = guard.fields_mut(&handle);
    fields.size = fields.size.max(end);
    if let Some(time) = time {
        fields.touch(time);
    }
    if let Some(buffer) = &mut *inode.data.buffer.lock() {
        let before = buffer.weight();
        Arc::make_mut(&mut buffer.writeback).cut(written);
        inode.core().data.count(before, buffer.weight());
    }
    Ok(())
}
