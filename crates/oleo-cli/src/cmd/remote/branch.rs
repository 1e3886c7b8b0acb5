//! `oleo remote branch`

use oleo::remote::{Parent, Url, branch, open_store};

use super::VolumeUrl;
use crate::out::Out;

/// Make a volume that begins as the state of another and shares what is the same
///
/// It takes as long for a large volume as for a small one, and each can be written. URL?pin=NAME begins from a pin. The
/// parent keeps what the branch needs, and so must stay, until "oleo remote detach" has copied it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// The volume to make: a URL at which there is none.
    #[arg(value_name = "NEW")]
    new: String,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        let new = Url::parse(&self.new).map_err(oleo::Error::from)?;
        let child = open_store(&new, &opened.options).map_err(oleo::Error::from)?;
        let mut url = opened.url.clone();
        let pin = url.pin.take();
        let url = url.to_string();
        let parent = Parent { store: opened.store, url: &url, pin: pin.as_deref() };
        let made = branch(&parent, child, &new.to_string(), &opened.options).map_err(oleo::Error::from)?;
        out.note(format!("made {new}, which needs pin {} of {url}", made.name));
        Ok(())
    }
}
