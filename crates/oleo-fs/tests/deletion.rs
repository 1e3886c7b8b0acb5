//! Much at once: subvolumes with very many shared extents go, files with very many are cloned, while others write.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::TreeId;
use oleo_fs::data::CloneRange;
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_mkfs::MkfsOptions;
use oleo_sim::oracle::oracle;
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
    let device: Arc<dyn Device> =
        Arc::new(FileDevice::open(image, &FileOptions { write: true, ..FileOptions::default() })?);
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let options = EngineOptions { owed_records_max: OWED_MAX, ..EngineOptions::default() };
    Ok(Fs::open(Engine::open(Arc::new(volume), &options)?, fs)?)
}

/// An empty volume with small blocks, so that there are many.
fn make(image: &Path) -> Result<()> {
    let device = FileDevice::open(image, &FileOptions { write: true, ..FileOptions::default() })?;
    oleo_mkfs::make(&[Arc::new(device)], &MkfsOptions { nodesize: Some(4096), ..MkfsOptions::default() })?;
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

/// Subvolume `a` of [`FILES`] woven files and its snapshot `b`, in directory `/`.
fn fill(fs: &Fs) -> Result<[TreeId; 2]> {
    let root = fs.root(TreeId::FS)?;
    let a = fs.subvol_create(&root, b"a", &NewSubvol::default())?;
    let dir = fs.root(a)?;
    let source = file(fs, &dir, "source")?;
    fs.write(&source, 0, &vec![7; (SHARED * SECTOR) as usize])?;
    for n in 0..FILES {
        woven(fs, &source, &file(fs, &dir, &format!("woven{n}"))?)?;
    }
    fs.sync()?;
    let b = fs.snapshot(a, &root, b"b", SnapshotOptions::default())?;
    fs.sync()?;
    Ok([a, b])
}

/// Creates a file and syncs it; how long that took.
fn create_and_sync(fs: &Fs, dir: &InodeRef, name: &str) -> Result<Duration> {
    let start = Instant::now();
    let new = file(fs, dir, name)?;
    fs.write(&new, 0, b"a few bytes")?;
    fs.fsync(&new)?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Goal: a subvolume with very many shared extents goes in commits of bounded size, and the file system stays responsive.
/// Method: a subvolume and its snapshot are deleted, one after the other (the first turns everything to full backrefs, the
/// second frees it), step by step without a commit by us, while another thread makes files and syncs them; what is left for
/// a commit is looked at after each step; the time of a create and fsync is compared with the time without deletion;
/// `btrfs check` judges.
#[test]
fn large_deletions_are_bounded_and_others_get_on() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("deletion", 1 << 30)?;
    make(&image)?;
    let fs = open(&image, &FsOptions::default())?;
    let subvols = fill(&fs)?;
    let root = fs.root(TreeId::FS)?;
    let idle = (0..30).map(|n| create_and_sync(&fs, &root, &format!("idle{n}"))).collect::<Result<Vec<_>>>()?;
    let over = AtomicBool::new(false);
    let (mut owed_max, begun) = (0, fs.engine().durable());
    let busy = std::thread::scope(|scope| -> Result<Vec<Duration>> {
        let writer = scope.spawn(|| -> Result<Vec<Duration>> {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                times.push(create_and_sync(&fs, &root, &format!("busy{}", times.len()))?);
            }
            Ok(times)
        });
        let mut delete = || -> Result<()> {
            for subvol in subvols {
                fs.subvol_delete(subvol)?;
                while fs.clean(STEP_BLOCKS)? {
                    owed_max = owed_max.max(fs.engine().owed_records());
                }
            }
            Ok(())
        };
        let deleted = delete();
        over.store(true, Ordering::Relaxed);
        deleted?;
        writer.join().unwrap()
    })?;
    let commits = fs.engine().durable().0 - begun.0;
    let (count, idle, busy) = (busy.len(), median(idle), median(busy));
    println!(
        "owed at most {owed_max}, {commits} commits; create and fsync {idle:?}, during deletion {busy:?}, {count} of them"
    );
    ensure!(owed_max <= OWED_MAX + STEP_BLOCKS * RECORDS_PER_BLOCK, "{owed_max} records were left for a commit");
    ensure!(commits >= FILES * EXTENTS / (2 * OWED_MAX as u64), "{commits} commits");
    ensure!(count >= 10, "the other thread got on: {count} files");
    ensure!(busy <= 30 * idle + Duration::from_millis(100), "{busy:?} instead of {idle:?}");
    fs.sync()?;
    drop((root, fs));
    oracle.must_be_sound(&[&image], "after two large deletions")
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
    let fs = open(&image, &FsOptions { dirty_inodes_max: 100, ..FsOptions::default() })?;
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
