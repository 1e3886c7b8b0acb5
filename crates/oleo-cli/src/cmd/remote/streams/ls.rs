//! `oleo remote streams ls`

use oleo::streams::{FileType, FoundEntry, StoredFiles};
use serde_json::json;

use super::StreamsUrl;
use crate::args::InPath;
use crate::out::{Out, json, println_or_end, text};

/// List a directory of a snapshot that is kept as a stream, without receiving it
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// The directory; the root of the snapshot if it is not given.
    #[arg(value_name = "PATH", default_value = "/", hide_default_value = true)]
    path: InPath,
    /// Show types and sizes in bytes.
    #[arg(short, long)]
    long: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let files = StoredFiles::open(&opened.streams, &opened.list, opened.stream()?)?;
        let found = files.find(&self.path.0)?;
        let entries = if found.kind == FileType::Dir { files.list(&self.path.0)? } else { vec![found] };
        if self.json {
            json(&entries.iter().map(as_json).collect());
        } else {
            for entry in &entries {
                let name = text(&entry.name);
                println_or_end(&if self.long {
                    format!("{:7}  {:>15}  {name}", kind(entry), entry.size)
                } else {
                    name
                });
            }
        }
        opened.costs(out);
        Ok(())
    }
}

fn kind(entry: &FoundEntry) -> &'static str {
    match entry.kind {
        FileType::File => "file",
        FileType::Dir => "dir",
        FileType::Symlink => "symlink",
        FileType::Other => "other",
    }
}

fn as_json(entry: &FoundEntry) -> serde_json::Value {
    json!({ "name": text(&entry.name), "type": kind(entry), "size": entry.size })
}
