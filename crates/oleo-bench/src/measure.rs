//! Timing, peak memory, and printing of figures.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::peer::Peer;

/// How often the peak memory of a child is read; the kernel keeps the maximum, so only growth after the last reading is
/// missed.
const POLL: Duration = Duration::from_millis(4);

/// One measured run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Wall time in seconds.
    pub seconds: f64,
    /// Largest resident size in bytes, 0 if it was not measured.
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
    let (peak, over) = (AtomicU64::new(0), AtomicBool::new(false));
    // The clock stops when the program ends, not when its memory is read next.
    let (status, seconds) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !over.load(Relaxed) {
                if let Ok(text) = std::fs::read_to_string(&status_file) {
                    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
                    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
                    peak.fetch_max(kib.unwrap_or(0) << 10, Relaxed);
                }
                std::thread::park_timeout(POLL);
            }
        });
        let status = child.wait();
        let seconds = start.elapsed().as_secs_f64();
        over.store(true, Relaxed);
        reader.thread().unpark();
        (status, seconds)
    });
    let status = status?;
    if !status.success() {
        let mut why = String::new();
        if let Some(mut e) = child.stderr.take() {
            use std::io::Read;
            e.read_to_string(&mut why)?;
        }
        bail!("{} failed: {}", path.display(), why.trim());
    }
    Ok(Sample { seconds, peak_bytes: peak.into_inner() })
}

/// What kind of program a package is to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// The package's command.
    Command,
    /// An example.
    Example,
}

/// The `oleo` command, built from this tree in release mode.
pub fn oleo() -> Result<PathBuf> {
    built("oleo-cli", "oleo", Built::Command)
}

/// A program built from this tree in release mode, beside this one.
pub fn built(package: &str, name: &str, kind: Built) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let (flag, dir) = if kind == Built::Command { ("--bin", "") } else { ("--example", "examples") };
    let built = Command::new(cargo).args(["build", "--release", "--quiet", "-p", package, flag, name]).status()?;
    if !built.success() {
        bail!("{name} could not be built");
    }
    let me = std::env::current_exe()?;
    let path = me.parent().context("this program has no directory")?.join(dir).join(name);
    if !path.exists() {
        bail!("{} is missing: run with cargo run --release -p oleo-bench", path.display());
    }
    Ok(path)
}

/// The versions of the peers, for the report: figures are beside these and no others.
pub fn versions() -> String {
    let first_line = |path: &str, args: &[&str]| {
        let out = Command::new(path).args(args).output().ok();
        let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        text.lines().next().map_or_else(|| format!("no {path}"), str::to_owned)
    };
    format!("kernel {}, {}", first_line("uname", &["-r"]), first_line("btrfs", &["--version"]))
}

/// Processor time of all threads of this process. Its unit is a tick, 10 ms.
pub fn busy_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the name, which may hold anything, the 12th and 13th fields are user and system time.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() as f64 / 100.0)
}

/// Processor time of the programs that this process ran to their end. Its unit is a tick, 10 ms.
pub fn children_busy_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the name, as above, the 14th and 15th fields are those of children.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let ticks: Vec<u64> = fields.split_whitespace().skip(13).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() as f64 / 100.0)
}

/// A line of this process's status, in bytes.
pub fn memory(line: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let found = status.lines().find_map(|l| l.strip_prefix(line)).context("no such line in /proc/self/status")?;
    Ok(found.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Peaks of memory count from now on.
pub fn reset_peak() {
    // If the kernel does not allow it, peaks are those of the whole run: too high, never too low.
    let _allowed = std::fs::write("/proc/self/clear_refs", "5");
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

/// A figure that several peers have.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name.
    pub name: Cow<'static, str>,
    /// In what.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// How many times better than these we want to be.
    pub aims: &'static [(Peer, &'static str)],
}

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    More,
    /// Times.
    Less,
}

impl Better {
    /// As JSON lines have it.
    pub fn word(self) -> &'static str {
        match self {
            Better::More => "more",
            Better::Less => "less",
        }
    }
}

impl Figure {
    /// A rate with a fixed name.
    pub const fn rate(name: &'static str, unit: &'static str, aims: &'static [(Peer, &'static str)]) -> Figure {
        Figure { name: Cow::Borrowed(name), unit, better: Better::More, aims }
    }

    /// A time with a fixed name.
    pub const fn time(name: &'static str, unit: &'static str, aims: &'static [(Peer, &'static str)]) -> Figure {
        Figure { name: Cow::Borrowed(name), unit, better: Better::Less, aims }
    }
}

/// The results of one peer: the values of each figure, one from each run.
#[derive(Default)]
pub struct Found(BTreeMap<String, Vec<f64>>);

impl Found {
    /// Adds the value of one run.
    pub fn put(&mut self, peer: Peer, name: &str, value: f64) {
        eprintln!("  {} {name}: {value:.2}", peer.name());
        self.0.entry(name.to_owned()).or_default().push(value);
    }

    fn median(&self, name: &str) -> Option<f64> {
        median_of(self.0.get(name)?)
    }
}

/// The median; `None` of nothing.
pub fn median_of(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The value below which that part of them lies; they are sorted by it.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * part) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

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

    /// Prints what is worked on.
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
                "bench": self.bench, "figure": name, "unit": "s", "better": "less", "ours": ours.seconds, "peer": peer, "theirs": theirs.seconds,
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

    /// A cost at two sizes: it should not grow with them by more than `aim`.
    pub fn scaled(&self, name: &str, unit: &str, small: f64, large: f64, aim: f64) {
        let ratio = large / small;
        if self.json {
            let line = serde_json::json!({
                "bench": self.bench, "figure": name, "unit": unit, "small": small, "large": large, "ratio": ratio, "aim": aim,
            });
            println!("{line}");
        } else {
            println!("{name:42} {small:12.2} {unit:3} | {large:12.2} {unit:3} | {ratio:6.2}x (aim: at most {aim}x)");
        }
    }

    /// Runs the peers in turns, so that a slow minute of the machine hits all alike, the first of them ours; then prints
    /// medians and how many times better than each other peer ours is.
    pub fn in_turns(
        &self,
        figures: &[Figure],
        peers: &[Peer],
        runs: usize,
        mut one_run: impl FnMut(Peer, &mut Found) -> Result<()>,
    ) -> Result<()> {
        let mut all: Vec<(Peer, Found)> = peers.iter().map(|p| (*p, Found::default())).collect();
        for _ in 0..runs {
            for (peer, found) in &mut all {
                one_run(*peer, found)?;
            }
        }
        let Some(((_, ours), others)) = all.split_first() else { return Ok(()) };
        for figure in figures {
            let Some(mine) = ours.median(&figure.name) else { continue };
            for (peer, theirs) in others {
                if let Some(theirs) = theirs.median(&figure.name) {
                    self.line(figure, mine, *peer, theirs);
                }
            }
        }
        Ok(())
    }

    /// A figure that has no peer.
    pub fn value(&self, name: &str, unit: &str, value: f64) {
        if self.json {
            println!("{}", serde_json::json!({"bench": self.bench, "figure": name, "unit": unit, "ours": value}));
        } else {
            println!("{name:42} {value:12.2} {unit}");
        }
    }

    fn line(&self, figure: &Figure, ours: f64, peer: Peer, theirs: f64) {
        let aim = figure.aims.iter().find(|a| a.0 == peer).map_or("-", |a| a.1);
        self.compare(&figure.name, figure.unit, figure.better, ours, peer.name(), theirs, aim);
    }

    /// One figure of ours beside a peer's, and how many times better ours is.
    #[expect(clippy::too_many_arguments, reason = "they are the columns of one line")]
    pub fn compare(&self, name: &str, unit: &str, better: Better, ours: f64, peer: &str, theirs: f64, aim: &str) {
        let ratio = if better == Better::Less { theirs / ours } else { ours / theirs };
        if self.json {
            let line = serde_json::json!({
                "bench": self.bench, "figure": name, "unit": unit, "better": better.word(), "ours": ours, "peer": peer,
                "theirs": theirs, "ratio": ratio, "aim": aim,
            });
            println!("{line}");
        } else {
            println!(
                "{name:34} ours {ours:10.2} {unit:7} | {peer:12} {theirs:10.2} {unit:7} | {ratio:6.2}x (aim {aim})"
            );
        }
    }
}
