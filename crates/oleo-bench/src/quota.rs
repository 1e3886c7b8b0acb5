//! Quota: recounting, deleting snapshots and creating files, with quota on and off, beside the kernel.
//!
//! The setting is that of the kernel's patch series about balance with quota: blocks of 4 KiB, 100 000 small files,
//! snapshots with three files changed in each. Both sides work on copies of one image in memory; all changes are
//! durable when the clock stops.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use oleo::fs::{NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions, SnapshotOptions};
use oleo_sim::oracle::{self, Oracle, Scratch, run as tool};

use crate::Args;
use crate::measure::{self, Better, Report, children_busy_seconds, median, program, time};

/// With 4 GiB the kernel's balance of touched snapshots finds no room.
const IMAGE_LEN: u64 = 8 << 30;
pub(crate) const FILES: usize = 100_000;
pub(crate) const DIRS: usize = 200;
const CHANGED: usize = 3;
const NODESIZE: u32 = 4096;
/// Bytes of each file: they lie in its item.
const LEN: usize = 300;
const CHURN_FILES: usize = 200_000;

/// Wall and processor time of one turn, in seconds.
type Turn = (f64, f64);

fn make(path: &Path) -> Result<Image> {
    std::fs::File::create(path)?.set_len(IMAGE_LEN)?;
    let device = oleo::device::FileDevice::open(path, &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default().nodesize(Some(NODESIZE)))?;
    Ok(Image::open(path, &OpenOptions::writing())?)
}

/// Files, and `snapshots` of them.
pub(crate) fn build(path: &Path, snapshots: usize, quota: bool) -> Result<()> {
    let image = make(path)?;
    let fs = image.fs();
    let live = image.create_subvol("/live")?;
    let top = fs.root(live)?;
    let content = [7u8; LEN];
    let mut some = Vec::new();
    for d in 0..DIRS {
        let dir = fs.create(&top, format!("directory-{d:04}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
        for n in 0..FILES / DIRS {
            let file = fs.create(&dir, format!("file-{n:04}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
            fs.write(&file, 0, &content)?;
            if n == 0 {
                some.push(file);
            }
        }
    }
    for s in 0..snapshots {
        for c in 0..CHANGED {
            fs.write(&some[(s * CHANGED + c) % some.len()], 0, format!("changed before snapshot {s}").as_bytes())?;
        }
        image.snapshot("/live", format!("/snapshot-{s:03}"), &SnapshotOptions::default())?;
    }
    image.sync()?;
    if quota {
        image.quota_enable()?;
    }
    drop(some);
    drop(top);
    Ok(image.close()?)
}

pub(crate) fn copy(of: &Path, to: &str) -> Result<PathBuf> {
    let copy = of.with_file_name(to);
    tool("cp", ["--sparse=always", &of.display().to_string(), &copy.display().to_string()])?;
    Ok(copy)
}

/// `rescan`
pub fn rescan(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("rescan.img");
    report.note(&format!(
        "{FILES} files, {CHANGED} changed before each snapshot, blocks of {NODESIZE}; median of {} runs",
        args.runs
    ));
    let (oleo, mut one) = (measure::oleo()?, None);
    for snapshots in [1, 16, 64] {
        build(&image, snapshots, true)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..args.runs {
            ours.push(program(&oleo, &["quota".as_ref(), "rescan".as_ref(), image.as_os_str()])?);
            let mounted = oracle.mount(&[&image], "")?;
            let at = mounted.path().display().to_string();
            theirs.push(time(|| tool("btrfs", ["quota", "rescan", "-w", &at]).map(drop))?);
            mounted.unmount()?;
        }
        oracle.must_be_sound(&[&image], "counted by both")?;
        let ours = median(ours);
        report.seconds(&format!("rescan, {snapshots} snapshots"), ours, "kernel", median(theirs), "20x at 64");
        let first = *one.get_or_insert(ours.seconds);
        if snapshots > 1 {
            report.scaled(&format!("1 and {snapshots} snapshots"), "s", first, ours.seconds, 1.0);
        }
    }
    Ok(())
}

fn delete_ours(image: &Path, half: usize) -> Result<crate::measure::Sample> {
    let opened = Image::open(image, &OpenOptions::writing())?;
    let taken = time(|| {
        for s in 0..half {
            opened.fs().subvol_delete(opened.subvol(format!("/snapshot-{s:03}"))?.tree())?;
        }
        opened.sync()?;
        opened.clean()?;
        opened.sync()?;
        Ok(())
    })?;
    opened.close()?;
    Ok(taken)
}

fn delete_theirs(oracle: &Oracle, image: &Path, half: usize) -> Result<crate::measure::Sample> {
    let mounted = oracle.mount(&[image], "")?;
    let top = mounted.path().to_path_buf();
    let names: Vec<String> = (0..half).map(|s| top.join(format!("snapshot-{s:03}")).display().to_string()).collect();
    let taken = time(|| {
        let args: Vec<&str> = ["subvolume", "delete"].into_iter().chain(names.iter().map(String::as_str)).collect();
        tool("btrfs", args)?;
        let at = top.display().to_string();
        // Wakes the cleaner, which would begin half a minute later; `subvolume sync` would look once a second.
        tool("btrfs", ["filesystem", "sync", &at])?;
        while !tool("btrfs", ["subvolume", "list", "-d", &at])?.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted.sync()
    })?;
    mounted.unmount()?;
    Ok(taken)
}

/// `snapshot-drop`
pub fn snapshot_drop(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    report.note(&format!("half of the snapshots of {FILES} files go; median of {} runs", args.runs));
    for snapshots in [16, 64] {
        let mut medians = Vec::new();
        for quota in [false, true] {
            let image = scratch.path().join("drop.img");
            build(&image, snapshots, quota)?;
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..args.runs {
                let mine = copy(&image, "ours.img")?;
                ours.push(delete_ours(&mine, snapshots / 2)?);
                oracle.must_be_sound(&[&mine], "half of the snapshots deleted")?;
                let kernels = copy(&image, "theirs.img")?;
                theirs.push(delete_theirs(&oracle, &kernels, snapshots / 2)?);
            }
            let ours = median(ours);
            let name =
                format!("{} of {snapshots} snapshots, quota {}", snapshots / 2, if quota { "on" } else { "off" });
            report.seconds(&name, ours, "kernel", median(theirs), "-");
            medians.push(ours.seconds);
        }
        report.scaled(&format!("{snapshots} snapshots, quota off and on"), "s", medians[0], medians[1], 1.1);
    }
    Ok(())
}

/// Turns of the same work with quota off and on: wall time and processor time of each, seconds.
fn off_and_on(
    runs: usize,
    images: &[PathBuf; 2],
    mut work: impl FnMut(&Path) -> Result<Turn>,
) -> Result<[Vec<Turn>; 2]> {
    let mut taken = [Vec::new(), Vec::new()];
    for run in 0..runs {
        // Who comes first changes, too.
        for quota in if run % 2 == 0 { [0, 1] } else { [1, 0] } {
            let path = copy(&images[quota], "turn.img")?;
            taken[quota].push(work(&path)?);
        }
    }
    Ok(taken)
}

/// `quota-cost`
pub fn cost(args: &Args, report: &mut Report) -> Result<()> {
    let (scratch, oleo) = (Scratch::new()?, measure::oleo()?);
    report.note(&format!("{FILES} files; {} turns of each", args.runs));
    for snapshots in [16, 64] {
        let images = [false, true].map(|quota| scratch.path().join(format!("quota-{quota}.img")));
        for (quota, image) in images.iter().enumerate() {
            build(image, snapshots, quota == 1)?;
        }
        let balance = |path: &Path| {
            let busy = children_busy_seconds()?;
            let args = ["balance".as_ref(), "start".as_ref(), "-m".as_ref(), path.as_os_str()];
            let wall = program(&oleo, &args)?.seconds;
            Ok((wall, children_busy_seconds()? - busy))
        };
        let drop = |path: &Path| delete_timed(path, snapshots / 2);
        let what = format!("{snapshots} snapshots");
        type Work<'a> = &'a dyn Fn(&Path) -> Result<Turn>;
        let all: [(&str, f64, Work<'_>); 2] = [("balance of metadata", 1.05, &balance), ("deleting half", 1.1, &drop)];
        for (name, aim, work) in all {
            let name = format!("{what}, {name}");
            if !args.wants(&name) {
                continue;
            }
            let taken = off_and_on(args.runs, &images, work)?;
            let wall = |turns: &[Turn]| measure::quantile(&mut turns.iter().map(|t| t.0).collect::<Vec<_>>(), 0.5);
            let busy = |turns: &[Turn]| turns.iter().map(|t| t.1).sum::<f64>() / turns.len() as f64;
            let ms = |of: &dyn Fn(&[Turn]) -> f64| taken.each_ref().map(|turns| of(turns) * 1000.0);
            let ([off, on], [busy_off, busy_on]) = (ms(&wall), ms(&busy));
            report.scaled(&format!("{name}, quota off and on, wall"), "ms", off, on, aim);
            report.scaled(&format!("{name}, processors"), "ms", busy_off, busy_on, aim);
        }
    }
    Ok(())
}

fn delete_timed(image: &Path, half: usize) -> Result<Turn> {
    let busy = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let before = busy();
    let taken = delete_ours(image, half)?;
    // Opening and closing are in it, on both sides.
    Ok((taken.seconds, busy() - before))
}

fn churn(path: &Path, quota: bool) -> Result<f64> {
    let image = make(path)?;
    if quota {
        image.quota_enable()?;
    }
    let top = image.top()?;
    let dirs: Vec<_> = (0..2)
        .map(|t| image.fs().create(&top, format!("t{t}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755)))
        .collect::<Result<_, _>>()?;
    image.sync()?;
    let taken = time(|| {
        std::thread::scope(|scope| {
            let one = |dir| {
                let fs = image.fs();
                scope.spawn(move || -> Result<()> {
                    for n in 0..CHURN_FILES / 2 {
                        fs.create(dir, format!("{n:032}").as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
                    }
                    Ok(())
                })
            };
            let threads: Vec<_> = dirs.iter().map(one).collect();
            threads.into_iter().try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        image.sync()?;
        Ok(())
    })?;
    drop((dirs, top));
    image.close()?;
    Ok(CHURN_FILES as f64 / taken.seconds)
}

/// `qgroup-churn`
pub fn churning(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs btrfs check")?;
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("churn.img");
    report.note(&format!(
        "{CHURN_FILES} empty files in two threads, in-process, and a commit; median of {} runs",
        args.runs
    ));
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in 0..args.runs.max(3) {
        off.push(churn(&image, false)?);
        on.push(churn(&image, true)?);
    }
    oracle.must_be_sound(&[&image], "made with quota on")?;
    let middle = |rates: &mut Vec<f64>| crate::measure::quantile(rates, 0.5);
    report.compare("create, quota on", "files/s", Better::More, middle(&mut on), "quota off", middle(&mut off), "0.9x");
    Ok(())
}
