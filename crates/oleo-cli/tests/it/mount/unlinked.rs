//! Files without a name that somebody still has open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use crate::mount::place::{Place, family, open, refused};
use crate::mount::sys::Map;

family!(
    "";
    read_and_write after none_left, truncate_and_grow, attributes, mapped, replaced_by_a_rename after one_left, directory, last_of_many_names,
    name_taken_again after taken_after, clone_from_it after cloned_after, many_at_once after none_left, cannot_get_a_name_back, synced_and_gone after none_left,
);

fn gone(at: &Place, data: &[u8]) -> std::os::fd::OwnedFd {
    let path = at.file("f", data);
    let file = open(&path, OFlags::RDWR).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    file
}

fn none_left(dir: &Path) {
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

fn read_and_write(at: &Place) {
    let file = gone(at, &[1; 100_000]);
    let mut buf = [0; 5];
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 99_998), Ok(2));
    rustix::io::pwrite(&file, &[2; 200_000], 50_000).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 250_000);
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 49_998), Ok(5));
    assert_eq!(buf, [1, 1, 2, 2, 2]);
    rustix::fs::fsync(&file).unwrap();
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 249_998), Ok(2));
    none_left(&at.dir);
}

fn truncate_and_grow(at: &Place) {
    let file = gone(at, &[1; 100_000]);
    rustix::fs::ftruncate(&file, 10).unwrap();
    rustix::fs::ftruncate(&file, 20_000).unwrap();
    let mut buf = [9; 4];
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 8), Ok(4));
    assert_eq!(buf, [1, 1, 0, 0]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 100_000);
    rustix::fs::ftruncate(&file, 0).unwrap();
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 0), Ok(0));
}

fn attributes(at: &Place) {
    let file = gone(at, b"x");
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o640)).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o7777, 0o640);
    rustix::fs::fsetxattr(&file, "user.a", b"x", XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::fgetxattr(&file, "user.a", &mut [0; 5][..]), Ok(1));
    rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(5)), None).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_uid, 5);
}

fn mapped(at: &Place) {
    let path = at.file("f", &[1; 20_000]);
    let map = Map::new(open(&path, OFlags::RDWR).unwrap(), 0, 20_000, MapFlags::SHARED).unwrap();
    fs::remove_file(&path).unwrap();
    // Only the mapping holds the file now.
    assert_eq!(map.read(15_000, 2), [1, 1]);
    map.write(15_000, b"still here");
    map.sync().unwrap();
    assert_eq!(map.read(15_000, 10), b"still here");
}

fn replaced_by_a_rename(at: &Place) {
    let old = open(&at.file("f", b"old"), OFlags::RDWR).unwrap();
    at.file("new", b"new content");
    fs::rename(at.at("new"), at.at("f")).unwrap();
    let mut buf = [0; 20];
    assert_eq!(rustix::io::pread(&old, &mut buf[..], 0), Ok(3));
    assert_eq!(&buf[..3], b"old");
    rustix::io::pwrite(&old, b"changed", 0).unwrap();
    assert_eq!(fs::read(at.at("f")).unwrap(), b"new content");
}

fn one_left(dir: &Path) {
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"new content");
}

fn directory(at: &Place) {
    let dir = open(&at.subdir("d"), OFlags::RDONLY).unwrap();
    fs::remove_dir(at.at("d")).unwrap();
    assert_eq!(rustix::fs::fstat(&dir).unwrap().st_nlink, 0);
    let flags = OFlags::CREATE | OFlags::RDWR;
    refused(rustix::fs::openat(&dir, "x", flags, Mode::from_raw_mode(0o644)), Errno::NOENT);
    refused(rustix::fs::statat(&dir, "x", AtFlags::empty()), Errno::NOENT);
    rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o700)).unwrap();
}

fn last_of_many_names(at: &Place) {
    let file = open(&at.file("f", b"content"), OFlags::RDWR).unwrap();
    at.subdir("d");
    for n in 0..10 {
        fs::hard_link(at.at("f"), at.at(&format!("d/{n}"))).unwrap();
    }
    fs::remove_file(at.at("f")).unwrap();
    fs::remove_dir_all(at.at("d")).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    assert_eq!(rustix::io::pread(&file, &mut [0; 20][..], 0), Ok(7));
}

fn name_taken_again(at: &Place) {
    let one = gone(at, b"first");
    let path = at.file("f", b"second");
    let two = open(&path, OFlags::RDWR).unwrap();
    assert_ne!(rustix::fs::fstat(&one).unwrap().st_ino, rustix::fs::fstat(&two).unwrap().st_ino);
    rustix::io::pwrite(&one, b"FIRST", 0).unwrap();
    let mut buf = [0; 6];
    assert_eq!(rustix::io::pread(&two, &mut buf[..], 0), Ok(6));
    assert_eq!(&buf, b"second");
}

fn taken_after(dir: &Path) {
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"second");
    assert_eq!(fs::metadata(dir.join("f")).unwrap().nlink(), 1);
}

fn clone_from_it(at: &Place) {
    let file = gone(at, &[7; 128 << 10]);
    let to = open(&at.at("to"), OFlags::CREATE | OFlags::RDWR).unwrap();
    let len = rustix::fs::copy_file_range(&file, Some(&mut 0), &to, Some(&mut 0), 128 << 10).unwrap();
    assert_eq!(len, 128 << 10);
}

fn cloned_after(dir: &Path) {
    assert!(fs::read(dir.join("to")).unwrap() == vec![7; 128 << 10]);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
}

fn many_at_once(at: &Place) {
    let files: Vec<_> = (0..200u8).map(|n| (n, gone(at, &[n; 6000]))).collect();
    at.commit();
    for (n, file) in &files {
        let mut buf = [0; 2];
        assert_eq!(rustix::io::pread(file, &mut buf[..], 5000), Ok(2));
        assert_eq!(buf, [*n; 2]);
    }
}

fn cannot_get_a_name_back(at: &Place) {
    let file = gone(at, b"x");
    refused(rustix::fs::linkat(&file, "", CWD, at.at("g"), AtFlags::EMPTY_PATH), Errno::NOENT);
}

fn synced_and_gone(at: &Place) {
    let path = at.file("f", &[1; 100_000]);
    let file = open(&path, OFlags::RDWR).unwrap();
    rustix::fs::fsync(&file).unwrap();
    fs::remove_file(&path).unwrap();
    rustix::io::pwrite(&file, &[2; 100_000], 50_000).unwrap();
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::syncfs(&file).unwrap();
}
