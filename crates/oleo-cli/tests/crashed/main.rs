//! The mount itself is crashed: what is there when the machine stops under a server, its threads, and the processes that use it.
//!
//! Normal path: (1) [`Load::run`] makes a volume on devices that record, has this process serve it as `oleo mount` does, and lets
//! processes work on it ([`worker`]): each in a directory of its own, one step after the other, noted when it begins and when it has
//! returned; meanwhile snapshots are made and deleted and block groups moved by command, and the server's own threads commit, write
//! back and clean; (2) the states that a crash may leave are cut as everywhere (`oleo_sim::crash::states`); (3)
//! [`Load::verify`] opens each, which replays the log, has it checked, and asks the model about each worker's
//! directory.
//!
//! What a worker did is told from what others did by the directory: nobody else changes anything in there. So the rules of
//! `oleo_sim::crash::model` hold for it alone; but which commit came when is not known, so rules 6 and 7 are not asked, and bytes are verified
//! one by one: a write under way at the crash may be there in any part.

mod failing;
mod load;
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../../../oleo-sim/tests/it/ours.rs"]
mod ours;
mod verifying;
mod worker;

use std::time::Instant;

use oleo_sim::budget::budget;
use oleo_sim::crash::record::Fault;
use oleo_sim::crash::tally::{Tally, say};

use crate::load::{Load, Shape, Wrong};
use crate::worker::Deaf;

/// The command that is tested.
const OLEO: &str = env!("CARGO_BIN_EXE_oleo");

/// Runs one load and verifies states of it.
fn one(shape: Shape, seed: u64, steps: usize, states: usize, wrong: Option<Wrong>) -> Tally {
    let begin = Instant::now();
    let load = Load::run(shape, seed, steps, wrong).unwrap_or_else(|e| panic!("{shape:?}, seed {seed}: {e:#}"));
    let running = begin.elapsed();
    let begin = Instant::now();
    let mut tally = load.verify_some(seed, states);
    (tally.time_running, tally.time_verifying) = (running, begin.elapsed());
    tally
}

/// Interleavings do not follow from the seed: nothing is made shorter.
fn must_be_clean(what: &str, tally: &Tally) {
    tally.must_be_clean(what, |_| Tally::default());
}

/// Goal: nothing that any process had synced is lost, and what is found is sound, whatever the server and its threads were at.
/// Method: three processes on a volume of each shape; a share of the states.
#[test]
fn nothing_synced_is_lost() {
    let Some(_) = oleo_sim::oracle::oracle() else { return };
    let mut tally = Tally::default();
    let states = budget().count(400, 2000) as usize;
    for (seed, shape) in (budget().first_seed(1)..).zip(Shape::ALL) {
        tally.add(one(shape, seed, 500, states, None));
    }
    must_be_clean("the mount", &tally);
    assert!(tally.promises > 300, "only {} promises", tally.promises);
    assert!(
        tally.with_log * 10 > tally.states && tally.resumed > 0,
        "logs {}, balances {}",
        tally.with_log,
        tally.resumed
    );
    assert!(tally.commits > 20 && tally.snapshots >= 3 && tally.balances > 0, "{}", tally.line("too little"));
}

/// Goal: verification can fail: devices that do not flush are noticed.
#[test]
fn a_mount_that_does_not_flush_is_noticed() {
    let Some(_) = oleo_sim::oracle::oracle() else { return };
    let tally = one(Shape::Bare, 7, 60, 60, Some(Wrong::Device(Fault::DropFlushes)));
    assert!(!tally.failures.is_empty(), "{}", tally.line("no flush, and no failure"));
}

/// Goal: O_SYNC, O_DSYNC, both with O_DIRECT, and the flags `S` and `D` each do what they promise by themselves: a mount that does nothing
/// for one of them is noticed, and the same script on one that does is kept.
/// Method: scripts in which nothing else promises anything. That one of them does nothing is made by not passing it on, while
/// its promise counts.
#[test]
fn each_promise_by_itself() {
    let Some(_) = oleo_sim::oracle::oracle() else { return };
    const STEPS: usize = 150;
    const STATES: usize = 100;
    let mut kept = Tally::default();
    for (nth, deaf) in (0..).zip(Deaf::ALL) {
        let wrong = one(Shape::Bare, 100 + nth, STEPS, STATES, Some(Wrong::Deaf(deaf)));
        say(&wrong.line(&format!("a mount deaf: {deaf:?}")));
        let noticed = wrong.failures.iter().filter(|f| f.wrong.iter().any(|w| w.contains("worker "))).count();
        assert!(noticed > 0 && wrong.promises > 10, "{}", wrong.line(&format!("{deaf:?} is not missed")));
        kept.add(one(Shape::Bare, 100 + nth, STEPS, STATES, Some(Wrong::Nothing(deaf))));
    }
    must_be_clean("each promise by itself", &kept);
}

/// As many states as are asked for (`OLEO_CRASH_STATES`), from a seed on (`OLEO_CRASH_SEED`).
#[test]
#[ignore = "by command: `cargo xtask crash --mount N`; `cargo xtask nightly`"]
fn longer() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let states = number("OLEO_CRASH_STATES").unwrap_or(20_000);
    let mut seed = number("OLEO_CRASH_SEED").unwrap_or(1000);
    let mut tally = Tally::default();
    while tally.states < states && tally.failures.is_empty() {
        let shape = Shape::ALL[seed as usize % Shape::ALL.len()];
        tally.add(one(shape, seed, 400, 1000, None));
        seed += 1;
        say(&tally.line(&format!("seeds below {seed}")));
    }
    must_be_clean("the mount, longer", &tally);
}
