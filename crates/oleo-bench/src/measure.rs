//! Timing, peak memory, and how a figure is printed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::mounted::Peer;

/// How often the peak memory of a child is looked at; the kernel keeps the maximum, so only growth after the last look is
/// missed.
const POLL: Duration = Duration::from_millis(4);

/// One measured run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Wall time in seconds.
    pub seconds: f64,
    /// Largest resident size in bytes, 0 where it was not measured.
    pub peak_bytes: u64,
}

/// The median by time.
pub fn median(mut samples: Vec<Sample>) -> Sample {
    samples.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    samples[samples.len() / 2]
}

/// Times a closure.
pub fn time(f: impl FnOnce() -> Result<()>) -> Result<Sample> {
    let start = Instant::now();
    f()?;
    Ok(Sample { seconds: start.elapsed().as_secs_f64(), peak_bytes: 0 })
}

/// Runs a program to its end; time and peak memory.
pub fn program<S: AsRef<OsStr>>(path: &Path, args: &[S]) -> Result<Sample> {
    let start = Instant::now();
    let mut child = Command::new(path)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", path.display()))?;
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let status = loop {
        if let Ok(text) = std::fs::read_to_string(&status_file) {
            let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
            let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
            peak = peak.max(kib.unwrap_or(0) << 10);
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(POLL);
    };
    let seconds = start.elapsed().as_secs_f64();
    if !status.success() {
        let mut why = String::new();
        if let Some(mut e) = child.stderr.take() {
            use std::io::Read;
            e.read_to_string(&mut why)?;
        }
        bail!("{} failed: {}", path.display(), why.trim());
    }
    Ok(Sample { seconds, peak_bytes: peak })
}

/// The `oleo` command built from this tree in release mode, beside this program.
pub fn oleo() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).args(["build", "--release", "--quiet", "-p", "oleo-cli"]).status()?;
    if !built.success() {
        bail!("oleo could not be built");
    }
    let me = std::env::current_exe()?;
    let path = me.parent().context("this program has no directory")?.join("oleo");
    if !path.exists() {
        bail!("{} is missing: run with cargo run --release -p oleo-bench", path.display());
    }
    Ok(path)
}

/// Files and bytes below a directory, hard links once by name.
pub fn census(dir: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            files += 1;
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.is_file() {
                bytes += meta.len();
            }
        }
    }
    Ok((files, bytes))
}

/// A figure of several peers: name, unit, whether less is better, the aims beside each other peer.
pub type Figure = (&'static str, &'static str, bool, [&'static str; 2]);

/// Prints figures as they come.
pub struct Report {
    bench: &'static str,
    json: bool,
}

impl Report {
    /// A report of one benchmark.
    pub fn new(bench: &'static str, json: bool) -> Report {
        Report { bench, json }
    }

    /// Says what is worked on.
    pub fn note(&self, text: &str) {
        if self.json {
            println!("{}", serde_json::json!({"bench": self.bench, "note": text}));
        } else {
            println!("# {}: {text}", self.bench);
        }
    }

    /// Times in seconds: less is better; the ratio is how many times faster ours is.
    pub fn seconds(&self, name: &str, ours: Sample, peer: &str, theirs: Sample, aim: &str) {
        let ratio = theirs.seconds / ours.seconds;
        if self.json {
            let line = serde_json::json!({
                "bench": self.bench, "figure": name, "unit": "s", "ours": ours.seconds, "peer": peer, "theirs": theirs.seconds,
                "ratio": ratio, "aim": aim, "ours_peak_bytes": ours.peak_bytes, "theirs_peak_bytes": theirs.peak_bytes,
            });
            println!("{line}");
        } else {
            let mib = |b: u64| if b == 0 { "-".into() } else { format!("{} MiB", b >> 20) };
            println!(
                "{:34} ours {:8.3} s ({}) | {peer} {:8.3} s ({}) | {ratio:6.2}x (aim {aim})",
                name,
                ours.seconds,
                mib(ours.peak_bytes),
                theirs.seconds,
                mib(theirs.peak_bytes),
            );
        }
    }

    /// Rates per second: more is better.
    pub fn rate(&self, name: &str, ours: f64, peer: &str, theirs: f64, aim: &str) {
        let ratio = ours / theirs;
        if self.json {
            let line = serde_json::json!({
                "bench": self.bench, "figure": name, "unit": "1/s", "ours": ours, "peer": peer, "theirs": theirs,
                "ratio": ratio, "aim": aim,
            });
            println!("{line}");
        } else {
            println!("{name:34} ours {ours:12.0} /s | {peer} {theirs:12.0} /s | {ratio:6.2}x (aim {aim})");
        }
    }

    /// Figures of several peers, the first of them ours: medians, and how many times better than each other ours is.
    pub fn peers(&self, figures: &[Figure], all: &[(Peer, BTreeMap<&'static str, Vec<f64>>)]) {
        for &(name, unit, less_is_better, aims) in figures {
            let median = |found: &BTreeMap<&'static str, Vec<f64>>| -> Option<f64> {
                let mut values = found.get(name)?.clone();
                values.sort_by(f64::total_cmp);
                values.get(values.len() / 2).copied()
            };
            let Some(((_, ours), others)) = all.split_first() else { continue };
            let Some(ours) = median(ours) else { continue };
            for ((peer, theirs), aim) in others.iter().zip(aims) {
                let Some(theirs) = median(theirs) else { continue };
                let ratio = if less_is_better { theirs / ours } else { ours / theirs };
                let peer = peer.name();
                if self.json {
                    let line = serde_json::json!({
                        "bench": self.bench, "figure": name, "unit": unit, "ours": ours, "peer": peer, "theirs": theirs,
                        "ratio": ratio, "aim": aim,
                    });
                    println!("{line}");
                } else {
                    println!(
                        "{name:28} ours {ours:10.2} {unit:7} | {peer:12} {theirs:10.2} {unit:7} | {ratio:6.2}x (aim {aim})"
                    );
                }
            }
        }
    }
}
