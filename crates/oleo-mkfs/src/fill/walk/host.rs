//! The host's directories and files: listing, attributes, data runs, reading.
//!
//! Everything is opened relative to its directory, so that paths of any length work and a directory may be renamed
//! meanwhile. Extended attributes need a path; if it is too long for the system, a path by way of `/proc` is used.

use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use crate::MkfsError;
use crate::fill::entry::{Child, ChildKind, HostFile, Meta, Stamp, Stamps, Xattrs};
use crate::fill::entry::{UnpreparedPiece, Whole};

/// Bytes of one getdents call.
const DIR_BUFFER_BYTES: usize = 64 << 10;
/// The longest path that system calls take (`PATH_MAX`, with its zero byte).
const PATH_BYTES_MAX: usize = 4096;
/// The longest list of names, and the longest value, that Linux gives (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;
/// How many data runs of one file are kept apart; beyond that, small holes are read as zeros.
const DATA_RUNS_MAX: usize = 1 << 20;

/// An open directory.
pub(crate) struct DirHandle {
    fd: OwnedFd,
    path: PathBuf,
}

/// The names of a directory, sorted.
pub(crate) struct Listing {
    pub handle: Arc<DirHandle>,
    pub children: Vec<Child>,
    pub xattrs: Xattrs,
}

/// A part of a file to be read.
pub(crate) struct FileRange {
    pub dir: Arc<DirHandle>,
    pub name: Vec<u8>,
    pub from: u64,
    pub to: u64,
    pub whole: Whole,
    pub align: u64,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> MkfsError {
    let path = path.to_owned();
    move |errno| MkfsError::Source { what, path, cause: errno.into() }
}

fn c_name(name: &[u8]) -> CString {
    // Names come from the kernel, which ends them with a zero byte.
    CString::new(name).unwrap_or_default()
}

impl DirHandle {
    pub fn open_top(path: &Path) -> Result<DirHandle, MkfsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open", path))?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(DirHandle { fd, path })
    }

    pub fn open_dir(&self, name: &[u8]) -> Result<DirHandle, MkfsError> {
        let path = self.path_of(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = open_unseen(&self.fd, name, flags).map_err(failed("open", &path))?;
        Ok(DirHandle { fd, path })
    }

    pub fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// The attributes of the directory itself; extended ones come with its listing.
    pub fn meta(&self) -> Result<Meta, MkfsError> {
        let stat =
            rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, wanted()).map_err(failed("stat", &self.path))?;
        Ok(meta_of(&stat))
    }

    /// The runs of a sparse file that hold data, made longer to multiples of `align` (a power of two).
    pub fn data_runs(&self, name: &[u8], size: u64, align: u64) -> Result<Vec<(u64, u64)>, MkfsError> {
        let path = self.path_of(name);
        let fd = open_file(&self.fd, name).map_err(failed("open", &path))?;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(&fd, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                // The host does not know about holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![(0, size)]),
                Err(errno) => return Err(failed("find holes of", &path)(errno)),
            };
            let end = rustix::fs::seek(&fd, SeekFrom::Hole(start)).map_err(failed("find holes of", &path))?;
            let (start, end) = (start & !(align - 1), end.checked_next_multiple_of(align).unwrap_or(size).min(size));
            if start >= end {
                break;
            }
            let full = runs.len() >= DATA_RUNS_MAX;
            match runs.last_mut() {
                Some(last) if full || start <= last.1 => last.1 = end,
                _ => runs.push((start, end)),
            }
            at = end;
        }
        Ok(runs)
    }
}

/// Opens without changing the time of access if that is permitted.
fn open_unseen(dir: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let name = c_name(name);
    match rustix::fs::openat(&dir, name.as_c_str(), flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(&dir, name.as_c_str(), flags, Mode::empty()),
        result => result,
    }
}

fn open_file(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_unseen(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC)
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

fn meta_of(stat: &Statx) -> Meta {
    let stamp = |t: &rustix::fs::StatxTimestamp| Stamp { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
    let times = Stamps {
        access: stamp(&stat.stx_atime),
        modify: stamp(&stat.stx_mtime),
        change: stamp(&stat.stx_ctime),
        birth: stamp(&stat.stx_btime),
    };
    Meta { mode: u32::from(stat.stx_mode), uid: stat.stx_uid, gid: stat.stx_gid, times, xattrs: Vec::new() }
}

impl Listing {
    /// A listing of one file, without the other files of its directory.
    pub fn of_one(path: &Path) -> Result<Listing, MkfsError> {
        let gone = || MkfsError::Source { what: "find", path: path.to_owned(), cause: Errno::NOENT.into() };
        let absolute = std::path::absolute(path).map_err(|_| gone())?;
        let (parent, name) = absolute.parent().zip(absolute.file_name()).ok_or_else(gone)?;
        let handle = Arc::new(DirHandle::open_top(parent)?);
        let child = handle.child(name.as_bytes().to_vec())?.ok_or_else(gone)?;
        Ok(Listing { handle, children: vec![child], xattrs: Vec::new() })
    }

    /// Lists a directory: names, attributes, link targets.
    pub fn of(handle: Arc<DirHandle>) -> Result<Listing, MkfsError> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut buffer = vec![MaybeUninit::uninit(); DIR_BUFFER_BYTES];
        let mut raw = RawDir::new(&handle.fd, &mut buffer);
        while let Some(entry) = raw.next() {
            let entry = entry.map_err(failed("list", &handle.path))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        let mut children = Vec::with_capacity(names.len());
        for name in names {
            if let Some(child) = handle.child(name)? {
                children.push(child);
            }
        }
        let xattrs = xattrs_of(&handle, None)?;
        Ok(Listing { handle, children, xattrs })
    }
}

impl DirHandle {
    /// `None`: the name has vanished since it was listed.
    fn child(&self, name: Vec<u8>) -> Result<Option<Child>, MkfsError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = match rustix::fs::statx(&self.fd, c_name(&name).as_c_str(), flags, wanted()) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("stat", &self.path_of(&name))(errno)),
        };
        let mut meta = meta_of(&stat);
        let kind = match FileType::from_raw_mode(meta.mode) {
            FileType::Directory => ChildKind::Dir,
            FileType::RegularFile => {
                let allocated = stat.stx_blocks.saturating_mul(512);
                ChildKind::File { size: stat.stx_size, sparse: allocated < stat.stx_size }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&self.fd, c_name(&name).as_c_str(), Vec::new());
                ChildKind::Symlink(target.map_err(failed("read link", &self.path_of(&name)))?.into_bytes())
            }
            _ => ChildKind::Node { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor },
        };
        if !matches!(kind, ChildKind::Dir) {
            meta.xattrs = xattrs_of(self, Some(&name))?;
        }
        let host =
            HostFile { device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino };
        Ok(Some(Child { name, meta, kind, host, links: stat.stx_nlink }))
    }
}

/// The extended attributes of a directory (`name` is `None`) or of something in it, sorted by name. Those that may
/// not be read are left out.
fn xattrs_of(dir: &DirHandle, name: Option<&[u8]>) -> Result<Xattrs, MkfsError> {
    let mut path = name.map_or_else(|| dir.path.clone(), |name| dir.path_of(name));
    if path.as_os_str().len() >= PATH_BYTES_MAX {
        let short = PathBuf::from(format!("/proc/self/fd/{}", dir.fd.as_raw_fd()));
        path = short.join(OsStr::from_bytes(name.unwrap_or(b".")));
    }
    let mut small = [0u8; 1024];
    let mut large = Vec::new();
    let names: &[u8] = match rustix::fs::llistxattr(&path, &mut small[..]) {
        Ok(0) => return Ok(Vec::new()),
        Ok(len) => &small[..len],
        Err(Errno::RANGE) => {
            large.resize(XATTR_BYTES_MAX, 0);
            let len = rustix::fs::llistxattr(&path, &mut large[..]).map_err(failed("list xattrs of", &path))?;
            &large[..len]
        }
        Err(Errno::OPNOTSUPP | Errno::NOENT | Errno::ACCESS) => return Ok(Vec::new()),
        Err(errno) => return Err(failed("list xattrs of", &path)(errno)),
    };
    let mut found = Vec::new();
    let mut value = vec![0u8; XATTR_BYTES_MAX];
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        match rustix::fs::lgetxattr(&path, c_name(name).as_c_str(), &mut value[..]) {
            Ok(len) => found.push((name.to_vec(), value[..len].to_vec())),
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP | Errno::NOENT) => {}
            Err(errno) => return Err(failed("read an xattr of", &path)(errno)),
        }
    }
    found.sort_unstable();
    Ok(found)
}

impl FileRange {
    /// Reads the range; holes in it are left out, as far as they can be left out in steps of `align`. A file that has
    /// become shorter gives less.
    pub fn read(&self) -> Result<Vec<UnpreparedPiece>, MkfsError> {
        let path = || self.dir.path_of(&self.name);
        let fd = open_file(&self.dir.fd, &self.name).map_err(|e| failed("open", &path())(e))?;
        let mut pieces = Vec::new();
        for (from, to) in self.runs(&fd) {
            let bytes = read_all(&fd, from, to).map_err(|e| failed("read", &path())(e))?;
            if bytes.is_empty() {
                break;
            }
            // The file has changed, so the piece may be shorter than announced.
            let end = from + bytes.len() as u64;
            let whole = match self.whole {
                Whole::File if (from, end) != (self.from, self.to) => Whole::Part,
                Whole::End if end != self.to => Whole::Part,
                whole => whole,
            };
            pieces.push(UnpreparedPiece { offset: from, bytes, whole });
        }
        Ok(pieces)
    }

    /// The parts of the range that hold data. Asked for every file, since allocated space that was never written makes
    /// a file look as if it had no holes.
    fn runs(&self, fd: &OwnedFd) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut at = self.from;
        while at < self.to {
            let hole = rustix::fs::seek(fd, SeekFrom::Hole(at)).unwrap_or(u64::MAX);
            if hole > at {
                let end = hole.checked_next_multiple_of(self.align).unwrap_or(self.to).min(self.to);
                match runs.last_mut() {
                    Some(last) if at <= last.1 => last.1 = end,
                    _ => runs.push((at, end)),
                }
                at = end;
            } else {
                match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                    // Everything behind the last data is a hole.
                    Err(Errno::NXIO) => break,
                    Err(_) => {
                        runs.push((at, self.to));
                        break;
                    }
                    Ok(data) => at = at.max(data & !(self.align - 1)),
                }
                if hole == at {
                    // Data begins in the middle of this step.
                    let end = (at + self.align).min(self.to);
                    match runs.last_mut() {
                        Some(last) if at <= last.1 => last.1 = end,
                        _ => runs.push((at, end)),
                    }
                    at = end;
                }
            }
        }
        runs
    }
}

fn read_all(fd: &OwnedFd, from: u64, to: u64) -> Result<Vec<u8>, Errno> {
    let len = usize::try_from(to - from).unwrap_or(0);
    // Not zeroed first: that was one byte in fourteen of all the time an image took.
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = from + bytes.len() as u64;
        match rustix::io::pread(fd, rustix::buffer::spare_capacity(&mut bytes), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}
