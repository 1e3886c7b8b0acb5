//! Mounts, as `/proc/PID/mountinfo` lists them (proc(5)).

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One mount, as one process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Its number, which `/proc/PID/fdinfo` shows as `mnt_id`.
    pub id: String,
    /// The device that files on it show, as "major:minor".
    pub device: String,
    /// The directory of the file system that it shows.
    pub root: PathBuf,
    /// The directory it is on.
    pub at: PathBuf,
    /// The source of the mount.
    pub source: PathBuf,
    /// Nothing can be changed through it: the mount itself is read-only, or the file system.
    pub read_only: bool,
    /// For a FUSE file system: the user who serves it.
    pub user: Option<u32>,
    /// The file system's type.
    pub kind: String,
}

/// The mounts that a process sees, given its number or "self", in the order in which they were made.
///
/// # Errors
/// There is no such process, or the caller may not see its mounts.
pub fn mounts_of(process: impl Display) -> io::Result<Vec<Mount>> {
    let table = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(table.split(|&b| b == b'\n').filter_map(Mount::parse).collect())
}

/// The mount visible on a directory: of several mounts the last.
///
/// # Errors
/// As [`mounts_of`].
pub fn mount_on(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(mounts_of("self")?.into_iter().rev().find(|mount| mount.at == dir))
}

impl Mount {
    /// Fields 1 and 3 to 6 of a line and, after the lone "-", 1 to 3.
    fn parse(line: &[u8]) -> Option<Mount> {
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let dash = fields.iter().position(|f| *f == b"-")?;
        let text = |at: usize| fields.get(at).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let path = |at: usize| fields.get(at).map(|bytes| PathBuf::from(OsStr::from_bytes(&unescape(bytes))));
        let options = |at: usize| fields.get(at).map_or(&[][..], |bytes| bytes).split(|&b| b == b',');
        let read_only = options(5).chain(options(dash + 3)).any(|option| option == b"ro");
        let user = options(dash + 3).find_map(|option| std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok());
        let user = user.and_then(|id| id.parse().ok());
        Some(Mount {
            id: text(0)?,
            device: text(2)?,
            root: path(3)?,
            at: path(4)?,
            source: path(dash + 2)?,
            read_only,
            user,
            kind: text(dash + 1)?,
        })
    }
}

/// Takes back the three-digit octal escapes of /proc files.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&b, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|d| b == b'\\' && d.iter().all(|c| (b'0'..b'8').contains(c)));
        match code {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, c| n.wrapping_mul(8).wrapping_add(c - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(b);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a mount point with a space in it is read whole. Method: a line as the kernel writes it.
    #[test]
    fn lines_are_understood() {
        let line = br"36 35 98:0 / /mnt/a\040b rw,noatime master:1 shared:2 - btrfs /dev/loop\0611 rw";
        let mount = Mount::parse(line).expect("a whole line");
        assert_eq!(mount.at, Path::new("/mnt/a b"));
        assert_eq!(mount.source, Path::new("/dev/loop11"));
        assert_eq!((mount.id.as_str(), mount.device.as_str()), ("36", "98:0"));
        assert_eq!(mount.root, Path::new("/"));
        assert_eq!((mount.read_only, mount.user), (false, None));
        let line = b"36 35 0:50 / /m ro,noatime - fuse.oleo /i rw,user_id=1000,group_id=5,allow_other";
        assert_eq!(Mount::parse(line).map(|m| (m.read_only, m.user)), Some((true, Some(1000))));
        let line = b"36 35 0:50 / /m rw - fuse.oleo /i ro,user_id=0";
        assert_eq!(Mount::parse(line).map(|m| (m.read_only, m.user)), Some((true, Some(0))));
        assert_eq!(Mount::parse(b""), None);
        assert_eq!(unescape(br"\04"), br"\04");
    }

    /// Goal: mounts that every process sees are found, and none on a directory without one.
    #[test]
    fn this_machine() {
        let proc = mount_on(Path::new("/proc")).unwrap().expect("what tells of mounts is mounted");
        assert!(mounts_of(std::process::id()).unwrap().contains(&proc));
        assert_eq!(mount_on(Path::new("/proc/self")).unwrap(), None);
    }
}
