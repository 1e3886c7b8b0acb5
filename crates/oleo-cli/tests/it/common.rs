//! Running the command, for all of its tests.

pub mod exercise;
pub mod map;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

/// What a process has held at most so far, KiB.
pub fn peak_kib(child: &std::process::Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What a process may take.
pub struct Bounds {
    pub time: std::time::Duration,
    pub memory_kib: u64,
}

/// Runs a program to its end, what it prints into a file; its status, what it complained of, and what it held at most, KiB.
pub fn bounded(mut command: Command, out: &Path, what: &str, bounds: &Bounds) -> (ExitStatus, String, u64) {
    /// Between two looks at its memory.
    const POLL: std::time::Duration = std::time::Duration::from_millis(2);
    let complaints = out.with_extension("stderr");
    let file = |path: &Path| File::create(path).unwrap();
    command.stdin(Stdio::null()).stdout(file(out)).stderr(file(&complaints));
    let (mut child, begun, mut peak) = (command.spawn().unwrap(), std::time::Instant::now(), 0);
    let status = loop {
        peak = peak.max(peak_kib(&child));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let over = begun.elapsed() > bounds.time || peak > bounds.memory_kib;
        if over {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(!over, "{what}: {command:?}: no end after {:?}, {peak} KiB", begun.elapsed());
        std::thread::sleep(POLL);
    };
    (status, String::from_utf8_lossy(&std::fs::read(&complaints).unwrap()).into_owned(), peak)
}

/// Runs the command in a directory.
pub fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oleo")).current_dir(dir).args(args).output().unwrap()
}

/// The same where it must succeed; its standard output.
pub fn ok(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The same where it must fail with this code; its one line of complaint.
pub fn fails_with(dir: &Path, code: i32, args: &[&str]) -> String {
    let output = run(dir, args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

/// The same as JSON.
pub fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(dir, args)).unwrap()
}

/// Makes a file that is confirmed: its bytes, and its name.
pub fn confirm(dir: &Path, name: &str) -> std::io::Result<()> {
    let mut file = File::create(dir.join(name))?;
    file.write_all(format!("contents of {name}\n").repeat(500).as_bytes())?;
    file.sync_all()?;
    File::open(dir)?.sync_all()
}

/// Files that [`confirm`] made are there, with all that is in them.
pub fn must_hold(dir: &Path, names: &[String]) {
    for name in names {
        let want = format!("contents of {name}\n").repeat(500);
        let have = std::fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name} was confirmed: {e}"));
        assert!(have == want, "{name} was confirmed and holds something else");
    }
}
