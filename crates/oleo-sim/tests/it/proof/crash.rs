//! Power cuts: whenever one happens and whichever of the unflushed writes survive, a committed state is found
//! afterwards, whole, and sound for `btrfs check`.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo::{Image, OpenOptions};
use oleo_device::{Device, MemDevice};
use oleo_sim::disk::{Power, SimDisk, load, store};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Mix, Op, generate};

use crate::ours::{OleoTree, Ours};

const IMAGE_LEN: u64 = 512 << 20;

/// The contents of the file system at each commit, by generation.
type Committed = BTreeMap<u64, Manifest>;

fn options() -> OpenOptions {
    OpenOptions::default().access(oleo::Access::Write)
}

fn as_devices(disks: &[Arc<SimDisk>]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
}

fn manifest(image: &Image) -> Manifest {
    Manifest::of(&OleoTree::new(image).unwrap(), Detail::default()).unwrap()
}

/// Runs a script until the power fails (or it ends), noting what each commit held.
fn run_until_cut(disks: &[Arc<SimDisk>], power: &Power, cut_after: u32, script: &[Op]) -> Committed {
    let image = Image::from_devices(as_devices(disks), &options()).unwrap();
    let mut committed = Committed::new();
    committed.insert(image.volume().super_block().generation().0, manifest(&image));
    let mut ours = Ours::around(image);
    power.cut_after(cut_after);
    for op in script {
        if *op == Op::Sync {
            // The contents are recorded before the commit, which may be cut, and be durable all the same.
            if power.is_cut() {
                break;
            }
            let Ok(before) = ours.try_manifest() else { break };
            let next = ours.image().fs().engine().generation().0;
            committed.insert(next, before);
            if ours.try_apply(op).is_err() {
                break;
            }
        } else if ours.try_apply(op).is_err() && power.is_cut() {
            break;
        }
    }
    committed
}

/// Goal: that of the module. Method: one script, cut at places spread over all its writes; after each, several crashes
/// with different parts kept.
fn cut_everywhere(oracle: Oracle, scratch: &Scratch, mkfs: &[&str], count: usize, seed: u64) {
    const CUTS: u64 = 40;
    const CRASHES: u64 = 3;
    let files = scratch.images("crash", count, IMAGE_LEN).unwrap();
    oracle.mkfs(mkfs, &files).unwrap();
    let fresh: Vec<MemDevice> = files.iter().map(|f| load(f).unwrap()).collect();
    let script = generate(seed, &Mix { steps: 400, file_len_max: 300_000, ..Mix::default() });

    let new_disks = |power: &Power| -> Vec<Arc<SimDisk>> {
        fresh.iter().enumerate().map(|(i, d)| Arc::new(SimDisk::new(&format!("disk {i}"), d.copy(), power))).collect()
    };
    // How many writes and flushes there are in all.
    let power = Power::steady();
    let disks = new_disks(&power);
    run_until_cut(&disks, &power, i32::MAX.cast_unsigned(), &script);
    let total: u64 = disks.iter().map(|d| d.counts().0 + d.counts().1).sum();
    assert!(total > 50, "only {total} writes and flushes");

    let mut rng = Rng::new(seed);
    let mut later_than_first = 0;
    for cut in 0..CUTS {
        let power = Power::steady();
        let disks = new_disks(&power);
        let after = u32::try_from((total * cut / CUTS) + rng.below(total / CUTS + 1)).unwrap();
        let committed = run_until_cut(&disks, &power, after, &script);
        for crash in 0..CRASHES {
            let what = format!("seed {seed}, cut after {after} of {total}, crash {crash}");
            let found: Vec<MemDevice> = disks.iter().map(|d| d.after_crash(&mut rng)).collect();
            if crash == 0 {
                for (device, file) in found.iter().zip(&files) {
                    store(device, file).unwrap();
                }
                let verdict = oracle.check(&files).unwrap().but_for_mkfs_6_2();
                assert!(verdict.is_clean(), "{what}: btrfs check: {verdict}");
            }
            let found: Vec<Arc<dyn Device>> = found.into_iter().map(|d| Arc::new(d) as Arc<dyn Device>).collect();
            let image = Image::from_devices(found, &options()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let generation = image.volume().super_block().generation().0;
            let have = manifest(&image);
            // The engine may commit by itself in between; then it is only known that the state must be whole.
            if let Some(want) = committed.get(&generation) {
                want.must_equal(&have, &Ignore::default(), &what);
                later_than_first += u32::from(committed.keys().next() != Some(&generation));
            }
            image.write("after the crash", b"life goes on").unwrap_or_else(|e| panic!("{what}: {e}"));
            image.close().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
    assert!(later_than_first > 20, "too few crashes came after a commit that was noted: {later_than_first}");
}

#[test]
fn one_disk() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    cut_everywhere(oracle, &scratch, &["-n", "4096"], 1, 1);
}

#[test]
fn two_disks() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    cut_everywhere(oracle, &scratch, &["-d", "raid1", "-m", "raid1"], 2, 2);
}
