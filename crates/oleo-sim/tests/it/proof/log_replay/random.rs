//! Random operations with an fsync now and then, and power cuts at some of these.

use std::fs::File;
use std::path::Path;

use oleo_sim::budget::budget;
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Mix, Op, Target, generate, to_text};

use super::{IMAGE_LEN, PLAIN, SMALL_WITH_HOLES, Shape, copy, mounted, must_agree};

/// Operations that are committed first.
const COMMITTED: usize = 150;
/// Operations after that.
const LOGGED: usize = 120;
/// One in this many operations is followed by an fsync of its object.
const FSYNC_ONE_IN: u64 = 4;
/// Power cuts per script.
const CUTS: u64 = 4;

/// Syncs a file or directory; anything else has nothing to sync.
fn fsync(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() || meta.is_dir() => File::open(path).unwrap().sync_all().is_ok(),
        _ => false,
    }
}

/// Goal: whatever was done before a power cut, we see what the kernel sees after it. Returns how many of the cuts left
/// a log. Method: a script on a kernel mount; its first part is committed; after some of the later fsyncs the image is
/// copied.
fn cut_at_fsyncs(seed: u64, shape: Shape) -> u32 {
    let Some(oracle) = oracle() else { return u32::MAX };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("kernel.img", IMAGE_LEN).unwrap();
    let mounted = mounted(oracle, &image, shape);
    let mix = Mix {
        steps: COMMITTED + LOGGED,
        subvolumes: false,
        compress: true,
        file_len_max: 200_000,
        names_max: 60,
        ..Mix::default()
    };
    let script = generate(seed, &mix);
    let mut rng = Rng::new(seed);
    let mut host = Host::new(mounted.path(), 4096);
    let (mut fsyncs, mut crashed) = (0, Vec::new());
    for (step, op) in script.iter().enumerate() {
        if step == COMMITTED {
            mounted.sync().unwrap();
        }
        if matches!(op, Op::Sync | Op::Reopen | Op::Fsync { .. }) {
            continue;
        }
        // Some are aimed to fail.
        let _ = host.apply(op);
        if step < COMMITTED || !rng.one_in(FSYNC_ONE_IN) {
            continue;
        }
        let about: Vec<&str> = op.paths();
        let Some(path) = rng.pick(&about) else { continue };
        let mut path = mounted.path().join(path);
        if rng.one_in(3) {
            path.pop();
        }
        if fsync(&path) {
            fsyncs += 1;
            if rng.one_in(5) && (crashed.len() as u64) < CUTS {
                let to = scratch.path().join(format!("crashed-{step}.img"));
                copy(&image, &to);
                crashed.push((step, to));
            }
        }
    }
    assert!(fsyncs > 5, "seed {seed}: {fsyncs} fsyncs");
    mounted.unmount().unwrap();
    let mut logged = 0;
    for (step, crashed) in &crashed {
        let what = format!("{shape:?} seed {seed}, cut after step {step}");
        let agreed = std::panic::catch_unwind(|| must_agree(oracle, crashed, &what));
        match agreed {
            Ok(had_log) => logged += u32::from(had_log),
            Err(cause) => {
                eprintln!("{what}:\n{}", to_text(&script[COMMITTED.min(*step)..=*step]));
                std::panic::resume_unwind(cause);
            }
        }
    }
    logged
}

fn many(seeds: std::ops::Range<u64>, shape: Shape) {
    let count = seeds.end - seeds.start;
    let logged: u32 = seeds.map(|seed| cut_at_fsyncs(seed, shape)).fold(0, u32::saturating_add);
    assert!(u64::from(logged) >= count, "only {logged} logs in {count} scripts");
}

/// Returns the seeds of `OLEO_LOG_SEEDS=FROM..TO`, or those of the budget.
fn seeds(named: u64, full: u64) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("OLEO_LOG_SEEDS") else { return budget().seeds(named, 2, full) };
    let parsed = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("OLEO_LOG_SEEDS={text} is not FROM..TO"))
}

#[test]
fn random_scripts() {
    many(seeds(1, 5), PLAIN);
}

#[test]
fn random_scripts_in_small_nodes() {
    many(seeds(100, 4), SMALL_WITH_HOLES);
}
