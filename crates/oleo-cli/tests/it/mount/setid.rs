//! Set-id bits and capabilities: how they are inherited and when they go.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;

use crate::mount::place::{Place, family, open, refused};
use crate::mount::sys::{ALICE, Who, act_as};

family!(
    "";
    setgid_directory_gives_its_group, setgid_is_not_for_strangers, write_removes_setid, write_by_root_keeps_setid,
    truncate_removes_setid, chown_removes_setid, chown_by_root_too, chgrp_bit_without_execute_stays, chmod_by_a_stranger_to_the_group,
    directories_keep_theirs, capability_goes_with_a_write, capability_goes_with_a_truncate, capability_goes_with_a_chown,
    capability_survives_chmod, fallocate_removes_setid, copy_removes_setid, mapped_write_keeps_setid,
    gone_at_once,
);

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn bits(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn make(at: &Place, name: &str, who: Who<'_>, bits: u32) -> std::path::PathBuf {
    let path = at.file(name, &[1; 5000]);
    rustix::fs::chown(&path, Some(Uid::from_raw(who.uid)), Some(Gid::from_raw(who.gid))).unwrap();
    rustix::fs::chmod(&path, mode(bits)).unwrap();
    path
}

fn setgid_directory_gives_its_group(at: &Place) {
    let dir = at.subdir("d");
    rustix::fs::chown(&dir, None, Some(Gid::from_raw(77_000))).unwrap();
    rustix::fs::chmod(&dir, mode(0o2777)).unwrap();
    act_as(ALICE, || {
        fs::write(dir.join("f"), b"").unwrap();
        rustix::fs::mkdir(dir.join("e"), mode(0o755)).unwrap();
        rustix::fs::symlink("f", dir.join("l")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("p"), rustix::fs::FileType::Fifo, mode(0o600), 0).unwrap();
        let file = open(&dir, OFlags::TMPFILE | OFlags::RDWR).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_gid, 77_000);
        rustix::fs::mkdir(dir.join("e/deeper"), mode(0o700)).unwrap();
    });
    for name in ["f", "e", "l", "p", "e/deeper"] {
        let meta = fs::symlink_metadata(dir.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (ALICE.uid, 77_000), "{name}");
        assert_eq!(meta.mode() & 0o2000 != 0, meta.is_dir(), "{name}: only directories inherit the bit");
    }
}

/// Who is not of the directory's group gets no set-group-id file out of it.
fn setgid_is_not_for_strangers(at: &Place) {
    let dir = at.subdir("d");
    rustix::fs::chown(&dir, None, Some(Gid::from_raw(77_000))).unwrap();
    rustix::fs::chmod(&dir, mode(0o2777)).unwrap();
    let create = |name: &str| rustix::fs::open(dir.join(name), OFlags::CREATE | OFlags::WRONLY, mode(0o2775)).unwrap();
    act_as(ALICE, || create("strangers"));
    assert_eq!(bits(&dir.join("strangers")), 0o775);
    act_as(Who { groups: &[77_000], ..ALICE }, || create("members"));
    assert_eq!(bits(&dir.join("members")), 0o2775);
    create("roots");
    assert_eq!(bits(&dir.join("roots")), 0o2775);
}

fn write_removes_setid(at: &Place) {
    let path = make(at, "f", ALICE, 0o6777);
    act_as(ALICE, || rustix::io::pwrite(open(&path, OFlags::WRONLY).unwrap(), b"x", 10)).unwrap();
    assert_eq!(bits(&path), 0o777);
    // Also when somebody else writes, and past the end.
    rustix::fs::chmod(&path, mode(0o6777)).unwrap();
    act_as(crate::mount::sys::BOB, || rustix::io::pwrite(open(&path, OFlags::WRONLY).unwrap(), b"x", 50_000)).unwrap();
    assert_eq!(bits(&path), 0o777);
}

fn write_by_root_keeps_setid(at: &Place) {
    let path = make(at, "f", ALICE, 0o6777);
    rustix::io::pwrite(open(&path, OFlags::WRONLY).unwrap(), b"x", 10).unwrap();
    assert_eq!(bits(&path), 0o6777);
}

fn truncate_removes_setid(at: &Place) {
    let path = make(at, "f", ALICE, 0o6777);
    act_as(ALICE, || rustix::fs::ftruncate(open(&path, OFlags::WRONLY).unwrap(), 100)).unwrap();
    assert_eq!(bits(&path), 0o777);
    rustix::fs::chmod(&path, mode(0o6777)).unwrap();
    act_as(ALICE, || open(&path, OFlags::WRONLY | OFlags::TRUNC).map(drop)).unwrap();
    assert_eq!(bits(&path), 0o777);
}

fn chown_removes_setid(at: &Place) {
    let member = Who { groups: &[70_000], ..ALICE };
    let path = make(at, "f", ALICE, 0o6777);
    act_as(member, || rustix::fs::chown(&path, None, Some(Gid::from_raw(70_000)))).unwrap();
    assert_eq!(bits(&path), 0o777);
    rustix::fs::chmod(&path, mode(0o6777)).unwrap();
    // A change of nothing is a change to this.
    act_as(member, || rustix::fs::chown(&path, Some(Uid::from_raw(ALICE.uid)), None)).unwrap();
    assert_eq!(bits(&path), 0o777);
}

fn chown_by_root_too(at: &Place) {
    let path = make(at, "f", ALICE, 0o6777);
    rustix::fs::chown(&path, Some(Uid::from_raw(1)), None).unwrap();
    assert_eq!(bits(&path), 0o777);
}

/// Set-group-id without execution by the group once meant mandatory locking: root's chown leaves it.
fn chgrp_bit_without_execute_stays(at: &Place) {
    let path = make(at, "f", ALICE, 0o6767);
    rustix::fs::chown(&path, Some(Uid::from_raw(1)), Some(Gid::from_raw(1))).unwrap();
    assert_eq!(bits(&path), 0o2767);
}

fn chmod_by_a_stranger_to_the_group(at: &Place) {
    let path = make(at, "f", Who { gid: 77_000, ..ALICE }, 0o755);
    act_as(ALICE, || rustix::fs::chmod(&path, mode(0o6755))).unwrap();
    assert_eq!(bits(&path), 0o4755);
    act_as(Who { groups: &[77_000], ..ALICE }, || rustix::fs::chmod(&path, mode(0o6755))).unwrap();
    assert_eq!(bits(&path), 0o6755);
}

fn directories_keep_theirs(at: &Place) {
    let dir = at.subdir("d");
    rustix::fs::chmod(&dir, mode(0o6777)).unwrap();
    rustix::fs::chown(&dir, Some(Uid::from_raw(ALICE.uid)), Some(Gid::from_raw(ALICE.gid))).unwrap();
    assert_eq!(bits(&dir), 0o6777);
}

/// `struct vfs_cap_data` version 2 with CAP_NET_BIND_SERVICE permitted and effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn capable(at: &Place, name: &str) -> std::path::PathBuf {
    let path = make(at, name, ALICE, 0o755);
    rustix::fs::setxattr(&path, "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    assert!(has_capability(&path));
    path
}

fn has_capability(path: &Path) -> bool {
    let mut buf = [0; 64];
    match rustix::fs::getxattr(path, "security.capability", &mut buf[..]) {
        Ok(len) => {
            assert_eq!(buf[..len], CAPABILITY);
            true
        }
        Err(e) => {
            refused(Err::<(), _>(e), Errno::NODATA);
            false
        }
    }
}

fn capability_goes_with_a_write(at: &Place) {
    let path = capable(at, "f");
    rustix::io::pwrite(open(&path, OFlags::WRONLY).unwrap(), b"x", 0).unwrap();
    assert!(!has_capability(&path), "root's write removes it too");
    let path = capable(at, "g");
    act_as(ALICE, || rustix::io::pwrite(open(&path, OFlags::WRONLY).unwrap(), b"x", 0)).unwrap();
    assert!(!has_capability(&path));
}

fn capability_goes_with_a_truncate(at: &Place) {
    let path = capable(at, "f");
    rustix::fs::ftruncate(open(&path, OFlags::WRONLY).unwrap(), 10).unwrap();
    assert!(!has_capability(&path));
    let path = capable(at, "g");
    open(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap();
    assert!(!has_capability(&path));
}

fn capability_goes_with_a_chown(at: &Place) {
    let path = capable(at, "f");
    rustix::fs::chownat(CWD, &path, Some(Uid::from_raw(3)), None, AtFlags::empty()).unwrap();
    assert!(!has_capability(&path));
}

fn capability_survives_chmod(at: &Place) {
    let path = capable(at, "f");
    rustix::fs::chmod(&path, mode(0o700)).unwrap();
    assert!(has_capability(&path));
    rustix::fs::rename(&path, at.at("g")).unwrap();
    assert!(has_capability(&at.at("g")));
}

fn fallocate_removes_setid(at: &Place) {
    use rustix::fs::FallocateFlags;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (name, flags) in [("alloc", FallocateFlags::empty()), ("punch", punch), ("zero", FallocateFlags::ZERO_RANGE)] {
        let path = make(at, name, ALICE, 0o6777);
        act_as(ALICE, || rustix::fs::fallocate(open(&path, OFlags::RDWR).unwrap(), flags, 0, 10_000)).unwrap();
        assert_eq!(bits(&path), 0o777, "{name}");
    }
}

fn copy_removes_setid(at: &Place) {
    let from = at.file("from", &[2; 8192]);
    rustix::fs::chmod(&from, mode(0o644)).unwrap();
    let path = make(at, "to", ALICE, 0o6777);
    act_as(ALICE, || {
        let (from, to) = (open(&from, OFlags::RDONLY).unwrap(), open(&path, OFlags::WRONLY).unwrap());
        assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 8192), Ok(8192));
    });
    assert_eq!(bits(&path), 0o777);
}

/// The kernel does not look at who changes a mapped page.
fn mapped_write_keeps_setid(at: &Place) {
    let path = make(at, "f", ALICE, 0o6777);
    act_as(ALICE, || {
        let file = open(&path, OFlags::RDWR).unwrap();
        let map = crate::mount::sys::Map::new(&file, 0, 4096, rustix::mm::MapFlags::SHARED).unwrap();
        map.write(0, b"mapped");
        map.sync().unwrap();
    });
    assert_eq!(&fs::read(&path).unwrap()[..6], b"mapped");
    assert_eq!(bits(&path), 0o6777);
}

/// A program that gives its user root's id gives nothing any more as soon as somebody else has changed it: not in its mode as it is
/// remembered, and not when it is executed.
fn gone_at_once(at: &Place) {
    const GROUP: u32 = 77_000;
    let member = Who { groups: &[GROUP], ..ALICE };
    rustix::fs::chmod(&at.dir, mode(0o755)).unwrap();
    let source = at.file("source", &[7; 4096]);
    rustix::fs::chmod(&source, mode(0o644)).unwrap();
    type Change = fn(&Path, &Path);
    let changes: [(&str, Change); 4] = [
        ("write", |path, _| {
            let file = open(path, OFlags::WRONLY | OFlags::APPEND).unwrap();
            assert_eq!(rustix::io::write(&file, b"x"), Ok(1));
        }),
        ("allocate", |path, _| {
            let file = open(path, OFlags::WRONLY).unwrap();
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 10 << 20, 4096).unwrap();
        }),
        ("copy", |path, source| {
            let (from, to) = (open(source, OFlags::RDONLY).unwrap(), open(path, OFlags::WRONLY).unwrap());
            let end = &mut (1u64 << 20);
            assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(end), 4096), Ok(4096));
        }),
        ("truncate", |path, _| rustix::fs::ftruncate(open(path, OFlags::WRONLY).unwrap(), 20 << 20).unwrap()),
    ];
    let run_as_alice = |path: &Path| {
        let ids = ["--reuid", "60001", "--regid", "60001", "--clear-groups"];
        let out = std::process::Command::new("setpriv").args(ids).arg(path).arg("-u").output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    for (name, change) in changes {
        let path = at.at(name);
        oleo_sim::oracle::copy_program(Path::new("/usr/bin/id"), &path).unwrap();
        rustix::fs::chown(&path, Some(Uid::from_raw(0)), Some(Gid::from_raw(GROUP))).unwrap();
        rustix::fs::chmod(&path, mode(0o4775)).unwrap();
        assert_eq!(run_as_alice(&path), "0", "{name}: the bit works");
        act_as(member, || change(&path, &source));
        // Only the mode is asked for, as `stat -c %A` does.
        let shown = rustix::fs::statx(CWD, &path, AtFlags::empty(), rustix::fs::StatxFlags::MODE).unwrap();
        assert_eq!(shown.stx_mode & 0o7777, 0o775, "{name}");
        assert_eq!(run_as_alice(&path), "60001", "{name}");
    }
}
