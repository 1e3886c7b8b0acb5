//! Moving all metadata of a volume with snapshots, quota off and on, beside the kernel's `balance start -m`.
//!
//! The setting is that of the quota benchmarks, as the snapshots were made, and after one file in thirty was touched in
//! each of them, so that the trees share less. Both sides move every group of metadata and of system chunks of a copy
//! of one image, and all of it is durable when the clock stops. The kernel's side is mounted before the clock starts;
//! our command opens its image within it.

use std::path::Path;

use anyhow::{Context, Result};
use oleo::fs::SetAttr;
use oleo::{Image, OpenOptions};
use oleo_sim::oracle::{self, Oracle, run as tool};

use crate::Args;
use crate::measure::{self, Report, Sample, median, program, time};
use crate::quota::{DIRS, FILES, build, copy};

const TOUCHED_STEP: usize = 30;

fn touch(path: &Path, snapshots: usize) -> Result<()> {
    let image = Image::open(path, &OpenOptions::writing())?;
    let fs = image.fs();
    for s in 0..snapshots {
        let top = fs.root(image.subvol(format!("/snapshot-{s:03}"))?.tree())?;
        for d in 0..DIRS {
            let Some(dir) = fs.lookup(&top, format!("directory-{d:04}").as_bytes())? else { continue };
            for n in (0..FILES / DIRS).step_by(TOUCHED_STEP) {
                let Some(file) = fs.lookup(&dir, format!("file-{n:04}").as_bytes())? else { continue };
                fs.set_attr(&file, &SetAttr::default().mode(Some(0o600 + s as u32 % 2)))?;
            }
        }
        image.sync()?;
    }
    Ok(image.close()?)
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
    let (scratch, oleo) = (oracle.scratch()?, measure::oleo()?);
    report.note(&format!("all metadata of {FILES} files; median of {} runs", args.runs));
    for (snapshots, touched) in [(16, false), (64, false), (64, true)] {
        let what = format!("{snapshots} {}snapshots", if touched { "touched " } else { "" });
        if !args.wants(&what) {
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
            for _ in 0..args.runs {
                let path = copy(&image, "ours.img")?;
                mine.push(program(&oleo, &["balance".as_ref(), "start".as_ref(), "-m".as_ref(), path.as_os_str()])?);
                oracle.must_be_sound(&[&path], "balanced")?;
                let path = copy(&image, "theirs.img")?;
                kernels.push(theirs(&oracle, &path)?);
            }
            let mine = median(mine);
            let name = format!("{what}, quota {}", if quota { "on" } else { "off" });
            report.seconds(&name, mine, "kernel", median(kernels), "5x");
            medians.push(mine.seconds);
        }
        report.scaled(&format!("{what}, quota off and on"), "s", medians[0], medians[1], 1.02);
    }
    Ok(())
}
