//! Compression of file extents: zlib, LZO and zstd in the framing of the format.
//!
//! A compressed extent on disk is at most [`EXTENT_LEN_MAX`] bytes of file, compressed as one unit, padded with zeros
//! to whole sectors. Inline extents are compressed the same way but not padded, and with LZO are one segment. Contexts
//! are kept per thread, since making one costs more than compressing a sector.
//!
//! In WebAssembly there is no C: other libraries decompress there, and nothing is compressed.
//!
//! Each kind is a feature of this crate (`zlib`, `lzo`, `zstd`). A build without one neither compresses data that way
//! nor reads it ([`DecompressError::FeatureOff`]); everything else on such a volume can be read and written.

mod estimate;
#[cfg(feature = "lzo")]
mod lzo;
#[cfg(feature = "lzo")]
mod lzo1x;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(all(feature = "zstd", not(target_family = "wasm")))]
mod zstd;
#[cfg(all(feature = "zstd", any(test, target_family = "wasm")))]
mod zstd_reader;

#[cfg(all(feature = "zstd", target_family = "wasm"))]
use self::zstd_reader as zstd;
use crate::Compression;
use crate::failure::{Class, Classified, errno};

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

/// Whether this build compresses and decompresses data of a kind: whether the feature of its name is on.
pub const fn is_supported(algo: Compression) -> bool {
    match algo {
        Compression::None => true,
        Compression::Zlib => cfg!(feature = "zlib"),
        Compression::Lzo => cfg!(feature = "lzo"),
        Compression::Zstd => cfg!(feature = "zstd"),
    }
}

/// Compressed data could not be decompressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecompressError {
    /// The stream breaks the rules of its kind, or of its framing in the format.
    #[error("broken {kind} stream: {what}", kind = .0.name(), what = .1)]
    Broken(Compression, &'static str),
    /// This build does not have that kind.
    #[error("{kind} data cannot be read: this program was built without the feature `{kind}`", kind = .0.name())]
    FeatureOff(Compression),
    /// Nothing to decompress.
    #[error("the extent is not compressed")]
    NotCompressed,
}

impl Classified for DecompressError {
    fn class(&self) -> Class {
        match self {
            DecompressError::Broken(..) | DecompressError::NotCompressed => Class::DATA,
            DecompressError::FeatureOff(_) => Class::refusal(errno::EOPNOTSUPP),
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
#[cfg_attr(
    not(all(feature = "zlib", feature = "lzo", feature = "zstd")),
    allow(unused_variables, clippy::match_single_binding, reason = "some are of kinds that are left out")
)]
fn run(algo: Compression, level: i32, data: &[u8], sectorsize: u32, limit: usize) -> Option<Vec<u8>> {
    let (min, max, default) = levels(algo);
    let level = if level == 0 { default } else { level.clamp(min, max) };
    match algo {
        #[cfg(feature = "zlib")]
        Compression::Zlib => zlib::compress(level, data, limit),
        #[cfg(feature = "lzo")]
        Compression::Lzo => lzo::compress(data, sectorsize as usize, limit),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::compress(level, data, limit),
        _ => None,
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
#[cfg_attr(
    not(all(feature = "zlib", feature = "lzo", feature = "zstd")),
    allow(unused_variables, unreachable_code, reason = "some are of kinds that are left out")
)]
pub fn decompress_into(algo: Compression, data: &[u8], out: &mut [u8], sectorsize: u32) -> Result<(), DecompressError> {
    let len: usize = match algo {
        Compression::None => return Err(DecompressError::NotCompressed),
        #[cfg(feature = "zlib")]
        Compression::Zlib => zlib::decompress(data, out)?,
        #[cfg(feature = "lzo")]
        Compression::Lzo => lzo::decompress(data, out, sectorsize as usize)?,
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::decompress(data, out)?,
        #[cfg(not(all(feature = "zlib", feature = "lzo", feature = "zstd")))]
        other => return Err(DecompressError::FeatureOff(other)),
    };
    out[len..].fill(0);
    Ok(())
}

/// Compresses bytes that are no extent, as one frame of zstd, into at most `len_max` bytes or not at all.
#[cfg(feature = "zstd")]
pub fn zstd(level: i32, data: &[u8], len_max: usize) -> Option<Vec<u8>> {
    self::zstd::compress(level, data, len_max)
}

/// Decompresses what [`zstd()`] made, which must be exactly as long as `out`.
#[cfg(feature = "zstd")]
pub fn unzstd(data: &[u8], out: &mut [u8]) -> Result<(), DecompressError> {
    match self::zstd::decompress(data, out)? {
        len if len == out.len() => Ok(()),
        _ => Err(DecompressError::Broken(Compression::Zstd, "another length")),
    }
}

/// Decompresses an inline extent of `out_len` bytes (its `ram_bytes`, at most a sector).
pub fn decompress_inline(
    algo: Compression,
    data: &[u8],
    out_len: usize,
    sectorsize: u32,
) -> Result<Vec<u8>, DecompressError> {
    let mut out = vec![0; out_len];
    #[cfg(feature = "lzo")]
    if algo == Compression::Lzo {
        let len = lzo::decompress_inline(data, &mut out, sectorsize as usize)?;
        out[len..].fill(0);
        return Ok(out);
    }
    decompress_into(algo, data, &mut out, sectorsize)?;
    Ok(out)
}

#[cfg(all(test, feature = "zlib", feature = "lzo", feature = "zstd"))]
mod tests;
