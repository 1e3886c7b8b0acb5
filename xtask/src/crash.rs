//! `cargo xtask crash --states N --seed S [--kinds random,three,four]`: more crash states than CI verifies, in release, on all cores.
//! `cargo xtask crash --mount N [--seed S]`: the same of mounts with processes at work.
//! `cargo xtask crash --script FILE`: one script again. The report of a failure names the command.

use std::path::Path;

use anyhow::{Context, Result, bail};

const USAGE: &str =
    "usage: cargo xtask crash --states N [--seed S] [--kinds random,three,four] | --mount N [--seed S] | --script FILE";

/// Calls the tests that do it.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let mut command = crate::cargo(root);
    let has = |name: &str| args.iter().any(|a| a == name);
    let (package, program, test) = match (has("--script"), has("--mount")) {
        (true, _) => ("oleo-sim", "it", "crash::longer::one_script_again"),
        (false, false) => ("oleo-sim", "it", "crash::longer::every_state_keeps_its_promises"),
        (false, true) => ("oleo-cli", "crashed", "longer"),
    };
    command.args(["test", "--release", "--locked", "--package", package, "--test", program]);
    command.args(["--", "--nocapture", "--ignored", test]);
    let mut any = false;
    for pair in args.chunks(2) {
        let [name, value] = pair else { bail!("{USAGE}") };
        let variable = match name.as_str() {
            "--states" | "--mount" => "OLEO_CRASH_STATES",
            "--seed" => "OLEO_CRASH_SEED",
            "--kinds" => "OLEO_CRASH_KINDS",
            "--script" => "OLEO_CRASH_SCRIPT",
            _ => bail!("{USAGE}"),
        };
        any |= matches!(name.as_str(), "--states" | "--mount" | "--script");
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
