//! The control socket of a mount: requests about the volume that do not come through the file system.
//!
//! Normal path: (1) [`Control::start`] binds a socket in a directory of the user's and tells the server its name, which
//! anybody on the mount can ask for by ioctl; (2) each request is carried out on the image that is mounted, by the same
//! function as offline; (3) the kernel is made to forget what changed; (4) the answer goes out. So whoever has the answer
//! sees the change.
//!
//! Who may ask for what is decided by `oleo::control`; whoever serves the mount owns it, as root does.
//! Crash: a socket that nobody listens on stays behind. Its name holds the process's number: the next server that starts
//! removes those whose process is gone.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use oleo::control::{self, Caller, Error, Invalidate, Reply, Request};

use crate::server::{Log, Server};

/// Where the sockets of root's mounts are.
const RUN: &str = "/run/oleo";
/// Everybody may connect; what they may do is another matter.
const SOCKET_MODE: u32 = 0o666;

/// Everybody may look a socket up, nobody else may put one there.
const DIR_MODE: u32 = 0o755;

/// A control socket that is being served.
pub(crate) struct Control {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: JoinHandle<()>,
}

/// The directory of this user's sockets, made where it is missing.
fn directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if uid.is_root() => PathBuf::from(RUN),
        Some(run) => PathBuf::from(run).join("oleo"),
        None => std::env::temp_dir().join(format!("oleo-{}", uid.as_raw())),
    };
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(&dir)?;
    let found = rustix::fs::lstat(&dir)?;
    if found.st_uid != uid.as_raw() || found.st_mode & 0o022 != 0 {
        return Err(io::Error::other(format!("{} belongs to somebody else", dir.display())));
    }
    Ok(dir)
}

/// Removes the sockets of servers that were killed. A socket in another namespace of processes may be alive though its
/// number means nothing here: it answers, and stays.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let pid = path.file_stem().and_then(OsStr::to_str).and_then(|s| s.split_once('-')).map(|(pid, _)| pid);
        let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok()) else { continue };
        if path.extension() != Some(OsStr::new("sock")) || Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        if UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(&path);
        }
    }
}

impl Control {
    /// Begins to listen, and tells the server where.
    pub(crate) fn start(server: &Arc<Server>, log: &Log) -> io::Result<Control> {
        static MOUNTS: AtomicU64 = AtomicU64::new(0);
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let dir = directory()?;
        sweep(&dir);
        let path = dir.join(format!("{}-{number}.sock", std::process::id()));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = Arc::new(UnixListener::bind(&path)?);
        fs::set_permissions(&path, fs::Permissions::from_mode(SOCKET_MODE))?;
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
        let _ = fs::remove_file(&self.path);
        let _ = self.thread.join();
    }
}

impl Server {
    /// Carries out a control request for somebody who came through the socket.
    fn control(&self, mut caller: Caller, request: Request) -> Result<Reply, Error> {
        caller.privileged |= caller.uid == rustix::process::geteuid().as_raw();
        let (reply, changed) = self.execute(caller, request)?;
        self.invalidate(&changed);
        Ok(reply)
    }

    /// Carries out a control request that came as an ioctl.
    pub(crate) fn control_by_ioctl(&self, caller: Caller, request: Request) -> Result<Reply, Error> {
        let (reply, changed) = self.execute(caller, request)?;
        self.invalidate_soon(&changed);
        Ok(reply)
    }

    fn execute(&self, mut caller: Caller, request: Request) -> Result<(Reply, Vec<Invalidate>), Error> {
        caller.user_subvol_rm_allowed = self.options().user_subvol_rm_allowed;
        caller.keep = self.root_tree();
        control::execute(self.image(), &caller, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_sockets_of_dead_processes_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // The kernel's greatest process number is 2^22.
        let gone = (1u32 << 22) + 1;
        let (dead, alive) = (at(&format!("{gone}-0.sock")), at(&format!("{gone}-1.sock")));
        let (own, other) = (at(&format!("{}-0.sock", std::process::id())), at("other-0.sock"));
        for path in [&dead, &own, &other] {
            drop(UnixListener::bind(path).unwrap());
        }
        let _listens = UnixListener::bind(&alive).unwrap();
        sweep(dir.path());
        let left = [&dead, &alive, &own, &other].map(|path| path.exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
