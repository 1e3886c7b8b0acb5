//! `oleo subvolume find-new`

use std::ffi::OsString;

use oleo::control::{NewPart, Reply, Request};

use crate::args::DeviceArgs;
use crate::out::{json, misuse, println_or_end, text};
use crate::target::{self, Access, answer};

/// List the file extents that a subvolume gained in a generation or later
#[derive(clap::Args)]
#[command(override_usage = "oleo subvolume find-new [OPTIONS] [IMG] SUBVOL GENERATION")]
pub(crate) struct Args {
    /// An image and a subvolume in it (path or ID), or a subvolume on a mount; then the generation.
    #[arg(value_name = "[IMG] SUBVOL GENERATION", required = true, num_args = 1..=3)]
    args: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let (target, things) = target::split(&self.args, &self.others, Access::Read)?;
        let [subvol, since] = &things[..] else {
            return Err(misuse!("expected the arguments [IMG] SUBVOL GENERATION"));
        };
        let since: u64 = since.to_string_lossy().parse().map_err(|_| {
            misuse!(
                "{} is not a generation, which is a number such as the last line of find-new shows",
                since.display()
            )
        })?;
        let request = Request::FindNew { which: target.which(subvol)?, since };
        let (parts, marker) =
            answer!(target.ask_of(subvol, request)?, Reply::New { parts, marker } => (parts, marker))?;
        if self.json {
            let all: Vec<_> = parts.iter().map(as_json).collect();
            json(&serde_json::json!({ "extents": all, "transid_marker": marker }));
            return Ok(());
        }
        for part in &parts {
            println_or_end(&line(part));
        }
        println_or_end(&format!("transid marker was {marker}"));
        Ok(())
    }
}

fn flags(part: &NewPart) -> String {
    let e = &part.extent;
    let all = [(e.compressed, "COMPRESS"), (e.prealloc, "PREALLOC"), (e.inline, "INLINE")];
    let set: Vec<&str> = all.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if set.is_empty() { "NONE".into() } else { set.join("|") }
}

fn line(part: &NewPart) -> String {
    let e = &part.extent;
    let (ino, at, len, disk, offset, generation) = (e.ino, e.at, e.len, e.disk, e.offset, e.generation);
    let (flags, path) = (flags(part), text(&part.path.0));
    format!(
        "inode {ino} file offset {at} len {len} disk start {disk} offset {offset} gen {generation} flags {flags} {path}"
    )
}

fn as_json(part: &NewPart) -> serde_json::Value {
    let e = &part.extent;
    serde_json::json!({
        "inode": e.ino, "file_offset": e.at, "len": e.len, "disk_start": e.disk, "offset": e.offset,
        "generation": e.generation, "flags": flags(part), "path": text(&part.path.0),
    })
}
