//! The one system call of FUSE that needs a raw ioctl: opening a second channel to the same connection.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::ioctl;

/// The device through which FUSE servers talk to the kernel.
const DEV_FUSE: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_MAGIC` and the number of `FUSE_DEV_IOC_CLONE` in `linux/fuse.h`.
const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// A new, unconnected channel.
///
/// # Errors
/// The kernel has no FUSE, or this process may not use it.
pub fn open_channel() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(DEV_FUSE)
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
