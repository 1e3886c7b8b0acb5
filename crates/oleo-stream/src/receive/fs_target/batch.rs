//! Data that waits to be installed.

use std::borrow::Cow;
use std::collections::HashMap;

use oleo_format::stream::{Command, EncodedCompression};
use oleo_format::{Compression, Ino, decompress, decompress_inline};
use oleo_fs::data::{Compress, Encoded, Policy, Prepared, Stamp, Whole};
use oleo_fs::{FileKind, FsError, InodeRef};
use rayon::prelude::*;

use super::super::ApplyError;
use super::{FsTarget, refused};

/// The most that is put together to one piece.
const PIECE_LEN_MAX: u64 = 32 << 20;
/// The most that one encoded write may be decoded to (`BTRFS_MAX_UNCOMPRESSED`).
const ENCODED_LEN_MAX: u64 = oleo_format::compress::EXTENT_LEN_MAX as u64;

/// Pieces in the order of the stream.
#[derive(Default)]
pub(super) struct Batch<'s> {
    pieces: Vec<Piece<'s>>,
    /// Installing them failed.
    pub failed: bool,
    /// The command that the first of them came from.
    pub failed_at: usize,
}

struct Piece<'s> {
    file: InodeRef,
    policy: Policy,
    at: u64,
    len: u64,
    body: Body<'s>,
    /// Nothing was in the file before it.
    first: bool,
    /// Which command it came from.
    index: usize,
}

enum Body<'s> {
    Plain(Vec<&'s [u8]>),
    Packed(Packed<'s>),
}

/// An encoded write.
#[derive(Clone, Copy)]
pub(in crate::receive) struct Packed<'s> {
    data: &'s [u8],
    how: EncodedCompression,
    ram_len: u64,
    skip: u64,
    len: u64,
}

impl Packed<'_> {
    /// The bytes of the file.
    pub fn unpack(&self, sectorsize: u32) -> Result<Vec<u8>, ApplyError> {
        let (from, len, ram_len) = (self.skip as usize, self.len as usize, self.ram_len as usize);
        let broken = |e| refused(format!("the encoded data cannot be decoded: {e}"));
        let mut bytes = match self.how.kind {
            Compression::None => {
                let mut bytes = self.data.to_vec();
                bytes.resize(ram_len, 0);
                bytes
            }
            kind => {
                let sector = self.how.lzo_sectorsize.unwrap_or(sectorsize);
                // What came from an inline extent has LZO's other framing.
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

impl<'s> Batch<'s> {
    /// Adds plain bytes to the last piece, if they follow it.
    fn join(&mut self, file: &InodeRef, at: u64, data: &'s [u8]) -> bool {
        let Some(last) = self.pieces.last_mut() else { return false };
        let len = data.len() as u64;
        let follows = last.file.same(file) && last.at + last.len == at && last.len + len <= PIECE_LEN_MAX;
        match &mut last.body {
            Body::Plain(parts) if follows => {
                parts.push(data);
                last.len += len;
                true
            }
            _ => false,
        }
    }
}

impl Piece<'_> {
    /// Compresses and sums; `whole`: no other piece is for this file.
    fn prepare(&self, whole: bool) -> Result<Prepared<'_>, ApplyError> {
        let whole = if self.first && whole { Whole::File } else { Whole::Part };
        match &self.body {
            Body::Plain(parts) => {
                let data = if let [one] = parts[..] { Cow::Borrowed(one) } else { Cow::Owned(parts.concat()) };
                Ok(Prepared::new(data, self.at, whole, &self.policy))
            }
            Body::Packed(packed) => {
                let Packed { data, how, ram_len, skip, len } = *packed;
                let bytes = packed.unpack(self.policy.sectorsize)?;
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
}

impl FsTarget {
    pub(super) fn write<'s>(
        &mut self,
        batch: &mut Batch<'s>,
        path: &[u8],
        offset: u64,
        data: &'s [u8],
        index: usize,
    ) -> Result<(), ApplyError> {
        let len = data.len() as u64;
        if len == 0 {
            return self.file(path).map(|_| ());
        }
        self.bytes += len;
        let Some(first) = self.room(path, offset, len)? else {
            self.install(batch)?;
            return self.write_buffered(path, offset, data);
        };
        let (fs, current) = (self.fs.clone(), self.file(path)?);
        if !first && batch.join(&current.inode, offset, data) {
            return Ok(());
        }
        let policy = current.policy(&fs)?;
        let file = current.inode.clone();
        batch.pieces.push(Piece { file, policy, at: offset, len, body: Body::Plain(vec![data]), first, index });
        Ok(())
    }

    /// Makes the file long enough for bytes that can be installed; `Some`: whether they are the first in it. None: they
    /// begin or end inside a sector, and must go through the file's buffer.
    fn room(&mut self, path: &[u8], offset: u64, len: u64) -> Result<Option<bool>, ApplyError> {
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
        self.open()?.waiting.insert(ino, size);
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

    pub(super) fn encoded_write<'s>(
        &mut self,
        batch: &mut Batch<'s>,
        path: &[u8],
        command: &Command<'s>,
        index: usize,
    ) -> Result<(), ApplyError> {
        let Command::EncodedWrite { offset, data, unencoded_file_len: len, .. } = *command else {
            return Err(refused("not an encoded write"));
        };
        let packed = packed(command)?;
        if len == 0 {
            return self.file(path).map(|_| ());
        }
        self.bytes += data.len() as u64;
        let Some(first) = self.room(path, offset, len)? else {
            self.install(batch)?;
            let bytes = packed.unpack(self.fs.engine().sectorsize())?;
            return self.write_buffered(path, offset, &bytes);
        };
        let (fs, current) = (self.fs.clone(), self.file(path)?);
        let policy = current.policy(&fs)?;
        let file = current.inode.clone();
        batch.pieces.push(Piece { file, policy, at: offset, len, body: Body::Packed(packed), first, index });
        Ok(())
    }

    /// Installs what waits, if some of it is of this file.
    pub(super) fn install_for(&mut self, batch: &mut Batch<'_>, file: &InodeRef) -> Result<(), ApplyError> {
        let open = self.open()?;
        let waits = file.tree() == open.root.tree() && open.waiting.contains_key(&file.ino());
        if waits { self.install(batch) } else { Ok(()) }
    }

    /// Prepares on all cores and installs what waits.
    pub(super) fn install(&mut self, batch: &mut Batch<'_>) -> Result<(), ApplyError> {
        let pieces = std::mem::take(&mut batch.pieces);
        let Some(first) = pieces.first() else { return Ok(()) };
        (batch.failed, batch.failed_at) = (true, first.index);
        self.open()?.waiting.clear();
        let mut pieces_of: HashMap<Ino, u32> = HashMap::new();
        for piece in &pieces {
            *pieces_of.entry(piece.file.ino()).or_default() += 1;
        }
        let prepared: Vec<_> = self.fs.engine().compute(|| {
            let ready = pieces.par_iter().map(|piece| piece.prepare(pieces_of[&piece.file.ino()] == 1));
            ready.collect::<Result<_, _>>()
        })?;
        let all: Vec<_> = pieces.iter().zip(prepared).map(|(piece, ready)| (piece.file.clone(), ready)).collect();
        self.fs.install_many(&all, Stamp::Keep)?;
        batch.failed = false;
        Ok(())
    }
}

/// Takes an encoded write apart and checks its numbers.
pub(in crate::receive) fn packed<'s>(command: &Command<'s>) -> Result<Packed<'s>, ApplyError> {
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
        return Err(refused(format!("encryption {encryption}: there is none that can be received")));
    }
    let how = EncodedCompression::from_number(compression).map_err(|e| refused(e.to_string()))?;
    if ram_len > ENCODED_LEN_MAX || data.len() as u64 > ENCODED_LEN_MAX {
        let what = format!("{} bytes that stand for {ram_len}: at most {ENCODED_LEN_MAX}", data.len());
        return Err(refused(what));
    }
    if skip.checked_add(len).is_none_or(|end| end > ram_len) {
        return Err(refused(format!("{len} bytes from {skip} on of {ram_len} decoded ones")));
    }
    if how.kind == Compression::None && data.len() as u64 > ram_len {
        return Err(refused(format!("{} bytes that are not compressed stand for {ram_len}", data.len())));
    }
    Ok(Packed { data, how, ram_len, skip, len })
}

/// Only files have data.
pub(super) fn check_file(kind: FileKind) -> Result<(), ApplyError> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Dir => Err(FsError::IsDir.into()),
        _ => Err(FsError::Invalid("not a regular file").into()),
    }
}
