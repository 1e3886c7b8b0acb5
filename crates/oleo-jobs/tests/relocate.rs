//! Relocation: groups are emptied and removed, and nothing changes but addresses.

mod common;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo_device::{FileDevice, FileOptions};
use oleo_format::{BlockGroupFlags, BlockGroupItem, ByteLen, InodeFlags, ItemType, Key, Logical, TreeId};
use oleo_fs::data::KeepSize;
use oleo_fs::{Fs, InodeRef, NewInode, NewKind, NewSubvol, SetAttr, SnapshotOptions};
use oleo_jobs::{TrimRange, quota, quota_enable, shares, trim};
use oleo_mkfs::{FeatureSet, MkfsOptions};
use oleo_sim::oracle::{Oracle, oracle, run};
use oleo_sim::rng::Rng;
use oleo_tree::Change;
use oleo_txn::{Moved, TxnError};
use oleo_volume::ChunkWant;
use zerocopy::IntoBytes;

use common::{SECTOR, World, create_levels, kernel_counts, must_be_clean, must_be_exact, nodesize, open, said};

/// Bytes by the set of subvolumes that shares them, as of the last commit.
fn sharing(fs: &Fs) -> anyhow::Result<BTreeMap<Arc<[TreeId]>, u64>> {
    let base = fs.engine().scan_base(false)?;
    Ok(shares(fs.engine(), &base, &|| true)?.unwrap().into_iter().collect())
}

/// What may be in a world.
struct Known {
    subvols: Vec<TreeId>,
    made: u32,
}

impl Known {
    fn of(world: &World) -> Known {
        Known { subvols: world.subvols.clone(), made: world.made }
    }
}

/// All files of the subvolumes: their lengths, and hashes of their bytes.
fn contents(fs: &Fs, world: &Known) -> anyhow::Result<BTreeMap<(TreeId, String), (usize, u64)>> {
    let mut all = BTreeMap::new();
    let names = (0..8).map(|n| format!("file{n}"));
    let names: Vec<String> = names.chain((0..world.made * 100 + 30).map(|n| format!("small{n}"))).collect();
    for tree in &world.subvols {
        let root = fs.root(*tree)?;
        for name in &names {
            if let Some(file) = fs.lookup(&root, name.as_bytes())? {
                all.insert((*tree, name.clone()), bytes(fs, &file)?);
            }
        }
    }
    Ok(all)
}

fn bytes(fs: &Fs, file: &InodeRef) -> anyhow::Result<(usize, u64)> {
    let mut out = vec![0; fs.attr(file).size as usize];
    fs.read(file, 0, &mut out)?;
    let mut hasher = DefaultHasher::new();
    out.hash(&mut hasher);
    Ok((out.len(), hasher.finish()))
}

fn groups(fs: &Fs, flags: BlockGroupFlags) -> Vec<Logical> {
    fs.engine().space().groups().into_iter().filter(|g| g.flags.intersects(flags)).map(|g| g.start).collect()
}

/// Moves every group that is there now.
fn move_all(fs: &Fs, flags: BlockGroupFlags) -> anyhow::Result<Moved> {
    let mut all = Moved::default();
    for start in groups(fs, flags) {
        all += fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
    }
    Ok(all)
}

/// Makes a volume as `mkfs.btrfs` with these arguments does, or one of ours if it cannot.
fn make(oracle: Oracle, image: &Path, mkfs: &[&str]) -> anyhow::Result<()> {
    if mkfs != BLOCK_GROUP_TREE {
        return oracle.mkfs(mkfs, &[image]);
    }
    let options = FileOptions::default().write(true);
    let features = FeatureSet::default().block_group_tree(true);
    let device = Arc::new(FileDevice::open(image, &options)?);
    oleo_mkfs::make(&[device], &MkfsOptions::default().features(features).seed([9; 32]))?;
    Ok(())
}

const BLOCK_GROUP_TREE: [&str; 2] = ["-O", "block-group-tree"];

/// Not every `btrfs check` can read volumes with a tree of block groups: the kernel verifies those alone.
fn must_be_sound(oracle: Oracle, image: &Path, mkfs: &[&str], what: &str) -> anyhow::Result<()> {
    if mkfs != BLOCK_GROUP_TREE {
        return oracle.must_be_sound(&[image], what);
    }
    let mounted = oracle.mount(&[image], "")?;
    let found = mounted.scrub()?;
    assert!(found.is_clean(), "{what}: scrub: {found}");
    mounted.unmount()
}

fn play(oracle: Oracle, seed: u64, mkfs: &[&str], with_quota: bool) -> anyhow::Result<()> {
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 512 << 20)?;
    make(oracle, &image, mkfs)?;
    let fs = open(&image)?;
    if with_quota {
        quota_enable(&fs)?;
        create_levels(&fs)?;
    }
    let mut world = World::new(fs, seed);
    let kinds = [BlockGroupFlags::METADATA, BlockGroupFlags::DATA, BlockGroupFlags::SYSTEM];
    for step in 0..120 {
        let reported = world.step()?;
        if !world.rng.one_in(8) {
            continue;
        }
        world.fs.sync()?;
        let what = format!("seed {seed}, step {step}, after {reported}");
        let (before, data) = (sharing(&world.fs)?, contents(&world.fs, &Known::of(&world))?);
        let dirty = world.fs.engine().quota_dirty_extents();
        let kind = kinds[world.rng.below(3) as usize];
        let there = groups(&world.fs, kind);
        let start = there[world.rng.below(there.len() as u64) as usize];
        world.fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
        assert!(!groups(&world.fs, kind).contains(&start), "{what}: group {start} is still there");
        assert_eq!(sharing(&world.fs)?, before, "{what}: who shares what");
        assert_eq!(contents(&world.fs, &Known::of(&world))?, data, "{what}: what files hold");
        if with_quota {
            assert_eq!(world.fs.engine().quota_dirty_extents(), dirty, "{what}: extents looked at for quota");
            must_be_exact(&world.fs, &what)?;
        }
        if world.rng.one_in(4) {
            drop(world.fs);
            must_be_sound(oracle, &image, mkfs, &what)?;
            world.fs = open(&image)?;
        }
    }
    world.fs.sync()?;
    let data = contents(&world.fs, &Known::of(&world))?;
    let moved = move_all(&world.fs, kinds[0] | kinds[1] | kinds[2])?;
    assert!(moved.blocks > 10 && moved.extents > 0, "seed {seed}: {moved:?}");
    assert!(moved.rewritten >= moved.blocks, "seed {seed}: {moved:?}");
    assert_eq!(contents(&world.fs, &Known::of(&world))?, data, "seed {seed}: at the end");
    // The kernel would continue with deletions before it counts.
    while world.fs.clean(1000)? {}
    world.fs.sync()?;
    let ours = with_quota.then(|| said(&world.fs));
    drop(world.fs);
    must_be_sound(oracle, &image, mkfs, &format!("seed {seed}"))?;
    if let Some(ours) = ours {
        let (_, after) = kernel_counts(oracle, &image, &format!("seed {seed}"))?;
        assert_eq!(ours, after, "seed {seed}: ours | the kernel's rescan");
    }
    // Read again with nothing in memory.
    world.fs = open(&image)?;
    assert_eq!(contents(&world.fs, &Known::of(&world))?, data, "seed {seed}: read again");
    Ok(())
}

/// Goal: moving groups changes neither the contents of files nor their sharing, and `btrfs check` finds nothing.
/// Method: random histories with snapshots, clones, deletions under way; now and then a random group of a random kind
/// is emptied; at the end all of them.
#[test]
fn random_groups() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    (1..5).try_for_each(|seed| play(oracle, seed, &["-n", nodesize(seed)], false))
}

/// Goal: the same on volumes of other kinds: mixed groups, a tree of block groups, no free-space tree, no skinny metadata.
#[test]
fn kinds_of_volumes() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let kinds: [&[&str]; 5] = [
        &["-n", "4096", "-M"],
        &BLOCK_GROUP_TREE,
        &["-n", "16384", "-R", "^free-space-tree"],
        &["-n", "4096", "-O", "^skinny-metadata,^no-holes"],
        &["-n", "4096", "--csum", "sha256", "-d", "dup"],
    ];
    for (mkfs, seed) in kinds.into_iter().zip(21..) {
        play(oracle, seed, mkfs, false)?;
    }
    Ok(())
}

/// Goal: quota's numbers do not change, and no extent is processed for quota.
#[test]
fn with_quota() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    (31..34).try_for_each(|seed| play(oracle, seed, &["-n", nodesize(seed)], true))
}

/// Goal: writers, cloners and deleters continue meanwhile, and lose nothing. Method: a thread changes the world while
/// all groups move repeatedly; at the end its files have the contents of their last sync.
#[test]
fn beside_writers() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    quota_enable(&fs)?;
    let mut world = World::new(fs.clone(), 77);
    let done = AtomicBool::new(false);
    let (world, all) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> anyhow::Result<World> {
            for step in 0..500 {
                if let Err(e) = world.step() {
                    done.store(true, Ordering::Relaxed);
                    return Err(e);
                }
                if step % 7 == 0 {
                    world.fs.sync()?;
                }
            }
            done.store(true, Ordering::Relaxed);
            Ok(world)
        });
        let mut all = Moved::default();
        let kinds = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let mut failed = None;
        while !done.load(Ordering::Relaxed) && failed.is_none() {
            for start in groups(&fs, kinds) {
                match fs.engine().relocate_group(start, &|_| !done.load(Ordering::Relaxed)) {
                    Ok(moved) => all += moved.unwrap_or_default(),
                    // Both may be short of room for a moment.
                    Err(TxnError::NoSpace { .. }) => {}
                    Err(e) => failed = Some(e),
                }
            }
        }
        let world = writer.join().expect("the writer did not panic")?;
        if let Some(e) = failed {
            return Err(e.into());
        }
        Ok::<_, anyhow::Error>((world, all))
    })?;
    assert!(all.blocks > 0 && all.extents > 0, "{all:?}");
    while fs.clean(1000)? {}
    fs.sync()?;
    must_be_exact(&fs, "in the end")?;
    let known = Known::of(&world);
    drop(world);
    let data = contents(&fs, &known)?;
    let ours = said(&fs);
    drop(fs);
    oracle.must_be_sound(&[&image], "beside writers")?;
    let (_, after) = kernel_counts(oracle, &image, "beside writers")?;
    assert_eq!(ours, after, "ours | the kernel's rescan");
    assert_eq!(contents(&open(&image)?, &known)?, data, "read again");
    Ok(())
}

/// Goal: groups that have become empty are removed by themselves, one of each kind stays, the image is sound for the
/// kernel, and their space can be used again. Method: files in several groups of data are deleted; groups that have
/// been empty for no time at all, and for long enough, are requested to go; then as much is written once more.
#[test]
fn empty_groups_go() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 2 << 30)?;
    oracle.mkfs(&[], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    for _ in 0..2 {
        let before = groups(&fs, BlockGroupFlags::DATA).len();
        let file = fs.create(&top, b"large", &NewInode::new(NewKind::File, 0o644))?;
        fs.preallocate(&file, 0, 1 << 30, KeepSize::No)?;
        fs.write(&file, 12345, &[7; 100_000])?;
        fs.sync()?;
        let full = groups(&fs, BlockGroupFlags::DATA).len();
        assert!(full > 2 && full > before, "{full} groups of data after {before}");
        let idle = || fs.engine().remove_idle_group(Duration::ZERO);
        while idle()?.is_some() {}
        assert!(groups(&fs, BlockGroupFlags::DATA).len() * 8 > full * 6, "what is in use stays");
        drop(file);
        fs.unlink(&top, b"large")?;
        fs.sync()?;
        let emptied = groups(&fs, BlockGroupFlags::DATA).len();
        assert!(emptied > 2);
        assert_eq!(fs.engine().remove_idle_group(Duration::from_secs(3600))?, None, "not that long");
        let mut gone = 0;
        while idle()?.is_some() {
            gone += 1;
        }
        assert_eq!(groups(&fs, BlockGroupFlags::DATA).len(), emptied - gone);
        assert_eq!(groups(&fs, BlockGroupFlags::DATA).len(), 1, "one stays");
        assert!(!groups(&fs, BlockGroupFlags::METADATA).is_empty());
    }
    drop((top, fs));
    oracle.must_be_sound(&[&image], "empty groups are gone")?;
    must_be_sound(oracle, &image, &BLOCK_GROUP_TREE, "empty groups are gone, for the kernel")
}

/// Goal: a job that is stopped leaves the group open, with the rest of its contents in it.
#[test]
fn a_stopped_job_leaves_the_group_open() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 512 << 20)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let mut world = World::new(fs.clone(), 5);
    for _ in 0..60 {
        world.step()?;
    }
    fs.sync()?;
    let start = groups(&fs, BlockGroupFlags::METADATA)[0];
    assert_eq!(fs.engine().relocate_group(start, &|_| false)?, None);
    assert!(fs.engine().space().group(start).is_ok_and(|group| !group.read_only));
    assert!(quota(&fs).is_none());
    fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
    drop((fs, world));
    oracle.must_be_sound(&[&image], "stopped, then moved")?;
    Ok(())
}

/// Goal: writers in place, into preallocated space or a file that is not copied on write, lose nothing when the data
/// moves. Method: two threads write sectors of two such files and remember them, syncing now and then, while all data
/// moves repeatedly; then the remembered sectors are compared after reopening.
#[test]
fn beside_writers_in_place() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    const SECTORS: u64 = 1500;
    let mut files = Vec::new();
    for name in ["preallocated", "not copied"] {
        let dir = fs.create(&top, format!("{name}.d").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
        if name == "not copied" {
            let flags = Some(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
            fs.set_attr(&dir, &SetAttr::default().flags(flags))?;
        }
        let file = fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        fs.preallocate(&file, 0, SECTORS * SECTOR, KeepSize::No)?;
        files.push((name, file));
    }
    fs.sync()?;
    let done = AtomicBool::new(false);
    let (models, all) = std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .zip(1..)
            .map(|((name, file), seed)| {
                let fs = &fs;
                scope.spawn(move || -> anyhow::Result<(String, Vec<u8>)> {
                    let mut rng = Rng::new(seed);
                    let mut model = vec![0; (SECTORS * SECTOR) as usize];
                    for step in 0..1500 {
                        let (at, len) = (rng.below(SECTORS) * SECTOR, rng.below(3) * SECTOR + SECTOR);
                        let len = len.min(SECTORS * SECTOR - at);
                        let bytes = rng.bytes(len as usize);
                        fs.write(file, at, &bytes)?;
                        model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                        match step % 10 {
                            0 => fs.flush(file)?,
                            5 => fs.fsync(file)?,
                            _ => {}
                        }
                    }
                    Ok(((*name).to_string(), model))
                })
            })
            .collect();
        let mover = scope.spawn(|| -> anyhow::Result<Moved> {
            let mut all = Moved::default();
            while !done.load(Ordering::Relaxed) {
                all += move_all(&fs, BlockGroupFlags::DATA)?;
            }
            Ok(all)
        });
        let models: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("no writer panicked")).collect();
        done.store(true, Ordering::Relaxed);
        let all = mover.join().expect("the mover did not panic")?;
        Ok::<_, anyhow::Error>((models.into_iter().collect::<Result<Vec<_>, _>>()?, all))
    })?;
    assert!(all.extents > 20, "{all:?}");
    fs.sync()?;
    drop((files, top, fs));
    oracle.must_be_sound(&[&image], "beside writers in place")?;
    let fs = open(&image)?;
    for (name, model) in models {
        let dir = fs.lookup(&fs.root(TreeId::FS)?, format!("{name}.d").as_bytes())?.unwrap();
        let file = fs.lookup(&dir, name.as_bytes())?.unwrap();
        let mut out = vec![0; model.len()];
        fs.read(&file, 0, &mut out)?;
        let wrong = (0..SECTORS as usize).find(|n| out[n * 4096..][..4096] != model[n * 4096..][..4096]);
        assert_eq!(wrong, None, "{name}: the first sector that is not what was written last");
    }
    Ok(())
}

/// Goal: on a full device nothing is lost: what cannot move stays, the group is open again, and writing continues.
/// Method: the device is filled completely; every group is requested to move; then space is made, and all move.
#[test]
fn a_full_device_loses_nothing() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for mkfs in [&["-n", "4096"][..], &["-n", "16384", "-m", "single"]] {
        let scratch = oracle.scratch()?;
        let image = scratch.image("relocate", 256 << 20)?;
        oracle.mkfs(mkfs, &[&image])?;
        let fs = open(&image)?;
        let top = fs.root(TreeId::FS)?;
        let mut world = Vec::new();
        'full: for n in 0.. {
            let file = fs.create(&top, format!("file{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644));
            let Ok(file) = file else { break };
            let mut rng = Rng::new(n);
            for at in 0..8 {
                if fs.write(&file, at << 19, &rng.bytes(1 << 19)).is_err() {
                    break 'full;
                }
            }
            if fs.sync().is_err() {
                break;
            }
            world.push((n, file));
        }
        fs.sync()?;
        let kinds = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let mut refused = 0;
        for start in groups(&fs, kinds) {
            match fs.engine().relocate_group(start, &|_| true) {
                Ok(moved) => assert!(moved.is_some()),
                Err(TxnError::NoSpace { .. }) => {
                    refused += 1;
                    let group = fs.engine().space().group(start)?;
                    assert!(!group.read_only, "group {start} is open again");
                }
                Err(e) => return Err(e.into()),
            }
        }
        assert!(refused > 0, "{mkfs:?}: there was room, so this shows nothing");
        assert!(fs.poisoned_by().is_none());
        for (n, _) in world.iter().step_by(2) {
            fs.unlink(&top, format!("file{n}").as_bytes())?;
        }
        let kept: Vec<_> = world.into_iter().skip(1).step_by(2).collect();
        fs.sync()?;
        while fs.clean(1000)? {}
        fs.sync()?;
        // Data first: the space that it frees on the device is used for metadata.
        move_all(&fs, BlockGroupFlags::DATA)?;
        move_all(&fs, BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)?;
        for (n, file) in &kept {
            let mut rng = Rng::new(*n);
            let mut out = vec![0; 1 << 19];
            for at in 0..8 {
                fs.read(file, at << 19, &mut out)?;
                assert!(out == rng.bytes(1 << 19), "{mkfs:?}: file {n} at {at}");
            }
        }
        drop((kept, top, fs));
        oracle.must_be_sound(&[&image], &format!("{mkfs:?}: full, then moved"))?;
    }
    Ok(())
}

/// Goal: groups move while a subvolume is being deleted in steps, and what is gone already is not looked up. Method: a
/// subvolume with a snapshot that shares some of it is deleted in small steps; after each, new files overwrite what
/// became free, and everything moves.
#[test]
fn beside_a_deletion() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    let subvol = fs.subvol_create(&top, b"v", &NewSubvol::default())?;
    let root = fs.root(subvol)?;
    let mut rng = Rng::new(3);
    let write = |dir: &InodeRef, name: String, rng: &mut Rng| -> anyhow::Result<()> {
        let file = fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        let len = if rng.one_in(4) { 9000 } else { 500 };
        fs.write(&file, 0, &rng.bytes(len))?;
        Ok(())
    };
    for n in 0..3000 {
        write(&root, format!("file{n}"), &mut rng)?;
    }
    fs.sync()?;
    fs.snapshot(subvol, &top, b"w", SnapshotOptions::default())?;
    for n in (0..3000).step_by(5) {
        let file = fs.lookup(&root, format!("file{n}").as_bytes())?.unwrap();
        fs.write(&file, 0, &rng.bytes(700))?;
    }
    fs.sync()?;
    drop(root);
    fs.subvol_delete(subvol)?;
    let (mut steps, mut made) = (0, 0);
    while fs.clean(60)? {
        steps += 1;
        fs.sync()?;
        for _ in 0..60 {
            write(&top, format!("new{made}"), &mut rng)?;
            made += 1;
        }
        fs.sync()?;
        if steps % 3 == 0 {
            // The second time, the dropped blocks are in groups that are gone.
            for _ in 0..2 {
                fs.engine().blocks().forget_all();
                move_all(&fs, BlockGroupFlags::METADATA | BlockGroupFlags::DATA)?;
            }
        }
    }
    assert!(steps > 10, "{steps} steps");
    fs.sync()?;
    drop((top, fs));
    oracle.must_be_sound(&[&image], "moved beside a deletion")?;
    Ok(())
}

/// How a deletion continues while groups move.
#[derive(Clone, Copy, Debug)]
struct HalfWay {
    quota: bool,
    /// The volume is reopened after each step.
    reopened: bool,
}

/// Goal: groups move while a deletion passes through blocks with full backrefs, and only what those still reference
/// moves along; the deletion continues in the moved blocks, and so does the kernel's. Method: a subvolume is
/// snapshotted twice and then rewritten throughout, so that the snapshots alone have its old blocks, as full
/// references; they are deleted in small steps, and after each all groups move. Now and then a copy is given to the
/// kernel, which deletes the rest.
fn half_way(oracle: Oracle, how: HalfWay) -> anyhow::Result<()> {
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let mut fs = open(&image)?;
    if how.quota {
        quota_enable(&fs)?;
    }
    const FILES: u64 = 1500;
    let top = fs.root(TreeId::FS)?;
    let source = fs.subvol_create(&top, b"v", &NewSubvol::default())?;
    let root = fs.root(source)?;
    let mut rng = Rng::new(5);
    let name = |n| format!("file{n}");
    let len = |n: u64| if n.is_multiple_of(9) { 9000 } else { 500 };
    for n in 0..FILES {
        let file = fs.create(&root, name(n).as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        fs.write(&file, 0, &rng.bytes(len(n)))?;
    }
    fs.sync()?;
    let snapshots = [&b"w"[..], b"x"].map(|name| fs.snapshot(source, &top, name, SnapshotOptions::default()));
    let mut last = BTreeMap::new();
    for n in 0..FILES {
        let file = fs.lookup(&root, name(n).as_bytes())?.unwrap();
        let bytes = rng.bytes(len(n));
        fs.write(&file, 0, &bytes)?;
        last.insert(n, bytes);
    }
    fs.sync()?;
    drop((root, top));
    for snapshot in snapshots {
        fs.subvol_delete(snapshot?)?;
    }
    let (mut steps, mut moved) = (0, 0);
    while fs.clean(40)? {
        steps += 1;
        fs.sync()?;
        fs.engine().blocks().forget_all();
        moved += move_all(&fs, BlockGroupFlags::METADATA | BlockGroupFlags::DATA)?.blocks;
        if how.quota {
            must_be_exact(&fs, &format!("{how:?}, step {steps}"))?;
        }
        if how.reopened || steps % 6 == 1 {
            drop(fs);
            if steps % 6 == 1 {
                must_be_clean(&image, &format!("{how:?}, step {steps}"))?;
                let copy = scratch.path().join("copy");
                std::fs::copy(&image, &copy)?;
                let found = oracle.check(&[&copy])?;
                // With quota it reads what is gone, complains that it cannot, and finds no error.
                assert!(how.quota || found.is_clean(), "{how:?}, step {steps}: btrfs check: {found}");
                let mounted = oracle.mount(&[&copy], "")?;
                run("btrfs", ["subvolume", "sync", &mounted.path().display().to_string()])?;
                mounted.unmount()?;
                oracle.must_be_sound(&[&copy], &format!("{how:?}, step {steps}: the kernel went on"))?;
                std::fs::remove_file(&copy)?;
            }
            fs = open(&image)?;
        }
    }
    assert!(steps >= 8 && moved > 1000, "{how:?}: {steps} steps, {moved} blocks");
    fs.sync()?;
    if how.quota {
        must_be_exact(&fs, &format!("{how:?}, in the end"))?;
    }
    drop(fs);
    must_be_clean(&image, &format!("{how:?}: in the end"))?;
    oracle.must_be_sound(&[&image], &format!("{how:?}: in the end"))?;
    let fs = open(&image)?;
    let root = fs.root(source)?;
    for (n, bytes) in last {
        let file = fs.lookup(&root, name(n).as_bytes())?.unwrap();
        let mut out = vec![0; bytes.len()];
        fs.read(&file, 0, &mut out)?;
        assert!(out == bytes, "{how:?}: {}", name(n));
    }
    Ok(())
}

#[test]
fn deletion_half_way() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    half_way(oracle, HalfWay { quota: false, reopened: false })
}

#[test]
fn deletion_half_way_and_reopened() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    half_way(oracle, HalfWay { quota: false, reopened: true })
}

#[test]
fn deletion_half_way_with_quota() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    half_way(oracle, HalfWay { quota: true, reopened: true })
}

/// Goal: a shared tree of which some blocks were moved and others were not is sound, for our check, too, and can be
/// changed. Method: a subvolume with a snapshot in several metadata groups; one of them moves; then the subvolume is
/// rewritten in part, and then it is deleted, and all groups move.
#[test]
fn one_group_of_a_shared_tree() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 512 << 20)?;
    oracle.mkfs(&["-n", "4096", "-m", "single"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    let source = fs.subvol_create(&top, b"v", &NewSubvol::default())?;
    let root = fs.root(source)?;
    let mut rng = Rng::new(8);
    for n in 0..9000 {
        let file = fs.create(&root, format!("file{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        fs.write(&file, 0, &rng.bytes(1500))?;
    }
    fs.sync()?;
    let there = groups(&fs, BlockGroupFlags::METADATA);
    assert!(there.len() > 1, "{there:?}");
    fs.snapshot(source, &top, b"w", SnapshotOptions::default())?;
    fs.sync()?;
    for (nth, start) in there.into_iter().enumerate() {
        fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
        must_be_clean_at(&image, &fs, &format!("{nth} moved"))?;
        for n in (0..9000).step_by(70) {
            let file = fs.lookup(&root, format!("file{n}").as_bytes())?.unwrap();
            fs.write(&file, 0, &rng.bytes(1000))?;
        }
        fs.sync()?;
        must_be_clean_at(&image, &fs, &format!("{nth} moved, and written to"))?;
    }
    drop(root);
    fs.subvol_delete(source)?;
    while fs.clean(50)? {}
    fs.sync()?;
    must_be_clean_at(&image, &fs, "deleted")?;
    move_all(&fs, BlockGroupFlags::METADATA)?;
    drop((top, fs));
    must_be_clean(&image, "in the end")?;
    oracle.must_be_sound(&[&image], "in the end")?;
    Ok(())
}

/// The same of an image that is open here, at a moment at which nothing is written.
fn must_be_clean_at(image: &Path, _quiet: &Fs, what: &str) -> anyhow::Result<()> {
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy)?;
    must_be_clean(&copy, what)
}

/// Goal: nothing is placed at address 0, nor anywhere before the first superblock's, even if a volume has a group
/// there, as old ones do: a root at 0 would count as none. Method: a volume gets an empty group at 0; all groups like
/// it move, more than once, so that it is the place to move to.
#[test]
fn a_group_at_address_zero() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    /// Chunks of a new volume begin at 1 MiB.
    const LEN: ByteLen = ByteLen(1 << 20);
    for flags in [BlockGroupFlags::SYSTEM, BlockGroupFlags::METADATA, BlockGroupFlags::DATA] {
        let what = format!("{flags:?} at 0");
        let scratch = oracle.scratch()?;
        let image = scratch.image("zero", 512 << 20)?;
        let options = FileOptions::default().write(true);
        let features = FeatureSet::default().free_space_tree(false);
        let device = Arc::new(FileDevice::open(&image, &options)?);
        let mkfs = MkfsOptions::default().features(features).nodesize(Some(4096)).seed([3; 32]);
        oleo_mkfs::make(&[device], &mkfs)?;

        let fs = open(&image)?;
        let volume = fs.engine().volume();
        let plan = volume.propose_chunk(&ChunkWant { flags, len_max: Some(LEN), start: Some(Logical(0)) })?;
        volume.add_chunk(&plan);
        let put = |(key, item): &(Key, Vec<u8>)| Change::put(*key, item.clone());
        let mut chunk_tree: Vec<Change> = plan.dev_items.iter().chain([&plan.chunk_item]).map(put).collect();
        chunk_tree.sort_unstable_by_key(|change| change.key);
        let dev_tree: Vec<Change> = plan.dev_extents.iter().map(put).collect();
        let group =
            BlockGroupItem { used: 0.into(), chunk_objectid: Key::FIRST_CHUNK_TREE.into(), flags: flags.bits().into() };
        let group = Change::put(Key::new(0, ItemType::BLOCK_GROUP_ITEM, plan.map.len.0), group.as_bytes().to_vec());
        fs.engine().stage(|staged| {
            staged.put(TreeId::CHUNK, &chunk_tree)?;
            staged.put(TreeId::DEV, &dev_tree)?;
            staged.put(TreeId::EXTENT, &[group])
        })?;
        fs.sync()?;
        drop(fs);
        must_be_clean(&image, &what)?;

        let fs = open(&image)?;
        let root = fs.root(TreeId::FS)?;
        let mut rng = Rng::new(1);
        for n in 0..300 {
            let file = fs.create(&root, format!("file{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
            fs.write(&file, 0, &rng.bytes(9000))?;
        }
        fs.sync()?;
        for start in groups(&fs, flags).into_iter().filter(|start| start.0 > 0) {
            fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
        }
        let used = fs.engine().space().group(Logical(0))?.used;
        assert!(used.0 > 0, "{what}: nothing went there, so this shows nothing");
        drop((root, fs));
        must_be_clean(&image, &what)?;
        oracle.must_be_sound(&[&image], &what)?;
        // And it can be emptied.
        let fs = open(&image)?;
        fs.engine().relocate_group(Logical(0), &|_| true)?.expect("nobody stops it");
        assert!(!groups(&fs, flags).contains(&Logical(0)), "{what}: it is still there");
        drop(fs);
        must_be_clean(&image, &what)?;
        oracle.must_be_sound(&[&image], &what)?;
    }
    Ok(())
}

/// Goal: if a group counts more bytes as used than are recorded in it, as if a record was lost, none of its seemingly
/// free space is discarded, and moving it soon ends with an error that says so. Method: the count in a group's item is
/// changed; trim and relocation of that group and of another.
#[test]
fn a_group_that_lacks_a_record() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("damaged", 512 << 20)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let fs = open(&image)?;
    let root = fs.root(TreeId::FS)?;
    let mut rng = Rng::new(1);
    let bytes = rng.bytes(3 << 20);
    let file = fs.create(&root, b"file", &NewInode::new(NewKind::File, 0o644))?;
    fs.write(&file, 0, &bytes)?;
    fs.sync()?;
    trim(&fs, &TrimRange::default())?;
    let data = groups(&fs, BlockGroupFlags::DATA)[0];
    let info = fs.engine().space().group(data)?;
    let group = BlockGroupItem {
        used: (info.used.0 + 4096).into(),
        chunk_objectid: Key::FIRST_CHUNK_TREE.into(),
        flags: info.flags.bits().into(),
    };
    let group = Change::put(Key::new(data.0, ItemType::BLOCK_GROUP_ITEM, info.len.0), group.as_bytes().to_vec());
    fs.engine().stage(|staged| staged.put(TreeId::EXTENT, &[group]))?;
    fs.sync()?;
    drop((file, root, fs));

    let fs = open(&image)?;
    // Free space of the group, marked.
    let mark = fs.engine().space().free_runs(data).expect("its free runs")[0].start;
    let marked = rng.bytes(4096);
    fs.engine().volume().write(&[(mark, &marked)])?;
    let error = trim(&fs, &TrimRange::default()).expect_err("it is damaged").to_string();
    assert!(error.contains("block group") && error.contains("used"), "{error}");
    let mut have = vec![0; 4096];
    fs.engine().volume().read_data(mark, &mut have, None)?;
    assert!(have == marked, "what looks free there is discarded");
    let begun = Instant::now();
    let error = fs.engine().relocate_group(data, &|_| true).expect_err("it cannot be emptied").to_string();
    assert!(error.contains("block group") && error.contains("used"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    for start in groups(&fs, BlockGroupFlags::METADATA) {
        fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
    }
    let file = fs.lookup(&fs.root(TreeId::FS)?, b"file")?.unwrap();
    let mut have = vec![0; bytes.len()];
    fs.read(&file, 0, &mut have)?;
    assert!(have == bytes);
    Ok(())
}
