//! `oleo filesystem df`

use oleo::control::{Reply, Request};

use crate::args::UnitArgs;
use crate::out::{json, println_or_end};
use crate::target::{Access, VolumeArg, answer};

/// Show total and used space by type and profile
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

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        let groups = answer!(target.ask(Request::Df)?, Reply::Df(groups) => groups)?;
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
