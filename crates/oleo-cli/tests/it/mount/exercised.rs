//! One file, changed in every way that there is ([`Exercise`]), on mounts with the kernel's write-back cache.

use std::fs;
use std::time::{Duration, Instant};

use oleo_sim::oracle::oracle;

use crate::common::exercise::Exercise;
use crate::mount::place::Kind;

const STEPS: u64 = 1500;

/// Steps with a seed until it is `enough`; afterwards the file is read once more by the kernel's btrfs.
fn exercise(seed: u64, options: &str, enough: impl Fn(u64) -> bool) {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.path().join("image");
    Kind::Oleo.mkfs(oracle, &image).unwrap();
    let mount = Kind::WriteBack.mount(oracle, &image, options).unwrap();
    let mut exercise = Exercise::new(mount.path(), seed);
    exercise.done.push(format!("seed {seed}, {options}"));
    let mut steps = 0;
    while !enough(steps) {
        exercise.step();
        steps += 1;
    }
    exercise.snapshot();
    exercise.must_hold(&exercise.path());
    let (model, snapshots) = exercise.end();
    assert!(snapshots > 3, "{snapshots} snapshots");
    mount.unmount().unwrap();
    Kind::Oleo.must_check_clean(oracle, &image, "afterwards");
    let mounted = oracle.mount(&[&image], "ro").unwrap();
    assert!(fs::read(mounted.path().join("v/f")).unwrap() == model, "seed {seed}: what is on disk differs");
    mounted.unmount().unwrap();
}

/// Goal: a file holds what was written to it, and so do snapshots, however it was changed. Method: random changes by write(2), a mapping, cutting,
/// holes, preallocation, and copies, compared with a vector; over io_uring, where it is offered, and `/dev/fuse`; and once with compression.
#[test]
fn a_file_in_every_way() {
    for (seed, options) in [(1, ""), (2, "io_uring=off"), (3, "compress=zstd")] {
        exercise(seed, options, |steps| steps == STEPS);
    }
}

/// The same for `OLEO_FSX_SECONDS` (60) from seed `OLEO_FSX_SEED` on.
#[test]
#[ignore = "by command: `cargo test --release -p oleo-cli --test it -- --ignored mount::exercised::longer`; `cargo xtask nightly`"]
fn longer() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let begin = Instant::now();
    let end = Duration::from_secs(number("OLEO_FSX_SECONDS").unwrap_or(60));
    let mut seed = number("OLEO_FSX_SEED").unwrap_or(1000);
    while begin.elapsed() < end {
        exercise(seed, ["", "io_uring=off", "compress=zstd"][seed as usize % 3], |steps| steps == 4 * STEPS);
        seed += 1;
    }
}
