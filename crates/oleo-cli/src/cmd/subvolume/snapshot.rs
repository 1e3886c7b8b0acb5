//! `oleo subvolume snapshot`

use oleo::SnapshotOptions;

use crate::args::{ImageArgs, InPath};
use crate::out::Out;

/// Make a snapshot of a subvolume
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The subvolume: its path or number.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Where the snapshot goes.
    #[arg(value_name = "PATH")]
    path: InPath,
    /// The snapshot refuses changes.
    #[arg(long, short = 'r')]
    read_only: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let options = SnapshotOptions { read_only: self.read_only, uuid: None };
        let id = image.snapshot(&self.source, &self.path.0, &options)?;
        image.close()?;
        out.note(format!("{}: subvolume {id}, a snapshot of {}", self.path.shown().display(), self.source));
        Ok(())
    }
}
