//! Who may do what: the checks that any POSIX file system makes for users that are not root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::{Errno, Result};

use crate::mount::place::{Place, family, open, refused};
use crate::mount::sys::{ALICE, BOB, Who, act_as};

family!(
    "";
    read_write_execute, groups_count, search_is_needed, write_on_the_directory_is_needed, sticky_directory, sticky_rename,
    chmod_is_the_owners, chown_to_others_is_roots, chgrp_into_own_groups, utimens_now_and_set, truncate_needs_write,
    owner_of_what_is_made, links_to_foreign_files, access_says_the_same, root_may, exec_needs_a_bit, open_keeps_its_rights,
    moving_a_directory_needs_write_on_it, mknod_of_devices_is_roots,
);

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn give(path: &Path, who: Who<'_>, bits: u32) {
    rustix::fs::chown(path, Some(Uid::from_raw(who.uid)), Some(Gid::from_raw(who.gid))).unwrap();
    rustix::fs::chmod(path, mode(bits)).unwrap();
}

fn try_open(who: Who<'_>, path: &Path, flags: OFlags) -> Result<()> {
    act_as(who, || open(path, flags).map(drop))
}

fn read_write_execute(at: &Place) {
    let path = at.file("f", b"x");
    for (bits, as_owner, as_group, as_other) in [
        (0o000, "", "", ""),
        (0o400, "r", "", ""),
        (0o200, "w", "", ""),
        (0o640, "rw", "r", ""),
        (0o604, "rw", "", "r"),
        // The first class that fits decides, also when a later one would give more.
        (0o077, "", "rw", "rw"),
        (0o707, "rw", "", "rw"),
    ] {
        give(&path, ALICE, bits);
        let group = Who { gid: ALICE.gid, ..BOB };
        for (who, want) in [(ALICE, as_owner), (group, as_group), (BOB, as_other)] {
            let can = |flags| try_open(who, &path, flags).is_ok();
            let got = (can(OFlags::RDONLY), can(OFlags::WRONLY), can(OFlags::RDWR));
            let (r, w) = (want.contains('r'), want.contains('w'));
            assert_eq!(got, (r, w, r && w), "{bits:o} as {who:?}");
        }
    }
    give(&path, ALICE, 0o644);
    refused(try_open(BOB, &path, OFlags::WRONLY | OFlags::TRUNC), Errno::ACCESS);
    assert_eq!(fs::read(&path).unwrap(), b"x");
}

fn groups_count(at: &Place) {
    let path = at.file("f", b"x");
    give(&path, Who { gid: 77_000, ..ALICE }, 0o640);
    refused(try_open(BOB, &path, OFlags::RDONLY), Errno::ACCESS);
    try_open(Who { groups: &[5, 77_000], ..BOB }, &path, OFlags::RDONLY).unwrap();
}

fn search_is_needed(at: &Place) {
    let dir = at.subdir("d");
    let path = at.file("d/f", b"x");
    give(&dir, ALICE, 0o600);
    give(&path, ALICE, 0o666);
    refused(act_as(ALICE, || rustix::fs::stat(&path)), Errno::ACCESS);
    refused(try_open(ALICE, &path, OFlags::RDONLY), Errno::ACCESS);
    // Listing needs only reading; stepping in needs only searching.
    assert_eq!(act_as(ALICE, || fs::read_dir(&dir).unwrap().count()), 1);
    give(&dir, ALICE, 0o100);
    try_open(ALICE, &path, OFlags::RDONLY).unwrap();
    refused(try_open(ALICE, &dir, OFlags::RDONLY), Errno::ACCESS);
}

fn write_on_the_directory_is_needed(at: &Place) {
    let dir = at.subdir("d");
    at.file("d/f", b"x");
    at.subdir("d/e");
    give(&dir, ALICE, 0o555);
    let path = dir.join("f");
    let new = dir.join("new");
    act_as(ALICE, || {
        refused(open(&new, OFlags::CREATE | OFlags::WRONLY), Errno::ACCESS);
        refused(rustix::fs::mkdir(&new, mode(0o755)), Errno::ACCESS);
        refused(rustix::fs::symlink("x", &new), Errno::ACCESS);
        refused(rustix::fs::mknodat(CWD, &new, rustix::fs::FileType::Fifo, mode(0o600), 0), Errno::ACCESS);
        refused(rustix::fs::unlink(&path), Errno::ACCESS);
        refused(rustix::fs::rmdir(dir.join("e")), Errno::ACCESS);
        refused(rustix::fs::rename(&path, &new), Errno::ACCESS);
        refused(open(&dir, OFlags::TMPFILE | OFlags::RDWR), Errno::ACCESS);
        // What is there is distinguished from what may not be.
        refused(rustix::fs::mkdir(&path, mode(0o755)), Errno::EXIST);
        refused(rustix::fs::unlink(&new), Errno::NOENT);
    });
    give(&dir, ALICE, 0o755);
    act_as(ALICE, || rustix::fs::unlink(&path)).unwrap();
}

fn sticky_directory(at: &Place) {
    let dir = at.open_dir("d");
    rustix::fs::chmod(&dir, mode(0o1777)).unwrap();
    act_as(ALICE, || {
        fs::write(dir.join("alices"), b"").unwrap();
        rustix::fs::chmod(dir.join("alices"), mode(0o666)).unwrap();
        fs::create_dir(dir.join("alices-dir")).unwrap();
    });
    act_as(BOB, || {
        refused(rustix::fs::unlink(dir.join("alices")), Errno::PERM);
        refused(rustix::fs::rmdir(dir.join("alices-dir")), Errno::PERM);
        fs::write(dir.join("bobs"), b"").unwrap();
        rustix::fs::unlink(dir.join("bobs")).unwrap();
    });
    act_as(ALICE, || rustix::fs::unlink(dir.join("alices"))).unwrap();
    // The directory's owner may remove anybody's.
    give(&dir, BOB, 0o1777);
    act_as(BOB, || rustix::fs::rmdir(dir.join("alices-dir"))).unwrap();
}

fn sticky_rename(at: &Place) {
    let dir = at.open_dir("d");
    rustix::fs::chmod(&dir, mode(0o1777)).unwrap();
    let free = at.open_dir("free");
    act_as(ALICE, || fs::write(dir.join("alices"), b"").unwrap());
    act_as(BOB, || {
        fs::write(dir.join("bobs"), b"").unwrap();
        fs::write(free.join("bobs"), b"").unwrap();
        refused(rustix::fs::rename(dir.join("alices"), free.join("taken")), Errno::PERM);
        refused(rustix::fs::rename(dir.join("bobs"), dir.join("alices")), Errno::PERM);
        refused(rustix::fs::rename(free.join("bobs"), dir.join("alices")), Errno::PERM);
        let swap = RenameFlags::EXCHANGE;
        refused(rustix::fs::renameat_with(CWD, free.join("bobs"), CWD, dir.join("alices"), swap), Errno::PERM);
        rustix::fs::rename(dir.join("bobs"), dir.join("bobs2")).unwrap();
    });
}

fn chmod_is_the_owners(at: &Place) {
    let path = at.file("f", b"");
    give(&path, ALICE, 0o666);
    refused(act_as(BOB, || rustix::fs::chmod(&path, mode(0o777))), Errno::PERM);
    act_as(ALICE, || rustix::fs::chmod(&path, mode(0o600))).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    // Through a descriptor that may only read.
    act_as(ALICE, || rustix::fs::fchmod(open(&path, OFlags::RDONLY).unwrap(), mode(0o640))).unwrap();
}

fn chown_to_others_is_roots(at: &Place) {
    let path = at.file("f", b"");
    give(&path, ALICE, 0o644);
    let uid = |n| Some(Uid::from_raw(n));
    act_as(ALICE, || {
        refused(rustix::fs::chown(&path, uid(BOB.uid), None), Errno::PERM);
        refused(rustix::fs::chown(&path, uid(0), None), Errno::PERM);
        // To itself is no change.
        rustix::fs::chown(&path, uid(ALICE.uid), None).unwrap();
        rustix::fs::chown(&path, None, None).unwrap();
    });
    refused(act_as(BOB, || rustix::fs::chown(&path, uid(BOB.uid), None)), Errno::PERM);
    rustix::fs::chown(&path, uid(4_000_000_000), Some(Gid::from_raw(4_000_000_001))).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4_000_000_000, 4_000_000_001));
    // Of a symlink, not of what it leads to.
    rustix::fs::symlink("f", at.at("l")).unwrap();
    rustix::fs::chownat(CWD, at.at("l"), uid(5), None, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(fs::symlink_metadata(at.at("l")).unwrap().uid(), 5);
    assert_eq!(fs::metadata(&path).unwrap().uid(), 4_000_000_000);
}

fn chgrp_into_own_groups(at: &Place) {
    let path = at.file("f", b"");
    give(&path, ALICE, 0o644);
    let gid = |n| Some(Gid::from_raw(n));
    let member = Who { groups: &[70_000], ..ALICE };
    act_as(member, || {
        rustix::fs::chown(&path, None, gid(70_000)).unwrap();
        refused(rustix::fs::chown(&path, None, gid(70_001)), Errno::PERM);
    });
    assert_eq!(fs::metadata(&path).unwrap().gid(), 70_000);
    refused(act_as(BOB, || rustix::fs::chown(&path, None, gid(BOB.gid))), Errno::PERM);
}

fn utimens_now_and_set(at: &Place) {
    let path = at.file("f", b"");
    give(&path, ALICE, 0o666);
    let spec = |nsec| Timespec { tv_sec: 100_000, tv_nsec: nsec };
    let times = |a, m| Timestamps { last_access: spec(a), last_modification: spec(m) };
    let set = |t: &Timestamps| rustix::fs::utimensat(CWD, &path, t, AtFlags::empty());
    act_as(BOB, || {
        // Who may write may say "now", and nothing else.
        set(&times(UTIME_NOW, UTIME_NOW)).unwrap();
        refused(set(&times(7, 8)), Errno::PERM);
        refused(set(&times(UTIME_NOW, UTIME_OMIT)), Errno::PERM);
        refused(set(&times(UTIME_OMIT, 8)), Errno::PERM);
        set(&times(UTIME_OMIT, UTIME_OMIT)).unwrap();
    });
    rustix::fs::chmod(&path, mode(0o644)).unwrap();
    refused(act_as(BOB, || set(&times(UTIME_NOW, UTIME_NOW))), Errno::ACCESS);
    act_as(ALICE, || set(&times(7, 8))).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec(), meta.mtime_nsec()), (100_000, 7, 8));
    rustix::fs::chmod(&path, mode(0o444)).unwrap();
    act_as(ALICE, || set(&times(UTIME_NOW, UTIME_NOW))).unwrap();
}

fn truncate_needs_write(at: &Place) {
    let path = at.file("f", b"content");
    give(&path, ALICE, 0o644);
    let cut = || fs::OpenOptions::new().write(true).open(&path).map_err(|e| e.raw_os_error());
    assert_eq!(act_as(BOB, || cut().map(drop)), Err(Some(Errno::ACCESS.raw_os_error())));
    act_as(ALICE, || cut().unwrap().set_len(3).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 3);
}

fn owner_of_what_is_made(at: &Place) {
    let dir = at.open_dir("d");
    act_as(ALICE, || {
        fs::write(dir.join("f"), b"").unwrap();
        fs::create_dir(dir.join("e")).unwrap();
        rustix::fs::symlink("f", dir.join("l")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("p"), rustix::fs::FileType::Fifo, mode(0o600), 0).unwrap();
        let file = open(&dir, OFlags::TMPFILE | OFlags::RDWR).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_uid, ALICE.uid);
    });
    for name in ["f", "e", "l", "p"] {
        let meta = fs::symlink_metadata(dir.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (ALICE.uid, ALICE.gid), "{name}");
    }
}

/// `fs.protected_hardlinks` is the kernel's own check: a link needs the rights to read and write, or ownership.
fn links_to_foreign_files(at: &Place) {
    let dir = at.open_dir("d");
    let path = at.file("d/f", b"");
    give(&path, ALICE, 0o600);
    let protected = fs::read_to_string("/proc/sys/fs/protected_hardlinks").is_ok_and(|t| t.trim() == "1");
    let made = act_as(BOB, || rustix::fs::link(&path, dir.join("l")));
    if protected {
        refused(made, Errno::PERM)
    } else {
        made.unwrap()
    }
    act_as(ALICE, || rustix::fs::link(&path, dir.join("mine"))).unwrap();
}

fn access_says_the_same(at: &Place) {
    use rustix::fs::Access;
    let path = at.file("f", b"");
    give(&path, ALICE, 0o540);
    act_as(ALICE, || {
        rustix::fs::access(&path, Access::READ_OK | Access::EXEC_OK).unwrap();
        refused(rustix::fs::access(&path, Access::WRITE_OK), Errno::ACCESS);
    });
    act_as(BOB, || {
        rustix::fs::access(&path, Access::EXISTS).unwrap();
        refused(rustix::fs::access(&path, Access::READ_OK), Errno::ACCESS);
    });
}

fn root_may(at: &Place) {
    let dir = at.subdir("d");
    let path = at.file("d/f", b"x");
    give(&path, ALICE, 0);
    give(&dir, ALICE, 0);
    fs::write(&path, b"by root").unwrap();
    fs::write(dir.join("g"), b"").unwrap();
    rustix::fs::chmod(&path, mode(0o600)).unwrap();
    // But not execute what nobody may.
    refused(rustix::fs::access(&path, rustix::fs::Access::EXEC_OK), Errno::ACCESS);
}

fn exec_needs_a_bit(at: &Place) {
    let path = at.at("true");
    oleo_sim::oracle::copy_program(std::path::Path::new("/bin/true"), &path).unwrap();
    rustix::fs::chmod(&path, mode(0o644)).unwrap();
    let run = || std::process::Command::new(&path).status().map_err(|e| e.raw_os_error());
    assert_eq!(run().map(drop), Err(Some(Errno::ACCESS.raw_os_error())));
    rustix::fs::chmod(&path, mode(0o755)).unwrap();
    assert!(run().unwrap().success());
}

/// Rights are asked for when a file is opened; what happens to them later does not matter to who holds it.
fn open_keeps_its_rights(at: &Place) {
    let path = at.file("f", b"content");
    give(&path, ALICE, 0o600);
    act_as(ALICE, || {
        let file = open(&path, OFlags::RDWR).unwrap();
        rustix::fs::chmod(&path, mode(0)).unwrap();
        refused(open(&path, OFlags::RDONLY), Errno::ACCESS);
        rustix::io::pwrite(&file, b"C", 0).unwrap();
        rustix::fs::ftruncate(&file, 3).unwrap();
        let mut buf = [0; 10];
        assert_eq!(rustix::io::pread(&file, &mut buf[..], 0), Ok(3));
        rustix::fs::fsync(&file).unwrap();
    });
}

fn moving_a_directory_needs_write_on_it(at: &Place) {
    let (from, to) = (at.open_dir("from"), at.open_dir("to"));
    let dir = at.subdir("from/d");
    give(&dir, BOB, 0o755);
    // Its `..` would change.
    refused(act_as(ALICE, || rustix::fs::rename(&dir, to.join("d"))), Errno::ACCESS);
    act_as(ALICE, || rustix::fs::rename(&dir, from.join("e"))).unwrap();
    act_as(BOB, || rustix::fs::rename(from.join("e"), to.join("d"))).unwrap();
}

fn mknod_of_devices_is_roots(at: &Place) {
    let dir = at.open_dir("d");
    use rustix::fs::FileType;
    let dev = rustix::fs::makedev(1, 3);
    act_as(ALICE, || {
        let make = |name, kind| rustix::fs::mknodat(CWD, dir.join(name), kind, mode(0o600), dev);
        refused(make("c", FileType::CharacterDevice), Errno::PERM);
        refused(make("b", FileType::BlockDevice), Errno::PERM);
        make("p", FileType::Fifo).unwrap();
        make("s", FileType::Socket).unwrap();
    });
}
