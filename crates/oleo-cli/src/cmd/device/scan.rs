//! `oleo device scan`

use std::path::PathBuf;

use oleo::volume::{FoundVolume, block_devices, discover};

use crate::out::{human, json, println_or_end, text};

/// Look for btrfs volumes on devices and in files
///
/// Nothing has to be registered for Oleo: this only shows what is there.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files, block devices, and directories to look directly in; by default all block devices.
    #[arg(value_name = "FILE|DIR")]
    places: Vec<PathBuf>,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let places = if self.places.is_empty() { block_devices()? } else { self.places };
        let found = discover(&places)?;
        if self.json {
            json(&found.iter().map(as_json).collect::<Vec<_>>().into());
            return Ok(());
        }
        for volume in &found {
            let label = if volume.label.is_empty() { "none".into() } else { format!("'{}'", text(&volume.label)) };
            println_or_end(&format!("Label: {label}  uuid: {}", volume.fsid));
            let missing = match volume.missing() {
                0 => String::new(),
                missing => format!(", {missing} not found"),
            };
            println_or_end(&format!("\tTotal devices {}{missing}", volume.num_devices));
            for d in &volume.devices {
                let (size, path) = (human(d.total), d.path.display());
                println_or_end(&format!("\tdevid {:>4} size {size} generation {} path {path}", d.devid, d.generation));
            }
        }
        Ok(())
    }
}

fn as_json(volume: &FoundVolume) -> serde_json::Value {
    let devices = volume.devices.iter().map(|d| {
        serde_json::json!({
            "devid": d.devid, "uuid": d.uuid.to_string(), "path": d.path.display().to_string(), "size": d.total,
            "generation": d.generation,
        })
    });
    serde_json::json!({
        "label": text(&volume.label), "uuid": volume.fsid.to_string(), "total_devices": volume.num_devices,
        "missing": volume.missing(), "devices": devices.collect::<Vec<_>>(),
    })
}
