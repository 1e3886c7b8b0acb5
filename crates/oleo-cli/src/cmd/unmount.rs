//! `oleo unmount`

use std::path::PathBuf;

use anyhow::Context;

use crate::out::Out;

/// Unmount a volume that `oleo mount` serves, and wait until everything is on disk
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted.
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Also where it is in use: nobody new finds it then. Does not wait for those who use it.
    #[arg(long, short)]
    lazy: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        for dir in &self.dirs {
            oleo_fuse::unmount(dir, self.lazy).with_context(|| format!("cannot unmount {}", dir.display()))?;
            out.note(format!("{}: unmounted", dir.display()));
        }
        Ok(())
    }
}
