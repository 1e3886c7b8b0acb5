//! Runs the tests: all programs in one queue (cargo-nextest, `.config/nextest.toml`), then the examples in the documentation.
//!
//! 1. `OLEO_BUDGET` and `OLEO_SEED` are set and printed (`oleo_sim::budget`): in CI the seed follows from the commit, so that each
//!    commit tries other inputs, and the same commit the same. Values that are set already stay.
//! 2. The runner builds and runs the tests; `xtask/test-wrapper` prints stacks of those that time out.
//! 3. The runner's report is read. The closing lines are: the slowest tests, the skipped ones, and for each failed test its name and the
//!    end of its output, all failures together in less than [`CLOSING_LINES`] lines.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{cargo, pass_on, without_package};

/// Which tests run, and how much the seeded ones try.
pub struct Plan {
    /// Of `.config/nextest.toml`.
    profile: &'static str,
    /// Of `oleo_sim::budget`.
    budget: &'static str,
    /// More arguments of the runner.
    args: &'static [&'static str],
    /// Whether the examples in the documentation run.
    examples: bool,
}

/// For each change.
pub const DEFAULT: Plan = Plan { profile: "default", budget: "ci", args: &[], examples: true };
/// Every test but those that take hours.
pub const ALL: Plan = Plan { profile: "all", budget: "full", args: &[], examples: true };
/// Every test, in release.
pub const NIGHTLY: Plan =
    Plan { profile: "nightly", budget: "nightly", args: &["--release", "--run-ignored", "all"], examples: false };

/// Lines that are left for failures at the end of the log.
const CLOSING_LINES: usize = 90;
/// Lines of one failed test's output at most, and at least.
const OUTPUT_LINES: (usize, usize) = (40, 1);
/// Lines from that of a panic on, which come before the end of the output.
const PANIC_LINES: usize = 4;
/// Tests that the closing lines time.
const SLOWEST: usize = 30;

/// The results of a run of the tests.
pub struct Report {
    results: Vec<TestResult>,
    skipped: BTreeSet<String>,
    /// The end of what was printed if an example failed, or nothing could be run.
    tail: VecDeque<String>,
    examples_failed: bool,
    runner_failed: bool,
}

struct TestResult {
    name: String,
    seconds: f64,
    /// The output, if it failed.
    failure: Option<String>,
}

/// Runs the tests of a plan with a seed and prints their results as they come.
pub fn run(root: &Path, plan: &Plan, seed: u64) -> Result<Report> {
    let skipped = std::env::temp_dir().join(format!("oleo-skipped-{}", std::process::id()));
    let junit = root.join("target/nextest").join(plan.profile).join("junit.xml");
    for old in [&junit, &skipped] {
        let _ = std::fs::remove_file(old);
    }
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let budget = var("OLEO_BUDGET").unwrap_or_else(|| plan.budget.to_owned());
    let seed = var("OLEO_SEED").unwrap_or_else(|| seed.to_string());
    // As `oleo_sim::budget` reads them, before everything is compiled.
    ensure!(["ci", "full", "nightly"].contains(&budget.as_str()), "OLEO_BUDGET is ci, full or nightly, not {budget}");
    ensure!(seed.parse::<u64>().is_ok(), "OLEO_SEED is a number, not {seed}");
    println!("seeded proofs: OLEO_BUDGET={budget} OLEO_SEED={seed}");
    let with_env = |mut command: Command| {
        command.env("OLEO_BUDGET", &budget).env("OLEO_SEED", &seed).env("OLEO_SKIPPED", &skipped);
        command
    };
    let begin = Instant::now();
    let (succeeded, mut tail) = pass_on(with_env(runner(root, plan)?))?;
    println!("tests: {:.0} s", begin.elapsed().as_secs_f64());
    let results = std::fs::read_to_string(&junit).map_or(Ok(Vec::new()), |xml| read(&xml))?;
    let mut examples_failed = false;
    // Without results a program did not compile.
    if !results.is_empty() {
        tail.clear();
    }
    if plan.examples && !results.is_empty() {
        let begin = Instant::now();
        let mut command = with_env(cargo(root));
        command.args(["test", "--doc", "--workspace", "--locked", "--quiet", "--no-fail-fast"]);
        let (succeeded, last) = pass_on(command)?;
        if !succeeded {
            (examples_failed, tail) = (true, last);
        }
        println!("examples: {:.0} s", begin.elapsed().as_secs_f64());
    }
    let names = std::fs::read_to_string(&skipped).unwrap_or_default().lines().map(str::to_owned).collect();
    let _ = std::fs::remove_file(&skipped);
    Ok(Report { results, skipped: names, tail, examples_failed, runner_failed: !succeeded })
}

fn runner(root: &Path, plan: &Plan) -> Result<Command> {
    let installed = root.join("target/venv/bin/cargo-nextest");
    let program = if installed.exists() { installed } else { PathBuf::from("cargo-nextest") };
    Command::new(&program).arg("--version").output().context("cargo-nextest is missing: scripts/test installs it")?;
    let mut command = without_package(Command::new(program));
    command.args(["nextest", "run", "--workspace", "--locked", "--profile", plan.profile, "--hide-progress-bar"]);
    command.args(plan.args).current_dir(root);
    // As a list, so that its path may have spaces.
    command.arg("--config").arg(format!("target.{}.runner=[{:?}]", host()?, root.join("xtask/test-wrapper")));
    if std::env::var_os("CI").is_some() || plan.profile == "nightly" {
        command.env("OLEO_DEMAND_ORACLE", "1");
    }
    Ok(command)
}

fn host() -> Result<String> {
    let told = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    Ok(line.to_owned())
}

/// Returns a number below 2^24 that follows from the commit that is checked out; 0 without one.
pub fn seed_of_commit(root: &Path) -> u64 {
    let told = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output().ok();
    let text = told.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.get(..6).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// Reads the runner's report.
fn read(xml: &str) -> Result<Vec<TestResult>> {
    let document = roxmltree::Document::parse(xml).context("the report of the test runner")?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let result = |case: roxmltree::Node| {
        let attribute = |name| case.attribute(name).unwrap_or("");
        let failed = case.children().find(|node| node.has_tag_name("failure") || node.has_tag_name("error"));
        let failure = failed.map(|failed| {
            let outputs =
                case.children().filter(|node| node.has_tag_name("system-out") || node.has_tag_name("system-err"));
            let mut text: String = outputs.filter_map(|node| node.text()).collect();
            if let Some(kind) = failed.attribute("type") {
                text.push_str(&format!("\n({kind})"));
            }
            text
        });
        TestResult {
            name: format!("{} {}", attribute("classname"), attribute("name")),
            seconds: attribute("time").parse().unwrap_or(0.0),
            failure,
        }
    };
    Ok(cases.map(result).collect())
}

impl Report {
    /// Whether a test failed, or the tests could not be run.
    pub fn has_failed(&self) -> bool {
        self.runner_failed || self.examples_failed
    }

    /// Prints the slowest tests, the skipped ones, the failed ones, and the counts.
    pub fn print_closing(&self) {
        let mut by_time: Vec<&TestResult> = self.results.iter().collect();
        by_time.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        println!("== the slowest tests, seconds:");
        by_time.iter().take(SLOWEST).for_each(|test| println!("{:8.1}  {}", test.seconds, test.name));
        for name in &self.skipped {
            println!("test {name} ... skipped: this machine cannot check it");
        }
        let failed: Vec<&TestResult> = self.results.iter().filter(|test| test.failure.is_some()).collect();
        failure_lines(&failed).iter().for_each(|line| println!("{line}"));
        let left = CLOSING_LINES.saturating_sub(failed.len() + self.skipped.len());
        self.tail.iter().skip(self.tail.len().saturating_sub(left)).for_each(|line| println!("    {line}"));
        if self.examples_failed {
            println!("an example in the documentation FAILED");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            (self.results.len() - failed.len()).saturating_sub(self.skipped.len()),
            failed.len(),
            self.skipped.len(),
        );
    }
}

/// Whether a line says nothing of a failure: of the frames of a backtrace, and what each run of one test prints.
fn is_noise(line: &str) -> bool {
    let line = line.trim();
    let is_frame = line.split_once(": ").is_some_and(|(n, _)| n.parse::<u32>().is_ok()) || line.starts_with("at ");
    let said = ["stack backtrace:", "note: Some details", "running 1 test", "failures:", "test result:"];
    line.is_empty()
        || is_frame
        || said.iter().any(|said| line.get(..said.len()).is_some_and(|l| l.eq_ignore_ascii_case(said)))
}

/// Returns the names of failed tests, each with the line of its panic and the end of its output; fewer lines of each if there are many.
fn failure_lines(failed: &[&TestResult]) -> Vec<String> {
    let left = CLOSING_LINES.saturating_sub(failed.len());
    let each = (left / failed.len().max(1)).clamp(OUTPUT_LINES.1, OUTPUT_LINES.0);
    let mut lines = Vec::new();
    for test in failed {
        lines.push(format!("test {} ... FAILED after {:.1} s", test.name, test.seconds));
        let output: Vec<&str> = test.failure.as_deref().unwrap_or("").lines().filter(|line| !is_noise(line)).collect();
        let panic = output.iter().position(|line| line.contains("panicked at") || line.starts_with("Error: "));
        let head = panic.map_or(0..0, |at| at..(at + PANIC_LINES.min(each)).min(output.len()));
        let tail = output.len().saturating_sub(each - head.len()).max(head.end)..output.len();
        let shown = output[head].iter().chain(&output[tail]);
        let shown = shown.map(|line| format!("    {}", line.chars().take(400).collect::<String>()));
        match lines.last_mut().filter(|_| 2 * failed.len() > CLOSING_LINES) {
            // No room for two lines of each.
            Some(name) => name.extend(shown.take(1)),
            None => lines.extend(shown),
        }
    }
    lines
}

#[cfg(test)]
mod unit {
    use super::*;

    const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1"><testsuite name="oleo::it" tests="3">
<testcase name="a::b" classname="oleo::it" time="0.5"/>
<testcase name="a::c" classname="oleo::it" time="61.25"><failure type="test failure with exit code 101"/>
<system-out>running 1 test
</system-out><system-err>thread panicked: 1 &lt; 2
stack backtrace:
   0: first
             at ./first.rs:1:2
   1: second
</system-err></testcase></testsuite></testsuites>"#;

    /// Goal: the report is read: names, times, and the output of failures.
    #[test]
    fn reports_are_read() {
        let results = read(XML).unwrap();
        assert_eq!((results[1].name.as_str(), results[1].seconds), ("oleo::it a::c", 61.25));
        assert!(results[0].failure.is_none());
        let failed: Vec<&TestResult> = results.iter().filter(|test| test.failure.is_some()).collect();
        let lines = failure_lines(&failed);
        assert!(lines[0].contains("a::c ... FAILED") && lines[1].contains("1 < 2"), "{lines:?}");
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    /// Goal: however many tests fail and however much they print, the name of each and some output is in the last lines.
    #[test]
    fn closing_lines_are_few() {
        for count in [1, 2, 10, 45, 80] {
            let output = format!("first\nthread 'x' panicked at y\nwhy\n{}", "line\n".repeat(500));
            let test = |n: usize| TestResult { name: format!("t{n}"), seconds: 1.0, failure: Some(output.clone()) };
            let all: Vec<TestResult> = (0..count).map(test).collect();
            let lines = failure_lines(&all.iter().collect::<Vec<_>>());
            assert!(lines.len() <= 95 && lines.len() >= count, "{count} failures: {} lines", lines.len());
            assert_eq!(lines.iter().filter(|line| line.contains("FAILED")).count(), count);
            assert_eq!(lines.iter().filter(|line| line.contains("panicked at")).count(), count);
        }
    }
}
