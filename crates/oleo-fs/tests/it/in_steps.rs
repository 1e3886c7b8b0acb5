//! Operations that change any number of one file's items: they proceed in steps, with commits in between.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::data::{CloneRange, KeepSize};
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::disk;
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const SECTOR: u64 = 4096;
/// From one extent to the next: a hole lies between.
const STRIDE: u64 = 2 * SECTOR;
const EXTENTS: u64 = 12_000;
/// Dirty inodes from which on there is a commit: so many times sixteen items.
const INODES_MAX: usize = 150;
/// Commits that as many items as the file has must cause at least: half of what the bound asks for.
const COMMITS_MIN: u64 = EXTENTS / (INODES_MAX as u64 * 16) / 2;

fn open(device: Arc<dyn Device>) -> Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default().dirty_inodes_max(INODES_MAX))?)
}

/// What a sector holds.
fn contents(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(SECTOR as usize / 8)
}

fn file(fs: &Fs, name: &str) -> Result<InodeRef> {
    Ok(fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

/// A volume with a file of many extents, all of it on disk.
fn filled() -> Result<(Arc<MemDevice>, Fs, InodeRef)> {
    let device = Arc::new(MemDevice::new(1 << 30));
    let shared: Arc<dyn Device> = device.clone();
    make(std::slice::from_ref(&shared), &MkfsOptions::default())?;
    let fs = open(shared)?;
    let f = file(&fs, "f")?;
    for n in 0..EXTENTS {
        fs.write(&f, n * STRIDE, &contents(n))?;
    }
    fs.sync()?;
    Ok((device, fs, f))
}

/// The commits that `work` causes.
fn commits(fs: &Fs, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = fs.engine().generation().0;
    work()?;
    Ok(fs.engine().generation().0 - before)
}

/// What would be there after a crash now, as a volume of its own; its last commit is all that it has.
fn crashed(device: &MemDevice) -> Result<Arc<dyn Device>> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes)?;
    let copy = MemDevice::new(device.len());
    copy.write_at(0, &bytes)?;
    Ok(Arc::new(copy))
}

fn check(device: &dyn Device, what: &str) -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let path = scratch.image("crashed", device.len())?;
    disk::store(device, &path)?;
    oracle.must_be_sound(&[&path], what)
}

/// Goal: cutting a file of many extents short does not keep all of them in one transaction, and a crash in the middle leaves
/// a shorter file with all its bytes.
/// Method: a bound of a few hundred items; truncate, count commits; what is on disk before the last of them is opened
/// as after a crash: its size lies between, and what is before it is as written.
#[test]
fn truncation_commits_in_between() -> Result<()> {
    let (device, fs, f) = filled()?;
    let keep = 100;
    let made = commits(&fs, || Ok(fs.truncate(&f, keep * STRIDE)?))?;
    ensure!(made >= COMMITS_MIN, "{made} commits");
    let copy = crashed(&device)?;
    check(&*copy, "a truncation half done")?;
    let again = open(copy)?;
    let f = again.lookup(&again.root(TreeId::FS)?, b"f")?.context("f")?;
    let size = again.attr(&f).size;
    ensure!(keep * STRIDE < size && size < (EXTENTS - 1) * STRIDE, "{size} bytes are left");
    for n in 0..size.div_ceil(STRIDE) {
        let mut out = vec![0; SECTOR as usize];
        again.read(&f, n * STRIDE, &mut out)?;
        let there = (size - n * STRIDE).min(SECTOR) as usize;
        ensure!(out[..there] == contents(n)[..there], "sector {n}");
    }
    Ok(())
}

/// Goal: the same for a hole, a preallocation of many gaps, and a clone. Method: count commits; compare what is read.
#[test]
fn holes_gaps_and_clones_commit_in_between() -> Result<()> {
    let (device, fs, f) = filled()?;
    let end = EXTENTS * STRIDE;
    let g = file(&fs, "g")?;
    let cloned = commits(&fs, || Ok(fs.clone_range(&f, &g, &CloneRange { from: 0, len: 0, to: 0 })?))?;
    let punched = commits(&fs, || Ok(fs.punch_hole(&f, SECTOR, end - STRIDE)?))?;
    let filled = commits(&fs, || Ok(fs.preallocate(&g, 0, end, KeepSize::No)?))?;
    for (what, made) in [("clone", cloned), ("hole", punched), ("preallocation", filled)] {
        ensure!(made >= COMMITS_MIN, "{what}: {made} commits");
    }
    fs.sync()?;
    let mut out = vec![0; SECTOR as usize];
    for n in 0..EXTENTS {
        fs.read(&g, n * STRIDE, &mut out)?;
        ensure!(out == contents(n), "sector {n} of the clone");
    }
    fs.read(&f, 0, &mut out)?;
    ensure!(out == contents(0) && fs.seek_data(&f, SECTOR)?.is_none_or(|at| at >= end - SECTOR), "what was punched");
    check(&*device, "after holes, gaps and clones")
}

/// Goal: a file that is deleted in steps is gone in the end, also where a crash comes in between: its orphan item leads
/// whoever opens the volume to what is left of it.
/// Method: unlink, some steps, a commit; the volume as after a crash is sound, and after cleaning all space is back.
#[test]
fn deletion_goes_on_after_a_crash() -> Result<()> {
    let (device, fs, f) = filled()?;
    fs.unlink(&fs.root(TreeId::FS)?, b"f")?;
    drop(f);
    let made = commits(&fs, || {
        // Each call takes a step or two.
        for _ in 0..EXTENTS / 600 {
            fs.clean(1)?;
        }
        Ok(())
    })?;
    ensure!(made > 0, "some of it is on disk");
    let copy = crashed(&device)?;
    check(&*copy, "a deletion half done")?;
    let again = open(copy.clone())?;
    let used = |fs: &Fs| fs.engine().super_block().bytes_used.get();
    let before = used(&again);
    ensure!(before > 100 * SECTOR, "part of the file is there: {before} bytes");
    while again.clean(1000)? {}
    again.sync()?;
    let left = used(&again);
    ensure!(left < 64 * SECTOR, "{left} bytes of {before} are left");
    drop(again);
    check(&*copy, "after cleaning up")
}
