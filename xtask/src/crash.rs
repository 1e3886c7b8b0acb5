//! `cargo xtask crash --states N --seed S [--kinds random,three,four]`: more crash states than CI judges, in release, on all cores.
//! `cargo xtask crash --script FILE`: one script again. What is told of a failure names the command.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask crash --states N [--seed S] [--kinds random,three,four] | --script FILE";

/// Calls the tests that do it.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let test =
        ["test", "--release", "--locked", "--package", "oleo-sim", "--test", "crash", "--", "--nocapture", "--ignored"];
    let script = args.iter().any(|a| a == "--script");
    command.args(test).arg(if script { "longer::repeat" } else { "longer::longer" }).current_dir(root);
    let mut any = false;
    for pair in args.chunks(2) {
        let [name, value] = pair else { bail!("{USAGE}") };
        let variable = match name.as_str() {
            "--states" => "OLEO_CRASH_STATES",
            "--seed" => "OLEO_CRASH_SEED",
            "--kinds" => "OLEO_CRASH_KINDS",
            "--script" => "OLEO_CRASH_SCRIPT",
            _ => bail!("{USAGE}"),
        };
        any |= matches!(name.as_str(), "--states" | "--script");
        let value = if name == "--script" { std::path::absolute(value)?.display().to_string() } else { value.clone() };
        command.env(variable, value);
    }
    if !any {
        bail!("{USAGE}");
    }
    if !command.status().context("cannot run cargo")?.success() {
        bail!("there are states that a crash must not leave");
    }
    Ok(())
}
