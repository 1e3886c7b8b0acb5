//! Unmounts from outside, and waits until the server has written everything.
//!
//! umount(2) of a FUSE mount returns immediately, while the server still has changes in memory. So: (1) ask the mount
//! for its control socket; (2) have the server write everything: if it cannot, nothing is unmounted; (3) unmount; (4)
//! wait for the server's report of its last commit, and for its end. If the same mount is still visible elsewhere (a
//! bind mount, another namespace), the server continues, and there is no wait.
//!
//! After a plain umount(8) the directory leads to no server. A server that could not write everything is found by
//! asking the servers whose sockets this user may see where they were mounted.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oleo::control::{Client, Error, Reply, Request, connect_of, control_socket, open_to_ask};
use oleo::{ErrorKind, Hint};
use oleo_device::mountinfo::{Mount, mount_on, mounts_of};
use oleo_fs::errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::attach::detach;
use crate::control::sockets;

/// How long the server may take to end when all is written.
const END_SECONDS: i64 = 30;
/// How long a server may take to report what it serves.
const SAYS: Duration = Duration::from_secs(2);
/// How often a server is asked that has yet to notice that it was unmounted.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How to unmount.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UnmountOptions {
    /// Unmount even if it is in use: new openers no longer find it. Does not wait.
    pub lazy: bool,
    /// Unmount even if not everything can be written: what is not on disk is lost.
    pub force: bool,
    /// If not everything can be written, write all files as they are to this directory, and unmount.
    pub save_to: Option<PathBuf>,
}

oleo_format::setters!(UnmountOptions { lazy: bool, force: bool, save_to: Option<PathBuf> });

/// The result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unmounted {
    /// Everything is on disk.
    Complete,
    /// The disk has the last commit; this number of files and directories was written elsewhere.
    Saved(u64),
    /// What was not on disk is lost.
    GivenUp,
    /// The server continues, since it is also mounted elsewhere.
    StillMounted(Option<PathBuf>),
    /// There was no wait for the end, or no server to ask.
    NotWaited,
}

/// Unmounts and waits until the image is complete.
///
/// # Errors
/// It is not mounted, in use, or not the caller's to unmount; or not everything could be written. In the last case it
/// is still mounted, or (if it had been unmounted before) the server keeps what it could not write. But if only bytes
/// of files next to damage are concerned, it is unmounted, and everything else is on disk.
pub fn unmount(dir: &Path, options: &UnmountOptions) -> oleo::Result<Unmounted> {
    // Nothing can be looked up on a mount whose server is dead.
    let place = std::fs::canonicalize(dir).or_else(|_| std::path::absolute(dir)).unwrap_or_else(|_| dir.to_path_buf());
    let mount = mount_on(&place).ok().flatten();
    if mount.is_none()
        && let Some(server) = unmounted_before(&place)
    {
        return finish(server, options, false);
    }
    if mount.is_none() {
        return Err(oleo::Error::Refused { errno: errno::EINVAL, text: "nothing is mounted there".into() });
    }
    // A mount whose server is dead does not reply; there is nothing to wait for then.
    let mut server = server_of(dir).unwrap_or(None);
    let mut saved = None;
    if let Some(server) = &mut server
        && !options.force
        && let Err(error) = server.client.ask(&Request::Sync)
        // Waiting does not repair damage: the server reports at its end what it could not write.
        && (options.save_to.is_some() || error.kind() != ErrorKind::Corruption)
    {
        saved = Some(save(server, options, error, Hint::StillMounted)?);
    }
    if let Some(server) = &mut server
        && saved.is_none()
    {
        // Said now, so that it is there when the server has nothing left to do, and so that umount(2) does not wait for a server
        // whose device does not answer.
        server.client.post(&Request::Finish).map_err(|e| lost(&e))?;
        if options.force {
            // The server answers its connections in parallel, but begins with the older one: with this reply it nearly always knows
            // that this process waits. If not, umount(2) waits, too, and only cannot be interrupted.
            let _ = server_of(dir).map(|other| other.map(|mut other| other.client.ask(&Request::Mounted)));
        }
    }
    let others = mount.as_ref().map(others_of).unwrap_or_default();
    detach(&place, mount.as_ref().map(|mount| mount.device.as_str()), options.lazy)
        .map_err(|source| refused_or_host(&place, source))?;
    if let Some(elsewhere) = still_there(&others) {
        return Ok(Unmounted::StillMounted(Some(elsewhere)));
    }
    match server {
        Some(_) if options.lazy => Ok(Unmounted::NotWaited),
        Some(mut server) if saved.is_some() => {
            server.client.ask(&Request::GiveUp)?;
            server.wait_end();
            Ok(saved.map_or(Unmounted::GivenUp, Unmounted::Saved))
        }
        Some(server) => finish(server, options, true),
        None => Ok(Unmounted::NotWaited),
    }
}

/// Waits for the last commit of a server whose mount is gone. `asked`: it has been asked already.
fn finish(mut server: Server, options: &UnmountOptions, asked: bool) -> oleo::Result<Unmounted> {
    let answer = if asked { server.client.answer() } else { server.client.ask(&Request::Finish) };
    let done = match answer {
        Ok(_) => Unmounted::Complete,
        Err(error) if error.errno() == errno::EBUSY => return Ok(Unmounted::StillMounted(None)),
        Err(_) if options.force => {
            server.client.ask(&Request::GiveUp)?;
            Unmounted::GivenUp
        }
        Err(error) if error.hint() == Some(Hint::RestIsOnDisk) => {
            server.wait_end();
            return Err(not_everything(error, Hint::RestIsOnDisk));
        }
        Err(error) => {
            let saved = save(&mut server, options, error, Hint::KeptInMemory)?;
            server.client.ask(&Request::GiveUp)?;
            Unmounted::Saved(saved)
        }
    };
    server.wait_end();
    Ok(done)
}

/// Has everything written elsewhere if that was requested, or reports why it cannot be written in its place.
fn save(server: &mut Server, options: &UnmountOptions, error: oleo::Error, hint: Hint) -> oleo::Result<u64> {
    let Some(to) = &options.save_to else { return Err(not_everything(error, hint)) };
    let to = std::path::absolute(to).map_err(|source| host(to, source))?;
    let dir = std::os::unix::ffi::OsStrExt::as_bytes(to.as_os_str()).into();
    match server.client.ask(&Request::SaveTo { dir })? {
        Reply::Number(count) => Ok(count),
        _ => Err(lost(&io::Error::other("an unexpected reply")).into()),
    }
}

fn not_everything(error: oleo::Error, hint: Hint) -> oleo::Error {
    let mut error = Error::from(error);
    error.message = format!("not everything could be written: {}", error.message);
    error.hint = Some(hint);
    error.into()
}

/// Names the users of a mount that is busy.
fn refused_or_host(place: &Path, source: io::Error) -> oleo::Error {
    if source.raw_os_error() != Some(errno::EBUSY) {
        return host(place, source);
    }
    let users = users_of_mount(place);
    let shown = users.iter().take(USERS_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let text = match users.len() {
        0 => "in use; --lazy unmounts it all the same".to_owned(),
        n if n > USERS_SHOWN_MAX => {
            format!("in use by {shown} and {} more; --lazy unmounts it all the same", n - USERS_SHOWN_MAX)
        }
        _ => format!("in use by {shown}; --lazy unmounts it all the same"),
    };
    oleo::Error::Refused { errno: errno::EBUSY, text }
}

/// How many users of a busy mount a message names.
const USERS_SHOWN_MAX: usize = 5;

/// The processes, of those that the caller may look at, with a directory or file of a mount. Links are read only, so no file system
/// is asked.
fn users_of_mount(place: &Path) -> Vec<String> {
    let mut users = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let dir = process.path();
        let descriptors = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut links = [dir.join("cwd"), dir.join("root")].into_iter().chain(descriptors);
        if links.any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(place))) {
            let name = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            users.push(format!("{} (process {pid})", name.trim_end()));
        }
    }
    users
}

fn host(dir: &Path, source: io::Error) -> oleo::Error {
    oleo::Error::Host { what: "unmount", path: dir.to_path_buf(), source }
}

fn lost(error: &io::Error) -> Error {
    Error::refused(errno::EIO, format!("the mount's server does not answer: {error}"))
}

/// The other mounts of the same file system, for example bind mounts, by [`Mount::id`]. Asked before unmounting: the device's
/// number is free for another file system afterwards.
fn others_of(mount: &Mount) -> Vec<String> {
    let mounts = mounts_of("self").unwrap_or_default().into_iter();
    mounts.filter(|other| other.device == mount.device && other.id != mount.id).map(|other| other.id).collect()
}

/// The directory of one of these mounts, if one is left.
fn still_there(mounts: &[String]) -> Option<PathBuf> {
    if mounts.is_empty() {
        return None;
    }
    mounts_of("self").ok()?.into_iter().find(|mount| mounts.contains(&mount.id)).map(|mount| mount.at)
}

/// The process that serves a mount.
struct Server {
    client: Client,
    process: Option<OwnedFd>,
}

impl Server {
    fn over(stream: UnixStream) -> io::Result<Server> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        // Its number means nothing in another namespace of processes.
        let process = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
        Ok(Server { client: Client::over(stream), process })
    }

    /// Waits until the process has ended and so no longer uses the image.
    fn wait_end(self) {
        let Some(process) = self.process else { return };
        drop(self.client);
        let time = Timespec { tv_sec: END_SECONDS, tv_nsec: 0 };
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut fds, Some(&time)).is_err_and(|e| e == rustix::io::Errno::INTR) {}
    }
}

fn server_of(dir: &Path) -> io::Result<Option<Server>> {
    let file = open_to_ask(dir)?;
    let Some(socket) = control_socket(&file)? else { return Ok(None) };
    Ok(Some(Server::over(connect_of(&file, &socket)?)?))
}

/// The server that was mounted on a directory, and has not ended. Nothing is mounted there any more; a server that says otherwise has yet to
/// notice, or has its mount elsewhere.
fn unmounted_before(dir: &Path) -> Option<Server> {
    let mut attached = Vec::new();
    for socket in sockets() {
        match asked(&socket, dir) {
            Some((server, false)) => return Some(server),
            Some((_, true)) => attached.push(socket),
            None => {}
        }
    }
    // From here on, since another server that does not reply has taken its time.
    let deadline = Instant::now() + SAYS;
    while !attached.is_empty() && Instant::now() < deadline {
        std::thread::sleep(LOOK_AGAIN);
        let again = attached.iter().filter_map(|socket| asked(socket, dir));
        if let Some((server, _)) = again.into_iter().find(|(_, is_attached)| !is_attached) {
            return Some(server);
        }
    }
    None
}

/// The server behind a socket, if it was mounted on a directory, and whether it takes itself to be so still.
fn asked(socket: &Path, dir: &Path) -> Option<(Server, bool)> {
    let mut server = Server::over(UnixStream::connect(socket).ok()?).ok()?;
    server.client.wait_at_most(Some(SAYS)).ok()?;
    let Ok(Reply::Mounted(shown)) = server.client.ask(&Request::Mounted) else { return None };
    server.client.wait_at_most(None).ok()?;
    let there = shown.dir.0 == std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str());
    there.then_some((server, shown.attached))
}
