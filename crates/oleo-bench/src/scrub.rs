//! Scrubbing a volume: `oleo scrub start` beside `btrfs scrub start -B`, and beside `cat` of all devices in parallel, which does nothing but read.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use oleo_sim::oracle::{self, Oracle};
use oleo_sim::rng::Rng;

use crate::Args;
use crate::measure::{self, Report, Sample, median, program};

const DEVICES: usize = 4;
/// Bytes of files of each volume; what is on the devices is more, by its profile.
const DATA_LEN: u64 = 4 << 30;
const FILE_LEN: u64 = 64 << 20;
const DEVICE_LEN: u64 = 5 << 30;

/// A volume that the kernel has filled with files that do not compress.
fn fill(oracle: &Oracle, images: &[PathBuf], data: &str, len: u64) -> Result<()> {
    oracle.mkfs(&["-d", data, "-m", "raid1"], images)?;
    let mounted = oracle.mount(images, "")?;
    let mut rng = Rng::new(1);
    let mut bytes = rng.bytes(usize::try_from(FILE_LEN)?);
    for nth in 0..len / FILE_LEN {
        bytes[..8].copy_from_slice(&nth.to_le_bytes());
        std::fs::write(mounted.path().join(format!("f{nth}")), &bytes)?;
    }
    mounted.unmount()
}

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

/// The end of what each device has in chunks: behind it there is nothing to be read.
fn ends(images: &[PathBuf]) -> Result<Vec<u64>> {
    let options = oleo::OpenOptions::default().devices(images[1..].to_vec());
    let image = oleo::Image::open(&images[0], &options)?;
    let mut ends = vec![0; images.len()];
    for chunk in image.volume().chunks() {
        for stripe in &chunk.stripes {
            let end = ends.get_mut(usize::try_from(stripe.devid.0)? - 1).context("a device of another number")?;
            *end = stripe.offset.0.saturating_add(chunk.stripe_bytes().0).max(*end);
        }
    }
    Ok(ends)
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
    let images: Vec<PathBuf> = (0..DEVICES).map(|nth| scratch.path().join(format!("d{nth}"))).collect();
    for image in &images {
        std::fs::File::create(image)?.set_len(DEVICE_LEN)?;
    }
    fill(case.oracle, &images, case.data, case.len)?;
    let lens = ends(&images)?;
    let mut command: Vec<String> = vec!["scrub".into(), "start".into(), "-r".into(), images[0].display().to_string()];
    images[1..].iter().for_each(|other| command.extend(["--device".into(), other.display().to_string()]));
    let (mut ours, mut theirs, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        drop_caches(case.cold)?;
        ours.push(program(case.oleo, &command)?);
        drop_caches(case.cold)?;
        read.push(cat(&images, &lens)?);
        let mounted = case.oracle.mount(&images, "")?;
        drop_caches(case.cold)?;
        let at = mounted.path().display().to_string();
        theirs.push(program(Path::new("/usr/bin/btrfs"), &["scrub", "start", "-B", "-r", &at])?);
        mounted.unmount()?;
    }
    report.seconds(case.name, median(ours.clone()), "btrfs scrub", median(theirs), "3x");
    report.seconds(case.name, median(ours), "cat of all devices", median(read), "0.9x");
    Ok(())
}

fn drop_caches(cold: bool) -> Result<()> {
    if cold {
        rustix::fs::sync();
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
    }
    Ok(())
}
