//! `oleo device add`

use std::path::PathBuf;

use oleo::control::{DeviceChange, Reply, Request};
use oleo::device::Place;

use crate::out::Out;
use crate::target::{Access, VolumeArg, answer};

/// Add devices to a volume
///
/// From then on the volume cannot be opened without them. What is there stays where it is; `oleo balance start` spreads it.
#[derive(clap::Args)]
#[command(override_usage = "oleo device add [OPTIONS] DEVICE... IMG|PATH")]
pub(crate) struct Args {
    /// Files or block devices that become part of the volume with all of their length.
    #[arg(value_name = "DEVICE", required = true, num_args = 1..)]
    new: Vec<PathBuf>,
    #[command(flatten)]
    on: VolumeArg,
    /// Overwrite what is on a device.
    #[arg(long, short)]
    force: bool,
    /// Do not discard what is on a device.
    #[arg(long, short = 'K', visible_alias = "nodiscard")]
    no_discard: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Write)?;
        for new in &self.new {
            let change = DeviceChange::Add {
                place: Place::parse(new)?.absolute().display().to_string(),
                force: self.force,
                discard: !self.no_discard,
            };
            let devid = answer!(target.ask(Request::Device { change })?, Reply::Number(devid) => devid)?;
            out.note(format!("{}: {} is device {devid}", self.on.path.display(), new.display()));
        }
        Ok(target.close()?)
    }
}
