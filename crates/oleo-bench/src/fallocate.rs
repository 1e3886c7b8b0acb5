//! Preallocation by many threads in parallel: each of P threads gives its own file 8 KiB and takes them away again,
//! repeatedly.
//!
//! Ours runs in-process with P threads; the kernel's ext4 (with and without `mb_optimize_scan`) and btrfs with P
//! processes, each of which is this program started once more ([`child`]), so that the loop is the same. All on images
//! in memory. A round is one fallocate and one truncate to nothing. There is no sync within the time that is measured;
//! afterwards ours leaves every file with its 8 KiB, syncs and must be sound.
//!
//! Ours reserves space in the call and allocates it when it is written out; a truncate before that cancels the
//! reservation: nothing is allocated, and the first figure has no aim. In the second, which has one, ours writes each
//! file out in between, with addresses, items and all. The kernel's one figure is compared with both: it allocates
//! space in the call.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use oleo::Image;
use oleo::fs::{KeepSize, NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo_sim::oracle::{self, Mounted, Oracle};
use rustix::fs::FallocateFlags;

use crate::Args;
use crate::measure::{Better, Figure, Found, Report};
use crate::mounted::{make_ext4, mount_ext4};
use crate::peer::Peer;

const IMAGE_LEN: u64 = 8 << 30;
/// What every round takes and gives back.
const TAKEN_LEN: u64 = 8 << 10;
const THREADS: [usize; 4] = [1, 2, 4, 8];
const MEASURED: Duration = Duration::from_secs(2);
/// Rounds between two readings of the clock.
const ROUNDS: u64 = 64;
/// The hidden name under which a process of the kernel's side is started.
pub const CHILD: &str = "fallocate-child";

const PEERS: &[Peer] = &[Peer::Oleo, Peer::Kernel, Peer::Ext4, Peer::Ext4Scan];
const AIMS: &[(Peer, &str)] = &[(Peer::Kernel, "4x"), (Peer::Ext4, "4x"), (Peer::Ext4Scan, "4x")];

fn plain(threads: usize) -> String {
    format!("promised and dropped, {threads} in parallel")
}

fn placed(threads: usize) -> String {
    format!("placed and freed, {threads} in parallel")
}

fn figures() -> Vec<Figure> {
    let figure = |name: String, aims| Figure { name: name.into(), unit: "k/s", better: Better::More, aims };
    let first = THREADS.iter().map(|n| figure(plain(*n), &[][..]));
    let second = THREADS.iter().map(|n| figure(placed(*n), AIMS));
    first.chain(second).collect()
}

/// Calls `round` until the time is up; how often.
fn rounds(mut round: impl FnMut() -> Result<()>) -> Result<u64> {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < MEASURED {
        for _ in 0..ROUNDS {
            round()?;
        }
        done += ROUNDS;
    }
    Ok(done)
}

/// One process of the kernel's side: opens its file, reports that, waits for a line, and reports how many rounds it
/// made.
pub fn child(file: &Path) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(file)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let done = rounds(|| {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, TAKEN_LEN)?;
        Ok(rustix::fs::ftruncate(&file, 0)?)
    })?;
    println!("{done}");
    Ok(())
}

struct Running {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(file: &Path) -> Result<Running> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(CHILD).arg("--within").arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("this program cannot be started once more")?;
        let mut out = BufReader::new(child.stdout.take().context("no output")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        ensure!(line == "ready\n", "a process could not open {}", file.display());
        Ok(Running { child, out })
    }

    fn go(&mut self) -> Result<()> {
        Ok(self.child.stdin.as_mut().context("no input")?.write_all(b"go\n")?)
    }

    fn end(mut self) -> Result<u64> {
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        ensure!(self.child.wait()?.success(), "a process failed");
        Ok(text.trim().parse()?)
    }
}

/// Thousands of rounds per second.
fn rate(rounds: u64) -> f64 {
    rounds as f64 / MEASURED.as_secs_f64() / 1000.0
}

fn kernel(mounted: &Mounted, peer: Peer, found: &mut Found) -> Result<()> {
    for threads in THREADS {
        let mut all = Vec::new();
        for n in 0..threads {
            all.push(Running::start(&mounted.path().join(format!("file-{n}")))?);
        }
        for one in &mut all {
            one.go()?;
        }
        let done = all.into_iter().map(Running::end).sum::<Result<u64>>()?;
        found.put(peer, &plain(threads), rate(done));
        found.put(peer, &placed(threads), rate(done));
    }
    Ok(())
}

/// What a round of ours does between its two calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    WritesOut,
}

fn threads_of(image: &Image, threads: usize, between: Between) -> Result<u64> {
    let (fs, top) = (image.fs(), image.top()?);
    let mut files = Vec::new();
    for n in 0..threads {
        let name = format!("file-{threads}-{n}-{}", between == Between::WritesOut);
        files.push(fs.create(&top, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?);
    }
    let barrier = Barrier::new(threads);
    let done = std::thread::scope(|s| {
        let one = |file| {
            barrier.wait();
            rounds(|| {
                fs.preallocate(file, 0, TAKEN_LEN, KeepSize::No)?;
                if between == Between::WritesOut {
                    fs.flush(file)?;
                }
                Ok(fs.truncate(file, 0)?)
            })
        };
        let all: Vec<_> = files.iter().map(|file| s.spawn(move || one(file))).collect();
        all.into_iter().map(|t| t.join().map_err(|_| anyhow!("a thread panicked"))?).sum::<Result<u64>>()
    })?;
    for file in &files {
        fs.preallocate(file, 0, TAKEN_LEN, KeepSize::No)?;
    }
    Ok(done)
}

fn ours(oracle: &Oracle, path: &Path, found: &mut Found) -> Result<()> {
    let device = oleo::device::FileDevice::open(path, &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let image = Image::open(path, &oleo::OpenOptions::writing())?;
    for threads in THREADS {
        found.put(Peer::Oleo, &plain(threads), rate(threads_of(&image, threads, Between::Nothing)?));
        found.put(Peer::Oleo, &placed(threads), rate(threads_of(&image, threads, Between::WritesOut)?));
    }
    image.sync()?;
    image.close()?;
    oracle.must_be_sound(&[path], "the image that was measured")
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    let path = scratch.path().join("fallocate.img");
    report.note(&format!(
        "{} KiB per file, {} s each; threads of one process on our side, processes on the kernel's; median of {} runs",
        TAKEN_LEN >> 10,
        MEASURED.as_secs(),
        args.runs
    ));
    report.in_turns(&figures(), PEERS, args.runs, |peer, found| {
        let _ = std::fs::remove_file(&path);
        File::create(&path)?.set_len(IMAGE_LEN)?;
        let mounted = match peer {
            Peer::Oleo => return ours(&oracle, &path, found),
            Peer::Ext4 | Peer::Ext4Scan => {
                make_ext4(&path)?;
                mount_ext4(&oracle, &path, peer)?
            }
            _ => {
                oracle.mkfs(&[], &[&path])?;
                oracle.mount(&[&path], "")?
            }
        };
        kernel(&mounted, peer, found)?;
        mounted.unmount()
    })
}
