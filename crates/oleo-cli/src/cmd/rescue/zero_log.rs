//! `oleo rescue zero-log`

use crate::args::ImageArgs;
use crate::out::Out;

/// Discard the log; data synced after the last commit is lost
///
/// A log is replayed when the volume is opened. Discard it only if the replay fails and the volume must be written to.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.image.display();
        match oleo::rescue::zero_log(&self.image.image, &self.image.options()?)? {
            Some(log) => {
                out.note(format!("Clearing log on {image}, previous log_root {}, level {}", log.root, log.level));
            }
            None => out.note(format!("{image}: there is no log")),
        }
        Ok(())
    }
}
