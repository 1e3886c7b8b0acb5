//! `cargo xtask soak`: many threads or processes on one volume, for longer than in CI.
//!
//! - `--minutes N [--threads T] [--seed S]`: threads on one open volume, beside a kernel mount that does the same.
//! - `--mix balance`: all block groups move repeatedly meanwhile, and snapshots come and go; `--quota`: with quota on.
//! - `--way classic|io_uring`: processes on a mount instead of threads in the library, always beside a balance. The
//!   second needs io_uring for FUSE switched on by root (`/sys/module/fuse/parameters/enable_uring`).

use std::path::Path;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask soak --minutes N [--threads T] [--seed S] [--mix balance] \
                     [--way library|classic|io_uring] [--quota]";

/// Calls the test that does it, in release.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let mut command = crate::cargo(root);
    let (mut minutes, mut mix, mut way) = (false, false, "library");
    let mut args = args.iter();
    while let Some(name) = args.next() {
        if name == "--quota" {
            command.env("OLEO_SOAK_QUOTA", "1");
            continue;
        }
        let Some(value) = args.next() else { bail!("{USAGE}") };
        let variable = match name.as_str() {
            "--minutes" => "OLEO_SOAK_MINUTES",
            "--threads" => "OLEO_SOAK_THREADS",
            "--seed" => "OLEO_SOAK_SEED",
            "--mix" if value == "balance" => "OLEO_SOAK_MIX",
            "--way" if ["library", "classic", "io_uring"].contains(&value.as_str()) => "OLEO_SOAK_WAY",
            _ => bail!("{USAGE}"),
        };
        minutes |= name == "--minutes";
        mix |= name == "--mix";
        if name == "--way" {
            way = value;
        }
        command.env(variable, value);
    }
    if !minutes || (way != "library" && !mix) {
        bail!("{USAGE}");
    }
    let (package, name) =
        if way == "library" { ("oleo-sim", "proof::soak::longer") } else { ("oleo-cli", "mount::soak::longer") };
    let test = ["test", "--release", "--locked", "--package", package, "--test", "it", "--"];
    command.args(test).args(["--nocapture", "--ignored", name]).current_dir(root);
    command.env("OLEO_DEMAND_ORACLE", "1");
    if !command.status().context("cannot run cargo")?.success() {
        bail!("they do not leave what they should");
    }
    Ok(())
}
