//! From bytes to what will be written: compressed pieces, padding, checksums. Pure computation, for any thread.
//!
//! Normal path: (1) the caller knows the [`Policy`] of the file; (2) [`Prepared::new`] cuts the bytes into pieces: one
//! inline piece for a small whole file, compressed ones of at most [`COMPRESSED_LEN_MAX`], plain ones of at most
//! [`EXTENT_LEN_MAX`] if compression is off or does not pay; (3) every sector that will be on disk gets its
//! checksum; (4) `install` allocates for the pieces in order and writes them.
//!
//! Invariants: pieces are in file order, do not overlap, begin and end at sector boundaries, and cover the bytes given. The
//! same bytes and policy give the same pieces whatever the number of threads.
//! Not here: where the bytes come from, addresses, items (`install`).

use std::borrow::Cow;
use std::ops::Range;

use oleo_format::{Compression, CsumType, compress, compress_inline, looks_compressible};
use rayon::prelude::*;

/// The most uncompressed bytes in one compressed extent (format: `BTRFS_MAX_UNCOMPRESSED`, 128 KiB).
pub(crate) const COMPRESSED_LEN_MAX: usize = 128 * 1024;
/// The most bytes in one extent (format: `BTRFS_MAX_EXTENT_SIZE`, 128 MiB).
pub(crate) const EXTENT_LEN_MAX: u64 = 128 << 20;
/// Bytes from which checksums of one piece are computed on several threads.
const PARALLEL_LEN_MIN: usize = 1 << 20;

/// Compression as asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compress {
    /// The algorithm; `None` compresses nothing.
    pub algorithm: Compression,
    /// Its level; 0 is its default.
    pub level: i32,
    /// Try even what does not look compressible.
    pub force: bool,
}

/// How the data of one file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Checksums to compute; `None` for files without.
    pub csum: Option<CsumType>,
    /// Compression, if any.
    pub compress: Option<Compress>,
    /// Files up to this many bytes go into their item, compressed or not.
    pub inline_max: u32,
    /// Compress and compute checksums on all cores.
    pub threads: bool,
}

/// Bytes of a file, ready to be written by `Fs::install_many`.
#[derive(Debug)]
pub struct Prepared<'a> {
    /// Where in the file the bytes begin; a multiple of the sector size.
    pub(crate) at: u64,
    /// How many bytes of the file they are.
    pub(crate) len: u64,
    /// The bytes given, as far as plain pieces still need them.
    data: Source<'a>,
    /// The last sector if plain data does not fill it, padded with zeros.
    tail: Option<Box<[u8]>>,
    pub(crate) pieces: Vec<DataPiece>,
}

/// Bytes, in one piece of memory or several.
#[derive(Debug)]
enum Source<'a> {
    One(Cow<'a, [u8]>),
    /// Whole sectors, but for the last one.
    Parts(Vec<&'a [u8]>),
}

impl Source<'_> {
    const NONE: Source<'static> = Source::One(Cow::Borrowed(&[]));

    fn len(&self) -> usize {
        match self {
            Source::One(bytes) => bytes.len(),
            Source::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Calls `each` with the bytes of a range, in order.
    fn slices<'s>(&'s self, range: Range<usize>, mut each: impl FnMut(&'s [u8])) {
        let parts: &[&'s [u8]] = match self {
            Source::One(bytes) => &[bytes],
            Source::Parts(parts) => parts,
        };
        let mut start = 0;
        for part in parts {
            let end = start + part.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                each(&part[from - start..to - start]);
            }
            start = end;
        }
    }
}

/// What will become one file extent, or several if space is fragmented.
#[derive(Debug)]
pub(crate) struct DataPiece {
    /// Where in the file it begins.
    pub at: u64,
    /// Bytes of the file it stands for: whole sectors, except for inline pieces.
    pub len: u64,
    pub body: Body,
    /// Checksums of the sectors on disk, in order; empty for inline pieces and files without checksums.
    pub csums: Vec<u8>,
}

/// The bytes of a piece.
#[derive(Debug)]
pub(crate) enum Body {
    /// Into the item.
    Inline { compression: Compression, data: Box<[u8]> },
    /// As they are: these bytes of `Prepared::data`, then the tail if they reach its end.
    Plain { from: usize, to: usize },
    /// Compressed, padded to whole sectors. The piece begins at `skip` of the `ram_len` bytes that this decompresses to.
    Compressed { compression: Compression, data: Box<[u8]>, ram_len: u64, skip: u64 },
}

/// Bytes that are compressed already, as an extent of another volume has them.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'d> {
    /// The compressed bytes.
    pub data: &'d [u8],
    /// How; LZO in the framing of this volume's sectors.
    pub compression: Compression,
    /// What they decompress to, bytes.
    pub ram_len: u64,
    /// Which of these are the file's: the first one, and how many.
    pub skip: u64,
    /// Bytes of the file.
    pub len: u64,
}

/// What the compression of one chunk came to.
enum Chunk {
    Plain,
    Compressed(Box<[u8]>, Vec<u8>),
}

impl<'a> Prepared<'a> {
    /// Prepares `data`, the bytes of a file from `at` (a multiple of the sector size) on. `whole` says that these are all the bytes of the
    /// file, so that they may go into an item.
    pub fn new(data: impl Into<Cow<'a, [u8]>>, at: u64, whole: Whole, policy: &Policy) -> Prepared<'a> {
        let data = data.into();
        debug_assert!(at.is_multiple_of(u64::from(policy.sectorsize)), "data begins at a sector");
        let len = data.len() as u64;
        if whole == Whole::File
            && at == 0
            && let Some(body) = inline_body(&data, policy)
        {
            let piece = DataPiece { at, len, body, csums: Vec::new() };
            return Prepared { at, len, data: Source::NONE, tail: None, pieces: vec![piece] };
        }
        let chunks = compress_chunks(&data, policy);
        let mut prepared = Prepared { at, len, data: Source::One(data), tail: None, pieces: Vec::new() };
        prepared.cut(chunks, policy);
        prepared
    }

    /// The same for bytes that are not in one piece of memory; they are brought together only if that is needed.
    pub fn gathered(parts: Vec<&'a [u8]>, at: u64, whole: Whole, policy: &Policy) -> Prepared<'a> {
        let sector = policy.sectorsize as usize;
        if let [one] = parts[..] {
            return Prepared::new(one, at, whole, policy);
        }
        let aligned =
            parts.split_last().is_none_or(|(_, before)| before.iter().all(|p| p.len().is_multiple_of(sector)));
        let source = Source::Parts(parts);
        let len = source.len();
        if !aligned || len <= sector || policy.compress.is_some_and(|c| c.algorithm != Compression::None) {
            let mut bytes = Vec::with_capacity(len);
            source.slices(0..len, |part| bytes.extend_from_slice(part));
            return Prepared::new(bytes, at, whole, policy);
        }
        let mut prepared = Prepared { at, len: len as u64, data: source, tail: None, pieces: Vec::new() };
        prepared.cut(Vec::new(), policy);
        prepared
    }

    /// Takes over what is compressed already, to be at `at`. `None` if such an extent may not be written so, in this volume
    /// or at all: its bytes are to be prepared like others. The caller has seen that they can be decompressed.
    ///
    /// Bytes that are all of a file and are not whole sectors on disk are an inline extent and stay one.
    pub fn encoded(encoded: &Encoded<'_>, at: u64, whole: Whole, policy: &Policy) -> Option<Prepared<'a>> {
        let sector = u64::from(policy.sectorsize);
        if let Some(piece) = encoded_inline(encoded, at, whole, policy) {
            return Some(Prepared { at, len: encoded.len, data: Source::NONE, tail: None, pieces: vec![piece] });
        }
        let round = |len: u64| len.next_multiple_of(sector);
        let Encoded { data, compression, ram_len, skip, len } = *encoded;
        let max = COMPRESSED_LEN_MAX as u64;
        let disk_len = round(data.len() as u64);
        let fits = len > 0 && ram_len <= max && len <= max && skip <= max && disk_len < round(ram_len);
        let inside = fits && skip.is_multiple_of(sector) && skip + round(len) <= round(ram_len);
        if !inside || !at.is_multiple_of(sector) || compression == Compression::None || policy.csum.is_none() {
            return None;
        }
        let mut data = data.to_vec();
        data.resize(disk_len as usize, 0);
        let csums = sums(&data, policy);
        let body = Body::Compressed { compression, data: data.into(), ram_len: round(ram_len), skip };
        let piece = DataPiece { at, len: round(len), body, csums };
        Some(Prepared { at, len, data: Source::NONE, tail: None, pieces: vec![piece] })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that this keeps in memory.
    pub fn held_bytes(&self) -> usize {
        let bodies = self.pieces.iter().map(|p| match &p.body {
            Body::Inline { data, .. } | Body::Compressed { data, .. } => data.len() + p.csums.len(),
            Body::Plain { .. } => p.csums.len(),
        });
        self.data.len() + self.tail.as_ref().map_or(0, |t| t.len()) + bodies.sum::<usize>()
    }

    /// Bytes that the pieces take on disk.
    pub(crate) fn disk_len(&self) -> u64 {
        let len = |piece: &DataPiece| match &piece.body {
            Body::Inline { .. } => 0,
            Body::Plain { .. } => piece.len,
            Body::Compressed { data, .. } => data.len() as u64,
        };
        self.pieces.iter().map(len).sum()
    }

    /// Calls `each` with the bytes `skip..skip + len` of a piece as they go to disk, in order.
    pub(crate) fn disk_bytes<'p>(&'p self, piece: &'p DataPiece, skip: u64, len: u64, mut each: impl FnMut(&'p [u8])) {
        let (skip, len) = (skip as usize, len as usize);
        match &piece.body {
            Body::Inline { .. } => {}
            Body::Compressed { data, .. } => each(&data[skip..skip + len]),
            Body::Plain { from, to } => {
                let have = to - from;
                self.data.slices(from + skip.min(have)..from + (skip + len).min(have), &mut each);
                if skip + len > have
                    && let Some(tail) = &self.tail
                {
                    each(tail);
                }
            }
        }
    }

    /// Makes the pieces: compressed chunks as they are, neighbouring plain ones together.
    fn cut(&mut self, chunks: Vec<Chunk>, policy: &Policy) {
        let total = self.data.len();
        let algorithm = policy.compress.map_or(Compression::None, |c| c.algorithm);
        let mut plain_from = None;
        let mut pos = 0;
        for chunk in chunks {
            let end = (pos + COMPRESSED_LEN_MAX).min(total);
            match chunk {
                Chunk::Plain => {
                    plain_from.get_or_insert(pos);
                }
                Chunk::Compressed(data, csums) => {
                    if let Some(from) = plain_from.take() {
                        self.push_plain(from, pos, policy);
                    }
                    let len = ((end - pos) as u64).next_multiple_of(u64::from(policy.sectorsize));
                    let body = Body::Compressed { compression: algorithm, data, ram_len: len, skip: 0 };
                    self.pieces.push(DataPiece { at: self.at + pos as u64, len, body, csums });
                }
            }
            pos = end;
        }
        if pos < total && plain_from.is_none() {
            plain_from = Some(pos);
        }
        if let Some(from) = plain_from {
            self.push_plain(from, total, policy);
        }
        if !self.pieces.iter().any(|p| matches!(p.body, Body::Plain { .. })) {
            self.data = Source::NONE;
        }
    }

    fn push_plain(&mut self, from: usize, to: usize, policy: &Policy) {
        let sector = policy.sectorsize as usize;
        let mut pos = from;
        while pos < to {
            let end = to.min(pos + EXTENT_LEN_MAX as usize);
            let whole = pos + (end - pos) / sector * sector;
            let mut csums = Vec::new();
            self.data.slices(pos..whole, |part| csums.append(&mut sums(part, policy)));
            if whole < end {
                let mut tail = Vec::with_capacity(sector);
                self.data.slices(whole..end, |part| tail.extend_from_slice(part));
                tail.resize(sector, 0);
                csums.extend_from_slice(&sums(&tail, policy));
                self.tail = Some(tail.into_boxed_slice());
            }
            let len = ((end - pos) as u64).next_multiple_of(sector as u64);
            self.pieces.push(DataPiece {
                at: self.at + pos as u64,
                len,
                body: Body::Plain { from: pos, to: whole },
                csums,
            });
            pos = end;
        }
    }
}

/// Tries every chunk with the file's algorithm. Empty: nothing is to be compressed.
fn compress_chunks(data: &[u8], policy: &Policy) -> Vec<Chunk> {
    let Some(ask) = policy.compress.filter(|c| c.algorithm != Compression::None) else { return Vec::new() };
    let one = |chunk: &[u8]| {
        if chunk.len() <= policy.sectorsize as usize || !(ask.force || looks_compressible(chunk)) {
            return Chunk::Plain;
        }
        let Some(packed) = compress(ask.algorithm, ask.level, chunk, policy.sectorsize) else {
            return Chunk::Plain;
        };
        let csums = sums(&packed, policy);
        Chunk::Compressed(packed.into_boxed_slice(), csums)
    };
    if policy.threads && data.len() > COMPRESSED_LEN_MAX {
        data.par_chunks(COMPRESSED_LEN_MAX).map(one).collect()
    } else {
        data.chunks(COMPRESSED_LEN_MAX).map(one).collect()
    }
}

/// Whether bytes are all of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    /// All of it.
    File,
    /// A part.
    Part,
}

/// Compressed bytes as they would be in an item, if they were in one before and may be.
fn encoded_inline(encoded: &Encoded<'_>, at: u64, whole: Whole, policy: &Policy) -> Option<DataPiece> {
    let Encoded { data, compression, ram_len, skip, len } = *encoded;
    let sector = policy.sectorsize as usize;
    let was_inline = !data.len().is_multiple_of(sector) && ram_len <= sector as u64 && (data.len() as u64) < ram_len;
    let is_all = whole == Whole::File && at == 0 && skip == 0 && len == ram_len;
    let may = data.len() <= policy.inline_max as usize && compression != Compression::None && policy.csum.is_some();
    let body = Body::Inline { compression, data: data.into() };
    (was_inline && is_all && may).then(|| DataPiece { at, len, body, csums: Vec::new() })
}

/// The bytes as they would be in an item, if they may be in one.
fn inline_body(data: &[u8], policy: &Policy) -> Option<Body> {
    let max = policy.inline_max as usize;
    if data.is_empty() || data.len() > policy.sectorsize as usize || max == 0 {
        return None;
    }
    if let Some(ask) = policy.compress.filter(|c| c.algorithm != Compression::None)
        && let Some(packed) = compress_inline(ask.algorithm, ask.level, data, policy.sectorsize)
        && packed.len() < data.len()
        && packed.len() <= max
    {
        return Some(Body::Inline { compression: ask.algorithm, data: packed.into() });
    }
    // Bytes that are not compressed must be fewer than a sector.
    (data.len() <= max && data.len() < policy.sectorsize as usize)
        .then(|| Body::Inline { compression: Compression::None, data: data.into() })
}

/// The checksums of whole sectors.
pub(super) fn sums(data: &[u8], policy: &Policy) -> Vec<u8> {
    let Some(csum) = policy.csum else { return Vec::new() };
    let mut out = Vec::new();
    if policy.threads && data.len() >= PARALLEL_LEN_MIN {
        let parts: Vec<Vec<u8>> = data
            .par_chunks(PARALLEL_LEN_MIN / 4)
            .map(|part| {
                let mut sums = Vec::new();
                csum.csum_sectors(part, policy.sectorsize, &mut sums);
                sums
            })
            .collect();
        out = parts.concat();
    } else {
        csum.csum_sectors(data, policy.sectorsize, &mut out);
    }
    out
}

#[cfg(test)]
mod tests;
