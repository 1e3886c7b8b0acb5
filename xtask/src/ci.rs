//! The steps of CI, those that fail fastest first. Each step can be run by itself: `cargo xtask ci STEP…`.
//!
//! Without steps the default lane runs: `fmt`, `tidy`, `clippy`, `test`. `--all` runs every step; its `test-all` includes the tests
//! that need a browser, node, pandas, qemu or valgrind, and full samples of the seeded proofs.
//!
//! If `CI` is set the kernel oracle is required: a test that it cannot verify fails. Elsewhere such tests are skipped,
//! and the closing lines name and count them apart from those that passed.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::{pass_on, tests};

struct Step {
    name: &'static str,
    /// Whether the default lane has it.
    default: bool,
    run: Run,
}

/// How a step runs.
enum Run {
    /// By cargo with these arguments and variables.
    Cargo(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// The tests, with this profile of the runner and size of budget.
    Tests(&'static tests::Plan),
}

/// Tests come last: their closing lines are what a reader looks for.
const STEPS: [Step; 10] = [
    Step { name: "fmt", default: true, run: Run::Cargo(&["fmt", "--all", "--check"], &[]) },
    Step {
        name: "tidy",
        default: true,
        run: Run::Cargo(&["run", "--quiet", "--locked", "--package", "xtask", "--", "tidy"], &[]),
    },
    Step {
        name: "clippy",
        default: true,
        run: Run::Cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"], &[]),
    },
    Step {
        name: "doc",
        default: false,
        run: Run::Cargo(
            &["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"],
            &[("RUSTDOCFLAGS", "--deny warnings")],
        ),
    },
    Step {
        name: "package",
        default: false,
        run: Run::Cargo(&["run", "--quiet", "--package", "xtask", "--", "package"], &[]),
    },
    // The libraries and the command must build without their features.
    Step {
        name: "without-features",
        default: false,
        run: Run::Cargo(
            &[
                "clippy",
                "--package=oleo-format",
                "--package=oleo",
                "--package=oleo-cli",
                "--no-default-features",
                "--locked",
                "--",
                "--deny",
                "warnings",
            ],
            &[],
        ),
    },
    Step {
        name: "features-refused",
        default: false,
        run: Run::Cargo(
            &["test", "--package=oleo-format", "--no-default-features", "--test=it", "--locked", "features::"],
            &[],
        ),
    },
    // Tests use the page. It is a little larger than the one that is published, and made in two thirds of the time.
    Step {
        name: "web",
        default: false,
        run: Run::Cargo(
            &["run", "--quiet", "--package", "xtask", "--", "web"],
            &[("CARGO_PROFILE_WASM_LTO", "off"), ("CARGO_PROFILE_WASM_CODEGEN_UNITS", "16")],
        ),
    },
    Step { name: "test", default: true, run: Run::Tests(&tests::DEFAULT) },
    Step { name: "test-all", default: false, run: Run::Tests(&tests::ALL) },
];

/// The names of all steps.
pub fn names() -> Vec<&'static str> {
    STEPS.iter().map(|s| s.name).collect()
}

/// Runs the steps named, the default lane, or all; continues after a failure, and fails at the end.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let all = args.iter().any(|arg| arg == "--all");
    let named: Vec<&str> = args.iter().map(String::as_str).filter(|arg| *arg != "--all").collect();
    if let Some(unknown) = named.iter().find(|name| !names().contains(name)) {
        bail!("no step {unknown}; there are {}, and --all", names().join(", "));
    }
    let wanted = |step: &&Step| match (named.is_empty(), all) {
        (false, _) => named.contains(&step.name),
        // `test-all` includes the tests of `test`.
        (true, true) => step.name != "test",
        (true, false) => step.default,
    };
    let (mut failed, mut closing) = (Vec::new(), None);
    let mut times = Vec::new();
    for step in STEPS.iter().filter(wanted) {
        println!("== {}", step.name);
        let start = Instant::now();
        let tail = match &step.run {
            Run::Cargo(args, env) => cargo(root, args, env)?,
            Run::Tests(plan) => match tests::run(root, plan, tests::seed_of_commit(root)) {
                Ok(report) => {
                    let failed = report.has_failed().then(VecDeque::new);
                    closing = Some(report);
                    failed
                }
                Err(e) => Some(VecDeque::from([format!("{e:#}")])),
            },
        };
        let line =
            format!("== {}: {} in {:.0} s", step.name, if tail.is_none() { "ok" } else { "FAILED" }, seconds(start));
        println!("{line}");
        times.push(line);
        if let Some(tail) = tail {
            failed.push((step.name, tail));
        }
    }
    times.iter().for_each(|line| println!("{line}"));
    for (name, tail) in failed.iter().filter(|(_, tail)| !tail.is_empty()) {
        println!("== the last lines of {name}:");
        tail.iter().for_each(|line| println!("{line}"));
    }
    if let Some(report) = closing {
        report.print_closing();
    }
    if !failed.is_empty() {
        let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
        bail!("failed: {}", names.join(", "));
    }
    Ok(())
}

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

/// Runs cargo and passes its output on. Returns the last lines if it fails.
fn cargo(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Option<VecDeque<String>>> {
    println!("cargo {}", args.join(" "));
    let mut command = crate::cargo(root);
    command.args(args).envs(env.iter().copied());
    let (succeeded, tail) = pass_on(command)?;
    Ok((!succeeded).then_some(tail))
}
