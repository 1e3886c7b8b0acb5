//! Simple quotas: numbers after every commit against a count over the extent tree, and turn by turn with the kernel.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use oleo_format::{BackRef, ExtentFlags, ExtentRecord, ItemType, Key, Logical, NodeExpect, QgroupStatusFlags, TreeId};
use oleo_fs::data::CloneRange;
use oleo_fs::{Fs, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_jobs::{
    QgroupChange, Recount, qgroup_change, quota, quota_disable, quota_enable, quota_enable_simple, quota_rescan,
};
use oleo_sim::oracle::{Mounted, Oracle, ShownQgroups, oracle, run};
use oleo_sim::rng::Rng;
use oleo_txn::{QgroupId, QgroupLimit, TxnError};

use crate::common::{Numbers, SECTOR, World, create_levels, must_be_clean, nodesize, open, said};

/// The numbers of the extent tree as of the last commit: counted bytes by owner, summed up in groups.
fn counted(fs: &Fs) -> anyhow::Result<Numbers> {
    let state = quota(fs).expect("quota is on");
    let since = state.since.expect("simple quota");
    let engine = fs.engine();
    let root = engine.root(TreeId::EXTENT)?.expect("an extent tree");
    let mut owned: BTreeMap<TreeId, u64> = BTreeMap::new();
    let mut blocks = Vec::new();
    engine.blocks().scan(&root, Key::MIN, Key::MAX, |key, item| {
        if matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            let record = ExtentRecord::parse(key, item)?;
            if record.generation < since {
            } else if record.flags.contains(ExtentFlags::TREE_BLOCK) {
                blocks.push(Logical(key.objectid));
            } else if let Some(BackRef::Owner { root }) = record.inline.first() {
                *owned.entry(*root).or_default() += key.offset;
            }
        }
        Ok::<_, TxnError>(ControlFlow::Continue(()))
    })?;
    for at in blocks {
        let node = engine.volume().read_block(&NodeExpect::at(at))?;
        *owned.entry(node.owner()).or_default() += u64::from(engine.nodesize());
    }
    let groups: BTreeMap<QgroupId, _> = state.groups.into_iter().collect();
    let mut numbers: Numbers = groups.keys().map(|id| (*id, (0, 0))).collect();
    for (tree, bytes) in owned {
        let mut seen = std::collections::BTreeSet::new();
        let mut todo = vec![QgroupId::of(tree)];
        while let Some(id) = todo.pop() {
            if let Some(group) = groups.get(&id).filter(|_| seen.insert(id)) {
                let (rfer, excl) = numbers.get_mut(&id).unwrap();
                (*rfer, *excl) = (*rfer + bytes, *excl + bytes);
                todo.extend(&group.parents);
            }
        }
    }
    Ok(numbers)
}

fn must_be_exact(fs: &Fs, what: &str) -> anyhow::Result<()> {
    let flags = quota(fs).unwrap().flags;
    assert_eq!(flags, QgroupStatusFlags::ON | QgroupStatusFlags::SIMPLE_MODE, "{what}");
    let (said, counted) = (said(fs), counted(fs)?);
    let wrong: Vec<_> = said.iter().filter(|(id, n)| counted.get(id) != Some(n)).collect();
    let want: Vec<_> = wrong.iter().map(|(id, _)| (*id, counted.get(id))).collect();
    assert!(wrong.is_empty(), "{what}: says {wrong:?}, counted {want:?}");
    Ok(())
}

fn numbers_of(shown: &ShownQgroups) -> Numbers {
    shown.iter().map(|(id, group)| (QgroupId(*id), (group.rfer, group.excl))).collect()
}

/// What the kernel shows of an image.
fn kernel_says(oracle: Oracle, image: &Path) -> anyhow::Result<Numbers> {
    let mounted = oracle.mount(&[image], "")?;
    let numbers = numbers_of(&mounted.qgroups()?);
    mounted.unmount()?;
    Ok(numbers)
}

fn play(oracle: Oracle, seed: u64, nodesize: &str, levels: bool) -> anyhow::Result<()> {
    let scratch = oracle.scratch()?;
    let image = scratch.image("quota", 512 << 20)?;
    oracle.mkfs(&["-n", nodesize], &[&image])?;
    let fs = open(&image)?;
    let mut world = World::new(fs, seed);
    // Earlier data is never counted, whatever happens to it.
    for _ in 0..20 {
        world.step()?;
    }
    quota_enable_simple(&world.fs)?;
    must_be_exact(&world.fs, "turned on")?;
    if levels {
        create_levels(&world.fs)?;
    }
    let world = world.live(&image, 200, &format!("seed {seed}"), must_be_exact)?;
    let ours = said(&world.fs);
    drop(world);
    must_be_clean(&image, &format!("seed {seed}"))?;
    assert_eq!(ours, kernel_says(oracle, &image)?, "seed {seed}: ours | as the kernel reads them");
    Ok(())
}

/// Goal: after every commit the numbers are those of a count over the extent tree: writes, clones across subvolumes,
/// snapshots of snapshots, deletion in steps, with earlier content. Method: random histories; the checker and the
/// kernel at the end.
#[test]
fn exact_after_every_commit() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for seed in 21..25 {
        play(oracle, seed, nodesize(seed), false)?;
    }
    Ok(())
}

/// Goal: the same with groups of two higher levels, joined and left meanwhile, each counted once however many paths
/// lead to it.
#[test]
fn exact_with_levels() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for seed in 31..35 {
        play(oracle, seed, nodesize(seed), true)?;
    }
    Ok(())
}

/// A few things done by the kernel, in subvolumes `s0` to `s3` and snapshots of them.
fn kernel_steps(mounted: &Mounted, rng: &mut Rng, round: u64) -> anyhow::Result<()> {
    let top = mounted.path();
    let subvols = || -> anyhow::Result<Vec<String>> {
        let mut names: Vec<String> = std::fs::read_dir(top)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<anyhow::Result<_>>()?;
        names.retain(|name| top.join(name).is_dir());
        names.sort();
        Ok(names)
    };
    let btrfs = |args: &[&str]| run("btrfs", args.iter().map(|arg| (*arg).to_owned()));
    for step in 0..12 {
        let names = subvols()?;
        let some = |rng: &mut Rng| rng.pick(&names).map_or(top.to_path_buf(), |name| top.join(name));
        let (a, b) = (some(rng), some(rng));
        let (from, to) = (a.join(format!("f{}", rng.below(4))), b.join(format!("f{}", rng.below(4))));
        match rng.below(8) {
            0..=2 => {
                let len = rng.length(150_000) as usize + 5000;
                std::fs::write(&from, rng.bytes(len))?;
            }
            3 if from.exists() && from != to => {
                run("cp", ["--reflink=always".as_ref(), from.as_os_str(), to.as_os_str()])?;
            }
            4 if from.exists() => std::fs::remove_file(&from)?,
            5 if names.len() < 9 => {
                let name = top.join(format!("t{round}-{step}"));
                btrfs(&["-q", "subvolume", "snapshot", &a.display().to_string(), &name.display().to_string()])?;
            }
            6 if a.file_name().is_some_and(|name| name.to_string_lossy().starts_with('t')) => {
                btrfs(&["-q", "subvolume", "delete", "-c", &a.display().to_string()])?;
            }
            _ => {
                for n in 0..20 {
                    std::fs::write(a.join(format!("small{n}")), rng.bytes(1200))?;
                }
            }
        }
    }
    Ok(())
}

/// Goal: the kernel can continue where we left off, and we where the kernel did, at any point, and the numbers of both
/// are always those of the extent tree. Method: turned on by the kernel or by us, then turns of random steps, verified
/// after each.
#[test]
fn turn_by_turn_with_the_kernel() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for seed in 41..45 {
        let scratch = oracle.scratch()?;
        let image = scratch.image("quota", 512 << 20)?;
        oracle.mkfs(&["-n", nodesize(seed)], &[&image])?;
        let mut rng = Rng::new(seed);
        let fs = open(&image)?;
        let top = fs.root(TreeId::FS)?;
        for n in 0..4 {
            fs.subvol_create(&top, format!("s{n}").as_bytes(), &NewSubvol::default())?;
        }
        if seed < 43 {
            quota_enable_simple(&fs)?;
        }
        drop((top, fs));
        if seed >= 43 {
            let mounted = oracle.mount(&[&image], "")?;
            mounted.enable_simple_quota()?;
            mounted.unmount()?;
        }
        for round in 0..5 {
            let mounted = oracle.mount(&[&image], "")?;
            kernel_steps(&mounted, &mut rng, round)?;
            // The group of a deleted subvolume goes with its last block.
            run("btrfs", ["subvolume".as_ref(), "sync".as_ref(), mounted.path().as_os_str()])?;
            let kernels = numbers_of(&mounted.qgroups()?);
            mounted.unmount()?;
            let what = format!("seed {seed}, round {round}");
            must_be_clean(&image, &format!("{what}: written by the kernel"))?;

            let fs = open(&image)?;
            assert_eq!(said(&fs), kernels, "{what}: as we read them | as the kernel left them");
            must_be_exact(&fs, &format!("{what}: written by the kernel"))?;
            let subvols = fs.subvol_list()?.into_iter().map(|info| info.id).collect();
            let mut world = World { fs, rng: rng.fork(), subvols, made: 100 * (round as u32 + 1) };
            for step in 0..25 {
                let done = world.step()?;
                if step % 5 == 4 {
                    world.fs.sync()?;
                    must_be_exact(&world.fs, &format!("{what}, step {step}, {done}"))?;
                }
            }
            while world.fs.clean(1000)? {}
            world.fs.sync()?;
            let ours = said(&world.fs);
            drop(world);
            must_be_clean(&image, &format!("{what}: written by us"))?;
            assert_eq!(ours, kernel_says(oracle, &image)?, "{what}: ours | as the kernel reads them");
        }
        // All data is deleted and no longer counted: the kernel deletes what both have written, when it commits.
        let mounted = oracle.mount(&[&image], "commit=1")?;
        for entry in std::fs::read_dir(mounted.path())? {
            let path = entry?.path();
            if path.is_dir() {
                run("btrfs", ["-q".as_ref(), "subvolume".as_ref(), "delete".as_ref(), path.as_os_str()])?;
            } else {
                std::fs::remove_file(path)?;
            }
        }
        run("btrfs", ["subvolume".as_ref(), "sync".as_ref(), mounted.path().as_os_str()])?;
        let left: u64 = mounted.qgroups()?.values().map(|group| group.rfer).sum();
        assert_eq!(left, if seed % 2 == 0 { 4096 } else { 16384 }, "seed {seed}: the top level's one block");
        mounted.unmount()?;
        must_be_clean(&image, "when all is gone")?;
    }
    Ok(())
}

/// Goal: the rules of simple quotas: data counts for its writer, also after that is gone, or if it is cloned or in a
/// snapshot; a group stays as long as it counts something; what is created in a subvolume joins its groups; nothing is
/// recounted; the two kinds of quota exclude each other. Method: one of each, with known numbers.
#[test]
fn data_counts_for_its_writer() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("quota", 512 << 20)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    quota_enable_simple(&fs)?;
    quota_enable_simple(&fs)?;
    assert!(quota_enable(&fs).is_err() && quota_rescan(&fs, &|| true).is_err());
    let group = QgroupId::new(1, 0);
    qgroup_change(&fs, QgroupChange::Create(group), Recount::Now)?;
    let a = fs.subvol_create(&top, b"a", &NewSubvol::default())?;
    qgroup_change(&fs, QgroupChange::Assign(QgroupId::of(a), group), Recount::Now)?;
    let b = fs.subvol_create(&top, b"b", &NewSubvol::default())?;
    let number = |id: QgroupId| said(&fs).get(&id).map(|n| n.0);
    let create =
        |tree| -> anyhow::Result<_> { Ok(fs.create(&fs.root(tree)?, b"f", &NewInode::new(NewKind::File, 0o644))?) };
    let file = create(a)?;
    fs.write(&file, 0, &vec![7; 1 << 20])?;
    // A clone in the transaction that writes the data, which its writer gives up in the same.
    let copy = create(b)?;
    fs.flush(&file)?;
    fs.clone_range(&file, &copy, &CloneRange { from: 0, len: 1 << 20, to: 0 })?;
    fs.truncate(&file, 0)?;
    fs.sync()?;
    assert_eq!((number(QgroupId::of(a)), number(QgroupId::of(b))), (Some((1 << 20) + 4096), Some(4096)));
    assert_eq!(number(group), Some((1 << 20) + 4096));
    // What is created in `a` is in the group; a snapshot of it elsewhere is not.
    let inside = fs.subvol_create(&fs.root(a)?, b"inside", &NewSubvol::default())?;
    let beside = fs.snapshot(a, &fs.root(a)?, b"beside", SnapshotOptions::default())?;
    let outside = fs.snapshot(a, &top, b"outside", SnapshotOptions::default())?;
    fs.sync()?;
    let parents = |tree| {
        let state = quota(&fs).unwrap();
        let (_, found) = state.groups.into_iter().find(|(id, _)| *id == QgroupId::of(tree)).unwrap();
        found.parents.into_iter().collect::<Vec<_>>()
    };
    assert_eq!((parents(inside), parents(beside), parents(outside)), (vec![group], vec![group], vec![]));
    assert_eq!(number(group), Some((1 << 20) + 3 * 4096));
    // The writer is deleted; its group stays for the data that `b` shares, and cannot be deleted before that is gone.
    for tree in [inside, beside, outside, a] {
        fs.subvol_delete(tree)?;
    }
    while fs.clean(1000)? {}
    fs.sync()?;
    assert_eq!(
        (number(QgroupId::of(a)), number(QgroupId::of(inside)), number(group)),
        (Some(1 << 20), None, Some(1 << 20))
    );
    assert!(qgroup_change(&fs, QgroupChange::Destroy(QgroupId::of(a)), Recount::Now).is_err());
    fs.truncate(&copy, 0)?;
    fs.sync()?;
    assert_eq!((number(QgroupId::of(a)), number(QgroupId::of(b))), (Some(0), Some(4096)));
    qgroup_change(&fs, QgroupChange::Destroy(QgroupId::of(a)), Recount::Now)?;
    must_be_exact(&fs, "in the end")?;
    // Off and on again: earlier data is no longer counted, and is freed without harm.
    fs.write(&copy, 0, &vec![8; 100_000])?;
    fs.sync()?;
    quota_disable(&fs)?;
    fs.sync()?;
    quota_enable_simple(&fs)?;
    fs.truncate(&copy, 0)?;
    fs.sync()?;
    must_be_exact(&fs, "on again")?;
    assert_eq!(number(QgroupId::of(b)), Some(4096));
    quota_disable(&fs)?;
    quota_enable(&fs)?;
    crate::common::must_be_exact(&fs, "with full quotas")?;
    drop((file, copy, top, fs));
    must_be_clean(&image, "in the end")
}

/// Goal: limits are enforced at the call, cloning costs nothing, and no request is refused while there is room. Method:
/// fill a subvolume up to its limit sector by sector, then the group above.
#[test]
fn limits_are_kept_at_the_call() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("quota", 512 << 20)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    quota_enable_simple(&fs)?;
    let top = fs.root(TreeId::FS)?;
    let group = QgroupId::new(1, 0);
    qgroup_change(&fs, QgroupChange::Create(group), Recount::Now)?;
    let make = |name: &str| -> anyhow::Result<TreeId> {
        Ok(fs.subvol_create(&top, name.as_bytes(), &NewSubvol::default().groups(vec![group]))?)
    };
    let (a, b) = (make("a")?, make("b")?);
    let rfer = |bytes: u64| QgroupLimit { max_rfer: Some(bytes), max_excl: None };
    qgroup_change(&fs, QgroupChange::Limit(QgroupId::of(a), rfer(1 << 20)), Recount::Now)?;
    qgroup_change(&fs, QgroupChange::Limit(group, rfer(3 << 19)), Recount::Now)?;
    for (tree, id, max) in [(a, QgroupId::of(a), 1 << 20), (b, group, 3 << 19)] {
        let file = fs.create(&fs.root(tree)?, b"filler", &NewInode::new(NewKind::File, 0o644))?;
        let mut at = 0;
        let refused = loop {
            match fs.write(&file, at, &vec![at as u8; SECTOR as usize]) {
                Ok(_) => at += SECTOR,
                Err(e) => break e,
            }
        };
        assert_eq!(refused.errno(), oleo_fs::errno::EDQUOT);
        fs.sync()?;
        let used = said(&fs)[&id].0;
        assert!(used <= max + 2 * SECTOR && used + 4 * SECTOR > max, "group {id} uses {used} of {max}");
    }
    // The other's data does not count here.
    let (from, to) = (fs.lookup(&fs.root(b)?, b"filler")?.unwrap(), fs.lookup(&fs.root(a)?, b"filler")?.unwrap());
    fs.truncate(&to, SECTOR)?;
    fs.sync()?;
    qgroup_change(&fs, QgroupChange::Limit(group, QgroupLimit::default()), Recount::Now)?;
    let used = said(&fs)[&QgroupId::of(a)].0;
    qgroup_change(&fs, QgroupChange::Limit(QgroupId::of(a), rfer(used + 4 * SECTOR)), Recount::Now)?;
    fs.clone_range(&from, &to, &CloneRange { from: 0, len: 100 * SECTOR, to: SECTOR })?;
    fs.sync()?;
    assert!(said(&fs)[&QgroupId::of(a)].0 <= used + SECTOR, "a clone counts for who wrote the data");
    must_be_exact(&fs, "at the limits")?;
    drop((from, to, top, fs));
    must_be_clean(&image, "at the limits")
}

/// Goal: moved data keeps its owner, and what did not count still does not, except tree blocks, which get a newer
/// generation. Method: random histories in which all groups move now and then; with earlier content in half of them.
#[test]
fn moved_data_keeps_its_owner() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for seed in 51..55 {
        let scratch = oracle.scratch()?;
        let image = scratch.image("quota", 512 << 20)?;
        oracle.mkfs(&["-n", nodesize(seed)], &[&image])?;
        let fs = open(&image)?;
        let mut world = World::new(fs.clone(), seed);
        let before = seed > 52;
        for _ in 0..if before { 30 } else { 0 } {
            world.step()?;
        }
        quota_enable_simple(&fs)?;
        let owners = || -> anyhow::Result<BTreeMap<TreeId, (u64, u64)>> {
            let since = quota(&fs).unwrap().since.unwrap();
            let root = fs.engine().root(TreeId::EXTENT)?.unwrap();
            let mut bytes: BTreeMap<TreeId, (u64, u64)> = BTreeMap::new();
            fs.engine().blocks().scan(&root, Key::MIN, Key::MAX, |key, item| {
                if key.item_type == ItemType::EXTENT_ITEM {
                    let record = ExtentRecord::parse(key, item)?;
                    if let (true, Some(BackRef::Owner { root })) = (record.generation >= since, record.inline.first()) {
                        let sum = bytes.entry(*root).or_default();
                        *sum = (sum.0 + 1, sum.1 + key.offset);
                    }
                }
                Ok::<_, TxnError>(ControlFlow::Continue(()))
            })?;
            Ok(bytes)
        };
        let mut all = oleo_txn::Moved::default();
        for step in 0..100 {
            let reported = world.step()?;
            if step % 20 != 19 {
                continue;
            }
            fs.sync()?;
            let what = format!("seed {seed}, step {step}, after {reported}");
            must_be_exact(&fs, &what)?;
            let copied = scratch.path().join("copy");
            run("cp", ["--sparse=always".as_ref(), image.as_os_str(), copied.as_os_str()])?;
            must_be_clean(&copied, &what)?;
            let (numbers, data) = (said(&fs), owners()?);
            for group in fs.engine().space().groups() {
                all += fs.engine().relocate_group(group.start, &|_| true)?.expect("nobody stops it");
            }
            assert_eq!(owners()?, data, "{what}: extents and bytes of data by owner");
            must_be_exact(&fs, &format!("{what}, moved"))?;
            run("cp", ["--sparse=always".as_ref(), image.as_os_str(), copied.as_os_str()])?;
            must_be_clean(&copied, &format!("{what}, moved"))?;
            if !before && step > 20 {
                assert_eq!(said(&fs), numbers, "{what}: moved | before");
            }
        }
        assert!(all.blocks > 10 && all.extents > 10, "{all:?}");
        // The kernel would continue with deletions.
        while fs.clean(1000)? {}
        fs.sync()?;
        let ours = said(&fs);
        drop((world, fs));
        must_be_clean(&image, &format!("seed {seed}"))?;
        // What the kernel moves, too.
        let mounted = oracle.mount(&[&image], "")?;
        assert_eq!(numbers_of(&mounted.qgroups()?), ours, "seed {seed}: as the kernel reads them | ours");
        run("btrfs", ["balance".as_ref(), "start".as_ref(), "--full-balance".as_ref(), mounted.path().as_os_str()])?;
        mounted.unmount()?;
        must_be_clean(&image, &format!("seed {seed}: moved by the kernel"))?;
        must_be_exact(&open(&image)?, &format!("seed {seed}: moved by the kernel"))?;
    }
    Ok(())
}

fn has_log(image: &Path) -> anyhow::Result<bool> {
    let bytes = std::fs::read(image)?;
    let at = oleo_format::SUPER_OFFSETS[0] as usize;
    Ok(oleo_format::SuperBlock::read(&bytes[at..at + oleo_format::SUPER_LEN])?.log_root.get() != 0)
}

/// Goal: data that only a log names is accounted to the subvolume in whose log it is: by us with the kernel's log, and by the kernel
/// with ours. Method: files written, cloned, overwritten and synced one by one in two subvolumes; the image as it is then,
/// replayed by the kernel and by us.
#[test]
fn logged_data_counts_for_its_subvolume() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for by_kernel in [true, false] {
        let scratch = oracle.scratch()?;
        let image = scratch.image("quota", 256 << 20)?;
        oracle.mkfs(&["-n", "4096"], &[&image])?;
        let fs = open(&image)?;
        quota_enable_simple(&fs)?;
        let top = fs.root(TreeId::FS)?;
        let trees = [b"a", b"b"].map(|name| fs.subvol_create(&top, name, &NewSubvol::default()).unwrap());
        let mut rng = Rng::new(9);
        for tree in trees {
            for name in [b"old", b"new"] {
                let file = fs.create(&fs.root(tree)?, name, &NewInode::new(NewKind::File, 0o644))?;
                fs.write(&file, 0, &rng.bytes(300_000))?;
            }
        }
        fs.sync()?;
        let [kernels, ours] = ["kernels", "ours"].map(|name| scratch.path().join(name));
        let copy = |from: &Path| -> anyhow::Result<()> {
            for to in [&kernels, &ours] {
                run("cp", ["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()])?;
            }
            Ok(())
        };
        if by_kernel {
            drop((top, fs));
            let mounted = oracle.mount(&[&image], "commit=3000")?;
            for name in ["a", "b"] {
                let dir = mounted.path().join(name);
                std::fs::write(dir.join("young"), rng.bytes(200_000))?;
                let over = std::fs::File::options().write(true).open(dir.join("old"))?;
                std::os::unix::fs::FileExt::write_all_at(&over, &rng.bytes(50_000), 40_960)?;
                over.sync_all()?;
                std::fs::File::open(dir.join("young"))?.sync_all()?;
            }
            // Written in `a`, but only in the log of `b`.
            let other = mounted.path().join("a/other");
            std::fs::write(&other, rng.bytes(70_000))?;
            let clone = mounted.path().join("b/clone");
            run("cp", ["--reflink=always".as_ref(), other.as_os_str(), clone.as_os_str()])?;
            std::fs::File::open(&clone)?.sync_all()?;
            copy(&image)?;
            mounted.unmount()?;
        } else {
            for tree in trees {
                let root = fs.root(tree)?;
                let young = fs.create(&root, b"young", &NewInode::new(NewKind::File, 0o644))?;
                fs.write(&young, 0, &rng.bytes(200_000))?;
                let over = fs.lookup(&root, b"old")?.unwrap();
                fs.write(&over, 40_960, &rng.bytes(50_000))?;
                fs.fsync(&over)?;
                fs.fsync(&young)?;
            }
            copy(&image)?;
            drop((top, fs));
        }
        assert!(has_log(&kernels)?, "by the kernel: {by_kernel}: there is a log");
        let theirs = kernel_says(oracle, &kernels)?;
        must_be_clean(&kernels, "replayed by the kernel")?;
        let fs = open(&ours)?;
        oleo_fs::replay(&fs)?;
        fs.sync()?;
        must_be_exact(&fs, "replayed by us")?;
        assert_eq!(said(&fs), theirs, "replayed by us | by the kernel, its own log: {by_kernel}");
        let young = said(&fs)[&QgroupId::of(trees[0])].0;
        assert!(young > 800_000, "{young} bytes count for `a`, the synced ones included");
        drop(fs);
        must_be_clean(&ours, "replayed by us")?;
    }
    Ok(())
}
