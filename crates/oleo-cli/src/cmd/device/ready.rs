//! `oleo device ready`

use crate::args::ImageArgs;
use crate::out::Out;

/// Tell whether all devices of a volume are there (exit code 0), with those that --device and --scan name
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
}

impl Args {
    pub fn run(mut self, out: &Out) -> anyhow::Result<()> {
        // Those that are missing are named, rather than the first that is needed.
        self.image.others.degraded = true;
        let inspector = self.image.inspect()?;
        let missing: Vec<String> =
            inspector.volume().devices().iter().filter(|d| d.missing).map(|d| d.devid.to_string()).collect();
        if !missing.is_empty() {
            anyhow::bail!("{}: missing devices: {}", self.image.image.display(), missing.join(", "));
        }
        out.note(format!("{}: all devices are there", self.image.image.display()));
        Ok(())
    }
}
