//! `oleo device`

mod add;
mod ready;
mod remove;
mod scan;
mod stats;
mod usage;

use crate::out::Out;

/// Show, add and remove the devices of a file system
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Add(add::Args),
    #[command(visible_alias = "delete")]
    Remove(remove::Args),
    Scan(scan::Args),
    Ready(ready::Args),
    Stats(stats::Args),
    Usage(usage::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Add(args) => args.run(out),
            Command::Remove(args) => args.run(out),
            Command::Scan(args) => args.run(),
            Command::Ready(args) => args.run(out),
            Command::Stats(args) => args.run(),
            Command::Usage(args) => args.run(),
        }
    }
}
