//! `oleo ln`

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::Out;

/// Give a file in an image another name, or make a symbolic link
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The file that there is; of a symbolic link, any text.
    #[arg(value_name = "TARGET")]
    target: InPath,
    /// The new name, or a directory to make it in.
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
