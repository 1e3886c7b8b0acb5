//! `oleo filesystem`

mod defragment;
mod df;
mod du;
mod label;
mod reclaim;
mod resize;
mod show;
mod stats;
mod sync;
mod trim;
mod usage;

use crate::out::Out;

/// Show and manage a whole file system
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Show(show::Args),
    Df(df::Args),
    Du(du::Args),
    Usage(usage::Args),
    Stats(stats::Args),
    Sync(sync::Args),
    Label(label::Args),
    Resize(resize::Args),
    Reclaim(reclaim::Args),
    #[command(alias = "defrag")]
    Defragment(defragment::Args),
    Trim(trim::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Show(args) => args.run(),
            Command::Df(args) => args.run(),
            Command::Du(args) => args.run(),
            Command::Usage(args) => args.run(),
            Command::Stats(args) => args.run(),
            Command::Sync(args) => args.run(out),
            Command::Label(args) => args.run(out),
            Command::Resize(args) => args.run(out),
            Command::Reclaim(args) => args.run(out),
            Command::Defragment(args) => args.run(out),
            Command::Trim(args) => args.run(out),
        }
    }
}
