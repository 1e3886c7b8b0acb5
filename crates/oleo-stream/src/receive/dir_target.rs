//! Applies commands to a directory of any file system of this machine.
//!
//! Subvolumes become directories. A snapshot needs its parent as a directory received before (`parents`), which is
//! copied, sharing data if the file system can (copy_file_range). What other file systems do not have (inode flags,
//! creation times, transactions, being read-only) is left out; owners, devices and privileged attributes that this user
//! may not set are counted and reported.
//!
//! Every path is opened below the subvolume's directory with openat2(2), which refuses to leave it and to follow links,
//! even if others change the tree meanwhile; what is created or removed is named relative to a directory opened in this
//! way. Directories of earlier subvolumes are opened in the same way, below the one that is received into, and what is
//! found there must be the inode that was created ([`Place`]).
//!
//! Until its end a subvolume's directory is accessible only to the user who receives: its owner, mode and access list
//! are kept back ([`Kept`]), so that nobody can replace a file between two commands.
//!
//! Set-user-ID and set-group-ID bits are meant for the owner that the stream names: if that owner could not be set,
//! they are dropped. Modes are subject to the umask that is given.
//!
//! Crash and errors: what was applied stays. There is no mark, and nothing can be resumed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oleo_format::Timespec;
use oleo_format::stream::Command;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timestamps, Uid, XattrFlags,
};
use uuid::Uuid;

use super::copy_tree::{self, ACL, SET_ID};
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
    /// Permission bits that nothing gets.
    pub umask: u32,
}

/// A directory in which subvolumes become directories.
pub struct DirTarget {
    top: PathBuf,
    options: DirOptions,
    open: Option<OpenDir>,
    /// Directories created by this run, by the UUID of the subvolume sent.
    done: HashMap<Uuid, Place>,
    made: Vec<Place>,
    /// The inode whose owner was set last, and whether that succeeded.
    owned: Option<(Id, bool)>,
    /// An owner could not be set.
    owner_lost: bool,
    /// What this user may not set: what, how often.
    lost: HashMap<&'static str, u64>,
}

/// Device and number of an inode of the host.
type Id = (u64, u64);

/// The directory of a subvolume.
#[derive(Clone)]
struct Place {
    /// Below the one that is received into.
    path: Vec<u8>,
    id: Id,
}

/// What the root directory of a subvolume gets at its end.
#[derive(Default)]
struct Kept {
    owner: Option<(Uid, Gid)>,
    mode: Option<u32>,
    /// The access list; inside, `None` removes it.
    acl: Option<Option<Vec<u8>>>,
    times: Option<Timestamps>,
}

/// The mode of a directory for which the stream gives none.
const MODE: u32 = 0o755;

struct OpenDir {
    uuid: Uuid,
    place: Place,
    root: OwnedFd,
    kept: Kept,
    /// What clones from the parent refer to.
    parent: Option<(Uuid, OwnedFd)>,
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

/// Opens a path below `root`; follows no link, neither on the way nor at the end.
fn open_below(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, ApplyError> {
    let path = if path.is_empty() { OsStr::new(".") } else { name_of(path) };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat2(root, path, flags, Mode::empty(), how).map_err(host("open"))
}

/// A path for an open descriptor that always leads to its inode.
fn by_number(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn id_of(fd: &OwnedFd) -> Result<Id, ApplyError> {
    let stat = rustix::fs::fstat(fd).map_err(host("stat"))?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Place {
    fn open(&self, top: &OwnedFd) -> Result<OwnedFd, ApplyError> {
        let found = open_below(top, &self.path, OFlags::PATH | OFlags::DIRECTORY)?;
        if id_of(&found)? != self.id {
            return Err(refused("a directory that was received has been replaced by another"));
        }
        Ok(found)
    }

    /// Removes the directory with everything in it.
    fn remove(&self, top: &OwnedFd) -> Applied {
        let found = self.open(top)?;
        for entry in fs::read_dir(by_number(&found)).map_err(host_io("list"))? {
            let entry = entry.map_err(host_io("list"))?;
            let is_dir = entry.file_type().map_err(host_io("stat"))?.is_dir();
            // Neither follows links, even if the entry is replaced meanwhile.
            let removed = if is_dir { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
            removed.map_err(host_io("remove"))?;
        }
        let (dir, name) = split(&self.path);
        let dir = open_below(top, dir, OFlags::PATH | OFlags::DIRECTORY)?;
        rustix::fs::unlinkat(&dir, name_of(name), AtFlags::REMOVEDIR).map_err(host("remove"))
    }
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
            owned: None,
            owner_lost: false,
            lost: HashMap::new(),
        }
    }

    fn open(&mut self) -> Result<&mut OpenDir, ApplyError> {
        self.open.as_mut().ok_or_else(|| refused("no subvolume is being received"))
    }

    /// Passes over what only others may do; whether it was done.
    fn tried(&mut self, what: &'static str, done: Result<(), rustix::io::Errno>) -> Result<bool, ApplyError> {
        use rustix::io::Errno;
        match done {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => {
                *self.lost.entry(what).or_default() += 1;
                Ok(false)
            }
            other => other.map(|()| true).map_err(host(what)),
        }
    }

    fn permitted(&mut self, what: &'static str, done: Result<(), rustix::io::Errno>) -> Applied {
        self.tried(what, done).map(drop)
    }

    /// The mode that an inode gets: set-ID bits only with the owner that they are about.
    fn mode(&self, of: Id, mode: u32) -> Mode {
        let owned = match self.owned {
            Some((id, owned)) if id == of => owned,
            // The stream has not named the owner recently: it is that of the parent, which root could set.
            _ => rustix::process::geteuid().is_root() && !self.owner_lost,
        };
        Mode::from_raw_mode(mode & 0o7777 & !self.options.umask & !if owned { 0 } else { SET_ID })
    }

    fn set_owner(&mut self, fd: &OwnedFd, owner: (Uid, Gid)) -> Applied {
        let done = rustix::fs::chownat(fd, "", Some(owner.0), Some(owner.1), AtFlags::EMPTY_PATH);
        let owned = self.tried("set an owner", done)?;
        self.owned = Some((id_of(fd)?, owned));
        self.owner_lost |= !owned;
        Ok(())
    }

    fn set_mode(&mut self, fd: &OwnedFd, mode: u32) -> Applied {
        let done = rustix::fs::chmod(by_number(fd), self.mode(id_of(fd)?, mode));
        self.permitted("set a mode", done)
    }

    /// Sets the attributes kept back of the root directory, in the order of a stream.
    fn set_kept(&mut self, open: &mut OpenDir) -> Applied {
        let kept = std::mem::take(&mut open.kept);
        if let Some(owner) = kept.owner {
            self.set_owner(&open.root, owner)?;
        }
        let at = by_number(&open.root);
        // To remove one there is nothing to do: there has been none until now.
        if let Some(Some(acl)) = kept.acl {
            let done = rustix::fs::setxattr(&at, name_of(ACL), &acl, XattrFlags::empty());
            self.permitted("set an extended attribute", done)?;
        }
        self.set_mode(&open.root, kept.mode.unwrap_or(MODE))?;
        if let Some(times) = kept.times {
            let done = rustix::fs::utimensat(&open.root, ".", &times, AtFlags::SYMLINK_NOFOLLOW);
            self.permitted("set times", done)?;
        }
        Ok(())
    }

    fn top(&self) -> Result<OwnedFd, ApplyError> {
        open_top(&self.top)
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
                    // The inode has to exist, since the stream continues to name it.
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
                let bytes = super::unpack(command)?;
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
                let mode = u32::try_from(mode & 0o7777).unwrap_or_default();
                if path.is_empty() {
                    self.open()?.kept.mode = Some(mode);
                    return Ok(());
                }
                let fd = open_below(&self.open()?.root, path, OFlags::PATH)?;
                self.set_mode(&fd, mode)
            }
            Command::Chown { path, uid, gid } => self.chown(path, uid, gid),
            Command::Utimes { path, ref atime, ref mtime, .. } => {
                let time = |t: &Timespec| rustix::fs::Timespec { tv_sec: t.seconds(), tv_nsec: t.nsec.get().into() };
                let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
                if path.is_empty() {
                    self.open()?.kept.times = Some(times);
                    return Ok(());
                }
                let (dir, name) = self.open()?.dir(path)?;
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
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| refused("an owner's number that means none"))
        };
        let (uid, gid) = (Uid::from_raw(id(uid)?), Gid::from_raw(id(gid)?));
        if path.is_empty() {
            self.open()?.kept.owner = Some((uid, gid));
            return Ok(());
        }
        let fd = open_below(&self.open()?.root, path, OFlags::PATH)?;
        self.set_owner(&fd, (uid, gid))
    }

    fn xattr(&mut self, command: &Command<'_>) -> Applied {
        let path = command.path().unwrap_or_default();
        match *command {
            Command::SetXattr { name: ACL, value, .. } if path.is_empty() => {
                self.open()?.kept.acl = Some(Some(value.to_vec()));
                return Ok(());
            }
            Command::RemoveXattr { name: ACL, .. } if path.is_empty() => {
                self.open()?.kept.acl = Some(None);
                return Ok(());
            }
            _ => {}
        }
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
        let known = self.done.get(&clone_uuid).map(|place| place.open(&self.top()?)).transpose()?;
        let open = self.open()?;
        let parent = open.parent.as_ref().filter(|(uuid, _)| *uuid == clone_uuid).map(|(_, dir)| dir);
        let dir = if clone_uuid == open.uuid { Some(&open.root) } else { known.as_ref().or(parent) };
        let dir = dir.ok_or_else(|| refused(format!("the clone source, {clone_uuid}, is not known here")))?;
        let source = open_below(dir, clone_path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        open.clone_from(&File::from(source), clone_offset, path, offset, len)
    }

    fn give_up(&mut self) -> Applied {
        self.open = None;
        let top = self.top()?;
        std::mem::take(&mut self.made).iter().rev().try_for_each(|place| place.remove(&top))
    }
}

fn open_top(path: &Path) -> Result<OwnedFd, ApplyError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(host("open"))
}

impl Target for DirTarget {
    fn begin(&mut self, new: &Begin<'_>) -> Applied {
        let top = self.top()?;
        let (dir, name) = split(new.path);
        let dir = open_below(&top, dir, OFlags::PATH | OFlags::DIRECTORY)?;
        // Its maker's alone until its end.
        rustix::fs::mkdirat(&dir, name_of(name), Mode::RWXU).map_err(host("make"))?;
        let root = open_below(&dir, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let made = rustix::fs::fstat(&root).map_err(host("stat"))?;
        if made.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused("another process has replaced the new directory"));
        }
        let place = Place { path: new.path.to_vec(), id: (made.st_dev, made.st_ino) };
        self.made.push(place.clone());
        let (mut parent, mut kept) = (None, Kept::default());
        if let Some((uuid, _)) = new.parent {
            let from = match (&self.options.parent, self.done.get(&uuid)) {
                (Some(path), _) => open_top(path)?,
                (None, Some(place)) => place.open(&top)?,
                (None, None) => return Err(ApplyError::UnknownParent(uuid)),
            };
            self.owner_lost |= copy_tree::copy_tree(&from, &root, DEPTH_MAX)?;
            let stat = rustix::fs::fstat(&from).map_err(host("stat"))?;
            kept.owner = Some((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)));
            kept.mode = Some(stat.st_mode & 0o7777);
            kept.acl = copy_tree::xattr(from.as_fd(), ACL).map(Some);
            kept.times = Some(copy_tree::times_of(&stat));
            parent = Some((uuid, from));
        }
        self.open = Some(OpenDir { uuid: new.uuid, place, root, kept, parent, file: None });
        Ok(())
    }

    fn reopen(&mut self, _new: &Begin<'_>) -> Result<Found, ApplyError> {
        Err(refused("receiving into a directory cannot be resumed"))
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
        if let Some(mut open) = self.open.take() {
            self.set_kept(&mut open)?;
            self.done.insert(open.uuid, open.place);
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
        lost.into_iter().map(|(what, times)| format!("{times} times: this user may not {what}")).collect()
    }
}
