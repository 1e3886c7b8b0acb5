//! Data that waits to be installed.
//!
//! A batch is the data of a run of commands. It is prepared on all cores and installed by a thread of its own
//! (`Installer`), batch after batch, while later commands are applied. Commands that need the data in place wait for it
//! ([`FsTarget::install_for`]), so the result is that of the stream's order.
//!
//! Memory: one batch is gathered, [`BATCHES_AHEAD`] wait, one is installed; each keeps the block that its bytes are in.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use oleo_format::stream::{Command, EncodedCompression};
use oleo_format::{Compression, Ino, decompress, decompress_inline};
use oleo_fs::data::{Compress, Encoded, Policy, Prepared, Stamp, Whole};
use oleo_fs::{FileKind, Fs, FsError, InodeRef};
use rayon::prelude::*;

use super::super::blocks::Buffer;
use super::super::{ApplyError, Item, Late, Wait};
use super::{FsTarget, Waiting, refused};

/// The longest piece that writes are merged into.
const PIECE_LEN_MAX: u64 = 32 << 20;
/// The most that one encoded write may be decoded to (`BTRFS_MAX_UNCOMPRESSED`).
const ENCODED_LEN_MAX: u64 = oleo_format::compress::EXTENT_LEN_MAX as u64;
/// Batches that wait to be installed.
const BATCHES_AHEAD: usize = 1;

/// Pieces in the order of the stream.
struct Batch {
    block: Arc<Buffer>,
    pieces: Vec<Piece>,
}

/// Bytes of a file. Places are in the batch's block.
struct Piece {
    file: InodeRef,
    policy: Policy,
    at: u64,
    len: u64,
    body: Body,
    /// Nothing was in the file before it.
    first: bool,
    /// The path of the command that it came from; see `position`.
    path: Range<usize>,
    position: u64,
}

enum Body {
    Plain(Vec<Range<usize>>),
    Packed(Range<usize>, Code),
}

/// How the data of an encoded write is encoded.
#[derive(Clone, Copy)]
struct Code {
    how: EncodedCompression,
    ram_len: u64,
    skip: u64,
    len: u64,
}

/// An encoded write.
#[derive(Clone, Copy)]
pub(in crate::receive) struct Packed<'s> {
    data: &'s [u8],
    code: Code,
}

impl Packed<'_> {
    /// The bytes of the file.
    pub fn unpack(&self, sectorsize: u32) -> Result<Vec<u8>, ApplyError> {
        let Code { how, ram_len, skip, len } = self.code;
        let (from, len, ram_len) = (skip as usize, len as usize, ram_len as usize);
        let broken = |e| refused(format!("the encoded data cannot be decoded: {e}"));
        let mut bytes = match how.kind {
            Compression::None => {
                let mut bytes = self.data.to_vec();
                bytes.resize(ram_len, 0);
                bytes
            }
            kind => {
                let sector = how.lzo_sectorsize.unwrap_or(sectorsize);
                // Data of an inline extent has LZO's other framing.
                if ram_len <= sector as usize && !self.data.len().is_multiple_of(sector as usize) {
                    decompress_inline(kind, self.data, ram_len, sector).map_err(broken)?
                } else {
                    decompress(kind, self.data, ram_len, sector).map_err(broken)?
                }
            }
        };
        bytes.drain(..from);
        bytes.truncate(len);
        Ok(bytes)
    }
}

impl Piece {
    /// Compresses and sums; `whole`: no other piece is for this file.
    fn prepare<'b>(&self, block: &'b Buffer, whole: bool) -> Result<Prepared<'b>, ApplyError> {
        let whole = if self.first && whole { Whole::File } else { Whole::Part };
        match &self.body {
            Body::Plain(parts) => {
                let parts = parts.iter().map(|part| block.part(part)).collect();
                Ok(Prepared::gathered(parts, self.at, whole, &self.policy))
            }
            Body::Packed(place, code) => {
                let data = block.part(place);
                let Code { how, ram_len, skip, len } = *code;
                let bytes = Packed { data, code: *code }.unpack(self.policy.sectorsize)?;
                let ours = how.lzo_sectorsize.is_none_or(|sector| sector == self.policy.sectorsize);
                let encoded = Encoded { data, compression: how.kind, ram_len, skip, len };
                let stored = if ours { Prepared::encoded(&encoded, self.at, whole, &self.policy) } else { None };
                Ok(stored.unwrap_or_else(|| {
                    let again = Some(Compress { algorithm: how.kind, level: 0, force: true });
                    let compress = again.filter(|_| self.policy.csum.is_some() && how.kind != Compression::None);
                    Prepared::new(bytes, self.at, whole, &Policy { compress, ..self.policy })
                }))
            }
        }
    }

    fn failed(&self, block: &Buffer, error: ApplyError) -> Late {
        let command = match self.body {
            Body::Plain(_) => "write",
            Body::Packed(..) => "encoded_write",
        };
        Late { position: self.position, command, path: block.part(&self.path).to_vec(), error }
    }
}

impl Batch {
    /// Adds plain bytes to the last piece, if they follow it.
    fn join(&mut self, file: &InodeRef, at: u64, place: &Range<usize>) -> bool {
        let Some(last) = self.pieces.last_mut() else { return false };
        let len = place.len() as u64;
        let follows = last.file.same(file) && last.at + last.len == at && last.len + len <= PIECE_LEN_MAX;
        match &mut last.body {
            Body::Plain(parts) if follows => {
                parts.push(place.clone());
                last.len += len;
                true
            }
            _ => false,
        }
    }

    /// Prepares on all cores and installs; what failed.
    fn install(&self, fs: &Fs) -> Vec<Late> {
        let mut pieces_of: HashMap<Ino, u32> = HashMap::new();
        for piece in &self.pieces {
            *pieces_of.entry(piece.file.ino()).or_default() += 1;
        }
        let prepared: Vec<_> = fs.engine().compute(|| {
            let one = |piece: &Piece| piece.prepare(&self.block, pieces_of[&piece.file.ino()] == 1);
            self.pieces.par_iter().map(one).collect()
        });
        let mut late = Vec::new();
        let mut ready = Vec::with_capacity(prepared.len());
        let mut first = None;
        for (piece, prepared) in self.pieces.iter().zip(prepared) {
            match prepared {
                Ok(prepared) => {
                    first.get_or_insert(piece);
                    ready.push((piece.file.clone(), prepared));
                }
                Err(error) => late.push(piece.failed(&self.block, error)),
            }
        }
        if let (Err(error), Some(first)) = (fs.install_many(&ready, Stamp::Keep), first) {
            late.push(first.failed(&self.block, error.into()));
            late.sort_by_key(|late| late.position);
        }
        late
    }
}

/// Installs batches in their order, on a thread of its own.
pub(super) struct Installer {
    /// None when there is to be no more.
    batches: Option<SyncSender<Batch>>,
    done: Receiver<Vec<Late>>,
    thread: Option<JoinHandle<()>>,
    /// The batch being gathered.
    next: Option<Batch>,
    /// How many batches were handed over, and how many of them are installed.
    begun: u64,
    ended: u64,
    /// Failures that were not reported yet.
    late: Vec<Late>,
}

impl Installer {
    pub fn new(fs: &Fs) -> Result<Installer, ApplyError> {
        let (batches, work) = sync_channel::<Batch>(BATCHES_AHEAD);
        let (results, done) = channel();
        let fs = fs.clone();
        let install = move || {
            // Ends with the channel.
            for batch in work {
                if results.send(batch.install(&fs)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("install".to_owned()).spawn(install);
        let thread = thread.map_err(|source| ApplyError::Host { what: "start a thread", source })?;
        let (batches, thread) = (Some(batches), Some(thread));
        Ok(Installer { batches, done, thread, next: None, begun: 0, ended: 0, late: Vec::new() })
    }

    /// The number of the batch that gathers from this block.
    fn number(&mut self, block: &Arc<Buffer>) -> u64 {
        self.batch(block);
        self.begun + 1
    }

    /// The batch being gathered, of this block.
    fn batch(&mut self, block: &Arc<Buffer>) -> &mut Batch {
        if self.next.as_ref().is_some_and(|batch| !Arc::ptr_eq(&batch.block, block)) {
            self.begin();
        }
        self.next.get_or_insert_with(|| Batch { block: block.clone(), pieces: Vec::new() })
    }

    /// Starts installing what was gathered.
    pub fn begin(&mut self) {
        let Some(batch) = self.next.take().filter(|batch| !batch.pieces.is_empty()) else { return };
        self.begun += 1;
        if self.batches.as_ref().is_none_or(|batches| batches.send(batch).is_err()) {
            self.fail();
        }
    }

    /// Takes the results that are ready.
    fn look(&mut self, wait: Wait) {
        while self.ended < self.begun {
            let done = match wait {
                Wait::Yes => self.done.recv().ok(),
                Wait::No => match self.done.try_recv() {
                    Err(std::sync::mpsc::TryRecvError::Empty) => return,
                    other => other.ok(),
                },
            };
            match done {
                Some(late) => self.late.extend(late),
                None => return self.fail(),
            }
            self.ended += 1;
        }
    }

    /// Whether a batch is installed.
    fn is_done(&mut self, number: u64) -> bool {
        self.look(Wait::No);
        number <= self.ended
    }

    /// Installs everything.
    pub fn finish(&mut self) {
        self.begin();
        self.look(Wait::Yes);
    }

    /// What failed, once.
    pub fn take_late(&mut self) -> Vec<Late> {
        std::mem::take(&mut self.late)
    }

    /// Whether there is a failure that was not reported yet.
    pub fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// The thread has ended early: it can only have panicked, and so does this one.
    fn fail(&mut self) {
        self.ended = self.begun;
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Installer {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic has reported itself.
            let _panicked = thread.join();
        }
    }
}

impl FsTarget {
    pub(super) fn write(&mut self, item: &Item<'_>, path: &[u8], offset: u64, data: &[u8]) -> Result<(), ApplyError> {
        let len = data.len() as u64;
        if len == 0 {
            return self.file(path).map(|_| ());
        }
        self.bytes += len;
        let Some(first) = self.room(item, path, offset, len)? else {
            self.install();
            return self.write_buffered(path, offset, data);
        };
        let place = item.block.place(data);
        let file = self.file(path)?.inode.clone();
        if !first && self.installer.batch(item.block).join(&file, offset, &place) {
            return Ok(());
        }
        self.push(item, path, offset..offset + len, Body::Plain(vec![place]), first)
    }

    /// Adds a piece for the current file.
    fn push(
        &mut self,
        item: &Item<'_>,
        path: &[u8],
        range: Range<u64>,
        body: Body,
        first: bool,
    ) -> Result<(), ApplyError> {
        let fs = self.fs.clone();
        let current = self.file(path)?;
        let policy = current.policy(&fs)?;
        let file = current.inode.clone();
        let (at, len) = (range.start, range.end - range.start);
        let (path, position) = (item.block.place(path), item.position);
        let batch = self.installer.batch(item.block);
        batch.pieces.push(Piece { file, policy, at, len, body, first, path, position });
        Ok(())
    }

    /// Makes the file long enough for bytes that can be installed; `Some`: whether they are the first in it. None: they
    /// begin or end inside a sector, and must go through the file's buffer.
    fn room(&mut self, item: &Item<'_>, path: &[u8], offset: u64, len: u64) -> Result<Option<bool>, ApplyError> {
        let sector = u64::from(self.fs.engine().sectorsize());
        let fs = self.fs.clone();
        let current = self.file(path)?;
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or(FsError::FileTooBig)?;
        if !offset.is_multiple_of(sector) || (!end.is_multiple_of(sector) && end < current.size) {
            return Ok(None);
        }
        if current.buffered {
            fs.flush(&current.inode)?;
            current.buffered = false;
        }
        let first = current.size == 0;
        current.size = current.size.max(end);
        let (ino, size) = (current.inode.ino(), current.size);
        let batch = self.installer.number(item.block);
        self.open()?.waiting.insert(ino, Waiting { size, batch });
        Ok(Some(first))
    }

    fn write_buffered(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<(), ApplyError> {
        let fs = self.fs.clone();
        let current = self.file(path)?;
        fs.write(&current.inode, offset, data)?;
        current.buffered = true;
        current.size = current.size.max(offset + data.len() as u64);
        Ok(())
    }

    pub(super) fn encoded_write(&mut self, item: &Item<'_>, path: &[u8]) -> Result<(), ApplyError> {
        let Command::EncodedWrite { offset, data, unencoded_file_len: len, .. } = item.command else {
            return Err(refused("not an encoded write"));
        };
        let packed = packed(&item.command)?;
        if len == 0 {
            return self.file(path).map(|_| ());
        }
        self.bytes += data.len() as u64;
        let Some(first) = self.room(item, path, offset, len)? else {
            self.install();
            let bytes = packed.unpack(self.fs.engine().sectorsize())?;
            return self.write_buffered(path, offset, &bytes);
        };
        self.push(item, path, offset..offset + len, Body::Packed(item.block.place(data), packed.code), first)
    }

    /// Has all data of this file in its place.
    pub(super) fn install_for(&mut self, file: &InodeRef) -> Result<(), ApplyError> {
        let open = self.open()?;
        if file.tree() != open.root.tree() {
            return Ok(());
        }
        let Some(waiting) = open.waiting.remove(&file.ino()) else { return Ok(()) };
        if !self.installer.is_done(waiting.batch) {
            self.install();
        }
        Ok(())
    }

    /// Has all data in its place. What failed is reported later.
    pub(super) fn install(&mut self) {
        self.installer.finish();
        if let Some(open) = &mut self.open {
            open.waiting.clear();
        }
    }

    /// Hands over what a run of commands wrote.
    pub(super) fn begin_install(&mut self) {
        self.installer.begin();
        let installer = &mut self.installer;
        if let Some(open) = &mut self.open {
            open.waiting.retain(|_, waiting| !installer.is_done(waiting.batch));
        }
    }
}

/// The bytes of an encoded write.
pub(crate) fn unpack(command: &Command<'_>) -> Result<Vec<u8>, ApplyError> {
    packed(command)?.unpack(SECTOR)
}

/// For data of no compression that depends on sectors.
const SECTOR: u32 = 4096;

/// Takes an encoded write apart and checks its numbers.
fn packed<'s>(command: &Command<'s>) -> Result<Packed<'s>, ApplyError> {
    let Command::EncodedWrite {
        unencoded_file_len: len,
        unencoded_len: ram_len,
        unencoded_offset: skip,
        compression,
        encryption,
        data,
        ..
    } = *command
    else {
        return Err(refused("not an encoded write"));
    };
    if encryption != 0 {
        return Err(refused(format!("encryption {encryption} is not supported")));
    }
    let how = EncodedCompression::from_number(compression).map_err(|e| refused(e.to_string()))?;
    if ram_len > ENCODED_LEN_MAX || data.len() as u64 > ENCODED_LEN_MAX {
        let what = format!("{} bytes that decode to {ram_len}: at most {ENCODED_LEN_MAX}", data.len());
        return Err(refused(what));
    }
    if skip.checked_add(len).is_none_or(|end| end > ram_len) {
        return Err(refused(format!("{len} bytes from {skip} on of {ram_len} decoded ones")));
    }
    if how.kind == Compression::None && data.len() as u64 > ram_len {
        return Err(refused(format!("{} uncompressed bytes that claim to be {ram_len}", data.len())));
    }
    Ok(Packed { data, code: Code { how, ram_len, skip, len } })
}

/// Only files have data.
pub(super) fn check_file(kind: FileKind) -> Result<(), ApplyError> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Dir => Err(FsError::IsDir.into()),
        _ => Err(FsError::Invalid("not a regular file").into()),
    }
}
