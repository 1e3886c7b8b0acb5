//! Extents of the log, and the checksums of what they name.
//!
//! An extent that the extent tree knows gains a reference, one that it does not was claimed when the volume was opened and
//! is new in this transaction: both follow from the item that is put. Checksums are taken from the log only for data
//! that a replayed extent names and that has none yet; what the log brings must have all of its own, or it would be put
//! where nobody can read it.

use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{ByteLen, Compression, Incompat, InodeFlags, ItemType, Key, Logical};

use super::Replay;
use crate::FsError;
use crate::data::map::{self, Extent, ExtentMap, ExtentMapMut, Span};
use crate::data::{MAP_END, MapMutOf, MapOf};
use crate::object::{Inode, Items, ItemsMut};

/// Bytes of data whose checksums are looked at together.
const CSUM_STEP: u64 = 64 << 20;

impl Replay<'_> {
    /// What lies behind the last sector of the file goes.
    pub(super) fn cut(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let mut guard = inode.write();
        let from = guard.fields().size.next_multiple_of(self.sector);
        let mut items = MapMutOf { guard: &mut guard, handle: self.handle, sector: self.sector };
        let freed = map::make_hole(&mut items, from, MAP_END)?;
        let fields = guard.fields_mut(self.handle);
        fields.nbytes = fields.nbytes.saturating_sub(freed);
        Ok(())
    }

    /// Puts one logged extent over what was there.
    pub(super) fn extent(&mut self, inode: &Arc<Inode>, at: u64, item: &[u8]) -> Result<(), FsError> {
        let mut guard = inode.write();
        if guard.get(ItemType::EXTENT_DATA, at)?.is_some_and(|have| *have == *item) {
            return Ok(());
        }
        let extent = Extent::parse(at, item, self.sector)?;
        let (Extent::Inline { generation: made, .. }
        | Extent::Hole { generation: made, .. }
        | Extent::Span(Span { generation: made, .. })) = &extent;
        let now = self.handle.generation();
        if !(1..=now.0).contains(&made.0) {
            return Err(self.corrupt(
                inode.key(ItemType::EXTENT_DATA, at),
                "generation",
                made,
                format_args!("1 to {now}"),
            ));
        }
        let end = at.saturating_add(extent.len(self.sector).max(1)).next_multiple_of(self.sector);
        let mut items = MapMutOf { guard: &mut guard, handle: self.handle, sector: self.sector };
        let is_gap = self.no_holes && matches!(extent, Extent::Hole { .. });
        let freed = if is_gap { map::make_hole(&mut items, at, end)? } else { map::drop_range(&mut items, at, end)? };
        let added = extent.counted();
        if let Extent::Span(span) = &extent {
            let flags = InodeFlags::from_bits_retain(items.guard.fields().flags);
            if !span.prealloc && !flags.contains(InodeFlags::NODATASUM) {
                self.note_sums(span);
            }
        }
        match &extent {
            Extent::Span(Span { compression, .. }) | Extent::Inline { compression, .. } => self.require(*compression),
            Extent::Hole { .. } => {}
        }
        if !is_gap {
            items.put(at, extent);
        }
        let fields = guard.fields_mut(self.handle);
        fields.nbytes = fields.nbytes.saturating_sub(freed).saturating_add(added);
        Ok(())
    }

    fn require(&self, compression: Compression) {
        let engine = self.core.engine();
        match compression {
            Compression::Lzo => engine.require_incompat(Incompat::COMPRESS_LZO),
            Compression::Zstd => engine.require_incompat(Incompat::COMPRESS_ZSTD),
            Compression::None | Compression::Zlib => {}
        }
    }

    /// The data of an extent has checksums: of compressed ones the whole, of others the part that is named.
    fn note_sums(&mut self, span: &Span) {
        let (start, len) = match span.compression {
            Compression::None => (span.disk_start().0, span.len),
            _ => (span.disk.0, span.disk_len),
        };
        self.summed.add(start, start + len);
        // An extent that was preallocated may be committed, and data that was written into it since is not.
        if self.found.is_uncommitted(span.disk) || span.generation == self.handle.generation() {
            self.uncommitted.add(start, start + len);
        }
    }

    /// Step 4.
    pub(super) fn csums(&self) -> Result<(), FsError> {
        let engine = self.core.engine();
        let csum_len = engine.csum_type().csum_len();
        let mut cursor = self.blocks.cursor(&self.log.root);
        let mut more = cursor.seek(&Key::new(Key::EXTENT_CSUM, ItemType::EXTENT_CSUM, 0))?;
        while more && let Some((key, sums)) = cursor.current() {
            if key.objectid != Key::EXTENT_CSUM || key.item_type != ItemType::EXTENT_CSUM {
                break;
            }
            let len = (sums.len() / csum_len) as u64 * self.sector;
            for (from, to) in self.summed.within(key.offset, key.offset.saturating_add(len)) {
                let bytes = |at: u64| ((at - key.offset) / self.sector) as usize * csum_len;
                if let Some(part) = sums.get(bytes(from)..bytes(to)) {
                    self.handle.add_log_csums(engine, Logical(from), part)?;
                }
            }
            more = cursor.next()?;
        }
        for (start, end) in self.uncommitted.iter() {
            let mut at = start;
            while at < end {
                let step = CSUM_STEP.min(end - at);
                if !self.handle.has_csums(engine, Logical(at), ByteLen(step))? {
                    return Err(self.corrupt(format_args!("data at {at}"), "checksums", "some missing", "all"));
                }
                at += step;
            }
        }
        Ok(())
    }

    /// A file gets the flag for no checksums only while it is empty: then no data that it names by now has any.
    pub(super) fn no_csums(&self) -> Result<(), FsError> {
        let engine = self.core.engine();
        for ino in &self.unsummed {
            let Some(inode) = self.inode(oleo_format::Ino(*ino))? else { continue };
            let guard = inode.read();
            map::walk(&MapOf { items: &guard, sector: self.sector }, 0, MAP_END, |at, _, extent| {
                if let Extent::Span(span) = extent
                    && !span.prealloc
                    && self.handle.has_a_csum(engine, span.disk, ByteLen(span.disk_len))?
                {
                    let key = inode.key(ItemType::EXTENT_DATA, at);
                    return Err(self.corrupt(key, "inode flags", "no checksums", "as its data has some"));
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(())
    }

    /// On volumes whose holes have items, what has none by now is a hole.
    pub(super) fn fill_holes(&self) -> Result<(), FsError> {
        if self.no_holes {
            return Ok(());
        }
        for ino in &self.files {
            let Some(inode) = self.inode(oleo_format::Ino(*ino))? else { continue };
            let end = inode.read().fields().size.next_multiple_of(self.sector);
            if !has_gap(&MapOf { items: &inode.read(), sector: self.sector }, end)? {
                continue;
            }
            let mut guard = inode.write();
            let mut items = MapMutOf { guard: &mut guard, handle: self.handle, sector: self.sector };
            map::fill_gaps(&mut items, 0, end, self.handle.generation())?;
        }
        Ok(())
    }
}

/// Whether there is something in `0..end` that the map says nothing about.
fn has_gap(map: &impl ExtentMap, end: u64) -> Result<bool, FsError> {
    let mut pos = 0;
    map::walk(map, 0, end, |_, range, _| {
        if range.start > pos {
            return Ok(ControlFlow::Break(()));
        }
        pos = range.end;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(pos < end)
}
