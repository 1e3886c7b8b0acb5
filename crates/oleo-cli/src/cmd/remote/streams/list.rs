//! `oleo remote streams list`

use oleo::fs::Time;
use oleo::remote::streams::{StreamEntry, StreamList};
use serde_json::json;

use super::StreamsUrl;
use crate::out::{Out, date, human, json, println_or_end, text};

/// List snapshots that are kept as streams, the oldest first
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let list = &opened.list;
        if self.json {
            json(&as_json(list, opened.streams.is_sealed()));
        } else {
            println_or_end(&format!(
                "{:19}  {:>10}  {:>10}  {:8}  {:24}  BUILT ON",
                "TAKEN", "STREAM", "STORED", "ID", "NAME"
            ));
            for stream in &list.streams {
                println_or_end(&line(list, stream));
            }
            for upload in &list.uploads {
                println_or_end(&format!(
                    "upload under way: {}, begun {}, by {}",
                    text(upload.name.as_bytes()),
                    at(i64::try_from(upload.begun).unwrap_or(i64::MAX)),
                    text(upload.by.as_bytes())
                ));
            }
        }
        opened.costs(out);
        Ok(())
    }
}

/// A stream in a table.
pub(super) fn line(list: &StreamList, stream: &StreamEntry) -> String {
    let on = match stream.needs.first().filter(|_| stream.incremental) {
        None => "nothing".into(),
        Some(id) => list.stream(*id).map_or_else(|| "what is MISSING".into(), |parent| text(parent.name.as_bytes())),
    };
    let more = stream.needs.len().saturating_sub(usize::from(stream.incremental));
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!(
        "{:19}  {:>10}  {:>10}  {:8}  {:24}  {on}{more}",
        at(stream.taken),
        human(stream.bytes),
        human(stream.stored_bytes),
        &stream.id.simple().to_string()[..8],
        text(stream.name.as_bytes())
    )
}

fn at(sec: i64) -> String {
    date(Time { sec, nsec: 0 })
}

fn as_json(list: &StreamList, sealed: bool) -> serde_json::Value {
    json!({
        "uuid": oleo::Uuid::from_bytes(list.uuid).simple().to_string(),
        "encrypted": sealed,
        "streams": list.streams.iter().map(stream_json).collect::<Vec<_>>(),
        "uploads": list.uploads.iter().map(|upload| json!({
            "id": upload.id.simple().to_string(),
            "name": upload.name,
            "needs": upload.needs.iter().map(|id| id.simple().to_string()).collect::<Vec<_>>(),
            "begun": upload.begun,
            "by": upload.by,
        })).collect::<Vec<_>>(),
    })
}

/// A stream as JSON.
pub(super) fn stream_json(stream: &StreamEntry) -> serde_json::Value {
    json!({
        "id": stream.id.simple().to_string(),
        "number": stream.number,
        "name": stream.name,
        "uuid": stream.uuid.to_string(),
        "ctransid": stream.ctransid,
        "series": stream.series.to_string(),
        "incremental": stream.incremental,
        "needs": stream.needs.iter().map(|id| id.simple().to_string()).collect::<Vec<_>>(),
        "taken": stream.taken,
        "stored": stream.stored,
        "by": stream.by,
        "bytes": stream.bytes,
        "stored_bytes": stream.stored_bytes,
        "index_bytes": stream.index_bytes,
    })
}
