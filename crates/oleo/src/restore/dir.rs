//! Restores into a directory of the host, on several threads.
//!
//! Work lies on one stack, the newest on top, so that it goes depth first and stays small however large the tree is:
//! a directory to make, more entries of a directory, more of a large file. Each worker takes the top, puts what remains
//! of it back first, and then does its part.
//!
//! A directory's own attributes are set when the last thing in it is done: everything below holds an `Arc` of it, and
//! setting them is what its `Drop` does. So is a large file's.
//!
//! Hard links: the first name of an inode with several makes the file, under the lock of the table of links; later
//! names link to it. Directories that are complete belong to somebody else by then, who may have moved things: the way to the
//! first name is gone from the top without following links, and what is found there must be the inode that was made.
//!
//! An error ends all workers; the first one is reported. What was made by then stays.

mod attributes;

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oleo_format::{Ino, TreeId};
use oleo_fs::{Attr, Descent, DirEntryInfo, FileKind, Fs, InodeRef, Target};
use oleo_lock::{Condvar, Mutex, rank};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{RestoreOptions, RestoreReport};
use crate::{Error, Image, Result};

/// Entries of a directory that one worker takes at a time.
const ENTRIES_AT_ONCE: usize = 256;
/// Bytes of a file that one worker takes at a time.
const RANGE_BYTES: u64 = 32 << 20;
/// Bytes read and written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Files up to this size whose inode says that they have no holes are believed: as many zeros can be written where it lies.
const BELIEVED_BYTES: u64 = 1 << 20;
/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;
/// Entries between two calls of the progress function.
const ENTRIES_PER_REPORT: u64 = 256;

/// Restores what is at `from`, and everything below, into `dest`: a directory that is empty or is made. Something that
/// is no directory is put into `dest` under `name`.
///
/// # Errors
/// `dest` has something in it, the host refuses to make a file, no good copy of data is left, or a device fails.
pub fn restore_to_dir(
    image: &Image,
    from: &InodeRef,
    name: &[u8],
    dest: &Path,
    options: &RestoreOptions,
) -> Result<RestoreReport> {
    match std::fs::create_dir(dest) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::host("make", dest)(error));
        }
        _ => {}
    }
    if std::fs::read_dir(dest).map_err(Error::host("list", dest))?.next().is_some() {
        return Err(Error::refused(
            oleo_fs::errno::ENOTEMPTY,
            format!("{} is not empty; restore into a new or empty directory", dest.display()),
        ));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dest, flags, Mode::empty()).map_err(|e| Error::host("open", dest)(e.into()))?;
    let host = |e: Errno| Error::host("look at", dest)(e.into());
    let top_fd = rustix::fs::openat(&fd, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let stat = rustix::fs::fstat(&fd).map_err(host)?;
    let is_root = rustix::process::geteuid().is_root();
    let exact = is_root || options.exact_modes;
    let umask = if exact { 0 } else { oleo_device::process::umask() | SET_ID };
    let core = Core {
        fs: image.fs(),
        options,
        one_tree: options.one_subvol.then(|| from.tree()),
        dest,
        top: top_fd.map_err(host)?,
        is_root,
        mode_bits: 0o7777 & !umask & !if options.no_special { SET_ID } else { 0 },
        descent: Mutex::new(Descent::new(from)),
        links: Mutex::new(HashMap::new()),
        failed: Mutex::new(None),
        report: Mutex::new(RestoreReport::default()),
        uid: rustix::process::geteuid().as_raw(),
        // What is made in a set-group-ID directory gets its group.
        gid: if stat.st_mode & 0o2000 != 0 { stat.st_gid } else { rustix::process::getegid().as_raw() },
    };
    let is_dir = image.fs().attr(from).kind == FileKind::Dir;
    // The directory of the host keeps its own attributes when only one file is put into it.
    let inode = is_dir.then(|| from.clone());
    let top = Arc::new(DirTask { fd, path: PathBuf::new(), inode, parent: None, core: &core });
    let first = if is_dir {
        Job::List { dir: top, after: 0 }
    } else {
        Job::One { dir: top, name: name.to_vec(), inode: from.clone() }
    };
    let work = Work { core: &core, state: Mutex::new(State { stack: vec![first], running: 0 }), wake: Condvar::new() };
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work.run_all());
        }
    });
    drop(work);
    if let Some(error) = core.failed.lock().take() {
        return Err(error);
    }
    let report = core.report.lock().clone();
    if let Some(on_progress) = &options.on_progress {
        on_progress(&report.done);
    }
    Ok(report)
}

/// A directory that is being filled. Its attributes are set when nothing holds it any more.
struct DirTask<'a> {
    fd: OwnedFd,
    /// From the top of what is restored.
    path: PathBuf,
    /// `None`: it keeps the attributes it has.
    inode: Option<InodeRef>,
    parent: Option<Arc<DirTask<'a>>>,
    core: &'a Core<'a>,
}

impl Drop for DirTask<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take()
            && let Err(error) = self.core.set_attributes(&self.fd, &inode, &self.path)
        {
            self.core.fail(error);
        }
        // A chain of parents ends one by one, not all inside each other: depth has no bound here.
        let mut next = self.parent.take();
        while let Some(parent) = next {
            next = Arc::into_inner(parent).and_then(|mut parent| parent.parent.take());
        }
    }
}

/// A regular file that is being written, by several workers if it is large.
struct FileTask<'a> {
    fd: OwnedFd,
    path: PathBuf,
    inode: InodeRef,
    attr: Attr,
    dir: Arc<DirTask<'a>>,
}

impl Drop for FileTask<'_> {
    fn drop(&mut self) {
        let core = self.dir.core;
        if let Err(error) = core.set_attributes(&self.fd, &self.inode, &self.path) {
            core.fail(error);
        }
    }
}

enum Job<'a> {
    /// The entries of a directory after this index.
    List { dir: Arc<DirTask<'a>>, after: u64 },
    /// A directory to make and list.
    Dir { dir: Arc<DirTask<'a>>, name: Vec<u8>, inode: InodeRef },
    /// Anything else to make.
    One { dir: Arc<DirTask<'a>>, name: Vec<u8>, inode: InodeRef },
    /// The bytes of a file from here on.
    Range { file: Arc<FileTask<'a>>, from: u64 },
}

struct State<'a> {
    stack: Vec<Job<'a>>,
    running: usize,
}

/// The stack of work, and who waits for it.
struct Work<'a> {
    core: &'a Core<'a>,
    state: Mutex<rank::RestoreWork, State<'a>>,
    wake: Condvar,
}

/// What everything that is restored has in common.
struct Core<'a> {
    fs: &'a Fs,
    options: &'a RestoreOptions,
    /// Set: only this subvolume.
    one_tree: Option<TreeId>,
    dest: &'a Path,
    /// `dest`, opened.
    top: OwnedFd,
    is_root: bool,
    /// Bits of modes that are given.
    mode_bits: u32,
    descent: Mutex<rank::RestoreDescent, Descent>,
    /// The owner and group of what this process makes.
    uid: u32,
    gid: u32,
    /// Inodes with several names.
    links: Mutex<rank::RestoreLinks, HashMap<(TreeId, Ino), Made>>,
    failed: Mutex<rank::RestoreFailed, Option<Error>>,
    report: Mutex<rank::RestoreReport, RestoreReport>,
}

/// An inode with several names that has been made.
struct Made {
    /// Its first name, from the top.
    path: PathBuf,
    /// Device and number on the host.
    id: (u64, u64),
    /// How many names are still to come at most.
    left: u32,
}

fn c_name(name: &[u8]) -> Result<CString> {
    CString::new(name).map_err(|_| Error::Request(format!("a name with a zero byte: {}", name.escape_ascii())))
}

impl<'a> Work<'a> {
    fn push(&self, job: Job<'a>) {
        self.state.lock().stack.push(job);
        self.wake.notify_one();
    }

    fn run_all(&self) {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            let mut state = self.state.lock();
            let job = loop {
                if self.core.failed.lock().is_some() {
                    // Jobs hold directories, and dropping those takes time.
                    let dropped = std::mem::take(&mut state.stack);
                    drop(state);
                    drop(dropped);
                    self.wake.notify_all();
                    return;
                }
                match state.stack.pop() {
                    Some(job) => break job,
                    None if state.running == 0 => {
                        drop(state);
                        self.wake.notify_all();
                        return;
                    }
                    None => self.wake.wait(&mut state),
                }
            };
            state.running += 1;
            drop(state);
            if let Err(error) = self.run(job, &mut buffer) {
                self.core.fail(error);
            }
            self.state.lock().running -= 1;
            self.wake.notify_one();
        }
    }

    fn run(&self, job: Job<'a>, buffer: &mut [u8]) -> Result<()> {
        match job {
            Job::List { dir, after } => self.list(dir, after, buffer),
            Job::Dir { dir, name, inode } => {
                let path = dir.path.join(OsStr::from_bytes(&name));
                let c_name = c_name(&name)?;
                let failed = |e: Errno| Error::host("make", self.core.dest.join(&path))(e.into());
                // Only its owner may enter until it is complete.
                rustix::fs::mkdirat(&dir.fd, c_name.as_c_str(), Mode::RWXU).map_err(failed)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&dir.fd, c_name.as_c_str(), flags, Mode::empty()).map_err(failed)?;
                let made = DirTask { fd, path, inode: Some(inode), parent: Some(dir), core: self.core };
                self.list(Arc::new(made), 0, buffer)
            }
            Job::One { dir, name, inode } => self.one(&dir, &name, inode, buffer),
            Job::Range { file, from } => self.copy_range(file, from, buffer),
        }
    }

    fn list(&self, dir: Arc<DirTask<'a>>, after: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(inode) = dir.inode.clone() else { return Ok(()) };
        let entries =
            self.core.fs.readdir(&inode, after, ENTRIES_AT_ONCE).map_err(|e| Error::from(e).at(dir.path.display()))?;
        if entries.len() == ENTRIES_AT_ONCE
            && let Some(last) = entries.last()
        {
            self.push(Job::List { dir: dir.clone(), after: last.index });
        }
        for entry in entries {
            self.entry(&dir, &inode, entry, buffer)?;
        }
        Ok(())
    }

    fn entry(&self, dir: &Arc<DirTask<'a>>, inode: &InodeRef, entry: DirEntryInfo, buffer: &mut [u8]) -> Result<()> {
        let place = || dir.path.join(OsStr::from_bytes(&entry.name)).display().to_string();
        if let (Target::Subvol(_), Some(_)) = (entry.target, self.core.one_tree) {
            let name = c_name(&entry.name)?;
            let made = rustix::fs::mkdirat(&dir.fd, name.as_c_str(), Mode::from_raw_mode(0o755));
            return made.map_err(|e| Error::host("make", self.core.dest.join(place()))(e.into()));
        }
        let found = self.core.fs.open_entry(inode, &entry).map_err(|e| Error::from(e).at(place()))?;
        let Some(child) = found else {
            self.core.report.lock().warn(|| format!("{}: has vanished", place()));
            return Ok(());
        };
        if entry.kind == FileKind::Dir {
            if !self.core.descent.lock().enters(self.core.fs, inode, &entry.name, &child) {
                let warning = || format!("{}: left out, the directory is elsewhere too", place());
                self.core.report.lock().warn(warning);
                return Ok(());
            }
            self.core.count(|done| done.dirs += 1);
            self.push(Job::Dir { dir: dir.clone(), name: entry.name, inode: child });
            return Ok(());
        }
        self.one(dir, &entry.name, child, buffer)
    }

    /// Makes something that is no directory.
    fn one(&self, dir: &Arc<DirTask<'a>>, name: &[u8], inode: InodeRef, buffer: &mut [u8]) -> Result<()> {
        let attr = self.core.fs.attr(&inode);
        let path = dir.path.join(OsStr::from_bytes(name));
        if attr.nlink <= 1 {
            return match self.make(dir, name, &path, inode, attr)? {
                Some(file) => self.copy_range(file, 0, buffer),
                None => Ok(()),
            };
        }
        let mut links = self.core.links.lock();
        let key = (attr.subvol, attr.ino);
        if let Some(made) = links.get_mut(&key) {
            made.left -= 1;
            let (first, id, is_last) = (made.path.clone(), made.id, made.left == 0);
            if is_last {
                links.remove(&key);
            }
            drop(links);
            let linked = self.core.link(&first, id, dir, &c_name(name)?);
            linked.map_err(|e| Error::host("link", self.core.dest.join(&path))(e.into()))?;
            self.core.count(|done| done.links += 1);
            return Ok(());
        }
        let file = self.make(dir, name, &path, inode, attr)?;
        // What could not be made has no entry; its other names will not be made either.
        if let Ok(stat) = rustix::fs::statat(&dir.fd, c_name(name)?.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) {
            links.insert(key, Made { path, id: (stat.st_dev, stat.st_ino), left: attr.nlink - 1 });
        }
        drop(links);
        match file {
            Some(file) => self.copy_range(file, 0, buffer),
            None => Ok(()),
        }
    }

    /// Makes the name; a regular file comes back to be filled.
    fn make(
        &self,
        dir: &Arc<DirTask<'a>>,
        name: &[u8],
        path: &Path,
        inode: InodeRef,
        attr: Attr,
    ) -> Result<Option<Arc<FileTask<'a>>>> {
        let c_name = c_name(name)?;
        let failed = |e: Errno| Error::host("make", self.core.dest.join(path))(e.into());
        let made = match attr.kind {
            FileKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd =
                    rustix::fs::openat(&dir.fd, c_name.as_c_str(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
                if attr.size > BELIEVED_BYTES {
                    // Holes are what is not written; and a size that the host cannot have is an error before anything is.
                    let sized = rustix::fs::ftruncate(&fd, attr.size);
                    sized.map_err(|e| Error::host("set the size of", self.core.dest.join(path))(e.into()))?;
                }
                self.core.count(|done| done.files += 1);
                return Ok(Some(Arc::new(FileTask { fd, path: path.to_owned(), inode, attr, dir: dir.clone() })));
            }
            FileKind::Symlink => {
                let target = self.core.fs.read_link(&inode).map_err(|e| Error::from(e).at(path.display()))?;
                rustix::fs::symlinkat(target.as_slice(), &dir.fd, c_name.as_c_str())
            }
            kind => {
                let file_type = match kind {
                    FileKind::CharDevice => FileType::CharacterDevice,
                    FileKind::BlockDevice => FileType::BlockDevice,
                    FileKind::Fifo => FileType::Fifo,
                    FileKind::Socket => FileType::Socket,
                    _ => {
                        self.core
                            .report
                            .lock()
                            .warn(|| format!("{}: an unknown kind of file is left out", path.display()));
                        return Ok(None);
                    }
                };
                if self.core.options.no_special && matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    self.core.report.lock().warn(|| format!("{}: a device is left out", path.display()));
                    return Ok(None);
                }
                let rdev = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
                rustix::fs::mknodat(&dir.fd, c_name.as_c_str(), file_type, Mode::RUSR | Mode::WUSR, rdev)
            }
        };
        match made {
            Ok(()) => {}
            // In a container root cannot either.
            Err(Errno::PERM) => {
                self.core.report.lock().warn(|| format!("{}: only root can make it", path.display()));
                return Ok(None);
            }
            Err(errno) => return Err(failed(errno)),
        }
        self.core.count(|done| done.others += 1);
        self.core.set_attributes_by_name(dir, &c_name, &inode, &attr, path)?;
        Ok(None)
    }

    /// Copies a part of a file; what follows it is put on the stack before.
    fn copy_range(&self, file: Arc<FileTask<'a>>, from: u64, buffer: &mut [u8]) -> Result<()> {
        let size = file.attr.size;
        let inside = |e: oleo_fs::FsError| Error::from(e).at(file.path.display());
        let host = |what| Error::host(what, self.core.dest.join(&file.path));
        // A file whose extents cover all of it has no holes to look for.
        let dense = file.attr.nbytes >= size && size <= BELIEVED_BYTES;
        let mut from = from;
        if !dense {
            match self.core.fs.seek_data(&file.inode, from).map_err(inside)?.filter(|&data| data < size) {
                Some(data) => from = data,
                None => from = size,
            }
        }
        let to = from.saturating_add(RANGE_BYTES).min(size);
        if to < size {
            self.push(Job::Range { file: file.clone(), from: to });
        }
        let mut at = from;
        while at < to {
            let mut end = to;
            if !dense {
                let Some(data) = self.core.fs.seek_data(&file.inode, at).map_err(inside)?.filter(|&data| data < to)
                else {
                    break;
                };
                let hole = self.core.fs.seek_hole(&file.inode, data).map_err(inside)?.unwrap_or(size);
                (at, end) = (data, hole.min(to));
            }
            while at < end {
                let want = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let n = self.core.fs.read(&file.inode, at, &mut buffer[..want]).map_err(inside)?;
                if n == 0 {
                    break;
                }
                let mut done = 0;
                while done < n {
                    match rustix::io::pwrite(&file.fd, &buffer[done..n], at + done as u64) {
                        Ok(written) => done += written,
                        Err(Errno::INTR) => {}
                        Err(errno) => return Err(host("write")(errno.into())),
                    }
                }
                at += n as u64;
                self.core.report.lock().done.data_bytes += n as u64;
            }
            at = at.max(end);
        }
        if to == size && !dense && size <= BELIEVED_BYTES {
            rustix::fs::ftruncate(&file.fd, size).map_err(|e| host("set the size of")(e.into()))?;
        }
        Ok(())
    }
}

impl Core<'_> {
    fn fail(&self, error: Error) {
        self.failed.lock().get_or_insert(error);
    }

    fn count(&self, add: impl FnOnce(&mut oleo_mkfs::Progress)) {
        let mut report = self.report.lock();
        add(&mut report.done);
        let done = &report.done;
        if (done.files + done.dirs + done.links + done.others).is_multiple_of(ENTRIES_PER_REPORT)
            && let Some(on_progress) = &self.options.on_progress
        {
            on_progress(&report.done);
        }
    }

    /// Gives an inode that was made under `first` another name.
    fn link(&self, first: &Path, id: (u64, u64), dir: &DirTask<'_>, name: &CString) -> std::result::Result<(), Errno> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let above = first.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The last name may be a symbolic link that was made here.
        let above = rustix::fs::openat2(&self.top, above, flags | OFlags::DIRECTORY, Mode::empty(), how)?;
        let found = rustix::fs::openat(&above, first.file_name().unwrap_or_default(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        if (stat.st_dev, stat.st_ino) != id {
            return Err(Errno::STALE);
        }
        let found = by_number(found.as_fd());
        rustix::fs::linkat(rustix::fs::CWD, found, &dir.fd, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)
    }
}

/// What an open descriptor stands for, by a name that leads nowhere else.
fn by_number(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
