//! `oleo filesystem trim`

use std::path::PathBuf;

use oleo::control::{Reply, Request};

use crate::args::{DeviceArgs, size};
use crate::out::{Out, human};
use crate::target::{self, Access};

/// Tell devices what is free; an image file becomes sparse there
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Leave shorter runs alone.
    #[arg(long, short, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    minimum: u64,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        let request = Request::Trim { start: 0, len: u64::MAX, min_len: self.minimum };
        let bytes = match target.ask_of(self.path.as_os_str(), request)? {
            Reply::Bytes(bytes) => bytes,
            other => return target::unexpected(other),
        };
        target.close()?;
        out.note(format!("{}: {} trimmed", self.path.display(), human(bytes.0)));
        Ok(())
    }
}
