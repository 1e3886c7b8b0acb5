//! `oleo subvolume delete`

use crate::args::ImageArgs;
use crate::out::Out;

/// Delete subvolumes with everything in them
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Their paths or numbers.
    #[arg(value_name = "PATH|ID", required = true)]
    subvols: Vec<String>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        for subvol in &self.subvols {
            image.fs().subvol_delete(image.subvol(subvol)?.tree()).map_err(|e| oleo::Error::from(e).at(subvol))?;
        }
        image.sync()?;
        image.clean()?;
        image.close()?;
        for subvol in &self.subvols {
            out.note(format!("{subvol}: deleted"));
        }
        Ok(())
    }
}
