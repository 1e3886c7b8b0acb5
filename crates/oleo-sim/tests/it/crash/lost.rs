//! Crashes of volumes with parity, and then the loss of as many disks as the profile allows.

use std::sync::atomic::{AtomicU64, Ordering};

use oleo_device::Device;
use oleo_sim::budget::budget;
use oleo_sim::crash::loss::Loss;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::seen::Seen;
use oleo_sim::crash::states::{Cut, Kinds, Maker};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Mix, Op, Style, generate};

use crate::crash::random::mix;
use crate::crash::run::{Base, Run, Shape, Wrong, look_before_log, open, options};
use crate::crash::tally::{Failure, Tally, in_parallel};
use crate::ours::Ours;

/// The states: whatever is between two flushes.
pub const KINDS: Kinds = Kinds { flushes: true, writes: false, steps: true, some: 2, torn: 2 };
/// States of each script, chosen by the seed; each is looked at for every loss.
const STATES_MAX: usize = 16;

/// Short scripts with many promises, so that there are log commits and commits.
pub fn script(seed: u64) -> Vec<Op> {
    generate(seed, &Mix { steps: 40, promises: 30, file_len_max: 200_000, ..mix(seed) })
}

/// Small files, each of them synced: what is new shares columns with what was promised just before, once it is in the next unit of a row.
pub fn small_files(seed: u64) -> Vec<Op> {
    let one = |n: u64| {
        let path = format!("g{n}");
        let write = Op::Write { path: path.clone(), at: 0, len: 8192, seed: 100 * seed + n, style: Style::Random };
        [Op::Create { path: path.clone(), mode: 0o644 }, write, Op::Fsync { path }]
    };
    (0..40).flat_map(one).collect()
}

/// What opening a state for writing, and closing it, makes of it.
fn reopened(state: &[Contents]) -> anyhow::Result<Vec<Contents>> {
    let disks: Vec<std::sync::Arc<Overlay>> =
        state.iter().map(|contents| std::sync::Arc::new(Overlay::new("disk", contents.clone()))).collect();
    let devices = disks.iter().map(|disk| disk.clone() as std::sync::Arc<dyn Device>).collect();
    oleo::Image::from_devices(devices, &options(true))?.close()?;
    Ok(disks.iter().map(|disk| disk.contents()).collect())
}

/// Everything wrong with a state without any of the sets of disks that may be lost.
fn wrong_without(run: &Run, cut: &Cut, state: &[Contents], losses: &[Loss]) -> Vec<String> {
    let seen = match look_before_log(state) {
        Ok(seen) => seen,
        Err(e) => return vec![format!("with all disks: {e:#}")],
    };
    let mut wrong = Vec::new();
    for loss in losses {
        let found = run.verify_without(cut, state, loss, &seen);
        wrong.extend(found.into_iter().map(|w| format!("without {:?}: {w}", loss.0)));
    }
    wrong
}

/// The same of what a writer made of it.
fn wrong_afterwards(state: &[Contents], losses: &[Loss]) -> anyhow::Result<Vec<String>> {
    let state = reopened(state)?;
    let want = crate::crash::run::look(&open(&state, false)?, None)?;
    let mut wrong = Vec::new();
    for loss in losses {
        let left = oleo::Image::from_devices(
            crate::crash::run::overlays(&loss.leaves(&state), false),
            &options(false).degraded(true),
        );
        let found = left.map_err(anyhow::Error::from).and_then(|image| {
            anyhow::ensure!(crate::crash::run::look(&image, Some(&want))? == want, "other contents");
            let found = crate::crash::run::check_without(&image, loss);
            anyhow::ensure!(found.is_empty(), "check: {found:?}");
            Ok(())
        });
        wrong.extend(found.err().map(|e| format!("opened for writing, then without {:?}: {e:#}", loss.0)));
    }
    Ok(wrong)
}

/// Runs a script, and takes disks away from states of it.
fn verify_losses(base: &Base, shape: Shape, script: &[Op], seed: u64, wrong: Option<Wrong>) -> Tally {
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut rng = Rng::new(seed);
    let run = base.run(script, wrong);
    if let Some(broken) = &run.broken {
        let (wrong, script) = (vec![format!("while running: {broken}")], script.to_vec());
        tally.failures.push(Failure { wrong, state: format!("seed {seed}"), script });
        return tally;
    }
    let mut all = run.cuts(&KINDS, &mut rng);
    while all.len() > STATES_MAX {
        all.remove(rng.below(all.len() as u64) as usize);
    }
    let losses = Loss::all(shape.disks, shape.losses_max());
    let mut maker = Maker::new(&run.base, &run.events);
    for cut in &all {
        let state = maker.make(cut);
        tally.states += 1;
        tally.with_log += u64::from(crate::crash::run::super_block(&state).is_some_and(|sb| sb.log_root.get() != 0));
        let mut wrong = wrong_without(&run, cut, &state, &losses);
        if rng.one_in(4) {
            wrong.extend(
                wrong_afterwards(&state, &losses).unwrap_or_else(|e| vec![format!("opened for writing: {e:#}")]),
            );
        }
        if !wrong.is_empty() {
            let state = format!("seed {seed}, {cut:?}, {:?}", run.progress(cut));
            tally.failures.push(Failure { wrong, state, script: script.to_vec() });
        }
    }
    tally.promises = all.iter().map(|cut| run.promises(cut)).max().unwrap_or(0);
    tally
}

fn scripts(what: &str, shape: Shape, first: u64, count: u64) {
    let base = Base::new(shape, &[]);
    let seeds = budget().seeds(first, count.div_ceil(4), count);
    let tally = in_parallel((seeds.end - seeds.start) as usize, |i| {
        let seed = seeds.start + i as u64;
        verify_losses(&base, shape, &script(seed), seed, None)
    });
    tally.must_be_clean(what, |s| verify_losses(&base, shape, s, 0, None));
    tally.must_have_tested(200, 300);
}

/// Goal: after a crash, and then the loss of a disk, all promises are kept. Method: random scripts on RAID5, data and metadata; states at flushes, and between them
/// with any choice of writes, whole and torn; from each, each disk is taken away. The same once somebody has opened it for writing.
#[test]
fn raid5_of_four() {
    scripts("random scripts on raid5, then without each disk", Shape::RAID5, 50_000, 12);
}

/// Goal: the same of small files that are synced one after the other, of which the kernel loses some (`write_hole`).
#[test]
fn raid5_with_small_files() {
    let base = Base::new(Shape::RAID5, &[]);
    let seeds = budget().seeds(53_000, 2, 4);
    let tally = in_parallel((seeds.end - seeds.start) as usize, |i| {
        let seed = seeds.start + i as u64;
        verify_losses(&base, Shape::RAID5, &small_files(seed), seed, None)
    });
    tally.must_be_clean("small files on raid5, then without each disk", |s| {
        verify_losses(&base, Shape::RAID5, s, 0, None)
    });
    tally.must_have_tested(700, 50);
}

/// Goal: the same for any two disks of RAID6.
#[test]
fn raid6_of_five() {
    scripts("random scripts on raid6, then without each two disks", Shape::RAID6, 51_000, 6);
}

/// Goal: the harness notices what records are for. Method: devices whose flushes do nothing: the columns of a state are torn, and records are not there.
#[test]
fn losses_are_noticed() {
    let base = Base::new(Shape::RAID5, &[]);
    let found = AtomicU64::new(0);
    in_parallel(4, |i| {
        let seed = 52_000 + i as u64;
        let wrong = Wrong::Device(oleo_sim::crash::record::Fault::DropFlushes);
        let tally = verify_losses(&base, Shape::RAID5, &script(seed), seed, Some(wrong));
        // What is wrong with all disks in place says nothing of records.
        let of_losses = |failure: &Failure| failure.wrong.iter().all(|wrong| wrong.starts_with("without"));
        found.fetch_add(tally.failures.iter().filter(|failure| of_losses(failure)).count() as u64, Ordering::Relaxed);
        Tally::default()
    });
    assert!(found.into_inner() > 0);
}

/// Files with every third one to be deleted, on a volume with no room besides: what is written then shares columns with what is left.
fn with_holes(shape: Shape) -> (Base, Vec<Op>) {
    let write = |path: String, seed| Op::Write { path, at: 0, len: 8192, seed, style: Style::Random };
    let create = |path: String| Op::Create { path, mode: 0o644 };
    let files = (0..200u64).flat_map(|n| [create(format!("f{n}")), write(format!("f{n}"), n)]);
    let base = Base::new(shape, &files.chain([Op::Sync]).collect::<Vec<_>>()).filled(0);
    // Eight lie in a unit, so that those of a column are not deleted together.
    let deleted = (0..66).map(|n| Op::Unlink { path: format!("f{}", 3 * n) });
    let written = (0..60u64).flat_map(|n| {
        let path = format!("g{n}");
        [create(path.clone()), write(path.clone(), 1000 + n), Op::Fsync { path }]
    });
    let script = deleted.chain([Op::Sync]).chain(written).chain([Op::Sync]).collect();
    (base, script)
}

/// Rots a third of what is on a disk, but for superblocks and records.
fn rot(contents: &mut Contents, rng: &mut Rng) {
    let mut bytes = vec![0; 4096];
    for at in (1 << 20..crate::crash::run::DISK_LEN).step_by(4096).filter(|at| *at != 64 << 20) {
        contents.read(at, &mut bytes);
        if bytes.iter().any(|byte| *byte != 0) && rng.one_in(3) {
            bytes[rng.below(4096) as usize] ^= 1 << rng.below(8);
            contents.write(at, &bytes);
        }
    }
}

/// What is to be seen after a script, and what was counted.
fn after(contents: &[Contents], script: &[Op]) -> anyhow::Result<(Seen, oleo::control::RowCounts, u64)> {
    let disks: Vec<std::sync::Arc<Overlay>> =
        contents.iter().map(|contents| std::sync::Arc::new(Overlay::new("disk", contents.clone()))).collect();
    let devices = disks.iter().map(|disk| disk.clone() as std::sync::Arc<dyn Device>).collect();
    let mut ours = Ours::around(oleo::Image::from_devices(devices, &options(true))?);
    for op in script {
        ours.try_apply(op)?;
    }
    let stats = ours.image().volume().row_stats().into();
    ours.close()?;
    let state: Vec<Contents> = disks.iter().map(|disk| disk.contents()).collect();
    let image = open(&state, false)?;
    let seen = crate::crash::run::look(&image, None)?;
    let errors = image.volume().error_counters().iter().map(|(_, errors)| errors.corruption).sum();
    Ok((seen, stats, errors))
}

/// Goal: what rotted is not made the truth by what is written beside it: the engine knows what it should be, heals it, and counts it. Method: a third of all sectors
/// of as many disks as may be lost rot; then small files are written into the holes of others; all is as without the rot, and the counters of the devices are on disk.
#[test]
fn rot_beside_what_is_written() {
    for (shape, disks) in [(Shape::RAID5, 1), (Shape::RAID6, 2)] {
        let (base, script) = with_holes(shape);
        let (want, stats, errors) = after(&base.contents, &script).unwrap();
        assert_eq!((stats.misfits, errors), (0, 0), "{stats:?}");
        assert!(stats.recorded > 0, "nothing shares columns: {stats:?}");
        for first in 0..shape.disks {
            let mut rng = Rng::new(first as u64);
            let mut rotten = base.contents.clone();
            for disk in 0..disks {
                rot(&mut rotten[(first + disk) % shape.disks], &mut rng);
            }
            let (found, stats, errors) = after(&rotten, &script).unwrap_or_else(|e| panic!("disk {first}: {e:#}"));
            assert!(found == want, "{:?}, disk {first}: other contents", shape.metadata);
            assert!(stats.healed > 0 && stats.lost == 0 && errors >= stats.healed, "disk {first}: {stats:?}, {errors}");
        }
    }
}
