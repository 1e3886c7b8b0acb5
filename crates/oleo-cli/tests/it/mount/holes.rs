//! fallocate and lseek: space that is there without data, and the reverse.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, Result};

use crate::mount::place::{Place, family, open, refused};

family!(
    "";
    allocate after allocate_after, allocate_over_data, keep_size, punch after punch_after, punch_parts_of_sectors, punch_keeps_the_size,
    punch_needs_keep_size, zero after zero_after, zero_keep_size, zero_beyond_the_end, unknown_modes, wrong_descriptors,
    sparse_file, seek_data_and_hole, seek_of_preallocated, seek_beyond_the_end, truncate_up_and_down, truncate_within_a_sector,
    blocks_are_reported, write_into_preallocated after written_after,
);

const K: u64 = 1024;

fn data(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add((i % 253) as u8) | 1).collect()
}

fn file(at: &Place, name: &str, data: &[u8]) -> OwnedFd {
    open(&at.file(name, data), OFlags::RDWR).unwrap()
}

fn go(file: &OwnedFd, flags: FallocateFlags, at: u64, len: u64) -> Result<()> {
    rustix::fs::fallocate(file, flags, at, len)
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn size(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_size.cast_unsigned()
}

fn allocate(at: &Place) {
    let f = file(at, "f", b"start");
    go(&f, FallocateFlags::empty(), 0, 300 * K).unwrap();
    assert_eq!(size(&f), 300 * K);
    allocate_after(&at.dir);
}

fn allocate_after(dir: &Path) {
    let now = fs::read(dir.join("f")).unwrap();
    assert_eq!(&now[..5], b"start");
    assert!(now[5..].iter().all(|b| *b == 0));
    assert!(fs::metadata(dir.join("f")).unwrap().blocks() * 512 >= 296 * K);
}

fn allocate_over_data(at: &Place) {
    let before = data(100_000, 1);
    let f = file(at, "f", &before);
    go(&f, FallocateFlags::empty(), 10 * K, 50 * K).unwrap();
    assert_eq!(fs::read(at.at("f")).unwrap(), before);
}

fn keep_size(at: &Place) {
    let f = file(at, "f", b"start");
    go(&f, FallocateFlags::KEEP_SIZE, 0, 1000 * K).unwrap();
    assert_eq!(fs::read(at.at("f")).unwrap(), b"start");
    // The size grows into what is there.
    rustix::io::pwrite(&f, b"end", 999 * K).unwrap();
    assert_eq!(size(&f), 999 * K + 3);
    assert_eq!(fs::read(at.at("f")).unwrap()[5..20], [0; 15]);
}

fn punch(at: &Place) {
    let f = file(at, "f", &data(400 << 10, 2));
    rustix::fs::fsync(&f).unwrap();
    let before = rustix::fs::fstat(&f).unwrap().st_blocks;
    go(&f, PUNCH, 64 * K, 128 * K).unwrap();
    punch_after(&at.dir);
    rustix::fs::fsync(&f).unwrap();
    assert!(rustix::fs::fstat(&f).unwrap().st_blocks < before);
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Hole(0)), Ok(64 * K));
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Data(100 * K)), Ok(192 * K));
}

fn punch_after(dir: &Path) {
    let mut want = data(400 << 10, 2);
    want[64 << 10..192 << 10].fill(0);
    assert!(fs::read(dir.join("f")).unwrap() == want);
}

fn punch_parts_of_sectors(at: &Place) {
    let mut want = data(50_000, 3);
    let f = file(at, "f", &want);
    for (from, len) in [(5usize, 100usize), (4000, 200), (8192, 1), (12_287, 4098), (30_001, 10_007), (49_000, 5000)] {
        go(&f, PUNCH, from as u64, len as u64).unwrap();
        let end = (from + len).min(want.len());
        want[from..end].fill(0);
        assert!(fs::read(at.at("f")).unwrap() == want, "{len} bytes from {from}");
    }
}

fn punch_keeps_the_size(at: &Place) {
    let f = file(at, "f", &data(10_000, 4));
    go(&f, PUNCH, 5000, 100_000).unwrap();
    assert_eq!(size(&f), 10_000);
    go(&f, PUNCH, 200_000, 100_000).unwrap();
    assert_eq!(size(&f), 10_000);
    go(&f, PUNCH, 0, 10_000).unwrap();
    assert_eq!(fs::read(at.at("f")).unwrap(), vec![0; 10_000]);
}

fn punch_needs_keep_size(at: &Place) {
    let f = file(at, "f", b"x");
    refused(go(&f, FallocateFlags::PUNCH_HOLE, 0, 4096), Errno::OPNOTSUPP);
}

fn zero(at: &Place) {
    let f = file(at, "f", &data(200 << 10, 5));
    go(&f, FallocateFlags::ZERO_RANGE, 10_000, 100_000).unwrap();
    zero_after(&at.dir);
    // Space stays.
    rustix::fs::fsync(&f).unwrap();
    assert!(rustix::fs::fstat(&f).unwrap().st_blocks * 512 >= 200 << 10);
}

fn zero_after(dir: &Path) {
    let mut want = data(200 << 10, 5);
    want[10_000..110_000].fill(0);
    assert!(fs::read(dir.join("f")).unwrap() == want);
}

fn zero_keep_size(at: &Place) {
    let f = file(at, "f", &data(10_000, 6));
    go(&f, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 8000, 100_000).unwrap();
    let mut want = data(10_000, 6);
    want[8000..].fill(0);
    assert_eq!(fs::read(at.at("f")).unwrap(), want);
}

fn zero_beyond_the_end(at: &Place) {
    let f = file(at, "f", &data(10_000, 7));
    go(&f, FallocateFlags::ZERO_RANGE, 20_000, 30_000).unwrap();
    let mut want = data(10_000, 7);
    want.resize(50_000, 0);
    assert_eq!(fs::read(at.at("f")).unwrap(), want);
}

fn unknown_modes(at: &Place) {
    let f = file(at, "f", &data(100_000, 1));
    refused(go(&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Errno::OPNOTSUPP);
    refused(go(&f, FallocateFlags::INSERT_RANGE, 0, 4096), Errno::OPNOTSUPP);
    refused(go(&f, FallocateFlags::UNSHARE_RANGE, 0, 4096), Errno::OPNOTSUPP);
}

fn wrong_descriptors(at: &Place) {
    at.file("f", b"x");
    let read = open(&at.at("f"), OFlags::RDONLY).unwrap();
    refused(go(&read, FallocateFlags::empty(), 0, 10), Errno::BADF);
    let append = open(&at.at("f"), OFlags::WRONLY | OFlags::APPEND).unwrap();
    go(&append, FallocateFlags::empty(), 0, 10).unwrap();
}

fn sparse_file(at: &Place) {
    let f = file(at, "f", b"");
    let spots = [0u64, 1 << 20, (1 << 30) + 4095, (1 << 40) + 17];
    for at in spots {
        rustix::io::pwrite(&f, b"here", at).unwrap();
    }
    assert_eq!(size(&f), (1 << 40) + 21);
    rustix::fs::fsync(&f).unwrap();
    assert!(rustix::fs::fstat(&f).unwrap().st_blocks * 512 < 64 << 10);
    let mut buf = [1; 8];
    for at in spots {
        assert_eq!(rustix::io::pread(&f, &mut buf[..4], at), Ok(4));
        assert_eq!(&buf[..4], b"here");
    }
    assert_eq!(rustix::io::pread(&f, &mut buf[..], 1 << 35), Ok(8));
    assert_eq!(buf, [0; 8]);
    rustix::fs::ftruncate(&f, 1 << 20).unwrap();
}

/// All (start, end) of data, walked as a program does it.
fn walk(f: &OwnedFd) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        match rustix::fs::seek(f, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return out,
            Err(e) => panic!("{e}"),
            Ok(start) => {
                let end = rustix::fs::seek(f, SeekFrom::Hole(start)).unwrap();
                assert!(end > start && start >= at);
                out.push((start, end));
                at = end;
            }
        }
    }
}

fn seek_data_and_hole(at: &Place) {
    let f = file(at, "f", b"");
    rustix::fs::ftruncate(&f, 1 << 20).unwrap();
    assert_eq!(walk(&f), []);
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Hole(0)), Ok(0));
    rustix::io::pwrite(&f, &data(8192, 1), 64 * K).unwrap();
    rustix::io::pwrite(&f, &data(4096, 1), 512 * K).unwrap();
    // Before it is on disk and after.
    for _ in 0..2 {
        assert_eq!(walk(&f), [(64 * K, 72 * K), (512 * K, 516 * K)]);
        assert_eq!(rustix::fs::seek(&f, SeekFrom::Data(70 * K)), Ok(70 * K));
        assert_eq!(rustix::fs::seek(&f, SeekFrom::Hole(600 * K)), Ok(600 * K));
        assert_eq!(rustix::fs::seek(&f, SeekFrom::Hole(65 * K)), Ok(72 * K));
        refused(rustix::fs::seek(&f, SeekFrom::Data(600 * K)), Errno::NXIO);
        rustix::fs::fsync(&f).unwrap();
    }
    // The position moves with it.
    rustix::fs::seek(&f, SeekFrom::Data(0)).unwrap();
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Current(0)), Ok(64 * K));
}

fn seek_of_preallocated(at: &Place) {
    let f = file(at, "f", b"");
    go(&f, FallocateFlags::empty(), 0, 100 * K).unwrap();
    // What nobody has written is no data, although it has space.
    assert_eq!(walk(&f), []);
    rustix::io::pwrite(&f, &data(4096, 1), 40 * K).unwrap();
    rustix::fs::fsync(&f).unwrap();
    assert_eq!(walk(&f), [(40 * K, 44 * K)]);
}

fn seek_beyond_the_end(at: &Place) {
    let f = file(at, "f", &data(10_000, 1));
    refused(rustix::fs::seek(&f, SeekFrom::Data(10_000)), Errno::NXIO);
    refused(rustix::fs::seek(&f, SeekFrom::Hole(10_000)), Errno::NXIO);
    refused(rustix::fs::seek(&f, SeekFrom::Hole(1 << 40)), Errno::NXIO);
    assert_eq!(rustix::fs::seek(&f, SeekFrom::Hole(9999)), Ok(10_000));
    assert_eq!(rustix::fs::seek(&f, SeekFrom::End(5)), Ok(10_005));
    let empty = file(at, "empty", b"");
    refused(rustix::fs::seek(&empty, SeekFrom::Hole(0)), Errno::NXIO);
}

fn truncate_up_and_down(at: &Place) {
    let mut want = data(300_000, 8);
    let f = file(at, "f", &want);
    for to in [100_000usize, 250_000, 4096, 0, 1, 50_000, 65_536] {
        rustix::fs::ftruncate(&f, to as u64).unwrap();
        want.resize(to, 0);
        assert!(fs::read(at.at("f")).unwrap() == want, "{to}");
        if to == 4096 {
            rustix::fs::fsync(&f).unwrap();
        }
        if to > 10 {
            rustix::io::pwrite(&f, b"tail", to as u64 - 4).unwrap();
            want[to - 4..].copy_from_slice(b"tail");
        }
    }
}

/// What a shorter size cut off inside a sector must not come back when the file grows again.
fn truncate_within_a_sector(at: &Place) {
    let f = file(at, "f", &data(10_000, 9));
    rustix::fs::fsync(&f).unwrap();
    rustix::fs::ftruncate(&f, 5000).unwrap();
    rustix::fs::ftruncate(&f, 10_000).unwrap();
    let mut want = data(5000, 9);
    want.resize(10_000, 0);
    assert_eq!(fs::read(at.at("f")).unwrap(), want);
    rustix::fs::ftruncate(&f, 100).unwrap();
    rustix::io::pwrite(&f, b"x", 200).unwrap();
    assert_eq!(fs::read(at.at("f")).unwrap()[100..200], [0; 100]);
}

fn blocks_are_reported(at: &Place) {
    let f = file(at, "f", &data(1 << 20, 1));
    rustix::fs::fsync(&f).unwrap();
    let stat = rustix::fs::fstat(&f).unwrap();
    assert_eq!((stat.st_blocks, stat.st_blksize), (2048, 4096));
    rustix::fs::ftruncate(&f, 0).unwrap();
    rustix::fs::fsync(&f).unwrap();
    assert_eq!(rustix::fs::fstat(&f).unwrap().st_blocks, 0);
    // What has been accepted but is not on disk yet counts too.
    rustix::io::pwrite(&f, &data(1 << 20, 1), 0).unwrap();
    assert_eq!(rustix::fs::fstat(&f).unwrap().st_blocks, 2048);
}

fn write_into_preallocated(at: &Place) {
    let f = file(at, "f", b"");
    go(&f, FallocateFlags::empty(), 0, 1000 * K).unwrap();
    rustix::fs::fsync(&f).unwrap();
    rustix::io::pwrite(&f, &data(10_000, 1), 100_000).unwrap();
    rustix::fs::fsync(&f).unwrap();
    rustix::io::pwrite(&f, &data(50, 2), 105_000).unwrap();
    rustix::io::pwrite(&f, &data(70_000, 3), 600_001).unwrap();
    written_after(&at.dir);
}

fn written_after(dir: &Path) {
    let mut want = vec![0; 1000 << 10];
    want[100_000..110_000].copy_from_slice(&data(10_000, 1));
    want[105_000..105_050].copy_from_slice(&data(50, 2));
    want[600_001..670_001].copy_from_slice(&data(70_000, 3));
    assert!(fs::read(dir.join("f")).unwrap() == want);
}
