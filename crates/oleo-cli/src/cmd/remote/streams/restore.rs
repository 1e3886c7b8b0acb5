//! `oleo remote streams restore`

use std::path::PathBuf;

use oleo::streams::StoredFiles;

use super::StreamsUrl;
use crate::args::InPath;
use crate::out::{Out, human};

/// Copy a file or a directory out of a snapshot that is kept as a stream, without receiving it
///
/// Only the indexes of the snapshot and of what it is built on are read, and the parts of streams that hold what is asked for.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// The file, or the directory, with everything below it.
    #[arg(value_name = "PATH")]
    path: InPath,
    /// Directory to be created. What is in PATH goes there, or PATH itself if it is no directory.
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Keep modes regardless of the umask; always so for root.
    #[arg(short, long)]
    preserve_permissions: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let mut files = StoredFiles::open(&opened.streams, &opened.list, opened.stream()?)?;
        let (done, warnings) = files.restore(&self.path.0, &self.dest, self.preserve_permissions)?;
        out.warnings(&warnings);
        let entries = done.files + done.dirs + done.others;
        out.note(format!("{}: {entries} entries with {} of data", self.dest.display(), human(done.data_bytes)));
        opened.costs(out);
        Ok(())
    }
}
