//! `oleo filesystem trim`

use oleo::control::{Reply, Request};

use crate::args::size;
use crate::out::{Out, human, json};
use crate::target::{Access, VolumeArg, answer};

/// Discard free space on the devices; an image file becomes sparse there
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Skip shorter runs of free space.
    #[arg(long, short, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    minimum: u64,
    /// Start at this logical address; unallocated space is skipped then.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    start: Option<u64>,
    /// Cover this many bytes of logical addresses; unallocated space is skipped then.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    length: Option<u64>,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Write)?;
        let (start, len) = (self.start.unwrap_or(0), self.length.unwrap_or(u64::MAX));
        let request = Request::Trim { start, len, min_len: self.minimum };
        let bytes = answer!(self.on.ask(&target, request)?, Reply::Bytes(bytes) => bytes)?;
        target.close()?;
        if self.json {
            json(&serde_json::json!({ "trimmed": bytes.0 }));
            return Ok(());
        }
        out.note(format!("{}: {} trimmed", self.on.path.display(), human(bytes.0)));
        Ok(())
    }
}
