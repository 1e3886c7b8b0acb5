//! LZO1X with the framing of the format.
//!
//! A regular extent is a 4-byte total length, itself included, then one segment per sector of input: a 4-byte length
//! and the compressed bytes. A segment's length never crosses a sector boundary of the stream: if fewer than 4 bytes
//! are left in a sector, they are zero and the length comes after them. Compressed bytes may cross. All numbers are
//! little-endian. An inline extent is the total length and one segment.

use std::cell::RefCell;

use super::DecompressError;
use super::lzo1x::{self, Table};
use crate::Compression;

/// The bytes of a length field.
const LEN: usize = 4;

thread_local! {
    static TABLE: RefCell<Table> = const { RefCell::new([0; size_of::<Table>() / 2]) };
}

const fn broken(what: &'static str) -> DecompressError {
    DecompressError::Broken(Compression::Lzo, what)
}

/// How many bytes of padding come before a length field at this position of the stream.
fn padding(at: usize, sector_len: usize) -> usize {
    let left = sector_len - at % sector_len;
    if left < LEN { left } else { 0 }
}

/// Compresses into at most `limit` bytes, or not at all.
pub(super) fn compress(data: &[u8], sector_len: usize, limit: usize) -> Option<Vec<u8>> {
    TABLE.with_borrow_mut(|table| {
        let mut out = Vec::with_capacity(limit.min(super::EXTENT_LEN_MAX) + sector_len);
        out.extend_from_slice(&[0; LEN]);
        for sector in data.chunks(sector_len) {
            out.resize(out.len() + padding(out.len(), sector_len), 0);
            let start = out.len();
            out.extend_from_slice(&[0; LEN]);
            lzo1x::compress(sector, table, &mut out);
            let len = u32::try_from(out.len() - start - LEN).ok()?;
            out[start..start + LEN].copy_from_slice(&len.to_le_bytes());
            if out.len() > limit {
                return None;
            }
        }
        let total = u32::try_from(out.len()).ok()?;
        out[..LEN].copy_from_slice(&total.to_le_bytes());
        Some(out)
    })
}

fn len_at(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at.checked_add(LEN)?)?.first_chunk::<LEN>()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

/// Decompresses as much as fits and returns how much that was.
pub(super) fn decompress(data: &[u8], out: &mut [u8], sector_len: usize) -> Result<usize, DecompressError> {
    let total = len_at(data, 0).ok_or(broken("no length"))?;
    let data = data.get(..total).ok_or(broken("longer than its extent"))?;
    let mut sector = vec![0; sector_len];
    let (mut at, mut done) = (LEN, 0);
    while at < data.len() && done < out.len() {
        at += padding(at, sector_len);
        if at >= data.len() {
            break;
        }
        let len = len_at(data, at).ok_or(broken("a segment's length is cut off"))?;
        at += LEN;
        let segment = data.get(at..at + len).ok_or(broken("a segment is cut off"))?;
        at += len;
        done += segment_into(segment, &mut out[done..], &mut sector)?;
    }
    Ok(done)
}

/// Decompresses an inline extent and returns how much that was.
pub(super) fn decompress_inline(data: &[u8], out: &mut [u8], sector_len: usize) -> Result<usize, DecompressError> {
    let total = len_at(data, 0).ok_or(broken("no length"))?;
    let data = data.get(..total).ok_or(broken("longer than its extent"))?;
    let len = len_at(data, LEN).ok_or(broken("a segment's length is cut off"))?;
    let segment = data.get(2 * LEN..2 * LEN + len).ok_or(broken("a segment is cut off"))?;
    segment_into(segment, out, &mut vec![0; sector_len])
}

/// Decompresses one segment, at most a sector, of which as much as fits is kept.
fn segment_into(segment: &[u8], out: &mut [u8], sector: &mut [u8]) -> Result<usize, DecompressError> {
    if out.len() >= sector.len() {
        let room = sector.len();
        return lzokay::decompress::decompress(segment, &mut out[..room]).map_err(|_| broken("bad data"));
    }
    let len = lzokay::decompress::decompress(segment, sector).map_err(|_| broken("bad data"))?;
    let kept = len.min(out.len());
    out[..kept].copy_from_slice(&sector[..kept]);
    Ok(kept)
}
