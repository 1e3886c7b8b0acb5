//! What a restored file keeps beside its contents: owner, mode, extended attributes, times.
//!
//! What the caller's rights or the host's file system do not allow is left out and counted or listed in the report. Set-ID bits are
//! given only with the owner that they are about.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use oleo_fs::{Attr, FileKind, InodeRef, Time};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Core, Place, SET_ID, by_number, c_name};
use crate::{Error, Result};

/// The name of the owner among attributes that may not be kept.
const OWNER: &str = "owner";

impl Core<'_> {
    /// Owner, mode, extended attributes and times of a file or directory that is open. One that cannot be set is reported, and
    /// the others are set.
    pub(super) fn set_attributes(&self, fd: &OwnedFd, inode: &InodeRef, place: &Place) {
        let attr = self.fs.attr(inode);
        let host = |what| Error::host(what, self.on_host(place));
        let mut owned = true;
        if self.must_give(&attr) {
            let chown = rustix::fs::fchown(fd, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
            owned = self.keep(self.allow(chown, place, OWNER).map_err(|e| host("change the owner of")(e.into())));
        }
        for (name, value) in self.xattrs(inode, place) {
            self.keep(c_name(&name).and_then(|c_name| {
                let set = rustix::fs::fsetxattr(fd, c_name.as_c_str(), &value, XattrFlags::empty());
                let set = self.allow(set, place, &name.escape_ascii().to_string());
                set.map_err(|e| host("set an attribute of")(e.into()))
            }));
        }
        // After the access list, whose widest permission it limits.
        let chmod = rustix::fs::fchmod(fd, self.mode(&attr, owned));
        self.keep(chmod.map(|()| true).map_err(|e| host("change the mode of")(e.into())));
        let times = rustix::fs::futimens(fd, &stamps(&attr));
        self.keep(times.map(|()| true).map_err(|e| host("set the times of")(e.into())));
    }

    /// The same for links and special files, which cannot be opened.
    pub(super) fn set_attributes_by_name(
        &self,
        at: &OwnedFd,
        name: &CString,
        inode: &InodeRef,
        attr: &Attr,
        place: &Place,
    ) {
        let host = |what| Error::host(what, self.on_host(place));
        let mut owned = true;
        if self.must_give(attr) {
            let (uid, gid) = (Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)));
            let chown = rustix::fs::chownat(at, name.as_c_str(), uid, gid, AtFlags::SYMLINK_NOFOLLOW);
            owned = self.keep(self.allow(chown, place, OWNER).map_err(|e| host("change the owner of")(e.into())));
        }
        let entry = by_number(at.as_fd()).join(OsStr::from_bytes(name.as_bytes()));
        for (key, value) in self.xattrs(inode, place) {
            self.keep(c_name(&key).and_then(|c_key| {
                let set = rustix::fs::lsetxattr(&entry, c_key.as_c_str(), &value, XattrFlags::empty());
                let set = self.allow(set, place, &key.escape_ascii().to_string());
                set.map_err(|e| host("set an attribute of")(e.into()))
            }));
        }
        if attr.kind != FileKind::Symlink {
            let chmod = rustix::fs::chmodat(at, name.as_c_str(), self.mode(attr, owned), AtFlags::empty());
            self.keep(chmod.map(|()| true).map_err(|e| host("change the mode of")(e.into())));
        }
        let times = rustix::fs::utimensat(at, name.as_c_str(), &stamps(attr), AtFlags::SYMLINK_NOFOLLOW);
        self.keep(times.map(|()| true).map_err(|e| host("set the times of")(e.into())));
    }

    /// Reports an attribute that could not be set; returns whether it was set.
    fn keep(&self, result: Result<bool>) -> bool {
        result.unwrap_or_else(|error| {
            self.fail(error);
            false
        })
    }

    /// The extended attributes; none, with a report, if they cannot be read.
    fn xattrs(&self, inode: &InodeRef, place: &Place) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.fs.xattrs(inode).unwrap_or_else(|error| {
            let place = format!("{}: the extended attributes could not be read", self.shown(place));
            self.fail(Error::from(error).at(place));
            Vec::new()
        })
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
        place: &Place,
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
            report.warn(|| format!("./{}: {what} could not be kept", self.shown(place)));
        }
        Ok(false)
    }
}

fn stamps(attr: &Attr) -> Timestamps {
    let stamp = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
    Timestamps { last_access: stamp(attr.atime), last_modification: stamp(attr.mtime) }
}
