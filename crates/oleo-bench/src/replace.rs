//! Replacing a device: `oleo replace start` of the devices and on a mount beside `btrfs replace start -B`, and beside a copy of the device.
//!
//! The second of four devices is replaced again and again, by all sides in turns, each time by a new empty one, so that all find the same volume. All
//! devices are loop devices over files in memory. The kernel checks and scrubs what we replaced.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use oleo_sim::oracle::{self, Loop, Oracle, ReadOnly};
use oleo_sim::served::{Limits, Served};

use crate::Args;
use crate::many_devices::{attach, ends, fill, images, named};
use crate::measure::{self, Report, Sample, median, program, time};
use crate::mounted::{drop_caches, tool};

const DEVICES: usize = 4;
/// Which goes, as an index.
const GOES: usize = 1;
/// Bytes of files; what is on the devices is more, by the profile.
const DATA_LEN: u64 = 4 << 30;
const DEVICE_LEN: u64 = 3 << 30;
const MIB: u64 = 1 << 20;

struct Case<'a> {
    oracle: &'a Oracle,
    oleo: &'a Path,
    dir: &'a Path,
    images: Vec<PathBuf>,
    /// New devices so far.
    made: usize,
}

impl Case<'_> {
    /// An empty device.
    fn new_device(&mut self) -> Result<(PathBuf, Loop)> {
        self.made += 1;
        let image = self.dir.join(format!("new{}", self.made));
        File::create(&image)?.set_len(DEVICE_LEN)?;
        let attached = Loop::attach(&image, ReadOnly::No)?;
        Ok((image, attached))
    }

    /// The new device is there, and the old one gone.
    fn replaced(&mut self, image: PathBuf, attached: Loop) -> Result<()> {
        drop(attached);
        let old = std::mem::replace(&mut self.images[GOES], image);
        Ok(std::fs::remove_file(old)?)
    }

    fn of_devices(&mut self) -> Result<Sample> {
        let (image, new) = self.new_device()?;
        let (loops, paths) = attach(&self.images)?;
        let mut args = ["replace", "start"].map(str::to_owned).to_vec();
        args.extend([paths[GOES].display().to_string(), new.path().display().to_string()]);
        args.extend(named(&paths));
        drop_caches()?;
        let taken = program(self.oleo, &args)?;
        drop(loops);
        self.replaced(image, new)?;
        self.oracle.must_be_sound(&self.images, "the volume with a new device")?;
        Ok(taken)
    }

    fn on_mount(&mut self) -> Result<Sample> {
        let (image, new) = self.new_device()?;
        let (loops, paths) = attach(&self.images)?;
        let limits = Limits { life: Duration::from_secs(3600), unmount: Duration::from_secs(300), ..Limits::default() };
        let mounted = Served::mount(self.oleo, &paths, "noatime", limits)?;
        let args =
            ["replace".as_ref(), "start".as_ref(), "-B".as_ref(), paths[GOES].as_os_str(), new.path().as_os_str()];
        drop_caches()?;
        let taken = program(self.oleo, &[&args[..], &[mounted.path().as_os_str()]].concat())?;
        mounted.unmount()?;
        drop(loops);
        self.replaced(image, new)?;
        self.oracle.must_be_sound(&self.images, "the volume with a new device")?;
        Ok(taken)
    }

    fn by_the_kernel(&mut self) -> Result<Sample> {
        let (image, new) = self.new_device()?;
        let mounted = self.oracle.mount(&self.images, "")?;
        let devid = (GOES + 1).to_string();
        let args = ["replace".as_ref(), "start".as_ref(), "-B".as_ref(), devid.as_ref(), new.path().as_os_str()];
        drop_caches()?;
        let taken = program(Path::new("/usr/bin/btrfs"), &[&args[..], &[mounted.path().as_os_str()]].concat())?;
        mounted.unmount()?;
        self.replaced(image, new)?;
        Ok(taken)
    }

    /// The same bytes, and no thought: what is in chunks of the device.
    fn by_dd(&mut self) -> Result<Sample> {
        let len = ends(&self.images)?[GOES];
        let (image, new) = self.new_device()?;
        let old = Loop::attach(&self.images[GOES], ReadOnly::Yes)?;
        let mut command = Command::new("dd");
        command.arg(format!("if={}", old.path().display())).arg(format!("of={}", new.path().display()));
        command.args(["bs=1M", "conv=fsync", "status=none"]).arg(format!("count={}", len.div_ceil(MIB)));
        drop_caches()?;
        let taken = time(|| tool(&mut command).map(drop))?;
        drop((old, new));
        std::fs::remove_file(image)?;
        Ok(taken)
    }
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let oleo = measure::oleo()?;
    let len = DATA_LEN / args.part.max(1);
    for (data, len) in [("raid5", len), ("raid10", len / 2)].into_iter().filter(|(data, _)| args.wants(data)) {
        let scratch = oracle.scratch()?;
        let images = images(scratch.path(), DEVICES, DEVICE_LEN)?;
        fill(&oracle, &images, data, len)?;
        let end = ends(&images)?[GOES];
        report.note(&format!(
            "{data}: {} MiB of files; {} MiB of the device are in chunks; median of {} runs",
            len / MIB,
            end / MIB,
            args.runs
        ));
        let mut case = Case { oracle: &oracle, oleo: &oleo, dir: scratch.path(), images, made: 0 };
        let (mut ours, mut mounted, mut kernel, mut copied) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.runs {
            ours.push(case.of_devices()?);
            kernel.push(case.by_the_kernel()?);
            mounted.push(case.on_mount()?);
            copied.push(case.by_dd()?);
        }
        let (kernel, copied) = (median(kernel), median(copied));
        for (how, taken) in [("devices", median(ours)), ("mount", median(mounted))] {
            let name = format!("replace, {data}, {how}");
            report.seconds(&name, taken, "btrfs replace", kernel, "-");
            report.seconds(&name, taken, "dd", copied, "1x");
        }
    }
    Ok(())
}
