//! `oleo filesystem usage`

use oleo::control::{GroupUsed, Reply, Request, Usage};

use crate::args::UnitArgs;
use crate::out::{json, println_or_end};
use crate::target::{Access, VolumeArg, answer};

/// Show space usage: overall, by type and profile, by device
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    #[command(flatten)]
    unit: UnitArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// Sums over devices and groups, bytes on devices.
struct Sums {
    size: u64,
    allocated: u64,
    missing: u64,
    used: u64,
    data_ratio: f64,
    metadata_ratio: f64,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        let usage = answer!(target.ask(Request::Usage)?, Reply::Usage(usage) => usage)?;
        let sums = Sums::of(&usage);
        if self.json {
            json(&as_json(&usage, &sums));
        } else {
            self.show(&usage, &sums);
        }
        Ok(())
    }

    fn bytes(&self, bytes: u64) -> String {
        self.unit.show(bytes)
    }

    fn show(&self, usage: &Usage, sums: &Sums) {
        let line = |what: &str, value: String| println_or_end(&overall(what, &value, ""));
        println_or_end("Overall:");
        line("Device size", self.bytes(sums.size));
        line("Device allocated", self.bytes(sums.allocated));
        line("Device unallocated", self.bytes(sums.size.saturating_sub(sums.allocated)));
        line("Device missing", self.bytes(sums.missing));
        line("Used", self.bytes(sums.used));
        let (free, least) = (self.bytes(usage.data_free.0), self.bytes(usage.data_free_min.0));
        println_or_end(&overall("Free (estimated)", &free, &format!("\t(min: {least})")));
        line("Free (statfs, df)", self.bytes(usage.statfs_free.0));
        line("Data ratio", format!("{:.2}", sums.data_ratio));
        line("Metadata ratio", format!("{:.2}", sums.metadata_ratio));
        line("Multiple profiles", if has_several_profiles(&usage.groups) { "yes" } else { "no" }.into());
        for group in &usage.groups {
            let (total, used) = (self.bytes(group.total.0), self.bytes(group.used.0));
            let percent = group.used.0 as f64 * 100.0 / group.total.0.max(1) as f64;
            println_or_end(&format!("\n{},{}: Size:{total}, Used:{used} ({percent:.2}%)", group.kind, group.profile));
            for (devid, len) in &group.on_devices {
                let device = usage.devices.iter().find(|d| d.devid == *devid);
                let name = device.map_or_else(|| devid.to_string(), |d| d.path.display().to_string());
                println_or_end(&format!("   {name}\t{:>16}", self.bytes(len.0)));
            }
        }
        println_or_end("\nUnallocated:");
        for device in &usage.devices {
            let left = self.bytes(device.total.0.saturating_sub(device.allocated.0));
            println_or_end(&format!("   {}\t{left:>16}", device.path.display()));
        }
    }
}

/// A line of the first part: values end in one column, whatever is behind them.
fn overall(what: &str, value: &str, behind: &str) -> String {
    format!("    {:<32}{value:>16}{behind}", format!("{what}:"))
}

/// Whether groups of one type have different profiles, as an unfinished conversion leaves them.
fn has_several_profiles(groups: &[GroupUsed]) -> bool {
    groups.iter().any(|one| groups.iter().any(|other| one.kind == other.kind && one.profile != other.profile))
}

/// Bytes on devices that a group's chunks have.
fn raw(group: &GroupUsed) -> u64 {
    group.on_devices.iter().map(|(_, len)| len.0).sum()
}

impl Sums {
    fn of(usage: &Usage) -> Sums {
        let ratio = |wanted: &dyn Fn(&GroupUsed) -> bool| {
            let (on_disk, size) = usage
                .groups
                .iter()
                .filter(|g| wanted(g))
                .fold((0u64, 0u64), |sum, g| (sum.0 + raw(g), sum.1 + g.total.0));
            if size == 0 { 1.0 } else { on_disk as f64 / size as f64 }
        };
        let used = |g: &GroupUsed| {
            let copies = u128::from(raw(g)) * u128::from(g.used.0) / u128::from(g.total.0.max(1));
            u64::try_from(copies).unwrap_or(u64::MAX)
        };
        Sums {
            size: usage.devices.iter().map(|d| d.total.0).sum(),
            allocated: usage.devices.iter().map(|d| d.allocated.0).sum(),
            missing: usage.devices.iter().filter(|d| d.missing).map(|d| d.total.0).sum(),
            used: usage.groups.iter().map(used).sum(),
            data_ratio: ratio(&|g| g.kind.starts_with("Data")),
            metadata_ratio: ratio(&|g| g.kind.ends_with("Metadata")),
        }
    }
}

fn as_json(usage: &Usage, sums: &Sums) -> serde_json::Value {
    let groups = usage.groups.iter().map(|g| {
        let on: Vec<_> =
            g.on_devices.iter().map(|(id, len)| serde_json::json!({ "devid": id, "bytes": len })).collect();
        serde_json::json!({
            "type": g.kind, "profile": g.profile, "total": g.total, "used": g.used, "devices": on,
        })
    });
    let devices = usage.devices.iter().map(|d| {
        serde_json::json!({
            "devid": d.devid, "uuid": d.uuid.to_string(), "path": d.path.display().to_string(), "size": d.total,
            "allocated": d.allocated, "unallocated": d.total.0.saturating_sub(d.allocated.0), "missing": d.missing,
        })
    });
    serde_json::json!({
        "label": crate::out::text(&usage.label.0),
        "uuid": usage.fsid.to_string(),
        "device_size": sums.size,
        "device_allocated": sums.allocated,
        "device_unallocated": sums.size.saturating_sub(sums.allocated),
        "device_missing": sums.missing,
        "used": sums.used,
        "free_estimated": usage.data_free,
        "free_min": usage.data_free_min,
        "free_statfs": usage.statfs_free,
        "data_ratio": sums.data_ratio,
        "metadata_ratio": sums.metadata_ratio,
        "groups": groups.collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all values end in one column, also those with text behind them.
    #[test]
    fn values_stand_in_one_column() {
        let ends = |line: String| line.find("GiB").unwrap();
        let free = overall("Free (estimated)", "1.00GiB", "\t(min: 512.00MiB)");
        assert_eq!(ends(free), ends(overall("Used", "12.00GiB", "")));
    }
}
