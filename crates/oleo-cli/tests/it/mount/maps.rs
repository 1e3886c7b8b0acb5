//! mmap: shared and private, beside read and write.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::mount::place::{Place, family, open, refused};
use crate::mount::sys::Map;

family!(
    "";
    shared_write after shared_after, private_write_stays_private after private_after, sees_writes, writes_see_it, after_close after closed_after, in_a_hole after hole_after,
    rights, last_page, truncate_under_a_mapping, punch_under_a_mapping, two_mappings, private_of_read_only, many_pages after many_after,
    mapped_program, mapped_while_appended,
);

fn file(at: &Place, name: &str, data: &[u8]) -> OwnedFd {
    open(&at.file(name, data), OFlags::RDWR).unwrap()
}

fn shared_write(at: &Place) {
    let f = file(at, "f", &[1; 100_000]);
    let map = Map::new(&f, 0, 100_000, MapFlags::SHARED).unwrap();
    map.write(50_000, b"mapped");
    map.sync().unwrap();
    shared_after(&at.dir);
}

fn shared_after(dir: &Path) {
    let mut want = vec![1; 100_000];
    want[50_000..50_006].copy_from_slice(b"mapped");
    assert!(fs::read(dir.join("f")).unwrap() == want);
}

fn private_write_stays_private(at: &Place) {
    let f = file(at, "f", &[1; 100_000]);
    let map = Map::new(&f, 0, 100_000, MapFlags::PRIVATE).unwrap();
    map.write(50_000, b"mapped");
    assert_eq!(map.read(50_000, 6), b"mapped");
    // Pages that it has not changed still follow the file.
    rustix::io::pwrite(&f, b"written", 0).unwrap();
    assert_eq!(map.read(0, 7), b"written");
    drop(map);
    private_after(&at.dir);
}

fn private_after(dir: &Path) {
    let now = fs::read(dir.join("f")).unwrap();
    assert_eq!(&now[..7], b"written");
    assert!(now[7..].iter().all(|b| *b == 1));
}

fn sees_writes(at: &Place) {
    let f = file(at, "f", &[1; 20_000]);
    let map = Map::new(&f, 0, 20_000, MapFlags::SHARED).unwrap();
    assert_eq!(map.read(9000, 3), [1; 3]);
    rustix::io::pwrite(&f, b"new", 9000).unwrap();
    assert_eq!(map.read(9000, 3), b"new");
    // Also through another descriptor.
    let other = open(&at.at("f"), OFlags::WRONLY).unwrap();
    rustix::io::pwrite(&other, b"NEW", 4095).unwrap();
    assert_eq!(map.read(4095, 3), b"NEW");
}

fn writes_see_it(at: &Place) {
    let f = file(at, "f", &[1; 20_000]);
    let map = Map::new(&f, 0, 20_000, MapFlags::SHARED).unwrap();
    map.write(4000, &[2; 200]);
    // Without msync, through any descriptor.
    let mut buf = [0; 202];
    assert_eq!(rustix::io::pread(&f, &mut buf[..], 3999), Ok(202));
    assert_eq!((buf[0], buf[1], buf[200], buf[201]), (1, 2, 2, 1));
    // A write into the middle of a changed page keeps the rest of the change.
    rustix::io::pwrite(&f, &[3; 10], 4090).unwrap();
    let now = fs::read(at.at("f")).unwrap();
    assert_eq!((now[4089], now[4090], now[4099], now[4100], now[4199], now[4200]), (2, 3, 3, 2, 2, 1));
}

fn after_close(at: &Place) {
    let f = file(at, "f", &[1; 20_000]);
    let map = Map::new(&f, 0, 20_000, MapFlags::SHARED).unwrap();
    drop(f);
    map.write(10_000, b"after close");
    drop(map);
    closed_after(&at.dir);
}

fn closed_after(dir: &Path) {
    assert_eq!(&fs::read(dir.join("f")).unwrap()[10_000..10_011], b"after close");
}

fn in_a_hole(at: &Place) {
    let f = file(at, "f", b"");
    rustix::fs::ftruncate(&f, 1 << 20).unwrap();
    let map = Map::new(&f, 0, 1 << 20, MapFlags::SHARED).unwrap();
    assert_eq!(map.read(500_000, 4), [0; 4]);
    map.write(500_000, b"in a hole");
    map.sync().unwrap();
    hole_after(&at.dir);
    assert!(rustix::fs::fstat(&f).unwrap().st_blocks * 512 <= 16_384);
}

fn hole_after(dir: &Path) {
    let now = fs::read(dir.join("f")).unwrap();
    assert_eq!(now.len(), 1 << 20);
    assert_eq!(&now[500_000..500_009], b"in a hole");
    assert!(now[..500_000].iter().all(|b| *b == 0));
}

fn rights(at: &Place) {
    at.file("f", &[1; 5000]);
    let read = open(&at.at("f"), OFlags::RDONLY).unwrap();
    refused(Map::new(&read, 0, 4096, MapFlags::SHARED), Errno::ACCESS);
    Map::with(&read, 0, 4096, MapFlags::SHARED, ProtFlags::READ).unwrap();
    let write = open(&at.at("f"), OFlags::WRONLY).unwrap();
    refused(Map::with(&write, 0, 4096, MapFlags::SHARED, ProtFlags::READ), Errno::ACCESS);
    let dir = open(&at.dir, OFlags::RDONLY).unwrap();
    refused(Map::with(&dir, 0, 4096, MapFlags::SHARED, ProtFlags::READ), Errno::NODEV);
}

/// Behind the end of the file the last page is zeros, and what is written there does not get into the file.
fn last_page(at: &Place) {
    let f = file(at, "f", &[1; 5000]);
    let map = Map::new(&f, 0, 8192, MapFlags::SHARED).unwrap();
    assert_eq!(map.read(5000, 3192), vec![0; 3192]);
    map.write(4998, &[2; 100]);
    map.sync().unwrap();
    assert_eq!(rustix::fs::fstat(&f).unwrap().st_size, 5000);
    drop(map);
    rustix::fs::ftruncate(&f, 6000).unwrap();
    let now = fs::read(at.at("f")).unwrap();
    assert_eq!(now[4997..5000], [1, 2, 2]);
    assert!(now[5000..].iter().all(|b| *b == 0), "what was written behind the end came back");
}

fn truncate_under_a_mapping(at: &Place) {
    let f = file(at, "f", &[1; 20_000]);
    let map = Map::new(&f, 0, 20_000, MapFlags::SHARED).unwrap();
    map.write(5000, &[2; 10_000]);
    rustix::fs::ftruncate(&f, 6000).unwrap();
    rustix::fs::ftruncate(&f, 20_000).unwrap();
    assert_eq!(map.read(5999, 2), [2, 0]);
    assert_eq!(map.read(8192, 1000), vec![0; 1000]);
    map.write(12_000, b"again");
    assert_eq!(&fs::read(at.at("f")).unwrap()[12_000..12_005], b"again");
}

fn punch_under_a_mapping(at: &Place) {
    let f = file(at, "f", &[1; 32_768]);
    let map = Map::new(&f, 0, 32_768, MapFlags::SHARED).unwrap();
    map.write(0, &[2; 32_768]);
    rustix::fs::fallocate(&f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8000, 10_000).unwrap();
    assert_eq!(map.read(7999, 2), [2, 0]);
    assert_eq!(map.read(12_288, 4096), vec![0; 4096]);
    assert_eq!(map.read(17_999, 2), [0, 2]);
    rustix::fs::fallocate(&f, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap();
    assert_eq!(map.read(4095, 2), [0, 2]);
}

fn two_mappings(at: &Place) {
    let f = file(at, "f", &[1; 20_000]);
    let one = Map::new(&f, 0, 8192, MapFlags::SHARED).unwrap();
    let two = Map::new(open(&at.at("f"), OFlags::RDWR).unwrap(), 4096, 8192, MapFlags::SHARED).unwrap();
    one.write(5000, b"shared");
    assert_eq!(two.read(5000 - 4096, 6), b"shared");
}

fn private_of_read_only(at: &Place) {
    at.file("f", &[1; 5000]);
    let read = open(&at.at("f"), OFlags::RDONLY).unwrap();
    let map = Map::new(&read, 0, 4096, MapFlags::PRIVATE).unwrap();
    map.write(0, b"mine");
    assert_eq!(map.read(0, 5), b"mine\x01");
    assert_eq!(fs::read(at.at("f")).unwrap()[..4], [1; 4]);
}

const MANY: usize = 16 << 20;

fn many_pages(at: &Place) {
    let f = file(at, "f", b"");
    rustix::fs::ftruncate(&f, MANY as u64).unwrap();
    let map = Map::new(&f, 0, MANY, MapFlags::SHARED).unwrap();
    for page in (0..MANY / 4096).step_by(3) {
        map.write(page * 4096 + page % 4000, &(page as u64).to_le_bytes());
    }
    map.sync().unwrap();
    many_after(&at.dir);
}

fn many_after(dir: &Path) {
    let now = fs::read(dir.join("f")).unwrap();
    assert_eq!(now.len(), MANY);
    for page in 0..MANY / 4096 {
        let at = page * 4096 + page % 4000;
        let want = if page % 3 == 0 { (page as u64).to_le_bytes() } else { [0; 8] };
        assert_eq!(now[at..at + 8], want, "page {page}");
    }
}

/// A program is mapped when it runs.
fn mapped_program(at: &Place) {
    oleo_sim::oracle::copy_program(Path::new("/bin/ls"), &at.at("ls")).unwrap();
    rustix::fs::chmod(at.at("ls"), rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
    let out = std::process::Command::new(at.at("ls")).arg(&at.dir).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ls\n");
}

fn mapped_while_appended(at: &Place) {
    let f = file(at, "f", &[1; 4096]);
    let map = Map::new(&f, 0, 65_536, MapFlags::SHARED).unwrap();
    map.write(0, b"first");
    rustix::io::pwrite(&f, &[2; 61_440], 4096).unwrap();
    assert_eq!(map.read(65_535, 1), [2]);
    map.write(30_000, b"later");
    let now = fs::read(at.at("f")).unwrap();
    assert_eq!((&now[..5], &now[30_000..30_005]), (&b"first"[..], &b"later"[..]));
}
