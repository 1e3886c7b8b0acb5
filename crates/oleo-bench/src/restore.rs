//! Copying all files out of an image, beside kernel mount + cp -a.

use anyhow::{Context, Result};
use oleo_sim::oracle;

use crate::Args;
use crate::measure::{Report, Sample, census, median, oleo, program, time};

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let oleo = oleo()?;
    let scratch = oracle.scratch()?;
    let tree = args.tree.to_str().context("the tree's path is not UTF-8")?;
    let (files, bytes) = census(&args.tree)?;
    report.note(&format!("{tree}: {files} entries, {} MiB; median of {} runs", bytes >> 20, args.runs));
    for (name, extra) in [("plain", &[][..]), ("zstd:3", &["--compress", "zstd:3"][..])] {
        if !args.wants(name) {
            continue;
        }
        let image = scratch.path().join("tree.img");
        let img = image.to_str().context("path")?;
        let _ = std::fs::remove_file(&image);
        let mut make = vec!["mkfs", "-q", "--rootdir", tree];
        make.extend_from_slice(extra);
        make.push(img);
        program(&oleo, &make)?;
        let out = scratch.path().join("out");
        let dest = out.to_str().context("path")?;
        let repeat = |f: &dyn Fn() -> Result<Sample>| -> Result<Sample> {
            let once = || -> Result<Sample> {
                if out.exists() {
                    std::fs::remove_dir_all(&out)?;
                }
                std::fs::create_dir(&out)?;
                f()
            };
            once()?;
            Ok(median((0..args.runs).map(|_| once()).collect::<Result<_>>()?))
        };
        let mine = repeat(&|| program(&oleo, &["restore", "-q", img, dest]))?;
        let cp = repeat(&|| {
            time(|| {
                let mounted = oracle.mount(&[&image], "ro")?;
                let from = format!("{}/.", mounted.path().display());
                let status = std::process::Command::new("cp").args(["-a", &from, dest]).status()?;
                anyhow::ensure!(status.success(), "cp -a failed");
                mounted.unmount()
            })
        })?;
        report.seconds(&format!("restore {name}"), mine, "kernel cp -a", cp, "faster");
        std::fs::remove_dir_all(&out)?;
    }
    Ok(())
}
