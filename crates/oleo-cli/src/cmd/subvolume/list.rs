//! `oleo subvolume list`

use crate::args::ImageArgs;
use crate::out::{json, println_or_end, text, uuid_or_dash};

/// List all subvolumes
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Only read-only ones.
    #[arg(long, short = 'r')]
    read_only: bool,
    /// Only snapshots.
    #[arg(long, short = 's')]
    snapshots: bool,
    /// Show UUIDs too.
    #[arg(long, short = 'u')]
    uuid: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let mut list = image.fs().subvol_list()?;
        list.retain(|info| {
            info.parent.is_some()
                && (!self.read_only || info.read_only)
                && (!self.snapshots || !info.parent_uuid.is_nil())
        });
        if self.json {
            json(&list.iter().map(super::as_json).collect());
            return Ok(());
        }
        for info in list {
            let parent = info.parent.map_or(0, |id| id.0);
            let uuids = if self.uuid {
                format!(" parent_uuid {} uuid {}", uuid_or_dash(info.parent_uuid), uuid_or_dash(info.uuid))
            } else {
                String::new()
            };
            let path = text(&info.path);
            println_or_end(&format!("ID {} gen {} top level {parent}{uuids} path {path}", info.id, info.generation));
        }
        Ok(())
    }
}
