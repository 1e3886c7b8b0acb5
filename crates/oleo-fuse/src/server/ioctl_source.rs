//! From a number of another process's open file to an inode of this mount.
//!
//! A snapshot's source is named that way. Looking at the file itself would ask this very server; but what the kernel
//! tells of the descriptor is enough: the mount it is on, and the inode number, which is ours.

use std::path::Path;

use oleo_fs::InodeRef;

use super::{Errno, Server};
use crate::wire::abi::ROOT_ID;

impl Server {
    /// The inode that a process has open under a number.
    pub(super) fn inode_of_fd(&self, pid: u32, fd: i64) -> Result<InodeRef, Errno> {
        const EBADF: Errno = Errno(9);
        let ours = self.device().ok_or(Errno::EOPNOTSUPP)?;
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).map_err(|_| EBADF)?;
        let field = |name: &str| info.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        let mount = field("mnt_id:").ok_or(EBADF)?;
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_err(|_| EBADF)?;
        if device_of(&mounts, |words| words.first() == Some(&mount)).as_deref() != Some(ours) {
            return Err(Errno::EXDEV);
        }
        // Kernels before 5.14 do not tell it.
        let ino: u64 = field("ino:").and_then(|ino| ino.parse().ok()).ok_or(Errno::EOPNOTSUPP)?;
        // The root shows the number of its node until it is first looked at.
        self.inode_shown(ino).or_else(|_| if ino == ROOT_ID { self.inode(ROOT_ID) } else { Err(Errno::ESTALE) })
    }
}

/// The device (as "major:minor") of the mount for whose line in mountinfo the rule holds; the last one, which is on top.
fn device_of(mounts: &str, rule: impl Fn(&[&str]) -> bool) -> Option<String> {
    let lines = mounts.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.filter(|words| rule(words)).find_map(|words| words.get(2).map(|device| (*device).to_owned()))
}

/// The device of what is mounted on a directory.
pub(super) fn device_on(dir: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    // Spaces and such are written as octal numbers there.
    let shown: String = dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|b| match b {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{b:03o}"),
            _ => char::from(*b).to_string(),
        })
        .collect();
    device_of(&mounts, |words| words.get(4) == Some(&shown.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the topmost mount on a directory counts. Method: lines as the kernel writes them.
    #[test]
    fn topmost() {
        let mounts = "21 1 8:1 / / rw - ext4 a rw\n30 21 0:40 / /mnt/a\\040b rw - fuse.oleo x rw\n\
                      31 21 0:41 / /mnt/a\\040b rw - fuse.oleo y rw\n";
        assert_eq!(device_of(mounts, |w| w.get(4) == Some(&"/mnt/a\\040b")).as_deref(), Some("0:41"));
        assert_eq!(device_of(mounts, |w| w.first() == Some(&"30")).as_deref(), Some("0:40"));
        assert_eq!(device_of(mounts, |w| w.first() == Some(&"99")), None);
        assert!(device_on(Path::new("/proc")).is_some());
    }
}
