//! `oleo generate`: what packages install beside the command.

mod man;

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use crate::out::print_or_end;

/// Generate shell completions and manual pages
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Completions(Completions),
    Man(Man),
}

/// Write a shell's completions to standard output
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Shell that the completions are for.
    shell: Shell,
}

/// Write manual pages into a directory
#[derive(clap::Args)]
pub(crate) struct Man {
    /// Existing directory.
    dir: PathBuf,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Completions(args) => {
                let mut text = Vec::new();
                clap_complete::generate(args.shell, &mut Cli::command(), "oleo", &mut text);
                print_or_end(&text);
                Ok(())
            }
            Command::Man(args) => {
                man::write(&args.dir).with_context(|| format!("cannot write manual pages into {}", args.dir.display()))
            }
        }
    }
}
