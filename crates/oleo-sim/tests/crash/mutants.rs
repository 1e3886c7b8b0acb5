//! Proof that the harness can fail: runs with something wrong, of which it must complain.

use oleo_sim::crash::ace::setup;
use oleo_sim::crash::record::Fault;
use oleo_sim::crash::states::Kinds;
use oleo_sim::script::{Op, Style};

use crate::run::{Base, Shape, Wrong};
use crate::tally::judge_wrong;

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
    judge_wrong(&base, &script(), &ALL, 1, None, wrong).failures.iter().map(ToString::to_string).collect()
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

/// Goal: each flush matters, and each write but the very last: nothing comes after the second copy of the last superblock.
/// Method: one at a time is left out.
#[test]
fn every_write_and_flush_matters() {
    let base = Base::new(Shape::BARE, &setup());
    let script = script();
    let counts = base.run(&script, None).counts;
    let (mut unnoticed_writes, mut unnoticed_flushes) = (0, 0);
    for nth in 0..counts.writes {
        let wrong = Some(Wrong::Device(Fault::SwallowWrite(nth)));
        unnoticed_writes += u64::from(judge_wrong(&base, &script, &ALL, nth, None, wrong).failures.is_empty());
    }
    for nth in 0..counts.flushes {
        let wrong = Some(Wrong::Device(Fault::DropFlush(nth)));
        unnoticed_flushes += u64::from(judge_wrong(&base, &script, &ALL, nth, None, wrong).failures.is_empty());
    }
    println!(
        "crash: mutants: of {} writes left out {unnoticed_writes} went unnoticed, of {} flushes {unnoticed_flushes}",
        counts.writes, counts.flushes
    );
    assert!(unnoticed_writes <= 1, "{unnoticed_writes} of {} writes went unnoticed", counts.writes);
    assert_eq!(unnoticed_flushes, 0, "of {} flushes", counts.flushes);
}
