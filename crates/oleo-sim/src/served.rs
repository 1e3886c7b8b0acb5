//! A file system that Oleo itself serves through FUSE, as a guard: the counterpart of [`crate::oracle::Mounted`]. Other FUSE
//! servers can be started the same way ([`Served::start`]), to be measured beside it.
//!
//! Normal path: (1) [`Served::mount`] starts `oleo mount --foreground` on a directory of its own and waits until the
//! kernel lists the mount; (2) the test works below [`Served::path`]; (3) [`Served::unmount`] runs `oleo unmount` and waits
//! for the server to end well; or [`Served::kill`] ends it as a crash would.
//!
//! Invariants: when the guard is gone, so are the server and the mount, also after a panic. A server that hangs is
//! killed after [`Limits::life`], so that callers that wait for its replies get an error: a test fails then instead of
//! hanging. Only the process that was started here is ever signalled.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal};

use crate::oracle::{Scratch, run};

/// How often something that will happen soon is looked for.
const POLL: Duration = Duration::from_millis(5);

/// How long a mount may be busy after its last user.
const BUSY: Duration = Duration::from_secs(5);

/// How long things may take before the test is failed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the start of the server until the mount is there.
    pub mount: Duration,
    /// From the request to unmount until the server has ended.
    pub unmount: Duration,
    /// From mounting until the server is killed.
    pub life: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { mount: Duration::from_secs(30), unmount: Duration::from_secs(60), life: Duration::from_secs(300) }
    }
}

/// A mount that a process of ours serves.
#[derive(Debug)]
pub struct Served {
    server: Arc<Mutex<Child>>,
    unmount: Vec<OsString>,
    mounted: bool,
    limits: Limits,
    /// Dropped when the guard goes: ends the watch.
    _watch: Sender<()>,
    // The directory and the log go last.
    dir: PathBuf,
    log: PathBuf,
    _own: Scratch,
}

impl Served {
    /// Mounts the file system on these images, `program` being the `oleo` command; `""` for no options.
    pub fn mount<P: AsRef<Path>>(program: &Path, images: &[P], options: &str, limits: Limits) -> Result<Served> {
        let mut command = Command::new(program);
        command.args(["mount", "--foreground"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.args(images.iter().map(AsRef::as_ref));
        Served::start(command, vec![program.into(), "unmount".into()], limits)
    }

    /// Starts a server in the foreground; the directory that it is to mount on is added as the last argument, here and
    /// to the command that unmounts.
    pub fn start(mut command: Command, unmount: Vec<OsString>, limits: Limits) -> Result<Served> {
        let own = Scratch::new()?;
        // Other users must get as far as the mount.
        rustix::fs::chmod(own.path(), Mode::from_raw_mode(0o755))?;
        let dir = own.dir("mnt")?;
        let log = own.path().join("log");
        command.arg(&dir);
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let server = Arc::new(Mutex::new(child));
        let (watch, watched) = channel::<()>();
        let watch_over = server.clone();
        std::thread::spawn(move || {
            if watched.recv_timeout(limits.life) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("a mount's server is killed: it lived for {:?}", limits.life);
                let _ = lock(&watch_over).kill();
            }
        });
        let mut served = Served { server, unmount, mounted: false, limits, _watch: watch, dir, log, _own: own };
        served.wait_for_mount()?;
        Ok(served)
    }

    fn wait_for_mount(&mut self) -> Result<()> {
        let start = Instant::now();
        while !is_mounted(&self.dir)? {
            if let Some(status) = lock(&self.server).try_wait()? {
                bail!("the server ended before it mounted ({status}): {}", self.log().trim());
            }
            ensure!(start.elapsed() < self.limits.mount, "not mounted after {:?}: {}", self.limits.mount, self.log());
            std::thread::sleep(POLL);
        }
        self.mounted = true;
        // The server is at work when it gives the first reply.
        fs::metadata(&self.dir).map(drop).with_context(|| format!("the mount does not answer: {}", self.log()))
    }

    /// The directory that it is mounted on.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The messages of the server so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        lock(&self.server).id()
    }

    /// `oleo unmount`, which returns when the image is complete; then the server must have ended well.
    pub fn unmount(mut self) -> Result<()> {
        let (tool, args) = self.unmount.split_first().context("no command to unmount")?;
        let unmount =
            || run(&tool.to_string_lossy(), args.iter().map(OsString::as_os_str).chain([self.dir.as_os_str()]));
        let start = Instant::now();
        let mut done = unmount();
        // A process that another test has just started may briefly hold this one's open files.
        while done.as_ref().is_err_and(|e| format!("{e:#}").contains("busy")) && start.elapsed() < BUSY {
            std::thread::sleep(POLL);
            done = unmount();
        }
        done.with_context(|| format!("the server said: {}", self.log()))?;
        ensure!(!is_mounted(&self.dir)?, "{tool:?} {args:?} returned, but it is still mounted");
        self.mounted = false;
        let status = self.wait()?;
        ensure!(status.success(), "the server ended with {status}: {}", self.log());
        Ok(())
    }

    /// Asks the server to end by SIGTERM, as a service manager does.
    pub fn terminate(mut self) -> Result<()> {
        {
            // Under the lock: the process was not reaped yet, so its number is still its own.
            let server = lock(&self.server);
            let pid = Pid::from_raw(server.id().cast_signed()).context("a process has a number")?;
            rustix::process::kill_process(pid, Signal::TERM)?;
        }
        let status = self.wait()?;
        ensure!(status.success(), "the server ended with {status}: {}", self.log());
        ensure!(!is_mounted(&self.dir)?, "the server has ended, but it is still mounted");
        self.mounted = false;
        Ok(())
    }

    fn wait(&self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = lock(&self.server).try_wait()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < self.limits.unmount, "the server does not end: {}", self.log());
            std::thread::sleep(POLL);
        }
    }

    /// SIGKILL. The mount stays, dead, until the guard goes: what still uses it gets errors.
    pub fn kill(&mut self) -> Result<()> {
        let mut server = lock(&self.server);
        server.kill()?;
        server.wait()?;
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        {
            let mut server = lock(&self.server);
            let _ = server.kill();
            let _ = server.wait();
            remove_sockets(server.id());
        }
        if self.mounted
            && let Err(e) = run("umount", ["-l".as_ref(), self.dir.as_os_str()])
            && is_mounted(&self.dir).unwrap_or(true)
        {
            eprintln!("{} stays mounted: {e:#}", self.dir.display());
        }
    }
}

/// A server that was killed leaves its control sockets.
fn remove_sockets(pid: u32) {
    let prefix = format!("{pid}-");
    for entry in fs::read_dir("/run/oleo").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn lock(child: &Mutex<Child>) -> std::sync::MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether something is mounted on this directory. Asks the kernel's list, not the directory: that may hang.
fn is_mounted(dir: &Path) -> Result<bool> {
    let list = fs::read_to_string("/proc/self/mountinfo")?;
    let dir = dir.to_string_lossy();
    Ok(list.lines().any(|line| line.split(' ').nth(4) == Some(&*dir)))
}
