//! Proof that the harness can fail: it must complain about runs with a mistake.

use std::sync::atomic::{AtomicU64, Ordering};

use oleo_sim::budget::budget;
use oleo_sim::crash::ace::{operations, setup};
use oleo_sim::crash::order::Careless;
use oleo_sim::crash::record::{Event, Fault};
use oleo_sim::crash::states::Kinds;
use oleo_sim::script::{Keep, Mix, Op, Style, generate};

use crate::crash::random::{KINDS, mix};
use crate::crash::run::{Base, Shape, Wrong};
use crate::crash::tally::{Tally, in_parallel, say, verify_wrong};

const ALL: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 10, torn: 10 };

/// A write, an fsync, a rename, an fsync, a sync, and once more: data and tree blocks in every commit.
fn script() -> Vec<Op> {
    let own = |path: &str| path.to_owned();
    let write = |path: &str, seed| Op::Write { path: own(path), at: 0, len: 10_000, seed, style: Style::Random };
    vec![
        write("A/foo", 100),
        Op::Fsync { path: own("A/foo") },
        Op::Rename { from: own("A/foo"), to: own("B/foo"), how: oleo_sim::script::RenameHow::Plain },
        Op::Fsync { path: own("B/foo") },
        write("A/bar", 101),
        Op::Fdatasync { path: own("A/bar") },
        Op::Sync,
        write("B/foo", 102),
        Op::Unlink { path: own("A/bar") },
        Op::Fsync { path: own("A") },
        Op::Sync,
    ]
}

fn failures(wrong: Option<Wrong>) -> Vec<String> {
    let base = Base::new(Shape::BARE, &setup());
    verify_wrong(&base, &script(), &ALL, 1, None, wrong).failures.iter().map(ToString::to_string).collect()
}

/// Goal: without a mistake there is no complaint.
#[test]
fn nothing_wrong_nothing_said() {
    assert_eq!(failures(None), Vec::<String>::new());
}

/// Goal: an fsync that does nothing, and disks that do not flush, are noticed.
#[test]
fn lies_are_noticed() {
    let lies = failures(Some(Wrong::FsyncLies));
    assert!(lies.iter().any(|f| f.contains("as at no moment")), "{lies:?}");
    assert!(lies.iter().any(|f| f.contains("leads to")), "{lies:?}");
    assert!(!failures(Some(Wrong::Device(Fault::DropFlushes))).is_empty());
}

/// Goal: the promises of flags `S` and `D` on files and directories are kept, and it is noticed if they are not.
/// Method: every operation on a small tree in which everything has the flags; once more with flags that are never set.
/// Each kind of operation that promises something must have been noticed.
#[test]
fn flags_that_do_nothing_are_noticed() {
    let base = Base::new(Shape::BARE, &setup());
    let keep = |path: &str, keep| Op::Keep { path: path.into(), keep };
    let flags = |dirs| {
        let files = ["A/foo", "A/bar", "S/foo"].map(|path| keep(path, Keep::All));
        files.into_iter().chain(["", "A", "B"].map(|path| keep(path, dirs))).chain([Op::Sync])
    };
    let scripts: Vec<Vec<Op>> = operations()
        .into_iter()
        // An operation that promises by itself proves nothing here.
        .filter(|op| !matches!(op, Op::Tmpfile { sync: true, .. }))
        .flat_map(|op| [Keep::All, Keep::Names].map(|dirs| flags(dirs).chain([op.clone()]).collect()))
        .collect();
    let noticed = std::sync::Mutex::new(std::collections::BTreeMap::new());
    let tally = in_parallel(scripts.len(), |i| {
        let script = &scripts[i];
        let promises = base.run(script, None).history.steps.last().is_some_and(|s| s.promise.is_some());
        if promises {
            let without = verify_wrong(&base, script, &KINDS, 1, None, Some(Wrong::KeepLies));
            let name = format!("{:?}", script[script.len() - 1]);
            let name = name.split(' ').next().unwrap_or_default().to_owned();
            *noticed.lock().unwrap().entry(name).or_insert(false) |= !without.failures.is_empty();
        }
        verify_wrong(&base, script, &KINDS, 1, None, None)
    });
    let noticed = noticed.into_inner().unwrap();
    say(&format!("crash: mutants: flags that do nothing: {noticed:?}"));
    assert!(noticed.len() >= 13 && noticed.values().all(|n| *n), "{noticed:?}");
    tally.must_be_clean("files and directories that keep every change", |s| {
        verify_wrong(&base, s, &KINDS, 1, None, None)
    });
}

/// Goal: an fsync that is refused without a fault is a failure, although it breaks no promise, since it makes none.
#[test]
fn refused_promises_are_noticed() {
    let refused = failures(Some(Wrong::FsyncRefuses));
    assert!(refused.iter().all(|f| f.contains("the promise is refused")) && !refused.is_empty(), "{refused:?}");
}

/// Goal: each flush matters, and each write but some of the superblock's second copy: that is only needed while the first is
/// torn.
/// Method: one at a time is left out.
#[test]
fn every_write_and_flush_matters() {
    const SECOND_COPY: u64 = 64 << 20;
    let base = Base::new(Shape::BARE, &setup());
    let script = script();
    let run = base.run(&script, None);
    let places = run.events.iter().filter_map(|e| match e {
        Event::Write { offset, .. } => Some(*offset),
        _ => None,
    });
    let noticed =
        |fault, seed| !verify_wrong(&base, &script, &ALL, seed, None, Some(Wrong::Device(fault))).failures.is_empty();
    let (mut copies, mut others) = (0, Vec::new());
    for (nth, place) in (0..).zip(places) {
        match noticed(Fault::SwallowWrite(nth), nth) {
            true => {}
            false if place == SECOND_COPY => copies += 1,
            false => others.push((nth, place)),
        }
    }
    let flushes: Vec<u64> = (0..run.counts.flushes).filter(|nth| !noticed(Fault::DropFlush(*nth), *nth)).collect();
    say(&format!(
        "crash: mutants: {} writes and {} flushes left out one by one; unnoticed: {copies} of the superblock's second copy, {} others, {} flushes",
        run.counts.writes,
        run.counts.flushes,
        others.len(),
        flushes.len()
    ));
    assert!(others.is_empty(), "writes left out unnoticed: {others:?}");
    assert!(flushes.is_empty(), "flushes left out unnoticed: {flushes:?}");
}

/// Scripts that a mistake in the order must be noticed in, with 100 states of each.
const ORDERED_SCRIPTS: u64 = 3;

fn ordered_base(shape: Shape) -> Base {
    Base { discard: true, ..Base::new(shape, &[]) }
}

/// What random scripts like those that must be clean report of a mistake, from a seed on; with balances, snapshots and quota in between.
fn reordered(base: &Base, careless: Option<Careless>, first: u64) -> Tally {
    let mut sum = Tally::default();
    for seed in first..first + ORDERED_SCRIPTS {
        let mix = Mix { subvolumes: true, balance: true, trim: true, ..mix(seed) };
        let wrong = careless.map(Wrong::Order);
        sum.add(verify_wrong(base, &generate(seed, &mix), &KINDS, seed, Some(100), wrong));
    }
    sum
}

/// Goal: each mistake in the order of writes, flushes and discards is noticed on every shape of volume (two of them in CI).
/// Method: the requests to the devices are reordered. The same scripts in the right order are clean.
#[test]
fn the_order_matters() {
    let shapes = vec![Shape::BARE, Shape::QUOTA, Shape::SIMPLE_QUOTA, Shape::USUAL, Shape::PAIR];
    let shapes = budget().sample(shapes, 2);
    let bases: Vec<Base> = shapes.iter().map(|shape| ordered_base(*shape)).collect();
    let all: Vec<Option<Careless>> = Careless::ALL.into_iter().map(Some).chain([None]).collect();
    let states = std::sync::Mutex::new(Vec::new());
    in_parallel(bases.len() * all.len(), |i| {
        let (base, careless) = (&bases[i / all.len()], all[i % all.len()]);
        let sum = reordered(base, careless, 11_000);
        states.lock().unwrap().push((shapes[i / all.len()], careless, sum.states, sum.failures.len()));
        sum
    });
    let states = states.into_inner().unwrap();
    for careless in &all {
        let of = states.iter().filter(|s| s.1 == *careless);
        let reported: Vec<String> = of.map(|s| format!("{} of {}", s.3, s.2)).collect();
        let what = careless.map_or("the right order".into(), |c| format!("{c:?}"));
        say(&format!("crash: mutants: {what}: wrong states on each shape: {}", reported.join(", ")));
    }
    for (shape, careless, _, failures) in states {
        assert_eq!(failures > 0, careless.is_some(), "{careless:?} on {shape:?}: {failures} failures");
    }
}

/// Goal: how often a sample of this size notices each mistake, whatever its seeds. Method: 20 samples of each on the plainest shape.
#[test]
#[ignore = "minutes"]
fn how_often_the_order_matters() {
    const SAMPLES: u64 = 20;
    const NOTICED_MIN: u64 = SAMPLES / 2;
    let base = ordered_base(Shape::BARE);
    let noticed: Vec<_> = Careless::ALL.into_iter().map(|careless| (careless, AtomicU64::new(0))).collect();
    let first = budget().first_seed(100_000);
    in_parallel(noticed.len() * SAMPLES as usize, |i| {
        let ((careless, count), sample) = (&noticed[i % noticed.len()], (i / noticed.len()) as u64);
        let sum = reordered(&base, Some(*careless), first + sample * ORDERED_SCRIPTS);
        count.fetch_add(u64::from(!sum.failures.is_empty()), Ordering::Relaxed);
        Tally { failures: Vec::new(), ..sum }
    });
    let noticed: Vec<_> = noticed.into_iter().map(|(careless, count)| (careless, count.into_inner())).collect();
    say(&format!("crash: mutants: samples of {SAMPLES} that notice: {noticed:?}"));
    assert!(noticed.iter().all(|(_, count)| *count >= NOTICED_MIN), "{noticed:?}");
}
