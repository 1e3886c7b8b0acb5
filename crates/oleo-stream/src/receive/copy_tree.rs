//! A copy of a directory tree of the host, as the beginning of a snapshot.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid, XattrFlags};

use super::ApplyError;

fn host(what: &'static str) -> impl Fn(rustix::io::Errno) -> ApplyError {
    move |errno| ApplyError::Host { what, source: errno.into() }
}

/// Inodes with several names, by device and number, and the first of these as a path from the top of the copy.
type Links = HashMap<(u64, u64), Vec<u8>>;

/// One copying.
struct Copying<'t> {
    top: BorrowedFd<'t>,
    links: Links,
}

/// Copies everything in `from` into the empty directory `to`, and the attributes of the directory itself.
pub(super) fn copy_tree(from: &OwnedFd, to: &OwnedFd, depth_max: usize) -> Result<(), ApplyError> {
    let mut copying = Copying { top: to.as_fd(), links: Links::new() };
    copy_dir(&mut copying, from.as_fd(), to.as_fd(), b"", depth_max)
}

/// `path`: of the directory, from the top, with a slash behind it where it is not the top.
fn copy_dir(
    copying: &mut Copying<'_>,
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &[u8],
    depth: usize,
) -> Result<(), ApplyError> {
    if depth == 0 {
        return Err(ApplyError::Refused("the parent's directories are nested too deeply to be copied".into()));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(from, ".", flags, Mode::empty()).map_err(host("open"))?;
    for entry in Dir::read_from(&listed).map_err(host("list"))? {
        let entry = entry.map_err(host("list"))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(host("stat"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let number = (stat.st_dev, stat.st_ino);
        if let Some(first) = copying.links.get(&number) {
            rustix::fs::linkat(copying.top, first.as_slice(), to, name, AtFlags::empty()).map_err(host("link"))?;
            continue;
        }
        if kind.is_dir() {
            rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700)).map_err(host("make"))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let source = rustix::fs::openat(from, name, flags, Mode::empty()).map_err(host("open"))?;
            let copy = rustix::fs::openat(to, name, flags, Mode::empty()).map_err(host("open"))?;
            let below = [path, name.to_bytes(), b"/"].concat();
            copy_dir(copying, source.as_fd(), copy.as_fd(), &below, depth - 1)?;
            continue;
        }
        if kind.is_symlink() {
            let target = rustix::fs::readlinkat(from, name, Vec::new()).map_err(host("read"))?;
            rustix::fs::symlinkat(target, to, name).map_err(host("make"))?;
        } else if kind.is_file() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let source = rustix::fs::openat(from, name, flags, Mode::empty()).map_err(host("open"))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let copy = rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600)).map_err(host("make"))?;
            let (mut source, mut copy) = (File::from(source), File::from(copy));
            // Shares the data where the file system can.
            std::io::copy(&mut source, &mut copy).map_err(|source| ApplyError::Host { what: "copy", source })?;
        } else {
            let mode = Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev).map_err(host("make"))?;
        }
        let only = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = rustix::fs::openat(from, name, only, Mode::empty()).map_err(host("open"))?;
        let copy = rustix::fs::openat(to, name, only, Mode::empty()).map_err(host("open"))?;
        copy_attributes(&source, &copy, &stat)?;
        let times = times_of(&stat);
        rustix::fs::utimensat(to, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(host("set times"))?;
        if stat.st_nlink > 1 {
            copying.links.insert(number, [path, name.to_bytes()].concat());
        }
    }
    let stat = rustix::fs::fstat(from).map_err(host("stat"))?;
    copy_attributes(&from, &to, &stat)?;
    rustix::fs::utimensat(to, ".", &times_of(&stat), AtFlags::empty()).map_err(host("set times"))
}

fn times_of(stat: &Stat) -> Timestamps {
    let time = |sec: i64, nsec: u64| rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec.cast_signed() };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Owner, extended attributes and mode, as far as this user may set them.
fn copy_attributes(from: &(impl AsFd + AsRawFd), to: &(impl AsFd + AsRawFd), stat: &Stat) -> Result<(), ApplyError> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    // An ordinary user keeps what is made as his.
    let _refused = rustix::fs::chownat(to, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
    let by_number = |fd: &dyn AsRawFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let (from, to) = (by_number(from), by_number(to));
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::listxattr(&from, names.as_mut_slice()).unwrap_or(0);
    for name in names[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        if let Ok(len) = rustix::fs::getxattr(&from, name, value.as_mut_slice()) {
            let _refused = rustix::fs::setxattr(&to, name, &value[..len], XattrFlags::empty());
        }
    }
    if FileType::from_raw_mode(stat.st_mode).is_symlink() {
        return Ok(());
    }
    rustix::fs::chmod(&to, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(host("set the mode"))
}
