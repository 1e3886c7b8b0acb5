//! Counting what was judged, and telling how a failure is repeated.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use oleo_sim::crash::states::{Cut, Kinds, Maker};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Op, to_text};

use crate::run::{Base, Way, Wrong};

/// Failures told in full; more are only counted.
const TOLD_MAX: usize = 20;

/// What was done so far.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub states: u64,
    pub with_log: u64,
    pub failures: Vec<String>,
    pub time_running: Duration,
    pub time_judging: Duration,
}

impl Tally {
    /// The sum.
    pub fn add(&mut self, other: Tally) {
        self.runs += other.runs;
        self.states += other.states;
        self.with_log += other.with_log;
        self.failures.extend(other.failures);
        self.time_running += other.time_running;
        self.time_judging += other.time_judging;
    }

    /// One line, as the README quotes it.
    pub fn line(&self, what: &str) -> String {
        format!(
            "crash: {what}: {} scripts, {} states ({} with a log), {} failures; {:.1} s running, {:.1} s judging",
            self.runs,
            self.states,
            self.with_log,
            self.failures.len(),
            self.time_running.as_secs_f64(),
            self.time_judging.as_secs_f64()
        )
    }

    /// # Panics
    /// Where something failed, with all that is needed to repeat it.
    pub fn must_be_clean(&self, what: &str) {
        println!("{}", self.line(what));
        let told = self.failures.iter().take(TOLD_MAX).map(|f| format!("\n{f}")).collect::<String>();
        assert!(self.failures.is_empty(), "{what}: {} failures{told}", self.failures.len());
    }
}

/// Runs a script and judges states of it. Where `most` is given, at most so many, chosen by the seed.
pub fn judge_script(base: &Base, script: &[Op], kinds: &Kinds, seed: u64, most: Option<usize>) -> Tally {
    judge_wrong(base, script, kinds, seed, most, None)
}

/// The same, with something wrong: there should be failures.
pub fn judge_wrong(
    base: &Base,
    script: &[Op],
    kinds: &Kinds,
    seed: u64,
    most: Option<usize>,
    wrong: Option<Wrong>,
) -> Tally {
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut rng = Rng::new(seed);
    let begin = Instant::now();
    let run = base.run(script, wrong);
    tally.time_running = begin.elapsed();
    if let Some(broken) = &run.broken {
        tally.failures.push(format!("while running: {broken}\n{}", to_text(script)));
        return tally;
    }
    let mut all = run.cuts(kinds, &mut rng);
    if let Some(most) = most {
        while all.len() > most {
            // Not the last: that is what the last step has promised.
            all.remove(usize::try_from(rng.below(all.len() as u64 - 1)).unwrap_or(0));
        }
    }
    let begin = Instant::now();
    let mut maker = Maker::new(&run.base, &run.events);
    for cut in &all {
        let state = maker.make(cut);
        let way = match rng.below(8) {
            0..2 => Way::Read,
            2 => Way::GoOn,
            _ => Way::Write,
        };
        tally.states += 1;
        tally.with_log += u64::from(crate::run::super_block(&state).is_some_and(|sb| sb.log_root.get() != 0));
        let wrong = run.judge(cut, &state, way);
        if !wrong.is_empty() {
            tally.failures.push(describe(script, seed, cut, way, &run.progress(cut), &wrong));
        }
    }
    tally.time_judging = begin.elapsed();
    tally
}

fn describe(
    script: &[Op],
    seed: u64,
    cut: &Cut,
    way: Way,
    progress: &oleo_sim::crash::states::Progress,
    wrong: &[String],
) -> String {
    let wrong: String = wrong.iter().take(8).map(|w| format!("\n    {w}")).collect();
    format!("seed {seed}, {cut:?}, {progress:?}, opened to {way:?}:{wrong}\n  script:\n{}", to_text(script))
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
