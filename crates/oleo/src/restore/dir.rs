//! Restores into a directory of the host, on several threads.
//!
//! Work lies on one stack, the newest on top, so that it goes depth first and stays small however large the tree is:
//! a directory to make, more entries of a directory, more of a large file. Each worker takes the top, puts what remains
//! of it back first, and then does its part.
//!
//! A directory's own attributes are set when the last entry in it is done: everything below holds an `Arc` of it, and
//! setting them is what its `Drop` does. So is a large file's. `open_dirs` bounds how many directories are open, however deep
//! the tree is.
//!
//! Hard links: the first name of an inode with several makes the file, under the lock of the table of links; later
//! names link to it. Directories that are complete may belong to another user by then, who may have moved entries: the first
//! name is looked up from the top without following links, and the inode found there must be the one that was made.
//!
//! An error of one entry is reported, and the work continues. Any other error ends all workers; the first one is returned, and
//! the entries that were made stay.

mod attributes;
mod open_dirs;

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use oleo_format::{Ino, TreeId};
use oleo_fs::{Attr, Descent, DirEntryInfo, FileKind, Fs, FsError, InodeRef, Target};
use oleo_lock::{Condvar, Mutex, rank};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use self::open_dirs::{DirTask, OpenDirs};
use super::damage;
use super::place::Place;
use super::{Failures, RestoreOptions, RestoreReport};
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
/// Large files whose parts several workers copy; a further one is copied by the worker that made it. Each holds a descriptor.
const SHARED_FILES_MAX: usize = 64;
/// Bytes of a path that one call resolves at most, below the `PATH_MAX` of Linux.
const PATH_BYTES_MAX: usize = 4000;

/// Restores what is at `from`, and everything below, into `dest`: a directory that is empty or is made. Something that
/// is no directory is put into `dest` under `name`.
///
/// # Errors
/// [`Error::Incomplete`] if some entries were not restored, or not whole. `dest` has something in it, or the host accepts nothing
/// more.
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
        sector: u64::from(image.fs().engine().sectorsize()),
        one_tree: options.one_subvol.then(|| from.tree()),
        dest,
        top: top_fd.map_err(host)?,
        is_root,
        mode_bits: 0o7777 & !umask & !if options.no_special { SET_ID } else { 0 },
        descent: Mutex::new(Descent::new(from)),
        links: Mutex::new(HashMap::new()),
        dirs: OpenDirs::default(),
        shared_files: AtomicUsize::new(0),
        failures: Failures::default(),
        failed: Mutex::new(None),
        report: Mutex::new(RestoreReport::default()),
        uid: rustix::process::geteuid().as_raw(),
        // A file that is made in a set-group-ID directory gets its group.
        gid: if stat.st_mode & 0o2000 != 0 { stat.st_gid } else { rustix::process::getegid().as_raw() },
    };
    let is_dir = image.fs().attr(from).kind == FileKind::Dir;
    // The directory of the host keeps its own attributes when only one file is put into it.
    let inode = is_dir.then(|| from.clone());
    let top = Arc::new(DirTask::top(&core, fd, (stat.st_dev, stat.st_ino), inode));
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
    core.failures.result(report)
}

/// A regular file that is being written, by several workers if it is large.
struct FileTask<'a> {
    fd: OwnedFd,
    place: Arc<Place>,
    inode: InodeRef,
    attr: Attr,
    dir: Arc<DirTask<'a>>,
    /// Whether it counts among [`Core::shared_files`].
    shared: bool,
    /// Bytes that could not be read, and why the first of them could not.
    lost: AtomicU64,
    why: OnceLock<FsError>,
}

impl FileTask<'_> {
    fn lose(&self, bytes: u64, why: FsError) {
        self.lost.fetch_add(bytes, Ordering::Relaxed);
        // The first reason counts.
        let _ = self.why.set(why);
    }
}

impl Drop for FileTask<'_> {
    fn drop(&mut self) {
        let core = self.dir.core;
        if self.shared {
            core.shared_files.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(why) = self.why.take() {
            let lost = self.lost.load(Ordering::Relaxed);
            core.fail(
                Error::from(why)
                    .at(format!("{}: up to {lost} bytes could not be read and are zeros", core.shown(&self.place))),
            );
        }
        core.set_attributes(&self.fd, &self.inode, &self.place);
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
    /// Bytes of a sector.
    sector: u64,
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
    dirs: OpenDirs,
    shared_files: AtomicUsize,
    /// The errors of single entries.
    failures: Failures,
    /// The error that ends the restore.
    failed: Mutex<rank::RestoreFailed, Option<Error>>,
    report: Mutex<rank::RestoreReport, RestoreReport>,
}

/// An inode with several names that has been made.
struct Made {
    /// Its first name, from the top.
    place: Arc<Place>,
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
                let made = self.make_dir(dir, &name, inode)?;
                self.list(Arc::new(made), 0, buffer)
            }
            Job::One { dir, name, inode } => {
                let fd = self.core.opened(&dir)?;
                self.one(&dir, &fd, &name, inode, buffer)
            }
            Job::Range { file, from } => self.copy_range(file, from, buffer),
        }
    }

    fn make_dir(&self, dir: Arc<DirTask<'a>>, name: &[u8], inode: InodeRef) -> Result<DirTask<'a>> {
        let place = dir.place.child(name);
        let above = self.core.opened(&dir)?;
        let c_name = c_name(name)?;
        let failed = |e: Errno| Error::host("make", self.core.on_host(&place))(e.into());
        // Only its owner may enter until it is complete.
        rustix::fs::mkdirat(&above, c_name.as_c_str(), Mode::RWXU).map_err(failed)?;
        let fd = rustix::fs::openat(&above, c_name.as_c_str(), open_dirs::FLAGS, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        Ok(DirTask::new(self.core, fd, (stat.st_dev, stat.st_ino), place, inode, dir))
    }

    fn list(&self, dir: Arc<DirTask<'a>>, after: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(inode) = dir.inode.clone() else { return Ok(()) };
        let listed = damage::list(self.core.fs, &inode, after, ENTRIES_AT_ONCE);
        if let Some(error) = listed.lost {
            let place = format!("{}: some entries could not be read", self.core.shown(&dir.place));
            self.core.fail(Error::from(error).at(place));
        }
        if let Some(after) = listed.next {
            self.push(Job::List { dir: dir.clone(), after });
        }
        if listed.entries.is_empty() {
            return Ok(());
        }
        let fd = self.core.opened(&dir)?;
        for entry in listed.entries {
            if let Err(error) = self.entry(&dir, &fd, &inode, entry, buffer) {
                self.core.fail(error);
            }
            if self.core.failed.lock().is_some() {
                break;
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        dir: &Arc<DirTask<'a>>,
        fd: &OwnedFd,
        inode: &InodeRef,
        entry: DirEntryInfo,
        buffer: &mut [u8],
    ) -> Result<()> {
        let place = || self.core.shown(&dir.place.child(&entry.name));
        if let (Target::Subvol(_), Some(_)) = (entry.target, self.core.one_tree) {
            let name = c_name(&entry.name)?;
            let made = rustix::fs::mkdirat(fd, name.as_c_str(), Mode::from_raw_mode(0o755));
            return made.map_err(|e| Error::host("make", self.core.dest.join(place()))(e.into()));
        }
        let found = self.core.fs.open_entry(inode, &entry).map_err(|e| Error::from(e).at(place()))?;
        let Some(child) = found else {
            if let Some(error) = damage::missing_inode(self.core.fs, inode, &entry) {
                return Err(error.at(place()));
            }
            self.core.report.lock().warn(|| format!("{}: was removed meanwhile", place()));
            return Ok(());
        };
        // The inode decides: entries may lie.
        if self.core.fs.attr(&child).kind == FileKind::Dir {
            if !self.core.descent.lock().enters(self.core.fs, inode, &entry.name, &child) {
                let warning = || format!("{}: left out, the directory is elsewhere too", place());
                self.core.report.lock().warn(warning);
                return Ok(());
            }
            self.core.count(|done| done.dirs += 1);
            self.push(Job::Dir { dir: dir.clone(), name: entry.name, inode: child });
            return Ok(());
        }
        self.one(dir, fd, &entry.name, child, buffer)
    }

    /// Makes an entry that is no directory.
    fn one(&self, dir: &Arc<DirTask<'a>>, fd: &OwnedFd, name: &[u8], inode: InodeRef, buffer: &mut [u8]) -> Result<()> {
        let attr = self.core.fs.attr(&inode);
        let place = dir.place.child(name);
        if attr.nlink <= 1 {
            return match self.make(dir, fd, &place, inode, attr)? {
                Some(file) => self.copy_range(file, 0, buffer),
                None => Ok(()),
            };
        }
        let mut links = self.core.links.lock();
        let key = (attr.subvol, attr.ino);
        if let Some(made) = links.get_mut(&key) {
            made.left -= 1;
            let (first, id, is_last) = (made.place.clone(), made.id, made.left == 0);
            if is_last {
                links.remove(&key);
            }
            drop(links);
            let linked = self.core.link(&first, id, dir, fd, &c_name(name)?);
            linked.map_err(|e| Error::host("link", self.core.on_host(&place))(e.into()))?;
            self.core.count(|done| done.links += 1);
            return Ok(());
        }
        let file = self.make(dir, fd, &place, inode, attr)?;
        // An entry that could not be made is not there; its other names will not be made either.
        if let Ok(stat) = rustix::fs::statat(fd, c_name(name)?.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) {
            links.insert(key, Made { place, id: (stat.st_dev, stat.st_ino), left: attr.nlink - 1 });
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
        at: &OwnedFd,
        place: &Arc<Place>,
        inode: InodeRef,
        attr: Attr,
    ) -> Result<Option<Arc<FileTask<'a>>>> {
        let c_name = c_name(place.name())?;
        let failed = |e: Errno| Error::host("make", self.core.on_host(place))(e.into());
        let shown = || self.core.shown(place);
        let made = match attr.kind {
            FileKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(at, c_name.as_c_str(), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
                if attr.size > BELIEVED_BYTES {
                    // Holes are not written; and a size that the host cannot have is an error before any data is written.
                    let sized = rustix::fs::ftruncate(&fd, attr.size);
                    sized.map_err(|e| Error::host("set the size of", self.core.on_host(place))(e.into()))?;
                }
                self.core.count(|done| done.files += 1);
                let shared = attr.size > RANGE_BYTES && self.core.shares_one_more();
                return Ok(Some(Arc::new(FileTask {
                    fd,
                    place: place.clone(),
                    inode,
                    attr,
                    dir: dir.clone(),
                    shared,
                    lost: AtomicU64::new(0),
                    why: OnceLock::new(),
                })));
            }
            FileKind::Symlink => {
                let target = self.core.fs.read_link(&inode).map_err(|e| Error::from(e).at(shown()))?;
                rustix::fs::symlinkat(target.as_slice(), at, c_name.as_c_str())
            }
            kind => {
                let file_type = match kind {
                    FileKind::CharDevice => FileType::CharacterDevice,
                    FileKind::BlockDevice => FileType::BlockDevice,
                    FileKind::Fifo => FileType::Fifo,
                    FileKind::Socket => FileType::Socket,
                    _ => return Err(damage::unknown_kind(attr.mode).at(shown())),
                };
                if self.core.options.no_special && matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    self.core.report.lock().warn(|| format!("{}: a device is left out", shown()));
                    return Ok(None);
                }
                let rdev = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
                rustix::fs::mknodat(at, c_name.as_c_str(), file_type, Mode::RUSR | Mode::WUSR, rdev)
            }
        };
        match made {
            Ok(()) => {}
            // In a container root cannot either.
            Err(Errno::PERM) => {
                self.core.report.lock().warn(|| format!("{}: only root can make it", shown()));
                return Ok(None);
            }
            Err(errno) => return Err(failed(errno)),
        }
        self.core.count(|done| done.others += 1);
        self.core.set_attributes_by_name(at, &c_name, &inode, &attr, place);
        Ok(None)
    }

    /// Copies a part of a file. The part after it is put on the stack before, or copied by this worker, too.
    fn copy_range(&self, file: Arc<FileTask<'a>>, from: u64, buffer: &mut [u8]) -> Result<()> {
        let size = file.attr.size;
        // A file whose extents cover all of it has no holes to look for.
        let dense = file.attr.nbytes >= size && size <= BELIEVED_BYTES;
        let mut from = from;
        loop {
            if !dense {
                from = self.next_data(&file, from, size).map_or(size, |data| data.start);
            }
            let to = from.saturating_add(RANGE_BYTES).min(size);
            if to < size && file.shared {
                self.push(Job::Range { file: file.clone(), from: to });
            }
            self.copy_to(&file, from, to, dense, buffer)?;
            from = to;
            if to == size || file.shared || self.core.failed.lock().is_some() {
                break;
            }
        }
        // Bytes at the end that were not written, because they are in a hole or could not be read.
        if from == size && size <= BELIEVED_BYTES && !(dense && file.why.get().is_none()) {
            let sized = rustix::fs::ftruncate(&file.fd, size);
            sized.map_err(|e| Error::host("set the size of", self.core.on_host(&file.place))(e.into()))?;
        }
        Ok(())
    }

    /// The next data before `end` that may be readable; runs that are lost are skipped and noted.
    fn next_data(&self, file: &FileTask<'_>, from: u64, end: u64) -> Option<Range<u64>> {
        let mut from = from;
        while let Some(run) = damage::next_run(self.core.fs, &file.inode, from, end) {
            let Some(why) = run.lost else { return Some(run.range) };
            file.lose(run.range.end - run.range.start, why);
            from = run.range.end;
        }
        None
    }

    fn copy_to(&self, file: &FileTask<'_>, from: u64, to: u64, dense: bool, buffer: &mut [u8]) -> Result<()> {
        let mut at = from;
        while at < to {
            let mut end = to;
            if !dense {
                let Some(data) = self.next_data(file, at, to) else { break };
                (at, end) = (data.start, data.end);
            }
            while at < end {
                let want = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                let n = self.copy_some(file, at, &mut buffer[..want])?;
                if n == 0 {
                    break;
                }
                at += n;
            }
            at = at.max(end);
        }
        Ok(())
    }

    /// Copies some bytes, and returns how many: 0 at the end of the file. If they cannot be read together, each sector that
    /// can be read is copied by itself.
    fn copy_some(&self, file: &FileTask<'_>, at: u64, buffer: &mut [u8]) -> Result<u64> {
        let first = match self.core.fs.read(&file.inode, at, buffer) {
            Ok(n) => {
                self.write(file, at, &buffer[..n])?;
                return Ok(n as u64);
            }
            Err(error) => error,
        };
        if !damage::is_damage(&first) {
            return Err(Error::from(first).at(self.core.shown(&file.place)));
        }
        let end = at + buffer.len() as u64;
        let mut from = at;
        while from < end {
            let to = (from / self.core.sector + 1).saturating_mul(self.core.sector).min(end);
            let part = &mut buffer[..(to - from) as usize];
            match self.core.fs.read(&file.inode, from, part) {
                Ok(n) => self.write(file, from, &part[..n])?,
                Err(error) => file.lose(to - from, error),
            }
            from = to;
        }
        Ok(end - at)
    }

    fn write(&self, file: &FileTask<'_>, at: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&file.fd, &bytes[done..], at + done as u64) {
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::host("write", self.core.on_host(&file.place))(errno.into())),
            }
        }
        self.core.report.lock().done.data_bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Core<'_> {
    /// Reports an error of one entry, or ends the restore.
    fn fail(&self, error: Error) {
        if let Err(error) = self.failures.note(error, self.options) {
            self.failed.lock().get_or_insert(error);
        }
    }

    /// A place for messages.
    fn shown(&self, place: &Place) -> String {
        PathBuf::from(std::ffi::OsString::from_vec(place.path())).display().to_string()
    }

    /// A place's path on the host, for messages.
    fn on_host(&self, place: &Place) -> PathBuf {
        self.dest.join(OsStr::from_bytes(&place.path()))
    }

    /// Whether one more file may be copied by several workers.
    fn shares_one_more(&self) -> bool {
        let add = |n| (n < SHARED_FILES_MAX).then_some(n + 1);
        self.shared_files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
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

    /// Gives an inode that was made at `first` another name.
    fn link(
        &self,
        first: &Arc<Place>,
        id: (u64, u64),
        dir: &DirTask<'_>,
        fd: &OwnedFd,
        name: &CString,
    ) -> std::result::Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let elsewhere;
        let above = match first.parent() {
            Some(parent) if Arc::ptr_eq(parent, &dir.place) => fd,
            parent => {
                elsewhere = self.resolve(parent.map(|place| place.names()).unwrap_or_default())?;
                &elsewhere
            }
        };
        // The last name may be a symbolic link that was made here.
        let found = rustix::fs::openat(above, first.name(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        if (stat.st_dev, stat.st_ino) != id {
            return Err(Errno::STALE);
        }
        let found = by_number(found.as_fd());
        rustix::fs::linkat(rustix::fs::CWD, found, fd, name.as_c_str(), AtFlags::SYMLINK_FOLLOW)
    }

    /// Opens a directory by its names from the top. A path may be longer than one call takes.
    fn resolve(&self, names: Vec<&[u8]>) -> std::result::Result<OwnedFd, Errno> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let mut at = rustix::fs::openat2(&self.top, ".", flags, Mode::empty(), how)?;
        let mut path = Vec::new();
        let mut names = names.into_iter().peekable();
        while let Some(name) = names.next() {
            path.extend_from_slice(name);
            if names.peek().is_some_and(|next| path.len() + next.len() < PATH_BYTES_MAX) {
                path.push(b'/');
                continue;
            }
            at = rustix::fs::openat2(&at, path.as_slice(), flags, Mode::empty(), how)?;
            path.clear();
        }
        Ok(at)
    }
}

/// What an open descriptor stands for, by a name that leads nowhere else.
fn by_number(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
