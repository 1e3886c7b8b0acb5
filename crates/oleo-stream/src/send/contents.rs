//! The contents of files: extents become clones, writes and holes.
//!
//! Normal path, for one file: (1) intervals come from a [`Sweep`] over both sides; (2) what is the same on both sides
//! is skipped: the same extent, or (sector by sector, by checksum and then by content) another one with the same bytes;
//! for compressed extents that is found only when they are read to be written; (3) of an extent that differs, parts
//! that the receiver has somewhere are cloned, the rest is written and entered in the [`Index`]; (4) adjacent clones or
//! writes are merged.
//!
//! The state of the receiver's file is tracked: its size, and that there is nothing beyond it. So a hole behind the old
//! data costs nothing, and one over old data is punched (from version 2 on), cut off, or written as zeros.
//!
//! A range can be cloned if it begins and ends at sectors, or ends where its source file ends. If the source continues,
//! a file's last sector is cloned whole, and the file is cut to its size at the end.

use std::ops::Range;
use std::sync::Arc;

use oleo_format::stream::{Command, EncodedCompression};
use oleo_format::{ByteLen, Compression, DiskExtent, Ino, Logical};
use oleo_fs::data::{PackedExtent, read_plain, unpack_inline};
use oleo_txn::{CsumCheck, Engine};

use super::SendError;
use super::index::{Index, Known, Place, Step};
use super::pipe::{Bytes, DataWrite, EncodedWrite, Part, Pipe};
use super::segments::{Body, Interval, Segment, Side, Sweep};
use super::sources::{Sources, Wanted};

/// The longest piece of work for one worker.
const WRITE_LEN_MAX: u64 = 1 << 20;
/// Bytes compared at a time.
const COMPARE_LEN: u64 = 1 << 20;
/// `FALLOC_FL_KEEP_SIZE` and `FALLOC_FL_PUNCH_HOLE` of `linux/falloc.h`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

/// How contents are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub version: u32,
    /// Compressed extents as they are stored.
    pub compressed: bool,
    /// Only which ranges changed.
    pub no_data: bool,
}

/// The file that is being sent.
pub(super) struct File {
    pub ino: u64,
    pub path: Arc<[u8]>,
    /// Length of the receiver's file before it is changed, in bytes.
    pub size_before: u64,
    pub size: u64,
    pub check: CsumCheck,
}

/// Commands that may still grow.
enum Pending {
    Clone { source: u16, ino: u64, from: u64, at: u64, len: u64 },
    Write { at: u64, parts: Vec<Part>, len: u64 },
    Zeros(Range<u64>),
}

/// Bytes that were not sent, by why.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Saved {
    pub cloned: u64,
    pub clones: u64,
    pub same: u64,
}

/// Sends the contents of files.
pub(super) struct Contents<'c, 'p, 'e> {
    pub engine: &'e Engine,
    pub pipe: &'c mut Pipe<'p>,
    pub sources: Sources<'e>,
    pub index: Index,
    pub form: Form,
    pub saved: Saved,
    /// Extents are looked for in the sources when they are met.
    pub ask: bool,
    sector: u64,
    sweep: Sweep,
    pending: Option<Pending>,
    file: Option<File>,
    /// The size of the receiver's file after the commands so far.
    size_now: u64,
    changed: bool,
}

impl<'c, 'p, 'e> Contents<'c, 'p, 'e> {
    pub fn new(
        engine: &'e Engine,
        pipe: &'c mut Pipe<'p>,
        sources: Sources<'e>,
        index: Index,
        form: Form,
    ) -> Contents<'c, 'p, 'e> {
        Contents {
            engine,
            pipe,
            sources,
            index,
            form,
            saved: Saved::default(),
            ask: true,
            sector: u64::from(engine.sectorsize()),
            sweep: Sweep::default(),
            pending: None,
            file: None,
            size_now: 0,
            changed: false,
        }
    }

    /// Begins a file. The receiver has its old contents, of `size_before` bytes.
    pub fn begin(&mut self, file: File) -> Result<(), SendError> {
        self.sweep = Sweep::default();
        self.size_now = file.size_before;
        self.changed = false;
        if file.size < file.size_before {
            self.truncate(&file.path, file.size)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// An extent item that differs.
    pub fn extent(&mut self, at: u64, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), SendError> {
        self.advance(at)?;
        for (side, item) in [(Side::Old, old), (Side::New, new)] {
            if let Some(item) = item
                && let Some(segment) = Segment::parse(at, item, self.sector)?
            {
                self.sweep.push(side, segment);
            }
        }
        Ok(())
    }

    /// Ends the file; whether its contents changed.
    pub fn end(&mut self) -> Result<bool, SendError> {
        self.advance(u64::MAX)?;
        if let Some(Pending::Zeros(range)) = &self.pending
            && let Some(file) = &self.file
            && range.end >= self.size_now.min(file.size)
        {
            // Nothing comes behind them: cut off, and then longer again.
            let start = range.start;
            let path = file.path.clone();
            self.pending = None;
            self.truncate(&path, start)?;
        }
        self.flush()?;
        let Some(file) = self.file.take() else { return Ok(false) };
        if self.size_now != file.size {
            self.truncate(&file.path, file.size)?;
        }
        Ok(self.changed)
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<(), SendError> {
        self.pipe.command(&Command::Truncate { path, size })?;
        self.size_now = size;
        self.changed = true;
        Ok(())
    }

    fn advance(&mut self, limit: u64) -> Result<(), SendError> {
        while let Some(interval) = self.sweep.next(limit) {
            self.interval(interval)?;
        }
        Ok(())
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("extents are told between the beginning and the end of a file")
    }

    fn interval(&mut self, interval: Interval) -> Result<(), SendError> {
        let Interval { range, mut old, new } = interval;
        let file = self.file();
        let size = file.size;
        // A file that became shorter was cut first: the receiver has nothing behind that.
        let cut = match size < file.size_before {
            true => size.checked_next_multiple_of(self.sector).unwrap_or(u64::MAX),
            false => u64::MAX,
        };
        if range.start < cut && cut < range.end {
            self.interval(Interval { range: range.start..cut, old: old.clone(), new: new.clone() })?;
            return self.interval(Interval { range: cut..range.end, old, new });
        }
        if range.start >= cut {
            old = None;
        }
        let within = range.start..range.end.min(size);
        match new {
            None => self.hole(range, old.as_ref()),
            Some(Segment { body: Body::Prealloc(_), .. }) => {
                let was = matches!(&old, Some(Segment { body: Body::Prealloc(_), .. }));
                if !was {
                    self.hole(range.clone(), old.as_ref())?;
                    self.preallocate(range)?;
                }
                Ok(())
            }
            Some(_) if within.is_empty() => Ok(()),
            Some(new) => match &new.body {
                Body::Data(now) => self.data(within, &new, now, old.as_ref()),
                Body::Inline { compression, ram_len, data } => {
                    let bytes = self.inline_bytes(*compression, data, *ram_len)?;
                    if let Some(Segment { body: Body::Inline { compression, ram_len, data }, .. }) = &old
                        && self.file().size_before == size
                        && self.inline_bytes(*compression, data, *ram_len)? == bytes
                    {
                        self.saved.same += within.end - within.start;
                        return Ok(());
                    }
                    if self.form.no_data {
                        return self.emit_range(within);
                    }
                    self.write_here(within, &bytes)
                }
                Body::Prealloc(_) => Ok(()),
            },
        }
    }

    fn inline_bytes(&self, compression: Compression, data: &[u8], len: u64) -> Result<Vec<u8>, SendError> {
        Ok(unpack_inline(Ino(self.file().ino), compression, data, len, self.engine.sectorsize())?)
    }

    /// Inline bytes; what is missing up to the end is zeros.
    fn write_here(&mut self, range: Range<u64>, bytes: &[u8]) -> Result<(), SendError> {
        self.changed = true;
        let mut here = bytes.get(range.start as usize..).unwrap_or_default().to_vec();
        here.resize((range.end - range.start) as usize, 0);
        let len = here.len() as u64;
        self.write(range.start, Part { bytes: Bytes::Here(here.into()), len, old: None })
    }

    /// Zeros, over something else that the parent may have.
    fn hole(&mut self, range: Range<u64>, old: Option<&Segment>) -> Result<(), SendError> {
        let had_data = !matches!(old, None | Some(Segment { body: Body::Prealloc(_), .. }));
        let file = self.file();
        // Beyond the receiver's size there is nothing except preallocated space.
        let end = match self.form.version {
            1 => range.end.min(file.size_before.min(file.size)),
            _ => range.end,
        };
        let range = range.start..end;
        if range.is_empty() || old.is_none() || (self.form.version < 2 && !had_data) {
            return Ok(());
        }
        if self.form.no_data {
            return self.emit_range(range);
        }
        self.changed = true;
        if self.form.version >= 2 {
            return self.fallocate(range, PUNCH_HOLE | KEEP_SIZE);
        }
        match &mut self.pending {
            Some(Pending::Zeros(zeros)) if zeros.end == range.start => {
                zeros.end = range.end;
                Ok(())
            }
            _ => self.replace_pending(Pending::Zeros(range)),
        }
    }

    fn preallocate(&mut self, range: Range<u64>) -> Result<(), SendError> {
        if self.form.version < 2 || self.form.no_data {
            return Ok(());
        }
        self.fallocate(range, KEEP_SIZE)
    }

    fn fallocate(&mut self, range: Range<u64>, mode: u32) -> Result<(), SendError> {
        self.flush()?;
        let (path, len) = (self.file().path.clone(), range.end - range.start);
        self.pipe.command(&Command::Fallocate { path: &path, mode, offset: range.start, len })
    }

    fn emit_range(&mut self, range: Range<u64>) -> Result<(), SendError> {
        self.changed = true;
        let (path, len) = (self.file().path.clone(), range.end - range.start);
        self.pipe.command(&Command::UpdateExtent { path: &path, offset: range.start, len })
    }

    /// A range of data.
    fn data(
        &mut self,
        range: Range<u64>,
        new: &Segment,
        now: &DiskExtent,
        old: Option<&Segment>,
    ) -> Result<(), SendError> {
        let inside = new.inside(now, range.start);
        if let Some(Segment { body: Body::Data(was), .. }) = old {
            let was_inside = old.map_or(0, |old| old.inside(was, range.start));
            if was.disk_bytenr == now.disk_bytenr && was_inside == inside {
                // The last sector may have more bytes now than before, or fewer: these are zeros.
                self.saved.same += range.end - range.start;
                return Ok(());
            }
            if was.compression == Compression::None && now.compression == Compression::None {
                if !self.form.no_data {
                    return self.compare(range, now, inside, Logical(was.disk_bytenr.0 + was_inside));
                }
            } else if self.file().check == CsumCheck::Verify {
                return self.differs_unless(range, now, inside, was, was_inside);
            }
        }
        self.differs(range, now, inside, None)
    }

    /// A range whose contents must be read to know whether they changed, since one side is compressed.
    fn differs_unless(
        &mut self,
        range: Range<u64>,
        now: &DiskExtent,
        inside: u64,
        was: &DiskExtent,
        was_inside: u64,
    ) -> Result<(), SendError> {
        let file = self.file();
        // The receiver has only a part of the sector in which the old file ended.
        let there = match file.size_before == file.size {
            true => range.end,
            false => (file.size_before / self.sector * self.sector).clamp(range.start, range.end),
        };
        if range.start < there {
            let old = bytes_of(was, was_inside, file.check);
            self.differs(range.start..there, now, inside, Some(&old))?;
        }
        if there < range.end {
            self.differs(there..range.end, now, inside + (there - range.start), None)?;
        }
        Ok(())
    }

    /// Passes over sectors whose contents did not change, though they are elsewhere now.
    fn compare(&mut self, range: Range<u64>, now: &DiskExtent, inside: u64, was: Logical) -> Result<(), SendError> {
        let mut at = range.start;
        while at < range.end {
            let len = COMPARE_LEN.min(range.end - at);
            let moved = at - range.start;
            let new_at = Logical(now.disk_bytenr.0 + inside + moved);
            let runs = self.equal_runs(Logical(was.0 + moved), new_at, at..at + len)?;
            for (run, equal) in runs {
                let inside = inside + (run.start - range.start);
                if equal {
                    self.saved.same += run.end - run.start;
                    self.enter(now, inside, &run);
                } else {
                    self.differs(run, now, inside, None)?;
                }
            }
            at += len;
        }
        Ok(())
    }

    /// A range of the file, in runs of sectors that have, or have not, the same contents at two places.
    fn equal_runs(&self, was: Logical, now: Logical, range: Range<u64>) -> Result<Vec<(Range<u64>, bool)>, SendError> {
        let different = vec![(range.clone(), false)];
        let file = self.file();
        let len = (range.end - range.start).next_multiple_of(self.sector);
        if file.check == CsumCheck::Skip {
            return Ok(different);
        }
        let sums = |at| self.engine.csums(at, ByteLen(len));
        let (Ok(was_sums), Ok(now_sums)) = (sums(was), sums(now)) else { return Ok(different) };
        let width = self.engine.csum_type().csum_len();
        let equal: Vec<bool> = was_sums.chunks(width).zip(now_sums.chunks(width)).map(|(a, b)| a == b).collect();
        if !equal.contains(&true) {
            return Ok(different);
        }
        let (mut a, mut b) = (vec![0; len as usize], vec![0; len as usize]);
        read_plain(self.engine, was, &mut a, file.check)?;
        read_plain(self.engine, now, &mut b, file.check)?;
        let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
        for (number, same_sum) in equal.into_iter().enumerate() {
            let (from, to) = (number * self.sector as usize, (number + 1) * self.sector as usize);
            let at = range.start + from as u64;
            let end = (at + self.sector).min(range.end);
            // The receiver has only a part of the sector in which the old file ended.
            let is_there = at + self.sector <= file.size_before || file.size_before == file.size;
            let same = same_sum && is_there && a[from..to] == b[from..to];
            match runs.last_mut() {
                Some((run, was_same)) if *was_same == same => run.end = end,
                _ => runs.push((at..end, same)),
            }
        }
        Ok(runs)
    }

    /// From now on the receiver has this range of an extent here.
    fn enter(&mut self, extent: &DiskExtent, inside: u64, range: &Range<u64>) {
        let at = extent.disk_bytenr;
        if self.index.is_full() && self.engine.extent_refs(at).is_ok_and(|refs| refs <= 1) {
            return;
        }
        let place = Place { source: 0, ino: self.file().ino, at: range.start };
        self.index.insert(at, Known { start: inside, end: inside + (range.end - range.start), place });
    }

    /// A range whose contents the receiver's file does not have, except where they equal `old`, which it has there.
    fn differs(
        &mut self,
        range: Range<u64>,
        extent: &DiskExtent,
        inside: u64,
        old: Option<&Bytes>,
    ) -> Result<(), SendError> {
        self.changed = true;
        if self.form.no_data {
            return self.emit_range(range);
        }
        let end_inside = inside + (range.end - range.start);
        let mut asked = !self.ask;
        let mut at = inside;
        while at < end_inside {
            let here = range.start + (at - inside);
            match self.index.step(extent.disk_bytenr, at, end_inside) {
                Step::Have { end, clone_end, place } => {
                    self.clone_from(here, end - at, clone_end - at, place)?;
                    at = end;
                }
                Step::Lack { .. } if !asked => {
                    asked = true;
                    self.sources.find(&mut self.index, &Wanted { extent, range: at..end_inside })?;
                }
                Step::Lack { end } => {
                    self.write_extent(here, extent, at..end, old.map(|old| old.after(at - inside)))?;
                    at = end;
                }
            }
        }
        self.enter(extent, inside, &range);
        Ok(())
    }

    fn write_extent(
        &mut self,
        at: u64,
        extent: &DiskExtent,
        inside: Range<u64>,
        old: Option<Bytes>,
    ) -> Result<(), SendError> {
        let len = inside.end - inside.start;
        let bytes = bytes_of(extent, inside.start, self.file().check);
        if self.form.compressed
            && extent.compression != Compression::None
            && extent.disk_num_bytes.0 <= len
            && let Some(compression) = EncodedCompression::number(extent.compression, self.engine.sectorsize())
        {
            self.flush()?;
            let file = self.file();
            let write = EncodedWrite {
                path: file.path.clone(),
                at,
                file_len: len,
                ram_len: extent.ram_bytes.0,
                skip: inside.start,
                compression,
                from: Bytes::Plain { at: extent.disk_bytenr, check: file.check },
                disk_len: extent.disk_num_bytes.0,
                plain: bytes,
                old,
            };
            self.pipe.encoded(write)?;
            self.size_now = self.size_now.max(at + len);
            return Ok(());
        }
        self.write(at, Part { bytes, len, old })
    }

    fn clone_from(&mut self, at: u64, len: u64, clone_len: u64, place: Place) -> Result<(), SendError> {
        self.saved.cloned += len;
        let me = self.file().ino;
        if let Some(Pending::Clone { source, ino, from, at: to, len: so_far }) = &mut self.pending
            && (*source, *ino) == (place.source, place.ino)
            && *from + *so_far == place.at
            && *to + *so_far == at
            // Within one file, source and target must not overlap.
            && !(*source == 0 && *ino == me && *from + *so_far + clone_len > *to)
        {
            *so_far += clone_len;
            return Ok(());
        }
        self.replace_pending(Pending::Clone {
            source: place.source,
            ino: place.ino,
            from: place.at,
            at,
            len: clone_len,
        })
    }

    fn write(&mut self, at: u64, part: Part) -> Result<(), SendError> {
        let (mut at, mut rest) = (at, part);
        while rest.len > 0 {
            let room = match &self.pending {
                Some(Pending::Write { at: from, len, .. }) if *from + *len == at && *len < WRITE_LEN_MAX => {
                    WRITE_LEN_MAX - *len
                }
                _ => {
                    self.replace_pending(Pending::Write { at, parts: Vec::new(), len: 0 })?;
                    WRITE_LEN_MAX
                }
            };
            let now = rest.len.min(room);
            let after = Part {
                bytes: rest.bytes.after(now),
                len: rest.len - now,
                old: rest.old.as_ref().map(|old| old.after(now)),
            };
            if let Some(Pending::Write { parts, len, .. }) = &mut self.pending {
                match parts.last_mut() {
                    Some(before) if before.goes_on(&rest.bytes, rest.old.as_ref()) => before.len += now,
                    _ => parts.push(Part { len: now, ..rest }),
                }
                *len += now;
            }
            (at, rest) = (at + now, after);
        }
        Ok(())
    }

    fn replace_pending(&mut self, next: Pending) -> Result<(), SendError> {
        self.flush()?;
        self.pending = Some(next);
        Ok(())
    }

    /// Sends the command that was held back.
    fn flush(&mut self) -> Result<(), SendError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let path = self.file().path.clone();
        match pending {
            Pending::Clone { source, ino, from, at, len } => {
                let source = &mut self.sources.list[usize::from(source)];
                let Some(clone_path) = source.paths.any(ino)? else {
                    return Err(oleo_format::Corruption::new("inode", "names", "none", "one at least")
                        .within(format!("inode {ino} of tree {}", source.root.tree))
                        .into());
                };
                self.saved.clones += 1;
                self.pipe.command(&Command::Clone {
                    path: &path,
                    offset: at,
                    len,
                    clone_uuid: source.uuid,
                    clone_ctransid: source.ctransid,
                    clone_path: &clone_path,
                    clone_offset: from,
                })?;
                self.size_now = self.size_now.max(at + len);
            }
            Pending::Write { at, parts, len } => {
                self.pipe.write(DataWrite { path, at, parts })?;
                self.size_now = self.size_now.max(at + len);
            }
            Pending::Zeros(range) => {
                let mut at = range.start;
                while at < range.end {
                    let len = WRITE_LEN_MAX.min(range.end - at);
                    self.pipe.write(DataWrite {
                        path: path.clone(),
                        at,
                        parts: vec![Part { bytes: Bytes::Zeros, len, old: None }],
                    })?;
                    at += len;
                }
                self.size_now = self.size_now.max(range.end);
            }
        }
        Ok(())
    }
}

/// The bytes of an extent from `inside` on.
fn bytes_of(extent: &DiskExtent, inside: u64, check: CsumCheck) -> Bytes {
    if extent.compression == Compression::None {
        return Bytes::Plain { at: Logical(extent.disk_bytenr.0.saturating_add(inside)), check };
    }
    let packed = PackedExtent {
        at: extent.disk_bytenr,
        disk_len: extent.disk_num_bytes.0,
        ram_len: extent.ram_bytes.0,
        compression: extent.compression,
    };
    Bytes::Packed { extent: packed, skip: inside, check }
}
