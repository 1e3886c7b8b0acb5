//! `oleo cp`

use oleo::fs::{Depth, Sharing};

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::Out;

/// Copy files within an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// File or directory to copy.
    #[arg(value_name = "FROM")]
    from: InPath,
    /// New path, or an existing directory to copy into.
    #[arg(value_name = "TO")]
    to: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Copy directories and their contents.
    #[arg(long, short)]
    recursive: bool,
    /// Share the data with the original (reflink) instead of copying it.
    #[arg(long)]
    reflink: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let depth = if self.recursive { Depth::Tree } else { Depth::One };
        let sharing = if self.reflink { Sharing::Reflink } else { Sharing::Copy };
        image.copy(&self.subvol.start(&image)?, &self.from.0, &self.to.0, depth, sharing)?;
        image.close()?;
        out.note(format!("{} -> {}", self.from.shown().display(), self.to.shown().display()));
        Ok(())
    }
}
