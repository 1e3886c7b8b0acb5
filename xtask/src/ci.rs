//! The steps of CI, those that fail fastest first. Each step is one command that can be run by hand.
//!
//! If `CI` is set the kernel oracle is required: a test that it cannot verify fails. Elsewhere such tests are skipped,
//! and the closing lines name and count them apart from those that passed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

struct Step {
    name: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

/// Tests come last: their closing lines are what a reader looks for.
const STEPS: [Step; 9] = [
    Step { name: "fmt", args: &["fmt", "--all", "--check"], env: &[] },
    Step { name: "tidy", args: &["run", "--quiet", "--package", "xtask", "--", "tidy"], env: &[] },
    Step {
        name: "clippy",
        args: &["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"],
        env: &[],
    },
    Step {
        name: "doc",
        args: &["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"],
        env: &[("RUSTDOCFLAGS", "--deny warnings")],
    },
    Step { name: "package", args: &["run", "--quiet", "--package", "xtask", "--", "package"], env: &[] },
    // What is left out of the libraries and the command must leave them whole.
    Step {
        name: "without-features",
        args: &[
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
        env: &[],
    },
    Step {
        name: "features-refused",
        args: &["test", "--package=oleo-format", "--no-default-features", "--test=it", "--locked", "features::"],
        env: &[],
    },
    // Tests look at the page. It is a little larger than the one that is given away, and made in two thirds of the time.
    Step {
        name: "web",
        args: &["run", "--quiet", "--package", "xtask", "--", "web"],
        env: &[("CARGO_PROFILE_WASM_LTO", "off"), ("CARGO_PROFILE_WASM_CODEGEN_UNITS", "16")],
    },
    Step { name: "test", args: &["test", "--workspace", "--locked", "--no-fail-fast"], env: &[] },
];

/// The names of all steps.
pub fn names() -> Vec<&'static str> {
    STEPS.iter().map(|s| s.name).collect()
}

/// Runs the steps named, or all; continues after a failure, and fails at the end.
pub fn run(root: &Path, only: &[String]) -> Result<()> {
    if let Some(unknown) = only.iter().find(|o| !names().contains(&o.as_str())) {
        bail!("no step {unknown}; there are {}", names().join(", "));
    }
    let mut failed = Vec::new();
    let skipped = std::env::temp_dir().join(format!("oleo-skipped-{}", std::process::id()));
    let mut tally = Tally::default();
    for step in STEPS.iter().filter(|s| only.is_empty() || only.iter().any(|o| o == s.name)) {
        println!("== {}: cargo {}", step.name, step.args.join(" "));
        let start = Instant::now();
        let ok = run_step(root, step, &skipped, &mut tally)?;
        println!("== {}: {} in {:.0} s", step.name, if ok { "ok" } else { "FAILED" }, start.elapsed().as_secs_f64());
        if !ok {
            failed.push(step.name);
        }
    }
    tally.skipped(&std::fs::read_to_string(&skipped).unwrap_or_default());
    let _ = std::fs::remove_file(&skipped);
    tally.print();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn run_step(root: &Path, step: &Step, skipped: &Path, tally: &mut Tally) -> Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(step.args).envs(step.env.iter().copied()).current_dir(root).stdout(Stdio::piped());
    command.env("OLEO_SKIPPED", skipped);
    if std::env::var_os("CI").is_some() {
        command.env("OLEO_DEMAND_ORACLE", "1");
    }
    let mut child = command.spawn().with_context(|| format!("cannot run cargo {}", step.args.join(" ")))?;
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        println!("{line}");
        tally.note(&line);
    }
    Ok(child.wait()?.success())
}

/// The sum over all test programs, since cargo gives none.
#[derive(Default)]
struct Tally {
    programs: u32,
    passed: u64,
    failed: u64,
    ignored: u64,
    failures: Vec<String>,
    /// Tests that the runner counts as passed and that proved nothing on this machine, each once.
    skipped: BTreeSet<String>,
}

impl Tally {
    fn note(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.programs += 1;
        let count = |word: &str| -> u64 {
            let at = rest.split([';', '.']).map(str::trim).find_map(|part| part.strip_suffix(word));
            at.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
        self.ignored += count("ignored");
    }

    /// Takes in the names that tests left in the file of `OLEO_SKIPPED`, a line each.
    fn skipped(&mut self, names: &str) {
        self.skipped = names.lines().map(str::to_owned).collect();
    }

    fn print(&self) {
        if self.programs == 0 {
            return;
        }
        for name in &self.failures {
            println!("test {name} ... FAILED");
        }
        for name in &self.skipped {
            println!("test {name} ... skipped: this machine cannot check it");
        }
        println!(
            "test result: {}. {} passed; {} failed; {} ignored; {} skipped; in {} test programs",
            if self.failed == 0 { "ok" } else { "FAILED" },
            self.passed.saturating_sub(self.skipped.len() as u64),
            self.failed,
            self.ignored,
            self.skipped.len(),
            self.programs
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the closing line sums up the results of all test programs.
    #[test]
    fn results_are_summed() {
        let mut tally = Tally::default();
        tally.note("test a::b ... FAILED");
        tally.note("test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        tally.note("test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        assert_eq!((tally.programs, tally.passed, tally.failed, tally.ignored), (2, 7, 1, 2));
        assert_eq!(tally.failures, ["a::b"]);
        tally.skipped("c::d\ne\nc::d\n");
        assert_eq!(tally.skipped.len(), 2, "a test that asks twice is one test");
    }
}
