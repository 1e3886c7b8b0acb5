//! `oleo scrub start` and `resume`

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use oleo::ErrorKind;
use oleo::control::{Reply, Request, ScrubChange, ScrubEnd, ScrubShown, ScrubWant};
use oleo::format::DevId;
use oleo::scrub::Scrubber;
use rustix::io::Errno;

use super::{look, nothing_there, open, show};
use crate::args;
use crate::cmd::interruptible::interruptible;
use crate::out::{Out, Said, human, json, println_or_end};
use crate::target::{self, Access, Target, VolumeArg};

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Verify everything, and heal what is bad from what is good
///
/// Reads every copy and all parity of every device, compares it with checksums, and overwrites what is bad with a good copy or with what parity gives. What
/// could not be healed is named: its address, its place on the device, and the files that it is in. On an image the command returns
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
    /// Take what no copy has from here: a directory with the files, or another image. Only what fits the checksum is taken (for
    /// crc32c, 32 bits decide). May be given several times; for images only.
    #[arg(long, value_name = "DIR|IMG")]
    from: Vec<PathBuf>,
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
    /// Read at most so much a second of all devices together, such as 50M.
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    limit: Option<u64>,
    /// Show JSON at the end.
    #[arg(long)]
    json: bool,
}

impl How {
    fn want(&self) -> ScrubWant {
        ScrubWant::new()
            .repair(!self.readonly)
            .devices(self.devid.iter().map(|devid| DevId(*devid)).collect())
            .bytes_per_second(self.limit.unwrap_or_default())
    }
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let change = ScrubChange::Start { want: self.how.want() };
        follow(&self.on, &self.how, out, change, &self.from)
    }
}

impl Resume {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let change = ScrubChange::Resume { want: self.how.want() };
        follow(&self.on, &self.how, out, change, &[])
    }
}

/// Has a scrub begin or go on, and stays until its end where that is wanted.
fn follow(on: &VolumeArg, how: &How, out: &Out, change: ScrubChange, from: &[PathBuf]) -> anyhow::Result<()> {
    let target = open(on, if how.readonly { Access::Read } else { Access::Write })?;
    let is_resumed = matches!(change, ScrubChange::Resume { .. });
    match &target {
        Target::Image { image, .. } if !from.is_empty() => {
            image.scrubber().ask(std::sync::Arc::new(oleo::scrub::Sources::open(from)?));
        }
        Target::Mount { .. } if !from.is_empty() => {
            return Err(crate::out::misuse!("--from needs an image, and {} is a mount", on.path.display()));
        }
        _ => {}
    }
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
    target.close()?;
    print_end(on, how, out, &shown)
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
    loop {
        let status = look(on, target, false)?.status;
        if status.number != number || !status.running {
            return Ok(());
        }
        progress.show(line(&status));
        thread::sleep(LOOK_EVERY);
    }
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
    if how.json {
        json(&show::as_json(shown));
    } else {
        for place in &shown.unhealed {
            show::place(shown, place).iter().for_each(|line| println_or_end(line));
        }
        if shown.status.unhealed_more > 0 {
            println_or_end(&format!("and {} more places", shown.status.unhealed_more));
        }
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
