//! `oleo rm`

use oleo::fs::Depth;

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::Out;

/// Remove files from an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Files and directories to remove.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<InPath>,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Remove directories with everything in them.
    #[arg(long, short)]
    recursive: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let start = self.subvol.start(&image)?;
        let depth = if self.recursive { Depth::Tree } else { Depth::One };
        for path in &self.paths {
            image.remove_listed(&start, &path.0, depth)?;
        }
        image.sync()?;
        image.clean()?;
        image.close()?;
        for path in &self.paths {
            out.note(format!("{}: removed", path.shown().display()));
        }
        Ok(())
    }
}
