//! `oleo remote probe`

use std::time::Duration;

use oleo::remote::{ProbeOptions, ProbeReport, probe};
use serde_json::json;

use super::VolumeUrl;
use crate::out::{json, println_or_end};

/// Find out whether an object store keeps what volumes need
///
/// One writer at a time is built on conditions that the store must keep: creating an object only if there is none, and replacing
/// it only if it is a known one, also where many try in parallel. The probe tries that below a prefix of its own, which it
/// removes, and it says how fast one object can be replaced: that is what an fsync takes.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the store can be used; others, as in oleo --help: it cannot, or was not reached."
)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// How many try in parallel.
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u8).range(2..=128))]
    racers: u8,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        let how = ProbeOptions { racers: self.racers.into(), ..ProbeOptions::default() };
        let report = probe(&opened.store, &opened.options, how).map_err(oleo::Error::from)?;
        if self.json {
            json(&as_json(&report));
        } else {
            show(&report);
        }
        Ok(report.accepted().map_err(oleo::Error::from)?)
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn show(report: &ProbeReport) {
    for failure in &report.failures {
        println_or_end(&format!("FAILED: {failure}"));
    }
    let median = median(&report.replaces);
    let rate = 1.0 / median.as_secs_f64().max(1e-9);
    println_or_end(&format!("one object replaced: {:.1} ms, {rate:.0} a second", median.as_secs_f64() * 1e3));
    if !report.lists_at_once {
        println_or_end("a listing did not show at once what was stored (that is allowed)");
    }
    if report.versioned {
        println_or_end(
            "the bucket keeps old versions: every fsync leaves one of the head; let a lifecycle rule delete non-current \
             versions",
        );
    }
    if report.unclear > 0 {
        println_or_end(&format!("{} operations gave no clear answer", report.unclear));
    }
    if report.failures.is_empty() {
        println_or_end("the store keeps what volumes need");
    }
}

fn as_json(report: &ProbeReport) -> serde_json::Value {
    json!({
        "accepted": report.failures.is_empty(),
        "failures": report.failures,
        "replace_ms": median(&report.replaces).as_secs_f64() * 1e3,
        "versioned": report.versioned,
        "lists_at_once": report.lists_at_once,
        "unclear": report.unclear,
        "clock": report.clock.map(|time| time.0),
    })
}
