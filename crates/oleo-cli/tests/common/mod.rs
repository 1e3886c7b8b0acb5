//! Running the command, for all of its tests.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod exercise;
pub mod map;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

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
