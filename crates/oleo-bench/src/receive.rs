//! A stream of a directory tree into an empty image, against the kernel's mount, `btrfs receive` and unmount.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use oleo_sim::oracle;

use crate::Args;
use crate::measure::{Report, Sample, census, median, oleo, program, time};

/// Bytes of each image, most of them holes.
const IMAGE_LEN: u64 = 4 << 30;

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let oleo = oleo()?;
    let scratch = oracle.scratch()?;
    let (files, bytes) = census(&args.tree)?;
    report.note(&format!(
        "{}: {files} entries, {} MiB; median of {} runs",
        args.tree.display(),
        bytes >> 20,
        args.runs
    ));
    let stream = scratch.path().join("stream");
    {
        let source = scratch.image("source.img", IMAGE_LEN)?;
        oracle.mkfs(&[], &[&source])?;
        let mounted = oracle.mount(&[&source], "")?;
        let tree = mounted.path().join("tree");
        oracle::run("btrfs", ["subvolume".as_ref(), "create".as_ref(), tree.as_os_str()])?;
        oracle::run("cp", ["-a".as_ref(), args.tree.join(".").as_os_str(), tree.as_os_str()])?;
        let set = ["property".as_ref(), "set".as_ref(), tree.as_os_str(), "ro".as_ref(), "true".as_ref()];
        oracle::run("btrfs", set)?;
        let send = ["send".as_ref(), "-q".as_ref(), "-f".as_ref(), stream.as_os_str(), tree.as_os_str()];
        oracle::run("btrfs", send)?;
        mounted.unmount()?;
        std::fs::remove_file(source)?;
    }
    report.note(&format!("stream of {} MiB", std::fs::metadata(&stream)?.len() >> 20));
    let image = scratch.path().join("receiver.img");
    let (img, from) = (image.to_str().context("path")?, stream.to_str().context("path")?);
    let repeat = |f: &dyn Fn() -> Result<Sample>| -> Result<Sample> {
        let once = || -> Result<Sample> {
            let _ = std::fs::remove_file(&image);
            scratch.image("receiver.img", IMAGE_LEN)?;
            oracle.mkfs(&[], &[&image])?;
            f()
        };
        once()?;
        Ok(median((0..args.runs).map(|_| once()).collect::<Result<_>>()?))
    };
    let mine = repeat(&|| program(&oleo, &["receive", "-q", "-f", from, img]))?;
    oracle.must_be_sound(&[&image], "received")?;
    let theirs = repeat(&|| {
        time(|| {
            let mounted = oracle.mount(&[&image], "")?;
            let mut receive = Command::new("btrfs");
            receive.args(["receive", "-q", "-f", from]).arg(mounted.path()).stderr(Stdio::null());
            ensure!(receive.status()?.success(), "btrfs receive failed");
            mounted.unmount()
        })
    })?;
    report.seconds("receive into an image", mine, "kernel receive", theirs, "5 times faster");
    Ok(())
}
