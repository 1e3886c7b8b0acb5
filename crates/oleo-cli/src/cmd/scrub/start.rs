//! `oleo scrub start` and `resume`

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use oleo::ErrorKind;
use oleo::control::{Bytes, Reply, Request, ScrubChange, ScrubEnd, ScrubShown, ScrubWant};
use oleo::device::Place;
use oleo::format::DevId;
use oleo::scrub::Scrubber;
use rustix::io::Errno;

use super::{look, nothing_there, open, show};
use crate::args;
use crate::cmd::interruptible::{interruptible, watched};
use crate::out::{self, Out, Said, human, json, println_or_end};
use crate::redundancy::{self, RedundancyArg};
use crate::target::{self, Access, Target, VolumeArg};

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Verify everything, and heal what is bad from what is good
///
/// Reads every copy and all parity of every device, compares it with checksums, and overwrites what is bad with a good copy or with what parity gives. What
/// was bad is named, healed or not: its address, its place on the device, and the files that it is in. On an image the command returns
/// when the scrub is done; Ctrl-C interrupts it, so that it can be resumed. On a mount it goes on in the background, beside users, unless -B
/// is given. The state is kept where btrfs keeps it (/var/lib/btrfs, or for others than root $XDG_STATE_HOME/oleo).
///
/// A device that missed writes is brought up to date, and relied on again, if nothing is left on it that could not be healed. That takes a scrub of
/// all devices while the volume is not mounted.
///
/// Exit codes: 3 if something could not be healed, 1 if the scrub could not be done.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    #[command(flatten)]
    how: How,
    /// Ignored: a scrub that was cut short never hinders another.
    #[arg(long, short)]
    force: bool,
}

/// Resume a scrub that was cancelled or interrupted, by Oleo or btrfs
///
/// Exit codes: 2 if there is nothing to resume, 3 if something could not be healed.
#[derive(clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    on: VolumeArg,
    #[command(flatten)]
    how: How,
}

/// How it is done and shown.
#[derive(clap::Args)]
struct How {
    /// Do not heal anything: images are opened for reading only, and a mount may be read-only.
    #[arg(long, short)]
    readonly: bool,
    /// Wait for the end, also on a mount.
    #[arg(long, short = 'B')]
    foreground: bool,
    /// Show each device by itself.
    #[arg(long, short = 'd')]
    per_device: bool,
    /// Show all counters.
    #[arg(long = "counters", short = 'R')]
    raw: bool,
    /// Only this device; may be given several times.
    #[arg(long, value_name = "N")]
    devid: Vec<u64>,
    /// Read at most so much a second of all devices together, such as 50M; with a device's number before it, of that one, and with
    /// each before it, of each. May be given several times.
    #[arg(long, value_name = "[N:|each:]SIZE", value_parser = Limit::parse)]
    limit: Vec<Limit>,
    /// Take what no copy has from here: a directory with the files, another image, or a file with streams of btrfs send, of which those that
    /// another is built on are needed, too. Only what fits the checksum is taken (for crc32c, 32 bits decide). Compressed extents come from an
    /// image with the same extents, from streams with compressed data and, for root, from a directory on a btrfs that the kernel has mounted. Other
    /// directories have them by chance only: files are compressed again, which fits what Oleo compressed, but not all that the kernel did. May be given several times.
    #[arg(long, value_name = "DIR|IMG|STREAM")]
    from: Vec<PathBuf>,
    /// Show JSON at the end.
    #[arg(long)]
    json: bool,
}

/// How fast may be read, bytes a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    /// All devices together.
    Total(u64),
    /// Each device.
    Each(u64),
    /// One.
    Of(DevId, u64),
}

impl Limit {
    fn parse(text: &str) -> Result<Limit, String> {
        Ok(match text.split_once(':') {
            None => Limit::Total(args::size(text)?),
            Some(("each", size)) => Limit::Each(args::size(size)?),
            Some((devid, size)) => {
                let devid = devid.parse().map_err(|_| format!("{devid} is neither the number of a device nor each"))?;
                Limit::Of(DevId(devid), args::size(size)?)
            }
        })
    }
}

impl How {
    /// What is wanted of a volume with these devices.
    fn want(&self, devices: &[DevId]) -> ScrubWant {
        let (mut total, mut limits) = (0, BTreeMap::new());
        let each = self.limit.iter().filter_map(|limit| if let Limit::Each(size) = limit { Some(*size) } else { None });
        for size in each {
            limits.extend(devices.iter().map(|devid| (*devid, size)));
        }
        for limit in &self.limit {
            match *limit {
                Limit::Total(size) => total = size,
                Limit::Of(devid, size) => drop(limits.insert(devid, size)),
                Limit::Each(_) => {}
            }
        }
        ScrubWant::new()
            .repair(!self.readonly)
            .devices(self.devid.iter().map(|devid| DevId(*devid)).collect())
            .bytes_per_second(total)
            .limits(limits)
    }

    /// Where to look for what no copy has, for whoever has the volume open.
    fn places(&self) -> anyhow::Result<Vec<Bytes>> {
        let place = |path: &PathBuf| {
            let is_file = Place::parse(path)?.is_file();
            let path = if is_file { std::path::absolute(path)? } else { path.clone() };
            Ok(path.as_os_str().as_bytes().into())
        };
        self.from.iter().map(place).collect()
    }
}

impl Args {
    pub fn run(mut self, out: &Out) -> anyhow::Result<()> {
        self.on.others.scrubs = !self.how.readonly && self.how.devid.is_empty();
        follow(&self.on, &self.how, out, false)
    }
}

impl Resume {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        follow(&self.on, &self.how, out, true)
    }
}

/// Has a scrub begin or go on, and stays until its end where that is wanted.
fn follow(on: &VolumeArg, how: &How, out: &Out, is_resumed: bool) -> anyhow::Result<()> {
    let target = open(on, if how.readonly { Access::Read } else { Access::Write })?;
    let devices: Vec<DevId> = look(on, &target, false)?.paths.into_iter().map(|(devid, _)| devid).collect();
    let (want, from) = (how.want(&devices), how.places()?);
    let change = if is_resumed { ScrubChange::Resume { want, from } } else { ScrubChange::Start { want, from } };
    let number = match on.ask(&target, Request::Scrub { change }) {
        Ok(Reply::Number(number)) => number,
        Ok(other) => return target::unexpected(other),
        Err(error) if is_resumed && error.errno() == Errno::NOTCONN.raw_os_error() => return Err(nothing_there(error)),
        Err(error) => return Err(error.into()),
    };
    if target.is_mount() && !how.foreground {
        let fsid = look(on, &target, false)?.fsid;
        out.note(format!(
            "scrub {} on {}, fsid {fsid}",
            if is_resumed { "resumed" } else { "started" },
            on.path.display()
        ));
        return Ok(());
    }
    match &target {
        Target::Image { image, .. } => run_here(image.scrubber(), out)?,
        Target::Mount { .. } => wait(on, &target, out, number)?,
    }
    let shown = look(on, &target, true)?;
    let reduced = redundancy::look(&target)?;
    target.close()?;
    let ended = print_end(on, how, out, &shown);
    RedundancyArg::default().report(reduced, on, out)?;
    ended
}

/// Runs it in this process. A signal interrupts it, so that it can be resumed.
fn run_here(scrubber: &Scrubber, out: &Out) -> anyhow::Result<()> {
    let progress = out.progress("scrub");
    let show = || progress.show(line(&scrubber.status()));
    // How it ended is in what is reported.
    let _ = interruptible(&progress, || scrubber.interrupt(), show, || scrubber.run_alone())?;
    Ok(())
}

/// Waits while a mount does it.
fn wait(on: &VolumeArg, target: &Target, out: &Out, number: u64) -> anyhow::Result<()> {
    let progress = out.progress("scrub");
    let continues = format!("the mount continues the scrub: `oleo scrub cancel {}` ends it", on.path.display());
    watched(&progress, &continues, || {
        loop {
            let status = look(on, target, false)?.status;
            if status.number != number || !status.running {
                return Ok(());
            }
            progress.show(line(&status));
            thread::sleep(LOOK_EVERY);
        }
    })?
}

/// How far it is, on one line.
fn line(status: &oleo::control::ScrubStatus) -> String {
    let total = status.total();
    let mut line =
        format!("{} of about {}, {} errors", human(total.bytes()), human(total.expected_bytes), total.errors());
    if let Some(left) = status.remaining_ms {
        line.push_str(&format!(", about {} s left", left.div_ceil(1000)));
    }
    line
}

fn print_end(on: &VolumeArg, how: &How, out: &Out, shown: &ScrubShown) -> anyhow::Result<()> {
    let path = on.path.display();
    if let Some(why) = &shown.unkept {
        out.warnings(&[format!("the state of the scrub cannot be kept: {why}")]);
    }
    if shown.status.total().uncorrectable_errors > 0 {
        out::is_damaged();
    }
    if how.json {
        json(&show::as_json(shown));
    } else {
        show::places(shown).iter().for_each(|line| println_or_end(line));
        if !out.quiet {
            let word = match &shown.status.end {
                Some(ScrubEnd::Cancelled) => "cancelled",
                Some(ScrubEnd::Interrupted) => "interrupted",
                Some(ScrubEnd::Failed { .. }) => "failed",
                Some(ScrubEnd::Done) | None => "done",
            };
            if !how.per_device {
                println_or_end(&format!("scrub {word} for {}", shown.fsid));
            }
            show::print(shown, how.per_device, how.raw, word);
        }
    }
    if let Some(ScrubEnd::Failed { kind, text, .. }) = &shown.status.end {
        return Err(Said(*kind, format!("{path}: not everything could be scrubbed: {text}")).into());
    }
    let unhealed = shown.status.total().uncorrectable_errors;
    if unhealed > 0 {
        let text = format!("{path}: sectors that could not be healed: {unhealed}");
        return Err(Said(ErrorKind::Corruption, text).into());
    }
    match &shown.status.end {
        Some(ScrubEnd::Cancelled | ScrubEnd::Interrupted) => {
            let text = format!("{path}: the scrub was interrupted; `oleo scrub resume` goes on with it");
            Err(Said(ErrorKind::Refusal, text).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a limit is of all devices, of each, or of one, which counts before that of each.
    #[test]
    fn limits() {
        let how = |texts: &[&str]| How {
            readonly: false,
            foreground: false,
            per_device: false,
            raw: false,
            devid: Vec::new(),
            limit: texts.iter().map(|text| Limit::parse(text).unwrap()).collect(),
            from: Vec::new(),
            json: false,
        };
        let want = how(&["2:1K", "50M", "each:1M"]).want(&[DevId(1), DevId(2)]);
        assert_eq!(want.bytes_per_second, 50 << 20);
        assert_eq!(want.limits, BTreeMap::from([(DevId(1), 1 << 20), (DevId(2), 1 << 10)]));
        assert_eq!(how(&[]).want(&[DevId(1)]), ScrubWant::new());
        for text in ["", "x", "1:", "1:x", "every:1M", ":1M", "each:"] {
            assert!(Limit::parse(text).is_err(), "{text}");
        }
    }
}
