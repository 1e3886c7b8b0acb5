//! `oleo filesystem df`

use crate::args::ImageArgs;
use crate::out::{human, json, println_or_end};

/// Show how much space there is of each type and profile, and how much of it is used
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let groups = image.df();
        if self.json {
            json(&groups
                .iter()
                .map(|g| {
                    serde_json::json!({
                        "type": g.type_name(), "profile": g.flags.profile_name(), "total": g.total.0, "used": g.used.0,
                    })
                })
                .collect());
            return Ok(());
        }
        for g in groups {
            let (total, used) = (human(g.total.0), human(g.used.0));
            println_or_end(&format!("{}, {}: total={total}, used={used}", g.type_name(), g.flags.profile_name()));
        }
        Ok(())
    }
}
