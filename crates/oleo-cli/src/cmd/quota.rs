//! `oleo quota`

use oleo::control::{QuotaChange, QuotaShown, Reply, Request};

use crate::out::{Out, json, println_or_end};
use crate::target::{Access, VolumeArg, answer};

/// Enable and disable quota, and rescan its numbers
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Enable(Enable),
    Disable(Disable),
    Rescan(Rescan),
    Status(Status),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Enable(args) if args.simple => {
                change(&args.on, out, QuotaChange::EnableSimple, "simple quotas are on")
            }
            Command::Enable(args) => change(&args.on, out, QuotaChange::Enable, "quota is on"),
            Command::Disable(args) => change(&args.on, out, QuotaChange::Disable, "quota is off"),
            Command::Rescan(args) => args.run(out),
            Command::Status(args) => args.run(),
        }
    }
}

/// Enable quota: count the space that subvolumes use
#[derive(clap::Args)]
pub(crate) struct Enable {
    #[command(flatten)]
    on: VolumeArg,
    /// Simple quotas: data counts for the subvolume that writes it from now on (kernels from 6.7 on).
    #[arg(long, short = 's')]
    simple: bool,
}

/// Disable quota; all groups and limits are deleted
#[derive(clap::Args)]
pub(crate) struct Disable {
    #[command(flatten)]
    on: VolumeArg,
}

/// Count the space of all groups again, and wait for the end
#[derive(clap::Args)]
pub(crate) struct Rescan {
    #[command(flatten)]
    on: VolumeArg,
    /// Only show whether a rescan is running.
    #[arg(long, short = 's', conflicts_with_all = ["wait", "wait_norescan"])]
    status: bool,
    /// Wait for the end (the default).
    #[arg(long, short = 'w')]
    wait: bool,
    /// Do not start a rescan.
    #[arg(long = "wait-norescan", short = 'W')]
    wait_norescan: bool,
}

/// Show whether quota is enabled and its numbers are consistent
#[derive(clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    on: VolumeArg,
    /// Print nothing; exit with 0 if quota is enabled, otherwise with 1.
    #[arg(long)]
    is_enabled: bool,
    /// Show JSON.
    #[arg(long, conflicts_with = "is_enabled")]
    json: bool,
}

fn change(on: &VolumeArg, out: &Out, change: QuotaChange, done: &str) -> anyhow::Result<()> {
    on.change(out, Request::QuotaChange { change }, done)
}

fn look(on: &VolumeArg) -> anyhow::Result<Option<QuotaShown>> {
    answer!(on.ask(&on.open(Access::Read)?, Request::Quota)?, Reply::Quota(quota) => quota.map(|quota| *quota))
}

impl Rescan {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        if self.status {
            let running = look(&self.on)?.is_some_and(|quota| quota.rescan);
            println_or_end(if running { "a rescan is under way" } else { "no rescan is under way" });
            return Ok(());
        }
        if self.wait_norescan {
            return Ok(());
        }
        change(&self.on, out, QuotaChange::Rescan, "all groups are counted")
    }
}

impl Status {
    fn run(self) -> anyhow::Result<()> {
        let quota = look(&self.on)?;
        if self.is_enabled {
            anyhow::ensure!(quota.is_some(), "quota is off");
            return Ok(());
        }
        if self.json {
            json(&match &quota {
                None => serde_json::json!({ "enabled": false }),
                Some(quota) => serde_json::json!({
                    "enabled": true,
                    "mode": mode(quota),
                    "inconsistent": quota.inconsistent,
                    "rescan": quota.rescan,
                    "generation": quota.generation.0,
                    "qgroups": quota.groups.len(),
                }),
            });
            return Ok(());
        }
        let Some(quota) = quota else {
            println_or_end("Enabled:                 no");
            return Ok(());
        };
        let yes = |what: bool| if what { "yes" } else { "no" };
        println_or_end("Enabled:                 yes");
        println_or_end(&format!("Mode:                    {}", mode(&quota)));
        println_or_end(&format!("Inconsistent:            {}", yes(quota.inconsistent)));
        println_or_end(&format!("Rescan:                  {}", yes(quota.rescan)));
        println_or_end(&format!("Generation:              {}", quota.generation));
        println_or_end(&format!("Quota groups:            {}", quota.groups.len()));
        Ok(())
    }
}

fn mode(quota: &QuotaShown) -> &'static str {
    if quota.simple { "squota (simple accounting)" } else { "qgroup (full accounting)" }
}
