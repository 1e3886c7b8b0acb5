//! `oleo subvolume sync`

use std::path::PathBuf;
use std::time::Duration;

use oleo::TreeId;
use oleo::control::{Reply, Request};

use crate::args::DeviceArgs;
use crate::out::Out;
use crate::target::{self, Access, answer};

/// Wait until deleted subvolumes are removed; on an image, remove them
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    /// Only the subvolumes with these IDs.
    #[arg(value_name = "ID")]
    ids: Vec<u64>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Seconds between two checks.
    #[arg(long, short = 's', value_name = "SECONDS", default_value = "1")]
    sleep: u64,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        let ids: Vec<TreeId> = self.ids.iter().copied().map(TreeId).collect();
        let pending =
            || answer!(target.ask(Request::SubvolPending { ids: ids.clone() })?, Reply::Subvolumes(left) => left);
        let mut left = pending()?;
        target.clean()?;
        loop {
            let now = pending()?;
            for gone in left.iter().filter(|id| !now.contains(id)) {
                out.note(format!("subvolume {gone} is gone"));
            }
            if now.is_empty() {
                break;
            }
            left = now;
            std::thread::sleep(Duration::from_secs(self.sleep.max(1)));
        }
        target.close()?;
        Ok(())
    }
}
