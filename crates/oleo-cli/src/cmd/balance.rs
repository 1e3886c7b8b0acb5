//! `oleo balance`

pub(crate) mod start;
mod status;

use std::thread;
use std::time::Duration;

use oleo::ErrorKind;
use oleo::control::{BalanceChange, BalanceEnd, BalanceProgress, BalanceState, BalanceStatus, Reply, Request};
use rustix::io::Errno;

use crate::cmd::interruptible::{interruptible, watched};
use crate::out::{Out, Said, human, misuse};
use crate::target::{self, Access, Target, VolumeArg, answer};

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Move block groups: spread them over devices, pack them, convert their profiles
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Start(start::Args),
    Pause(Pause),
    Cancel(Cancel),
    Resume(Resume),
    Status(status::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Start(args) => args.run(out),
            Command::Pause(args) => change(&args.on, out, BalanceChange::Pause, "paused"),
            Command::Cancel(args) => change(
                &args.on,
                out,
                BalanceChange::Cancel,
                "cancelled; block groups that were moved stay where they are",
            ),
            Command::Resume(args) => follow(&args.on, out, BalanceChange::Resume, args.how()),
            Command::Status(args) => args.run(out),
        }
    }
}

/// Pause the balance of a mount; it can be resumed
#[derive(clap::Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    on: VolumeArg,
}

/// Cancel a running or paused balance; block groups that were moved stay where they are
#[derive(clap::Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    on: VolumeArg,
}

/// Resume a balance that was paused or interrupted, by Oleo or the kernel
#[derive(clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    on: VolumeArg,
    /// Return immediately; the mount continues in the background.
    #[arg(long, visible_alias = "bg")]
    background: bool,
}

fn change(on: &VolumeArg, out: &Out, change: BalanceChange, done: &str) -> anyhow::Result<()> {
    on.change(out, Request::Balance { change }, done)
}

fn look(on: &VolumeArg, target: &Target) -> anyhow::Result<BalanceStatus> {
    answer!(on.ask(target, Request::BalanceStatus)?, Reply::Balance(status) => *status)
}

/// How a command goes about a balance.
#[derive(Clone, Copy)]
struct RunOptions {
    /// It does not stay until the end.
    background: bool,
    /// It waits for others to end first.
    enqueue: bool,
}

impl Resume {
    fn how(&self) -> RunOptions {
        RunOptions { background: self.background, enqueue: false }
    }
}

/// Has a balance begin or go on, and stays until its end.
fn follow(
    on: &VolumeArg,
    out: &Out,
    change: BalanceChange,
    RunOptions { background, enqueue }: RunOptions,
) -> anyhow::Result<()> {
    let target = on.open(Access::Write)?;
    if background && !target.is_mount() {
        return Err(misuse!("--background needs a mount, and {} is an image", on.path.display()));
    }
    let number = begin(on, &target, &change, enqueue)?;
    if background {
        out.note(format!("{}: started; `oleo balance status` shows the progress", on.path.display()));
        return Ok(());
    }
    let status = match &target {
        Target::Image { image, .. } => run_here(image.balancer(), out)?,
        Target::Mount { .. } => wait(on, &target, out, number)?,
    };
    target.close()?;
    print_end(on, out, &status)
}

/// Asks for a balance; where others are under way, after them, if that is wanted. Of several that wait any may be next. One that is
/// paused is nothing to wait for.
fn begin(on: &VolumeArg, target: &Target, change: &BalanceChange, enqueue: bool) -> anyhow::Result<u64> {
    loop {
        let request = Request::Balance { change: change.clone() };
        match on.ask(target, request) {
            Ok(Reply::Number(number)) => return Ok(number),
            Ok(other) => return target::unexpected(other),
            Err(error) if !enqueue || error.errno() != Errno::INPROGRESS.raw_os_error() => return Err(error.into()),
            Err(error) if look(on, target)?.state == BalanceState::Paused => return Err(error.into()),
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
}

/// Runs it in this process. A signal interrupts it, so that it can be resumed.
fn run_here(balancer: &oleo::balance::Balancer, out: &Out) -> anyhow::Result<BalanceStatus> {
    let progress = out.progress("balance");
    let show = || progress.show(line(&balancer.status().progress));
    interruptible(&progress, || balancer.interrupt(), show, || balancer.run())?;
    Ok(balancer.status())
}

/// Waits while a mount does it.
fn wait(on: &VolumeArg, target: &Target, out: &Out, number: u64) -> anyhow::Result<BalanceStatus> {
    let progress = out.progress("balance");
    let path = on.path.display();
    let continues =
        format!("the mount continues the balance: `oleo balance pause {path}` or `oleo balance cancel {path}` ends it");
    watched(&progress, &continues, || {
        loop {
            let status = look(on, target)?;
            if status.number != number || status.state != BalanceState::Running {
                return Ok(status);
            }
            progress.show(line(&status.progress));
            thread::sleep(LOOK_EVERY);
        }
    })?
}

fn print_end(on: &VolumeArg, out: &Out, status: &BalanceStatus) -> anyhow::Result<()> {
    let (path, done) = (on.path.display(), &status.progress);
    let so_far = format!("{} of {} block groups moved", done.completed, done.considered);
    match &status.end {
        Some(BalanceEnd::Failed { kind, text, .. }) => {
            return Err(Said(*kind, format!("{path}: {text} ({so_far})")).into());
        }
        Some(BalanceEnd::Paused) => {
            let text = format!("{path}: paused, {so_far}; `oleo balance resume` continues");
            return Err(Said(ErrorKind::Refusal, text).into());
        }
        Some(BalanceEnd::Cancelled) => {
            return Err(Said(ErrorKind::Refusal, format!("{path}: cancelled, {so_far}")).into());
        }
        Some(BalanceEnd::Done) | None => out.note(format!("{path}: done, {so_far}")),
    }
    out.detail(|| {
        let (data, blocks) = (human(done.data_bytes), done.blocks);
        format!(
            "{data} of data in {} extents and {blocks} tree blocks moved, {} rewritten",
            done.extents, done.rewritten
        )
    });
    Ok(())
}

/// How far it is, on one line.
fn line(progress: &BalanceProgress) -> String {
    let mut line = format!(
        "{} of about {} block groups, {} of {}",
        progress.completed,
        progress.expected,
        human(progress.bytes_done),
        human(progress.bytes_expected)
    );
    if let Some(left) = progress.remaining_ms {
        line.push_str(&format!(", about {} s left", left.div_ceil(1000)));
    }
    line
}
