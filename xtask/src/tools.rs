//! Programs of others that proofs need: installed if they are missing, and run.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::web::has_target;

/// Runs a command; an exit code other than zero is an error.
pub fn must(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}

/// Installs the packages of programs that are missing. A program is a name in `PATH`, or a path.
pub fn install(programs: &[(&str, &str)]) -> Result<()> {
    let is_there = |name: &str| {
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).exists()))
    };
    let missing: Vec<&str> = programs.iter().filter(|(name, _)| !is_there(name)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("apt-get");
    command.args(["install", "-q", "-y", "--no-install-recommends"]).args(&missing);
    must(command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))
        .with_context(|| format!("missing packages: {}", missing.join(", ")))
}

/// Installs Rust's standard library for a target of `rustup` if it is missing.
pub fn install_target(root: &Path, target: &str) -> Result<()> {
    if has_target(&std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()), target) {
        return Ok(());
    }
    must(Command::new("rustup").args(["target", "add", target]).current_dir(root))
        .with_context(|| format!("nothing here compiles for {target}"))
}
