//! Moving all metadata of a volume with snapshots, quota off and on, beside the kernel's `balance start -m`.
//!
//! The setting is that of the benchmarks of quota, as the snapshots were made, and after one file in thirty was touched in each of
//! them, so that the trees share less. Both sides move every group of metadata and of system chunks of a copy of one image,
//! and all of it is durable when the clock stops. The kernel's side is mounted before the clock starts; ours opened.

use std::path::Path;

use anyhow::{Context, Result};
use oleo::{Image, Moved, OpenOptions, SetAttr};
use oleo_format::BlockGroupFlags;
use oleo_sim::oracle::{self, Oracle, run as tool};

use crate::Args;
use crate::measure::{Report, Sample, median, time};
use crate::quota::{DIRS, FILES, build, copy};

const TOUCHED_STEP: usize = 30;

fn touch(path: &Path, snapshots: usize) -> Result<()> {
    let image = Image::open(path, &OpenOptions::writing())?;
    let fs = image.fs();
    for s in 0..snapshots {
        let top = fs.root(image.subvol(&format!("/snapshot-{s:03}"))?.tree())?;
        for d in 0..DIRS {
            let Some(dir) = fs.lookup(&top, format!("directory-{d:04}").as_bytes())? else { continue };
            for n in (0..FILES / DIRS).step_by(TOUCHED_STEP) {
                let Some(file) = fs.lookup(&dir, format!("file-{n:04}").as_bytes())? else { continue };
                fs.set_attr(&file, &SetAttr { mode: Some(0o600 + s as u32 % 2), ..SetAttr::default() })?;
            }
        }
        image.sync()?;
    }
    Ok(image.close()?)
}

/// User and system seconds of this process so far.
fn cpu() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The fields behind the name in brackets: the twelfth and the thirteenth are ticks, of which a second has 100.
    let fields = stat.rsplit_once(')').context("no name in /proc/self/stat")?.1;
    let ticks: f64 = fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum();
    Ok(ticks / 100.0)
}

fn ours(path: &Path) -> Result<(Sample, Moved, f64, u64)> {
    let image = Image::open(path, &OpenOptions::writing())?;
    let engine = image.fs().engine();
    let kinds = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
    let groups: Vec<_> =
        engine.space().groups().into_iter().filter(|g| g.flags.intersects(kinds)).map(|g| g.start).collect();
    let mut all = Moved::default();
    let before = cpu()?;
    let taken = time(|| {
        for start in &groups {
            all += engine.relocate_group(*start, &|_| true)?.context("nobody stops it")?;
        }
        Ok(())
    })?;
    let (cpu, dirty) = (cpu()? - before, engine.quota_dirty_extents());
    image.close()?;
    Ok((taken, all, cpu, dirty))
}

fn theirs(oracle: &Oracle, path: &Path) -> Result<Sample> {
    let mounted = oracle.mount(&[path], "")?;
    let at = mounted.path().display().to_string();
    let taken = time(|| tool("btrfs", ["balance", "start", "-m", &at]).map(drop))?;
    mounted.unmount()?;
    Ok(taken)
}

/// `balance`
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    report.note(&format!("all metadata of {FILES} files; median of {} runs", args.runs));
    for (snapshots, touched) in [(16, false), (64, false), (64, true)] {
        let what = format!("{snapshots} snapshots{}", if touched { ", touched" } else { "" });
        if args.only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
            continue;
        }
        let mut medians = Vec::new();
        for quota in [false, true] {
            let image = scratch.path().join("balance.img");
            build(&image, snapshots, quota)?;
            if touched {
                touch(&image, snapshots)?;
            }
            let (mut mine, mut kernels) = (Vec::new(), Vec::new());
            let mut told = String::new();
            for _ in 0..args.runs {
                let path = copy(&image, "ours.img")?;
                let (taken, moved, cpu, dirty) = ours(&path)?;
                mine.push(taken);
                told = format!(
                    "{what}: {} blocks moved, {} written, {cpu:.2} s of processors, {dirty} dirty extents",
                    moved.blocks, moved.rewritten
                );
                oracle.must_be_sound(&[&path], "balanced")?;
                let path = copy(&image, "theirs.img")?;
                kernels.push(theirs(&oracle, &path)?);
            }
            report.note(&told);
            let mine = median(mine);
            let name = format!("{what}, quota {}", if quota { "on" } else { "off" });
            report.seconds(&name, mine, "kernel", median(kernels), "5x");
            medians.push(mine.seconds);
        }
        report.scaled(&format!("{what}, quota off and on"), "s", medians[0], medians[1], 1.02);
    }
    Ok(())
}
