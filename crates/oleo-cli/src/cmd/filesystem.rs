//! `oleo filesystem`

mod df;
mod du;
mod label;
mod show;

use crate::out::Out;

/// The file system as a whole
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Show(show::Args),
    Df(df::Args),
    Du(du::Args),
    Label(label::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Show(args) => args.run(),
            Command::Df(args) => args.run(),
            Command::Du(args) => args.run(),
            Command::Label(args) => args.run(out),
        }
    }
}
