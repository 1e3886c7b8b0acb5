//! Much work in parallel: subvolumes with very many shared extents go, files with very many are cloned, while others write.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{BackRef, ItemType, TreeId, data_ref_hash};
use oleo_fs::data::CloneRange;
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_mkfs::MkfsOptions;
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const SECTOR: u64 = 4096;
/// Files of the subvolume, and extents of each: every one a reference to one of [`SHARED`] sectors.
const FILES: u64 = 60;
const EXTENTS: u64 = 400;
const SHARED: u64 = 64;
/// What stages may leave for a commit here.
const OWED_MAX: usize = 4096;
/// Blocks of a step of the cleaner, and the most that one of 4 KiB can make it record: two for each of a node's children.
const STEP_BLOCKS: usize = 16;
const RECORDS_PER_BLOCK: usize = 2 * 121 + 2;

fn open(image: &Path, fs: &FsOptions) -> Result<Fs> {
    open_with(image, fs, OWED_MAX)
}

fn open_with(image: &Path, fs: &FsOptions, staged_ref_changes_max: usize) -> Result<Fs> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?);
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let options = EngineOptions { staged_ref_changes_max, ..EngineOptions::default() };
    Ok(Fs::open(Engine::open(Arc::new(volume), &options)?, fs)?)
}

/// An empty volume with small blocks, so that there are many.
fn make(image: &Path) -> Result<()> {
    let device = FileDevice::open(image, &FileOptions::default().write(true))?;
    oleo_mkfs::make(&[Arc::new(device)], &MkfsOptions::default().nodesize(Some(4096)))?;
    Ok(())
}

fn file(fs: &Fs, dir: &InodeRef, name: &str) -> Result<InodeRef> {
    Ok(fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?)
}

/// A file of so many extents, no two of them neighbours on disk, all of them shared with `source`.
fn woven(fs: &Fs, source: &InodeRef, into: &InodeRef) -> Result<()> {
    for n in 0..EXTENTS {
        // An odd step through the source's sectors: what follows in the file does not follow on disk.
        let range = CloneRange { from: n * 27 % SHARED * SECTOR, to: n * SECTOR, len: SECTOR };
        fs.clone_range(source, into, &range)?;
    }
    Ok(())
}

/// Subvolume `a` of so many woven files and its snapshot `b`, in directory `/`.
fn fill(fs: &Fs, files: u64) -> Result<[TreeId; 2]> {
    let root = fs.root(TreeId::FS)?;
    let a = fs.subvol_create(&root, b"a", &NewSubvol::default())?;
    let dir = fs.root(a)?;
    let source = file(fs, &dir, "source")?;
    fs.write(&source, 0, &vec![7; (SHARED * SECTOR) as usize])?;
    for n in 0..files {
        woven(fs, &source, &file(fs, &dir, &format!("woven{n}"))?)?;
    }
    fs.sync()?;
    let b = fs.snapshot(a, &root, b"b", SnapshotOptions::default())?;
    fs.sync()?;
    Ok([a, b])
}

/// What one thread does over and over while something else goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// A file is made, written and synced.
    Sync,
    /// A name is made and goes.
    Names,
    /// A file is written to, nothing is synced.
    Write,
}

const WORKS: [Work; 3] = [Work::Sync, Work::Names, Work::Write];

/// Does it until `over`; how long each took.
fn keep_on(fs: &Fs, dir: &InodeRef, work: Work, turn: &str, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let written = file(fs, dir, &format!("{turn}-{work:?}"))?;
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        let n = times.len() as u64;
        match work {
            Work::Sync => {
                let new = file(fs, dir, &format!("{turn}-{n}"))?;
                fs.write(&new, 0, b"a few bytes")?;
                fs.fsync(&new)?;
            }
            Work::Names => {
                file(fs, dir, &format!("{turn}-name"))?;
                fs.unlink(dir, format!("{turn}-name").as_bytes())?;
            }
            Work::Write => drop(fs.write(&written, n % 64 * 16384, &[n as u8; 16384])?),
        }
        times.push(start.elapsed());
    }
    Ok(times)
}

/// How long something took in the middle, at the longest, and how often it was done.
struct Times {
    median: Duration,
    longest: Duration,
    count: usize,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Times {
        times.sort();
        let middle = times.get(times.len() / 2).copied().unwrap_or_default();
        Times { median: middle, longest: times.last().copied().unwrap_or_default(), count: times.len() }
    }
}

/// All [`WORKS`] in parallel, each in a thread, as long as `f` runs here.
fn beside(fs: &Fs, dir: &InodeRef, turn: &str, f: impl FnOnce() -> Result<()>) -> Result<[Times; 3]> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = WORKS.map(|work| {
            scope.spawn({
                let over = &over;
                move || keep_on(fs, dir, work, turn, over)
            })
        });
        let done = f();
        over.store(true, Ordering::Relaxed);
        let times = threads.map(|thread| thread.join().unwrap());
        done?;
        let [a, b, c] = times;
        Ok([Times::of(a?), Times::of(b?), Times::of(c?)])
    })
}

/// How much is deleted, and how.
struct Deletion {
    files: u64,
    staged_ref_changes_max: usize,
    /// Blocks of a step of the cleaner.
    step_blocks: usize,
    image_len: u64,
}

/// A subvolume and its snapshot are deleted, one after the other (the first turns everything to full backrefs, the second frees
/// it), step by step without a commit by us, while other threads work; what is left for a commit is looked at after each step, and
/// `btrfs check` verifies. How long the others took without the deletion, and with it.
fn delete_beside(what: &Deletion) -> Result<Option<[[Times; 3]; 2]>> {
    let Some(oracle) = oracle() else { return Ok(None) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("deletion", what.image_len)?;
    make(&image)?;
    let fs = open_with(&image, &FsOptions::default(), what.staged_ref_changes_max)?;
    let subvols = fill(&fs, what.files)?;
    let root = fs.root(TreeId::FS)?;
    let idle = beside(&fs, &root, "idle", || {
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    })?;
    let (mut owed_max, begun, start) = (0, fs.engine().durable(), Instant::now());
    let busy = beside(&fs, &root, "busy", || {
        for subvol in subvols {
            fs.subvol_delete(subvol)?;
            while fs.clean(what.step_blocks)? {
                owed_max = owed_max.max(fs.engine().staged_ref_changes());
            }
        }
        Ok(())
    })?;
    let (took, commits) = (start.elapsed(), fs.engine().durable().0 - begun.0);
    let extents = what.files * EXTENTS;
    println!("2 x {extents} references deleted in {took:?}; owed at most {owed_max} records, {commits} commits");
    for ((work, idle), busy) in WORKS.iter().zip(&idle).zip(&busy) {
        println!(
            "{work:?}: {:?} in the middle, {:?} at the longest; during deletion {:?}, {:?}, {} of them",
            idle.median, idle.longest, busy.median, busy.longest, busy.count
        );
    }
    let bound = what.staged_ref_changes_max + what.step_blocks * RECORDS_PER_BLOCK;
    ensure!(owed_max <= bound, "{owed_max} records were left for a commit, more than {bound}");
    ensure!(commits >= extents / (2 * what.staged_ref_changes_max as u64), "{commits} commits");
    fs.sync()?;
    drop((root, fs));
    oracle.must_be_sound(&[&image], "after two large deletions")?;
    Ok(Some([idle, busy]))
}

/// Goal: a subvolume with very many shared extents goes in commits of bounded size, and other operations complete meanwhile.
/// Method: [`delete_beside`] in small, with small steps. How long operations take is measured by
/// [`a_million_shared_extents_go_and_nobody_waits_long`] alone: other programs may use the machine here.
#[test]
fn large_deletions_are_bounded_and_others_get_on() -> Result<()> {
    let what =
        Deletion { files: FILES, staged_ref_changes_max: OWED_MAX, step_blocks: STEP_BLOCKS, image_len: 1 << 30 };
    let Some([_, busy]) = delete_beside(&what)? else { return Ok(()) };
    for (work, busy) in WORKS.iter().zip(&busy) {
        ensure!(busy.count >= 2, "{work:?} got on: {} times", busy.count);
    }
    Ok(())
}

/// Goal and method as above, with a million shared extents, the options that programs have, and the cleaner's steps; nobody waits
/// longer than a commit of what may be owed takes.
#[test]
#[ignore = "by command, in release: takes a minute"]
fn a_million_shared_extents_go_and_nobody_waits_long() -> Result<()> {
    let staged_ref_changes_max = EngineOptions::default().staged_ref_changes_max;
    let what = Deletion { files: 2500, staged_ref_changes_max, step_blocks: 256, image_len: 8 << 30 };
    let Some([_, busy]) = delete_beside(&what)? else { return Ok(()) };
    for (work, busy) in WORKS.iter().zip(&busy) {
        ensure!(busy.longest <= Duration::from_secs(2), "{work:?} waited for {:?}", busy.longest);
    }
    Ok(())
}

/// Goal: cloning files with many extents over and over does not pile up changes without limit.
/// Method: a limit of 100 inodes, which is one of 1600 items; a woven file is cloned thirty times without a sync; the items
/// that wait stay under twice the limit and one clone, and commits have happened.
#[test]
fn clones_are_pressure() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("clones", 1 << 30)?;
    make(&image)?;
    let fs = open(&image, &FsOptions::default().dirty_inodes_max(100))?;
    let root = fs.root(TreeId::FS)?;
    let source = file(&fs, &root, "source")?;
    fs.write(&source, 0, &vec![7; (SHARED * SECTOR) as usize])?;
    let first = file(&fs, &root, "woven")?;
    woven(&fs, &source, &first)?;
    fs.sync()?;
    let begun = fs.engine().durable();
    let mut most = 0;
    for n in 0..30 {
        let clone = file(&fs, &root, &format!("clone{n}"))?;
        fs.clone_range(&first, &clone, &CloneRange { from: 0, to: 0, len: 0 })?;
        most = most.max(fs.engine().open_items());
    }
    let commits = fs.engine().durable().0 - begun.0;
    // A clone announces at most eight items for each extent.
    ensure!(most <= 2 * 1600 + 8 * EXTENTS, "{most} items waited");
    ensure!(commits >= 2, "{commits} commits");
    fs.sync()?;
    drop((root, source, first, fs));
    oracle.must_be_sound(&[&image], "after many clones")
}

/// Goal: settling costs what has changed, however many references an extent has; each of them is found when it goes.
/// Method: one block is cloned 20 000 times into a file, with a commit every 500 (so the items of references that all commits
/// together look at would be 400 000, if each looked at all); the clones go in random order; then a source with many leaves gets
/// 150 snapshots, a commit after each, is changed, and its snapshots are deleted. What was looked at is counted, and
/// `btrfs check` verifies.
#[test]
fn an_extent_with_many_references_costs_what_changes() -> Result<()> {
    const CLONES: u64 = 20_000;
    const CLONES_PER_COMMIT: usize = 500;
    const SNAPSHOTS: u64 = 150;
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("many-references", 1 << 30)?;
    make(&image)?;
    let fs = open(&image, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let source = file(&fs, &root, "source")?;
    fs.write(&source, 0, &vec![7; SECTOR as usize])?;
    let clones = file(&fs, &root, "clones")?;
    let mut order: Vec<u64> = (0..CLONES).collect();
    let mut rng = Rng::new(5);
    for i in 0..order.len() {
        order.swap(i, i + rng.below(CLONES - i as u64) as usize);
    }
    let begun = fs.engine().ref_items_read();
    let read = || fs.engine().ref_items_read() - begun;
    for part in order.chunks(CLONES_PER_COMMIT) {
        for n in part {
            fs.clone_range(&source, &clones, &CloneRange { from: 0, to: n * SECTOR, len: SECTOR })?;
        }
        fs.sync()?;
    }
    let cloned = read();
    for part in order.chunks(CLONES_PER_COMMIT * 4) {
        for n in part {
            fs.punch_hole(&clones, n * SECTOR, SECTOR)?;
        }
        fs.sync()?;
    }
    let punched = read() - cloned;
    oracle.must_be_sound(&[&image], "after all clones went")?;
    let subvol = fs.subvol_create(&root, b"shared", &NewSubvol::default())?;
    let dir = fs.root(subvol)?;
    for n in 0..300 {
        fs.write(&file(&fs, &dir, &format!("file{n}"))?, 0, b"inline")?;
    }
    fs.sync()?;
    let tree = fs.engine().root(subvol)?.context("its tree")?;
    let children = fs.engine().blocks().root_node(&tree)?.len() as u64;
    let before = read();
    let mut snapshots = Vec::new();
    for n in 0..SNAPSHOTS {
        snapshots.push(fs.snapshot(subvol, &root, format!("snapshot{n}").as_bytes(), SnapshotOptions::default())?);
        fs.sync()?;
    }
    let snapped = read() - before;
    oracle.must_be_sound(&[&image], "with many snapshots")?;
    for n in 0..300 {
        fs.write(&file(&fs, &dir, &format!("later{n}"))?, 0, b"inline, too")?;
    }
    for n in snapshots {
        fs.subvol_delete(n)?;
        while fs.clean(STEP_BLOCKS)? {}
        fs.sync()?;
    }
    let dropped = read() - before - snapped;
    println!(
        "items looked at: {cloned} by clones, {punched} by holes, {snapped} by snapshots of {children}, {dropped} by dropping"
    );
    ensure!(cloned <= 2 * CLONES, "{cloned} items were looked at for {CLONES} clones");
    ensure!(punched <= 2 * CLONES, "{punched} items were looked at for {CLONES} holes");
    ensure!(
        snapped <= 2 * SNAPSHOTS * children,
        "{snapped} items were looked at for {SNAPSHOTS} snapshots of {children}"
    );
    ensure!(
        dropped <= 4 * SNAPSHOTS * children,
        "{dropped} items were looked at for {SNAPSHOTS} snapshots of {children}"
    );
    drop((root, source, clones, dir, fs));
    oracle.must_be_sound(&[&image], "after all snapshots went")
}

/// Goal: two references of one extent whose hashes are equal, of which the first has gone, stay two: what is added to the second
/// finds it behind the gap, and what drops it, too.
/// Method: offsets in a file whose hashes meet are searched for; one extent of two blocks gets so many references that they have
/// items of their own, then those two; the first goes, the second block joins the second, then it goes; `btrfs check`
/// verifies each.
#[test]
fn references_whose_hashes_meet() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("hashes", 1 << 30)?;
    make(&image)?;
    let fs = open(&image, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let source = file(&fs, &root, "source")?;
    fs.write(&source, 0, &vec![7; (2 * SECTOR) as usize])?;
    let clones = file(&fs, &root, "clones")?;
    let share = |from: u64, to: u64| fs.clone_range(&source, &clones, &CloneRange { from, to, len: SECTOR });
    for n in 1..200 {
        share(0, 2 * n * SECTOR)?;
    }
    fs.sync()?;
    let mut rng = Rng::new(1);
    let mut known = HashMap::new();
    let (first, second) = loop {
        // Beyond what is there; each an even sector, so that the one behind it is nobody's.
        let offset = (1 << 20) + (rng.below(1 << 40) << 13);
        let hash = data_ref_hash(TreeId::FS, clones.ino(), offset);
        if let Some(other) = known.insert(hash, offset).filter(|other| *other != offset) {
            break (other, offset);
        }
    };
    share(0, first)?;
    fs.sync()?;
    share(0, second)?;
    fs.sync()?;
    oracle.must_be_sound(&[&image], "with two whose hashes meet")?;
    fs.punch_hole(&clones, first, SECTOR)?;
    fs.sync()?;
    oracle.must_be_sound(&[&image], "after the first went")?;
    share(SECTOR, second + SECTOR)?;
    fs.sync()?;
    let hash = data_ref_hash(TreeId::FS, clones.ino(), first);
    let tree = fs.engine().root(TreeId::EXTENT)?.context("the extent tree")?;
    let mut cursor = fs.engine().blocks().cursor(&tree);
    let mut found = Vec::new();
    while cursor.next()? {
        let (key, item) = cursor.current().context("an item")?;
        if key.item_type == ItemType::EXTENT_DATA_REF && (hash..hash + 4).contains(&key.offset) {
            found.push((key.offset - hash, BackRef::parse_keyed(&key, item)?.count()));
        }
    }
    ensure!(found == [(1, 2)], "one item for the second, behind a gap: {found:?}");
    oracle.must_be_sound(&[&image], "after the second got another")?;
    fs.punch_hole(&clones, second, 2 * SECTOR)?;
    fs.sync()?;
    oracle.must_be_sound(&[&image], "after both went")?;
    Ok(())
}

/// Goal: while a subvolume is taken apart an fsync costs a commit of the log and no more, and what it says is durable is.
/// Method: a file is written and synced between the steps; the image as it is then is opened a second time, by us and the
/// kernel.
#[test]
fn syncs_beside_a_deletion_are_logged() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", 300 << 20)?;
    make(&image)?;
    let fs = open_with(&image, &FsOptions::default(), 1 << 20)?;
    let [a, _] = fill(&fs, 12)?;
    fs.subvol_delete(a)?;
    let root = fs.root(TreeId::FS)?;
    let written = file(&fs, &root, "written")?;
    fs.sync()?;
    let before = fs.log_stats();
    let (mut steps, mut content) = (0u64, Vec::new());
    while fs.clean(4)? {
        steps += 1;
        content = format!("after step {steps}").into_bytes();
        fs.write(&written, 0, &content)?;
        fs.fsync(&written)?;
        if steps.is_multiple_of(8) {
            let crashed = scratch.path().join("crashed");
            std::fs::copy(&image, &crashed)?;
            let mounted = oracle.mount(&[&crashed], "")?;
            ensure!(std::fs::read(mounted.path().join("written"))? == content, "after {steps} steps");
            mounted.unmount()?;
            oracle.must_be_sound(&[&crashed], &format!("after {steps} steps"))?;
        }
    }
    let after = fs.log_stats();
    ensure!(steps > 8, "{steps} steps only");
    ensure!(after.full_commits == before.full_commits, "{after:?}");
    ensure!(after.log_commits - before.log_commits == steps, "{after:?}");
    fs.sync()?;
    drop((written, root, fs));
    oracle.must_be_sound(&[&image], "in the end")?;
    let mounted = oracle.mount(&[&image], "ro")?;
    ensure!(std::fs::read(mounted.path().join("written"))? == content);
    mounted.unmount()
}
