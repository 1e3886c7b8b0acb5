//! The cost of single calls of the library, on a volume in memory: how long an operation waits during commits, a
//! listing with inodes beside one look-up per entry, writing and flushing. No peer outside is measured; two figures are
//! compared with the same work done in another way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oleo::device::MemDevice;
use oleo::fs::{Fs, InodeRef, NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions};
use oleo_sim::rng::Rng;

use crate::Args;
use crate::measure::{Better, Report, quantile};

const MIB: u64 = 1 << 20;

fn memory(len: u64) -> Result<Vec<Arc<dyn Device>>> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(len))];
    oleo::mkfs::make(&devices, &MkfsOptions::default())?;
    Ok(devices)
}

fn new_file(fs: &Fs, dir: &InodeRef, name: &str) -> Result<InodeRef> {
    Ok(fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

/// Whether something commits all the time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    /// One thread does nothing else.
    InALoop,
    /// Only what the library needs by itself.
    None,
}

/// One thread creates files, writes to one and looks names up for `seconds`; returns microseconds of each call by its
/// name.
fn waits(seconds: u64, commits: Commits, report: &Report) -> Result<BTreeMap<&'static str, Vec<f64>>> {
    let image = Image::from_devices(memory(4096 * MIB)?, &OpenOptions::writing())?;
    let (fs, root) = (image.fs(), image.top()?);
    let data = new_file(fs, &root, "data")?;
    let over = AtomicBool::new(false);
    let mut times: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let mut timed = |name, start: Instant| times.entry(name).or_default().push(start.elapsed().as_secs_f64() * 1e6);
    let committed = std::thread::scope(|scope| -> Result<u64> {
        let committer = scope.spawn(|| -> Result<u64> {
            let mut count = 0;
            while commits == Commits::InALoop && !over.load(Ordering::Relaxed) {
                image.sync()?;
                count += 1;
            }
            Ok(count)
        });
        let mut work = || -> Result<()> {
            let start = Instant::now();
            for n in 0u64.. {
                if start.elapsed() >= Duration::from_secs(seconds) {
                    break;
                }
                let at = Instant::now();
                let made = new_file(fs, &root, &n.to_string())?;
                timed("create", at);
                let at = Instant::now();
                fs.write(&data, n % 1000 * 4096, &[n as u8; 4096])?;
                timed("write", at);
                let at = Instant::now();
                fs.lookup(&root, (n / 2).to_string().as_bytes())?.context("a file made before")?;
                timed("look up", at);
                drop(made);
            }
            Ok(())
        };
        let done = work();
        over.store(true, Ordering::Relaxed);
        let count = committer.join().map_err(|_| anyhow::anyhow!("the committer panicked"))??;
        done.map(|()| count)
    })?;
    if commits == Commits::InALoop {
        report.note(&format!("{committed} commits in {seconds} s"));
    }
    Ok(times)
}

/// Runs the benchmark `latency`.
pub fn latency(args: &Args, report: &mut Report) -> Result<()> {
    let seconds = args.seconds;
    let mut busy = waits(seconds, Commits::InALoop, report)?;
    let mut quiet = waits(seconds, Commits::None, report)?;
    for (name, busy) in &mut busy {
        let quiet = quiet.get_mut(name).context("the same calls")?;
        ensure!(!busy.is_empty() && !quiet.is_empty(), "{seconds} s are too short for a {name}");
        for (part, what) in [(0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "longest")] {
            let name = format!("{name}, {what} of {}", busy.len());
            report.compare(&name, "us", Better::Less, quantile(busy, part), "no commits", quantile(quiet, part), "-");
        }
    }
    Ok(())
}

/// Lists all entries of a directory with their inodes; returns microseconds per entry.
fn listed(devices: &[Arc<dyn Device>], files: u64, at_once: bool) -> Result<f64> {
    const ENTRIES_MAX: usize = 128;
    let image = Image::from_devices(devices.to_vec(), &OpenOptions::writing())?;
    let (fs, dir) = (image.fs(), image.find("dir")?);
    let start = Instant::now();
    // Inodes are held, as for a kernel that knows them.
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let part = if at_once {
            fs.readdir_plus(&dir, after, ENTRIES_MAX)?
        } else {
            let entries = fs.readdir(&dir, after, ENTRIES_MAX)?;
            entries.into_iter().map(|e| Ok((e.clone(), fs.open_entry(&dir, &e)?))).collect::<Result<Vec<_>>>()?
        };
        let Some(last) = part.last() else { break };
        after = last.0.index;
        seen.extend(part.into_iter().filter_map(|(_, inode)| inode));
    }
    let taken = start.elapsed().as_secs_f64();
    ensure!(seen.len() as u64 == files, "{} of {files} entries", seen.len());
    Ok(taken * 1e6 / files as f64)
}

/// Runs the benchmark `listing-rate`.
pub fn listing_rate(args: &Args, report: &mut Report) -> Result<()> {
    const FILES_MAX: u64 = 20_000;
    let files = args.files.clamp(1, FILES_MAX);
    let devices = memory(1024 * MIB)?;
    let image = Image::from_devices(devices.clone(), &OpenOptions::writing())?;
    let dir = image.create_dir("dir")?;
    for n in 0..files {
        new_file(image.fs(), &dir, &format!("{n:08x}-file"))?;
    }
    drop(dir);
    image.close()?;
    let (mut plus, mut single) = (Vec::new(), Vec::new());
    for _ in 0..args.runs.max(1) {
        plus.push(listed(&devices, files, true)?);
        single.push(listed(&devices, files, false)?);
    }
    let (plus, single) = (quantile(&mut plus, 0.5), quantile(&mut single, 0.5));
    report.compare(&format!("listing of {files}"), "us", Better::Less, plus, "one by one", single, "-");
    Ok(())
}

/// Runs the benchmark `write-rate`.
pub fn write_rate(args: &Args, report: &mut Report) -> Result<()> {
    let len = (512 / args.part.clamp(1, 512)) * MIB;
    let writes = (20_000 / args.part.max(1)).max(1);
    let mut options = OpenOptions::writing();
    options.fs.data.dirty_bytes_max = 2 * len + 8 * MIB;
    let image = Image::from_devices(memory(4096 * MIB)?, &options)?;
    let fs = image.fs();
    // A flusher is registered that does nothing, so writers flush nothing by themselves.
    fs.wait_write_back(Duration::ZERO);
    let file = new_file(fs, &image.top()?, "f")?;
    let block = Rng::new(1).bytes(MIB as usize);
    for round in ["new", "overwritten"] {
        let rate = |what: &str, start: Instant, bytes: u64| {
            report.value(&format!("{round}, {what}"), "MB/s", bytes as f64 / start.elapsed().as_secs_f64() / 1e6);
        };
        let start = Instant::now();
        for n in 0..len / MIB {
            fs.write(&file, n * MIB, &block)?;
        }
        rate("in order, into memory", start, len);
        let start = Instant::now();
        fs.flush(&file)?;
        rate("in order, flush", start, len);
        image.sync()?;
        let mut rng = Rng::new(len);
        let start = Instant::now();
        for _ in 0..writes {
            fs.write(&file, rng.below(len / 4096) * 4096, &block[..4096])?;
        }
        rate("4 KiB at random, into memory", start, writes * 4096);
        let start = Instant::now();
        fs.flush(&file)?;
        rate("4 KiB at random, flush", start, writes * 4096);
        let start = Instant::now();
        image.sync()?;
        rate("4 KiB at random, commit", start, writes * 4096);
    }
    Ok(())
}
