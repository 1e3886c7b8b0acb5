//! What chattr sets: FS_IOC_GETFLAGS and SETFLAGS, FSGETXATTR and FSSETXATTR.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, IFlags, Mode, OFlags, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno, Result};

use crate::mount::place::{Place, family, open, refused};
use crate::mount::sys::{self, ALICE, act_as};

family!(
    "";
    get_and_set after get_after, unknown_flags, changed_by_the_owner, immutable_and_append_are_roots, compress_and_nocow,
    nocow_needs_an_empty_file, inheritance, immutable_file, immutable_open_for_writing limited "the kernel checks this on opening, and
        does not know of a FUSE inode that it is immutable; writing is refused instead" with "Operation not permitted (os error 1)", immutable_directory, append_only_file,
    append_only_open limited "as for immutable files: checked on opening by the kernel, on writing by us" with "Operation not permitted (os error 1)", append_only_directory,
    fsxattr, no_attributes_on_the_rest,
);

/// FS_NOCOMP_FL of linux/fs.h.
const NOCOMP: IFlags = IFlags::from_bits_retain(0x400);

fn get(path: &Path) -> IFlags {
    rustix::fs::ioctl_getflags(fs::File::open(path).unwrap()).unwrap()
}

fn set(path: &Path, flags: IFlags) -> Result<()> {
    rustix::fs::ioctl_setflags(fs::File::open(path).unwrap(), flags)
}

/// Takes the flags off again when the test ends, also when it fails: the directory must be removable.
struct Bound<'a>(&'a Path);

impl<'a> Bound<'a> {
    fn new(path: &'a Path, flags: IFlags) -> Bound<'a> {
        set(path, flags).unwrap();
        Bound(path)
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = set(self.0, IFlags::empty());
    }
}

fn get_and_set(at: &Place) {
    let path = at.file("f", b"x");
    assert_eq!(get(&path), IFlags::empty());
    let some = IFlags::NOATIME | IFlags::SYNC | IFlags::NODUMP;
    set(&path, some).unwrap();
    assert_eq!(get(&path), some);
    set(&path, IFlags::NODUMP).unwrap();
    assert_eq!(get(&path), IFlags::NODUMP);
    let dir = at.subdir("d");
    set(&dir, IFlags::DIRSYNC | IFlags::NOATIME).unwrap();
    get_after(&at.dir);
    let ctime = || rustix::fs::stat(&path).map(|s| (s.st_ctime, s.st_ctime_nsec)).unwrap();
    let before = ctime();
    std::thread::sleep(std::time::Duration::from_millis(25));
    set(&path, IFlags::NODUMP).unwrap();
    assert!(ctime() > before);
}

fn get_after(dir: &Path) {
    assert_eq!(get(&dir.join("f")), IFlags::NODUMP);
    assert_eq!(get(&dir.join("d")), IFlags::DIRSYNC | IFlags::NOATIME);
}

fn unknown_flags(at: &Place) {
    let path = at.file("f", b"x");
    refused(set(&path, IFlags::JOURNALING), Errno::OPNOTSUPP);
    refused(set(&path, IFlags::COMPRESSED | NOCOMP), Errno::INVAL);
    assert_eq!(get(&path), IFlags::empty());
}

fn changed_by_the_owner(at: &Place) {
    let path = at.file("f", b"x");
    refused(act_as(ALICE, || set(&path, IFlags::NODUMP)), Errno::PERM);
    rustix::fs::chown(&path, Some(Uid::from_raw(ALICE.uid)), Some(Gid::from_raw(ALICE.gid))).unwrap();
    act_as(ALICE, || set(&path, IFlags::NODUMP)).unwrap();
    assert_eq!(get(&path), IFlags::NODUMP);
}

fn immutable_and_append_are_roots(at: &Place) {
    let path = at.file("f", b"x");
    rustix::fs::chown(&path, Some(Uid::from_raw(ALICE.uid)), Some(Gid::from_raw(ALICE.gid))).unwrap();
    refused(act_as(ALICE, || set(&path, IFlags::IMMUTABLE)), Errno::PERM);
    refused(act_as(ALICE, || set(&path, IFlags::APPEND)), Errno::PERM);
    let _bound = Bound::new(&path, IFlags::IMMUTABLE);
    refused(act_as(ALICE, || set(&path, IFlags::empty())), Errno::PERM);
}

fn compress_and_nocow(at: &Place) {
    let path = at.file("f", b"");
    set(&path, IFlags::COMPRESSED).unwrap();
    assert_eq!(get(&path), IFlags::COMPRESSED);
    // The flag is a property: it names an algorithm.
    let mut buf = [0; 20];
    let len = rustix::fs::getxattr(&path, "btrfs.compression", &mut buf[..]).unwrap();
    assert_eq!(&buf[..len], b"zlib");
    set(&path, NOCOMP).unwrap();
    assert_eq!(get(&path), NOCOMP);
    set(&path, IFlags::empty()).unwrap();
    refused(rustix::fs::getxattr(&path, "btrfs.compression", &mut buf[..]), Errno::NODATA);
    set(&path, IFlags::NOCOW).unwrap();
    refused(set(&path, IFlags::NOCOW | IFlags::COMPRESSED), Errno::INVAL);
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
}

/// The flag is taken on a file that has data, but does not change how that is kept.
fn nocow_needs_an_empty_file(at: &Place) {
    let path = at.file("f", &[1; 10_000]);
    set(&path, IFlags::NOCOW).unwrap();
    assert_eq!(get(&path), IFlags::empty());
}

fn inheritance(at: &Place) {
    let dir = at.subdir("d");
    set(&dir, IFlags::COMPRESSED).unwrap();
    fs::write(dir.join("f"), [1; 100_000]).unwrap();
    fs::create_dir(dir.join("e")).unwrap();
    assert_eq!(get(&dir.join("f")), IFlags::COMPRESSED);
    assert_eq!(get(&dir.join("e")), IFlags::COMPRESSED);
    let cow = at.subdir("nocow");
    set(&cow, IFlags::NOCOW | IFlags::NODUMP | IFlags::NOATIME).unwrap();
    fs::write(cow.join("f"), b"x").unwrap();
    assert_eq!(get(&cow.join("f")), IFlags::NOCOW);
}

fn immutable_file(at: &Place) {
    let path = at.file("f", b"content");
    let held = open(&path, OFlags::RDWR).unwrap();
    let _bound = Bound::new(&path, IFlags::IMMUTABLE);
    let mode = Mode::from_raw_mode(0o600);
    refused(rustix::fs::unlink(&path), Errno::PERM);
    refused(rustix::fs::rename(&path, at.at("g")), Errno::PERM);
    refused(rustix::fs::link(&path, at.at("g")), Errno::PERM);
    refused(rustix::fs::chmod(&path, mode), Errno::PERM);
    refused(rustix::fs::chown(&path, Some(Uid::from_raw(1)), None), Errno::PERM);
    refused(rustix::fs::setxattr(&path, "user.a", b"x", XattrFlags::empty()), Errno::PERM);
    refused(rustix::fs::fallocate(&held, FallocateFlags::empty(), 0, 100_000), Errno::PERM);
    let spec = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 1 };
    let times = Timestamps { last_access: spec, last_modification: spec };
    refused(rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()), Errno::PERM);
    // Over it nothing can be moved.
    at.file("other", b"");
    refused(rustix::fs::rename(at.at("other"), &path), Errno::PERM);
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

fn immutable_open_for_writing(at: &Place) {
    let path = at.file("f", b"content");
    let _bound = Bound::new(&path, IFlags::IMMUTABLE);
    refused(open(&path, OFlags::WRONLY), Errno::PERM);
}

fn immutable_directory(at: &Place) {
    let dir = at.subdir("d");
    at.file("d/f", b"x");
    let _bound = Bound::new(&dir, IFlags::IMMUTABLE);
    let mode = Mode::from_raw_mode(0o755);
    refused(open(&dir.join("new"), OFlags::CREATE | OFlags::WRONLY), Errno::PERM);
    refused(rustix::fs::mkdir(dir.join("new"), mode), Errno::PERM);
    refused(rustix::fs::symlink("x", dir.join("new")), Errno::PERM);
    refused(rustix::fs::unlink(dir.join("f")), Errno::PERM);
    refused(rustix::fs::rename(dir.join("f"), at.at("f")), Errno::PERM);
    refused(rustix::fs::rmdir(&dir), Errno::PERM);
    // What is in it can be changed.
    fs::write(dir.join("f"), b"changed").unwrap();
}

fn append_only_file(at: &Place) {
    let path = at.file("f", b"start ");
    let held = open(&path, OFlags::RDWR).unwrap();
    let _bound = Bound::new(&path, IFlags::APPEND);
    let append = open(&path, OFlags::WRONLY | OFlags::APPEND).unwrap();
    rustix::io::write(&append, b"more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"start more");
    refused(rustix::fs::ftruncate(&held, 1), Errno::PERM);
    refused(rustix::fs::unlink(&path), Errno::PERM);
    refused(rustix::fs::rename(&path, at.at("g")), Errno::PERM);
    refused(rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)), Errno::PERM);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    refused(rustix::fs::fallocate(&held, punch, 0, 4096), Errno::PERM);
}

fn append_only_open(at: &Place) {
    let path = at.file("f", b"start");
    let _bound = Bound::new(&path, IFlags::APPEND);
    refused(open(&path, OFlags::WRONLY), Errno::PERM);
    refused(open(&path, OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC), Errno::PERM);
}

fn append_only_directory(at: &Place) {
    let dir = at.subdir("d");
    at.file("d/f", b"x");
    let _bound = Bound::new(&dir, IFlags::APPEND);
    fs::write(dir.join("new"), b"").unwrap();
    refused(rustix::fs::unlink(dir.join("new")), Errno::PERM);
    refused(rustix::fs::rename(dir.join("f"), dir.join("g")), Errno::PERM);
}

/// FS_XFLAG_* of linux/fs.h.
const X_IMMUTABLE: u32 = 0x8;
const X_APPEND: u32 = 0x10;
const X_SYNC: u32 = 0x20;
const X_NOATIME: u32 = 0x40;
const X_NODUMP: u32 = 0x80;

fn fsxattr(at: &Place) {
    let path = at.file("f", b"x");
    let file = open(&path, OFlags::RDWR).unwrap();
    let start = sys::fsgetxattr(&file).unwrap();
    assert_eq!(start, sys::FsXattr { nextents: start.nextents, ..Default::default() });
    let want = sys::FsXattr { xflags: X_NOATIME | X_NODUMP | X_SYNC, ..Default::default() };
    sys::fssetxattr(&file, want).unwrap();
    assert_eq!(sys::fsgetxattr(&file).unwrap().xflags, want.xflags);
    assert_eq!(get(&path), IFlags::NOATIME | IFlags::NODUMP | IFlags::SYNC);
    set(&path, IFlags::APPEND).unwrap();
    assert_eq!(sys::fsgetxattr(&file).unwrap().xflags, X_APPEND);
    sys::fssetxattr(&file, sys::FsXattr { xflags: X_IMMUTABLE, ..Default::default() }).unwrap();
    assert_eq!(get(&path), IFlags::IMMUTABLE);
    sys::fssetxattr(&file, sys::FsXattr::default()).unwrap();
    assert_eq!(get(&path), IFlags::empty());
    // No project quota, no extent size hints.
    refused(sys::fssetxattr(&file, sys::FsXattr { projid: 5, ..Default::default() }), Errno::OPNOTSUPP);
    refused(
        sys::fssetxattr(&file, sys::FsXattr { xflags: 0x800, extsize: 8192, ..Default::default() }),
        Errno::OPNOTSUPP,
    );
}

fn no_attributes_on_the_rest(at: &Place) {
    rustix::fs::mknodat(CWD, at.at("p"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let path_only = open(&at.at("p"), OFlags::PATH).unwrap();
    refused(rustix::fs::ioctl_getflags(&path_only), Errno::BADF);
}
