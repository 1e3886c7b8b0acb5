//! `oleo serve`: volumes for programs and machines that take something else than a file.

mod nbd;

use crate::out::Out;

/// Serve images to other programs and machines
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Nbd(nbd::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Nbd(args) => args.run(out),
        }
    }
}
