//! Balances that are paused, cancelled or interrupted at any point.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use oleo_format::{ErrorKind, TreeId};
use oleo_fs::Fs;
use oleo_fs::{NewInode, NewKind, SnapshotOptions};
use oleo_jobs::{BalanceArgs, BalanceEnd, BalanceState, Balancer};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;

use crate::common::open;

const FILES: u64 = 40;

/// Bytes by name.
type Contents = BTreeMap<String, Vec<u8>>;

fn contents(fs: &Fs) -> anyhow::Result<Contents> {
    let root = fs.root(TreeId::FS)?;
    let mut all = Contents::new();
    for entry in fs.readdir(&root, 0, 10_000)? {
        let file = fs.lookup(&root, &entry.name)?.expect("it is there");
        let mut bytes = vec![0; fs.attr(&file).size as usize];
        fs.read(&file, 0, &mut bytes)?;
        all.insert(String::from_utf8(entry.name)?, bytes);
    }
    Ok(all)
}

fn put(fs: &Fs, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let root = fs.root(TreeId::FS)?;
    let file = fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
    Ok(fs.write(&file, 0, bytes)?)
}

/// Runs a balance on a thread of its own, calls `act` after it has moved `after` groups, and returns how it ended.
fn run(balancer: &Balancer, after: u64, act: impl FnOnce(&Balancer)) -> BalanceEnd {
    std::thread::scope(|threads| {
        let running = threads.spawn(|| balancer.run().expect("it was asked for"));
        let begun = std::time::Instant::now();
        // If it ended by a panic, joining reports that.
        while !running.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(300), "it neither moves {after} bytes nor ends");
            let status = balancer.status();
            let moved = status.progress.data_bytes + (status.progress.rewritten << 14);
            if status.end.is_some() || (moved >= after && status.state == BalanceState::Running) {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        act(balancer);
        running.join().expect("it ended")
    })
}

/// Goal: wherever a balance is paused, cancelled, or its file system closed, only addresses have changed; no group
/// stays closed; the item is on disk if it was paused, and not otherwise; after reopening it is resumed to its end,
/// group by group, none twice. Method: random points and ways, writes in between; the kernel verifies.
#[test]
fn interrupted_anywhere() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let (mut paused, mut cancelled) = (0, 0);
    for seed in 1..=6 {
        let mut rng = Rng::new(seed);
        let scratch = oracle.scratch()?;
        let image = scratch.image("balance", 768 << 20)?;
        oracle.mkfs(&[["--nodesize", "4096"], ["--nodesize", "16384"]][seed as usize % 2], &[&image])?;
        let fs = open(&image)?;
        for n in 0..FILES {
            put(&fs, &format!("large{n}"), &rng.bytes(4 << 20))?;
            (0..50).try_for_each(|m| put(&fs, &format!("small{n}-{m}"), &rng.bytes(1000)))?;
        }
        fs.sync()?;
        let mut want = contents(&fs)?;
        let convert = rng.one_in(3);
        let args = BalanceArgs::full().force(true);
        let args = match convert {
            true => {
                args.metadata(Some("convert=single".parse().unwrap())).system(Some("convert=single".parse().unwrap()))
            }
            false => args,
        };
        let mut balancer = Balancer::new(&fs)?;
        balancer.start(args)?;
        let mut fs = fs;
        let mut moved_in_all = 0;
        // Each time it gets a bit further; the bound is for a balance that does not.
        for time in 0..40 {
            // Half of them are cancelled at their second try.
            let way = if time == 1 && seed % 2 == 0 { 2 } else { [0, 1, 3][rng.below(3) as usize] };
            let end = run(&balancer, rng.below(30 << 20), |balancer| match way {
                0 => drop(balancer.pause()),
                1 => balancer.stop(),
                2 => drop(balancer.cancel()),
                _ => balancer.interrupt(),
            });
            moved_in_all += balancer.status().progress.completed;
            let what = format!("seed {seed}, time {time}, way {way}");
            let closed = fs.engine().space().groups().iter().filter(|g| g.read_only).count();
            assert_eq!(closed, 0, "{what}: groups stay closed");
            assert!(contents(&fs)? == want, "{what}: the contents are others");
            match &end {
                BalanceEnd::Failed { text, .. } => panic!("{what}: {text}"),
                BalanceEnd::Paused => paused += 1,
                BalanceEnd::Cancelled => cancelled += 1,
                BalanceEnd::Done => {}
            }
            put(&fs, &format!("more{time}"), &rng.bytes(100_000))?;
            fs.sync()?;
            want = contents(&fs)?;
            drop((balancer, fs));
            fs = open(&image)?;
            balancer = Balancer::new(&fs)?;
            let is_paused = balancer.status().state == BalanceState::Paused;
            assert_eq!(is_paused, end == BalanceEnd::Paused, "{what}: {end:?}");
            if !is_paused {
                break;
            }
            balancer.resume()?;
        }
        assert_eq!(balancer.status().state, BalanceState::Idle, "seed {seed}: it does not come to an end");
        assert!(contents(&fs)? == want, "seed {seed}: the contents are others");
        let groups = fs.engine().space().groups().len() as u64;
        assert!(moved_in_all <= 2 * groups + 4, "seed {seed}: {moved_in_all} groups moved, of {groups}: some twice");
        fs.sync()?;
        drop((balancer, fs));
        oracle.must_be_sound(&[&image], &format!("seed {seed}"))?;
    }
    assert!(paused > 5 && cancelled > 0, "{paused} paused, {cancelled} cancelled: too few to tell");
    Ok(())
}

/// Goal: a balance that has no space for a group skips it, moves the others, and reports how many were left; nothing is
/// lost, and there is no item afterwards. Method: a volume that is nearly full.
#[test]
fn no_room() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("full", 256 << 20)?;
    oracle.mkfs(&["--mixed"], &[&image])?;
    let fs = open(&image)?;
    let mut rng = Rng::new(1);
    let mut n = 0;
    let full = loop {
        let put = put(&fs, &format!("f{n}"), &rng.bytes(1 << 20)).and_then(|()| Ok(fs.sync().map(drop)?));
        n += 1;
        if put.is_err() || n > 400 {
            break put.is_err();
        }
    };
    assert!(full, "it did not become full");
    let root = fs.root(TreeId::FS)?;
    fs.unlink(&root, format!("f{}", n - 1).as_bytes())?;
    while fs.clean(1000)? {}
    fs.sync()?;
    let want = contents(&fs)?;
    let balancer = Balancer::new(&fs)?;
    balancer.start(BalanceArgs::full())?;
    let end = balancer.run().expect("it was asked for");
    let BalanceEnd::Failed { errno, text, .. } = &end else { panic!("{end:?}") };
    assert_eq!(*errno, oleo_fs::errno::ENOSPC, "{text}");
    assert_eq!(balancer.status().state, BalanceState::Idle);
    assert!(balancer.status().progress.no_space > 0, "{:?}", balancer.status());
    assert!(contents(&fs)? == want, "the contents are others");
    drop((root, balancer, fs));
    let fs = open(&image)?;
    assert_eq!(Balancer::new(&fs)?.status().state, BalanceState::Idle);
    drop(fs);
    oracle.must_be_sound(&[&image], "full")
}

/// Goal: a balance that meets data without a good copy ends with an error that names the files, in each subvolume, and moves
/// everything once these are deleted. Method: a damaged sector of a file that a snapshot shares.
#[test]
fn unreadable_data_is_named() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("rotten", 512 << 20)?;
    oracle.mkfs(&[], &[&image])?;
    let fs = open(&image)?;
    let mut rng = Rng::new(7);
    let bytes = rng.bytes(1 << 20);
    for name in ["before", "rotten", "behind"] {
        put(&fs, name, if name == "rotten" { &bytes } else { &[1; 100_000] })?;
    }
    fs.sync()?;
    let root = fs.root(TreeId::FS)?;
    let snapshot = fs.snapshot(TreeId::FS, &root, b"snapshot", SnapshotOptions::default())?;
    fs.sync()?;
    // The sector at 512 KiB, wherever it is.
    let sector = &bytes[512 << 10..(512 << 10) + 4096];
    let file = OpenOptions::new().read(true).write(true).open(&image)?;
    let mut at = 0;
    let mut here = [0; 4096];
    loop {
        file.read_exact_at(&mut here, at)?;
        if here == sector {
            break;
        }
        at += 4096;
    }
    file.write_all_at(b"rotten", at)?;
    let balancer = Balancer::new(&fs)?;
    balancer.start(BalanceArgs::full())?;
    let end = balancer.run().expect("it was asked for");
    let BalanceEnd::Failed { text, kind, .. } = &end else { panic!("{end:?}") };
    for name in ["data of rotten (at byte 524288), snapshot/rotten (at byte 524288):", "no good copy of 4096 bytes"] {
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(*kind, ErrorKind::Corruption);
    fs.unlink(&root, b"rotten")?;
    fs.unlink(&fs.root(snapshot)?, b"rotten")?;
    while fs.clean(1000)? {}
    fs.sync()?;
    balancer.start(BalanceArgs::full())?;
    let end = balancer.run().expect("it was asked for");
    assert_eq!(end, BalanceEnd::Done);
    drop((root, balancer, fs));
    oracle.must_be_sound(&[&image], "rotten")
}
