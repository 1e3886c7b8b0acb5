//! `oleo remote detach`

use oleo::remote::{RemoteDevice, StoreOptions};

use super::VolumeUrl;
use crate::out::Out;

/// Copy what a branch shares with other volumes, so that it needs them no more
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        let options: &StoreOptions = &opened.options;
        let device = RemoteDevice::open_writable(opened.store, options).map_err(oleo::Error::from)?;
        device.detach().map_err(oleo::Error::from)?;
        device.close().map_err(oleo::Error::from)?;
        out.note(format!("{} needs no other volume", self.volume.url));
        Ok(())
    }
}
