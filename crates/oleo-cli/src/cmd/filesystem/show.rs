//! `oleo filesystem show`

use oleo::control::{DeviceUsage, Reply, Request};

use crate::args::ImageArgs;
use crate::out::{human, json, println_or_end, text};
use crate::target::{self, answer};

/// Show label, UUID, size and devices
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// What is shown.
struct Shown {
    label: Vec<u8>,
    uuid: String,
    generation: u64,
    bytes: u64,
    bytes_used: u64,
    devices: Vec<DeviceUsage>,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let shown = match target::mount_of(&self.image.image)? {
            Some(mount) => of_mount(&mount)?,
            None => self.of_image()?,
        };
        if self.json {
            let device = |d: &DeviceUsage| {
                serde_json::json!({
                    "devid": d.devid, "size": d.total, "used": d.allocated, "path": d.path.display().to_string(),
                    "missing": d.missing, "uuid": d.uuid.to_string(),
                })
            };
            json(&serde_json::json!({
                "label": text(&shown.label), "uuid": shown.uuid, "generation": shown.generation, "bytes": shown.bytes,
                "bytes_used": shown.bytes_used, "devices": shown.devices.iter().map(device).collect::<Vec<_>>(),
            }));
            return Ok(());
        }
        let label = if shown.label.is_empty() { "none".into() } else { format!("'{}'", text(&shown.label)) };
        println_or_end(&format!("Label: {label}  uuid: {}", shown.uuid));
        println_or_end(&format!("\tTotal devices {} FS bytes used {}", shown.devices.len(), human(shown.bytes_used)));
        for d in shown.devices {
            let path = if d.missing { "<missing disk> MISSING".to_owned() } else { d.path.display().to_string() };
            let (total, used) = (human(d.total.0), human(d.allocated.0));
            println_or_end(&format!("\tdevid {:>4} size {total} used {used} path {path}", d.devid));
        }
        Ok(())
    }

    /// Without the trees, which may be damaged.
    fn of_image(&self) -> anyhow::Result<Shown> {
        let inspector = self.image.inspect()?;
        let sb = inspector.volume().super_block();
        Ok(Shown {
            label: sb.label().to_vec(),
            uuid: sb.fsid().to_string(),
            generation: sb.generation().0,
            bytes: sb.total_bytes.get(),
            bytes_used: sb.bytes_used.get(),
            devices: inspector.volume().devices().into_iter().map(DeviceUsage::from).collect(),
        })
    }
}

fn of_mount(mount: &target::Target) -> anyhow::Result<Shown> {
    let usage = answer!(mount.ask(Request::Usage)?, Reply::Usage(usage) => usage)?;
    Ok(Shown {
        label: usage.label.0,
        uuid: usage.fsid.to_string(),
        generation: usage.generation.0,
        bytes: usage.devices.iter().map(|d| d.total.0).sum(),
        bytes_used: usage.groups.iter().map(|g| g.used.0).sum(),
        devices: usage.devices,
    })
}
