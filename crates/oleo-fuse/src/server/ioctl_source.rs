//! From a number of another process's open file to an inode of this mount.
//!
//! The source of a snapshot is named in this way. Querying the file itself would be a request to this very server; but
//! what the kernel shows of the descriptor is enough: the mount it is on, and the inode number, which this server
//! chose.

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
        // Kernels before 5.14 do not show it.
        let ino: u64 = field("ino:").and_then(|ino| ino.parse().ok()).ok_or(Errno::EOPNOTSUPP)?;
        // The root shows the number of its node until its attributes are first read.
        self.inode_shown(ino).or_else(|_| if ino == ROOT_ID { self.inode(ROOT_ID) } else { Err(Errno::ESTALE) })
    }
}
