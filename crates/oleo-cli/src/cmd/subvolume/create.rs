//! `oleo subvolume create`

use crate::args::{ImageArgs, InPath};
use crate::out::Out;

/// Make empty subvolumes
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Where they go.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<InPath>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let mut made = Vec::new();
        for path in &self.paths {
            made.push((image.create_subvol(&path.0)?, path));
        }
        image.close()?;
        for (id, path) in made {
            out.note(format!("{}: subvolume {id}", path.shown().display()));
        }
        Ok(())
    }
}
