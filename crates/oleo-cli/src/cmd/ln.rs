//! `oleo ln`

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::Out;

/// Make a hard or symbolic link in an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Existing file; for a symbolic link, any text.
    #[arg(value_name = "TARGET")]
    target: InPath,
    /// New path, or an existing directory to make the link in.
    #[arg(value_name = "NAME")]
    name: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Make a symbolic link.
    #[arg(long, short)]
    symbolic: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let start = self.subvol.start(&image)?;
        if self.symbolic {
            image.symlink(&start, &self.target.0, &self.name.0)?;
        } else {
            image.hard_link(&start, &self.target.0, &self.name.0)?;
        }
        image.close()?;
        out.note(format!("{} -> {}", self.name.shown().display(), self.target.shown().display()));
        Ok(())
    }
}
