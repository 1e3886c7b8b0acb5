//! Running the command, for all of its tests.

#![allow(dead_code, reason = "each test program uses a part")]

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
