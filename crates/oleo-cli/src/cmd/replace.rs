//! `oleo replace`

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use oleo::control::{DeviceChange, ReplaceState, ReplaceStatus, Reply, Request, WhichDevice};
use oleo::devices::absolute;

use crate::cmd::interruptible::{interruptible, watched};
use crate::out::{Out, Said, human, json, println_or_end};
use crate::redundancy::{self, RedundancyArg};
use crate::target::{Access, Target, VolumeArg, answer};

/// How often the progress is looked at: a replacement of little is over soon.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Replace a device of a volume by another
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Start(Start),
    Status(Status),
    Cancel(Cancel),
    Resume(Resume),
}

/// Have a new device take the place of another
///
/// On an image the command returns when it is done; if it is interrupted (Ctrl-C), the exit code is 1, and `oleo replace resume`
/// continues. On a mount it continues in the background.
///
/// Block groups that were written while a device was missing may be less redundant than others, and stay so. The command names them,
/// and the balance that converts them; on a mount, `oleo replace status` does.
#[derive(clap::Args)]
#[command(override_usage = "oleo replace start [OPTIONS] DEVICE|DEVID|missing NEW IMG|PATH")]
pub(crate) struct Start {
    /// Path or number of the device that goes; missing for one that is not there.
    #[arg(value_name = "DEVICE|DEVID|missing")]
    source: String,
    /// File or block device that takes its place, at least as long.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    on: VolumeArg,
    /// Overwrite what is on the new device.
    #[arg(long, short)]
    force: bool,
    /// Read from the old device only what no other has.
    #[arg(long, short = 'r')]
    avoid_reading: bool,
    /// Do not discard what is on the new device.
    #[arg(long, short = 'K', visible_alias = "nodiscard")]
    no_discard: bool,
    /// Wait until a mount has done it; implied by --require-redundancy.
    #[arg(long, short = 'B')]
    foreground: bool,
    #[command(flatten)]
    redundancy: RedundancyArg,
}

/// Show how far a replacement is, or how the last one ended
#[derive(clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    on: VolumeArg,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// End a replacement; the old device stays
#[derive(clap::Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    on: VolumeArg,
}

/// Continue a replacement that was interrupted, by Oleo or the kernel
#[derive(clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    on: VolumeArg,
    #[command(flatten)]
    redundancy: RedundancyArg,
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Start(args) => args.run(out),
            Command::Status(args) => args.run(out),
            Command::Cancel(args) => {
                args.on.change(out, Request::Device { change: DeviceChange::CancelReplace }, "cancelled")
            }
            Command::Resume(args) => {
                let target = args.on.open(Access::Write)?;
                args.on.ask(&target, Request::Device { change: DeviceChange::ResumeReplace })?;
                follow(&args.on, target, out, true, &args.redundancy)
            }
        }
    }
}

impl Start {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Write)?;
        let change = DeviceChange::Replace {
            source: WhichDevice::parse(&self.source).absolute()?,
            place: absolute(&self.new)?,
            force: self.force,
            discard: !self.no_discard,
            avoid_reading: self.avoid_reading,
        };
        target.ask(Request::Device { change })?;
        let wait = self.foreground || self.redundancy.is_required();
        follow(&self.on, target, out, wait, &self.redundancy)
    }
}

/// Does it on an image; waits for it on a mount, if that is wanted.
fn follow(on: &VolumeArg, target: Target, out: &Out, wait: bool, redundancy: &RedundancyArg) -> anyhow::Result<()> {
    let path = on.path.display();
    let progress = out.progress("replace");
    match &target {
        Target::Image { image, .. } => {
            let replacer = image.replacer();
            let show = || progress.show(line(&replacer.status()));
            let ran = interruptible(&progress, || replacer.interrupt(), show, || replacer.run())?;
            ran.map_err(oleo::Error::from)?;
        }
        Target::Mount { .. } if !wait => {
            out.note(format!("{path}: begun; `oleo replace status` shows the progress"));
            return Ok(());
        }
        Target::Mount { .. } => {
            let continues = format!("the mount continues the replacement: `oleo replace cancel {path}` ends it");
            watched(&progress, &continues, || -> anyhow::Result<()> {
                loop {
                    let status = look(on, &target)?;
                    if status.state != ReplaceState::Started {
                        return Ok(());
                    }
                    progress.show(line(&status));
                    thread::sleep(LOOK_EVERY);
                }
            })??;
        }
    }
    let status = look(on, &target)?;
    let reduced = redundancy::look(&target)?;
    target.close()?;
    if let Some(failure) = &status.failure {
        return Err(Said(oleo::ErrorKind::Device, format!("{path}: {failure}")).into());
    }
    let cut_short = match status.state {
        ReplaceState::Suspended => Some("interrupted; `oleo replace resume` continues"),
        ReplaceState::Cancelled => Some("cancelled"),
        _ => None,
    };
    if let Some(text) = cut_short {
        return Err(Said(oleo::ErrorKind::Refusal, format!("{path}: {text}")).into());
    }
    if status.unreadable > 0 {
        let text = format!("{path}: done, but of {} sectors or blocks no good copy was found", status.unreadable);
        return Err(Said(oleo::ErrorKind::Corruption, text).into());
    }
    out.note(format!("{path}: device {} is replaced", status.source));
    redundancy.report(reduced, on, out)
}

fn look(on: &VolumeArg, target: &Target) -> anyhow::Result<ReplaceStatus> {
    answer!(on.ask(target, Request::ReplaceStatus)?, Reply::Replace(status) => *status)
}

fn line(status: &ReplaceStatus) -> String {
    format!("{} of {}", human(status.done), human(status.all))
}

impl Status {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        let status = look(&self.on, &target)?;
        if status.state == ReplaceState::Finished {
            RedundancyArg::default().report(redundancy::look(&target)?, &self.on, out)?;
        }
        if self.json {
            json(&serde_json::to_value(&status)?);
            return Ok(());
        }
        let errors = format!("{} write errs, {} uncorr. read errs", status.write_errors, status.unreadable);
        println_or_end(&match status.state {
            ReplaceState::Never => "Never started".to_owned(),
            ReplaceState::Started => format!("device {}: {} done, {errors}", status.source, line(&status)),
            ReplaceState::Finished => format!("device {}: finished, {errors}", status.source),
            ReplaceState::Cancelled => format!("device {}: cancelled, {errors}", status.source),
            ReplaceState::Suspended => format!("device {}: suspended, {errors}", status.source),
        });
        Ok(())
    }
}
