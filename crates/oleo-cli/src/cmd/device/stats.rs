//! `oleo device stats`

use oleo::control::{DeviceErrors, Reply, Request};

use crate::out::{Said, json, println_or_end};
use crate::target::{Access, VolumeArg, answer};

/// Show how often devices failed, as counted on them
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Set the counters to zero; show what they were.
    #[arg(long, short = 'z')]
    reset: bool,
    /// Fail if any of them is not zero.
    #[arg(long, short = 'c')]
    check: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// The names that btrfs's command has for them.
fn named(errors: &DeviceErrors) -> [(&'static str, u64); 5] {
    [
        ("write_io_errs", errors.write),
        ("read_io_errs", errors.read),
        ("flush_io_errs", errors.flush),
        ("corruption_errs", errors.corruption),
        ("generation_errs", errors.generation),
    ]
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = self.on.open(if self.reset { Access::Write } else { Access::Read })?;
        let request = Request::DeviceErrors { reset: self.reset, only: None };
        let devices = answer!(self.on.ask(&target, request)?, Reply::DeviceErrors(devices) => devices)?;
        target.close()?;
        if self.json {
            json(&devices.iter().map(as_json).collect::<Vec<_>>().into());
        } else {
            for device in &devices {
                let path = device.path.display().to_string();
                let name = if path.is_empty() { format!("devid:{}", device.devid) } else { path };
                for (what, count) in named(device) {
                    println_or_end(&format!("[{name}].{what:<17}{count}"));
                }
            }
        }
        let bad = devices.iter().filter(|device| named(device).iter().any(|(_, count)| *count != 0)).count();
        if self.check && bad > 0 {
            return Err(Said(oleo::ErrorKind::Device, format!("devices with errors: {bad}")).into());
        }
        Ok(())
    }
}

fn as_json(device: &DeviceErrors) -> serde_json::Value {
    let mut all = serde_json::json!({ "devid": device.devid, "device": device.path.display().to_string() });
    for (what, count) in named(device) {
        all[what] = count.into();
    }
    all
}
