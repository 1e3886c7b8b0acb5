//! `oleo filesystem df`

use std::path::PathBuf;

use oleo::control::{Reply, Request};

use crate::args::{DeviceArgs, UnitArgs};
use crate::out::{json, println_or_end};
use crate::target::{self, Access};

/// Show total and used space by type and profile
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    unit: UnitArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        let groups = match target.ask(Request::Df)? {
            Reply::Df(groups) => groups,
            other => return target::unexpected(other),
        };
        if self.json {
            json(&groups
                .iter()
                .map(|g| {
                    serde_json::json!({ "type": g.kind, "profile": g.profile, "total": g.total, "used": g.used })
                })
                .collect());
            return Ok(());
        }
        for g in groups {
            let (total, used) = (self.unit.show(g.total.0), self.unit.show(g.used.0));
            println_or_end(&format!("{}, {}: total={total}, used={used}", g.kind, g.profile));
        }
        Ok(())
    }
}
