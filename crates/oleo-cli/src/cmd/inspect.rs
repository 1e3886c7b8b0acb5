//! `oleo inspect`

mod dump_super;
mod dump_tree;
mod tree_stats;

/// Look at the structures themselves
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    DumpSuper(dump_super::Args),
    DumpTree(dump_tree::Args),
    TreeStats(tree_stats::Args),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::DumpSuper(args) => args.run(),
            Command::DumpTree(args) => args.run(),
            Command::TreeStats(args) => args.run(),
        }
    }
}
