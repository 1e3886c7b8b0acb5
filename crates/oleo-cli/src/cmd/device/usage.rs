//! `oleo device usage`

use oleo::control::{DeviceUsage, Reply, Request, Usage};

use crate::args::UnitArgs;
use crate::out::{json, println_or_end};
use crate::target::{Access, VolumeArg, answer};

/// Show what each device is used for
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    #[command(flatten)]
    unit: UnitArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// What a device holds: type, profile and bytes.
fn holds<'u>(usage: &'u Usage, device: &DeviceUsage) -> impl Iterator<Item = (&'u str, &'u str, u64)> {
    let devid = device.devid;
    usage.groups.iter().filter_map(move |group| {
        let (_, bytes) = group.on_devices.iter().find(|(on, _)| *on == devid)?;
        Some((group.kind.as_str(), group.profile.as_str(), bytes.0))
    })
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        let usage = answer!(self.on.ask(&target, Request::Usage)?, Reply::Usage(usage) => usage)?;
        if self.json {
            let devices = usage.devices.iter().map(|device| {
                let groups = holds(&usage, device).map(
                    |(kind, profile, bytes)| serde_json::json!({ "type": kind, "profile": profile, "bytes": bytes }),
                );
                serde_json::json!({
                    "devid": device.devid, "path": device.path.display().to_string(), "missing": device.missing,
                    "size": device.total, "unallocated": unallocated(device), "groups": groups.collect::<Vec<_>>(),
                })
            });
            json(&devices.collect::<Vec<_>>().into());
            return Ok(());
        }
        let line =
            |what: &str, bytes| println_or_end(&format!("   {:<24}{:>16}", format!("{what}:"), self.unit.show(bytes)));
        for device in &usage.devices {
            let path = if device.missing { "missing".into() } else { device.path.display().to_string() };
            println_or_end(&format!("{path}, ID: {}", device.devid));
            line("Device size", device.total.0);
            for (kind, profile, bytes) in holds(&usage, device) {
                line(&format!("{kind},{profile}"), bytes);
            }
            line("Unallocated", unallocated(device));
            println_or_end("");
        }
        Ok(())
    }
}

fn unallocated(device: &DeviceUsage) -> u64 {
    device.total.0.saturating_sub(device.allocated.0)
}
