//! `cargo xtask soak --minutes N [--threads T] [--seed S]`: the soak for longer than CI runs it, in release.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask soak --minutes N [--threads T] [--seed S]";

/// Calls the test that does it.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let test =
        ["test", "--release", "--locked", "--package", "oleo-sim", "--test", "proof", "--", "--nocapture", "--ignored"];
    command.args(test).arg("soak::longer").current_dir(root);
    let mut minutes = false;
    for pair in args.chunks(2) {
        let [name, value] = pair else { bail!("{USAGE}") };
        let variable = match name.as_str() {
            "--minutes" => "OLEO_SOAK_MINUTES",
            "--threads" => "OLEO_SOAK_THREADS",
            "--seed" => "OLEO_SOAK_SEED",
            _ => bail!("{USAGE}"),
        };
        minutes |= name == "--minutes";
        command.env(variable, value);
    }
    if !minutes {
        bail!("{USAGE}");
    }
    if !command.status().context("cannot run cargo")?.success() {
        bail!("threads do not leave what they should");
    }
    Ok(())
}
