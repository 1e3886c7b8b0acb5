//! `oleo inspect`

mod tree_stats;

/// Look at the structures themselves
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    TreeStats(tree_stats::Args),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::TreeStats(args) => args.run(),
        }
    }
}
