//! `oleo remote verify`

use std::io::Write;

use oleo::remote::{VerifyOptions, VerifyReport, verify};
use serde_json::json;

use super::VolumeUrl;
use crate::out::{self, DAMAGED, Out, human, json, println_or_end};

/// Read and check every object of a volume on an object store, with all its pins
///
/// Every object that the newest head or a pin needs is read, its checksums and (if it is encrypted) its seals are verified, and the
/// map is compared with what is in the segments. What is in the volume is not looked at: `oleo check` does that.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 sound; 3 damaged; others, as in oleo --help: it could not be verified.")]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeUrl,
    /// Read only heads, maps and directories, not the data.
    #[arg(long)]
    heads: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.volume.open()?;
        let progress = out.progress("verifying");
        let mut show = |done: &VerifyReport| {
            progress.show(format!("{} segments, {}", done.segments, human(done.segment_bytes)));
        };
        let how = VerifyOptions { heads_only: self.heads };
        let report = verify(&opened.store, &opened.options, how, &mut show).map_err(oleo::Error::from)?;
        drop(progress);
        if !report.findings.is_empty() {
            out::is_damaged();
        }
        if self.json {
            json(&as_json(&report));
        } else {
            self.show(&report);
        }
        if !report.findings.is_empty() {
            let _ = std::io::stdout().flush();
            std::process::exit(DAMAGED.into());
        }
        Ok(())
    }

    fn show(&self, report: &VerifyReport) {
        for finding in &report.findings {
            let of = finding.pin.as_ref().map(|pin| format!("pin {pin}: ")).unwrap_or_default();
            println_or_end(&format!("{of}{}", finding.what));
        }
        if report.findings_left_out > 0 {
            println_or_end(&format!("and {} more", report.findings_left_out));
        }
        println_or_end(&format!(
            "{} heads, {} segments with {} and {} frames, {} runs with {}",
            report.heads,
            report.segments,
            human(report.segment_bytes),
            report.frames,
            report.runs,
            human(report.live_blocks * 4096)
        ));
        if report.orphans > 0 {
            let orphans = (report.orphans, human(report.orphan_bytes));
            println_or_end(&format!("{} objects with {} belong to no head (no damage)", orphans.0, orphans.1));
        }
        let verdict = match (report.findings.is_empty(), self.heads) {
            (true, true) => "sound, as far as heads and maps go",
            (true, false) => "sound",
            (false, _) => "DAMAGED",
        };
        println_or_end(verdict);
    }
}

fn as_json(report: &VerifyReport) -> serde_json::Value {
    let findings = report.findings.iter();
    json!({
        "sound": report.findings.is_empty(),
        "heads": report.heads,
        "segments": report.segments,
        "segment_bytes": report.segment_bytes,
        "frames": report.frames,
        "runs": report.runs,
        "live_bytes": report.live_blocks * 4096,
        "findings": findings.map(|f| json!({ "pin": f.pin, "what": f.what.to_string() })).collect::<Vec<_>>(),
        "findings_left_out": report.findings_left_out,
        "orphans": report.orphans,
        "orphan_bytes": report.orphan_bytes,
    })
}
