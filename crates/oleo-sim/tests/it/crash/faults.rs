//! Devices that fail: the error reaches the caller, the file system refuses changes from then on, and everything
//! promised before is there after reopening on devices that work.

use oleo_fs::FsError;
use oleo_sim::crash::ace::{objects, operations, setup};
use oleo_sim::crash::record::{Event, Fault};
use oleo_sim::crash::states::{Cut, Kinds, Maker, Rest};
use oleo_sim::script::{Op, Style};
use oleo_space::FaultSpec;

use crate::crash::run::{Base, Run, Shape, Way, Wrong};
use crate::crash::tally::{Tally, say, verify_script, verify_wrong};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EUCLEAN: i32 = 117;

/// Operations with promises in between; the last ones change every kind of thing.
fn script() -> Vec<Op> {
    let own = |path: &str| path.to_owned();
    let write = |path: &str, len, seed| Op::Write { path: own(path), at: 0, len, seed, style: Style::Random };
    vec![
        write("A/foo", 20_000, 100),
        Op::Fsync { path: own("A/foo") },
        Op::Create { path: own("B/foo"), mode: 0o644 },
        write("B/foo", 70_000, 101),
        Op::Fsync { path: own("B") },
        Op::Sync,
        Op::Snapshot { from: own("S"), to: own("B/snapshot"), read_only: false },
        write("S/foo", 30_000, 102),
        Op::Fdatasync { path: own("S/foo") },
        Op::Unlink { path: own("A/bar") },
        Op::Sync,
        write("B/foo", 5000, 103),
        Op::Sync,
    ]
}

/// Every kind of operation, with a promise after each.
fn everything() -> Vec<Op> {
    let promises = objects();
    operations().into_iter().zip(promises.iter().cycle()).flat_map(|(op, promise)| [op, promise.clone()]).collect()
}

fn verify_last(run: &Run, what: &str) {
    let mut maker = Maker::new(&run.base, &run.events);
    for rest in [Rest::All, Rest::None, Rest::Torn { seed: 3 }] {
        let cut = Cut { at: run.events.len(), rest };
        let state = maker.make(&cut);
        // What failed in between may be there or not: the run's own moments define what may be found.
        let wrong = run.verify(&cut, &state, Way::GoOn);
        assert!(wrong.is_empty(), "{what}, {rest:?}: {wrong:#?}");
    }
}

/// The first step that failed.
fn first_error(run: &Run) -> Option<(usize, &FsError)> {
    run.results.iter().enumerate().find_map(|(i, r)| Some((i, r.as_ref().err()?)))
}

/// Goal: a write or flush that fails stops everything, and nothing that was promised is lost.
/// Method: each write and each flush of a run fails in its turn.
#[test]
fn writes_and_flushes_fail() {
    let base = Base::new(Shape::BARE, &setup());
    let script = script();
    let counts = base.run(&script, None).counts;
    assert!(counts.writes > 20 && counts.flushes > 10, "{counts:?}");
    let faults = (0..counts.writes).map(Fault::FailWrite).chain((0..counts.flushes).map(Fault::FailFlush));
    for fault in faults {
        let run = base.run(&script, Some(Wrong::Device(fault)));
        let what = format!("{fault:?}");
        assert!(run.struck, "{what} did not happen");
        let (at, error) = first_error(&run).unwrap_or_else(|| panic!("{what}: nobody was told"));
        assert!(error.to_string().contains("a fault that a test asked for"), "{what}: {error}");
        assert!(run.failed.is_some(), "{what}: it goes on after step {at}");
        let changes = |op: &Op| !matches!(op, Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. });
        let later = script.iter().zip(&run.results).skip(at + 1);
        for (op, result) in later.filter(|(op, _)| changes(op)) {
            assert!(result.is_err(), "{what}: {op:?} succeeds after the failure at step {at}");
        }
        assert!(run.history.steps[at..].iter().all(|s| s.promise.is_none()), "{what}: a promise after the failure");
        let asked = run.events.iter().rposition(|e| matches!(e, Event::End(i) if *i == at)).unwrap_or(0);
        let writes = run.events[asked..].iter().filter(|e| matches!(e, Event::Write { .. })).count();
        assert_eq!(writes, 0, "{what}: writes after the failure");
        verify_last(&run, &what);
    }
    say(&format!("crash: faults: {} writes and {} flushes failed one by one", counts.writes, counts.flushes));
}

/// Goal: a read that fails, or returns rot, is an error, or healed; never wrong bytes, and the disk stays whole.
/// Method: each read of a run fails, or rots, in turn. With one copy nothing heals; with two a read of a tree block
/// does.
#[test]
fn reads_fail_and_rot() {
    let mut reported = 0;
    let mut all = 0;
    for shape in [Shape::BARE, Shape::USUAL] {
        let base = Base::new(shape, &setup());
        let script = script();
        let whole = base.run(&script, None);
        for nth in 0..whole.counts.reads {
            for fault in [Fault::FailRead(nth), Fault::RotRead(nth)] {
                let run = base.run(&script, Some(Wrong::Device(fault)));
                let what = format!("{shape:?}, {fault:?}");
                assert!(run.struck, "{what} did not happen");
                all += 1;
                match first_error(&run) {
                    Some(_) => reported += 1,
                    // A read that was not essential may have failed; everything made durable is right all the same.
                    None => assert!(run.failed.is_none(), "{what}: it has stopped, and nobody was told"),
                }
                verify_last(&run, &what);
            }
        }
    }
    say(&format!("crash: faults: {all} reads failed or gave rot one by one, {reported} of them told to the caller"));
    assert!(reported > 0);
}

/// Goal: if a reservation or an allocation of data is refused, each one, once or permanently, the caller gets an error
/// and nothing else happens: everything promised before and after is there. Method: a run counts the requests; each is
/// refused in turn, and the states of each run are verified.
#[test]
fn each_request_for_space_is_refused() {
    let base = Base::new(Shape::BARE, &setup());
    let kinds = Kinds { flushes: true, writes: false, steps: true, some: 0, torn: 1 };
    let script = everything();
    let promises = FaultSpec { promises: true, ..FaultSpec::default() };
    let extents = FaultSpec { extents: true, ..FaultSpec::default() };
    let (mut refused, mut requests, mut tally) = (0, 0, Tally::default());
    for sort in [promises, extents] {
        let asked = base.run(&script, Some(Wrong::NoSpace(sort))).asked;
        assert!(asked > 3, "{sort:?}: only {asked} requests");
        requests += asked;
        for (after, count) in (0..asked).flat_map(|after| [(after, 1), (after, 2), (after, u64::MAX)]) {
            let wrong = Some(Wrong::NoSpace(FaultSpec { after, count, ..sort }));
            let run = base.run(&script, wrong);
            let what = format!("{wrong:?}");
            assert!(run.failed.is_none(), "{what}: a refusal has stopped it: {:?}", run.failed);
            let mut reported = run.results.iter().filter_map(|r| r.as_ref().err());
            assert!(reported.all(|e| ![EIO, EUCLEAN, EROFS].contains(&e.errno())), "{what}: {:?}", run.results);
            refused += usize::from(run.results.iter().any(|r| r.as_ref().is_err_and(|e| e.errno() == ENOSPC)));
            tally.add(verify_wrong(&base, &script, &kinds, after, Some(12), wrong));
        }
    }
    say(&format!(
        "crash: faults: {requests} requests for space refused one by one, {refused} runs of {} told",
        tally.runs
    ));
    assert!(refused > 10, "only {refused}");
    tally.must_be_clean("runs with refusals", |s| verify_script(&base, s, &kinds, 0, None));
    // Fewer than one for each operation: what is reserved ahead serves several.
    tally.must_have_tested(2400, 400);
}

/// Goal: a commit that finds no block for a tree, despite its reservation, stops the file system with the old state
/// whole. Method: each request for tree blocks is refused in turn.
#[test]
fn each_tree_block_is_refused() {
    let base = Base::new(Shape::BARE, &setup());
    let script = everything();
    let sort = FaultSpec { blocks: true, ..FaultSpec::default() };
    let errnos = |run: &Run| -> Vec<_> { run.results.iter().map(|r| r.as_ref().err().map(FsError::errno)).collect() };
    let sound = base.run(&script, Some(Wrong::NoSpace(sort)));
    let asked = sound.asked;
    assert!(asked > 10, "only {asked} requests");
    for after in 0..asked {
        let wrong = Wrong::NoSpace(FaultSpec { after, count: 1, ..sort });
        let run = base.run(&script, Some(wrong));
        let what = format!("{wrong:?}");
        match errnos(&run).iter().zip(&errnos(&sound)).position(|(have, want)| have != want) {
            Some(at) => assert!(run.failed.is_some(), "{what}: step {at} failed, and it goes on"),
            // An fsync that finds no room for the log commits instead, and the commit at the end asks on its own.
            None => assert!(run.failed.is_none(), "{what}: it has stopped, and nobody was told"),
        }
        verify_last(&run, &what);
    }
    say(&format!("crash: faults: {asked} requests for tree blocks refused one by one"));
}

/// Goal: the caller gets ENOSPC on a full disk before anything is half done: everything promised before or after is
/// there. Method: the same operations with ever less space, so that the refusal comes at each place; all states of each
/// run.
#[test]
fn the_disk_is_full() {
    const STEP: u64 = 16 << 10;
    const ROOMS: u64 = 24;
    let base = Base::new(Shape::BARE, &setup());
    let kinds = Kinds { flushes: true, writes: false, steps: true, some: 1, torn: 1 };
    let script = script();
    let (mut refused, mut tally) = (0, Tally::default());
    for room in 0..ROOMS {
        let base = base.filled(room * STEP);
        let run = base.run(&script, None);
        let refusals = run.results.iter().filter(|r| r.as_ref().is_err_and(|e| e.errno() == ENOSPC)).count();
        refused += usize::from(refusals > 0);
        assert!(run.failed.is_none(), "{room} steps of room: a full disk has stopped it: {:?}", run.failed);
        tally.add(verify_script(&base, &script, &kinds, room, None));
    }
    say(&format!("crash: faults: of {} runs on a nearly full disk {refused} were refused something", tally.runs));
    assert!(refused > 3, "only {refused}");
    tally.must_be_clean("runs on a nearly full disk", |s| verify_script(&base, s, &kinds, 0, None));
    tally.must_have_tested(450, 1600);
}
