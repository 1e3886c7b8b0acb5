//! `oleo remote pin`

use oleo::remote::pin;

use super::VolumeUrl;
use crate::out::{Out, misuse};

/// Keep the state of a volume under a name
///
/// The pin is what was last synced. Any number of machines can read it as URL?pin=NAME, at the same time and while the volume is
/// written; what it keeps is not deleted until "oleo remote unpin".
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo remote pin s3://bucket/volume before-upgrade\n  \
    oleo mount -o ro 's3://bucket/volume?pin=before-upgrade' /mnt")]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// The name: up to 64 letters, digits, dots, dashes and underscores.
    #[arg(value_name = "NAME")]
    name: String,
    /// Say in the list of pins who wants it.
    #[arg(long, value_name = "TEXT")]
    by: Option<String>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        if opened.url.pin.is_some() {
            return Err(misuse!("a pin is made of the newest state, so URL has no ?pin="));
        }
        let by = self.by.as_deref().unwrap_or(&opened.options.owner);
        let made = pin(opened.store, &self.name, by, &opened.options).map_err(oleo::Error::from)?;
        out.note(format!("pinned {} as {} (sequence {})", self.volume.url, self.name, made.sequence));
        Ok(())
    }
}
