//! Who else uses a file or block device, as far as this system shows.
//!
//! Three questions: does a mounted btrfs have it (or a loop device on top of it, or a partition of that) among its
//! devices; is such a block device the source of any mount; has another process opened it for writing. The answers come
//! from `/sys/fs/btrfs`, `/proc/self/mountinfo`, `/sys/block/loop*` and `/proc/PID/fd`. What this user may not see, and
//! systems without these files, count as unused: this is a guard against mistakes, not a lock.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::mountinfo::mounts_of;
use crate::user::User;

/// All forms of the same bytes: the file itself, and block devices on top of it.
#[derive(Default)]
struct Identity {
    /// (device, inode) of a regular file.
    file: Option<(u64, u64)>,
    /// (major, minor) of block devices: the path itself, loop devices backed by it, their partitions.
    blocks: Vec<(u32, u32)>,
}

/// Returns who has `path` mounted or open for writing, this process excepted.
pub fn users_of(path: &Path) -> Vec<User> {
    let Some(id) = identity(path) else { return Vec::new() };
    let mut users = mounts(&id, path);
    users.extend(writers(&id));
    users
}

fn identity(path: &Path) -> Option<Identity> {
    let meta = fs::metadata(path).ok()?;
    let mut id = Identity::default();
    if meta.file_type().is_block_device() {
        id.blocks.push(split_rdev(meta.rdev()));
    } else {
        id.file = Some((meta.dev(), meta.ino()));
    }
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let dir = entry.path();
        let Ok(backing) = fs::read(dir.join("loop/backing_file")) else { continue };
        let backing = std::ffi::OsString::from_vec(backing.trim_ascii_end().to_vec());
        let Ok(backing) = fs::metadata(PathBuf::from(backing)) else { continue };
        let same = match id.file {
            Some(file) => file == (backing.dev(), backing.ino()),
            None => backing.file_type().is_block_device() && id.blocks.first() == Some(&split_rdev(backing.rdev())),
        };
        if same {
            id.blocks.extend(block_and_partitions(&dir));
        }
    }
    Some(id)
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

/// "7:3\n" as a pair.
fn read_dev(path: &Path) -> Option<(u32, u32)> {
    let text = fs::read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn mounts(id: &Identity, path: &Path) -> Vec<User> {
    let mut found = Vec::new();
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    for mount in mounts_of("self").unwrap_or_default() {
        let through_fuse = mount.kind.starts_with("fuse");
        // A FUSE mount shows the name that its server chose; the name alone is no reason to query a file system that
        // may not answer.
        if through_fuse && mount.source == whole {
            found.push(User::Served { at: mount.at });
            continue;
        }
        if id.blocks.is_empty() || (through_fuse && !mount.kind.starts_with("fuseblk")) {
            continue;
        }
        let Ok(meta) = fs::metadata(&mount.source) else { continue };
        if meta.file_type().is_block_device() && id.blocks.contains(&split_rdev(meta.rdev())) {
            let at = mount.at;
            found.push(if through_fuse { User::Served { at } } else { User::Mounted { at: Some(at) } });
        }
    }
    if id.blocks.is_empty() {
        return found;
    }
    // A btrfs of several devices names only one of them as the mount's source, but lists all of them here.
    let members = fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten().flat_map(|fsid| {
        fs::read_dir(fsid.path().join("devices")).into_iter().flatten().flatten().map(|e| e.path().join("dev"))
    });
    if found.is_empty() && members.filter_map(|p| read_dev(&p)).any(|dev| id.blocks.contains(&dev)) {
        found.push(User::Mounted { at: None });
    }
    found
}

fn writers(id: &Identity) -> Vec<User> {
    let me = std::process::id();
    let mut found = Vec::new();
    for proc_dir in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = proc_dir.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if pid == me {
            continue;
        }
        let dir = proc_dir.path();
        let fds = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        let writes = fds.into_iter().any(|fd| {
            let same = fs::metadata(fd.path()).is_ok_and(|meta| match meta.file_type().is_block_device() {
                true => id.blocks.contains(&split_rdev(meta.rdev())),
                false => id.file == Some((meta.dev(), meta.ino())),
            });
            same && open_for_writing(&dir.join("fdinfo").join(fd.file_name()))
        });
        if writes {
            let command = fs::read_to_string(dir.join("comm")).unwrap_or_default().trim().to_string();
            found.push(User::Writer { pid, command });
        }
    }
    found
}

/// Whether the octal `flags:` of an fdinfo file are write-only or read-write.
fn open_for_writing(fdinfo: &Path) -> bool {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    let flags = text.lines().find_map(|l| l.strip_prefix("flags:")).map(str::trim);
    flags.and_then(|f| u64::from_str_radix(f, 8).ok()).is_some_and(|f| f & 0o3 != 0)
}
