//! Compressed data of any bytes, as an extent has it: a typed error, or as many bytes as were asked for; and data that is
//! compressed here is what it was.
//!
//! The first bytes choose the kind, the sector size, and the length that the data claims to have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo_format::Compression;
use oleo_format::compress::{compress, compress_inline, decompress, decompress_inline};

const KINDS: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];
const SECTOR_SIZES: [u32; 3] = [4096, 16384, 65536];

fuzz_target!(|data: &[u8]| {
    let [kind, sector, a, b, data @ ..] = data else { return };
    let algo = KINDS[usize::from(*kind) % KINDS.len()];
    let sectorsize = SECTOR_SIZES[usize::from(*sector) % SECTOR_SIZES.len()];
    // Up to the longest extent, 128 KiB.
    let out_len = (usize::from(u16::from_le_bytes([*a, *b])) + 1) * 2;
    if let Ok(out) = decompress(algo, data, out_len, sectorsize) {
        assert_eq!(out.len(), out_len);
    }
    let inline_len = out_len.min(sectorsize as usize);
    if let Ok(out) = decompress_inline(algo, data, inline_len, sectorsize) {
        assert_eq!(out.len(), inline_len);
    }
    if let Some(packed) = compress(algo, 0, data, sectorsize) {
        assert!(decompress(algo, &packed, data.len(), sectorsize).as_deref() == Ok(data));
    }
    let short = &data[..data.len().min(sectorsize as usize)];
    if let Some(packed) = compress_inline(algo, 0, short, sectorsize) {
        assert!(decompress_inline(algo, &packed, short.len(), sectorsize).as_deref() == Ok(short));
    }
});
