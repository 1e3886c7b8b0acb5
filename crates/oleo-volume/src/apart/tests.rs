//! Superblocks by hand, of simulated histories, and of the kernel's.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oleo_format::{SUPER_LEN, SUPER_OFFSETS};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;

use super::*;

/// A superblock of a transaction: where its root tree is, and the trees with their transactions and addresses.
fn sb(generation: u64, root: u64, chunk: (u64, u64), fs: (u64, u64)) -> SuperBlock {
    let mut sb = SuperBlock::default();
    (sb.generation, sb.root) = (generation.into(), root.into());
    (sb.chunk_root_generation, sb.chunk_root) = (chunk.0.into(), chunk.1.into());
    sb.super_roots[generation as usize % 4] = backup(generation, root, fs);
    sb
}

fn backup(generation: u64, root: u64, fs: (u64, u64)) -> RootBackup {
    RootBackup {
        tree_root: root.into(),
        tree_root_gen: generation.into(),
        fs_root_gen: fs.0.into(),
        fs_root: fs.1.into(),
        ..RootBackup::default()
    }
}

/// Goal: exactly what contradicts is found. Method: pairs by hand.
#[test]
fn contradictions() {
    let old = sb(10, 100, (7, 70), (9, 90));
    for (apart, new) in [
        (false, sb(10, 100, (7, 70), (9, 90))),
        (false, sb(20, 200, (7, 70), (9, 90))),
        (false, sb(20, 200, (11, 110), (12, 120))),
        (false, sb(11, 100, (7, 70), (9, 90))),
        // Roots that are from beyond, or missing, say nothing.
        (false, sb(20, 200, (7, 70), (21, 5))),
        (false, sb(20, 200, (7, 70), (0, 0))),
        (true, sb(10, 101, (7, 70), (9, 90))),
        (true, sb(20, 200, (6, 60), (12, 120))),
        (true, sb(20, 200, (8, 80), (12, 120))),
        (true, sb(20, 200, (7, 71), (12, 120))),
        (true, sb(20, 200, (7, 70), (8, 80))),
        (true, sb(20, 200, (7, 70), (10, 90))),
    ] {
        assert_eq!(written_apart(&new, &old), apart, "{new:?}");
    }
}

/// Goal: a backup that was made while the next transaction had begun is believed no further than it goes. Method: by hand.
#[test]
fn backups_from_beyond() {
    let old = sb(10, 100, (7, 70), (9, 90));
    let with = |slot: usize, backup: RootBackup| {
        let mut new = sb(12, 200, (7, 70), (12, 120));
        new.super_roots[slot] = backup;
        new
    };
    for (apart, new) in [
        (false, with(2, backup(10, 100, (9, 90)))),
        // The root of the root tree moved once more in its transaction.
        (false, with(2, backup(10, 101, (9, 90)))),
        (false, with(2, backup(10, 101, (10, 95)))),
        (true, with(2, backup(10, 101, (9, 91)))),
        (true, with(2, backup(10, 101, (8, 80)))),
        (true, with(3, backup(11, 111, (8, 80)))),
        (true, with(3, backup(11, 111, (10, 80)))),
        // As far as it goes: nothing of transaction 11 itself.
        (false, with(3, backup(11, 111, (11, 80)))),
        (false, with(2, backup(0, 101, (8, 80)))),
        // One that contradicts its own superblock: the kernel went back to an earlier root.
        (false, with(2, backup(13, 101, (11, 80)))),
    ] {
        assert_eq!(written_apart(&new, &old), apart, "{:?}", new.super_roots);
    }
    // Two that may be its own: the first was made in 9, and the tree moved after that.
    let mut old = sb(10, 100, (7, 70), (10, 95));
    old.super_roots[1] = backup(10, 100, (9, 90));
    assert!(!written_apart(&old, &old));
    assert!(!written_apart(&sb(12, 200, (7, 70), (10, 95)), &old));
    // Its own is from beyond.
    let mut old = sb(10, 100, (7, 70), (8, 80));
    old.super_roots[3] = backup(11, 105, (10, 95));
    assert!(!written_apart(&sb(12, 200, (7, 70), (10, 95)), &old));
}

/// Goal: a superblock whose backups contradict it, or one another, is not apart from itself. Method: random ones.
#[test]
fn contradictory_superblocks() {
    let mut rng = Rng::new(1);
    let mut odd = 0;
    for _ in 0..20_000 {
        let mut few = || (8 + rng.below(4), 1 + rng.below(3));
        let (own, chunk) = (few(), few());
        let mut odd_one = SuperBlock {
            generation: own.0.into(),
            root: own.1.into(),
            chunk_root_generation: chunk.0.into(),
            chunk_root: chunk.1.into(),
            ..SuperBlock::default()
        };
        for slot in &mut odd_one.super_roots {
            let (root, fs, chunk) = (few(), few(), few());
            *slot =
                RootBackup { chunk_root_gen: chunk.0.into(), chunk_root: chunk.1.into(), ..backup(root.0, root.1, fs) };
        }
        odd += u32::from(own_roots(&odd_one).len() == 1);
        assert!(!written_apart(&odd_one, &odd_one), "{odd_one:?}");
    }
    assert!(odd > 0);
}

/// A file system that commits as the kernel does.
#[derive(Clone)]
struct History {
    generation: u64,
    /// The root tree, the file tree, the extent tree, and one that is named as the chunk tree and as the device tree; of each the transaction and the address.
    trees: [(u64, u64); 4],
    slot: usize,
    backups: [RootBackup; 4],
}

impl History {
    fn new() -> History {
        History { generation: 5, trees: [(5, 1), (3, 2), (4, 3), (5, 4)], slot: 0, backups: Default::default() }
    }

    fn moves(&mut self, tree: usize, next: &mut u64) {
        *next += 1;
        self.trees[tree] = (self.generation + 1, *next);
    }

    /// Changes trees, each perhaps more than once, and commits; the next transaction may be at work while the backup is made.
    fn commit(&mut self, rng: &mut Rng, next: &mut u64) -> SuperBlock {
        for tree in 1..4 {
            for _ in 0..rng.below(3).saturating_sub(u64::from(tree == 3)) {
                self.moves(tree, next);
            }
        }
        self.moves(0, next);
        self.generation += 1;
        let last = self.trees;
        for tree in 0..3 {
            if rng.one_in(3) {
                self.moves(tree, next);
            }
        }
        let [root, fs, extent, _] = self.trees;
        self.backups[self.slot] = RootBackup {
            extent_root_gen: extent.0.into(),
            extent_root: extent.1.into(),
            dev_root_gen: last[3].0.into(),
            dev_root: last[3].1.into(),
            ..backup(root.0, root.1, fs)
        };
        // Now and then the machine stops; a mount does not find its last backup, and begins with the first.
        self.slot = if rng.one_in(20) { 0 } else { (self.slot + 1) % 4 };
        SuperBlock {
            generation: self.generation.into(),
            root: last[0].1.into(),
            chunk_root_generation: last[3].0.into(),
            chunk_root: last[3].1.into(),
            super_roots: self.backups,
            ..SuperBlock::default()
        }
    }
}

/// Goal: no two superblocks of one history are taken for two histories, and two histories are told where they can be. Method: simulated commits beside the next
/// transaction; every pair of superblocks that are up to nine commits apart; forks of one to six commits.
#[test]
fn simulated_histories() {
    let (mut told, mut forks) = (0, 0);
    for seed in 0..200 {
        let (mut rng, mut next) = (Rng::new(seed), 100);
        let mut history = History::new();
        let mut seen: Vec<SuperBlock> = Vec::new();
        for _ in 0..60 {
            seen.push(history.commit(&mut rng, &mut next));
            let new = seen.last().unwrap();
            for old in seen.iter().rev().take(10) {
                assert!(!written_apart(new, old), "seed {seed}: {new:?} {old:?}");
            }
        }
        let (mut one, mut other) = (history.clone(), history);
        let (mut a, mut b) = (SuperBlock::default(), SuperBlock::default());
        for _ in 0..1 + seed % 6 {
            a = one.commit(&mut rng, &mut next);
        }
        for _ in 0..1 + seed % 3 {
            b = other.commit(&mut rng, &mut next);
        }
        let (newer, older) = if a.generation < b.generation { (b, a) } else { (a, b) };
        forks += 1;
        told += u32::from(written_apart(&newer, &older));
    }
    assert!(told * 2 > forks, "{told} of {forks} forks are told");
}

/// Tells the others to end.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Goal: the same of the kernel's superblocks. Method: subvolumes are made and files synced beside commits; each superblock that is on the disk for a moment is compared with
/// itself and with those of nine transactions before. There are some that have backups from beyond.
#[test]
fn one_history_of_the_kernels() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("image", 1 << 30).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    let (top, done) = (mounted.path().to_path_buf(), AtomicBool::new(false));
    let mut seen: Vec<SuperBlock> = Vec::new();
    let doubled = |sb: &SuperBlock| {
        let mut named = sb.super_roots.map(|b| b.tree_root_gen.get());
        named.sort_unstable();
        // A new file system has none yet.
        let is_twice = named.windows(2).any(|two| two[0] == two[1] && two[0] > 0);
        is_twice || named.last() > Some(&sb.generation.get())
    };
    let repeat = |work: &dyn Fn(usize)| {
        for nth in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
            work(nth);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            repeat(&|nth| {
                let name = top.join(format!("s{}", nth % 200));
                let what = if name.exists() { "delete" } else { "create" };
                let made = Command::new("btrfs").args(["-q", "subvolume", what]).arg(name).output();
                made.ok().filter(|output| output.status.success()).expect("a subvolume");
            });
        });
        scope.spawn(|| repeat(&|_| mounted.sync().expect("sync")));
        scope.spawn(|| {
            repeat(&|nth| {
                let file = top.join(format!("f{}", nth % 50));
                fs::write(&file, vec![nth as u8; 50_000]).expect("write");
                File::open(&file).expect("open").sync_all().expect("fsync");
            });
        });
        // They end however this ends.
        let _ended = Ended(&done);
        let (device, begun) = (File::open(&image).unwrap(), Instant::now());
        let (mut bytes, mut enough) = (vec![0; SUPER_LEN], 0);
        while enough < 100 && begun.elapsed() < Duration::from_secs(60) {
            // None while one is just being written.
            device.read_exact_at(&mut bytes, SUPER_OFFSETS[0]).unwrap();
            let Ok(sb) = SuperBlock::read(&bytes) else { continue };
            if seen.last().is_some_and(|last| last.generation >= sb.generation) {
                continue;
            }
            enough += u32::from(doubled(&sb));
            seen.push(sb);
        }
    });
    mounted.unmount().unwrap();
    assert!(seen.iter().any(doubled), "{} superblocks, and none has a backup from beyond", seen.len());
    for (nth, new) in seen.iter().enumerate() {
        for old in &seen[nth.saturating_sub(9)..=nth] {
            assert!(!written_apart(new, old), "{:?} {:?}", new.super_roots, old.super_roots);
        }
    }
}
