//! Building an image of a directory tree, beside mkfs.btrfs and the kernel.

use std::path::Path;

use anyhow::{Context, Result};
use oleo_sim::oracle;

use crate::Args;
use crate::measure::{Report, Sample, census, median, oleo, program, time};

/// The image file that mkfs.btrfs and the kernel get: room for the tree, its metadata twice, and slack.
pub fn image_len(bytes: u64, files: u64) -> u64 {
    (bytes + bytes / 4 + files * 8192 + (2 << 30)).next_multiple_of(1 << 20)
}

fn fresh(path: &Path, len: u64) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let file = std::fs::File::create(path)?;
    Ok(file.set_len(len)?)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let oleo = oleo()?;
    let scratch = oracle.scratch()?;
    let tree = args.tree.to_str().context("the tree's path is not UTF-8")?;
    let (files, bytes) = census(&args.tree)?;
    report.note(&format!("{tree}: {files} entries, {} MiB; median of {} runs", bytes >> 20, args.runs));
    let image = scratch.path().join("tree.img");
    let img = image.to_str().context("path")?;
    let len = image_len(bytes, files);
    let wanted = |name: &str| args.wants(name);
    let repeat = |f: &dyn Fn() -> Result<Sample>| -> Result<Sample> {
        f()?; // warms caches and code; not counted
        Ok(median((0..args.runs).map(|_| f()).collect::<Result<_>>()?))
    };
    let kernel = |options: &str| -> Result<Sample> {
        fresh(&image, len)?;
        oracle.mkfs(&["-q", "-f"], &[&image])?;
        time(|| {
            let mounted = oracle.mount(&[&image], options)?;
            let status = std::process::Command::new("cp").arg("-a").arg(&args.tree).arg(mounted.path()).status()?;
            anyhow::ensure!(status.success(), "cp -a failed");
            mounted.sync()?;
            mounted.unmount()
        })
    };
    let ours = |extra: &[&str]| -> Result<Sample> {
        let _ = std::fs::remove_file(&image);
        let mut all = vec!["mkfs", "-q", "--rootdir", tree];
        all.extend_from_slice(extra);
        all.push(img);
        program(&oleo, &all)
    };
    if wanted("plain") {
        let mine = repeat(&|| ours(&[]))?;
        let progs = repeat(&|| {
            fresh(&image, len)?;
            program(Path::new("mkfs.btrfs"), &["-q", "-f", "--rootdir", tree, img])
        })?;
        report.seconds("plain, mkfs.btrfs --rootdir", mine, "mkfs.btrfs", progs, "4x");
        let cp = repeat(&|| kernel("compress=no"))?;
        report.seconds("plain, kernel mount + cp -a", mine, "kernel", cp, "3x");
    }
    if wanted("zstd:3") {
        let mine = repeat(&|| ours(&["--compress", "zstd:3"]))?;
        let cp = repeat(&|| kernel("compress=zstd:3"))?;
        report.seconds("zstd:3, kernel mount + cp -a", mine, "kernel", cp, "1.5x");
    }
    Ok(())
}
