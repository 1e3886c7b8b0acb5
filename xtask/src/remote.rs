//! `cargo xtask remote`: volumes on a simulated object store, for more seeds than CI plays.
//!
//! - `--seeds FROM..TO`: these; without it the first million, which takes the better part of an hour.

use std::path::Path;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask remote [--seeds FROM..TO]";
const SEEDS: &str = "0..1000000";

/// Calls the test that plays them, in release.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let seeds = match args {
        [] => SEEDS,
        [name, seeds] if name == "--seeds" => seeds,
        _ => bail!("{USAGE}"),
    };
    let is_range =
        seeds.split_once("..").is_some_and(|(from, to)| from.parse::<u64>().is_ok() && to.parse::<u64>().is_ok());
    if !is_range {
        bail!("{USAGE}");
    }
    let mut command = crate::cargo(root);
    command.args(["test", "--release", "--locked", "--package", "oleo-remote", "--test", "it", "--"]);
    command.args(["--nocapture", "--exact", "sim::seeds"]).env("OLEO_REMOTE_SEEDS", seeds);
    if !command.status().context("cannot run cargo")?.success() {
        bail!("a seed went wrong");
    }
    Ok(())
}
