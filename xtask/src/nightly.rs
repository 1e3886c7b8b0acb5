//! `cargo xtask nightly`: the proofs that take too long for CI, in release: every `#[ignore]`d test, except those that
//! prove nothing by themselves; the count of stores to lines that threads share (`oleo-bench shared-lines`); the library on other systems
//! (`cargo xtask foreign`); and volumes on servers that take minutes to install (`cargo xtask stores`).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{foreign, guest, stores, web};

/// Ignored tests that prove nothing by themselves, by a part of their names: bodies of processes that other tests start,
/// and those that need a file or a checkout of others.
const NOT_PROOFS: [&str; 10] = [
    "concurrent::worker",
    "strangers::in_another_process",
    "worker::body",
    "soak::worker",
    "opened_by_a_process_of_its_own",
    "kernel::what_the_kernel_keeps",
    "longer::one_script_again",
    "scripts::one_script_again",
    "agrees_with_btrfs_check_on_its_images",
    // `stores` runs it.
    "named::over_ceph",
];

/// Runs them one program after the other and fails at the end. The kernel oracle is demanded.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    if !args.is_empty() {
        bail!("usage: cargo xtask nightly");
    }
    guest::prepare(root)?;
    // Tests look at the page.
    web::run(root, &[])?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--release", "--workspace", "--locked", "--no-fail-fast", "--", "--ignored"]);
    for name in NOT_PROOFS {
        command.args(["--skip", name]);
    }
    command.env("OLEO_DEMAND_ORACLE", "1").current_dir(root);
    let passed = command.status().context("cannot run cargo")?.success();
    let mut count = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    count.args(["run", "--release", "--locked", "-p", "oleo-bench", "--", "shared-lines"]).current_dir(root);
    let counted = count.status().context("cannot run cargo")?.success();
    let others = [("foreign", foreign::run(root, &[])), ("stores", stores::run(root, &[]))];
    for (name, result) in &others {
        if let Err(e) = result {
            eprintln!("{name}: {e:#}");
        }
    }
    if !passed || !counted || others.iter().any(|(_, result)| result.is_err()) {
        bail!("a long proof failed");
    }
    Ok(())
}
