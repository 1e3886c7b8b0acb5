//! `oleo mv`

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::Out;

/// Rename or move within an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// File or directory to move.
    #[arg(value_name = "FROM")]
    from: InPath,
    /// New path, or an existing directory to move it into.
    #[arg(value_name = "TO")]
    to: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        image.rename(&self.subvol.start(&image)?, &self.from.0, &self.to.0)?;
        image.close()?;
        out.note(format!("{} -> {}", self.from.shown().display(), self.to.shown().display()));
        Ok(())
    }
}
