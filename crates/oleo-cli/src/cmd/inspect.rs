//! `oleo inspect`

mod dump_super;
mod dump_tree;
mod resolve;
mod tree_stats;

/// Show on-disk structures, and resolve inodes and addresses
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    DumpSuper(dump_super::Args),
    DumpTree(dump_tree::Args),
    TreeStats(tree_stats::Args),
    InodeResolve(resolve::Inode),
    LogicalResolve(resolve::Logical),
    SubvolidResolve(resolve::Subvolid),
    Rootid(resolve::Rootid),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::DumpSuper(args) => args.run(),
            Command::DumpTree(args) => args.run(),
            Command::TreeStats(args) => args.run(),
            Command::InodeResolve(args) => args.run(),
            Command::LogicalResolve(args) => args.run(),
            Command::SubvolidResolve(args) => args.run(),
            Command::Rootid(args) => args.run(),
        }
    }
}
