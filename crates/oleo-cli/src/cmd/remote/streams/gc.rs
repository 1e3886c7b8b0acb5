//! `oleo remote streams gc`

use std::time::Duration;

use super::StreamsUrl;
use crate::out::{Out, human};

/// Delete what uploads left that did not come to their end
///
/// An upload of which nothing was stored for long is given up; if it goes on after all, it is refused, and can be repeated. What is of no
/// stream and no upload is deleted.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// Give up uploads of which nothing was stored for so long, by the store's clock.
    #[arg(long, value_name = "SECONDS", default_value_t = 86400)]
    upload_age: u64,
    /// Say what would be deleted, and delete nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let age = Duration::from_secs(self.upload_age);
        let found = opened.streams.collect(age, self.dry_run).map_err(oleo::Error::from)?;
        let (did, gave) = if self.dry_run { ("would delete", "give") } else { ("deleted", "gave") };
        out.note(format!(
            "{did} {} objects with {}, {gave} up {} uploads; {} are under way",
            found.deleted,
            human(found.deleted_bytes),
            found.given_up,
            found.under_way
        ));
        opened.costs(out);
        Ok(())
    }
}
