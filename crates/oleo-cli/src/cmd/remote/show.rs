//! `oleo remote show`

use oleo::remote::format::pins::{Pin, PinKind};
use oleo::remote::{Shown, show};
use serde_json::json;

use super::VolumeUrl;
use crate::out::{date, human, json, println_or_end, text};

/// Show the state of a volume on an object store, and its pins
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
        let shown = show(opened.store, opened.url.pin.as_deref(), &opened.options).map_err(oleo::Error::from)?;
        if self.json {
            json(&as_json(&shown));
            return Ok(());
        }
        let line = |name: &str, value: String| println_or_end(&format!("{name:12}{value}"));
        let head = &shown.head;
        line("volume", hex(&head.uuid));
        line("writer", writer(&shown));
        line("commit", format!("{} (sequence {}, epoch {})", hex(&head.commit), head.sequence, head.epoch));
        line("device", human(head.device_len));
        let segment_bytes = head.segments.iter().map(|segment| u64::from(segment.len)).sum();
        line(
            "log",
            format!("{} segments with {} since the last checkpoint", head.segments.len(), human(segment_bytes)),
        );
        line("tail", human(head.tail.len() as u64));
        for origin in &head.origins {
            line("branch of", format!("{} (pin {})", text(origin.prefix.as_bytes()), origin.pin));
        }
        for pin in shown.pins.iter().flat_map(|list| &list.pins) {
            line(kind(pin), format!("{} (sequence {}), {}", pin.name, pin.sequence, made(pin)));
        }
        Ok(())
    }
}

fn writer(shown: &Shown) -> String {
    let head = &shown.head;
    let owner = text(head.writer().as_bytes());
    match (head.released, head.claim) {
        (true, _) => "nobody; it was closed".into(),
        (false, 0) => format!("{owner}, until somebody takes over"),
        (false, claim) => format!("{owner}, until {claim} s without a sign of life"),
    }
}

fn kind(pin: &Pin) -> &'static str {
    match pin.kind {
        PinKind::Pin => "pin",
        PinKind::Lease => "lease",
        PinKind::Branch => "branch",
    }
}

fn made(pin: &Pin) -> String {
    let at = |seconds: u64| date(oleo::fs::Time { sec: i64::try_from(seconds).unwrap_or(i64::MAX), nsec: 0 });
    let until = pin.expires.map(|until| format!(" until {}", at(until))).unwrap_or_default();
    let by = match pin.sealed {
        None => text(pin.by.as_bytes()),
        Some(_) => "an unknown key".into(),
    };
    format!("{}, by {by}{until}", at(pin.made))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_json(shown: &Shown) -> serde_json::Value {
    let head = &shown.head;
    json!({
        "uuid": hex(&head.uuid),
        "commit": hex(&head.commit),
        "sequence": head.sequence,
        "epoch": head.epoch,
        "owner": head.writer(),
        "process": head.process(),
        "released": head.released,
        "claim_seconds": head.claim,
        "device_bytes": head.device_len,
        "segments": head.segments.len(),
        "segment_bytes": head.segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>(),
        "tail_bytes": head.tail.len(),
        "position": head.position,
        "has_checkpoint": head.root.is_some(),
        "graves": head.graves.len(),
        "origins": head.origins.iter().map(|o| json!({ "uuid": hex(&o.uuid), "pin": o.pin, "prefix": o.prefix })).collect::<Vec<_>>(),
        "pins": shown.pins.as_ref().map(|list| &list.pins),
    })
}
