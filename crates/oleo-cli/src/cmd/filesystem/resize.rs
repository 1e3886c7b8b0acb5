//! `oleo filesystem resize`

use std::path::PathBuf;

use oleo::control::{NewSize, Reply, Request};
use oleo::device::DevId;

use crate::args::DeviceArgs;
use crate::out::{Out, human};
use crate::target::{self, Access};

/// Change how much of a device the file system uses
///
/// Data behind the new end of a device that shrinks is moved first.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// New size in bytes (suffixes K, M, G, T), +SIZE or -SIZE to grow or shrink by that, or max for the whole device. A leading DEVID:
    /// chooses one of several devices.
    #[arg(value_name = "[DEVID:][+/-]SIZE|[DEVID:]max", allow_hyphen_values = true, value_parser = NewSize::parse)]
    size: (Option<DevId>, NewSize),
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        let (devid, to) = self.size;
        let done = match target.ask_of(self.path.as_os_str(), Request::Resize { devid, to })? {
            Reply::Resized(done) => done,
            other => return target::unexpected(other),
        };
        target.close()?;
        let (before, now) = (human(done.before.0), human(done.now.0));
        out.note(format!("{}: device {} had {before}, has {now}", self.path.display(), done.devid));
        if done.groups > 0 {
            out.detail(|| format!("{} block groups moved", done.groups));
        }
        Ok(())
    }
}
