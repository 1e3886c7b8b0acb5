//! Scrubbing a volume: `oleo scrub start` beside `btrfs scrub start -B`, and beside `cat` of all devices in parallel, which does nothing but read.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use oleo_sim::oracle::{self, Oracle};

use crate::Args;
use crate::many_devices::{ends, fill, images, named};
use crate::measure::{self, Report, Sample, median, program};
use crate::mounted::drop_caches;

const DEVICES: usize = 4;
/// Bytes of files of each volume; what is on the devices is more, by its profile.
const DATA_LEN: u64 = 4 << 30;
const DEVICE_LEN: u64 = 5 << 30;

/// All that is allocated of each device, by as many processes.
fn cat(images: &[PathBuf], lens: &[u64]) -> Result<Sample> {
    measure::time(|| {
        let start = |(image, len): (&PathBuf, &u64)| {
            let input = std::fs::File::open(image)?;
            Command::new("head").args(["-c", &len.to_string()]).stdin(input).stdout(Stdio::null()).spawn()
        };
        let children: Vec<_> = images.iter().zip(lens).map(start).collect::<Result<_, _>>()?;
        for mut child in children {
            ensure!(child.wait()?.success(), "head failed");
        }
        Ok(())
    })
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs the kernel's btrfs")?;
    let oleo = measure::oleo()?;
    let len = DATA_LEN / args.part.max(1);
    report.note(&format!(
        "{} MiB of files on {DEVICES} devices, which are files in memory and on a disk ({}); there caches are dropped before each run; median of {} \
         runs; cat reads what is in chunks, used or not",
        len >> 20,
        args.disk.display(),
        args.runs
    ));
    for (place, dir) in [("memory", Path::new("/dev/shm")), ("disk", &args.disk)] {
        for data in ["raid0", "raid10", "raid5"] {
            let name = format!("scrub, {data}, {place}");
            if args.wants(&name) {
                // As much on the devices in each case, but for parity.
                let len = if data == "raid10" { len / 2 } else { len };
                one(
                    args,
                    report,
                    &Case { oracle: &oracle, oleo: &oleo, name: &name, data, len, dir, cold: place == "disk" },
                )?;
            }
        }
    }
    Ok(())
}

struct Case<'a> {
    oracle: &'a Oracle,
    oleo: &'a Path,
    name: &'a str,
    data: &'a str,
    len: u64,
    dir: &'a Path,
    cold: bool,
}

fn one(args: &Args, report: &mut Report, case: &Case<'_>) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("oleo-bench-").tempdir_in(case.dir)?;
    let images = images(scratch.path(), DEVICES, DEVICE_LEN)?;
    fill(case.oracle, &images, case.data, case.len)?;
    let lens = ends(&images)?;
    let command = [["scrub", "start", "-r"].map(str::to_owned).to_vec(), named(&images)].concat();
    let cold = || if case.cold { drop_caches() } else { Ok(()) };
    let (mut ours, mut theirs, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        cold()?;
        ours.push(program(case.oleo, &command)?);
        cold()?;
        read.push(cat(&images, &lens)?);
        let mounted = case.oracle.mount(&images, "")?;
        cold()?;
        let at = mounted.path().display().to_string();
        theirs.push(program(Path::new("/usr/bin/btrfs"), &["scrub", "start", "-B", "-r", &at])?);
        mounted.unmount()?;
    }
    report.seconds(case.name, median(ours.clone()), "btrfs scrub", median(theirs), "3x");
    report.seconds(case.name, median(ours), "cat of all devices", median(read), "0.9x");
    Ok(())
}
