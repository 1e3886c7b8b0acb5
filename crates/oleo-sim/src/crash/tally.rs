//! Counts what was verified, and reports failures so that they can be repeated.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use crate::script::{Op, shrink, to_text};

/// Sorts of failures of which one is reported in full.
const TOLD_MAX: usize = 12;
/// Runs for making a script shorter.
const TRIES_MAX: usize = 300;
/// The most complaints reported of each failure.
const WRONG_MAX: usize = 8;

/// A state that is not as it should be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The complaints.
    pub wrong: Vec<String>,
    /// The state, and how it was opened.
    pub state: String,
    /// The script, to be repeated with `OLEO_CRASH_SCRIPT`; empty if it cannot be repeated.
    pub script: Vec<Op>,
}

impl Failure {
    /// Failures that look alike: the first complaint without its numbers.
    fn class(&self) -> String {
        let first = self.wrong.first().map_or("", String::as_str);
        let cut = [", allowed", " (", ", at:", ": [", " of Window"];
        let short = cut.iter().fold(first, |s, c| s.split(c).next().unwrap_or(s));
        // Places and names are too many.
        let words: Vec<&str> = short.split(' ').filter(|w| !w.contains(['/', '0', '\\'])).collect();
        words.join(" ").chars().filter(|c| !c.is_ascii_digit()).take(100).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.state)?;
        self.wrong.iter().take(WRONG_MAX).try_for_each(|w| write!(f, "\n    {w}"))?;
        if self.script.is_empty() {
            return Ok(());
        }
        write!(f, "\n  script:\n{}", to_text(&self.script))
    }
}

/// Counts of what was done so far.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Scripts that were run.
    pub runs: u64,
    /// States that a crash may leave, which were verified.
    pub states: u64,
    /// Of these, with a log to be replayed.
    pub with_log: u64,
    /// Promises that were made before the last state of their run.
    pub promises: u64,
    /// Discards that the devices got.
    pub discards: u64,
    /// Changes of length.
    pub lengths: u64,
    /// States in which writes were torn; counted by some tests.
    pub torn: u64,
    /// States with a balance, which was carried on.
    pub resumed: u64,
    /// Of mounts: commits, snapshots and balances while scripts ran.
    pub commits: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Balances.
    pub balances: u64,
    /// The failures.
    pub failures: Vec<Failure>,
    /// What running took, on all threads.
    pub time_running: Duration,
    /// The same for verifying.
    pub time_verifying: Duration,
}

impl Tally {
    /// The sum.
    pub fn add(&mut self, other: Tally) {
        self.runs += other.runs;
        self.states += other.states;
        self.with_log += other.with_log;
        self.promises += other.promises;
        self.discards += other.discards;
        self.lengths += other.lengths;
        self.torn += other.torn;
        self.resumed += other.resumed;
        self.commits += other.commits;
        self.snapshots += other.snapshots;
        self.balances += other.balances;
        self.failures.extend(other.failures);
        self.time_running += other.time_running;
        self.time_verifying += other.time_verifying;
    }

    /// One line, as the README quotes it.
    pub fn line(&self, what: &str) -> String {
        let beside = [
            ("discards", self.discards),
            ("commits", self.commits),
            ("snapshots", self.snapshots),
            ("balances", self.balances),
        ];
        let beside: String = beside.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!(", {n} {what}")).collect();
        format!(
            "crash: {what}: {} scripts, {} promises{beside}, {} states ({} with a log, {} with a balance), {} failures; {:.1} s running, \
             {:.1} s verifying",
            self.runs,
            self.promises,
            self.states,
            self.with_log,
            self.resumed,
            self.failures.len(),
            self.time_running.as_secs_f64(),
            self.time_verifying.as_secs_f64()
        )
    }

    /// # Panics
    /// If fewer promises were tested, or fewer states had a log to be replayed, than this for each hundred scripts: a run
    /// that makes no promise breaks none.
    pub fn must_have_tested(&self, promises: u64, with_log: u64) {
        let least = |of_hundred: u64| of_hundred * self.runs / 100;
        let (promises, with_log) = (least(promises), least(with_log));
        let Tally { runs, promises: made, with_log: logs, .. } = self;
        assert!(*runs > 0 && *made >= promises, "{runs} scripts tested only {made} promises, not {promises}");
        assert!(*logs >= with_log, "only {logs} states of {runs} scripts had a log, not {with_log}");
    }

    /// # Panics
    /// If something failed, with everything needed to repeat it. `again` verifies a script anew, to shorten it.
    pub fn must_be_clean(&self, what: &str, again: impl Fn(&[Op]) -> Tally) {
        say(&self.line(what));
        let mut classes: BTreeMap<String, Vec<&Failure>> = BTreeMap::new();
        for failure in &self.failures {
            classes.entry(failure.class()).or_default().push(failure);
        }
        let mut reported = String::new();
        for (class, alike) in classes.iter().take(TOLD_MAX) {
            let Some(shortest) = alike.iter().min_by_key(|f| f.script.len()) else { continue };
            let fails = |s: &[Op]| again(s).failures.into_iter().find(|f| f.class() == *class);
            if shortest.script.is_empty() {
                reported.push_str(&format!("\n--- {} like: {class}\n{shortest}", alike.len()));
                continue;
            }
            let short = shrink(&shortest.script, TRIES_MAX, |s| fails(s).is_some());
            let failure = fails(&short).unwrap_or_else(|| (*shortest).clone());
            let file = std::env::temp_dir().join(format!("oleo-crash-{:08x}.script", crc32c::crc32c(class.as_bytes())));
            let kept = std::fs::write(&file, to_text(&short));
            let repeat =
                kept.map_or(String::new(), |()| format!("  again: cargo xtask crash --script {}", file.display()));
            reported.push_str(&format!("\n--- {} like: {class}\n{failure}{repeat}", alike.len()));
        }
        assert!(
            self.failures.is_empty(),
            "{what}: {} failures of {} sorts{reported}",
            self.failures.len(),
            classes.len()
        );
    }
}

/// Tells counts. Not println!: the test runner swallows that of tests that pass.
pub fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// Works through all scripts on all cores.
pub fn in_parallel(count: usize, work: impl Fn(usize) -> Tally + Sync) -> Tally {
    let next = Mutex::new(0..count);
    let total = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(i) = next.lock().unwrap().next() else { return };
                    let one = work(i);
                    total.lock().unwrap().add(one);
                }
            });
        }
    });
    total.into_inner().unwrap()
}
