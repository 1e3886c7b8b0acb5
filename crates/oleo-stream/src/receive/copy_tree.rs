//! Copies a directory tree of the host, as the beginning of a snapshot. Files whose owner could not be kept lose their
//! set-user-ID and set-group-ID bits.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid, XattrFlags};

use super::ApplyError;

/// The extended attribute that lets others in.
pub(super) const ACL: &[u8] = b"system.posix_acl_access";
/// Set-user-ID and set-group-ID.
pub(super) const SET_ID: u32 = 0o6000;

fn host(what: &'static str) -> impl Fn(rustix::io::Errno) -> ApplyError {
    move |errno| ApplyError::Host { what, source: errno.into() }
}

/// Inodes with several names, by device and number, and the first of these as a path from the top of the copy.
type Links = HashMap<(u64, u64), Vec<u8>>;

/// One copying.
struct Copying<'t> {
    top: BorrowedFd<'t>,
    links: Links,
    /// An owner could not be kept.
    owner_lost: bool,
}

/// Copies everything in `from` into the empty directory `to`. Of the directory itself, extended attributes are copied,
/// but not those that decide who may enter it. Returns whether an owner could not be kept.
pub(super) fn copy_tree(from: &OwnedFd, to: &OwnedFd, depth_max: usize) -> Result<bool, ApplyError> {
    let mut copying = Copying { top: to.as_fd(), links: Links::new(), owner_lost: false };
    copy_dir(&mut copying, from.as_fd(), to.as_fd(), b"", depth_max)?;
    copy_xattrs(from, to, &|name| name != ACL);
    Ok(copying.owner_lost)
}

/// `path` is the directory's path from the top; below the top it ends in a slash.
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
            let stat = rustix::fs::fstat(&source).map_err(host("stat"))?;
            copying.owner_lost |= !copy_attributes(&source, &copy, &stat)?;
            rustix::fs::utimensat(&copy, ".", &times_of(&stat), AtFlags::empty()).map_err(host("set times"))?;
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
            // Shares the data if the file system can.
            std::io::copy(&mut source, &mut copy).map_err(|source| ApplyError::Host { what: "copy", source })?;
        } else {
            let mode = Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev).map_err(host("make"))?;
        }
        let only = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = rustix::fs::openat(from, name, only, Mode::empty()).map_err(host("open"))?;
        let copy = rustix::fs::openat(to, name, only, Mode::empty()).map_err(host("open"))?;
        copying.owner_lost |= !copy_attributes(&source, &copy, &stat)?;
        let times = times_of(&stat);
        rustix::fs::utimensat(to, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(host("set times"))?;
        if stat.st_nlink > 1 {
            copying.links.insert(number, [path, name.to_bytes()].concat());
        }
    }
    Ok(())
}

pub(super) fn times_of(stat: &Stat) -> Timestamps {
    let time = |sec: i64, nsec: u64| rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec.cast_signed() };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn by_number(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Reads an extended attribute, if it exists and this user may read it.
pub(super) fn xattr(of: BorrowedFd<'_>, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(by_number(&of), name, value.as_mut_slice()).ok()?;
    value.truncate(len);
    Some(value)
}

fn copy_xattrs(from: &impl AsFd, to: &impl AsFd, wanted: &dyn Fn(&[u8]) -> bool) {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::listxattr(by_number(from), names.as_mut_slice()).unwrap_or(0);
    for name in names[..len].split(|b| *b == 0).filter(|name| !name.is_empty() && wanted(name)) {
        if let Some(value) = xattr(from.as_fd(), name) {
            let _refused = rustix::fs::setxattr(by_number(to), name, &value, XattrFlags::empty());
        }
    }
}

/// Copies owner, extended attributes and mode, as far as this user may set them; returns whether the owner is kept.
fn copy_attributes(from: &impl AsFd, to: &impl AsFd, stat: &Stat) -> Result<bool, ApplyError> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    // An ordinary user stays the owner of what is created.
    let owned = rustix::fs::chownat(to, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).is_ok();
    copy_xattrs(from, to, &|_| true);
    if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
        let lost = if owned { 0 } else { SET_ID };
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 & !lost);
        rustix::fs::chmod(by_number(to), mode).map_err(host("set the mode"))?;
    }
    Ok(owned)
}
