//! House rules that a tool can check, and the commands that run CI and the longer proofs.
//!
//! - `cargo xtask tidy`: the rules; see [`tidy`].
//! - `cargo xtask circles [CRATE]`: draws which files of a crate use each other in a circle, for `dot`; see [`tidy`].
//! - `cargo xtask ci [--all | STEP…]`: the default lane of CI, every step, or the steps named; see [`ci`].
//! - `cargo xtask crash --states N --seed S`: more crash states than CI verifies; see [`crash`].
//! - `cargo xtask foreign [--check]`: the library on Windows and macOS; see [`foreign`].
//! - `cargo xtask guest`: a kernel in a virtual machine verifies network block devices; see [`guest`].
//! - `cargo xtask locking`: writes the tables of `docs/locking.md` from the ranks of the locks; see [`locking`].
//! - `cargo xtask nightly`: every proof that takes too long for CI; see [`nightly`].
//! - `cargo xtask package`: whether the crates can be published; see [`package`].
//! - `cargo xtask remote`: volumes on a simulated object store, for more seeds; see [`remote`].
//! - `cargo xtask soak --minutes N`: many threads on one volume for longer than CI lets them; see [`soak`].
//! - `cargo xtask stores`: volumes on servers that take minutes to install; see [`stores`].
//! - `cargo xtask web`: the explorer without a server, one HTML file; see [`web`].

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

mod ci;
mod crash;
mod foreign;
mod fuzz;
mod guest;
mod locking;
mod nightly;
mod package;
mod remote;
mod soak;
mod stores;
mod tests;
mod tidy;
mod tools;
mod web;

/// Lines of a failed step that are printed again at the end.
const TAIL_LINES: usize = 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(root),
        Some("circles") => tidy::circles(root, &args[1..]),
        Some("ci") => ci::run(root, &args[1..]),
        Some("crash") => crash::run(root, &args[1..]),
        Some("foreign") => foreign::run(root, &args[1..]),
        Some("guest") => guest::run(root, &args[1..]),
        Some("locking") => locking::run(root),
        Some("nightly") => nightly::run(root, &args[1..]),
        Some("package") => package::run(root),
        Some("remote") => remote::run(root, &args[1..]),
        Some("soak") => soak::run(root, &args[1..]),
        Some("stores") => stores::run(root, &args[1..]),
        Some("web") => web::run(root, &args[1..]),
        _ => bail!(
            "usage: cargo xtask tidy | cargo xtask circles [CRATE] | cargo xtask ci [--all|{}] | cargo xtask crash … | cargo xtask foreign [--check] | cargo xtask guest | cargo xtask locking | cargo xtask nightly | cargo xtask package | cargo xtask remote … | cargo xtask soak … | cargo xtask stores … | cargo xtask web",
            ci::names().join("|")
        ),
    }
}

/// Returns a command of the cargo that runs this program, in the workspace.
fn cargo(root: &Path) -> Command {
    let mut command = without_package(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())));
    command.current_dir(root);
    if std::env::var_os("CI").is_some() {
        command.env("OLEO_DEMAND_ORACLE", "1");
    }
    command
}

/// Removes the variables that describe this package: build scripts of other packages that read them would run again when
/// cargo is called by hand after a call from here, and most of the workspace would be compiled again.
fn without_package(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command and passes both of its outputs on as one. Returns whether it succeeded, and its last lines.
fn pass_on(mut command: Command) -> Result<(bool, VecDeque<String>)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
    // It holds the writing ends, which would keep the pipe open.
    drop(command);
    let mut tail = VecDeque::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    Ok((child.wait()?.success(), tail))
}
