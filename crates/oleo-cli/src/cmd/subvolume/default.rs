//! `oleo subvolume set-default` and `get-default`

use oleo::TreeId;

use crate::args::ImageArgs;
use crate::out::{Out, json, println_or_end, text};

/// Say which subvolume a mount without options shows
#[derive(clap::Args)]
pub(crate) struct Set {
    #[command(flatten)]
    image: ImageArgs,
    /// Its path or number; 5 is the top level.
    #[arg(value_name = "PATH|ID")]
    subvol: String,
}

/// Show which subvolume a mount without options shows
#[derive(clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    image: ImageArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let id = image.subvol(&self.subvol)?.tree();
        image.fs().set_default(id).map_err(oleo::Error::from)?;
        image.close()?;
        out.note(format!("{}: the default is subvolume {id} now", self.subvol));
        Ok(())
    }
}

impl Get {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let id = image.fs().default_subvol().map_err(oleo::Error::from)?;
        let info = image.fs().subvol_info(id).map_err(oleo::Error::from)?;
        if self.json {
            json(&super::as_json(&info));
        } else if id == TreeId::FS {
            println_or_end("ID 5 (FS_TREE)");
        } else {
            let parent = info.parent.map_or(0, |id| id.0);
            println_or_end(&format!("ID {id} gen {} top level {parent} path {}", info.generation, text(&info.path)));
        }
        Ok(())
    }
}
