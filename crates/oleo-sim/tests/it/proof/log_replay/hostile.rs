//! Damaged logs: bytes of their blocks changed and the checksums corrected.

use oleo::OpenOptions;
use oleo::inspect::{Inspector, Step};
use oleo_format::TreeId;
use oleo_sim::budget::budget;
use oleo_sim::manifest::Ignore;
use oleo_sim::oracle::{Verdict, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::rot::Rot;

use super::{CASES, PLAIN, SMALL_WITH_HOLES, Shape, commits, copy, crash, has_log, sum, try_manifest};
use crate::ours::{open, open_to_read};

/// Goal: whatever a log contains, opening the volume is an error that leaves it as it was, or ends in a sound volume;
/// reading it changes nothing; nothing panics, loops or grows without end. Method: the kernel's log of all cases;
/// random damage to one of its blocks; open for reading and for writing; `btrfs check` if that worked.
fn lies(shape: Shape, seed: u64, rounds: u64) {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let cases: Vec<_> = CASES.iter().copied().filter(|(name, _)| !commits(name)).collect();
    let base = crash(oracle, &scratch, shape, &cases);
    let rot = Rot::survey(&base).unwrap();
    let inspector = Inspector::open(&base, &OpenOptions::default()).unwrap();
    let mut blocks = Vec::new();
    for tree in inspector.trees().unwrap().iter().filter(|t| t.tree == TreeId::TREE_LOG) {
        inspector
            .walk(tree, |node| {
                blocks.push(node.logical().0);
                Step::Into
            })
            .unwrap();
    }
    drop(inspector);
    let among: Vec<usize> = (0..rot.blocks()).filter(|i| blocks.contains(&rot.address(*i))).collect();
    assert!(among.len() >= cases.len(), "the survey found {} of {} blocks of the log", among.len(), blocks.len());
    let work = scratch.path().join("work.img");
    let mut rng = Rng::new(seed);
    let (mut refused, mut sound, mut unread) = (0, 0, 0);
    for round in 0..rounds {
        let damage = rot.random_of(&mut rng, &among).unwrap();
        let what = format!("{shape:?} seed {seed} round {round} {damage:?}");
        let inflicted = rot.inflict(&damage).unwrap();
        copy(&base, &work);
        drop(inflicted);
        let before = sum(&work);
        let reading = open_to_read(std::slice::from_ref(&work)).map(|image| try_manifest(&image));
        assert_eq!(sum(&work), before, "{what}: opening for reading changed the image");
        match open(std::slice::from_ref(&work), OpenOptions::writing()) {
            Err(e) => {
                refused += 1;
                assert!(reading.is_err(), "{what}: read, but not written: {e:#}");
                assert!(!format!("{e:#}").is_empty());
                assert_eq!(sum(&work), before, "{what}: refused ({e:#}), but changed");
            }
            Ok(image) => {
                sound += 1;
                let have = try_manifest(&image);
                image.close().unwrap();
                let reading = reading.unwrap_or_else(|e| panic!("{what}: written, but not read: {e:#}"));
                match (&reading, &have) {
                    (Ok(reading), Ok(have)) => reading.must_equal(have, &Ignore::default(), &what),
                    // A file may be of any size, and data may not match a checksum that was changed.
                    (Err(_), Err(_)) => unread += 1,
                    _ => panic!("{what}: reading gives {:?}, writing {:?}", reading.err(), have.err()),
                }
                assert!(!has_log(&work), "{what}: the log is still there");
                let verdict = but_for_sums(oracle.check(&[&work]).unwrap().but_for_mkfs_6_2());
                assert!(verdict.is_clean(), "{what}: btrfs check: {verdict}");
            }
        }
    }
    println!("{shape:?}: {rounds} rounds, {refused} refused, {sound} sound, {unread} of them not read");
    // Of ten rounds all may end in the same way by chance.
    let both = refused > rounds / 20 && sound > rounds / 20;
    assert!(both || rounds <= 10, "{refused} refused, {sound} sound of {rounds}");
}

/// A checksum in the log that was changed is a checksum that data does not match: that is found when the data is read, which
/// a replay does not.
fn but_for_sums(mut verdict: Verdict) -> Verdict {
    let sums = |line: &String| {
        line.starts_with("mirror ") && line.contains("expected csum") || line == "ERROR: errors found in csum tree"
    };
    let before = verdict.findings.len();
    verdict.findings.retain(|line| !sums(line));
    if verdict.findings.len() != before {
        verdict.findings.retain(|line| !line.ends_with("error(s) found"));
    }
    verdict
}

#[test]
fn logs_that_lie() {
    lies(PLAIN, budget().first_seed(1), budget().count(10, 40));
}

#[test]
fn logs_that_lie_in_small_nodes() {
    lies(SMALL_WITH_HOLES, budget().first_seed(2), budget().count(10, 40));
}
