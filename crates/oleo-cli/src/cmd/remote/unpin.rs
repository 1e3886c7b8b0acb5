//! `oleo remote unpin`

use oleo::remote::unpin;

use super::VolumeUrl;
use crate::out::Out;

/// End a pin; what only it kept is deleted some time later
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// The name of the pin.
    #[arg(value_name = "NAME")]
    name: String,
    /// End it although a branch needs what it keeps: the branch is lost.
    #[arg(long)]
    force: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        unpin(opened.store, &self.name, self.force, &opened.options).map_err(oleo::Error::from)?;
        out.note(format!("ended pin {} of {}", self.name, self.volume.url));
        Ok(())
    }
}
