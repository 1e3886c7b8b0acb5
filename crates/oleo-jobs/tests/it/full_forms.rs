//! Full volumes of many forms: filled, synced, read, emptied, repeatedly.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, SnapshotOptions};
use oleo_jobs::quota_enable;
use oleo_mkfs::{MkfsOptions, Profile, make};
use oleo_sim::budget::budget;
use oleo_sim::disk;
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const THREADS: usize = 4;
const FILES_MAX: usize = 200_000;
/// Steps of dropping a snapshot, at most.
const STEPS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug)]
struct Form {
    len: u64,
    metadata: Profile,
    /// Bytes of a thread's nth file.
    file_len: fn(usize) -> usize,
    snapshots: bool,
    quota: bool,
    rounds: usize,
}

fn open(device: &Arc<dyn Device>) -> Result<Fs> {
    let volume = Volume::open(vec![device.clone()], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn contents(thread: usize, n: usize, len: usize) -> Vec<u8> {
    format!("{thread}/{n} ").into_bytes().into_iter().cycle().take(len).collect()
}

/// Makes one thread's files until one is refused; how many were accepted.
fn fill(fs: &Fs, dir: &InodeRef, thread: usize, form: &Form) -> Result<usize> {
    for n in 0..FILES_MAX {
        let name = format!("file-{n}");
        let file = match fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644)) {
            Ok(file) => file,
            Err(FsError::NoSpace) => return Ok(n),
            Err(e) => return Err(e).context("creating"),
        };
        match fs.write(&file, 0, &contents(thread, n, (form.file_len)(n))) {
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

fn on_all<T: Send>(work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Goal: deleting is never refused, and everything accepted is found again, however full the volume is and of what.
/// Method: rounds of filling by four threads, dropping an earlier snapshot while the volume is full, a sync, reopening,
/// comparing all files, and deleting them by four threads; the last round fits as many files as the first, or nearly;
/// at the end the kernel's check.
fn rounds(form: &Form) -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(form.len));
    make(std::slice::from_ref(&device), &MkfsOptions::default().metadata(Some(form.metadata)))?;
    let mut fs = open(&device)?;
    if form.quota {
        quota_enable(&fs)?;
    }
    let mut first = 0;
    for round in 0..form.rounds {
        let top = fs.root(TreeId::FS)?;
        let dirs: Vec<InodeRef> = (0..THREADS)
            .map(|n| {
                let name = format!("dir-{round}-{n}");
                fs.create(&top, name.as_bytes(), &NewInode::new(NewKind::Dir, 0o755))
            })
            .collect::<Result<_, _>>()
            .context("directories")?;
        let snapshot = match form.snapshots {
            true => Some(fs.snapshot(TreeId::FS, &top, b"snapshot", SnapshotOptions::default()).context("a snapshot")?),
            false => None,
        };
        let made = on_all(|thread| fill(&fs, &dirs[thread], thread, form)).with_context(|| format!("round {round}"))?;
        let all: usize = made.iter().sum();
        first = if round == 0 { all } else { first };
        ensure!(all > 20 && all * 10 > first * 7, "{first} files fit at first, {all} in round {round}");
        if let Some(snapshot) = snapshot {
            fs.subvol_delete(snapshot).with_context(|| format!("dropping the snapshot, round {round}"))?;
        }
        fs.sync().with_context(|| format!("sync, round {round}"))?;
        for _ in 0..STEPS_MAX {
            if !fs.clean(64).with_context(|| format!("dropping in steps, round {round}"))? {
                break;
            }
        }
        drop((dirs, top, fs));
        fs = open(&device)?;
        let top = fs.root(TreeId::FS)?;
        on_all(|thread| {
            let name = format!("dir-{round}-{thread}");
            let dir = fs.lookup(&top, name.as_bytes())?.context("a directory is gone")?;
            for n in 0..made[thread] {
                let name = format!("file-{n}");
                let file = fs.lookup(&dir, name.as_bytes())?.with_context(|| format!("{thread}/{n} is gone"))?;
                let want = contents(thread, n, (form.file_len)(n));
                let mut data = vec![0; want.len() + 1];
                let len = fs.read(&file, 0, &mut data)?;
                ensure!(data[..len] == want, "{thread}/{n} has changed, round {round}");
                drop(file);
                fs.unlink(&dir, name.as_bytes()).with_context(|| format!("deleting {name}, round {round}"))?;
            }
            drop(dir);
            fs.rmdir(&top, name.as_bytes()).with_context(|| format!("deleting {name}"))?;
            Ok(())
        })?;
        drop(top);
        fs.sync().with_context(|| format!("sync of the deletion, round {round}"))?;
    }
    ensure!(fs.poisoned_by().is_none());
    drop(fs);
    if let Some(oracle) = oracle() {
        let scratch = oracle.scratch()?;
        let image = scratch.image("full", device.len())?;
        disk::store(&*device, &image)?;
        oracle.must_be_sound(&[&image], &format!("{form:?}"))?;
    }
    Ok(())
}

fn mixed_len(n: usize) -> usize {
    [900, 40 * KIB, 2000, 3 * KIB, 100, 130 * KIB][n % 6]
}

#[test]
fn small_and_large_files_with_snapshots() -> Result<()> {
    let metadata = Profile::Dup;
    rounds(&Form { len: 192 * MIB, metadata, file_len: mixed_len, snapshots: true, quota: false, rounds: 2 })
}

#[test]
fn sectors_with_quota() -> Result<()> {
    let metadata = Profile::Single;
    rounds(&Form { len: 160 * MIB, metadata, file_len: |_| 4 * KIB, snapshots: true, quota: true, rounds: 2 })
}

/// Goal and method as above: a few rounds of each form, and many of one, another with each seed.
#[test]
#[ignore = "long: cargo test --release -p oleo-jobs --test it -- --ignored full_forms::"]
fn all_forms() -> Result<()> {
    let mut forms = Vec::new();
    let lens: [fn(usize) -> usize; 4] = [|_| KIB, |_| 4 * KIB, |_| 64 * KIB, mixed_len];
    for (nth, file_len) in lens.into_iter().enumerate() {
        for metadata in [Profile::Dup, Profile::Single] {
            for (snapshots, quota) in [(false, false), (true, false), (true, true)] {
                let len = [256, 384, 512, 1024][(nth + usize::from(quota)) % 4] * MIB;
                forms.push(Form { len, metadata, file_len, snapshots, quota, rounds: 3 });
            }
        }
    }
    let often = budget().seed as usize % forms.len();
    forms[often].rounds = 30;
    for form in forms {
        let begin = Instant::now();
        rounds(&form).with_context(|| format!("{form:?}"))?;
        eprintln!("{:.0} s: {form:?}", begin.elapsed().as_secs_f64());
    }
    Ok(())
}
