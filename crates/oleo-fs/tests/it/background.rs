//! Beside operations: write-back, commits by others, shared commits, failures.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::{Compression, ItemType, Key, TreeId};
use oleo_fs::data::Compress;
use oleo_fs::{Clock, Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, Time, errno};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::gate::{Gate, Writes};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};
use rayon::prelude::*;

const MIB: u64 = 1 << 20;
/// How long the threads in the background sleep at most.
const NAP: Duration = Duration::from_millis(20);

fn open(device: Arc<dyn Device>, opts: &FsOptions) -> Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, opts)?)
}

fn mkfs(device: &Arc<dyn Device>) -> Result<()> {
    make(std::slice::from_ref(device), &MkfsOptions::default())?;
    Ok(())
}

fn memory(len: u64) -> Result<Arc<dyn Device>> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(len));
    mkfs(&device)?;
    Ok(device)
}

fn file(fs: &Fs, name: &str) -> Result<InodeRef> {
    Ok(fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

fn read_all(fs: &Fs, file: &InodeRef) -> Result<Vec<u8>> {
    let mut out = vec![0; fs.attr(file).size as usize];
    ensure!(fs.read(file, 0, &mut out)? == out.len());
    Ok(out)
}

/// How many extents a file has on disk.
fn extents_on_disk(fs: &Fs, file: &InodeRef) -> Result<usize> {
    let root = fs.engine().root(file.tree())?.context("the tree")?;
    let key = |offset| Key::new(file.ino().0, ItemType::EXTENT_DATA, offset);
    let mut count = 0;
    fs.engine().blocks().scan(&root, key(0), key(u64::MAX), |_, _| {
        count += 1;
        Ok::<_, anyhow::Error>(ControlFlow::Continue(()))
    })?;
    Ok(count)
}

/// Runs `work` with a thread that writes back and one that commits when they are called.
fn attended<R>(fs: &Fs, work: impl FnOnce() -> Result<R>) -> Result<R> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                if fs.wait_write_back(NAP) {
                    fs.write_back()?;
                }
            }
            Ok(())
        });
        let committer = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                if fs.wait_commit(NAP) {
                    fs.commit()?;
                }
            }
            Ok(())
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        writer.join().expect("the thread that writes back panicked")?;
        committer.join().expect("the thread that commits panicked")?;
        done
    })
}

/// From now on writers flush nothing below the hard limit.
fn leave_it_to_others(fs: &Fs) {
    fs.wait_write_back(Duration::ZERO);
}

/// Goal: bytes go to disk in the background, memory stays within its bound, what is written together lies together.
/// Method: two writers of large files, plain and compressed, whose bytes are compared; no sync until the end, so that only
/// the background can have made extents; then `btrfs check`.
#[test]
fn written_back_in_the_background() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    for compress in [None, Some(Compress { algorithm: Compression::Zstd, level: 1, force: false })] {
        let image = scratch.image(&format!("back-{}", compress.is_some()), 512 * MIB)?;
        let device = oleo_device::FileDevice::open(&image, &oleo_device::FileOptions::default().write(true))?;
        let device: Arc<dyn Device> = Arc::new(device);
        mkfs(&device)?;
        let mut opts = FsOptions::default();
        opts.data.dirty_bytes_max = 16 * MIB;
        opts.data.compress = compress;
        let fs = open(device, &opts)?;
        attended(&fs, || {
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..2u64)
                    .map(|n| {
                        let fs = &fs;
                        scope.spawn(move || -> Result<()> {
                            let mut rng = Rng::new(n + 5);
                            let f = file(fs, &format!("file{n}"))?;
                            let block = if n == 0 { rng.bytes(300_000) } else { rng.text(300_000) };
                            let mut model = Vec::new();
                            for _ in 0..150 {
                                fs.write(&f, model.len() as u64, &block)?;
                                model.extend_from_slice(&block);
                            }
                            ensure!(read_all(fs, &f)? == model, "file {n}");
                            Ok(())
                        })
                    })
                    .collect();
                writers.into_iter().try_for_each(|w| w.join().expect("a writer panicked"))
            })
        })?;
        let f = fs.lookup(&fs.root(TreeId::FS)?, b"file0")?.context("file0")?;
        // Before anything was flushed by hand; most of the 45 MB have left the buffer of 16 MiB.
        let mapped: u64 = fs
            .extents(&f, 0, u64::MAX)?
            .iter()
            .filter(|e| e.kind == oleo_fs::data::ExtentKind::Data)
            .map(|e| e.len)
            .sum();
        ensure!(mapped > 25_000_000, "only {mapped} bytes have a place");
        ensure!(fs.has_changes());
        fs.sync()?;
        ensure!(!fs.has_changes());
        if compress.is_none() {
            let extents = extents_on_disk(&fs, &f)?;
            ensure!(extents < 60, "{extents} extents");
        }
        drop(f);
        drop(fs);
        oracle.must_be_sound(&[&image], "written back")?;
    }
    Ok(())
}

/// Goal: what is buffered of a plain file becomes extents as long as the format allows, in one place.
/// Method: 200 MiB in one flush; count the items, and look whether they follow each other on disk.
#[test]
fn long_extents() -> Result<()> {
    let device = memory(1024 * MIB)?;
    let mut opts = FsOptions::default();
    opts.data.dirty_bytes_max = 512 * MIB;
    let fs = open(device, &opts)?;
    let f = file(&fs, "f")?;
    let mut block = vec![0u8; MIB as usize];
    leave_it_to_others(&fs);
    for n in 0..200u64 {
        block.fill(n as u8 + 1);
        fs.write(&f, n * MIB, &block)?;
    }
    fs.write(&f, 200 * MIB, b"tail")?;
    fs.sync()?;
    let extents = extents_on_disk(&fs, &f)?;
    ensure!(extents <= 4, "{extents} extents");
    ensure!(fs.extents(&f, 0, u64::MAX)?.len() <= 3);
    let mut out = vec![0; MIB as usize];
    for n in (0..200u64).step_by(17) {
        ensure!(fs.read(&f, n * MIB, &mut out)? == out.len() && out.iter().all(|b| *b == n as u8 + 1));
    }
    ensure!(fs.read(&f, 200 * MIB, &mut out)? == 4 && &out[..4] == b"tail");
    Ok(())
}

/// Goal: a write to a file goes on while the same file is being flushed, and while another is, until the bound.
/// Method: a device that lets no data through until it is told to; meanwhile a thread flushes, and writes must return.
#[test]
fn writers_do_not_wait_for_a_flush() -> Result<()> {
    let gate = Arc::new(Gate::new(256 * MIB));
    let device: Arc<dyn Device> = gate.clone();
    mkfs(&device)?;
    let fs = open(device, &FsOptions::default())?;
    let f = file(&fs, "f")?;
    fs.sync()?;
    leave_it_to_others(&fs);
    fs.write(&f, 0, &vec![1; 8 * MIB as usize])?;
    gate.shut(Writes::All);
    let outcome = std::thread::scope(|scope| {
        let flusher = scope.spawn(|| fs.flush(&f));
        gate.await_held(Writes::All);
        let (said, heard) = std::sync::mpsc::channel();
        let (fs, f) = (&fs, &f);
        scope.spawn(move || {
            let mut out = vec![0; 4096];
            let done = fs.write(f, 4 * MIB, &[2; 4096]).and_then(|()| fs.write(f, 8 * MIB, &[3; 4096]));
            let done = done.and_then(|()| fs.read(f, 4 * MIB, &mut out)).map(|_| out == [2; 4096]);
            drop(said.send(done));
        });
        let answer = heard.recv_timeout(Duration::from_secs(60));
        let still_flushing = !flusher.is_finished();
        gate.open(Writes::All);
        flusher.join().expect("the flush panicked")?;
        Ok::<_, anyhow::Error>((answer.context("the writes waited for the flush")??, still_flushing))
    })?;
    ensure!(outcome == (true, true), "read back what was written, while the flush went on: {outcome:?}");
    fs.sync()?;
    let all = read_all(&fs, &f)?;
    ensure!(
        all.len() as u64 == 8 * MIB + 4096 && all[4 * MIB as usize] == 2 && all[0] == 1 && all[8 * MIB as usize] == 3
    );
    Ok(())
}

/// Goal: a full disk is told by the write that does not fit; what a write accepted is there after a sync.
/// Method: two threads fill a small volume with write-back going on, some of it compressible; every accepted byte is
/// compared after the sync, which must succeed.
#[test]
fn full_disks_are_reported_by_writes() -> Result<()> {
    let device = memory(192 * MIB)?;
    let mut opts = FsOptions::default();
    opts.data.dirty_bytes_max = 24 * MIB;
    opts.data.compress = Some(Compress { algorithm: Compression::Zstd, level: 1, force: false });
    let fs = open(device, &opts)?;
    let lens = attended(&fs, || {
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u64)
                .map(|n| {
                    let fs = &fs;
                    scope.spawn(move || -> Result<(InodeRef, u64)> {
                        let f = file(fs, &format!("f{n}"))?;
                        let mut len = 0;
                        let mut rng = Rng::new(n);
                        loop {
                            let block = pattern(n, len, 40_000 + rng.below(90_000));
                            match fs.write(&f, len, &block) {
                                Ok(()) => len += block.len() as u64,
                                Err(e) if e.errno() == errno::ENOSPC => return Ok((f, len)),
                                Err(e) => return Err(e.into()),
                            }
                        }
                    })
                })
                .collect();
            writers.into_iter().map(|w| w.join().expect("a writer panicked")).collect::<Result<Vec<_>>>()
        })
    })?;
    fs.sync()?;
    for (n, (f, len)) in lens.iter().enumerate() {
        ensure!(*len > 20 * MIB, "file {n} took {len} bytes only");
        let all = read_all(&fs, f)?;
        ensure!(all.len() as u64 == *len && all == pattern(n as u64, 0, *len), "file {n}");
    }
    Ok(())
}

/// Bytes that depend on their place; every other 64 KiB are zeros.
fn pattern(seed: u64, at: u64, len: u64) -> Vec<u8> {
    let byte = |p: u64| {
        if (p / 65_536).is_multiple_of(2) {
            0
        } else {
            (p.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) >> 40) as u8 ^ seed as u8
        }
    };
    (at..at + len).map(byte).collect()
}

/// A clock that the test moves.
#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Time {
        Time { sec: self.0.load(Ordering::SeqCst) as i64, nsec: 0 }
    }
}

/// Goal: few bytes are written back as well, once they are old, oldest first, and a file that is written to again waits
/// again.
/// Method: a clock moved by hand; whether there is work, and which files are clean afterwards.
#[test]
fn old_bytes_are_written_back() -> Result<()> {
    let clock = Arc::new(HandClock::default());
    let fs = open(memory(256 * MIB)?, &FsOptions::default().clock(clock.clone()))?;
    let age = fs.options().data.dirty_age_max.as_secs();
    let (a, b) = (file(&fs, "a")?, file(&fs, "b")?);
    let delayed = |f: &InodeRef| -> Result<bool> {
        Ok(fs.extents(f, 0, u64::MAX)?.iter().any(|e| e.kind == oleo_fs::data::ExtentKind::Delayed))
    };
    fs.write(&a, 0, &[1; 5000])?;
    clock.0.store(10, Ordering::SeqCst);
    fs.write(&b, 0, &[1; 5000])?;
    clock.0.store(age, Ordering::SeqCst);
    ensure!(!fs.wait_write_back(Duration::ZERO) && !fs.write_back()?);
    clock.0.store(age + 5, Ordering::SeqCst);
    ensure!(fs.wait_write_back(Duration::ZERO) && fs.write_back()?);
    ensure!(!delayed(&a)? && delayed(&b)?, "the older one only");
    fs.write(&a, 0, &[2; 5000])?;
    clock.0.store(age + 11, Ordering::SeqCst);
    ensure!(fs.write_back()? && delayed(&a)? && !delayed(&b)?);
    Ok(())
}

/// Goal: of threads that sync concurrently, each finds its own file on disk when its sync returns, whoever's commit that was.
/// Method: threads create and sync; when one returns, the inode's transaction must be on disk; no more commits than syncs
/// are made (that they are shared is tested with the engine).
#[test]
fn syncs_share_commits() -> Result<()> {
    let fs = open(memory(256 * MIB)?, &FsOptions::default())?;
    let before = fs.engine().generation().0;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|t| {
                let fs = &fs;
                scope.spawn(move || -> Result<()> {
                    for n in 0..10 {
                        let f = file(fs, &format!("{t}-{n}"))?;
                        let done = fs.sync()?;
                        ensure!(fs.attr(&f).transid <= done.0, "on disk: {done}, changed in {}", fs.attr(&f).transid);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().expect("a thread panicked"))
    })?;
    let commits = fs.engine().generation().0 - before;
    ensure!(commits <= 80, "{commits} commits for 80 syncs");
    Ok(())
}

/// Goal: many small files that nobody has flushed do not use up, with what is promised for them, a volume that is empty.
/// Method: 30 000 files of 200 bytes on 2 GiB, nobody writes back in the background.
#[test]
fn small_files_are_not_promised_everything() -> Result<()> {
    let fs = open(memory(2048 * MIB)?, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    for n in 0..30_000u32 {
        let name = format!("small-{n}").into_bytes();
        let f = fs.create(&root, &name, &NewInode::new(NewKind::File, 0o600)).with_context(|| format!("file {n}"))?;
        fs.write(&f, 0, &[7; 200]).with_context(|| format!("file {n}"))?;
    }
    fs.sync()?;
    ensure!(fs.readdir(&root, 0, usize::MAX)?.len() == 30_000);
    Ok(())
}

/// Goal: fsync makes a file durable, data and name, and costs nothing where it is durable; it logs, and does not commit.
/// Method: fsync, again, of another file, the counters after each; then a copy of the device is opened as after a crash.
#[test]
fn fsync_is_durable() -> Result<()> {
    let device = memory(256 * MIB)?;
    let fs = open(device.clone(), &FsOptions::default())?;
    let f = file(&fs, "f")?;
    fs.write(&f, 0, &[9; 12_345])?;
    fs.fsync(&f)?;
    let before = fs.engine().durable();
    let log_commits = || fs.log_stats().log_commits;
    let once = log_commits();
    let other = file(&fs, "other")?;
    fs.fsync(&f)?;
    ensure!(log_commits() == once, "nothing of it was left to write");
    fs.fsync(&other)?;
    ensure!((log_commits(), fs.engine().durable()) == (once + 1, before), "{:?}", fs.log_stats());
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes)?;
    let copy = MemDevice::new(device.len());
    copy.write_at(0, &bytes)?;
    let again = open(Arc::new(copy), &FsOptions::default())?;
    oleo_fs::replay(&again)?;
    let f = again.lookup(&again.root(TreeId::FS)?, b"f")?.context("f is durable")?;
    ensure!(read_all(&again, &f)? == vec![9; 12_345]);
    Ok(())
}

/// Goal: removing many files makes few commits: what is announced for erasing an inode is what it really changes. Method: 60 000 empty files, removed
/// by one thread while another commits when it is called; with the items of the largest possible file announced for each there was a commit every
/// 7000 files.
#[test]
fn removing_many_makes_few_commits() -> Result<()> {
    const FILES: usize = 60_000;
    let fs = open(memory(2048 * MIB)?, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let name = |n: usize| format!("file-{n}").into_bytes();
    let mut commits = 0;
    attended(&fs, || {
        for n in 0..FILES {
            fs.create(&root, &name(n), &NewInode::new(NewKind::File, 0o600))?;
        }
        fs.sync()?;
        let before = fs.engine().generation().0;
        for n in 0..FILES {
            fs.unlink(&root, &name(n))?;
            if n % 1000 == 0 {
                while fs.clean(64)? {}
            }
        }
        while fs.clean(64)? {}
        commits = fs.engine().generation().0 - before;
        Ok(())
    })?;
    ensure!(commits <= 2, "{commits} commits");
    ensure!(fs.readdir(&root, 0, usize::MAX)?.is_empty());
    Ok(())
}

/// Goal: with somebody to commit, operations that dirty many inodes go on and memory stays bounded.
/// Method: two threads create and remove files with a bound of a few hundred; commits must have happened, none of them in
/// the threads unless there was twice too much.
#[test]
fn others_commit_under_pressure() -> Result<()> {
    let opts = FsOptions::default().dirty_inodes_max(500);
    let fs = open(memory(512 * MIB)?, &opts)?;
    let root = fs.root(TreeId::FS)?;
    let before = fs.engine().generation().0;
    attended(&fs, || {
        std::thread::scope(|scope| {
            for t in 0..2 {
                let (fs, root) = (&fs, &root);
                scope.spawn(move || {
                    for n in 0..6000 {
                        let name = format!("{t}-{n}").into_bytes();
                        fs.create(root, &name, &NewInode::new(NewKind::File, 0o600)).expect("create");
                    }
                });
            }
        });
        Ok(())
    })?;
    let commits = fs.engine().generation().0 - before;
    ensure!((4..=60).contains(&commits), "{commits} commits");
    ensure!(fs.readdir(&root, 0, usize::MAX)?.len() == 12_000);
    Ok(())
}

/// Goal: nobody stands still for all of a long commit: who changes much goes on, and slows down.
/// Method: a thread creates files with a bound of a few thousand; a commit that it called for cannot write until twenty more are there.
#[test]
fn nobody_waits_for_all_of_a_commit() -> Result<()> {
    const FILES: usize = 8000;
    const MORE: usize = 20;
    let gate = Arc::new(Gate::new(512 * MIB));
    let device: Arc<dyn Device> = gate.clone();
    mkfs(&device)?;
    let fs = open(device, &FsOptions::default().dirty_inodes_max(2000))?;
    let root = fs.root(TreeId::FS)?;
    // From now on operations leave committing to others.
    fs.wait_commit(Duration::ZERO);
    let made = AtomicUsize::new(0);
    attended(&fs, || {
        std::thread::scope(|scope| {
            gate.shut(Writes::All);
            let opener = scope.spawn(|| {
                gate.await_held(Writes::All);
                let wanted = made.load(Ordering::Relaxed) + MORE;
                let begun = Instant::now();
                while made.load(Ordering::Relaxed) < wanted && begun.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let made = made.load(Ordering::Relaxed);
                gate.open(Writes::All);
                made >= wanted
            });
            for n in 0..FILES {
                fs.create(&root, format!("{n}").as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
                made.fetch_add(1, Ordering::Relaxed);
            }
            ensure!(opener.is_finished(), "no commit was held");
            ensure!(opener.join().expect("no panic"), "operations waited for the commit");
            Ok(())
        })
    })
}

/// Goal: after a failed write the file system says so, refuses changes, still reads, and the old state is intact.
/// Method: a device that fails; then what is on it is opened again.
#[test]
fn failures_are_reported() -> Result<()> {
    let gate = Arc::new(Gate::new(256 * MIB));
    let device: Arc<dyn Device> = gate.clone();
    mkfs(&device)?;
    let fs = open(device.clone(), &FsOptions::default())?;
    let f = file(&fs, "f")?;
    fs.write(&f, 0, b"before")?;
    fs.sync()?;
    ensure!(fs.poisoned_by().is_none());
    fs.write(&f, 0, b"after!")?;
    gate.fail(true);
    ensure!(fs.fsync(&f).is_err() && fs.fsync(&f).is_err() && fs.sync().is_err());
    ensure!(fs.poisoned_by().is_some(), "it says so");
    let refused = file(&fs, "g").err().context("changes are refused")?;
    ensure!(refused.downcast_ref::<FsError>().map(FsError::errno) == Some(errno::EROFS), "{refused}");
    ensure!(read_all(&fs, &f)? == b"after!");
    drop((f, fs));
    gate.fail(false);
    let fs = open(device, &FsOptions::default())?;
    let f = fs.lookup(&fs.root(TreeId::FS)?, b"f")?.context("f")?;
    ensure!(read_all(&fs, &f)? == b"before");
    Ok(())
}

/// Goal: operations that run on the threads which rayon shares in a process never wait for themselves.
/// Method: every such thread, and more jobs than threads, write, truncate, read, sync and commit the same few files; an
/// alarm goes off when it takes too long.
#[test]
fn callers_may_use_the_shared_threads() -> Result<()> {
    let mut opts = FsOptions::default().dirty_inodes_max(100);
    opts.data.dirty_bytes_max = 8 * MIB;
    let fs = open(memory(512 * MIB)?, &opts)?;
    let files: Vec<InodeRef> = (0..3).map(|n| file(&fs, &format!("f{n}"))).collect::<Result<_>>()?;
    let (said, heard) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        let done: Result<Vec<()>> = (0..400usize)
            .into_par_iter()
            .map(|n| {
                let f = &files[n % 3];
                let mut out = vec![0; 2 * MIB as usize];
                match n % 6 {
                    0 => fs.truncate(f, (n as u64 % 7) * 100_000)?,
                    1 => drop(fs.sync()?),
                    2 => drop(fs.read(f, 0, &mut out)?),
                    3 => drop(file(&fs, &format!("new{n}"))?),
                    _ => fs.write(f, (n as u64 % 5) * MIB, &out)?,
                }
                Ok(())
            })
            .collect();
        drop(said.send(done));
    });
    heard.recv_timeout(Duration::from_secs(120)).context("the threads wait for each other")??;
    worker.join().expect("a thread panicked");
    Ok(())
}

/// Goal: inodes that nobody holds any more go when they are asked to, without a commit, down to what is kept for later; those that
/// are held stay, and while many are held no more than as many again are in memory.
/// Method: many files held, then nearly none; then many looked up and let go of.
#[test]
fn inodes_are_let_go_of() -> Result<()> {
    const FILES: usize = 12_000;
    const KEPT: usize = 64;
    let fs = open(memory(256 * MIB)?, &FsOptions::default().inodes_max(KEPT))?;
    let mut held = (0..FILES).map(|n| file(&fs, &format!("f{n}"))).collect::<Result<Vec<_>>>()?;
    fs.sync()?;
    assert!(fs.inodes_in_memory() >= FILES);
    held.truncate(10);
    fs.shed();
    let left = fs.inodes_in_memory();
    // A sector of the cache has one too many at most, and the root and what else is no file are there, too.
    assert!((10..KEPT * 3 + 10).contains(&left), "{left} inodes");

    let root = fs.root(TreeId::FS)?;
    let find = |n: usize| fs.lookup(&root, format!("f{n}").as_bytes())?.context("a file");
    held.extend((0..FILES / 4).map(find).collect::<Result<Vec<_>>>()?);
    for n in 0..FILES {
        find(n)?;
    }
    let most = fs.inodes_in_memory();
    assert!(most <= FILES / 4 * 2 + KEPT * 3, "{most} inodes");
    Ok(())
}
