//! copy_file_range: a clone where it is aligned, a copy elsewhere.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use oleo_sim::manifest::{HostTree, Piece, TreeView};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};

use crate::mount::place::{Place, family, open, refused};

family!(
    "";
    whole_file_is_shared after whole_after, aligned_part_is_shared after part_after, unaligned_is_copied after unaligned_after, short_at_the_end, refusals,
    same_file after same_after, overlapping_is_refused, into_a_hole_and_over_data, of_what_is_not_on_disk_yet, writing_one_leaves_the_other after writing_after,
    holes_stay_holes, ficlone_ioctl limited "the kernel answers FICLONE itself, by asking for a method that FUSE has not" with "code: 95",
    dedupe_ioctl limited "the kernel answers FIDEDUPERANGE itself, as FICLONE" with "left: Err(", cp_reflink_auto after cp_after, across_subvolumes after across_after, positions_move,
);

fn data(len: usize, seed: u64) -> Vec<u8> {
    oleo_sim::rng::Rng::new(seed).bytes(len)
}

fn both(at: &Place, from: &str, to: &str) -> (OwnedFd, OwnedFd) {
    let flags = OFlags::RDWR | OFlags::CREATE;
    (open(&at.at(from), flags).unwrap(), open(&at.at(to), flags).unwrap())
}

/// Copies all of it, in as many calls as it takes.
fn copy(from: &OwnedFd, mut at: u64, to: &OwnedFd, mut to_at: u64, len: usize) -> Result<usize> {
    let mut done = 0;
    while done < len {
        let now = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), len - done)?;
        if now == 0 {
            break;
        }
        done += now;
    }
    Ok(done)
}

/// Where on disk the file's bytes are, as (offset, address, length), with what lies one behind the other taken together.
fn places(path: &Path) -> Vec<(u64, u64, u64)> {
    let tree = HostTree::new(path.parent().unwrap());
    let pieces: Vec<Piece> = tree.pieces(&path.to_owned()).unwrap();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for p in pieces {
        match out.last_mut() {
            Some((at, address, len)) if *at + *len == p.at && *address + *len == p.address => *len += p.len,
            _ => out.push((p.at, p.address, p.len)),
        }
    }
    out
}

fn whole_file_is_shared(at: &Place) {
    at.file("from", &data(1 << 20, 1));
    let (from, to) = both(at, "from", "to");
    assert_eq!(copy(&from, 0, &to, 0, 1 << 20), Ok(1 << 20));
    assert!(fs::read(at.at("to")).unwrap() == data(1 << 20, 1));
}

fn whole_after(dir: &Path) {
    assert!(fs::read(dir.join("to")).unwrap() == data(1 << 20, 1));
    assert_eq!(places(&dir.join("from")), places(&dir.join("to")));
}

fn aligned_part_is_shared(at: &Place) {
    at.file("from", &data(1 << 20, 2));
    at.file("to", &data(1 << 20, 3));
    let (from, to) = both(at, "from", "to");
    assert_eq!(copy(&from, 128 << 10, &to, 512 << 10, 256 << 10), Ok(256 << 10));
    part_content(&at.dir);
}

fn part_content(dir: &Path) {
    let mut want = data(1 << 20, 3);
    want[512 << 10..768 << 10].copy_from_slice(&data(1 << 20, 2)[128 << 10..384 << 10]);
    assert!(fs::read(dir.join("to")).unwrap() == want);
}

fn part_after(dir: &Path) {
    part_content(dir);
    let source = places(&dir.join("from"));
    let address = source.iter().find(|(at, ..)| *at == 0).unwrap().1 + (128 << 10);
    assert!(places(&dir.join("to")).contains(&(512 << 10, address, 256 << 10)), "{source:?}");
}

fn unaligned_is_copied(at: &Place) {
    at.file("from", &data(300_000, 4));
    at.file("to", &data(300_000, 5));
    let (from, to) = both(at, "from", "to");
    assert_eq!(copy(&from, 1000, &to, 77, 100_001), Ok(100_001));
    assert_eq!(copy(&from, 8192, &to, 200_000, 8192), Ok(8192));
    unaligned_after(&at.dir);
}

fn unaligned_after(dir: &Path) {
    let (from, mut want) = (data(300_000, 4), data(300_000, 5));
    want[77..100_078].copy_from_slice(&from[1000..101_001]);
    want[200_000..208_192].copy_from_slice(&from[8192..16_384]);
    assert!(fs::read(dir.join("to")).unwrap() == want);
}

fn short_at_the_end(at: &Place) {
    at.file("from", &data(10_000, 6));
    let (from, to) = both(at, "from", "to");
    assert_eq!(copy(&from, 0, &to, 0, 1 << 20), Ok(10_000));
    assert_eq!(fs::read(at.at("to")).unwrap(), data(10_000, 6));
    assert_eq!(copy(&from, 8192, &to, 16_384, 1 << 20), Ok(1808));
    assert_eq!(fs::metadata(at.at("to")).unwrap().len(), 18_192);
    assert_eq!(copy(&from, 10_000, &to, 0, 10), Ok(0));
    assert_eq!(copy(&from, 1 << 30, &to, 0, 10), Ok(0));
}

fn refusals(at: &Place) {
    at.file("f", &data(10_000, 7));
    let (from, to) = both(at, "f", "g");
    let read = open(&at.at("f"), OFlags::RDONLY).unwrap();
    let write = open(&at.at("g"), OFlags::WRONLY).unwrap();
    refused(copy(&from, 0, &read, 0, 10), Errno::BADF);
    refused(copy(&write, 0, &to, 0, 10), Errno::BADF);
    let append = open(&at.at("g"), OFlags::WRONLY | OFlags::APPEND).unwrap();
    refused(copy(&from, 0, &append, 0, 10), Errno::BADF);
    let dir = open(&at.dir, OFlags::RDONLY).unwrap();
    refused(copy(&dir, 0, &to, 0, 10), Errno::ISDIR);
}

fn same_file(at: &Place) {
    at.file("f", &data(256 << 10, 8));
    let (one, two) = both(at, "f", "f");
    assert_eq!(copy(&one, 0, &two, 256 << 10, 128 << 10), Ok(128 << 10));
    let mut want = data(256 << 10, 8);
    want.extend_from_within(..128 << 10);
    assert!(fs::read(at.at("f")).unwrap() == want);
}

fn same_after(dir: &Path) {
    let places = places(&dir.join("f"));
    let at = |offset: u64| {
        places.iter().find(|(at, _, len)| (*at..at + len).contains(&offset)).map(|(at, to, _)| to + offset - at)
    };
    assert_eq!(at(0), at(256 << 10));
    assert_eq!(at((128 << 10) - 4096), at((384 << 10) - 4096));
}

fn overlapping_is_refused(at: &Place) {
    at.file("f", &data(256 << 10, 9));
    let (one, two) = both(at, "f", "f");
    refused(copy(&one, 0, &two, 4096, 8192), Errno::INVAL);
    refused(copy(&one, 8192, &two, 0, 8193), Errno::INVAL);
    assert!(fs::read(at.at("f")).unwrap() == data(256 << 10, 9));
}

fn into_a_hole_and_over_data(at: &Place) {
    at.file("from", &data(64 << 10, 10));
    let (from, to) = both(at, "from", "to");
    rustix::fs::ftruncate(&to, 1 << 20).unwrap();
    copy(&from, 0, &to, 512 << 10, 64 << 10).unwrap();
    copy(&from, 4096, &to, 540 << 10, 8192).unwrap();
    let mut want = vec![0; 1 << 20];
    want[512 << 10..576 << 10].copy_from_slice(&data(64 << 10, 10));
    want[540 << 10..548 << 10].copy_from_slice(&data(64 << 10, 10)[4096..12_288]);
    assert!(fs::read(at.at("to")).unwrap() == want);
}

/// What was written a moment ago, through a descriptor and through a mapping, is what is cloned.
fn of_what_is_not_on_disk_yet(at: &Place) {
    at.file("from", &data(64 << 10, 11));
    let (from, to) = both(at, "from", "to");
    let map = crate::mount::sys::Map::new(&from, 0, 64 << 10, rustix::mm::MapFlags::SHARED).unwrap();
    map.write(10_000, b"by mapping");
    rustix::io::pwrite(&from, b"by writing", 20_000).unwrap();
    copy(&from, 0, &to, 0, 64 << 10).unwrap();
    let now = fs::read(at.at("to")).unwrap();
    assert_eq!((&now[10_000..10_010], &now[20_000..20_010]), (&b"by mapping"[..], &b"by writing"[..]));
    // And what the target's mapping shows is what was cloned into it.
    let shown = crate::mount::sys::Map::new(&to, 0, 64 << 10, rustix::mm::MapFlags::SHARED).unwrap();
    assert_eq!(shown.read(0, 5), data(64 << 10, 11)[..5]);
    at.file("other", &[0x77; 64 << 10]);
    copy(&open(&at.at("other"), OFlags::RDONLY).unwrap(), 0, &to, 0, 64 << 10).unwrap();
    assert_eq!(shown.read(30_000, 3), [0x77; 3]);
}

fn writing_one_leaves_the_other(at: &Place) {
    at.file("from", &data(256 << 10, 12));
    let (from, to) = both(at, "from", "to");
    copy(&from, 0, &to, 0, 256 << 10).unwrap();
    rustix::io::pwrite(&to, b"changed in the copy", 100_000).unwrap();
    rustix::io::pwrite(&from, b"changed in the source", 200_000).unwrap();
    rustix::fs::ftruncate(&from, 210_000).unwrap();
    writing_after(&at.dir);
}

fn writing_after(dir: &Path) {
    let (mut one, mut two) = (data(256 << 10, 12), data(256 << 10, 12));
    two[100_000..100_019].copy_from_slice(b"changed in the copy");
    one[200_000..200_021].copy_from_slice(b"changed in the source");
    one.truncate(210_000);
    assert!(fs::read(dir.join("from")).unwrap() == one);
    assert!(fs::read(dir.join("to")).unwrap() == two);
}

fn holes_stay_holes(at: &Place) {
    let (from, to) = both(at, "from", "to");
    rustix::fs::ftruncate(&from, 1 << 20).unwrap();
    rustix::io::pwrite(&from, &data(4096, 13), 512 << 10).unwrap();
    copy(&from, 0, &to, 0, 1 << 20).unwrap();
    rustix::fs::fsync(&to).unwrap();
    assert_eq!(rustix::fs::seek(&to, rustix::fs::SeekFrom::Data(0)), Ok(512 << 10));
    assert_eq!(rustix::fs::fstat(&to).unwrap().st_size, 1 << 20);
}

fn ficlone_ioctl(at: &Place) {
    at.file("from", &data(64 << 10, 14));
    let (from, to) = both(at, "from", "to");
    rustix::fs::ioctl_ficlone(&to, &from).unwrap();
    assert!(fs::read(at.at("to")).unwrap() == data(64 << 10, 14));
}

fn dedupe_ioctl(at: &Place) {
    at.file("from", &data(64 << 10, 15));
    at.file("to", &data(64 << 10, 15));
    let (from, to) = both(at, "from", "to");
    assert_eq!(crate::mount::sys::dedupe(&from, &to, 64 << 10), Ok(64 << 10));
}

fn cp_reflink_auto(at: &Place) {
    at.file("from", &data(1 << 20, 16));
    let status = Command::new("cp").arg("--reflink=auto").arg(at.at("from")).arg(at.at("to")).status().unwrap();
    assert!(status.success());
}

fn cp_after(dir: &Path) {
    assert!(fs::read(dir.join("to")).unwrap() == data(1 << 20, 16));
    assert_eq!(places(&dir.join("from")), places(&dir.join("to")));
}

fn across_subvolumes(at: &Place) {
    at.subvolume("v");
    at.file("from", &data(128 << 10, 17));
    let (from, to) = both(at, "from", "v/to");
    assert_eq!(copy(&from, 0, &to, 0, 128 << 10), Ok(128 << 10));
}

fn across_after(dir: &Path) {
    assert!(fs::read(dir.join("v/to")).unwrap() == data(128 << 10, 17));
    assert_eq!(places(&dir.join("from")), places(&dir.join("v/to")));
}

fn positions_move(at: &Place) {
    at.file("from", &data(10_000, 18));
    let (from, to) = both(at, "from", "to");
    rustix::fs::seek(&from, rustix::fs::SeekFrom::Start(100)).unwrap();
    assert_eq!(rustix::fs::copy_file_range(&from, None, &to, None, 5000), Ok(5000));
    assert_eq!(rustix::fs::tell(&from), Ok(5100));
    assert_eq!(rustix::fs::tell(&to), Ok(5000));
    assert_eq!(fs::read(at.at("to")).unwrap(), data(10_000, 18)[100..5100]);
}
