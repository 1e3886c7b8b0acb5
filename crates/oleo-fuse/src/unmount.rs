//! Unmounting from outside, and waiting until the server has written everything.
//!
//! The kernel answers umount(2) of a FUSE mount at once, while the server still has changes in memory. So: (1) ask the mount
//! for its control socket, and the socket for the process that listens on it; (2) unmount; (3) wait for that process to
//! end, which it does when the image is complete.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use oleo::control::{control_socket, open_to_ask};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::attach::detach;

/// Unmounts and waits until the image is complete. `lazily`: also where it is in use, without waiting.
///
/// # Errors
/// It is not mounted, in use, or not the caller's to unmount.
pub fn unmount(dir: &Path, lazily: bool) -> io::Result<()> {
    // A mount whose server is dead answers nothing; there is nobody to wait for then.
    let server = server_of(dir).unwrap_or(None);
    detach(dir, lazily)?;
    if let Some(server) = server
        && !lazily
    {
        let mut fds = [PollFd::new(&server, PollFlags::IN)];
        while poll(&mut fds, None).is_err_and(|e| e == rustix::io::Errno::INTR) {}
    }
    Ok(())
}

/// The process that serves a mount.
fn server_of(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let file = open_to_ask(dir)?;
    let Some(socket) = control_socket(&file)? else { return Ok(None) };
    let peer = rustix::net::sockopt::socket_peercred(UnixStream::connect(socket)?)?;
    Ok(Some(pidfd_open(peer.pid, PidfdFlags::empty())?))
}
