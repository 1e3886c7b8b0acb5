//! Random scripts on the library and on a kernel mount: every call must end the same way, and everything must look the
//! same afterwards; then the kernel must find our image sound and see in it what we saw.

use std::path::PathBuf;

use oleo::OpenOptions;
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, oracle};
use oleo_sim::script::{
    Compare, Host, Mismatch, Mix, Op, RenameHow, blur_times, from_text, generate, run_both, shrink, to_text,
};

use crate::ours::Ours;

/// Room for a script of a few thousand steps.
const IMAGE_LEN: u64 = 2 << 30;

/// The shape of our side; the kernel's is always plain.
#[derive(Clone, Copy, Debug)]
struct Shape {
    mkfs: &'static [&'static str],
    devices: usize,
}

const PLAIN: Shape = Shape { mkfs: &[], devices: 1 };

/// What scripts compare; if both sides follow the same rules, also the places of data and holes and the sharing.
fn compare() -> Compare {
    Compare {
        detail: Detail { holes: true, sharing: true, ..Detail::default() },
        ignore: Ignore { holes: true, sharing: true, ..Ignore::default() },
        every_syncs: 4,
    }
}

/// Runs a script on both; then hands our image to the oracles.
fn run(oracle: Oracle, script: &[Op], shape: Shape, compare: &Compare) -> Result<usize, Mismatch> {
    let scratch = oracle.scratch().unwrap();
    let theirs = scratch.image("kernel.img", IMAGE_LEN).unwrap();
    oracle.mkfs(&[], &[&theirs]).unwrap();
    let mounted = oracle.mount(&[&theirs], "").unwrap();
    let devices = scratch.images("ours", shape.devices, IMAGE_LEN).unwrap();
    oracle.mkfs(shape.mkfs, &devices).unwrap();
    let mut ours = Ours::open(&devices, OpenOptions::default(), "").unwrap();
    let mut host = Host::new(mounted.path(), 4096);
    let done = run_both(script, &mut host, &mut ours, compare)?;
    let fail = |what: String| Mismatch { step: script.len(), what };
    ours.close().map_err(|e| fail(format!("closing: {e:#}")))?;
    verify(oracle, &devices, &mounted, compare).map_err(fail)?;
    Ok(done)
}

fn verify(
    oracle: Oracle,
    devices: &[PathBuf],
    mounted: &oleo_sim::oracle::Mounted,
    compare: &Compare,
) -> Result<(), String> {
    let say = |e: anyhow::Error| format!("{e:#}");
    let found = oracle.check(devices).map_err(say)?.but_for_mkfs_6_2();
    if !found.is_clean() {
        return Err(format!("btrfs check: {found}"));
    }
    let again = oracle.mount(devices, "").map_err(say)?;
    let mut want = Manifest::of_dir(mounted.path(), compare.detail).map_err(say)?;
    let mut have = Manifest::of_dir(again.path(), compare.detail).map_err(say)?;
    blur_times(&mut want);
    blur_times(&mut have);
    let differences = want.differences(&have, &compare.ignore);
    if !differences.is_empty() {
        return Err(format!("the kernel sees in our image (want | have): {}", differences.join("\n  ")));
    }
    let found = again.scrub().map_err(say)?;
    if !found.is_clean() {
        return Err(format!("scrub: {found}"));
    }
    again.unmount().map_err(say)
}

/// Runs it; on failure shrinks the script, writes it to a file and prints its name.
fn must_agree(seed: u64, mix: &Mix, shape: Shape) {
    let Some(oracle) = oracle() else { return };
    let script = generate(seed, mix);
    let compare = compare();
    let Err(mismatch) = run(oracle, &script, shape, &compare) else { return };
    const TRIES_MAX: usize = 150;
    let end = script.len().min(mismatch.step + 1);
    let fails = |s: &[Op]| std::panic::catch_unwind(|| run(oracle, s, shape, &compare)).map_or(true, |r| r.is_err());
    let short = shrink(&script[..end], TRIES_MAX, fails);
    let path = std::env::temp_dir().join(format!("oleo-script-{seed}.jsonl"));
    std::fs::write(&path, to_text(&short)).unwrap();
    let last = run(oracle, &short, shape, &compare).err();
    panic!(
        "seed {seed}, {shape:?}: {mismatch}\nshrunk from {} to {} steps, in {}: {}\n{}",
        script.len(),
        short.len(),
        path.display(),
        last.map_or_else(|| "but that passes now".into(), |m| m.to_string()),
        if short.len() <= 40 { to_text(&short) } else { String::new() },
    );
}

/// Goal: without subvolumes and clones, as the simplest start.
#[test]
fn files_and_names() {
    let mix = Mix { steps: 1500, subvolumes: false, clones: false, ..Mix::default() };
    must_agree(1, &mix, PLAIN);
    must_agree(2, &mix, Shape { mkfs: &["-n", "4096"], devices: 1 });
}

/// Goal: everything, with commits, reopening and the smallest nodes, so that trees are deep.
#[test]
fn everything_with_small_nodes() {
    for seed in 10..12 {
        must_agree(
            seed,
            &Mix { steps: 2500, reopen: true, ..Mix::default() },
            Shape { mkfs: &["-n", "4096"], devices: 1 },
        );
    }
}

/// Goal: everything in the default shape, and compressed.
#[test]
fn everything_compressed() {
    for seed in 20..22 {
        must_agree(seed, &Mix { steps: 2000, compress: true, reopen: true, ..Mix::default() }, PLAIN);
    }
}

/// Goal: groups of all kinds move in between, on both sides, without visible effects.
#[test]
fn everything_with_balances() {
    let mix = Mix { steps: 600, balance: true, reopen: true, ..Mix::default() };
    must_agree(50, &mix, Shape { mkfs: &["-n", "4096"], devices: 1 });
    must_agree(51, &mix, PLAIN);
}

/// Goal: everything on four devices.
#[test]
fn everything_on_four_devices() {
    let shape = Shape { mkfs: &["-d", "raid10", "-m", "raid1c4", "--csum", "xxhash", "-n", "65536"], devices: 4 };
    must_agree(30, &Mix { steps: 1500, ..Mix::default() }, shape);
}

/// Goal: everything in mixed block groups, without the trees and items that are new.
#[test]
fn everything_the_old_way() {
    must_agree(40, &Mix { steps: 1500, ..Mix::default() }, Shape { mkfs: &["--mixed", "-n", "4096"], devices: 1 });
    must_agree(41, &Mix { steps: 1500, ..Mix::default() }, Shape { mkfs: &["-O", "^no-holes"], devices: 1 });
}

/// Goal: operations that the kernel does not survive (it aborts its transaction, and is read-only from then on) are run
/// on ours alone, which refuses; both continue and agree. Method: the empty directory in place of a subvolume in a
/// snapshot is exchanged with a file, and with another.
#[test]
fn stand_ins_are_not_exchanged() {
    let Some(oracle) = oracle() else { return };
    let own = str::to_owned;
    let subvol = |path| Op::Subvol { path: own(path) };
    let exchange = |from, to| Op::Rename { from: own(from), to: own(to), how: RenameHow::Exchange };
    let create = |path| Op::Create { path: own(path), mode: 0o600 };
    let snapshot = Op::Snapshot { from: own("a"), to: own("c"), read_only: false };
    let script = [
        [subvol("a"), subvol("a/b"), subvol("a/d"), snapshot, create("c/f")].as_slice(),
        &[exchange("c/b", "c/f"), exchange("c/f", "c/b"), exchange("c/b", "c/d")],
        &[create("c/after"), Op::Sync],
    ]
    .concat();
    let done = run(oracle, &script, PLAIN, &compare()).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    assert_eq!(done, 7, "all but the exchanges");
}

/// Longer runs with other seeds: `OLEO_SCRIPT_SEEDS=first:count`, `OLEO_SCRIPT_STEPS`.
#[test]
#[ignore = "takes minutes: `cargo xtask nightly`, or OLEO_SCRIPT_SEEDS=1000:50 and --ignored"]
fn longer_scripts_agree() {
    let seeds = std::env::var("OLEO_SCRIPT_SEEDS").unwrap_or_else(|_| "1000:6".into());
    let (first, count) = seeds.split_once(':').expect("OLEO_SCRIPT_SEEDS is first:count");
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let steps = std::env::var("OLEO_SCRIPT_STEPS").map_or(5000, |s| s.parse().unwrap());
    for seed in first..first + count {
        let mix = Mix { steps, reopen: true, compress: seed % 2 == 1, ..Mix::default() };
        must_agree(seed, &mix, if seed % 3 == 0 { PLAIN } else { Shape { mkfs: &["-n", "4096"], devices: 1 } });
        println!("seed {seed} agrees");
    }
}

/// Runs the script in the file that `OLEO_SCRIPT` names.
#[test]
#[ignore = "by command, it needs a file: OLEO_SCRIPT=FILE"]
fn one_script_again() {
    let path = std::env::var_os("OLEO_SCRIPT").expect("OLEO_SCRIPT=FILE");
    let Some(oracle) = oracle() else { return };
    let script = from_text(&std::fs::read_to_string(path).unwrap()).unwrap();
    match run(oracle, &script, PLAIN, &compare()) {
        Ok(done) => println!("{done} of {} operations succeeded, and all agree", script.len()),
        Err(mismatch) => panic!("{mismatch}"),
    }
}
