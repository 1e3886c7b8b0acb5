//! Error codes that belong to no single call.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::mount::place::{Place, family, open, refused};

family!(
    "";
    name_too_long, path_too_long, too_many_symlinks, too_many_links after too_many_links_after, text_busy,
    not_a_directory_on_the_way, is_a_directory, across_mounts, offsets_that_cannot_be, missing_fstatat, negative_names_are_not_kept,
    out_of_space_comes_back,
);

fn name_too_long(at: &Place) {
    let (fits, long) = ("n".repeat(255), "n".repeat(256));
    at.file("f", b"");
    let mode = Mode::from_raw_mode(0o755);
    let path = at.at(&long);
    refused(rustix::fs::lstat(&path), Errno::NAMETOOLONG);
    refused(open(&path, OFlags::CREATE | OFlags::WRONLY), Errno::NAMETOOLONG);
    refused(rustix::fs::mkdir(&path, mode), Errno::NAMETOOLONG);
    refused(rustix::fs::rmdir(&path), Errno::NAMETOOLONG);
    refused(rustix::fs::unlink(&path), Errno::NAMETOOLONG);
    refused(rustix::fs::symlink("x", &path), Errno::NAMETOOLONG);
    refused(rustix::fs::link(at.at("f"), &path), Errno::NAMETOOLONG);
    refused(rustix::fs::rename(at.at("f"), &path), Errno::NAMETOOLONG);
    refused(rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0), Errno::NAMETOOLONG);
    rustix::fs::rename(at.at("f"), at.at(&fits)).unwrap();
    rustix::fs::mkdir(at.at("d"), mode).unwrap();
    rustix::fs::link(at.at(&fits), at.at(&format!("d/{fits}"))).unwrap();
    rustix::fs::unlink(at.at(&fits)).unwrap();
    rustix::fs::unlink(at.at(&format!("d/{fits}"))).unwrap();
}

fn path_too_long(at: &Place) {
    let mut path = at.dir.clone();
    while path.as_os_str().len() < 4000 {
        path.push("d".repeat(90));
        fs::create_dir(&path).unwrap();
    }
    refused(rustix::fs::stat(path.join("x".repeat(200))), Errno::NAMETOOLONG);
    // Deeper than any path can say, by way of descriptors.
    let start = fs::File::open(&path).unwrap();
    let mut dir = start.try_clone().unwrap();
    for _ in 0..5 {
        rustix::fs::mkdirat(&dir, "deep".repeat(60), Mode::from_raw_mode(0o755)).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, "deep".repeat(60), flags, Mode::empty()).unwrap().into();
    }
    // Shallow again, or the manifest could not be taken.
    rustix::fs::renameat(&start, "deep".repeat(60), CWD, at.at("shallow")).unwrap();
    assert!(at.at("shallow").join("deep".repeat(60)).is_dir());
}

fn too_many_symlinks(at: &Place) {
    rustix::fs::symlink("b", at.at("a")).unwrap();
    rustix::fs::symlink("a", at.at("b")).unwrap();
    refused(rustix::fs::stat(at.at("a")), Errno::LOOP);
    refused(open(&at.at("a"), OFlags::RDONLY), Errno::LOOP);
    refused(open(&at.at("a"), OFlags::CREATE | OFlags::WRONLY), Errno::LOOP);
    refused(rustix::fs::mkdir(at.at("a/x"), Mode::from_raw_mode(0o755)), Errno::LOOP);
    refused(rustix::fs::rename(at.at("a/x"), at.at("c")), Errno::LOOP);
    at.file("f", b"found");
    for n in 0..45 {
        let to = if n == 0 { "f".to_owned() } else { format!("l{}", n - 1) };
        rustix::fs::symlink(to, at.at(&format!("l{n}"))).unwrap();
    }
    assert_eq!(fs::read(at.at("l39")).unwrap(), b"found");
    refused(rustix::fs::stat(at.at("l40")), Errno::LOOP);
}

/// One inode has 65535 names at most, whatever the directories.
fn too_many_links(at: &Place) {
    const LINKS_MAX: u64 = 65_535;
    let path = at.file("f", b"");
    at.subdir("d");
    let dir = fs::File::open(at.at("d")).unwrap();
    for n in 1..LINKS_MAX {
        rustix::fs::linkat(CWD, &path, &dir, format!("{n}"), AtFlags::empty()).unwrap();
    }
    assert_eq!(fs::metadata(&path).unwrap().nlink(), LINKS_MAX);
    refused(rustix::fs::link(&path, at.at("more")), Errno::MLINK);
    rustix::fs::unlinkat(&dir, "77", AtFlags::empty()).unwrap();
    rustix::fs::link(&path, at.at("more")).unwrap();
    refused(rustix::fs::link(&path, at.at("d/77")), Errno::MLINK);
    for n in 1..LINKS_MAX - 100 {
        if n != 77 {
            rustix::fs::unlinkat(&dir, format!("{n}"), AtFlags::empty()).unwrap();
        }
    }
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 102);
}

fn too_many_links_after(dir: &std::path::Path) {
    assert_eq!(fs::metadata(dir.join("f")).unwrap().nlink(), 102);
    assert_eq!(fs::read_dir(dir.join("d")).unwrap().count(), 100);
}

fn text_busy(at: &Place) {
    let path = at.at("sleep");
    oleo_sim::oracle::copy_program(std::path::Path::new("/bin/sleep"), &path).unwrap();
    let file = open(&path, OFlags::WRONLY).unwrap();
    let e = Command::new(&path).arg("60").spawn().map(drop).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::TXTBSY.raw_os_error()));
    drop(file);
    // Children of other tests may hold it for a moment longer, until they run their program.
    let busy = |e: &std::io::Error| e.raw_os_error() == Some(Errno::TXTBSY.raw_os_error());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let mut child = loop {
        match Command::new(&path).arg("60").spawn() {
            Err(e) if busy(&e) && std::time::Instant::now() < deadline => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    let result = open(&path, OFlags::WRONLY);
    let cut = rustix::fs::open(&path, OFlags::WRONLY | OFlags::TRUNC, Mode::empty());
    child.kill().unwrap();
    child.wait().unwrap();
    refused(result, Errno::TXTBSY);
    refused(cut, Errno::TXTBSY);
    open(&path, OFlags::WRONLY).unwrap();
    // What runs can be removed.
    let mut child = Command::new(&path).arg("60").spawn().unwrap();
    fs::remove_file(&path).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

fn not_a_directory_on_the_way(at: &Place) {
    at.file("f", b"");
    let mode = Mode::from_raw_mode(0o755);
    let below = at.at("f/x");
    refused(rustix::fs::stat(&below), Errno::NOTDIR);
    refused(open(&below, OFlags::CREATE | OFlags::RDWR), Errno::NOTDIR);
    refused(rustix::fs::mkdir(&below, mode), Errno::NOTDIR);
    refused(rustix::fs::rmdir(&below), Errno::NOTDIR);
    refused(rustix::fs::unlink(&below), Errno::NOTDIR);
    refused(rustix::fs::symlink("x", &below), Errno::NOTDIR);
    refused(rustix::fs::chmod(&below, mode), Errno::NOTDIR);
    refused(rustix::fs::rename(&below, at.at("y")), Errno::NOTDIR);
    refused(rustix::fs::readlink(&below, Vec::new()), Errno::NOTDIR);
}

fn is_a_directory(at: &Place) {
    let dir = at.subdir("d");
    let file = fs::File::open(&dir).unwrap();
    refused(rustix::fs::unlink(&dir), Errno::ISDIR);
    refused(rustix::fs::ftruncate(&file, 0), Errno::INVAL);
    refused(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1), Errno::BADF);
    let e = fs::OpenOptions::new().write(true).truncate(true).open(&dir).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::ISDIR.raw_os_error()));
}

fn across_mounts(at: &Place) {
    let other = tempfile_in_memory();
    let theirs = other.path().join("x");
    fs::write(&theirs, b"").unwrap();
    at.file("f", b"");
    refused(rustix::fs::rename(at.at("f"), other.path().join("y")), Errno::XDEV);
    refused(rustix::fs::rename(&theirs, at.at("y")), Errno::XDEV);
    refused(rustix::fs::link(&theirs, at.at("y")), Errno::XDEV);
    refused(rustix::fs::renameat_with(CWD, &theirs, CWD, at.at("f"), RenameFlags::EXCHANGE), Errno::XDEV);
}

fn tempfile_in_memory() -> oleo_sim::oracle::Scratch {
    oleo_sim::oracle::Scratch::new().unwrap()
}

fn offsets_that_cannot_be(at: &Place) {
    let path = at.file("f", b"x");
    let file = open(&path, OFlags::RDWR).unwrap();
    let mut buf = [0; 4];
    assert_eq!(rustix::io::pread(&file, &mut buf[..], 1 << 62), Ok(0));
    refused(rustix::io::pread(&file, &mut buf[..], u64::MAX), Errno::INVAL);
    refused(rustix::io::pwrite(&file, b"x", u64::MAX), Errno::INVAL);
    refused(rustix::fs::ftruncate(&file, u64::MAX), Errno::INVAL);
    let none = rustix::fs::FallocateFlags::empty();
    refused(rustix::fs::fallocate(&file, none, 0, 0), Errno::INVAL);
    refused(rustix::fs::fallocate(&file, none, u64::MAX, 1), Errno::INVAL);
    refused(rustix::fs::fallocate(&file, none, i64::MAX as u64, 10), Errno::FBIG);
    // A file may be nearly as long as an offset can say, as long as most of it is a hole.
    rustix::fs::ftruncate(&file, (1 << 60) + 123).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, (1 << 60) + 123);
    rustix::io::pwrite(&file, b"far", (1 << 60) + 200).unwrap();
    assert_eq!(rustix::io::pread(&file, &mut buf[..], (1 << 60) + 200), Ok(3));
    assert_eq!(&buf[..3], b"far");
    rustix::fs::ftruncate(&file, 1).unwrap();
}

fn missing_fstatat(at: &Place) {
    let gone = at.at("none");
    let mode = Mode::from_raw_mode(0o600);
    refused(rustix::fs::stat(&gone), Errno::NOENT);
    refused(rustix::fs::chmod(&gone, mode), Errno::NOENT);
    refused(rustix::fs::chown(&gone, None, None), Errno::NOENT);
    refused(rustix::fs::readlink(&gone, Vec::new()), Errno::NOENT);
    refused(rustix::fs::access(&gone, rustix::fs::Access::EXISTS), Errno::NOENT);
    refused(rustix::fs::statat(fs::File::open(at.file("f", b"")).unwrap(), "x", AtFlags::empty()), Errno::NOTDIR);
}

/// A name that was looked for in vain is found once somebody has made it, in whatever way.
fn negative_names_are_not_kept(at: &Place) {
    let gone = |name: &str| refused(rustix::fs::lstat(at.at(name)), Errno::NOENT);
    let there = |name: &str| assert!(rustix::fs::lstat(at.at(name)).is_ok(), "{name}");
    for name in ["a", "b", "c", "d", "e", "x"] {
        gone(name);
    }
    at.file("a", b"");
    there("a");
    at.subdir("b");
    there("b");
    rustix::fs::symlink("x", at.at("c")).unwrap();
    there("c");
    rustix::fs::link(at.at("a"), at.at("d")).unwrap();
    there("d");
    rustix::fs::rename(at.at("a"), at.at("e")).unwrap();
    there("e");
    gone("a");
    fs::remove_file(at.at("e")).unwrap();
    gone("e");
}

/// A full file system says so in the call, loses nothing that it has accepted, and has room again when files go.
fn out_of_space_comes_back(at: &Place) {
    const PART: usize = 8 << 20;
    let data: Vec<u8> = (0..PART).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut file = fs::File::create(at.at("big")).unwrap();
    let mut parts = 0u64;
    let e = loop {
        assert!(parts < 1000, "the image is not that large");
        match file.write_all(&data).and_then(|()| file.sync_all()) {
            Ok(()) => parts += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(e.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert!(parts > 100, "{parts} parts of 8 MiB in an image of 2 GiB");
    drop(file);
    fs::remove_file(at.at("big")).unwrap();
    at.commit();
    // A commit is all that freed space needs.
    let again = fs::File::create(at.at("again")).unwrap();
    (&again).write_all(&data).and_then(|()| again.sync_all()).expect("there is room again");
    assert_eq!(fs::read(at.at("again")).unwrap(), data);
}
