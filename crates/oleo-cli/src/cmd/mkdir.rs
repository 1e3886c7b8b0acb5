//! `oleo mkdir`

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::Out;

/// Make directories in an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The new directories.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<InPath>,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Make missing parents too, and accept directories that exist.
    #[arg(long, short)]
    parents: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let start = self.subvol.start(&image)?;
        for path in &self.paths {
            if self.parents {
                image.create_dirs(&start, &path.0)?;
            } else {
                image.create_dir_at(&start, &path.0)?;
            }
        }
        image.close()?;
        for path in &self.paths {
            out.note(format!("{}: made", path.shown().display()));
        }
        Ok(())
    }
}
