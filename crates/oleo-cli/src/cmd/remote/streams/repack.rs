//! `oleo remote streams repack`

use std::path::PathBuf;

use oleo::send::SendOptions;
use oleo::streams::repack;

use super::StreamsUrl;
use crate::out::{Out, human};

/// Store a snapshot once more, as one whole stream, so that the chain before it can be pruned
///
/// The chain is received into an image, which takes as much room on the local disk as its snapshots do, and the snapshot is sent from
/// there. It stays the same snapshot: what is sent later is built on the new stream. Nothing is removed; "prune" does that.
#[derive(clap::Args)]
#[command(after_help = "Example: oleo remote streams repack s3://bucket/backups\n\
                        and then: oleo remote streams prune s3://bucket/backups --keep-last 1")]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// Make the image here, and remove it afterwards; the file must not be there yet.
    #[arg(long, value_name = "FILE")]
    scratch: Option<PathBuf>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let stream = opened.stream()?;
        let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
        let own = || std::env::temp_dir().join(format!("oleo-repack-{}-{time}.img", std::process::id()));
        let scratch = self.scratch.clone().unwrap_or_else(own);
        match repack(&opened.streams, &opened.list, stream, &scratch, &SendOptions::default())? {
            None => out.note(format!("{} is whole already", stream.name)),
            Some(done) => out.note(format!(
                "{} of {} streams is one whole stream now: {}",
                stream.name,
                done.received,
                human(done.stored.entry.stored_bytes)
            )),
        }
        opened.costs(out);
        Ok(())
    }
}
