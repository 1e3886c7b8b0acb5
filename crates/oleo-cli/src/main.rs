//! The oleo command: btrfs without the kernel.
//!
//! `args` has what several commands take, `out` how things are shown, `cmd` one file per command: arguments, one call
//! of the library, output. Commands that control a file system work on an image and on a mount; `target` tells them apart.

/// As that of std, but a standard error that cannot be written to ends nothing: the exit code is true all the same.
macro_rules! eprintln {
    () => { eprintln!("") };
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}

/// The same without the end of the line.
macro_rules! eprint {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($text)*));
    }};
}

mod args;
mod cmd;
mod examples;
mod out;
mod redundancy;
mod target;
mod unsupported;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::cmd::Command;
use crate::out::Out;

/// btrfs in user space: make, read, change, check and mount btrfs images and devices
///
/// IMG is an image file or block device that nobody has mounted, a network block device (nbd://HOST[:PORT]/EXPORT,
/// nbd+unix:///EXPORT?socket=PATH, or nbds for TLS), or a volume on an object store (s3://BUCKET/PREFIX, gs://…, az://…,
/// file:///DIRECTORY). Paths after it are paths inside the image. Commands that take IMG|PATH or [IMG]
/// PATH also work on a volume that `oleo mount` serves: give a path on the mount instead.
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

/// Where lines of the arguments that [`with_plain_arguments`] writes out end, as in the other help at a terminal of 100 columns.
const HELP_COLUMNS: usize = 100;

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
    let given: Vec<OsString> = std::env::args_os().collect();
    #[cfg(feature = "fuse")]
    let given = given_by_mount(given)?;
    let mut command = command();
    let matches = command.clone().try_get_matches_from(cmd::balance::start::with_equals(given.clone()));
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    if let Err(error) = &cli
        && matches!(error.kind(), clap::error::ErrorKind::InvalidSubcommand | clap::error::ErrorKind::UnknownArgument)
        && let Some(refusal) = unsupported::refusal(&given)
    {
        return Err(refusal);
    }
    Ok(cli.map_err(|error| error.format(&mut command)).unwrap_or_else(|error| error.exit()))
}

/// What mount(8) gives, as our command line; anything else as it is.
#[cfg(feature = "fuse")]
fn given_by_mount(mut given: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    if cmd::mount::called_as_helper().is_some() {
        let arguments = cmd::mount::helper_arguments(&given[1..])?;
        given.splice(1.., arguments);
    }
    Ok(given)
}

/// The grammar, with help pages that people read.
fn command() -> clap::Command {
    examples::with_examples(with_plain_arguments(Cli::command()))
}

/// Writes out what arguments a command takes if its only one stands for several (`[IMG] PATH`), which would be put in brackets.
fn with_plain_arguments(mut command: clap::Command) -> clap::Command {
    let subcommands: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in subcommands {
        command = command.mut_subcommand(name, with_plain_arguments);
    }
    let Some(arg) = packed(&command) else { return command };
    let names: Vec<&str> = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let names = names.join(" ");
    let is_bounded = arg.get_num_args().is_some_and(|range| range.max_values() < usize::MAX);
    let more = if is_bounded || names.contains("...") { "" } else { "..." };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let id = arg.get_id().clone();
    let mut text = String::new();
    for word in help.split_whitespace() {
        let column = text.len() - text.rfind('\n').map_or(0, |at| at + 1);
        text.push_str(if text.is_empty() || column + 1 + word.len() > HELP_COLUMNS { "\n          " } else { " " });
        text.push_str(word);
    }
    command.mut_arg(id, |arg| arg.hide(true)).help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nArguments:\n  {names}{more}{text}\n\n\
         {{all-args}}{{after-help}}"
    ))
}

/// The only argument of a command, if it stands for several.
fn packed(command: &clap::Command) -> Option<&clap::Arg> {
    let mut positionals = command.get_positionals();
    let only = positionals.next().filter(|_| positionals.next().is_none());
    only.filter(|arg| arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.contains(' '))))
}

#[cfg(test)]
mod tests;
