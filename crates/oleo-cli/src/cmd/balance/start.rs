//! `oleo balance start`

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use oleo::control::{BalanceArgs, BalanceChange, Filters};

use super::{RunOptions, follow};
use crate::out::{Out, misuse};
use crate::target::VolumeArg;

/// Move the block groups that filters select, or all
///
/// On an image the command returns when the balance is complete; if it is interrupted (Ctrl-C), the exit code is 1, and the balance can
/// be resumed. On a mount the balance continues if the command is interrupted.
///
/// Filters, separated by commas: profiles=A|B, usage=PERCENT (at most) or usage=A..B, devid=N, drange=A..B (bytes of that device),
/// vrange=A..B (logical bytes), limit=N or limit=A..B (number of groups), stripes=A..B, convert=PROFILE, soft (with convert: skip
/// groups that have the profile). Profiles: single, dup, raid0, raid1, raid1c3, raid1c4, raid10,
/// raid5, raid6.
#[derive(clap::Args)]
#[command(override_usage = "oleo balance start [OPTIONS] [-d[=FILTERS]] [-m[=FILTERS]] [-s[=FILTERS]] IMG|PATH")]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Move data block groups, all or those that the filters select.
    #[arg(long, short, value_name = "FILTERS", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    data: Option<String>,
    /// Move metadata block groups, and those of the chunk tree with the same filters.
    #[arg(long, short, value_name = "FILTERS", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    metadata: Option<String>,
    /// Move system block groups (those of the chunk tree) alone; needs --force.
    #[arg(long, short, value_name = "FILTERS", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    system: Option<String>,
    /// Allow reducing redundancy; required for -s.
    #[arg(long, short)]
    force: bool,
    /// Move everything, without the warning that this may take long.
    #[arg(long, conflicts_with_all = ["data", "metadata", "system"])]
    full_balance: bool,
    /// Return immediately; the mount continues in the background.
    #[arg(long, visible_alias = "bg")]
    background: bool,
    /// Wait for other balances of the mount to end instead of failing.
    #[arg(long)]
    enqueue: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let args = self.what()?;
        if args == BalanceArgs::full() && !self.full_balance {
            out.warnings(&[
                "without filters everything is moved, which may take long (--full-balance suppresses this warning)"
                    .to_owned(),
            ]);
        }
        let how = RunOptions { background: self.background, enqueue: self.enqueue };
        follow(&self.on, out, BalanceChange::Start { args: Box::new(args) }, how)
    }

    fn what(&self) -> anyhow::Result<BalanceArgs> {
        let parse = |name: &str, text: &Option<String>| -> anyhow::Result<Option<Filters>> {
            let parsed = text.as_ref().map(|text| text.parse()).transpose();
            parsed.map_err(|why: String| misuse!("-{name}: {why}"))
        };
        let (data, metadata) = (parse("d", &self.data)?, parse("m", &self.metadata)?);
        let mut system = parse("s", &self.system)?;
        if system.is_some() && !self.force {
            return Err(misuse!("-s needs --force; -m moves the block groups of the chunk tree, too"));
        }
        if data.is_none() && metadata.is_none() && system.is_none() {
            return Ok(BalanceArgs::full().force(self.force));
        }
        if system.is_none() {
            system = metadata.clone();
        }
        Ok(BalanceArgs::default().data(data).metadata(metadata).system(system).force(self.force))
    }
}

/// The arguments of the program as its parser takes them. As with btrfs, filters stand right behind the letter (`-dusage=50`), and a
/// letter alone means all; the parser wants `-d=usage=50`, so that no filters are taken for none and the path for filters.
pub(crate) fn with_equals(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_option = |argument: &&OsString| argument.as_bytes().starts_with(b"-");
    let mut words = arguments.iter().skip(1).filter(|argument| !is_option(argument));
    let mut next_begins = |name: &str| words.next().and_then(|word| word.to_str()).is_some_and(|w| name.starts_with(w));
    if !(next_begins("balance") && next_begins("start")) {
        return arguments;
    }
    for argument in arguments.iter_mut().skip(1).take_while(|argument| argument.as_os_str() != OsStr::new("--")) {
        if let [b'-', letter @ (b'd' | b'm' | b's'), filters @ ..] = argument.as_bytes()
            && !matches!(filters, [] | [b'=', ..])
        {
            *argument = OsString::from_vec([&[b'-', *letter, b'='][..], filters].concat());
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Cli;
    use crate::cmd::{Command, balance};

    fn parsed(line: &str) -> anyhow::Result<(String, BalanceArgs)> {
        let words = "oleo balance start".split(' ').chain(line.split(' ').filter(|word| !word.is_empty()));
        let cli = Cli::try_parse_from(with_equals(words.map(OsString::from)))?;
        let Command::Balance(balance::Command::Start(args)) = cli.command else { panic!("another command") };
        Ok((args.on.path.display().to_string(), args.what()?))
    }

    /// Goal: what users of btrfs write is understood: filters right behind the letter, or with an equals sign, letters alone, the path
    /// anywhere. What stands apart from a letter is not its filters.
    #[test]
    fn grammar() {
        let of = |data: Option<&str>, metadata: Option<&str>, system: Option<&str>, force| {
            let parse = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            BalanceArgs::default().data(parse(data)).metadata(parse(metadata)).system(parse(system)).force(force)
        };
        let half = Some("usage=50,limit=2");
        for (line, want) in [
            ("-dusage=50,limit=2 i", of(half, None, None, false)),
            ("-d=usage=50,limit=2 i", of(half, None, None, false)),
            ("i --data=usage=50,limit=2", of(half, None, None, false)),
            ("-d i", of(Some(""), None, None, false)),
            ("i -d", of(Some(""), None, None, false)),
            ("-d -m i", of(Some(""), Some(""), Some(""), false)),
            ("-mconvert=dup i", of(None, Some("convert=dup"), Some("convert=dup"), false)),
            ("-mconvert=dup -susage=5 -f i", of(None, Some("convert=dup"), Some("usage=5"), true)),
            ("-f -s i", of(None, None, Some(""), true)),
            ("i", BalanceArgs::full()),
            ("-- i", BalanceArgs::full()),
            ("--full-balance i", BalanceArgs::full()),
        ] {
            assert_eq!(parsed(line).unwrap(), ("i".to_owned(), want), "{line}");
        }
        for line in ["-s i", "-dnonsense i", "-d usage=5 i", "-d=usage=x i", "--full-balance -d i", "-d", ""] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    /// Goal: nobody else's arguments are changed, and short names of the commands and options before them are seen through.
    #[test]
    fn only_of_balance_start() {
        let changed = |line: &str| {
            let words = with_equals(line.split(' ').map(OsString::from));
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        for (line, want) in [
            ("oleo -q bal sta -dusage=5 i", "oleo -q bal sta -d=usage=5 i"),
            ("oleo balance start -d -m=soft -ssoft i", "oleo balance start -d -m=soft -s=soft i"),
            ("oleo balance start -- -dusage=5", "oleo balance start -- -dusage=5"),
            ("oleo balance status -dx i", "oleo balance status -dx i"),
            ("oleo mkfs -dsingle -mdup i", "oleo mkfs -dsingle -mdup i"),
        ] {
            assert_eq!(changed(line), want);
        }
    }
}
