//! The one system call of FUSE that needs a raw ioctl: opening a second channel to the same connection.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::LazyLock;

use rustix::ioctl;

/// The device through which FUSE servers talk to the kernel.
const DEV_FUSE: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_MAGIC` and the number of `FUSE_DEV_IOC_CLONE` in `linux/fuse.h`.
const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// The mount namespace of this process, held until it ends.
///
/// Normal path: a killed process closes its descriptors, and the kernel ends a connection when its last channel is released. Trap: if the
/// process is the last in its mount namespace (a container that is killed), the namespace ends, too; if that is first, the kernel unmounts
/// a mount of a block device while the connection still looks alive, and waits without end for the answer to FUSE_DESTROY. The
/// descriptor keeps the namespace until after the channels: those have higher numbers, and the kernel releases in the reverse order of
/// closing (seen with Linux 6.18; `synced::a_killed_container_leaves_no_mount` among the tests of the mount).
static NAMESPACE: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/self/ns/mnt").ok());

/// A new, unconnected channel.
///
/// # Errors
/// The kernel has no FUSE, or this process may not use it.
pub fn open_channel() -> io::Result<File> {
    let lowest = NAMESPACE.as_ref().map_or(0, |file| file.as_raw_fd() + 1);
    let channel = OpenOptions::new().read(true).write(true).open(DEV_FUSE)?;
    if channel.as_raw_fd() >= lowest {
        return Ok(channel);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&channel, lowest)?.into())
}

/// A second channel to the connection of `of`, so that two threads do not share one queue of requests being answered.
///
/// # Errors
/// As [`open_channel`]; also if `of` is not a connected channel.
pub fn clone_channel(of: impl AsFd) -> io::Result<File> {
    let new = open_channel()?;
    let old = of.as_fd().as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of an open channel, from the address that `Setter` passes; the setter
    // holds that u32 for the duration of the call.
    #[allow(unsafe_code, reason = "rustix has no wrapper for an ioctl of /dev/fuse")]
    unsafe {
        ioctl::ioctl(&new, ioctl::Setter::<CLONE, u32>::new(old))?;
    }
    Ok(new)
}
