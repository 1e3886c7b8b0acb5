//! `oleo filesystem resize`

use oleo::control::{NewSize, Reply, Request};
use oleo::device::DevId;

use crate::out::{Out, human};
use crate::target::{Access, VolumeArg, answer};

/// Change how much of a device the file system uses
///
/// Data behind the new end of a device that shrinks is moved first.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// New size in bytes (suffixes K, M, G, T), +SIZE or -SIZE to grow or shrink by that, or max for the whole device. A leading DEVID:
    /// chooses one of several devices.
    #[arg(value_name = "[DEVID:][+/-]SIZE|[DEVID:]max", allow_hyphen_values = true, value_parser = NewSize::parse)]
    size: (Option<DevId>, NewSize),
    #[command(flatten)]
    on: VolumeArg,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Write)?;
        let (devid, to) = self.size;
        let done = answer!(self.on.ask(&target, Request::Resize { devid, to })?, Reply::Resized(done) => done)?;
        target.close()?;
        let (before, now) = (human(done.before.0), human(done.now.0));
        out.note(format!("{}: device {} had {before}, has {now}", self.on.path.display(), done.devid));
        if done.groups > 0 {
            out.detail(|| format!("{} block groups moved", done.groups));
        }
        Ok(())
    }
}
