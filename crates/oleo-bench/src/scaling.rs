//! What the model of many cores is fed with (decision 0025): what a line costs that two threads write to, what operations cost one thread,
//! and what two threads in different directories come to. Nothing is written to a disk, and no peer is measured.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use oleo::device::MemDevice;
use oleo::fs::{Fs, InodeRef, NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions};

use crate::Args;
use crate::measure::Report;

/// Threads that a machine is asked about.
const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Additions to a line of each thread.
const ADDITIONS: u64 = 2_000_000;
/// Files in each thread's directory.
const FILES: usize = 1000;

/// An operation, how often each thread does it, and its stores to lines that all share, as `shared-lines` counts them: all, and
/// those to the line that has most of them.
struct Kind {
    name: &'static str,
    count: u64,
    stores: f64,
    hottest: f64,
}

const KINDS: &[Kind] = &[
    Kind { name: "name looked up, attributes read", count: 400_000, stores: 0.0, hottest: 0.0 },
    Kind { name: "8 KiB read from the device", count: 100_000, stores: 12.0, hottest: 4.0 },
    Kind { name: "file created", count: 60_000, stores: 4.1, hottest: 1.0 },
    Kind { name: "8 KiB written into memory", count: 8000, stores: 1.4, hottest: 0.4 },
    Kind { name: "file unlinked", count: 900, stores: 0.8, hottest: 0.3 },
];

/// On lines of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds of an addition by `threads`, each to the line that it gets.
fn additions(lines: &[&Line]) -> f64 {
    let start = Instant::now();
    std::thread::scope(|s| {
        for line in lines {
            s.spawn(|| (0..ADDITIONS).for_each(|_| _ = black_box(line.0.fetch_add(1, Ordering::SeqCst))));
        }
    });
    start.elapsed().as_nanos() as f64 / ADDITIONS as f64
}

/// What one thread works on.
struct Place {
    fs: Fs,
    dir: InodeRef,
    files: Vec<InodeRef>,
    names: Vec<String>,
}

fn work(place: &Place, kind: usize, new_names: &[String]) -> Result<()> {
    let Place { fs, dir, files, names } = place;
    let mut bytes = [0; 8192];
    for n in 0..KINDS[kind].count {
        let at = n as usize % FILES;
        match kind {
            0 => {
                let found = fs.lookup(dir, names[at].as_bytes())?.context("it is there")?;
                black_box(fs.attr(&found));
            }
            1 => drop(black_box(fs.read(&files[at], 0, &mut bytes)?)),
            2 => drop(fs.create(dir, new_names[n as usize].as_bytes(), &NewInode::new(NewKind::File, 0o600))?),
            3 => fs.write(&files[at], (n / FILES as u64 + 1) * 8192, &bytes)?,
            _ => drop(fs.unlink(dir, names[at].as_bytes())?),
        }
    }
    Ok(())
}

/// Nanoseconds of one operation, each of some threads doing as many.
fn measured(kind: usize, threads: usize) -> Result<f64> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(4 << 30))];
    oleo::mkfs::make(&devices, &MkfsOptions::default())?;
    let mut options = OpenOptions::writing();
    // Commits are another input.
    options.fs.dirty_inodes_max = usize::MAX;
    options.fs.data.dirty_bytes_max = 1 << 30;
    let image = Image::from_devices(devices, &options)?;
    let (fs, top) = (image.fs(), image.top()?);
    let mut places = Vec::new();
    for t in 0..threads {
        let dir = fs.create(&top, format!("t{t}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
        let names: Vec<String> = (0..FILES).map(|n| format!("f{n}")).collect();
        for name in &names {
            let file = fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
            fs.write(&file, 0, &[t as u8; 8192])?;
        }
        places.push((dir, names));
    }
    image.sync()?;
    let new_names: Vec<String> = (0..KINDS[kind].count).map(|n| format!("new{n:08}~~~~~~~~KQSAZCJ4UUJ1BCSH")).collect();
    let places: Vec<Place> = places
        .into_iter()
        .map(|(dir, names)| {
            let files = names.iter().map(|name| fs.lookup(&dir, name.as_bytes())?.context("it is there"));
            Ok(Place { fs: fs.clone(), files: files.collect::<Result<_>>()?, dir, names })
        })
        .collect::<Result<_>>()?;
    let start = Instant::now();
    std::thread::scope(|s| -> Result<()> {
        let workers: Vec<_> = places.iter().map(|place| s.spawn(|| work(place, kind, &new_names))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    let nanoseconds = start.elapsed().as_nanos() as f64 / KINDS[kind].count as f64;
    drop(places);
    drop(top);
    image.close()?;
    Ok(nanoseconds)
}

/// Operations a second of so many threads on processors of their own (see decision 0025).
fn modelled(threads: u32, alone: f64, transfer: f64, kind: &Kind) -> f64 {
    let others = f64::from(threads - 1) / f64::from(threads);
    let each = 1e9 * f64::from(threads) / (alone + kind.stores * transfer * others);
    let line = if threads > 1 && kind.hottest > 0.0 { 1e9 / (kind.hottest * transfer) } else { f64::INFINITY };
    each.min(line)
}

fn median(runs: usize, mut once: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut all = (0..runs.max(1)).map(|_| once()).collect::<Result<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let (a, b) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let alone = median(args.runs, || Ok(additions(&[&a])))?;
    let apart = median(args.runs, || Ok(additions(&[&a, &b])))?;
    let shared = median(args.runs, || Ok(additions(&[&a, &a])))?;
    report.value("addition to a line of one's own", "ns", alone);
    report.value("the same, another thread on another line", "ns", apart);
    // Both add as many; in this time the line has taken both's.
    report.value("addition to a line of two threads, of each", "ns", shared);
    let transfer = (shared / 2.0 - alone).max(0.0);
    report.value("a transfer of a line", "ns", transfer);
    for (at, kind) in KINDS.iter().enumerate() {
        if !args.wants(kind.name) {
            continue;
        }
        let one = median(args.runs, || measured(at, 1))?;
        let two = median(args.runs, || measured(at, 2))?;
        report.value(&format!("{}: one thread", kind.name), "ns", one);
        report.value(&format!("{}: two threads, each", kind.name), "ns", two);
        let rates: Vec<String> =
            THREADS.iter().map(|n| format!("{n}: {:.2}", modelled(*n, one, transfer, kind) / 1e6)).collect();
        report.note(&format!("{}, modelled, million a second by threads: {}", kind.name, rates.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the model says what its text says. Method: without shared stores it is linear; with one it is bounded by the line.
    #[test]
    fn the_model_is_bounded_by_the_line() {
        let none = Kind { name: "", count: 0, stores: 0.0, hottest: 0.0 };
        assert_eq!(modelled(64, 1000.0, 100.0, &none), 64e6);
        let one = Kind { stores: 1.0, hottest: 1.0, ..none };
        assert_eq!(modelled(1, 1000.0, 100.0, &one), 1e6);
        assert_eq!(modelled(64, 1000.0, 100.0, &one), 1e7);
        assert!(modelled(4, 1000.0, 100.0, &one) > 3.6e6);
    }
}
