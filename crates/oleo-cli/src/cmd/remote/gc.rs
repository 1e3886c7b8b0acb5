//! `oleo remote gc`

use std::time::Duration;

use oleo::remote::{GcOptions, gc};

use super::VolumeUrl;
use crate::out::{Out, human};

/// Delete what a volume does not need any more
///
/// A mount does this by itself, a little at a time. This opens the volume for writing, so it is refused while somebody else
/// writes. What dies by moving data together is deleted by the next run.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// Delete only what has been dead for so long; with 0, readers without a pin or a lease may find that something is gone.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    grace: u32,
    /// Delete what was stored and never published if it is so old.
    #[arg(long, value_name = "SECONDS", default_value_t = 86400)]
    orphan_age: u32,
    /// Do not move data out of objects of which little is needed.
    #[arg(long)]
    no_repack: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        let how = GcOptions {
            grace: Duration::from_secs(self.grace.into()),
            orphan_age: Duration::from_secs(self.orphan_age.into()),
            moved_bytes_max: if self.no_repack { 0 } else { u64::MAX },
        };
        let found = gc(opened.store, &how, &opened.options).map_err(oleo::Error::from)?;
        let (dead, orphans) = (found.dead, found.orphans);
        out.note(format!(
            "deleted {} objects and {} orphans, moved {}; {} are kept by pins, {} wait",
            dead.deleted,
            orphans.deleted,
            human(found.moved_bytes),
            dead.kept,
            dead.waiting + orphans.young
        ));
        if orphans.other_pins > 0 {
            out.note(format!(
                "no orphans were deleted: {} pins are of the volume that was here before",
                orphans.other_pins
            ));
        }
        Ok(())
    }
}
