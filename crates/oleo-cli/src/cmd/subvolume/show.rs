//! `oleo subvolume show`

use crate::args::ImageArgs;
use crate::out::{date, json, println_or_end, text, uuid_or_dash};

/// Show what is known of a subvolume
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Its path or number.
    #[arg(value_name = "PATH|ID", default_value = "5", hide_default_value = true)]
    subvol: String,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let id = image.subvol(&self.subvol)?.tree();
        let info = image.fs().subvol_info(id)?;
        if self.json {
            json(&super::as_json(&info));
            return Ok(());
        }
        let path = text(&info.path);
        let name = info.place.as_ref().map_or("<FS_TREE>".into(), |place| text(&place.name));
        println_or_end(if path.is_empty() { "/" } else { &path });
        let time = |t: oleo::Time| if t.sec == 0 { "-".to_owned() } else { format!("{} +0000", date(t)) };
        for (what, value) in [
            ("Name", name),
            ("UUID", uuid_or_dash(info.uuid)),
            ("Parent UUID", uuid_or_dash(info.parent_uuid)),
            ("Received UUID", uuid_or_dash(info.received_uuid)),
            ("Creation time", time(info.otime)),
            ("Subvolume ID", info.id.to_string()),
            ("Generation", info.generation.to_string()),
            ("Gen at creation", info.otransid.to_string()),
            ("Parent ID", info.parent.map_or(0, |id| id.0).to_string()),
            ("Top level ID", info.parent.map_or(0, |id| id.0).to_string()),
            ("Flags", if info.read_only { "readonly".into() } else { "-".into() }),
            ("Send transid", info.stransid.to_string()),
            ("Send time", time(info.stime)),
            ("Receive transid", info.rtransid.to_string()),
            ("Receive time", time(info.rtime)),
        ] {
            println_or_end(&format!("\t{:<24}{value}", format!("{what}:")));
        }
        println_or_end("\tSnapshot(s):");
        for other in image.fs().subvol_list()? {
            if !info.uuid.is_nil() && other.parent_uuid == info.uuid {
                println_or_end(&format!("\t\t\t\t{}", text(&other.path)));
            }
        }
        Ok(())
    }
}
