//! A directory of this machine as a [`TreeView`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, FileType, SeekFrom, StatxFlags, StatxTimestamp, XattrFlags};
use rustix::io::Errno;

use super::{Attr, Kind, Piece, Time, TreeView, fiemap};

/// The inode number that btrfs shows for an empty directory in place of a subvolume that a snapshot left out.
const EMPTY_SUBVOL_DIR_INO: u64 = 2;

/// On Oleo's mount the bits above these are the subvolume.
const INO_BITS: u32 = 40;

/// A directory of this machine.
#[derive(Clone, Debug)]
pub struct HostTree {
    top: PathBuf,
    btrfs: bool,
}

impl HostTree {
    /// The tree below `top`.
    pub fn new(top: &Path) -> HostTree {
        const BTRFS_MAGIC: i64 = 0x9123_683e;
        const FUSE_MAGIC: i64 = 0x6573_5546;
        let btrfs = rustix::fs::statfs(top).is_ok_and(|s| matches!(s.f_type, BTRFS_MAGIC | FUSE_MAGIC));
        HostTree { top: top.to_owned(), btrfs }
    }

    /// Whether that is the inode number of an empty directory in place of a subvolume that a snapshot left out.
    pub fn is_empty_subvol_dir_number(ino: u64) -> bool {
        ino % (1 << INO_BITS) == EMPTY_SUBVOL_DIR_INO
    }

    /// Whether such a directory is at `path`.
    pub fn is_empty_subvol_dir(path: &Path) -> bool {
        rustix::fs::lstat(path).is_ok_and(|s| {
            FileType::from_raw_mode(s.st_mode) == FileType::Directory
                && HostTree::is_empty_subvol_dir_number(s.st_ino)
                && path.parent().is_some_and(|dir| HostTree::new(dir).btrfs)
        })
    }
}

/// What a file type is called here.
pub fn kind_of(file_type: FileType) -> Option<Kind> {
    Some(match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        FileType::Unknown => return None,
    })
}

fn time(t: StatxTimestamp) -> Time {
    Time { sec: t.tv_sec, nsec: t.tv_nsec }
}

/// Reads with a buffer that grows until the value fits: the attribute may change between asking for its size and
/// reading.
fn grown(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    const LEN_MAX: usize = 1 << 20;
    let mut buf = vec![0; 4096];
    loop {
        match read(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() < LEN_MAX => buf.resize(buf.len() * 4, 0),
            Err(e) => return Err(e),
        }
    }
}

/// All extended attributes of a path (a symlink is not followed).
pub fn xattrs_of(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match grown(|buf| rustix::fs::llistxattr(path, buf)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Err(e) => return Err(e.into()),
    };
    let mut out = BTreeMap::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let value = grown(|buf| rustix::fs::lgetxattr(path, OsStr::from_bytes(name), buf))
            .with_context(|| format!("xattr {}", name.escape_ascii()))?;
        out.insert(name.to_vec(), value);
    }
    Ok(out)
}

/// Sets an extended attribute (a symlink is not followed).
pub fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty())
}

impl TreeView for HostTree {
    type Node = PathBuf;

    fn root(&self) -> Result<PathBuf> {
        Ok(self.top.clone())
    }

    fn list(&self, dir: &PathBuf) -> Result<Vec<(Vec<u8>, PathBuf)>> {
        let mut out = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name: OsString = entry?.file_name();
            out.push((name.clone().into_vec(), dir.join(name)));
        }
        Ok(out)
    }

    fn attr(&self, node: &PathBuf) -> Result<Attr> {
        let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let s = rustix::fs::statx(CWD, node, AtFlags::SYMLINK_NOFOLLOW, want)?;
        let kind = kind_of(FileType::from_raw_mode(s.stx_mode.into())).context("of no known type")?;
        let device = matches!(kind, Kind::Char | Kind::Block);
        Ok(Attr {
            kind,
            empty_subvol_dir: self.btrfs && kind == Kind::Dir && HostTree::is_empty_subvol_dir_number(s.stx_ino),
            mode: u32::from(s.stx_mode) & 0o7777,
            uid: s.stx_uid,
            gid: s.stx_gid,
            size: s.stx_size,
            nlink: s.stx_nlink.into(),
            rdev: if device { (s.stx_rdev_major, s.stx_rdev_minor) } else { (0, 0) },
            ino: s.stx_ino,
            tree: (u64::from(s.stx_dev_major) << 32) | u64::from(s.stx_dev_minor),
            atime: time(s.stx_atime),
            mtime: time(s.stx_mtime),
            ctime: time(s.stx_ctime),
            otime: (s.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(s.stx_btime)),
        })
    }

    fn read(&self, file: &PathBuf, at: u64, buf: &mut [u8]) -> Result<usize> {
        let file = File::open(file)?;
        let mut done = 0;
        while done < buf.len() {
            let got = file.read_at(&mut buf[done..], at + done as u64)?;
            if got == 0 {
                break;
            }
            done += got;
        }
        Ok(done)
    }

    fn read_link(&self, link: &PathBuf) -> Result<Vec<u8>> {
        Ok(fs::read_link(link)?.into_os_string().into_vec())
    }

    fn xattrs(&self, node: &PathBuf) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        xattrs_of(node)
    }

    fn data_runs(&self, file: &PathBuf, size: u64) -> Result<Vec<(u64, u64)>> {
        let file = File::open(file)?;
        let mut out = Vec::new();
        let mut at = 0;
        while at < size {
            let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(e) => return Err(e.into()),
            };
            let hole = rustix::fs::seek(&file, SeekFrom::Hole(data))?;
            anyhow::ensure!(hole > data, "a hole at {hole}, not after the data at {data}");
            out.push((data, hole - data));
            at = hole;
        }
        Ok(out)
    }

    fn pieces(&self, file: &PathBuf) -> Result<Vec<Piece>> {
        fiemap::extents(&File::open(file)?)
    }
}
