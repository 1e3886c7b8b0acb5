//! What a restored file keeps beside its contents: owner, mode, extended attributes, times.
//!
//! What the caller's rights or the host's file system do not allow is left out and counted or listed in the report. Set-ID bits are
//! given only with the owner that they are about.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use oleo_fs::{Attr, FileKind, InodeRef, Time};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Core, DirTask, SET_ID, by_number, c_name};
use crate::{Error, Result};

/// What the owner is called among attributes that may not be kept.
const OWNER: &str = "owner";

impl Core<'_> {
    /// Owner, mode, extended attributes and times of something that is open.
    pub(super) fn set_attributes(&self, fd: &OwnedFd, inode: &InodeRef, path: &Path) -> Result<()> {
        let attr = self.fs.attr(inode);
        let host = |what| Error::host(what, self.dest.join(path));
        let mut owned = true;
        if self.must_give(&attr) {
            let chown = rustix::fs::fchown(fd, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
            owned = self.allow(chown, path, OWNER).map_err(|e| host("change the owner of")(e.into()))?;
        }
        for (name, value) in self.fs.xattrs(inode).map_err(|e| Error::from(e).at(path.display()))? {
            let set = rustix::fs::fsetxattr(fd, c_name(&name)?.as_c_str(), &value, XattrFlags::empty());
            self.allow(set, path, &name.escape_ascii().to_string())
                .map_err(|e| host("set an attribute of")(e.into()))?;
        }
        // After the access list, whose widest permission it limits.
        rustix::fs::fchmod(fd, self.mode(&attr, owned)).map_err(|e| host("change the mode of")(e.into()))?;
        rustix::fs::futimens(fd, &stamps(&attr)).map_err(|e| host("set the times of")(e.into()))
    }

    /// The same for what cannot be opened: links and special files.
    pub(super) fn set_attributes_by_name(
        &self,
        dir: &DirTask<'_>,
        name: &CString,
        inode: &InodeRef,
        attr: &Attr,
        path: &Path,
    ) -> Result<()> {
        let host = |what| Error::host(what, self.dest.join(path));
        let at = dir.fd.as_fd();
        let mut owned = true;
        if self.must_give(attr) {
            let (uid, gid) = (Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
            let chown = rustix::fs::chownat(at, name.as_c_str(), uid, gid, AtFlags::SYMLINK_NOFOLLOW);
            owned = self.allow(chown, path, OWNER).map_err(|e| host("change the owner of")(e.into()))?;
        }
        let entry = by_number(at).join(OsStr::from_bytes(name.as_bytes()));
        for (key, value) in self.fs.xattrs(inode).map_err(|e| Error::from(e).at(path.display()))? {
            let set = rustix::fs::lsetxattr(&entry, c_name(&key)?.as_c_str(), &value, XattrFlags::empty());
            self.allow(set, path, &key.escape_ascii().to_string())
                .map_err(|e| host("set an attribute of")(e.into()))?;
        }
        if attr.kind != FileKind::Symlink {
            let chmod = rustix::fs::chmodat(at, name.as_c_str(), self.mode(attr, owned), AtFlags::empty());
            chmod.map_err(|e| host("change the mode of")(e.into()))?;
        }
        let times = rustix::fs::utimensat(at, name.as_c_str(), &stamps(attr), AtFlags::SYMLINK_NOFOLLOW);
        times.map_err(|e| host("set the times of")(e.into()))
    }

    /// Whether the owner has to be set: it is another, or whom a set-ID bit is about must be certain.
    fn must_give(&self, attr: &Attr) -> bool {
        (attr.uid, attr.gid) != (self.uid, self.gid) || attr.mode & SET_ID != 0
    }

    /// The mode that something gets.
    fn mode(&self, attr: &Attr, owned: bool) -> Mode {
        let lost = if owned { 0 } else { SET_ID };
        Mode::from_raw_mode(attr.mode & self.mode_bits & !lost)
    }

    /// Turns what the caller's rights or the host's file system do not allow into a warning; whether it was done.
    fn allow(
        &self,
        result: std::result::Result<(), Errno>,
        path: &Path,
        what: &str,
    ) -> std::result::Result<bool, Errno> {
        match result {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(Errno::PERM | Errno::ACCESS) if !self.is_root => {}
            other => return other.map(|()| true),
        }
        let mut report = self.report.lock();
        if what == OWNER {
            report.owners_lost += 1;
        } else {
            report.warn(|| format!("{}: {what} could not be kept", Path::new(".").join(path).display()));
        }
        Ok(false)
    }
}

fn stamps(attr: &Attr) -> Timestamps {
    let stamp = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
    Timestamps { last_access: stamp(attr.atime), last_modification: stamp(attr.mtime) }
}
