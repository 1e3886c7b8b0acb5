//! `oleo scrub status`

use super::{look, open, show};
use crate::out::{json, println_or_end};
use crate::target::{Access, VolumeArg};

/// Show the scrub under way, or the last one
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Show each device by itself.
    #[arg(long, short = 'd')]
    per_device: bool,
    /// Show all counters.
    #[arg(long = "counters", short = 'R')]
    raw: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = open(&self.on, Access::Read)?;
        let shown = look(&self.on, &target, true)?;
        if self.json {
            json(&show::as_json(&shown));
            return Ok(());
        }
        println_or_end(&format!("{:<18}{}", "UUID:", shown.fsid));
        let word = if shown.status.running { "status" } else { "history" };
        show::print(&shown, self.per_device, self.raw, word);
        show::places(&shown).iter().for_each(|line| println_or_end(line));
        Ok(())
    }
}
