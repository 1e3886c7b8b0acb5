//! `cargo xtask nightly fuzz [TARGET… | SHARE/SHARES]`: the fuzz targets of `fuzz/`, one after the other; all of them, those that are named, or one share of all.
//!
//! (1) The lock file of `fuzz/` must be up to date; (2) all wanted targets are built, so that none hides a compile error behind
//! another's hour; (3) each runs for `OLEO_FUZZ_SECONDS` (3600) with bounds for memory and for the time of an input. An input
//! that breaks a bound or panics ends its target, is kept in `fuzz/artifacts/TARGET`, and is printed if it is short. Inputs that
//! reach new code are kept in `fuzz/corpus/TARGET`, where the next run begins.
//!
//! The sanitizers need a nightly toolchain. It and cargo-fuzz are installed if they are missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const TOOLCHAIN: &str = "nightly";
const CARGO_FUZZ: &str = "0.13.2";
/// For how long each target runs, seconds.
const SECONDS: u64 = 3600;
/// How long one input may take, seconds; the sanitizer and a busy machine included.
const INPUT_SECONDS: u64 = 60;
/// How much memory a target may have, MiB: ours is bounded, the sanitizer adds to it.
const MEMORY_MIB: u64 = 2048;
/// The longest input, bytes: a node of 64 KiB and its parameters.
const INPUT_LEN_MAX: u64 = 70_000;
/// Inputs up to this length are printed, bytes.
const PRINTED_MAX: usize = 2048;

/// Builds and runs the wanted targets.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let seconds = match std::env::var("OLEO_FUZZ_SECONDS") {
        Ok(text) => text.parse().with_context(|| format!("OLEO_FUZZ_SECONDS={text}"))?,
        Err(_) => SECONDS,
    };
    let targets = wanted(&all_targets(root)?, args)?;
    check_lock(root)?;
    install()?;
    for target in &targets {
        must(fuzz(root, "build").arg(target), || format!("{target} does not compile"))?;
    }
    let mut failed = Vec::new();
    for target in &targets {
        println!("== {target}: {seconds} s");
        let (artifacts, corpus) = (root.join("fuzz/artifacts").join(target), root.join("fuzz/corpus").join(target));
        let before = files(&artifacts);
        let mut command = fuzz(root, "run");
        command.arg(target).arg("--").args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={INPUT_SECONDS}"),
            format!("-rss_limit_mb={MEMORY_MIB}"),
            format!("-max_len={INPUT_LEN_MAX}"),
            "-print_final_stats=1".into(),
        ]);
        let passed = command.status().with_context(|| format!("cannot run {command:?}"))?.success();
        println!(
            "== {target}: {}, {} inputs in the corpus",
            if passed { "ok" } else { "FAILED" },
            files(&corpus).len()
        );
        for path in files(&artifacts).difference(&before) {
            show(path)?;
        }
        if !passed {
            failed.push(target.as_str());
        }
    }
    ensure!(failed.is_empty(), "failed: {}; the inputs are in fuzz/artifacts", failed.join(", "));
    Ok(())
}

/// The names of the programs in `fuzz/Cargo.toml`.
fn all_targets(root: &Path) -> Result<Vec<String>> {
    let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml"))?;
    let programs = manifest.split("[[bin]]").skip(1);
    let name =
        |program: &str| Some(program.lines().find_map(|line| line.strip_prefix("name = "))?.trim_matches('"').into());
    programs.map(name).collect::<Option<_>>().context("a program without a name in fuzz/Cargo.toml")
}

fn wanted(all: &[String], args: &[String]) -> Result<Vec<String>> {
    if let [share] = args
        && let Some((nth, of)) = share.split_once('/')
    {
        let (nth, of): (usize, usize) = (nth.parse()?, of.parse()?);
        ensure!(nth >= 1 && nth <= of, "a share is 1/N to N/N");
        return Ok(all.iter().skip(nth - 1).step_by(of).cloned().collect());
    }
    if let Some(odd) = args.iter().find(|arg| !all.contains(arg)) {
        bail!("no fuzz target {odd}; there are {}", all.join(", "));
    }
    Ok(if args.is_empty() { all.to_vec() } else { args.to_vec() })
}

/// Commands of cargo-fuzz build without `--locked`, so this comes first.
fn check_lock(root: &Path) -> Result<()> {
    let mut metadata = crate::cargo(root);
    metadata.args(["metadata", "--locked", "--format-version", "1", "--manifest-path", "fuzz/Cargo.toml"]);
    must(metadata.stdout(Stdio::null()), || {
        "fuzz/Cargo.lock is not up to date: cargo metadata --manifest-path fuzz/Cargo.toml".into()
    })
}

fn install() -> Result<()> {
    let has = |args: &[&str]| {
        let mut command = rustup();
        command.args(["run", TOOLCHAIN]).args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !has(&["rustc", "--version"]) {
        must(rustup().args(["toolchain", "install", TOOLCHAIN, "--profile", "minimal"]), || {
            format!("fuzzing needs rustup and the toolchain {TOOLCHAIN}")
        })?;
    }
    if !has(&["cargo", "fuzz", "--version"]) {
        let install = ["run", TOOLCHAIN, "cargo", "install", "--locked", "--version", CARGO_FUZZ, "cargo-fuzz"];
        must(rustup().args(install), || "cargo-fuzz cannot be installed".into())?;
    }
    Ok(())
}

fn rustup() -> Command {
    crate::without_package(Command::new("rustup"))
}

fn fuzz(root: &Path, command: &str) -> Command {
    let mut out = rustup();
    out.args(["run", TOOLCHAIN, "cargo", "fuzz", command]).current_dir(root.join("fuzz"));
    // The toolchain that runs this program is another.
    out.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTDOC");
    out
}

fn must(command: &mut Command, what: impl FnOnce() -> String) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("{} ({status})", what()),
        Err(error) => bail!("{} ({error})", what()),
    }
}

fn files(dir: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Names an artifact, and prints a short one.
fn show(path: &Path) -> Result<()> {
    let bytes = fs::read(path)?;
    let hex: String = bytes.iter().take(PRINTED_MAX).map(|byte| format!("{byte:02x}")).collect();
    let rest = if bytes.len() > PRINTED_MAX { " …" } else { "" };
    println!("== {}: {} bytes: {hex}{rest}", path.display(), bytes.len());
    Ok(())
}
