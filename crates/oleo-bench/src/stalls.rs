//! How long writers wait while something is committed once a second: 8 threads, each in a directory of its own, create files and
//! write 8 KiB to each, in-process and on the kernel's btrfs, on a loop device over a file in memory.
//!
//! Each operation (create, write; on the kernel also close) is timed by itself. In the first half the threads come at a pace that
//! leaves the processors time, so that who waits waits for the file system; in the second half they do not, and 8 threads on
//! few processors also wait for each other. The same is done without commits in between: what is left then is the machine's.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use oleo::fs::{InodeRef, NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{BackgroundOptions, Image, OpenOptions};
use oleo_sim::oracle::{self, Loop, Oracle, ReadOnly};
use rustix::fs::{Mode, OFlags};

use crate::Args;
use crate::measure::{Better, Figure, Found, Report, quantile};
use crate::peer::Peer;

const IMAGE_LEN: u64 = 16 << 30;
const WRITERS: usize = 8;
const DATA: [u8; 8192] = [7; 8192];
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// Time from one operation of a thread to the next where there is a pace.
const PACE: Duration = Duration::from_millis(2);
/// Files in each directory before anything is timed.
const FILES_BEFORE: u64 = 2000;

/// A directory for each writer.
trait Store: Sync {
    fn write(&self, writer: usize, name: &str) -> Result<()>;
    fn sync(&self) -> Result<()>;
}

struct Ours {
    image: Image,
    dirs: Vec<InodeRef>,
}

impl Store for Ours {
    fn write(&self, writer: usize, name: &str) -> Result<()> {
        let file = self.image.fs().create(&self.dirs[writer], name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
        Ok(self.image.fs().write(&file, 0, &DATA)?)
    }
    fn sync(&self) -> Result<()> {
        Ok(self.image.sync().map(drop)?)
    }
}

struct Calls {
    top: File,
    dirs: Vec<File>,
}

impl Store for Calls {
    fn write(&self, writer: usize, name: &str) -> Result<()> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file: File = rustix::fs::openat(&self.dirs[writer], name, how, Mode::from_raw_mode(0o600))?.into();
        Ok(file.write_all_at(&DATA, 0)?)
    }
    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.top)?)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    EachSecond,
    None,
}

/// How the threads come.
#[derive(Clone, Copy)]
struct Load {
    pace: Option<Duration>,
    commits: Commits,
}

const LOADS: [(&str, Load); 4] = [
    ("at a pace", Load { pace: Some(PACE), commits: Commits::EachSecond }),
    ("at a pace, no commits", Load { pace: Some(PACE), commits: Commits::None }),
    ("flat out", Load { pace: None, commits: Commits::EachSecond }),
    ("flat out, no commits", Load { pace: None, commits: Commits::None }),
];
const PARTS: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)];

/// The microseconds of each operation, and of each commit.
fn waits<S: Store>(store: &S, load: &str, how: Load, seconds: u64) -> Result<(Vec<f64>, Vec<f64>)> {
    store.sync()?;
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    let one = |writer: usize| -> Result<Vec<f64>> {
        let mut took = Vec::new();
        let mut next = PACE * writer as u32 / WRITERS as u32;
        for n in 0u64.. {
            let name = format!("{load}-{n:08}");
            if how.pace.is_some() {
                std::thread::sleep(next.saturating_sub(begun.elapsed()));
                next = next.max(begun.elapsed()) + PACE;
            }
            let at = Instant::now();
            store.write(writer, &name)?;
            took.push(at.elapsed().as_secs_f64() * 1e6);
            if begun.elapsed() >= Duration::from_secs(seconds) {
                break;
            }
        }
        Ok(took)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let committer = scope.spawn(|| -> Result<Vec<f64>> {
            let mut took = Vec::new();
            let mut next = COMMIT_EVERY;
            while how.commits == Commits::EachSecond && !over.load(Ordering::Relaxed) {
                if begun.elapsed() < next {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                next += COMMIT_EVERY;
                let at = Instant::now();
                store.sync()?;
                took.push(at.elapsed().as_secs_f64() * 1e6);
            }
            Ok(took)
        });
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || one(writer))).collect();
        let done: Vec<_> = writers.into_iter().map(|t| t.join()).collect();
        over.store(true, Ordering::Relaxed);
        let committed = committer.join().map_err(|_| anyhow!("the committer panicked"))??;
        let mut all = Vec::new();
        for part in done {
            all.append(&mut part.map_err(|_| anyhow!("a writer panicked"))??);
        }
        Ok((all, committed))
    })
}

fn measure<S: Store>(store: &S, args: &Args, peer: Peer, found: &mut Found) -> Result<()> {
    for writer in 0..WRITERS {
        (0..FILES_BEFORE).try_for_each(|n| store.write(writer, &format!("before-{n:08}")))?;
    }
    for (load, how) in LOADS.into_iter().filter(|(load, _)| args.wants(load)) {
        let (mut took, mut committed) = waits(store, load, how, args.seconds)?;
        found.put(peer, &format!("{load}: operations"), took.len() as f64 / args.seconds as f64);
        for (which, part) in PARTS {
            found.put(peer, &format!("{load}: {which}"), quantile(&mut took, part));
        }
        if !committed.is_empty() {
            found.put(peer, &format!("{load}: commit"), quantile(&mut committed, 0.5));
        }
    }
    Ok(())
}

fn one_run(oracle: &Oracle, image: &Path, args: &Args, peer: Peer, found: &mut Found) -> Result<()> {
    let _ = std::fs::remove_file(image);
    File::create(image)?.set_len(IMAGE_LEN)?;
    let name = |writer: usize| format!("writer-{writer}");
    if peer == Peer::Kernel {
        oracle.mkfs(&[], &[image])?;
        let mounted = oracle.mount(&[image], "commit=3600")?;
        let mut dirs = Vec::new();
        for writer in 0..WRITERS {
            let dir = mounted.path().join(name(writer));
            std::fs::create_dir(&dir)?;
            dirs.push(File::open(dir)?);
        }
        let store = Calls { top: File::open(mounted.path())?, dirs };
        measure(&store, args, peer, found)?;
        drop(store);
        return mounted.unmount();
    }
    let attached = Loop::attach(image, ReadOnly::No)?;
    let options = oleo::device::FileOptions::default().write(true);
    let device = oleo::device::FileDevice::open(attached.path(), &options)?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let image_open = Image::open(attached.path(), &OpenOptions::writing())?;
    let top = image_open.top()?;
    let mut dirs = Vec::new();
    for writer in 0..WRITERS {
        dirs.push(image_open.fs().create(&top, name(writer).as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?);
    }
    drop(top);
    let store = Ours { image: image_open, dirs };
    // As on a mount: commits that are due between the syncs, and write-back, are not left to the writers.
    let background = store.image.start_background(BackgroundOptions::default());
    measure(&store, args, peer, found)?;
    background.stop()?;
    let Ours { image: opened, dirs } = store;
    drop(dirs);
    opened.close()?;
    drop(attached);
    oracle.must_be_sound(&[image], "the image that was measured")
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle =
        oracle::oracle().ok_or_else(|| anyhow!("this benchmark needs root, loop devices and the kernel's btrfs"))?;
    let scratch = oracle.scratch()?;
    report.note(&format!(
        "{WRITERS} writers, {} s of each kind, a sync each second; at a pace: one operation in {PACE:?} for each writer; \
         medians of {} runs",
        args.seconds, args.runs
    ));
    let mut figures = Vec::new();
    for (load, how) in LOADS {
        figures.push(Figure {
            name: format!("{load}: operations").into(),
            unit: "1/s",
            better: Better::More,
            aims: &[],
        });
        for (which, _) in PARTS {
            let aims: &[_] =
                if (which, how.commits) == ("p99.9", Commits::EachSecond) { &[(Peer::Kernel, "5 ms")] } else { &[] };
            figures.push(Figure { name: format!("{load}: {which}").into(), unit: "us", better: Better::Less, aims });
        }
        figures.push(Figure { name: format!("{load}: commit").into(), unit: "us", better: Better::Less, aims: &[] });
    }
    let image = scratch.path().join("stalls.img");
    report.in_turns(&figures, &[Peer::Library, Peer::Kernel], args.runs, |peer, found| {
        one_run(&oracle, &image, args, peer, found)
    })
}
