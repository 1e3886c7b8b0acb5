//! `oleo filesystem trim`

use std::path::PathBuf;

use oleo::control::{Reply, Request};

use crate::args::{DeviceArgs, size};
use crate::out::{Out, human, json};
use crate::target::{self, Access};

/// Discard free space on the devices; an image file becomes sparse there
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
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
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        let (start, len) = (self.start.unwrap_or(0), self.length.unwrap_or(u64::MAX));
        let request = Request::Trim { start, len, min_len: self.minimum };
        let bytes = match target.ask_of(self.path.as_os_str(), request)? {
            Reply::Bytes(bytes) => bytes,
            other => return target::unexpected(other),
        };
        target.close()?;
        if self.json {
            json(&serde_json::json!({ "trimmed": bytes.0 }));
            return Ok(());
        }
        out.note(format!("{}: {} trimmed", self.path.display(), human(bytes.0)));
        Ok(())
    }
}
