//! The readers of segments against any bytes: frames, tails and directories with their checksums put right, footers.

use oleo_remote::format::segment::{Bound, parse_directory, parse_footer, parse_frame, parse_tail};
use oleo_remote::format::{ObjectId, SegmentRef, xxh64};

/// Bytes of a frame's header, and where its checksum is.
const HEADER_LEN: usize = 48;
const SUM_AT: usize = 40;

/// Whether anything of it was accepted.
pub fn body(data: &[u8]) -> bool {
    let id = ObjectId::segment(1, 2);
    let bound = Bound { uuid: [7; 16], id };
    let frame = with_sum(data);
    let mut taken = parse_frame(&frame, 0, &bound).is_ok() | parse_frame(data, 0, &bound).is_ok();
    taken |= parse_tail(&frame, &bound, 1 << 40).is_ok_and(|frames| !frames.is_empty());
    taken |= parse_footer(data).is_ok();
    let [a, b, c, d, entries @ ..] = data else { return taken };
    let entries = &entries[..entries.len() / 32 * 32];
    let dir_off = u32::from_le_bytes([*a, *b, *c, *d]);
    let frames = (entries.len() / 32) as u32;
    let segment = SegmentRef { id, len: 0, dir_off, frames, dir_xxh: xxh64(entries) };
    match parse_directory(entries, &segment, [7; 16], None) {
        Ok(parsed) => {
            assert_eq!(parsed.last().map_or(0, |entry| entry.end()), u64::from(dir_off));
            true
        }
        Err(_) => taken,
    }
}

/// The first frame with its checksum: over its payload, its header, the volume and its place.
fn with_sum(data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    let Some(header) = data.first_chunk::<HEADER_LEN>() else { return out };
    let stored = u32::from_le_bytes([header[32], header[33], header[34], header[35]]) as usize;
    let Some(payload) = data[HEADER_LEN..].get(..stored) else { return out };
    let mut summed = [payload, &header[..SUM_AT], &[7; 16], &[0; 4]].concat();
    summed.extend(1u32.to_le_bytes());
    summed.extend(2u64.to_le_bytes());
    out[SUM_AT..HEADER_LEN].copy_from_slice(&xxh64(&summed).to_le_bytes());
    out
}
