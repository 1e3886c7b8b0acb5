//! Scripts on a directory of this machine: the kernel's side of a comparison.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use super::{ANY_ANSWER, GroupKind, Keep, Op, RenameHow, Style, Target};
use crate::manifest::{Detail, HostTree, Manifest};
use crate::oracle::run;
use crate::specimen::set_times;

/// A directory on a mounted btrfs (or, without subvolumes and clones, on anything).
#[derive(Debug)]
pub struct Host {
    top: PathBuf,
    sectorsize: u64,
    /// The tool for subvolumes: `btrfs`, or a command with the same syntax.
    tool: PathBuf,
}

impl Host {
    /// Runs scripts in `top`.
    pub fn new(top: &Path, sectorsize: u64) -> Host {
        Host { top: top.to_owned(), sectorsize, tool: "btrfs".into() }
    }

    /// The same with another tool for subvolumes: that of the mount's server.
    pub fn with_tool(mut self, tool: &Path) -> Host {
        self.tool = tool.to_owned();
        self
    }

    fn at(&self, path: &str) -> PathBuf {
        self.top.join(path)
    }

    fn open(&self, path: &str) -> Result<File, Errno> {
        let file = self.open_with(path, OpenOptions::new().write(true).clone())?;
        if self.tool != Path::new("btrfs") {
            may_be_written(&file)?;
        }
        Ok(file)
    }

    /// Opens a regular file; anything else is refused as the library refuses it, before the kernel would open a fifo
    /// or device.
    fn open_with(&self, path: &str, mut options: OpenOptions) -> Result<File, Errno> {
        let path = self.at(path);
        let stat = rustix::fs::lstat(&path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(&path).map_err(|e| errno(&e))
    }

    /// A file or directory, to be synced.
    fn open_to_sync(&self, path: &str) -> Result<File, Errno> {
        match self.open_with(path, OpenOptions::new().read(true).clone()) {
            Err(Errno::ISDIR) => File::open(self.at(path)).map_err(|e| errno(&e)),
            other => other,
        }
    }

    /// FICLONERANGE by way of copy_file_range, which the kernel turns into a clone if it can. The checks here, those of
    /// the ioctl, exclude that it shortens or copies.
    fn clone_range(&self, from: &str, at: u64, len: u64, to: &str, to_at: u64) -> Result<(), Errno> {
        let source = self.open_with(from, OpenOptions::new().read(true).clone())?;
        let target = self.open(to)?;
        let (source_stat, target_stat) = (rustix::fs::fstat(&source)?, rustix::fs::fstat(&target)?);
        let (source_size, target_size) = (source_stat.st_size.cast_unsigned(), target_stat.st_size.cast_unsigned());
        let sector = self.sectorsize;
        let end = at + len;
        let to_end = to_at + len;
        let same = source_stat.st_ino == target_stat.st_ino && source_stat.st_dev == target_stat.st_dev;
        let bad = !at.is_multiple_of(sector)
            || !to_at.is_multiple_of(sector)
            || end > source_size
            || (!end.is_multiple_of(sector) && (end != source_size || to_end < target_size))
            || (same && at < to_end && to_at < end);
        if bad {
            return Err(Errno::INVAL);
        }
        let (mut at, mut to_at, mut left) = (at, to_at, len);
        while left > 0 {
            let step = usize::try_from(left).map_err(|_| Errno::INVAL)?;
            let done = rustix::fs::copy_file_range(&source, Some(&mut at), &target, Some(&mut to_at), step)? as u64;
            if done == 0 {
                return Err(Errno::IO);
            }
            left -= done.min(left);
        }
        Ok(())
    }

    fn fallocate(&self, path: &str, flags: FallocateFlags, at: u64, len: u64) -> Result<(), Errno> {
        rustix::fs::fallocate(self.open(path)?, flags, at, len)
    }

    /// Runs the tool; only its message shows the cause of a failure.
    fn btrfs(&self, args: &[&OsStr]) -> Result<(), Errno> {
        let out = Command::new(&self.tool).args(args).env("LC_ALL", "C").output().map_err(|e| errno(&e))?;
        if out.status.success() {
            return Ok(());
        }
        Err(errno_of_message(&String::from_utf8_lossy(&out.stderr)))
    }

    fn subvolume(&self, op: &Op) -> Result<(), Errno> {
        fn words<const N: usize>(words: [&str; N]) -> Vec<&OsStr> {
            words.map(OsStr::new).to_vec()
        }
        match op {
            Op::Subvol { path } => {
                self.free_for_new(path)?;
                self.btrfs(&[&words(["subvolume", "create"])[..], &[self.at(path).as_os_str()]].concat())
            }
            Op::Snapshot { from, to, read_only } => {
                self.must_be_subvol(from)?;
                self.free_for_new(to)?;
                let mut args = words(["subvolume", "snapshot"]);
                if *read_only {
                    args.push("-r".as_ref());
                }
                self.btrfs(&[&args[..], &[self.at(from).as_os_str(), self.at(to).as_os_str()]].concat())
            }
            Op::DeleteSubvol { path } => {
                self.must_be_subvol(path)?;
                self.btrfs(&[&words(["subvolume", "delete"])[..], &[self.at(path).as_os_str()]].concat())
            }
            Op::SetReadOnly { path, read_only } => {
                self.must_be_subvol(path)?;
                let value = if *read_only { "true" } else { "false" };
                let path = self.at(path);
                // Only btrfs needs the type of the object, and an option to force it.
                let sort = if self.tool == Path::new("btrfs") { &words(["-f", "-t", "subvol"])[..] } else { &[] };
                let args = [&words(["property", "set"])[..], sort, &[path.as_os_str()], &words(["ro", value])].concat();
                self.btrfs(&args)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// The tool would make a snapshot inside an existing directory of that name; the library refuses.
    fn free_for_new(&self, path: &str) -> Result<(), Errno> {
        match rustix::fs::lstat(self.at(path)) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => {
                let path = self.at(path);
                let parent = path.parent().ok_or(Errno::INVAL)?;
                rustix::fs::stat(parent).map(drop)
            }
            Err(e) => Err(e),
        }
    }

    fn must_be_subvol(&self, path: &str) -> Result<(), Errno> {
        const TOP_INO: u64 = 256;
        // Above these bits, Oleo's mount shows which subvolume it is.
        const INO_BITS: u32 = 40;
        let stat = rustix::fs::lstat(self.at(path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        if stat.st_ino % (1 << INO_BITS) == TOP_INO { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// On a FUSE mount a file in a read-only subvolume can be opened for writing: the kernel does not know. The kernel's
/// btrfs refuses that. So this checks it by giving the file the mode that it has. That changes nothing that scripts
/// compare: if the write is then refused, the kernel's side is as before, too (setting the size would change mtime).
pub fn may_be_written(file: impl AsFd) -> Result<(), Errno> {
    let mode = rustix::fs::fstat(&file)?.st_mode;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777))
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// The cause of a failure, from the messages of the C library or Oleo.
fn errno_of_message(message: &str) -> Errno {
    let table = [
        ("no such file", Errno::NOENT),
        ("not found", Errno::NOENT),
        ("exists", Errno::EXIST),
        ("read-only", Errno::ROFS),
        ("directory not empty", Errno::NOTEMPTY),
        ("not permitted", Errno::PERM),
        ("not a directory", Errno::NOTDIR),
        ("no space left", Errno::NOSPC),
        ("cross-device", Errno::XDEV),
        ("different subvolumes", Errno::XDEV),
        ("invalid", Errno::INVAL),
    ];
    let message = message.to_lowercase();
    table.iter().find(|(words, _)| message.contains(words)).map_or(Errno::IO, |(_, e)| *e)
}

/// Both times are now. A punch sets them: whether the kernel changes them if there is nothing to punch depends on the
/// alignment of the range, and is not compared.
const NOW: Timestamps = {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
};

impl Host {
    fn balance(&self, kind: GroupKind, filters: &str) -> Result<(), Errno> {
        let kind = match kind {
            GroupKind::Data => "-d",
            GroupKind::Metadata => "-m",
            GroupKind::System => "-s",
        };
        let (kind, top) = (format!("{kind}{filters}"), self.top.display().to_string());
        run("btrfs", ["balance", "start", "--force", &kind, &top]).map(drop).map_err(|_| Errno::IO)
    }
}

impl Target for Host {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Create { path, mode } => {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(*mode);
                let file = options.open(self.at(path)).map_err(|e| errno(&e))?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode))
            }
            Op::Mkdir { path, mode } => {
                rustix::fs::mkdirat(CWD, self.at(path), Mode::from_raw_mode(*mode))?;
                rustix::fs::chmod(self.at(path), Mode::from_raw_mode(*mode))
            }
            Op::Symlink { path, target } => rustix::fs::symlinkat(target.as_str(), CWD, self.at(path)),
            Op::Mknod { path, mode, major, minor } => {
                let kind = if *major == 0 { FileType::Fifo } else { FileType::CharacterDevice };
                let path = self.at(path);
                rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(*mode), rustix::fs::makedev(*major, *minor))?;
                rustix::fs::chmod(&path, Mode::from_raw_mode(*mode))
            }
            Op::Write { path, at, len, seed, style } => {
                let data = Style::data(*style, *seed, *len);
                self.open(path)?.write_all_at(&data, *at).map_err(|e| errno(&e))
            }
            Op::Truncate { path, size } => rustix::fs::ftruncate(self.open(path)?, *size),
            Op::Punch { path, at, len } => {
                self.fallocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, *at, *len)?;
                rustix::fs::utimensat(CWD, self.at(path), &NOW, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Zero { path, at, len, keep_size } => {
                let keep = if *keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.fallocate(path, FallocateFlags::ZERO_RANGE | keep, *at, *len)
            }
            Op::Prealloc { path, at, len, keep_size } => {
                let keep = if *keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.fallocate(path, keep, *at, *len)
            }
            Op::Clone { from, at, len, to, to_at } => self.clone_range(from, *at, *len, to, *to_at),
            Op::Link { from, to } => rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty()),
            Op::Unlink { path } => rustix::fs::unlinkat(CWD, self.at(path), AtFlags::empty()),
            Op::Rmdir { path } => rustix::fs::unlinkat(CWD, self.at(path), AtFlags::REMOVEDIR),
            // A kernel that exchanges a empty directory in place of a subvolume aborts its transaction and is read-only
            // from then on.
            Op::Rename { from, to, how: RenameHow::Exchange }
                if HostTree::is_empty_subvol_dir(&self.at(from)) || HostTree::is_empty_subvol_dir(&self.at(to)) =>
            {
                Err(ANY_ANSWER)
            }
            Op::Rename { from, to, how } => {
                let flags = match how {
                    RenameHow::Plain => RenameFlags::empty(),
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)
            }
            Op::SetXattr { path, name, len, seed } => {
                let value = Style::Random.data(*seed, *len);
                rustix::fs::lsetxattr(self.at(path), name.as_str(), &value, XattrFlags::empty())
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), name.as_str()),
            Op::Chmod { path, mode } => {
                let stat = rustix::fs::lstat(self.at(path))?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                rustix::fs::chmod(self.at(path), Mode::from_raw_mode(*mode))
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                rustix::fs::chownat(CWD, self.at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Times { path, sec, nsec } => {
                let time = Timespec { tv_sec: *sec, tv_nsec: i64::from(*nsec) };
                set_times(&self.at(path), time).map_err(|e| e.downcast().unwrap_or(Errno::IO))
            }
            Op::Compress { path, algo } if algo.is_empty() => {
                rustix::fs::lremovexattr(self.at(path), "btrfs.compression")
            }
            Op::Compress { path, algo } => {
                let name = OsStr::from_bytes(b"btrfs.compression");
                rustix::fs::lsetxattr(self.at(path), name, algo.as_bytes(), XattrFlags::empty())
            }
            Op::Subvol { .. } | Op::Snapshot { .. } | Op::DeleteSubvol { .. } | Op::SetReadOnly { .. } => {
                self.subvolume(op)
            }
            Op::Keep { path, keep } => {
                let inode = self.open_to_sync(path)?;
                let flag = match keep {
                    Keep::All => IFlags::SYNC,
                    Keep::Names => IFlags::DIRSYNC,
                };
                rustix::fs::ioctl_setflags(&inode, rustix::fs::ioctl_getflags(&inode)? | flag)
            }
            Op::Fsync { path } => rustix::fs::fsync(self.open_to_sync(path)?),
            Op::Fdatasync { path } => rustix::fs::fdatasync(self.open_to_sync(path)?),
            Op::Tmpfile { path, len, seed, sync } => {
                use std::os::fd::AsRawFd;
                let at = self.at(path);
                let dir = at.parent().ok_or(Errno::INVAL)?;
                if rustix::fs::lstat(&at).is_ok() {
                    return Err(Errno::EXIST);
                }
                let flags = rustix::fs::OFlags::TMPFILE.bits().cast_signed();
                let options = OpenOptions::new().write(true).mode(0o644).custom_flags(flags).clone();
                let file = options.open(dir).map_err(|e| errno(&e))?;
                file.write_all_at(&Style::Random.data(*seed, *len), 0).map_err(|e| errno(&e))?;
                if *sync {
                    rustix::fs::fsync(&file)?;
                }
                let source = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, source, CWD, at, AtFlags::SYMLINK_FOLLOW)
            }
            Op::Balance { kind } => self.balance(*kind, ""),
            Op::Convert { kind, mirrored } => {
                self.balance(*kind, if *mirrored { "convert=raid1,soft" } else { "convert=single,soft" })
            }
            Op::Rescan => {
                let top = self.top.display().to_string();
                run("btrfs", ["quota", "rescan", "-w", &top]).map(drop).map_err(|_| Errno::IO)
            }
            Op::Trim => run("fstrim", [&self.top]).map(drop).map_err(|_| Errno::IO),
            Op::Resize { len } => {
                let (len, top) = (len.to_string(), self.top.display().to_string());
                run("btrfs", ["filesystem", "resize", &len, &top]).map(drop).map_err(|_| Errno::NOSPC)
            }
            Op::Sync | Op::Reopen => rustix::fs::syncfs(File::open(&self.top).map_err(|e| errno(&e))?),
        }
    }

    fn manifest(&mut self, detail: Detail) -> Result<Manifest> {
        rustix::fs::syncfs(File::open(&self.top)?)?;
        Manifest::of_dir(&self.top, detail)
    }
}
