//! `oleo remote streams cat`

use std::io;

use oleo::streams::StoredFiles;

use super::StreamsUrl;
use crate::args::InPath;
use crate::out::Out;

/// Write a file of a snapshot that is kept as a stream to standard output, without receiving it
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// The file.
    #[arg(value_name = "PATH")]
    path: InPath,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let mut files = StoredFiles::open(&opened.streams, &opened.list, opened.stream()?)?;
        files.cat(&self.path.0, &mut io::stdout().lock())?;
        opened.costs(out);
        Ok(())
    }
}
