//! Compression of file extents: zlib, LZO and zstd in the framing of the format.
//!
//! A compressed extent on disk is at most [`EXTENT_LEN_MAX`] bytes of file, compressed as one unit, padded with zeros
//! to whole sectors. Inline extents are compressed the same way but not padded, and with LZO are one segment. Contexts
//! are kept per thread, since making one costs more than compressing a sector.

mod estimate;
mod lzo;
mod lzo1x;
mod zlib;
mod zstd;

use crate::Compression;
use crate::failure::{Class, Classified};

pub use estimate::looks_compressible;

/// The most bytes of a file that one compressed extent may hold.
pub const EXTENT_LEN_MAX: usize = 128 << 10;

/// Levels of a kind of compression: lowest, highest, default.
pub const fn levels(algo: Compression) -> (i32, i32, i32) {
    match algo {
        Compression::None | Compression::Lzo => (0, 0, 0),
        Compression::Zlib => (1, 9, 3),
        Compression::Zstd => (-15, 15, 3),
    }
}

/// Compressed data could not be decompressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecompressError {
    /// The stream breaks the rules of its kind, or of its framing in the format.
    #[error("broken {kind} stream: {what}", kind = .0.name(), what = .1)]
    Broken(Compression, &'static str),
    /// Nothing to decompress.
    #[error("the extent is not compressed")]
    NotCompressed,
}

impl Classified for DecompressError {
    fn class(&self) -> Class {
        match self {
            DecompressError::Broken(..) | DecompressError::NotCompressed => Class::DATA,
        }
    }
}

/// Compresses a regular extent; `data` is at most [`EXTENT_LEN_MAX`] bytes. The result is padded with zeros to whole
/// sectors; `None` means that no sector would be saved.
///
/// Level 0 is the default; others are clamped to the range of [`levels`].
pub fn compress(algo: Compression, level: i32, data: &[u8], sectorsize: u32) -> Option<Vec<u8>> {
    assert!(data.len() <= EXTENT_LEN_MAX, "an extent of {} bytes is too long to be compressed", data.len());
    let sector_len = sectorsize as usize;
    let limit = data.len().next_multiple_of(sector_len).checked_sub(sector_len)?;
    let mut out = run(algo, level, data, sectorsize, limit)?;
    out.resize(out.len().next_multiple_of(sector_len), 0);
    debug_assert!(out.len() <= limit);
    Some(out)
}

/// Compresses an inline extent, `data` being at most a sector. `None` means that it would not become shorter.
pub fn compress_inline(algo: Compression, level: i32, data: &[u8], sectorsize: u32) -> Option<Vec<u8>> {
    assert!(data.len() <= sectorsize as usize, "an inline extent of {} bytes is too long", data.len());
    run(algo, level, data, sectorsize, data.len().checked_sub(1)?)
}

/// Compresses into at most `limit` bytes.
fn run(algo: Compression, level: i32, data: &[u8], sectorsize: u32, limit: usize) -> Option<Vec<u8>> {
    let (min, max, default) = levels(algo);
    let level = if level == 0 { default } else { level.clamp(min, max) };
    match algo {
        Compression::None => None,
        Compression::Zlib => zlib::compress(level, data, limit),
        Compression::Lzo => lzo::compress(data, sectorsize as usize, limit),
        Compression::Zstd => zstd::compress(level, data, limit),
    }
}

/// Decompresses a regular extent of `out_len` bytes (its `ram_bytes`). A stream that ends early is continued with
/// zeros; what it has beyond `out_len` is left out.
pub fn decompress(algo: Compression, data: &[u8], out_len: usize, sectorsize: u32) -> Result<Vec<u8>, DecompressError> {
    let mut out = vec![0; out_len];
    decompress_into(algo, data, &mut out, sectorsize)?;
    Ok(out)
}

/// [`decompress`] into a buffer, all of which is written.
pub fn decompress_into(algo: Compression, data: &[u8], out: &mut [u8], sectorsize: u32) -> Result<(), DecompressError> {
    let len = match algo {
        Compression::None => return Err(DecompressError::NotCompressed),
        Compression::Zlib => zlib::decompress(data, out)?,
        Compression::Lzo => lzo::decompress(data, out, sectorsize as usize)?,
        Compression::Zstd => zstd::decompress(data, out)?,
    };
    out[len..].fill(0);
    Ok(())
}

/// Decompresses an inline extent of `out_len` bytes (its `ram_bytes`, at most a sector).
pub fn decompress_inline(
    algo: Compression,
    data: &[u8],
    out_len: usize,
    sectorsize: u32,
) -> Result<Vec<u8>, DecompressError> {
    let mut out = vec![0; out_len];
    match algo {
        Compression::Lzo => {
            let len = lzo::decompress_inline(data, &mut out, sectorsize as usize)?;
            out[len..].fill(0);
        }
        _ => decompress_into(algo, data, &mut out, sectorsize)?,
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
