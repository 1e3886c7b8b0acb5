//! `oleo filesystem reclaim`

use oleo::control::{Reply, Request};

use crate::out::{Out, human, json};
use crate::target::{Access, VolumeArg, answer};

/// Free block groups that are nearly empty
///
/// Their contents move into the free space of other groups; no new group is made for them. Empty groups are always freed.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Free groups of which less than this percentage is used.
    #[arg(long, value_name = "PERCENT", default_value = "30", value_parser = clap::value_parser!(u64).range(0..=100))]
    usage: u64,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Write)?;
        let done =
            answer!(self.on.ask(&target, Request::Reclaim { percent: self.usage })?, Reply::Reclaimed(done) => done)?;
        target.close()?;
        if self.json {
            json(&serde_json::to_value(done)?);
            return Ok(());
        }
        let (freed, moved) = (human(done.freed.0), human(done.moved.0));
        out.note(format!("{}: {} block groups freed, {freed}; {moved} moved", self.on.path.display(), done.groups));
        Ok(())
    }
}
