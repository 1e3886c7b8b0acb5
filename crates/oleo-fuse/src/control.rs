//! The control socket of a mount: requests about the volume that do not come through the file system.
//!
//! Normal path: (1) [`Control::start`] binds a socket in a directory of the user and gives its path to the server,
//! which returns it to any process on the mount by ioctl; (2) each request is executed on the mounted image, by the
//! same function as offline; (3) the kernel is made to forget what changed; (4) the reply is sent. So the caller sees
//! the change once it has the reply.
//!
//! `oleo::control` decides who may do what. Whoever may use the mount may connect: without `allow_other` the socket
//! belongs to its owner alone; with it, it is in a directory of a random name, inside one that nobody else can list,
//! and only the mount returns its path. It is bound by the directory's number, so that `/proc/net/unix` does not show
//! the path either.
//! Crash: the socket stays behind without a listener. The name of its directory contains the process's number: the next
//! server that starts removes those whose process is gone.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use oleo::control::{self, Caller, Error, Invalidation, MountShown, Reply, Request};
use oleo::restore::{RestoreOptions, restore_to_dir};
use oleo_device::mountinfo::mounts_of;
use oleo_fs::errno;

use crate::server::{Errno, Log, Server, guarded, looks_at_files};

/// The directory for the sockets of root's mounts.
const RUN: &str = "/run/oleo";
/// What a socket is called in its directory.
const SOCKET: &str = "control.sock";
/// Users who know a socket's name may look it up; they may neither create one there nor list them.
const DIR_MODE: u32 = 0o711;
/// The same of a mount's own directory, and who may connect: with `allow_other`, and without.
const MODES: [(u32, u32); 2] = [(0o711, 0o666), (0o700, 0o600)];

/// A control socket that is being served.
pub(crate) struct Control {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: JoinHandle<()>,
}

/// The possible directories of this user's sockets, the best first. Root of a user namespace may have no rights to
/// /run.
fn directories() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let run = uid.is_root().then(|| PathBuf::from(RUN));
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|run| PathBuf::from(run).join("oleo"));
    run.into_iter().chain(own).chain([std::env::temp_dir().join(format!("oleo-{}", uid.as_raw()))]).collect()
}

/// The directory of this user's sockets, created if missing.
fn directory() -> io::Result<PathBuf> {
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for dir in directories() {
        match make_own(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) => why = e,
        }
    }
    Err(why)
}

fn make_own(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
    let found = rustix::fs::lstat(dir)?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o022 != 0 {
        return Err(io::Error::other(format!("{} belongs to another user", dir.display())));
    }
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)?;
    // One that was made before may show its entries.
    fs::set_permissions(dir, fs::Permissions::from_mode(DIR_MODE))
}

/// The sockets that this user can see.
pub(crate) fn sockets() -> impl Iterator<Item = PathBuf> {
    let entries = directories().into_iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    entries.map(|entry| entry.path().join(SOCKET))
}

/// A new socket in a directory of its own below one that is this user's.
fn bind(dir: &Path, number: u64, everybody: bool) -> io::Result<(UnixListener, PathBuf)> {
    let (dir_mode, mode) = if everybody { MODES[0] } else { MODES[1] };
    let random = oleo::Uuid::new_v4().simple().to_string();
    let own = dir.join(format!("{}-{number}-{random}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&own)?;
    let bound = fs::File::open(&own).and_then(|opened| {
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd()))?;
        let path = own.join(SOCKET);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        fs::set_permissions(&own, fs::Permissions::from_mode(dir_mode))?;
        Ok((listener, path))
    });
    bound.inspect_err(|_| remove(&own))
}

/// Removes a directory of a socket.
fn remove(dir: &Path) {
    let _ = fs::remove_file(dir.join(SOCKET));
    let _ = fs::remove_dir(dir);
}

/// Removes the sockets of servers that were killed. A socket in another namespace of processes may be alive though its
/// number means nothing here: it replies, and stays.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let pid = path.file_name().and_then(OsStr::to_str).and_then(|s| s.split_once('-')).map(|(pid, _)| pid);
        let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok()) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        let gone = |e: io::Error| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
        if UnixStream::connect(path.join(SOCKET)).is_err_and(gone) {
            remove(&path);
        }
    }
}

impl Control {
    /// Starts to listen, and gives the path to the server.
    pub(crate) fn start(server: &Arc<Server>, log: &Log) -> io::Result<Control> {
        static MOUNTS: AtomicU64 = AtomicU64::new(0);
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let dir = directory()?;
        sweep(&dir);
        let everybody = server.options().allow_other.unwrap_or_else(|| rustix::process::geteuid().is_root());
        let (listener, path) = bind(&dir, number, everybody)?;
        let listener = Arc::new(listener);
        server.set_control(path.clone());
        let (served, of, log) = (listener.clone(), server.clone(), log.clone());
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let done = control::serve(&served, |caller, request| of.control(caller, request));
            if let Err(e) = done {
                log(&format!("control socket: {e}"));
            }
        })?;
        Ok(Control { listener, path, thread })
    }

    /// Stops listening; requests under way are still answered.
    pub(crate) fn stop(self) {
        let _ = control::stop(&self.listener);
        if let Some(dir) = self.path.parent() {
            remove(dir);
        }
        let _ = self.thread.join();
    }
}

/// The error of a request that has to see what was written.
fn unwritten(errno: Errno) -> Error {
    Error::refused(errno.0, "not everything that was written to open files could be taken over")
}

impl Server {
    /// Executes a control request from the socket.
    fn control(&self, caller: Caller, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Mounted | Request::Finish | Request::GiveUp | Request::SaveTo { .. } => {
                return self.about_the_mount(&caller, request);
            }
            // There is nothing to write.
            Request::Sync if self.options().read_only => {
                return Ok(Reply::Generation(self.image().fs().engine().durable()));
            }
            _ => {}
        }
        // What is asked of a volume that is followed is answered by its newest moment.
        if let Some(following) = self.following() {
            if matches!(request, Request::Scrub { .. }) {
                let text = "a mount that follows cannot be scrubbed: scrub the volume where it is written";
                return Err(Error::refused(errno::EOPNOTSUPP, text));
            }
            let mut reply = following.newest().of_one_moment(caller, request)?;
            if let Reply::Stats(stats) = &mut reply
                && let Some(device) = stats.devices.first_mut()
            {
                device.counts.extend(following.counts());
            }
            return Ok(reply);
        }
        self.of_one_moment(caller, request)
    }

    fn of_one_moment(&self, caller: Caller, request: Request) -> Result<Reply, Error> {
        let under_way = self.ending().enter()?;
        if looks_at_files(&request) {
            self.write_out().map_err(unwritten)?;
        }
        let (mut reply, changed) = self.execute(caller, request)?;
        if let Reply::Stats(stats) = &mut reply {
            stats.nodes = Some(self.nodes_known());
        }
        self.invalidate(&changed);
        drop(under_way);
        Ok(reply)
    }

    /// What concerns the mount and its end, not the file system.
    fn about_the_mount(&self, caller: &Caller, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Mounted => {
                let (attached, unwritten) = self.ending().shown();
                let dir = self.dir().map_or(&[][..], |dir| dir.as_os_str().as_bytes()).into();
                let seed = self.image().is_seed();
                Ok(Reply::Mounted(Box::new(MountShown { dir, attached, unwritten, seed })))
            }
            // The caller of unmount waits, without blocking others.
            Request::Finish => self.ending().wait(caller.pid).map(|()| Reply::Done),
            _ if !caller.privileged => Err(Error::refused(errno::EPERM, "only root and the mount's owner may do that")),
            Request::GiveUp => self.ending().give_up().map(|()| Reply::Done),
            Request::SaveTo { dir } => {
                let image = self.image();
                let to = Path::new(OsStr::from_bytes(&dir.0));
                let report = restore_to_dir(image, &image.top()?, b"", to, &RestoreOptions::default())?;
                report.warnings.iter().for_each(|warning| (self.log())(warning));
                let done = &report.done;
                Ok(Reply::Number(done.files + done.dirs + done.links + done.others + done.subvols))
            }
            _ => Err(Error::refused(errno::EOPNOTSUPP, "not about the mount")),
        }
    }

    /// Carries out a control request that came as an ioctl.
    pub(crate) fn control_by_ioctl(&self, caller: Caller, request: Request) -> Result<Reply, Error> {
        if looks_at_files(&request) {
            self.write_out().map_err(unwritten)?;
        }
        let (reply, changed) = self.execute(caller, request)?;
        self.invalidate_soon(&changed);
        Ok(reply)
    }

    /// Whether a process sees this mount only read-only: by `mount -o remount,ro`, or by bind mounts in a container. A
    /// request does not show through which of several mounts it came.
    fn is_read_only_for(&self, pid: u32) -> bool {
        let (Some(device), Ok(mounts)) = (self.device(), mounts_of(pid)) else { return false };
        let mut ours = mounts.iter().filter(|mount| mount.device == device).peekable();
        ours.peek().is_some() && ours.all(|mount| mount.read_only)
    }

    fn execute(&self, mut caller: Caller, request: Request) -> Result<(Reply, Vec<Invalidation>), Error> {
        caller.user_subvol_rm_allowed = self.options().user_subvol_rm_allowed;
        caller.keep = self.root_tree();
        if request.changes() && caller.pid.is_some_and(|pid| self.is_read_only_for(pid)) {
            return Err(Error::refused(errno::EROFS, "it is mounted read-only"));
        }
        let done = guarded(self.image().fs(), self.log(), "a control request", || {
            control::execute(self.image(), &caller, request)
        });
        done.unwrap_or_else(|| Err(Error::refused(errno::EIO, "the request panicked, which is a bug")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_sockets_of_dead_processes_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).join(SOCKET);
        // The kernel's greatest process number is 2^22.
        let gone = (1u32 << 22) + 1;
        let (dead, alive) = (at(&format!("{gone}-0-a")), at(&format!("{gone}-1-b")));
        let (own, other) = (at(&format!("{}-0-c", std::process::id())), at("other-0-d"));
        for path in [&dead, &alive, &own, &other] {
            fs::create_dir(path.parent().unwrap()).unwrap();
        }
        for path in [&dead, &own, &other] {
            drop(UnixListener::bind(path).unwrap());
        }
        let _listens = UnixListener::bind(&alive).unwrap();
        sweep(dir.path());
        let left = [&dead, &alive, &own, &other].map(|path| path.exists());
        assert_eq!(left, [false, true, true, true]);
    }

    /// Goal: a socket can be reached by its name and by nothing that everybody may read. Method: one of each kind; modes; the
    /// table of sockets.
    #[test]
    fn sockets_are_reported_by_the_mount_only() {
        let dir = tempfile::tempdir().unwrap();
        for (everybody, modes) in [(true, MODES[0]), (false, MODES[1])] {
            let (_listener, path) = bind(dir.path(), 7, everybody).unwrap();
            UnixStream::connect(&path).unwrap();
            let own = path.parent().unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(own), mode(&path)), modes);
            let table = fs::read_to_string("/proc/net/unix").unwrap();
            let secret = own.file_name().unwrap().to_str().unwrap();
            assert!(table.contains(SOCKET) && !table.contains(secret));
            remove(own);
            assert!(!own.exists());
        }
    }
}
