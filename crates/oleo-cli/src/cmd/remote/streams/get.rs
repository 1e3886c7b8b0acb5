//! `oleo remote streams get`

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use oleo::remote::streams::{ChainBytes, chain};

use super::StreamsUrl;
use crate::out::{Out, misuse};

/// Write a stream as it was sent, for btrfs receive or oleo receive
#[derive(clap::Args)]
#[command(after_help = "Example: oleo remote streams get --chain s3://bucket/backups | btrfs receive /mnt")]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// Write first all streams that it is built on, one after another.
    #[arg(long)]
    chain: bool,
    /// Write to this file, not to standard output.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let stream = opened.stream()?;
        let which = match self.chain {
            true => chain(&opened.list, stream, |_| false).map_err(oleo::Error::from)?,
            false => vec![stream],
        };
        let bytes = ChainBytes::open(&opened.streams, &which).map_err(oleo::Error::from)?;
        match &self.file {
            Some(path) => {
                let mut file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
                copy(bytes, &mut file)?;
                file.sync_all().or_else(|error| match error.kind() {
                    io::ErrorKind::InvalidInput => Ok(()),
                    _ => Err(oleo::Error::Output(error)),
                })?;
            }
            None if io::stdout().is_terminal() => {
                return Err(misuse!("refusing to write a stream to a terminal; use -f FILE or a pipe"));
            }
            None => copy(bytes, &mut io::stdout().lock())?,
        }
        opened.costs(out);
        Ok(())
    }
}

fn copy(mut from: ChainBytes, to: &mut dyn Write) -> oleo::Result<()> {
    let error = from.error();
    match io::copy(&mut from, to).and_then(|_| to.flush()) {
        Ok(()) => Ok(()),
        Err(failed) => Err(error.get().map_or(oleo::Error::Output(failed), |error| error.clone().into())),
    }
}
