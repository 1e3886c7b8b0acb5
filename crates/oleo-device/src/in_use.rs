//! Who else uses a file or block device, as far as this system shows.
//!
//! Three questions: does a mounted btrfs have it (or a loop device on top of it, or a partition of that) among its
//! devices; is such a block device the source of any mount; has another process opened it for writing. The answers come
//! from `/sys/fs/btrfs`, `/proc/self/mountinfo`, `/sys/block/loop*` and `/proc/PID`. Users that this process may not
//! see count as absent, as do all users on systems without these files: this is a guard against mistakes, not a lock.
//!
//! Invariant: no file system is queried except the target's own and file systems whose answers are in memory. Any other
//! file system may be on a server that does not answer, and a process that waits for such a server cannot be
//! interrupted. So a descriptor of another process is compared in two steps: (1) by mount, inode number and flags, which
//! `/proc/PID/fdinfo` shows without a request to the file system; (2) by `stat`, if step 1 found the target's own file
//! system. Paths of backing files and sources of mounts are resolved only if [`Target::is_quiet`] permits it.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::mountinfo::{Mount, mounts_of};
use crate::user::User;

/// Types of file systems that resolve names in memory. System directories with device nodes are on one of these.
const IN_MEMORY: [&str; 3] = ["devtmpfs", "tmpfs", "ramfs"];
/// Types of file systems that may hold device nodes and whose `stat` of an open file needs no I/O.
const WITH_NODES: [&str; 9] = ["devtmpfs", "tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"];

/// The file or block device in question: all forms of the same bytes, and where it is.
struct Target {
    /// (device, inode) of a regular file.
    file: Option<(u64, u64)>,
    /// (major, minor) of block devices: the path itself, loop devices backed by it, their partitions.
    blocks: Vec<(u32, u32)>,
    /// The absolute path without symbolic links.
    path: PathBuf,
    /// The target's own descriptor, to compare with those of other processes; `None` without `/proc`.
    open: Option<Descriptor>,
    /// The mounts that this process sees.
    mounts: Mounts,
}

/// An open file, as `/proc/PID/fdinfo` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Descriptor {
    writable: bool,
    /// The number of the mount through which it was opened: [`Mount::id`].
    mount: String,
    /// The inode number, from Linux 5.14 on. It may differ from that of `stat`.
    ino: Option<u64>,
}

/// Returns who has `path` mounted or open for writing, this process excepted.
pub fn users_of(path: &Path) -> Vec<User> {
    let Some(mut target) = Target::of(path) else { return Vec::new() };
    target.add_loops();
    let mut users = mounts(&target);
    users.extend(writers(&target));
    users
}

impl Target {
    fn of(path: &Path) -> Option<Target> {
        let meta = fs::metadata(path).ok()?;
        let block = meta.file_type().is_block_device();
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let fdinfo = |fd: rustix::fd::OwnedFd| Descriptor::read(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
        Some(Target {
            file: (!block).then_some((meta.dev(), meta.ino())),
            blocks: block.then(|| split_rdev(meta.rdev())).into_iter().collect(),
            path: fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()),
            open: opened.and_then(fdinfo),
            mounts: Mounts(mounts_of("self").unwrap_or_default()),
        })
    }

    /// Adds the loop devices that have the target as their backing file, and their partitions.
    fn add_loops(&mut self) {
        let first = self.blocks.first().copied();
        for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let dir = entry.path();
            let Ok(backing) = fs::read(dir.join("loop/backing_file")) else { continue };
            let backing = PathBuf::from(std::ffi::OsString::from_vec(backing.trim_ascii_end().to_vec()));
            if self.is_backing(&backing, first) {
                self.blocks.extend(block_and_partitions(&dir));
            }
        }
    }

    /// Whether a backing file's path, as the kernel shows it, is the target's.
    fn is_backing(&self, backing: &Path, block: Option<(u32, u32)>) -> bool {
        let place = self.mounts.inside(backing);
        if self.file.is_some() && place.is_some() && place == self.mounts.inside(&self.path) {
            return true;
        }
        // Another name of the same inode.
        self.is_quiet(backing)
            && fs::metadata(backing).is_ok_and(|meta| match self.file {
                Some(file) => file == (meta.dev(), meta.ino()),
                None => meta.file_type().is_block_device() && block == Some(split_rdev(meta.rdev())),
            })
    }

    /// Whether resolving a path queries no file system that the target's own path does not query, except some in
    /// memory.
    fn is_quiet(&self, path: &Path) -> bool {
        path.is_absolute()
            && self.mounts.along(path).all(|mount| {
                IN_MEMORY.contains(&mount.kind.as_str()) || self.mounts.along(&self.path).any(|own| own.id == mount.id)
            })
    }

    /// Whether a descriptor of another process may be the target, and `stat` of it cannot block. `mount` is the mount
    /// through which it was opened, if that is known.
    fn may_be(&self, other: &Descriptor, mount: Option<&Mount>) -> bool {
        if !other.writable {
            return false;
        }
        if !self.blocks.is_empty() && mount.is_some_and(|mount| WITH_NODES.contains(&mount.kind.as_str())) {
            return true;
        }
        if self.file.is_none() {
            return false;
        }
        let Some(own) = &self.open else { return false };
        let differs = own.ino.zip(other.ino).is_some_and(|(a, b)| a != b);
        let own_mount = self.mounts.by_id(&own.mount);
        let same_device = own_mount.zip(mount).is_some_and(|(a, b)| a.device == b.device);
        !differs && (own.mount == other.mount || same_device)
    }

    /// Whether an open file is the target, or a block device on top of it.
    fn is(&self, meta: &fs::Metadata) -> bool {
        match meta.file_type().is_block_device() {
            true => self.blocks.contains(&split_rdev(meta.rdev())),
            false => self.file == Some((meta.dev(), meta.ino())),
        }
    }
}

impl Descriptor {
    /// Reads a file of `/proc/PID/fdinfo`.
    fn read(fdinfo: impl AsRef<Path>) -> Option<Descriptor> {
        Descriptor::parse(&fs::read_to_string(fdinfo).ok()?)
    }

    fn parse(text: &str) -> Option<Descriptor> {
        let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        let flags = u64::from_str_radix(field("flags:")?, 8).ok()?;
        Some(Descriptor {
            // Write-only or read-write. A descriptor of O_PATH has neither.
            writable: flags & 0o3 != 0,
            mount: field("mnt_id:")?.to_string(),
            ino: field("ino:").and_then(|ino| ino.parse().ok()),
        })
    }
}

/// The mounts of one process. All answers are lexical.
struct Mounts(Vec<Mount>);

impl Mounts {
    fn by_id(&self, id: &str) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.id == id)
    }

    /// The mounts that resolving an absolute path without symbolic links crosses, that of the path itself first.
    fn along<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        // Of several mounts on one directory the last is visible.
        path.ancestors().filter_map(|dir| self.0.iter().rev().find(|mount| mount.at == dir))
    }

    /// The file system that an absolute path without symbolic links is on, by its device, and the path inside it. Bind
    /// mounts of one file system show the same.
    fn inside(&self, path: &Path) -> Option<(String, PathBuf)> {
        let mount = self.along(path).next()?;
        Some((mount.device.clone(), mount.root.join(path.strip_prefix(&mount.at).ok()?)))
    }
}

fn split_rdev(rdev: u64) -> (u32, u32) {
    (rustix::fs::major(rdev), rustix::fs::minor(rdev))
}

/// The numbers in the `dev` files of a directory of `/sys/block` and of the partitions below it.
fn block_and_partitions(dir: &Path) -> Vec<(u32, u32)> {
    let below = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let dirs = std::iter::once(dir.to_path_buf()).chain(below.filter(|p| p.join("partition").exists()));
    dirs.filter_map(|d| read_dev(&d.join("dev"))).collect()
}

fn read_dev(path: &Path) -> Option<(u32, u32)> {
    dev_numbers(fs::read_to_string(path).ok()?.trim())
}

/// "7:3" as a pair.
fn dev_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn mounts(target: &Target) -> Vec<User> {
    let mut found = Vec::new();
    for mount in &target.mounts.0 {
        let through_fuse = mount.kind.starts_with("fuse");
        // A FUSE mount shows the name that its server chose, which is compared as a text.
        if through_fuse && mount.source == target.path {
            found.push(User::Served { at: mount.at.clone() });
            continue;
        }
        if target.blocks.is_empty() || (through_fuse && !mount.kind.starts_with("fuseblk")) {
            continue;
        }
        if is_source(target, mount) {
            let at = mount.at.clone();
            found.push(if through_fuse { User::Served { at } } else { User::Mounted { at: Some(at) } });
        }
    }
    if target.blocks.is_empty() {
        return found;
    }
    // A btrfs of several devices names only one of them as the mount's source, but lists all of them here.
    let members = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten().flat_map(|fsid| {
        fs::read_dir(fsid.path().join("devices")).into_iter().flatten().flatten().map(|e| e.path().join("dev"))
    });
    if found.is_empty() && members.filter_map(|p| read_dev(&p)).any(|dev| target.blocks.contains(&dev)) {
        found.push(User::Mounted { at: None });
    }
    found
}

/// Whether the target is the block device below a mount.
fn is_source(target: &Target, mount: &Mount) -> bool {
    match dev_numbers(&mount.device) {
        // A file system on one block device has that device's number.
        Some(dev) if dev.0 != 0 => target.blocks.contains(&dev),
        // Others, btrfs among them, have a number of their own, and show the path of a device.
        _ => {
            target.is_quiet(&mount.source)
                && fs::metadata(&mount.source).is_ok_and(|meta| {
                    meta.file_type().is_block_device() && target.blocks.contains(&split_rdev(meta.rdev()))
                })
        }
    }
}

fn writers(target: &Target) -> Vec<User> {
    let me = std::process::id();
    let mut found = Vec::new();
    for proc_dir in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = proc_dir.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if pid == me {
            continue;
        }
        let dir = proc_dir.path();
        if has_open(target, &dir, pid) {
            let command = fs::read_to_string(dir.join("comm")).unwrap_or_default().trim().to_string();
            found.push(User::Writer { pid, command });
        }
    }
    found
}

/// Whether a process has the target open for writing.
fn has_open(target: &Target, proc_dir: &Path, pid: u32) -> bool {
    // Read at the first descriptor whose mount this process does not see. The numbers of mounts are those of the whole
    // system.
    let mut theirs = None;
    for fd in fs::read_dir(proc_dir.join("fd")).into_iter().flatten().flatten() {
        // Sockets, pipes and similar descriptors show no path.
        if !fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"/")) {
            continue;
        }
        let Some(open) = Descriptor::read(proc_dir.join("fdinfo").join(fd.file_name())) else { continue };
        if !open.writable {
            continue;
        }
        let mount = target
            .mounts
            .by_id(&open.mount)
            .or_else(|| theirs.get_or_insert_with(|| Mounts(mounts_of(pid).unwrap_or_default())).by_id(&open.mount));
        if target.may_be(&open, mount) && fs::metadata(fd.path()).is_ok_and(|meta| target.is(&meta)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
