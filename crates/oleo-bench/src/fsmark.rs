//! `fs_mark -S 0 -L 5 -n 100000 -s 0 -k` with two threads, loop by loop: on the mount, on the kernel's btrfs, and the same
//! in-process.
//!
//! Two threads create 100 000 empty files each in a directory of their own, five times, and nothing is removed: at the
//! end a directory has half a million entries. In-process the names are made the same way (8 digits of the time, 8
//! tildes, 24 random letters or digits), and a background thread commits every half minute, as the kernel does, however
//! much has changed: the kernel keeps a million new files in memory for as long, too, while our default is to commit
//! after some ten thousand, which the mount here does. What is not on disk at the end is written and checked after the
//! clock has stopped, on all sides.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use oleo::fs::{InodeRef, NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_sim::oracle::Oracle;
use oleo_sim::rng::Rng;

use crate::Args;
use crate::measure::{Better, Figure, Found, Report};
use crate::mounted::{Files, Fixture, Mount, tool};
use crate::peer::Peer;

const LOOPS: usize = 5;
const FILES: u64 = 100_000;
const THREADS: u64 = 2;
/// Sparse: room for the metadata of a million files, twice.
const IMAGE_LEN: u64 = 16 << 30;
/// How often the committer looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// How often it commits: the kernel's `commit=30`.
const COMMIT_EVERY: Duration = Duration::from_secs(30);
const LETTERS: &[u8; 36] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// In this order: ours in-process comes first, which all others are compared with.
const PEERS: &[Peer] = &[Peer::Library, Peer::Oleo, Peer::Kernel];
const LAST_BY_FIRST: &str = "last loop by first";

fn name(at: usize) -> String {
    format!("loop {}", at + 1)
}

fn figures() -> Vec<Figure> {
    let aims: &[_] = &[(Peer::Kernel, "5x")];
    let mut all: Vec<Figure> =
        (0..LOOPS).map(|n| Figure { name: name(n).into(), unit: "files/s", better: Better::More, aims }).collect();
    all.push(Figure::rate(LAST_BY_FIRST, "", &[]));
    all
}

fn put(found: &mut Found, peer: Peer, rates: &[f64]) -> Result<()> {
    ensure!(rates.len() == LOOPS, "{} loops instead of {LOOPS}", rates.len());
    for (n, rate) in rates.iter().enumerate() {
        found.put(peer, &name(n), *rate);
    }
    found.put(peer, LAST_BY_FIRST, rates[LOOPS - 1] / rates[0]);
    Ok(())
}

/// The rates in what fs_mark prints: the fourth column of lines that are all numbers.
fn parse(out: &str) -> Vec<f64> {
    let row = |line: &str| {
        let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        numbers.filter(|n| n.len() == 5).map(|n| n[3])
    };
    out.lines().filter_map(row).collect()
}

fn fs_mark(mount: &Mount, log: &Path) -> Result<Vec<f64>> {
    let mut command = Command::new("fs_mark");
    let (loops, files) = (LOOPS.to_string(), FILES.to_string());
    command.args(["-S", "0", "-L", &loops, "-n", &files, "-s", "0", "-k", "-t", &THREADS.to_string()]);
    for t in 0..THREADS {
        let dir = mount.path().join(format!("t{t}"));
        std::fs::create_dir(&dir)?;
        command.arg("-d").arg(dir);
    }
    Ok(parse(&tool(command.arg("-l").arg(log))?))
}

/// One thread's part of one loop.
fn create(image: &Image, dir: &InodeRef, rng: &mut Rng, time: u64) -> Result<()> {
    let mut name = format!("{time:08x}~~~~~~~~").into_bytes();
    let fixed = name.len();
    for _ in 0..FILES {
        name.truncate(fixed);
        name.extend((0..24).map(|_| LETTERS[rng.below(LETTERS.len() as u64) as usize]));
        image.fs().create(dir, &name, &NewInode::new(NewKind::File, 0o600))?;
    }
    Ok(())
}

fn loops(image: &Image, dirs: &[InodeRef], time: u64) -> Result<Vec<f64>> {
    let mut rngs: Vec<Rng> = (0..THREADS).map(Rng::new).collect();
    let mut rates = Vec::new();
    for _ in 0..LOOPS {
        let start = Instant::now();
        std::thread::scope(|s| {
            let one = |(dir, rng)| s.spawn(move || create(image, dir, rng, time));
            let all: Vec<_> = dirs.iter().zip(&mut rngs).map(one).collect();
            all.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        rates.push((FILES * THREADS) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(rates)
}

/// Commits by the clock, until `ends` is set.
fn commit_in_background(image: &Image, ends: &AtomicBool) -> Result<()> {
    let mut last = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        if last.elapsed() >= COMMIT_EVERY {
            image.fs().commit()?;
            last = Instant::now();
        }
    }
    Ok(())
}

fn in_process(oracle: &Oracle, path: &Path) -> Result<Vec<f64>> {
    std::fs::File::create(path)?.set_len(IMAGE_LEN)?;
    let device = oleo::device::FileDevice::open(path, &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let mut options = OpenOptions::writing();
    options.fs.dirty_inodes_max = usize::MAX;
    let image = Image::open(path, &options)?;
    let top = image.top()?;
    let new = NewInode::new(NewKind::Dir, 0o755);
    let dirs = (0..THREADS).map(|t| Ok(image.fs().create(&top, format!("t{t}").as_bytes(), &new)?));
    let dirs = dirs.collect::<Result<Vec<_>>>()?;
    image.sync()?;
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let ends = AtomicBool::new(false);
    let rates = std::thread::scope(|s| {
        let committer = s.spawn(|| commit_in_background(&image, &ends));
        let rates = loops(&image, &dirs, time);
        ends.store(true, Ordering::Relaxed);
        committer.join().map_err(|_| anyhow!("a thread panicked"))??;
        rates
    })?;
    drop(dirs);
    drop(top);
    image.sync()?;
    image.close()?;
    oracle.must_be_sound(&[path], "the image that was measured")?;
    std::fs::remove_file(path)?;
    Ok(rates)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let fixture = Fixture::new(args.old.as_deref())?;
    report.note(&format!(
        "{LOOPS} loops of {FILES} files in each of {THREADS} threads, no sync; median of {} runs; the kernel's btrfs on a \
         loop device in memory",
        args.runs
    ));
    report.in_turns(&figures(), &args.peers(PEERS), args.runs, |peer, found| {
        let rates = match peer {
            Peer::Library => in_process(fixture.oracle(), &fixture.scratch().join("library.image"))?,
            _ => {
                let mount = fixture.fresh(peer, Files::Many)?;
                let rates = fs_mark(&mount, &fixture.scratch().join("fs_log"))?;
                mount.unmount()?;
                fixture.must_be_sound(peer)?;
                fixture.remove(peer);
                rates
            }
        };
        put(found, peer, &rates)
    })
}

#[cfg(test)]
mod tests {
    /// Goal: the rates are found in what fs_mark prints. Method: a run's output, with the lines around the table.
    #[test]
    fn the_table_is_read() {
        let out = "\n#  fs_mark  -S  0  -L  2\n#\tSync method: NO SYNC\n\n\
                   FSUse%        Count         Size    Files/sec     App Overhead\n     \
                   0            8            0     106525.6               76\n     \
                   0           16            0     123106.1               69\n";
        assert_eq!(super::parse(out), [106_525.6, 123_106.1]);
    }
}
