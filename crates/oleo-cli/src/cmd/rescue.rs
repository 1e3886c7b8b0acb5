//! `oleo rescue`

mod zero_log;

use crate::out::Out;

/// Repair a damaged file system that nobody has mounted
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    ZeroLog(zero_log::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::ZeroLog(args) => args.run(out),
        }
    }
}
