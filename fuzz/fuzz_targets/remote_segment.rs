//! The readers of segments against any bytes: frames, tails, directories (with their checksums put right), footers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo_remote::format::segment::{Bound, parse_directory, parse_footer, parse_frame, parse_tail};
use oleo_remote::format::{ObjectId, SegmentRef, xxh64};

fuzz_target!(|data: &[u8]| {
    let id = ObjectId::segment(1, 2);
    let bound = Bound { uuid: [7; 16], id };
    let _ = parse_frame(data, 0, &bound);
    let _ = parse_tail(data, &bound, 1 << 40);
    let _ = parse_footer(data);
    let [a, b, c, d, entries @ ..] = data else { return };
    let entries = &entries[..entries.len() / 32 * 32];
    let dir_off = u32::from_le_bytes([*a, *b, *c, *d]);
    let frames = (entries.len() / 32) as u32;
    let segment = SegmentRef { id, len: 0, dir_off, frames, dir_xxh: xxh64(entries) };
    if let Ok(parsed) = parse_directory(entries, &segment, [7; 16], None) {
        assert_eq!(parsed.last().map_or(0, |entry| entry.end()), u64::from(dir_off));
    }
});
