//! `oleo remote streams verify`

use std::io::Write;

use oleo::remote::streams::CheckedStreams;
use serde_json::json;

use super::StreamsUrl;
use crate::out::{self, DAMAGED, Out, human, json, println_or_end, text};

/// Read and check every part of all streams
///
/// Checksums and seals of all parts are verified, and that nothing is missing on which a stream is built.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 sound; 3 damaged; others, as in oleo --help: they could not be verified.")]
pub(crate) struct Args {
    #[command(flatten)]
    streams: StreamsUrl,
    /// Read only the manifests, not the parts.
    #[arg(long)]
    heads: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let opened = self.streams.open()?;
        let progress = out.progress("verifying");
        let mut show = |done: &CheckedStreams| {
            progress.show(format!("{} streams, {} parts, {}", done.streams, done.parts, human(done.stored_bytes)));
        };
        let found = opened.streams.verify(self.heads, &mut show).map_err(oleo::Error::from)?;
        drop(progress);
        if !found.findings.is_empty() {
            out::is_damaged();
        }
        if self.json {
            json(&as_json(&found));
        } else {
            self.show(&found);
        }
        opened.costs(out);
        if !found.findings.is_empty() {
            let _ = std::io::stdout().flush();
            std::process::exit(DAMAGED.into());
        }
        Ok(())
    }

    fn show(&self, found: &CheckedStreams) {
        for finding in &found.findings {
            println_or_end(&format!("{} ({}): {}", text(finding.name.as_bytes()), finding.id.simple(), finding.what));
        }
        if found.findings_left_out > 0 {
            println_or_end(&format!("and {} more", found.findings_left_out));
        }
        println_or_end(&format!(
            "{} streams, {} parts with {}; {} uploads under way",
            found.streams,
            found.parts,
            human(found.stored_bytes),
            found.uploads
        ));
        if found.orphans > 0 {
            println_or_end(&format!(
                "{} objects with {} are of no stream (no damage; \"gc\" deletes them)",
                found.orphans,
                human(found.orphan_bytes)
            ));
        }
        println_or_end(match (found.findings.is_empty(), self.heads) {
            (true, true) => "sound, as far as manifests go",
            (true, false) => "sound",
            (false, _) => "DAMAGED",
        });
    }
}

fn as_json(found: &CheckedStreams) -> serde_json::Value {
    let finding = |f: &oleo::remote::streams::StreamFinding| json!({ "id": f.id.simple().to_string(), "name": f.name, "what": f.what.to_string() });
    json!({
        "sound": found.findings.is_empty(),
        "streams": found.streams,
        "parts": found.parts,
        "stored_bytes": found.stored_bytes,
        "findings": found.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_left_out": found.findings_left_out,
        "uploads": found.uploads,
        "orphans": found.orphans,
        "orphan_bytes": found.orphan_bytes,
    })
}
