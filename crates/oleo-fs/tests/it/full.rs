//! A small volume that eight threads fill with small files until nothing more fits, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::{InodeFlags, TreeId};
use oleo_fs::data::KeepSize;
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, SetAttr, SnapshotOptions};
use oleo_mkfs::{FeatureSet, MkfsOptions, Profile, make};
use oleo_sim::budget::{Size, budget};
use oleo_sim::disk;
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const MIB: u64 = 1 << 20;
const THREADS: usize = 8;
const FILES_MAX: usize = 100_000;
const FIRST_FILES: usize = 200;
const FILE_LEN: usize = 1024;

fn open(device: Arc<dyn Device>) -> Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

/// What a file holds.
fn contents(thread: usize, n: usize) -> Vec<u8> {
    format!("{thread}/{n} ").into_bytes().into_iter().cycle().take(FILE_LEN).collect()
}

/// Makes one thread's files until one is refused; how many were accepted.
fn fill(fs: &Fs, dir: &InodeRef, thread: usize) -> Result<usize> {
    for n in 0..FILES_MAX {
        let name = format!("file-{n}");
        let file = match fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644)) {
            Ok(file) => file,
            Err(FsError::NoSpace) => return Ok(n),
            Err(e) => return Err(e).context("creating"),
        };
        match fs.write(&file, 0, &contents(thread, n)) {
            Ok(()) => {}
            Err(FsError::NoSpace) => {
                drop(file);
                fs.unlink(dir, name.as_bytes()).context("deleting what was refused")?;
                return Ok(n);
            }
            Err(e) => return Err(e).context("writing"),
        }
    }
    anyhow::bail!("it never fills up")
}

fn on_all(work: impl Fn(usize) -> Result<usize> + Sync) -> Result<Vec<usize>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let work = &work;
                    move || work(thread)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// A file takes all room for data, in smaller and smaller steps.
fn take_all(fs: &Fs, name: &str, steps: &[u64]) -> Result<()> {
    let big = fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
    let mut at = 0;
    for step in steps {
        while fs.preallocate(&big, at, *step, KeepSize::No).is_ok() {
            at += step;
        }
    }
    Ok(())
}

/// Who writes back and commits beside the threads.
fn attend<R>(fs: &Fs, work: impl FnOnce() -> R) -> R {
    let over = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while over.load(Ordering::Relaxed) == 0 {
                if fs.wait_write_back(std::time::Duration::from_millis(20)) {
                    let _ = fs.write_back();
                }
            }
        });
        let done = work();
        over.store(1, Ordering::Relaxed);
        done
    })
}

/// Goal: what was accepted has a place, and deleting always works, however little room there is and however many files wait to be
/// written out. Method: a file takes all room for data, so that small files fill the metadata; then rounds of filling by eight
/// threads, a look at what is there after opening anew (every second round), deleting all of it with eight threads and syncing.
fn rounds(len: u64, opts: &MkfsOptions, attended: bool) -> Result<()> {
    let device = Arc::new(MemDevice::new(len));
    let shared: Arc<dyn Device> = device.clone();
    make(std::slice::from_ref(&shared), opts)?;
    let mut fs = open(shared.clone())?;
    let top = fs.root(TreeId::FS)?;
    let spare = fs.create(&top, b"spare", &NewInode::new(NewKind::File, 0o644))?;
    fs.preallocate(&spare, 0, 8 * MIB, KeepSize::No).context("taking spare room")?;
    // Metadata gets its share before data has it all.
    for n in 0..FIRST_FILES {
        let name = format!("first-{n}");
        let file = fs.create(&top, name.as_bytes(), &NewInode::new(NewKind::File, 0o644)).context(name)?;
        fs.write(&file, 0, &contents(0, n)).context("writing the first files")?;
    }
    fs.sync().context("first sync")?;
    take_all(&fs, "big", &[4 * MIB, MIB, 64 << 10])?;
    drop(spare);
    fs.unlink(&top, b"spare").context("deleting the spare room")?;
    for n in 0..FIRST_FILES {
        fs.unlink(&top, format!("first-{n}").as_bytes()).context("deleting the first files")?;
    }
    drop(top);
    fs.sync().context("sync before the rounds")?;
    let mut first = 0;
    let count = if budget().size == Size::Ci { 2 } else { 4 };
    for round in 0..count {
        let dirs = |fs: &Fs| -> Result<Vec<InodeRef>> {
            let top = fs.root(TreeId::FS)?;
            let dir = |thread: usize| -> Result<InodeRef> {
                let name = format!("dir-{thread}");
                match fs.lookup(&top, name.as_bytes())? {
                    Some(dir) => Ok(dir),
                    None => Ok(fs
                        .create(&top, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755))
                        .context("a directory")?),
                }
            };
            (0..THREADS).map(dir).collect()
        };
        let made = {
            let dirs = dirs(&fs)?;
            let filled = || on_all(|thread| fill(&fs, &dirs[thread], thread));
            if attended { attend(&fs, filled) } else { filled() }.with_context(|| format!("filling, round {round}"))?
        };
        let all: usize = made.iter().sum();
        ensure!(all > 100, "only {all} files fit");
        first = if round == 0 { all } else { first };
        ensure!(all * 10 > first * 7, "{first} files fit at first, {all} in round {round}");
        if round % 2 == 0 {
            fs.sync().with_context(|| format!("sync, round {round}"))?;
            drop(fs);
            fs = open(shared.clone())?;
        }
        let dirs = dirs(&fs)?;
        on_all(|thread| {
            for n in 0..made[thread] {
                let name = format!("file-{n}");
                if n % 7 == round {
                    let file = fs.lookup(&dirs[thread], name.as_bytes())?.context("a file is gone")?;
                    let mut data = vec![0; FILE_LEN + 1];
                    ensure!(fs.read(&file, 0, &mut data)? == FILE_LEN, "{name} has another length");
                    ensure!(data[..FILE_LEN] == contents(thread, n), "{name} has changed");
                }
                fs.unlink(&dirs[thread], name.as_bytes()).with_context(|| format!("deleting {name}, round {round}"))?;
            }
            Ok(0)
        })?;
        fs.sync().with_context(|| format!("sync of the deletion, round {round}"))?;
    }
    ensure!(fs.poisoned_by().is_none());
    drop(fs);
    if let Some(oracle) = oracle() {
        let scratch = oracle.scratch()?;
        let image = scratch.image("full", device.len())?;
        disk::store(&*device, &image)?;
        oracle.must_be_sound(&[&image], "filled and emptied")?;
    }
    Ok(())
}

#[test]
fn doubled_metadata() -> Result<()> {
    rounds(256 * MIB, &MkfsOptions::default(), false)
}

#[test]
fn doubled_metadata_written_back() -> Result<()> {
    rounds(256 * MIB, &MkfsOptions::default(), true)
}

#[test]
fn single_metadata() -> Result<()> {
    rounds(160 * MIB, &MkfsOptions::default().metadata(Some(Profile::Single)), true)
}

#[test]
fn mixed() -> Result<()> {
    let features = FeatureSet::default().mixed(true);
    rounds(64 * MIB, &MkfsOptions::default().features(features), true)
}

/// Goal: on a volume without room for data, parts of sectors of a file that is not copied on write become zeros where they are: those
/// beside a hole, and those behind the old end of a file that grows. If a snapshot shares them, that is refused and changes nothing.
#[test]
fn zeros_in_place() -> Result<()> {
    const SECTOR: u64 = 4096;
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(160 * MIB));
    make(std::slice::from_ref(&device), &MkfsOptions::default().metadata(Some(Profile::Single)))?;
    let fs = open(device)?;
    let top = fs.root(TreeId::FS)?;
    let file = fs.create(&top, b"file", &NewInode::new(NewKind::File, 0o644))?;
    let flags = InodeFlags::NODATASUM | InodeFlags::NODATACOW;
    fs.set_attr(&file, &SetAttr::default().flags(Some(flags)))?;
    let mut model = vec![0xab; 10 * SECTOR as usize + 100];
    fs.write(&file, 0, &model)?;
    fs.sync()?;
    take_all(&fs, "big", &[4 * MIB, MIB, 64 << 10, SECTOR])?;
    let other = fs.create(&top, b"other", &NewInode::new(NewKind::File, 0o644))?;
    let refused = fs.write(&other, 0, &[1; SECTOR as usize]);
    ensure!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    let is_model = |model: &[u8]| -> Result<()> {
        let mut bytes = vec![1; model.len() + 1];
        ensure!(fs.read(&file, 0, &mut bytes)? == model.len(), "the length");
        ensure!(bytes[..model.len()] == *model, "the bytes");
        Ok(())
    };
    // Each within its sectors: at the beginning of one, in the middle, over the end of one, and from the middle of one to that of another.
    for (at, end) in
        [(0, 512), (SECTOR + 700, SECTOR + 800), (3 * SECTOR - 50, 3 * SECTOR), (4 * SECTOR + 9, 7 * SECTOR + 9)]
    {
        fs.punch_hole(&file, at, end - at).with_context(|| format!("punching {at}..{end}"))?;
        model[at as usize..end as usize].fill(0);
        is_model(&model)?;
    }
    // The hole has made room.
    fs.sync()?;
    take_all(&fs, "more", &[SECTOR])?;
    // The bytes behind the end are not zero, so a longer file has to write zeros.
    let cut = 9 * SECTOR + 1000;
    fs.truncate(&file, cut)?;
    fs.truncate(&file, 20 * SECTOR).context("growing")?;
    model.truncate(cut as usize);
    model.resize(20 * SECTOR as usize, 0);
    is_model(&model)?;
    fs.sync()?;
    take_all(&fs, "still more", &[SECTOR])?;
    fs.snapshot(TreeId::FS, &top, b"snap", SnapshotOptions::default())?;
    let refused = fs.punch_hole(&file, 2 * SECTOR, 100);
    ensure!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    is_model(&model)?;
    fs.sync()?;
    is_model(&model)
}
