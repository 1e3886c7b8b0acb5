//! The control socket of a mount: requests about the volume that do not come through the file system.
//!
//! Normal path: (1) [`Control::start`] binds a socket in a directory of the user's and tells the server its name, which
//! anybody on the mount can ask for by ioctl; (2) each request is carried out on the image that is mounted, by the same
//! function as offline; (3) the kernel is made to forget what changed; (4) the answer goes out. So whoever has the answer
//! sees the change.
//!
//! Who may ask for what is decided by `oleo::control`; whoever serves the mount owns it, as root does.
//! Crash: a socket that nobody listens on stays behind; its name holds the process's number, and the next server of that
//! number replaces it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use oleo::control::{self, Caller, Error, Invalidate, Reply, Request};

use crate::server::{Log, Server};

/// Where the sockets of root's mounts are.
const RUN: &str = "/run/oleo";
/// Everybody may connect; what they may do is another matter.
const SOCKET_MODE: u32 = 0o666;

/// A control socket that is being served.
pub(crate) struct Control {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: JoinHandle<()>,
}

/// The directory of this user's sockets, made where it is missing.
fn directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let (dir, mode) = if uid.is_root() {
        (PathBuf::from(RUN), 0o755)
    } else {
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(run) => (PathBuf::from(run).join("oleo"), 0o755),
            None => (std::env::temp_dir().join(format!("oleo-{}", uid.as_raw())), 0o755),
        }
    };
    DirBuilder::new().recursive(true).mode(mode).create(&dir)?;
    let found = rustix::fs::lstat(&dir)?;
    if found.st_uid != uid.as_raw() || found.st_mode & 0o022 != 0 {
        return Err(io::Error::other(format!("{} belongs to somebody else", dir.display())));
    }
    Ok(dir)
}

impl Control {
    /// Begins to listen, and tells the server where.
    pub(crate) fn start(server: &Arc<Server>, log: &Log) -> io::Result<Control> {
        static MOUNTS: AtomicU64 = AtomicU64::new(0);
        let number = MOUNTS.fetch_add(1, Ordering::Relaxed);
        let path = directory()?.join(format!("{}-{number}.sock", std::process::id()));
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
