//! The oleo command: btrfs without the kernel.
//!
//! `args` has what several commands take, `out` how things are shown, `cmd` one file per command: arguments, one call
//! of the library, output. Commands that control a file system work on an image and on a mount; `target` tells them apart.

mod args;
mod cmd;
mod out;
mod target;

use std::process::ExitCode;

use clap::Parser;

use crate::cmd::Command;
use crate::out::Out;

/// btrfs in user space: make, read, change, check and mount btrfs images and devices
///
/// IMG is an image file or block device that nobody has mounted; paths after it are paths inside the image. Commands that take
/// IMG|PATH or [IMG] PATH also work on a volume that `oleo mount` serves: give a path on the mount instead.
#[derive(Parser)]
#[command(name = "oleo", version, propagate_version = true, arg_required_else_help = true, infer_subcommands = true)]
#[command(after_help = "Exit codes: 0 success; 1 refused; 2 wrong usage; 3 the image is damaged; 4 a device failed.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print errors only.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Print details; twice: even more.
    #[arg(long, short, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
}

// Millions of small items are made on one thread and let go of on another; see docs/dependencies.md for the measurement.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A reader that has gone (`oleo ls | head`) ends the program without a message, as it does with other commands.
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return out::fail(&error),
    };
    let out = Out::new(cli.quiet, cli.verbose);
    match cli.command.run(&out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out::fail(&error),
    }
}

/// The command line; as mount(8) gives it, where it calls.
fn parse() -> anyhow::Result<Cli> {
    if cmd::mount::called_as_helper().is_none() {
        return Ok(Cli::parse());
    }
    let given: Vec<_> = std::env::args_os().collect();
    let arguments = cmd::mount::helper_arguments(&given[1..])?;
    Ok(Cli::parse_from(given.into_iter().take(1).chain(arguments)))
}

#[cfg(test)]
mod tests;
