//! From a number of another process's open file to an inode of this mount.
//!
//! A snapshot's source is named that way. Looking at the file itself would ask this very server; but what the kernel
//! tells of the descriptor is enough: the mount it is on, and the inode number, which is ours.

use oleo_device::mountinfo::mounts_of;
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
        let mounts = mounts_of(pid).map_err(|_| EBADF)?;
        if mounts.iter().find(|m| m.id == mount).map(|m| m.device.as_str()) != Some(ours) {
            return Err(Errno::EXDEV);
        }
        // Kernels before 5.14 do not tell it.
        let ino: u64 = field("ino:").and_then(|ino| ino.parse().ok()).ok_or(Errno::EOPNOTSUPP)?;
        // The root shows the number of its node until it is first looked at.
        self.inode_shown(ino).or_else(|_| if ino == ROOT_ID { self.inode(ROOT_ID) } else { Err(Errno::ESTALE) })
    }
}
