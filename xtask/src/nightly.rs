//! `cargo xtask nightly [PART…]`: the proofs that take too long for CI. Without a part, all of them:
//!
//! - `tests`: every test in release, ignored ones included, with the budget `nightly` and seeds of the day (`oleo_sim::budget`);
//! - `shared-lines`: the count of stores to lines that threads share (`oleo-bench shared-lines`);
//! - `foreign`: the library on other systems (`cargo xtask foreign`);
//! - `stores`: volumes on servers that take minutes to install (`cargo xtask stores`);
//! - `fuzz`: every fuzz target for an hour; by itself it takes names of targets, or a share of them: `cargo xtask nightly fuzz 1/5` (see [`fuzz`]).

use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Result, bail};

use crate::{foreign, fuzz, guest, stores, tests, web};

type Part = (&'static str, fn(&Path) -> Result<()>);

const PARTS: [Part; 5] = [
    ("tests", every_test),
    ("shared-lines", shared_lines),
    ("foreign", |root| foreign::run(root, &[])),
    ("stores", |root| stores::run(root, &[])),
    ("fuzz", |root| fuzz::run(root, &[])),
];

/// Runs parts one after the other and fails at the end. The kernel oracle is demanded.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let unknown = args.iter().find(|arg| PARTS.iter().all(|(name, _)| name != arg));
    if let [first, which @ ..] = args
        && first == "fuzz"
        && unknown.is_some()
    {
        return fuzz::run(root, which);
    }
    if let Some(unknown) = unknown {
        bail!("no part {unknown}; there are {}", PARTS.map(|(name, _)| name).join(", "));
    }
    let mut failed = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, _)| args.is_empty() || args.iter().any(|arg| arg == name)) {
        println!("== {name}");
        let begin = Instant::now();
        let result = part(root);
        let end = result.as_ref().map_or_else(|e| format!("FAILED: {e:#}"), |()| "ok".into());
        println!("== {name}: {end} in {:.0} s", begin.elapsed().as_secs_f64());
        if result.is_err() {
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn every_test(root: &Path) -> Result<()> {
    // Tests use both; without them, those fail.
    let prepared = guest::prepare(root).and(web::run(root, &[]));
    let days = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs() / (24 * 60 * 60);
    let report = tests::run(root, &tests::NIGHTLY, days)?;
    report.print_closing();
    if report.has_failed() {
        bail!("tests failed");
    }
    prepared
}

fn shared_lines(root: &Path) -> Result<()> {
    let mut count = crate::cargo(root);
    count.args(["run", "--release", "--locked", "-p", "oleo-bench", "--", "shared-lines"]);
    if !count.status()?.success() {
        bail!("an operation stores to shared lines more often than it may");
    }
    Ok(())
}
