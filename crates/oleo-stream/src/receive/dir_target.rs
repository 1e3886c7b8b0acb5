//! Applies commands to a directory of any file system of this machine.
//!
//! Subvolumes become directories; a snapshot needs its parent to be there as a directory received before (`parents`), of which a copy
//! is made, sharing data where the file system can (copy_file_range). What other file systems do not have (the flags of inodes, creation
//! times, transactions, being read-only) is left out; owners, devices and privileged attributes that this user may not set are
//! counted and told.
//!
//! Every path is opened below the subvolume's directory with openat2(2), which refuses to leave it and to follow links, whoever
//! else is changing the tree meanwhile; what is made or removed is named relative to a directory opened so.
//!
//! Crash and errors: what was applied stays. There is no mark, and nothing is resumed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oleo_format::Timespec;
use oleo_format::stream::Command;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timestamps, Uid, XattrFlags,
};
use uuid::Uuid;

use super::paths::split;
use super::{ApplyError, Begin, Failed, Found, Incomplete, Item, Late, Mark, Target, Wait};

/// Bytes copied at a time.
const COPY_LEN: usize = 1 << 20;
/// Directories nested deeper than this are not copied for a snapshot: each level holds a few descriptors open.
const DEPTH_MAX: usize = 200;

/// How to receive into a directory.
#[derive(Clone, Debug, Default)]
pub struct DirOptions {
    /// Use this directory as the parent of an incremental stream.
    pub parent: Option<PathBuf>,
}

/// A directory where subvolumes become directories.
pub struct DirTarget {
    top: PathBuf,
    options: DirOptions,
    open: Option<OpenDir>,
    /// Directories made by this run, by what was sent.
    done: HashMap<Uuid, PathBuf>,
    made: Vec<PathBuf>,
    /// What this user may not set: what, how often.
    lost: HashMap<&'static str, u64>,
}

struct OpenDir {
    uuid: Uuid,
    path: PathBuf,
    root: OwnedFd,
    /// What clones from the parent refer to.
    parent: Option<(Uuid, PathBuf)>,
    /// The file that was written to last.
    file: Option<(Vec<u8>, File)>,
}

type Applied = Result<(), ApplyError>;

fn host(what: &'static str) -> impl Fn(rustix::io::Errno) -> ApplyError {
    move |errno| ApplyError::Host { what, source: errno.into() }
}

fn host_io(what: &'static str) -> impl Fn(io::Error) -> ApplyError {
    move |source| ApplyError::Host { what, source }
}

fn refused(what: impl Into<String>) -> ApplyError {
    ApplyError::Refused(what.into())
}

fn name_of(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Opens what is at a path below `root`; no link on the way is followed, nor one at its end.
fn open_below(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, ApplyError> {
    let path = if path.is_empty() { OsStr::new(".") } else { name_of(path) };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat2(root, path, flags, Mode::empty(), how).map_err(host("open"))
}

/// The entry that an open descriptor stands for, by a name that leads nowhere else.
fn by_number(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

impl OpenDir {
    /// The directory of a path's last name.
    fn dir<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p OsStr), ApplyError> {
        let (dir, name) = split(path);
        Ok((open_below(&self.root, dir, OFlags::PATH | OFlags::DIRECTORY)?, name_of(name)))
    }

    /// The regular file at a path, open for writing.
    fn file(&mut self, path: &[u8]) -> Result<&File, ApplyError> {
        if self.file.as_ref().is_none_or(|(open, _)| open != path) {
            let fd = open_below(&self.root, path, OFlags::RDWR | OFlags::NONBLOCK)?;
            if !FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(host("stat"))?.st_mode).is_file() {
                return Err(refused("not a regular file"));
            }
            self.file = Some((path.to_vec(), File::from(fd)));
        }
        self.file.as_ref().map(|(_, file)| file).ok_or_else(|| refused("no file"))
    }

    fn make(&self, command: &Command<'_>) -> Applied {
        let (dir, name) = self.dir(command.path().unwrap_or_default())?;
        let mode = Mode::from_raw_mode(0o600);
        let node = |kind, dev| rustix::fs::mknodat(&dir, name, kind, mode, dev);
        match *command {
            Command::MkFile { .. } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                rustix::fs::openat(&dir, name, flags, mode).map(drop)
            }
            Command::MkDir { .. } => rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o700)),
            Command::MkFifo { .. } => node(FileType::Fifo, 0),
            Command::MkSock { .. } => node(FileType::Socket, 0),
            Command::MkNod { mode, rdev, .. } => {
                let kind = FileType::from_raw_mode(u32::try_from(mode & 0o170_000).unwrap_or_default());
                if !kind.is_char_device() && !kind.is_block_device() {
                    return Err(refused(format!("a device of mode {mode:o}")));
                }
                node(kind, rdev)
            }
            Command::Symlink { target, .. } => rustix::fs::symlinkat(name_of(target), &dir, name),
            _ => return Err(refused("not a command that makes an inode")),
        }
        .map_err(host("make"))
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Applied {
        self.file = None;
        let ((from, name), (dest, new)) = (self.dir(path)?, self.dir(to)?);
        rustix::fs::renameat_with(from, name, dest, new, RenameFlags::empty()).map_err(host("rename"))
    }

    fn clone_from(&mut self, source: &File, from: u64, path: &[u8], offset: u64, len: u64) -> Applied {
        let size = source.metadata().map_err(host_io("stat"))?.len();
        if from.checked_add(len).is_none_or(|end| end > size) {
            return Err(refused(format!("{len} bytes from {from} on of {size} that the source has")));
        }
        let dest = self.file(path)?;
        let (mut from, mut to, mut left) = (from, offset, len);
        while left > 0 {
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
            match rustix::fs::copy_file_range(source, Some(&mut from), dest, Some(&mut to), step) {
                Ok(0) => return Err(refused("the source ends early")),
                Ok(n) => left -= n as u64,
                // Other file systems, or ranges that overlap.
                Err(_) => return copy(source, from, dest, to, left),
            }
        }
        Ok(())
    }
}

fn copy(source: &File, from: u64, dest: &File, to: u64, len: u64) -> Applied {
    let mut buffer = vec![0; COPY_LEN.min(usize::try_from(len).unwrap_or(COPY_LEN))];
    let mut done = 0;
    while done < len {
        let want = usize::try_from(len - done).unwrap_or(COPY_LEN).min(buffer.len());
        let n = source.read_at(&mut buffer[..want], from + done).map_err(host_io("read"))?;
        if n == 0 {
            return Err(refused("the source ends early"));
        }
        dest.write_all_at(&buffer[..n], to + done).map_err(host_io("write"))?;
        done += n as u64;
    }
    Ok(())
}

impl DirTarget {
    /// Receives into a directory that is there.
    pub fn new(top: &Path, options: DirOptions) -> DirTarget {
        DirTarget {
            top: top.to_owned(),
            options,
            open: None,
            done: HashMap::new(),
            made: Vec::new(),
            lost: HashMap::new(),
        }
    }

    fn open(&mut self) -> Result<&mut OpenDir, ApplyError> {
        self.open.as_mut().ok_or_else(|| refused("no subvolume is being received"))
    }

    /// Passes over what only others may do.
    fn permitted(&mut self, what: &'static str, done: Result<(), rustix::io::Errno>) -> Applied {
        use rustix::io::Errno;
        match done {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => {
                *self.lost.entry(what).or_default() += 1;
                Ok(())
            }
            other => other.map_err(host(what)),
        }
    }

    fn one(&mut self, command: &Command<'_>) -> Applied {
        match *command {
            Command::MkFile { .. }
            | Command::MkDir { .. }
            | Command::MkFifo { .. }
            | Command::MkSock { .. }
            | Command::Symlink { .. } => self.open()?.make(command),
            Command::MkNod { .. } => match self.open()?.make(command) {
                Err(ApplyError::Host { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                    *self.lost.entry("make a device").or_default() += 1;
                    // Something has to be there: the stream goes on to name it.
                    let path = command.path().unwrap_or_default();
                    self.open()?.make(&Command::MkFifo { path, ino: 0 })
                }
                other => other,
            },
            Command::Rename { path, to } => self.open()?.rename(path, to),
            Command::Link { path, target } => {
                let open = self.open()?;
                let ((from, old), (dest, new)) = (open.dir(target)?, open.dir(path)?);
                rustix::fs::linkat(from, old, dest, new, AtFlags::empty()).map_err(host("link"))
            }
            Command::Unlink { path } => self.remove(path, AtFlags::empty()),
            Command::RmDir { path } => self.remove(path, AtFlags::REMOVEDIR),
            Command::SetXattr { .. } | Command::RemoveXattr { .. } => self.xattr(command),
            Command::Write { path, offset, data } => {
                self.open()?.file(path)?.write_all_at(data, offset).map_err(host_io("write"))
            }
            Command::EncodedWrite { path, offset, .. } => {
                let bytes = unpack(command)?;
                self.open()?.file(path)?.write_all_at(&bytes, offset).map_err(host_io("write"))
            }
            Command::Clone { .. } => self.clone_range(command),
            Command::Truncate { path, size } => self.open()?.file(path)?.set_len(size).map_err(host_io("truncate")),
            Command::Fallocate { path, mode, offset, len } => {
                let done = rustix::fs::fallocate(
                    self.open()?.file(path)?,
                    FallocateFlags::from_bits_retain(mode),
                    offset,
                    len,
                );
                self.permitted("allocate space", done)
            }
            Command::Chmod { path, mode } => {
                let fd = open_below(&self.open()?.root, path, OFlags::PATH)?;
                let mode = Mode::from_raw_mode(u32::try_from(mode & 0o7777).unwrap_or_default());
                let done = rustix::fs::chmod(by_number(&fd), mode);
                self.permitted("set a mode", done)
            }
            Command::Chown { path, uid, gid } => self.chown(path, uid, gid),
            Command::Utimes { path, ref atime, ref mtime, .. } => {
                let (dir, name) = match split(path) {
                    (_, b"") => (open_below(&self.open()?.root, b"", OFlags::PATH)?, OsStr::new(".")),
                    _ => self.open()?.dir(path)?,
                };
                let time = |t: &Timespec| rustix::fs::Timespec { tv_sec: t.seconds(), tv_nsec: t.nsec.get().into() };
                let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
                let done = rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW);
                self.permitted("set times", done)
            }
            Command::UpdateExtent { .. } | Command::FileAttr { .. } => Ok(()),
            Command::EnableVerity { .. } => {
                *self.lost.entry("enable fs-verity").or_default() += 1;
                Ok(())
            }
            Command::Subvol { .. } | Command::Snapshot { .. } | Command::End => {
                Err(refused("not a command for a file"))
            }
        }
    }

    fn remove(&mut self, path: &[u8], flags: AtFlags) -> Applied {
        let open = self.open()?;
        open.file = None;
        let (dir, name) = open.dir(path)?;
        rustix::fs::unlinkat(dir, name, flags).map_err(host("remove"))
    }

    fn chown(&mut self, path: &[u8], uid: u64, gid: u64) -> Applied {
        let id = |id: u64| {
            u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or_else(|| refused("an owner that nobody can be"))
        };
        let (uid, gid) = (Uid::from_raw(id(uid)?), Gid::from_raw(id(gid)?));
        let fd = open_below(&self.open()?.root, path, OFlags::PATH)?;
        let done = rustix::fs::chownat(&fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
        self.permitted("set an owner", done)
    }

    fn xattr(&mut self, command: &Command<'_>) -> Applied {
        let path = command.path().unwrap_or_default();
        let fd = open_below(&self.open()?.root, path, OFlags::PATH)?;
        let at = by_number(&fd);
        let done = match *command {
            Command::SetXattr { name, value, .. } => {
                rustix::fs::setxattr(&at, name_of(name), value, XattrFlags::empty())
            }
            Command::RemoveXattr { name, .. } => rustix::fs::removexattr(&at, name_of(name)),
            _ => Ok(()),
        };
        self.permitted("set an extended attribute", done)
    }

    fn clone_range(&mut self, command: &Command<'_>) -> Applied {
        let Command::Clone { path, offset, len, clone_uuid, clone_path, clone_offset, .. } = *command else {
            return Err(refused("not a clone"));
        };
        let known = self.done.get(&clone_uuid).cloned();
        let open = self.open()?;
        let parent = open.parent.as_ref().filter(|(uuid, _)| *uuid == clone_uuid).map(|(_, path)| path.clone());
        let source = if clone_uuid == open.uuid {
            open_below(&open.root, clone_path, OFlags::RDONLY | OFlags::NONBLOCK)?
        } else {
            let dir = known.or(parent);
            let dir = dir.ok_or_else(|| refused(format!("{clone_uuid}, which is cloned from, is not known here")))?;
            open_below(&open_top(&dir)?, clone_path, OFlags::RDONLY | OFlags::NONBLOCK)?
        };
        open.clone_from(&File::from(source), clone_offset, path, offset, len)
    }

    fn give_up(&mut self) -> Applied {
        self.open = None;
        for path in std::mem::take(&mut self.made) {
            fs::remove_dir_all(path).map_err(host_io("remove"))?;
        }
        Ok(())
    }
}

fn open_top(path: &Path) -> Result<OwnedFd, ApplyError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(host("open"))
}

/// The bytes of an encoded write.
fn unpack(command: &Command<'_>) -> Result<Vec<u8>, ApplyError> {
    let packed = super::fs_target::packed(command)?;
    packed.unpack(SECTOR)
}

/// For data of no compression that depends on sectors.
const SECTOR: u32 = 4096;

impl Target for DirTarget {
    fn begin(&mut self, new: &Begin<'_>) -> Applied {
        let path = self.top.join(name_of(new.path));
        let root = open_top(&self.top)?;
        let (dir, name) = split(new.path);
        let dir = open_below(&root, dir, OFlags::PATH | OFlags::DIRECTORY)?;
        rustix::fs::mkdirat(&dir, name_of(name), Mode::from_raw_mode(0o755)).map_err(host("make"))?;
        self.made.push(path.clone());
        let root = open_below(&root, new.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut parent = None;
        if let Some((uuid, _)) = new.parent {
            let known = self.options.parent.clone().or_else(|| self.done.get(&uuid).cloned());
            let from = known.ok_or_else(|| {
                refused(format!("the parent, {uuid}, is not known here: --rebase names the directory that it is in"))
            })?;
            super::copy_tree::copy_tree(&open_top(&from)?, &root, DEPTH_MAX)?;
            parent = Some((uuid, from));
        }
        self.open = Some(OpenDir { uuid: new.uuid, path, root, parent, file: None });
        Ok(())
    }

    fn reopen(&mut self, _new: &Begin<'_>) -> Result<Found, ApplyError> {
        Err(refused("what was received into a directory cannot be resumed"))
    }

    fn apply(&mut self, items: &[Item<'_>]) -> Result<(), Failed> {
        for (index, item) in items.iter().enumerate() {
            self.one(&item.command).map_err(|error| Failed { index, exact: false, error })?;
        }
        Ok(())
    }

    fn late(&mut self, _wait: Wait) -> Vec<Late> {
        Vec::new()
    }

    fn checkpoint(&mut self, _mark: &Mark) -> Applied {
        Ok(())
    }

    fn finish(&mut self) -> Applied {
        if let Some(open) = self.open.take() {
            self.done.insert(open.uuid, open.path);
        }
        Ok(())
    }

    fn abandon(&mut self, _applied: Option<&Mark>, incomplete: Incomplete) -> Applied {
        match incomplete {
            Incomplete::Marked => {
                self.open = None;
                Ok(())
            }
            Incomplete::Deleted => self.give_up(),
        }
    }

    fn take_warnings(&mut self) -> Vec<String> {
        let mut lost: Vec<_> = self.lost.drain().collect();
        lost.sort_unstable();
        lost.into_iter().map(|(what, times)| format!("{times} times this user may not {what}")).collect()
    }
}
