//! `oleo device`

mod ready;
mod scan;
mod stats;
mod usage;

use crate::out::Out;

/// Show the devices of a file system
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Scan(scan::Args),
    Ready(ready::Args),
    Stats(stats::Args),
    Usage(usage::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Scan(args) => args.run(),
            Command::Ready(args) => args.run(out),
            Command::Stats(args) => args.run(),
            Command::Usage(args) => args.run(),
        }
    }
}
