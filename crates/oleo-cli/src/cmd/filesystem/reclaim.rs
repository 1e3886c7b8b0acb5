//! `oleo filesystem reclaim`

use std::path::PathBuf;

use oleo::control::{Reply, Request};

use crate::args::DeviceArgs;
use crate::out::{Out, human, json};
use crate::target::{self, Access};

/// Free block groups that are nearly empty
///
/// Their contents move into the free space of other groups; no new group is made for them. Empty groups are always freed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Free groups of which less than this percentage is used.
    #[arg(long, value_name = "PERCENT", default_value = "30", value_parser = clap::value_parser!(u64).range(0..=100))]
    usage: u64,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        let done = match target.ask_of(self.path.as_os_str(), Request::Reclaim { percent: self.usage })? {
            Reply::Reclaimed(done) => done,
            other => return target::unexpected(other),
        };
        target.close()?;
        if self.json {
            json(&serde_json::to_value(done)?);
            return Ok(());
        }
        let (freed, moved) = (human(done.freed.0), human(done.moved.0));
        out.note(format!("{}: {} block groups freed, {freed}; {moved} moved", self.path.display(), done.groups));
        Ok(())
    }
}
