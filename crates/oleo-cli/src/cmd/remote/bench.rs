//! `oleo remote bench`

use oleo::remote::{BenchRow, bench};
use serde_json::json;

use super::VolumeUrl;
use crate::out::{human, json, println_or_end};

/// Measure what operations take on an object store, with their requests and bytes
///
/// About 150 requests and 150 MB, below a prefix of its own, which is removed.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        let rows = bench(&opened.store, &opened.options).map_err(oleo::Error::from)?;
        if self.json {
            json(&rows.iter().map(as_json).collect());
            return Ok(());
        }
        println_or_end(&format!("{:26} {:>10} {:>10} {:>9} {:>11}", "", "p50", "p99", "requests", "bytes"));
        for row in &rows {
            let ms = |time: std::time::Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
            let (p50, p99) = (ms(row.p50), ms(row.p99));
            println_or_end(&format!(
                "{:26} {p50:>10} {p99:>10} {:>9.1} {:>11}",
                row.what,
                row.requests,
                human(row.bytes)
            ));
        }
        Ok(())
    }
}

fn as_json(row: &BenchRow) -> serde_json::Value {
    json!({
        "what": row.what,
        "p50_ms": row.p50.as_secs_f64() * 1e3,
        "p99_ms": row.p99.as_secs_f64() * 1e3,
        "requests": row.requests,
        "bytes": row.bytes,
    })
}
