//! Servers as processes, and tools.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use oleo_sim::oracle::Scratch;
use rustix::process::{Pid, Signal};

/// The command.
pub const OLEO: &str = env!("CARGO_BIN_EXE_oleo");

/// How long a server may take to begin or to end.
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// A server on a socket, as a process; killed when the guard goes.
pub struct Process {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    _own: Scratch,
}

impl Process {
    /// Starts a server; `args` is given the place of its socket, which has no name yet.
    pub fn start(program: &str, args: impl FnOnce(&str) -> Vec<String>) -> Process {
        let own = Scratch::new().unwrap();
        let socket = own.path().join("socket");
        Process::start_on(own, socket, program, args)
    }

    /// The same on a socket of this name.
    pub fn start_at(socket: &Path, program: &str, args: impl FnOnce(&str) -> Vec<String>) -> Process {
        Process::start_on(Scratch::new().unwrap(), socket.to_owned(), program, args)
    }

    fn start_on(own: Scratch, socket: PathBuf, program: &str, args: impl FnOnce(&str) -> Vec<String>) -> Process {
        let log = own.path().join("log");
        let out = File::create(&log).unwrap();
        let args = args(socket.to_str().unwrap());
        let child = Command::new(program)
            .args(&args)
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e} (scripts/test installs what tests need)"));
        let mut process = Process { child, socket, log, _own: own };
        let start = Instant::now();
        while UnixStream::connect(&process.socket).is_err() {
            if let Some(status) = process.child.try_wait().unwrap() {
                panic!("{program} {args:?} ended ({status}): {}", process.log());
            }
            assert!(start.elapsed() < LIMIT, "{program} {args:?} does not listen: {}", process.log());
            std::thread::sleep(POLL);
        }
        process
    }

    /// Our server of these images.
    pub fn oleo(images: &[&Path], more: &[&str]) -> Process {
        Process::start(OLEO, |socket| serve_args(socket, images, more))
    }

    /// Our server, on a socket of this name.
    pub fn oleo_at(socket: &Path, images: &[&Path], more: &[&str]) -> Process {
        Process::start_at(socket, OLEO, |socket| serve_args(socket, images, more))
    }

    /// The name of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The first line that it says, which may come after it listens.
    pub fn first_line(&self) -> String {
        let start = Instant::now();
        loop {
            if let Some((line, _)) = self.log().split_once('\n') {
                return line.to_owned();
            }
            assert!(start.elapsed() < LIMIT, "it says nothing");
            std::thread::sleep(POLL);
        }
    }

    /// Asks it to end, and waits.
    pub fn end(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "it does not end: {}", self.log());
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn serve_args(socket: &str, images: &[&Path], more: &[&str]) -> Vec<String> {
    let mut args: Vec<String> = ["serve", "nbd", "--listen"].map(str::to_owned).into();
    args.push(format!("unix:{socket}"));
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    args.extend(images.iter().map(|image| image.to_str().unwrap().to_owned()));
    args
}

/// Runs a tool that must succeed; its standard output.
pub fn tool<S: AsRef<OsStr>>(program: &str, args: &[S]) -> String {
    let (status, out, err) = try_tool(program, args);
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    assert!(status.success(), "{program} {args:?}: {status}: {out}{err}");
    out
}

/// Runs a tool: how it ended, what it said.
pub fn try_tool<S: AsRef<OsStr>>(program: &str, args: &[S]) -> (ExitStatus, String, String) {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e} (scripts/test installs what tests need)"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status, text(&output.stdout), text(&output.stderr))
}

/// A script of nbdsh (Python) on an export; `h` is the connection.
pub fn nbdsh_command(uri: &str, script: &str) -> Command {
    let mut command = Command::new("nbdsh");
    // It takes the first Python there is, and its module goes with the system's.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/bin:/bin:{path}")).args(["--base-allocation", "--uri", uri, "--command", script]);
    command
}

/// Runs such a script, which must succeed.
pub fn nbdsh(uri: &str, script: &str) {
    let out = nbdsh_command(uri, script).output();
    let out = out.unwrap_or_else(|e| panic!("nbdsh: {e} (scripts/test installs what tests need)"));
    assert!(out.status.success(), "nbdsh: {}\n{script}", String::from_utf8_lossy(&out.stderr));
}

/// A file that is made of these parts (offset, length, seed) and holes.
pub fn sparse(path: &Path, len: u64, parts: &[(u64, usize, u64)]) {
    use std::os::unix::fs::FileExt;
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    for (offset, len, seed) in parts {
        file.write_all_at(&oleo_sim::rng::Rng::new(*seed).bytes(*len), *offset).unwrap();
    }
}

/// Whether two files hold the same.
pub fn same(a: &Path, b: &Path) -> bool {
    std::fs::read(a).unwrap() == std::fs::read(b).unwrap()
}
