//! `oleo balance start`

use std::path::PathBuf;

use oleo::control::{BalanceArgs, BalanceChange, Filters};

use super::{BalanceTarget, RunOptions, follow};
use crate::args::DeviceArgs;
use crate::out::{Out, misuse};

/// Move the block groups that filters select, or all
///
/// On an image the command returns when the balance is complete; if it is interrupted (Ctrl-C), the balance can be resumed. On a
/// mount the balance continues if the command is interrupted.
///
/// Filters, separated by commas: profiles=A|B, usage=PERCENT (at most) or usage=A..B, devid=N, drange=A..B (bytes of that device),
/// vrange=A..B (logical bytes), limit=N or limit=A..B (number of groups), stripes=A..B, convert=PROFILE, soft (with convert: skip
/// groups that have the profile). Profiles: single, dup, raid0, raid1, raid1c3, raid1c4, raid10.
#[derive(clap::Args)]
#[command(override_usage = "oleo balance start [OPTIONS] [-d [FILTERS]] [-m [FILTERS]] [-s [FILTERS]] IMG|PATH")]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: Option<PathBuf>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Move data block groups, all or those that the filters select.
    #[arg(long, short, value_name = "FILTERS", num_args = 0..=1, default_missing_value = "")]
    data: Option<String>,
    /// Move metadata block groups, and those of the chunk tree with the same filters.
    #[arg(long, short, value_name = "FILTERS", num_args = 0..=1, default_missing_value = "")]
    metadata: Option<String>,
    /// Move system block groups (those of the chunk tree) alone; needs --force.
    #[arg(long, short, value_name = "FILTERS", num_args = 0..=1, default_missing_value = "")]
    system: Option<String>,
    /// Allow reducing metadata redundancy; required for -s.
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
    pub fn run(mut self, out: &Out) -> anyhow::Result<()> {
        let path = self.take_path().ok_or_else(|| misuse!("missing argument IMG or PATH"))?;
        let args = self.what()?;
        if args == BalanceArgs::full() && !self.full_balance {
            out.warnings(&[
                "without filters everything is moved, which may take long (--full-balance suppresses this warning)"
                    .to_owned(),
            ]);
        }
        let on = BalanceTarget { path, others: self.others };
        let how = RunOptions { background: self.background, enqueue: self.enqueue };
        follow(&on, out, BalanceChange::Start { args: Box::new(args) }, how)
    }

    /// The path; behind a bare `-d`, `-m` or `-s` it looks like its filters.
    fn take_path(&mut self) -> Option<PathBuf> {
        if let Some(path) = self.path.take() {
            return Some(path);
        }
        let given = [&mut self.data, &mut self.metadata, &mut self.system];
        let mut no_filters =
            given.into_iter().flatten().filter(|text| !text.contains('=') && !matches!(text.as_str(), "" | "soft"));
        no_filters.next().map(|text| PathBuf::from(std::mem::take(text)))
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

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str) -> anyhow::Result<(String, BalanceArgs)> {
        let mut args = Line::try_parse_from(std::iter::once("start").chain(line.split(' ')))?.args;
        let path = args.take_path().context("no path")?;
        Ok((path.display().to_string(), args.what()?))
    }

    /// Goal: what users of btrfs write is understood, and what others of our commands lead to expect: filters at the letter or behind
    /// it, bare letters, the path anywhere.
    #[test]
    fn grammar() {
        let of = |data: Option<&str>, metadata: Option<&str>, system: Option<&str>, force| {
            let parse = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            BalanceArgs::default().data(parse(data)).metadata(parse(metadata)).system(parse(system)).force(force)
        };
        let half = Some("usage=50,limit=2");
        for (line, want) in [
            ("-dusage=50,limit=2 i", of(half, None, None, false)),
            ("-d usage=50,limit=2 i", of(half, None, None, false)),
            ("i --data usage=50,limit=2", of(half, None, None, false)),
            ("-d i", of(Some(""), None, None, false)),
            ("i -d", of(Some(""), None, None, false)),
            ("-d -m i", of(Some(""), Some(""), Some(""), false)),
            ("-mconvert=dup i", of(None, Some("convert=dup"), Some("convert=dup"), false)),
            ("-mconvert=dup -susage=5 -f i", of(None, Some("convert=dup"), Some("usage=5"), true)),
            ("-f -s i", of(None, None, Some(""), true)),
            ("i", BalanceArgs::full()),
            ("--full-balance i", BalanceArgs::full()),
        ] {
            assert_eq!(parsed(line).unwrap(), ("i".to_owned(), want), "{line}");
        }
        for line in ["-s i", "-dnonsense i", "-d usage=5", "-d=usage=x i", "--full-balance -d i", ""] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
