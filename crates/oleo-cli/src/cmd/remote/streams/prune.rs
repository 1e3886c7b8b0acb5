//! `oleo remote streams prune`

use std::time::Duration;

use oleo::remote::streams::{CollectedStreams, Policy, Pruned};
use serde_json::json;

use super::StreamsUrl;
use super::list::{line, stream_json};
use crate::out::{Out, human, json, misuse, println_or_end};

/// Remove snapshots that a policy does not keep
///
/// Each option keeps some: the newest ones, or the newest of each of the last days (weeks, months, years) that have any, in UTC, by when the
/// snapshot was taken. Snapshots of different subvolumes are counted apart. What a snapshot that is kept is built on is kept, too, and so is
/// what an upload under way is built on: a chain ends only when a whole stream begins a new one and nothing of the old one is kept.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// Keep the newest N.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_last: usize,
    /// Keep the newest of each of N days.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_daily: usize,
    /// Keep the newest of each of N weeks.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_weekly: usize,
    /// Keep the newest of each of N months.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_monthly: usize,
    /// Keep the newest of each of N years.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_yearly: usize,
    /// Say what would be removed, and remove nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let policy = Policy {
            last: self.keep_last,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
            yearly: self.keep_yearly,
        };
        if policy.is_empty() {
            return Err(misuse!(
                "say what is kept: --keep-last, --keep-daily, --keep-weekly, --keep-monthly, --keep-yearly"
            ));
        }
        let opened = self.streams.open()?;
        let (pruned, collected) = if self.dry_run {
            (opened.streams.plan(&policy).map_err(oleo::Error::from)?, CollectedStreams::default())
        } else {
            let pruned = opened.streams.prune(&policy).map_err(oleo::Error::from)?;
            // Uploads are nothing that a policy is about.
            let collected = opened.streams.collect(Duration::MAX, false).map_err(oleo::Error::from)?;
            (pruned, collected)
        };
        if self.json {
            json(&self.as_json(&pruned, &collected));
        } else {
            for (stream, why) in &pruned.kept {
                let why: Vec<String> = why.iter().map(ToString::to_string).collect();
                println_or_end(&format!("keep    {}  ({})", line(&opened.list, stream), why.join(", ")));
            }
            for stream in &pruned.removed {
                println_or_end(&format!("remove  {}", line(&opened.list, stream)));
            }
        }
        let gone = pruned.removed.len();
        let bytes = human(pruned.removed.iter().map(|stream| stream.stored_bytes).sum());
        if !self.json {
            out.note(match self.dry_run {
                true => format!("{gone} streams with {bytes} would be removed"),
                false => format!("removed {gone} streams with {bytes}, {} objects", collected.deleted),
            });
        }
        opened.costs(out);
        Ok(())
    }

    fn as_json(&self, pruned: &Pruned, collected: &CollectedStreams) -> serde_json::Value {
        let kept = pruned.kept.iter().map(|(stream, why)| {
            json!({ "stream": stream_json(stream), "why": why.iter().map(ToString::to_string).collect::<Vec<_>>() })
        });
        json!({
            "dry_run": self.dry_run,
            "kept": kept.collect::<Vec<_>>(),
            "removed": pruned.removed.iter().map(stream_json).collect::<Vec<_>>(),
            "objects_deleted": collected.deleted,
            "bytes_deleted": collected.deleted_bytes,
        })
    }
}
