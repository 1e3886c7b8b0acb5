//! `oleo scrub limit`

use oleo::control::{Request, ScrubChange};
use oleo::format::DevId;

use super::look;
use crate::args;
use crate::out::{Out, human, json, misuse, println_or_end};
use crate::target::{Access, VolumeArg};

/// Show or change how fast the scrub of a mount reads
///
/// Limits hold from now on, for a scrub under way and those that follow, until the mount ends. Without --limit they are shown.
/// For an image see `oleo scrub start --limit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Bytes a second, such as 50M; 0 for no limit. Of all devices together, unless --devid or --all is given.
    #[arg(long, short, value_name = "SIZE", value_parser = args::size)]
    limit: Option<u64>,
    /// Of this device only.
    #[arg(long, short, value_name = "N", conflicts_with = "all")]
    devid: Option<u64>,
    /// Of each device.
    #[arg(long, short)]
    all: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        let shown = look(&self.on, &target, false)?;
        if self.limit.is_none() && (self.devid.is_some() || self.all) {
            return Err(misuse!("--devid and --all need --limit"));
        }
        let Some(limit) = self.limit else {
            if self.json {
                json(&serde_json::json!({ "total": shown.status.limit, "devices": shown.status.limits }));
                return Ok(());
            }
            println_or_end(&format!("{:<18}{}", "UUID:", shown.fsid));
            println_or_end(&format!("{:<18}{}", "Total:", rate(shown.status.limit)));
            for (devid, path) in &shown.paths {
                let limit = shown.status.limits.get(devid).copied().unwrap_or_default();
                println_or_end(&format!("{:<18}{}  {}", format!("Device {devid}:"), rate(limit), path.display()));
            }
            return Ok(());
        };
        if !target.is_mount() {
            let text = "limits are changed on a mount; for an image they are given to `oleo scrub start --limit`";
            return Err(misuse!("{}: {text}", self.on.path.display()));
        }
        let limits = match self.devid {
            Some(devid) if !shown.paths.iter().any(|(known, _)| known.0 == devid) => {
                return Err(misuse!("there is no device {devid}"));
            }
            Some(devid) => vec![(Some(DevId(devid)), limit)],
            None if self.all => shown.paths.iter().map(|(devid, _)| (Some(*devid), limit)).collect(),
            None => vec![(None, limit)],
        };
        self.on.ask(&target, Request::Scrub { change: ScrubChange::Limit { limits } })?;
        out.note(format!("{}: limit set to {}", self.on.path.display(), rate(limit)));
        Ok(())
    }
}

fn rate(bytes_per_second: u64) -> String {
    if bytes_per_second == 0 { "unlimited".into() } else { format!("{}/s", human(bytes_per_second)) }
}
