//! `oleo filesystem show`

use crate::args::ImageArgs;
use crate::out::{human, json, println_or_end, text};

/// Show label, UUID, size and devices
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let inspector = self.image.inspect()?;
        let volume = inspector.volume();
        let sb = volume.super_block();
        let devices = volume.devices();
        if self.json {
            let devices: Vec<_> = devices
                .iter()
                .map(|d| {
                    serde_json::json!({
                        "devid": d.devid.0, "size": d.total.0, "used": d.used.0, "path": d.name, "missing": d.missing,
                        "uuid": d.uuid.to_string(),
                    })
                })
                .collect();
            json(&serde_json::json!({
                "label": text(sb.label()), "uuid": sb.fsid().to_string(), "generation": sb.generation().0,
                "bytes": sb.total_bytes.get(), "bytes_used": sb.bytes_used.get(), "devices": devices,
            }));
            return Ok(());
        }
        let label = if sb.label().is_empty() { "none".into() } else { format!("'{}'", text(sb.label())) };
        println_or_end(&format!("Label: {label}  uuid: {}", sb.fsid()));
        println_or_end(&format!("\tTotal devices {} FS bytes used {}", sb.num_devices, human(sb.bytes_used.get())));
        for d in devices {
            let path = if d.missing { "<missing disk> MISSING".to_owned() } else { d.name };
            let (total, used) = (human(d.total.0), human(d.used.0));
            println_or_end(&format!("\tdevid {:>4} size {total} used {used} path {path}", d.devid));
        }
        Ok(())
    }
}
