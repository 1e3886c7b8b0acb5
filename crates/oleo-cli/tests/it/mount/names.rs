//! Making, linking, moving and removing names.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags};
use rustix::io::Errno;

use crate::mount::place::{Place, family, refused};

family!(
    "";
    mkdir, mkdir_refusals, mknod after mknod_after, symlink, symlink_lengths, link, link_refusals, link_of_a_symlink, unlink,
    rmdir, rename_in_place, rename_over_a_file, rename_over_a_directory, rename_refusals, rename_to_itself,
    rename_into_itself, rename_across_directories, noreplace, exchange after exchange_after, exchange_refusals,
    whiteout after whiteout_after, whiteout_refusals, names_of_any_bytes, two_renames_at_once, dot_and_dotdot,
);

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn ren(at: &Place, from: &str, to: &str, flags: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, at.at(from), CWD, at.at(to), flags)
}

fn mv(at: &Place, from: &str, to: &str) -> rustix::io::Result<()> {
    ren(at, from, to, RenameFlags::empty())
}

fn mkdir(at: &Place) {
    rustix::fs::mkdir(at.at("d"), mode(0o1751)).unwrap();
    let meta = fs::metadata(at.at("d")).unwrap();
    assert!(meta.is_dir());
    assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o1751, 1));
    assert_eq!(fs::read_dir(at.at("d")).unwrap().count(), 0);
    rustix::fs::mkdir(at.at("d/e"), mode(0o700)).unwrap();
    assert_eq!(fs::metadata(at.at("d")).unwrap().nlink(), 1);
}

fn mkdir_refusals(at: &Place) {
    at.file("f", b"");
    at.subdir("d");
    rustix::fs::symlink("nowhere", at.at("l")).unwrap();
    for name in ["f", "d", "l"] {
        refused(rustix::fs::mkdir(at.at(name), mode(0o755)), Errno::EXIST);
    }
    refused(rustix::fs::mkdir(at.at("none/d"), mode(0o755)), Errno::NOENT);
    refused(rustix::fs::mkdir(at.at("f/d"), mode(0o755)), Errno::NOTDIR);
}

const NODES: [(&str, FileType, u32); 5] = [
    ("file", FileType::RegularFile, 0o644),
    ("fifo", FileType::Fifo, 0o600),
    ("socket", FileType::Socket, 0o755),
    ("char", FileType::CharacterDevice, 0o620),
    ("block", FileType::BlockDevice, 0o660),
];

fn mknod(at: &Place) {
    let rdev = rustix::fs::makedev(0xabc, 0x12345);
    for (name, kind, bits) in NODES {
        rustix::fs::mknodat(CWD, at.at(name), kind, mode(bits), rdev).unwrap();
        refused(rustix::fs::mknodat(CWD, at.at(name), kind, mode(bits), rdev), Errno::EXIST);
    }
    mknod_after(&at.dir);
    refused(rustix::fs::mknodat(CWD, at.at("dir"), FileType::Directory, mode(0o755), 0), Errno::PERM);
}

fn mknod_after(dir: &std::path::Path) {
    for (name, kind, bits) in NODES {
        let stat = rustix::fs::lstat(dir.join(name)).unwrap();
        assert_eq!(FileType::from_raw_mode(stat.st_mode), kind);
        assert_eq!(stat.st_mode & 0o7777, bits);
        if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            assert_eq!((rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)), (0xabc, 0x12345));
        }
    }
    assert!(fs::symlink_metadata(dir.join("socket")).unwrap().file_type().is_socket());
}

fn symlink(at: &Place) {
    rustix::fs::symlink("../some/where", at.at("l")).unwrap();
    assert_eq!(fs::read_link(at.at("l")).unwrap().to_str(), Some("../some/where"));
    let stat = rustix::fs::lstat(at.at("l")).unwrap();
    assert_eq!((stat.st_mode, stat.st_size), (0o120_777, 13));
    refused(rustix::fs::symlink("x", at.at("l")), Errno::EXIST);
    refused(rustix::fs::symlink("", at.at("m")), Errno::NOENT);
    at.file("f", b"");
    refused(rustix::fs::readlink(at.at("f"), Vec::new()), Errno::INVAL);
}

/// PATH_MAX counts the zero at the end.
fn symlink_lengths(at: &Place) {
    for len in [1, 255, 1000, 4000, 4095, 4096] {
        let target = "t".repeat(len);
        let made = rustix::fs::symlink(target.as_str(), at.at(&format!("l{len}")));
        if len < 4096 {
            made.unwrap();
            assert_eq!(fs::read_link(at.at(&format!("l{len}"))).unwrap().to_str(), Some(target.as_str()));
        } else {
            refused(made, Errno::NAMETOOLONG);
        }
    }
}

fn link(at: &Place) {
    let path = at.file("a", b"content");
    rustix::fs::link(&path, at.at("b")).unwrap();
    at.subdir("d");
    rustix::fs::link(&path, at.at("d/c")).unwrap();
    let (a, c) = (fs::metadata(&path).unwrap(), fs::metadata(at.at("d/c")).unwrap());
    assert_eq!((a.ino(), a.nlink(), c.ino(), c.nlink()), (c.ino(), 3, a.ino(), 3));
    fs::write(at.at("b"), b"changed").unwrap();
    assert_eq!(fs::read(at.at("d/c")).unwrap(), b"changed");
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(at.at("b")).unwrap().nlink(), 2);
    assert_eq!(fs::read(at.at("b")).unwrap(), b"changed");
}

fn link_refusals(at: &Place) {
    at.file("a", b"");
    at.file("b", b"");
    at.subdir("d");
    refused(rustix::fs::link(at.at("a"), at.at("b")), Errno::EXIST);
    refused(rustix::fs::link(at.at("a"), at.at("d")), Errno::EXIST);
    refused(rustix::fs::link(at.at("d"), at.at("e")), Errno::PERM);
    refused(rustix::fs::link(at.at("none"), at.at("e")), Errno::NOENT);
    refused(rustix::fs::link(at.at("a"), at.at("none/e")), Errno::NOENT);
    refused(rustix::fs::link(at.at("a"), at.at("b/e")), Errno::NOTDIR);
}

fn link_of_a_symlink(at: &Place) {
    at.file("f", b"");
    rustix::fs::symlink("f", at.at("l")).unwrap();
    rustix::fs::linkat(CWD, at.at("l"), CWD, at.at("m"), AtFlags::empty()).unwrap();
    assert!(fs::symlink_metadata(at.at("m")).unwrap().is_symlink());
    assert_eq!(fs::symlink_metadata(at.at("l")).unwrap().nlink(), 2);
    rustix::fs::linkat(CWD, at.at("l"), CWD, at.at("n"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert!(fs::symlink_metadata(at.at("n")).unwrap().is_file());
}

fn unlink(at: &Place) {
    at.file("f", b"x");
    rustix::fs::unlink(at.at("f")).unwrap();
    refused(rustix::fs::unlink(at.at("f")), Errno::NOENT);
    at.subdir("d");
    refused(rustix::fs::unlink(at.at("d")), Errno::ISDIR);
    rustix::fs::symlink("d", at.at("l")).unwrap();
    rustix::fs::unlink(at.at("l")).unwrap();
    assert!(at.at("d").is_dir());
    // The name can be taken immediately, by something else.
    fs::create_dir(at.at("f")).unwrap();
}

fn rmdir(at: &Place) {
    at.subdir("d");
    at.file("d/f", b"");
    refused(rustix::fs::rmdir(at.at("d")), Errno::NOTEMPTY);
    refused(rustix::fs::rmdir(at.at("d/f")), Errno::NOTDIR);
    fs::remove_file(at.at("d/f")).unwrap();
    rustix::fs::rmdir(at.at("d")).unwrap();
    refused(rustix::fs::rmdir(at.at("d")), Errno::NOENT);
    at.subdir("e");
    refused(rustix::fs::rmdir(at.at("e/.")), Errno::INVAL);
    refused(rustix::fs::rmdir(at.at("e/..")), Errno::NOTEMPTY);
    rustix::fs::symlink("e", at.at("l")).unwrap();
    refused(rustix::fs::rmdir(at.at("l")), Errno::NOTDIR);
    // In a directory that is gone, but open, nothing can be made.
    let dir = fs::File::open(at.at("e")).unwrap();
    rustix::fs::rmdir(at.at("e")).unwrap();
    refused(rustix::fs::mkdirat(&dir, "x", mode(0o755)), Errno::NOENT);
    assert_eq!(rustix::fs::Dir::read_from(&dir).unwrap().count(), 0);
}

fn rename_in_place(at: &Place) {
    let path = at.file("a", b"content");
    let ino = fs::metadata(&path).unwrap().ino();
    mv(at, "a", "b").unwrap();
    assert!(!at.at("a").exists());
    assert_eq!(fs::metadata(at.at("b")).unwrap().ino(), ino);
    assert_eq!(fs::read(at.at("b")).unwrap(), b"content");
    refused(mv(at, "a", "c"), Errno::NOENT);
    refused(mv(at, "b", "none/c"), Errno::NOENT);
}

fn rename_over_a_file(at: &Place) {
    at.file("a", b"new");
    let old = fs::File::open(at.file("b", b"old")).unwrap();
    rustix::fs::link(at.at("b"), at.at("second")).unwrap();
    mv(at, "a", "b").unwrap();
    assert_eq!(fs::read(at.at("b")).unwrap(), b"new");
    assert_eq!(fs::read(at.at("second")).unwrap(), b"old");
    assert_eq!(rustix::fs::fstat(&old).unwrap().st_nlink, 1);
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 2);
}

fn rename_over_a_directory(at: &Place) {
    at.subdir("a");
    at.file("a/f", b"x");
    at.subdir("b");
    mv(at, "a", "b").unwrap();
    assert_eq!(fs::read(at.at("b/f")).unwrap(), b"x");
    assert!(!at.at("a").exists());
    at.subdir("c");
    refused(mv(at, "c", "b"), Errno::NOTEMPTY);
    assert!(at.at("c").is_dir());
}

fn rename_refusals(at: &Place) {
    at.subdir("d");
    at.subdir("e");
    at.file("f", b"");
    refused(mv(at, "d", "f"), Errno::NOTDIR);
    refused(mv(at, "f", "d"), Errno::ISDIR);
    refused(mv(at, "f", "f/x"), Errno::NOTDIR);
    refused(mv(at, "d/.", "x"), Errno::BUSY);
    refused(mv(at, "d/..", "x"), Errno::BUSY);
    refused(mv(at, "f", "d/.."), Errno::BUSY);
    let all = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    refused(ren(at, "d", "e", all), Errno::INVAL);
}

fn rename_to_itself(at: &Place) {
    at.file("a", b"x");
    mv(at, "a", "a").unwrap();
    rustix::fs::link(at.at("a"), at.at("b")).unwrap();
    // Two names of one file: nothing happens.
    mv(at, "a", "b").unwrap();
    assert!(at.at("a").exists() && at.at("b").exists());
    at.subdir("d");
    mv(at, "d", "d").unwrap();
}

fn rename_into_itself(at: &Place) {
    at.subdir("a");
    at.subdir("a/b");
    at.subdir("a/b/c");
    refused(mv(at, "a", "a/b/c/d"), Errno::INVAL);
    refused(mv(at, "a", "a/x"), Errno::INVAL);
    refused(mv(at, "a/b/c", "a/b"), Errno::NOTEMPTY);
    refused(ren(at, "a", "a/b", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(ren(at, "a/b", "a", RenameFlags::EXCHANGE), Errno::INVAL);
}

fn rename_across_directories(at: &Place) {
    at.subdir("a");
    at.subdir("b");
    at.subdir("a/d");
    at.file("a/d/f", b"deep");
    let open = fs::File::open(at.at("a/d")).unwrap();
    mv(at, "a/d", "b/e").unwrap();
    assert_eq!(fs::read(at.at("b/e/f")).unwrap(), b"deep");
    let up = rustix::fs::statat(&open, "..", AtFlags::empty()).unwrap();
    assert_eq!(up.st_ino, fs::metadata(at.at("b")).unwrap().ino());
    assert_eq!(fs::read_dir(at.at("a")).unwrap().count(), 0);
}

fn noreplace(at: &Place) {
    at.file("a", b"a");
    at.file("b", b"b");
    at.subdir("d");
    refused(ren(at, "a", "b", RenameFlags::NOREPLACE), Errno::EXIST);
    refused(ren(at, "a", "d", RenameFlags::NOREPLACE), Errno::EXIST);
    refused(ren(at, "a", "a", RenameFlags::NOREPLACE), Errno::EXIST);
    refused(ren(at, "none", "c", RenameFlags::NOREPLACE), Errno::NOENT);
    ren(at, "a", "c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!((fs::read(at.at("b")).unwrap(), fs::read(at.at("c")).unwrap()), (b"b".to_vec(), b"a".to_vec()));
}

fn exchange(at: &Place) {
    at.file("a", b"a");
    at.file("b", b"b");
    let inos = |x: &str, y: &str| (fs::metadata(at.at(x)).unwrap().ino(), fs::metadata(at.at(y)).unwrap().ino());
    let (a, b) = inos("a", "b");
    ren(at, "a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(inos("a", "b"), (b, a));
    // A file and a directory, in different directories.
    at.subdir("d");
    at.subdir("d/sub");
    at.file("d/sub/f", b"in sub");
    ren(at, "a", "d/sub", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at.at("d/sub")).unwrap(), b"b");
    assert_eq!(fs::read(at.at("a/f")).unwrap(), b"in sub");
    // Two directories.
    at.subdir("e");
    at.subdir("e/deep");
    ren(at, "e/deep", "a", RenameFlags::EXCHANGE).unwrap();
    exchange_after(&at.dir);
    let up = rustix::fs::stat(at.at("e/deep/..")).unwrap();
    assert_eq!(up.st_ino, fs::metadata(at.at("e")).unwrap().ino());
    ren(at, "b", "b", RenameFlags::EXCHANGE).unwrap();
}

fn exchange_after(dir: &std::path::Path) {
    assert_eq!(fs::read(dir.join("e/deep/f")).unwrap(), b"in sub");
    assert_eq!(fs::read_dir(dir.join("a")).unwrap().count(), 0);
    assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
}

fn exchange_refusals(at: &Place) {
    at.file("a", b"");
    refused(ren(at, "a", "none", RenameFlags::EXCHANGE), Errno::NOENT);
    refused(ren(at, "none", "a", RenameFlags::EXCHANGE), Errno::NOENT);
    assert!(at.at("a").exists());
}

fn whiteout(at: &Place) {
    at.file("a", b"a");
    at.subdir("d");
    ren(at, "a", "d/b", RenameFlags::WHITEOUT).unwrap();
    at.file("x", b"x");
    at.file("y", b"y");
    // Over an existing file, in one directory.
    ren(at, "x", "y", RenameFlags::WHITEOUT).unwrap();
    // A directory.
    at.subdir("e");
    ren(at, "e", "d/e", RenameFlags::WHITEOUT).unwrap();
    whiteout_after(&at.dir);
}

fn whiteout_after(dir: &std::path::Path) {
    for name in ["a", "x", "e"] {
        let stat = rustix::fs::lstat(dir.join(name)).unwrap();
        assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::CharacterDevice, "{name}");
        assert_eq!((stat.st_rdev, stat.st_mode & 0o7777, stat.st_nlink), (0, 0, 1), "{name}");
    }
    assert_eq!(fs::read(dir.join("d/b")).unwrap(), b"a");
    assert_eq!(fs::read(dir.join("y")).unwrap(), b"x");
    assert!(dir.join("d/e").is_dir());
}

fn whiteout_refusals(at: &Place) {
    at.file("a", b"");
    at.file("b", b"");
    refused(ren(at, "a", "b", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Errno::INVAL);
    refused(ren(at, "a", "b", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Errno::EXIST);
    ren(at, "a", "c", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).unwrap();
    assert!(at.at("c").is_file());
}

fn names_of_any_bytes(at: &Place) {
    use std::os::unix::ffi::OsStrExt;
    let names: Vec<Vec<u8>> =
        vec![b"\xff\xfe".to_vec(), b"a\nb".to_vec(), b" ".to_vec(), b"...".to_vec(), vec![0xc3; 255]];
    for name in &names {
        fs::write(at.dir.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let mut seen: Vec<Vec<u8>> =
        fs::read_dir(&at.dir).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    seen.sort();
    let mut want = names.clone();
    want.sort();
    assert_eq!(seen, want);
    for name in &names {
        assert_eq!(&fs::read(at.dir.join(std::ffi::OsStr::from_bytes(name))).unwrap(), name);
    }
}

/// Two directories that are moved into each other concurrently do not make a loop.
fn two_renames_at_once(at: &Place) {
    for round in 0..100 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        at.subdir(&a);
        at.subdir(&b);
        let done: Vec<bool> = std::thread::scope(|s| {
            let one = s.spawn(|| mv(at, &a, &format!("{b}/in")).is_ok());
            let two = s.spawn(|| mv(at, &b, &format!("{a}/in")).is_ok());
            vec![one.join().unwrap(), two.join().unwrap()]
        });
        assert!(done.iter().any(|d| *d), "one of them must succeed");
        let left = [&a, &b].iter().filter(|n| at.at(n).exists()).count();
        assert_eq!(left, 1, "round {round}: one is in the other");
    }
}

fn dot_and_dotdot(at: &Place) {
    at.subdir("d");
    at.subdir("d/e");
    let ino = |p: &str| fs::metadata(at.at(p)).unwrap().ino();
    assert_eq!(ino("d/."), ino("d"));
    assert_eq!(ino("d/e/.."), ino("d"));
    let dir = rustix::fs::Dir::new(fs::File::open(at.at("d/e")).unwrap()).unwrap();
    for entry in dir {
        let entry = entry.unwrap();
        match entry.file_name().to_bytes() {
            b"." => assert_eq!(entry.ino(), ino("d/e")),
            b".." => assert_eq!(entry.ino(), ino("d")),
            other => panic!("{other:?} in an empty directory"),
        }
    }
    refused(rustix::fs::mkdir(at.at("d/.."), mode(0o755)), Errno::EXIST);
}
