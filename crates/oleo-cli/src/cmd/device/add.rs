//! `oleo device add`

use std::path::PathBuf;

use oleo::Image;
use oleo::control::{DeviceChange, Reply, Request};
use oleo::devices::{AddOptions, absolute};

use crate::args::ImageArgs;
use crate::out::{Out, misuse};
use crate::target::{Access, Target, VolumeArg, answer, mount_of};

/// Add devices to a volume
///
/// From then on the volume cannot be opened without them. What is there stays where it is; `oleo balance start` spreads it. With a seed,
/// the first device becomes a new volume that is made of it; `oleo device remove` of the seed makes it whole by itself. A mount of a seed goes on showing
/// the seed: unmount it, and mount the new volume, to write.
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
        let mut new = self.new.as_slice();
        let target = match self.seed()? {
            Some(seed) => {
                let (first, rest) = new.split_first().ok_or_else(|| misuse!("missing argument DEVICE"))?;
                new = rest;
                let how = AddOptions::default()
                    .force(self.force)
                    .discard(!self.no_discard)
                    .places(seed.others.store.places()?);
                let image = Image::sprout(&seed.image, &seed.options()?, first, &how)?;
                out.note(format!("{}: {} is a new volume made of it", self.on.path.display(), first.display()));
                Target::of(image)
            }
            None => self.on.open(Access::Write)?,
        };
        if target.is_mount() && answer!(target.ask(Request::Mounted)?, Reply::Mounted(shown) => shown.seed)? {
            return self.sprout_beside(&target, out);
        }
        for new in new {
            let change = DeviceChange::Add { place: absolute(new)?, force: self.force, discard: !self.no_discard };
            let devid = answer!(target.ask(Request::Device { change })?, Reply::Number(devid) => devid)?;
            out.note(format!("{}: {} is device {devid}", self.on.path.display(), new.display()));
        }
        Ok(target.close()?)
    }

    /// Makes a new volume of the seed that a mount shows.
    fn sprout_beside(&self, mount: &Target, out: &Out) -> anyhow::Result<()> {
        let [new] = &self.new[..] else {
            return Err(misuse!("a seed is mounted: add one device, mount the new volume, then add the others to it"));
        };
        let usage = answer!(mount.ask(Request::Usage)?, Reply::Usage(usage) => usage)?;
        let change = DeviceChange::Sprout { place: absolute(new)?, force: self.force, discard: !self.no_discard };
        mount.ask(Request::Device { change })?;
        let seeds: Vec<String> = usage.devices.iter().map(|device| device.path.display().to_string()).collect();
        let (dir, new) = (self.on.path.display(), new.display());
        out.note(format!("{new} is a new volume made of what is mounted on {dir}, which goes on showing the seed"));
        out.note(format!("to write: oleo unmount {dir} && oleo mount {new} {} {dir}", seeds.join(" ")));
        Ok(())
    }

    /// The image, if it is a seed.
    fn seed(&self) -> anyhow::Result<Option<ImageArgs>> {
        if mount_of(&self.on.path)?.is_some() {
            return Ok(None);
        }
        let args = ImageArgs { image: self.on.path.clone(), others: self.on.others.clone() };
        Ok(args.read().is_ok_and(|image| image.is_seed()).then_some(args))
    }
}
