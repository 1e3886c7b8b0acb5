//! A tar archive of any bytes, with the checksums of its headers put right, as the source of an image: a typed error or an
//! image, never a panic.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use oleo::mkfs::{BuildOptions, Source, build};
use oleo_sim::oracle::Scratch;

const BLOCK: usize = 512;
/// The checksum of a header.
const SUM: std::ops::Range<usize> = 148..156;

fuzz_target!(|data: &[u8]| {
    let mut archive = data.to_vec();
    for block in archive.chunks_exact_mut(BLOCK) {
        block[SUM].fill(b' ');
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[SUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    let scratch = Scratch::new().expect("a scratch directory");
    let source = Source::Tar(Box::new(Cursor::new(archive)));
    let options = BuildOptions::default().source(source).size(Some(128 << 20));
    let _ = build(&[&scratch.path().join("image")], options);
});
