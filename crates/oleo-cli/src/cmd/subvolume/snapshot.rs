//! `oleo subvolume snapshot`

use std::ffi::{OsStr, OsString};
use std::path::Path;

use oleo::control::{Reply, Request};

use crate::args::DeviceArgs;
use crate::out::{Out, misuse};
use crate::target::{self, Access, answer};

/// Make a snapshot of a subvolume
#[derive(clap::Args)]
#[command(override_usage = "oleo subvolume snapshot [OPTIONS] [IMG] SOURCE PATH")]
pub(crate) struct Args {
    /// An image, a subvolume in it (path or ID) and the new path; or a subvolume on a mount and the new path.
    #[arg(value_name = "[IMG] SOURCE PATH", required = true, num_args = 1..=3)]
    paths: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Make the snapshot read-only.
    #[arg(long, short = 'r')]
    read_only: bool,
    /// Add the snapshot to this quota group (LEVEL/NUMBER); repeat it for each.
    #[arg(short = 'i', value_name = "QGROUP", value_parser = crate::args::qgroup)]
    inherit: Vec<u64>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let (target, paths) = target::split(&self.paths, &self.others, Access::Write)?;
        let [source, path] = &paths[..] else { return Err(misuse!("expected the arguments [IMG] SOURCE PATH")) };
        // A directory that is there: into it, under the source's name.
        let name = Path::new(source).file_name().unwrap_or(OsStr::new(""));
        let inside = target.is_mount() && Path::new(path).is_dir();
        let path = if inside { Path::new(path).join(name).into_os_string() } else { path.clone() };
        let (source_of, at) = (target.which(source)?, target.new_at(&path)?);
        let request = Request::Snapshot {
            source: source_of,
            at,
            read_only: self.read_only,
            into: !target.is_mount(),
            groups: self.inherit,
        };
        let id = answer!(target.ask_of(&path, request)?, Reply::Made(id) => id)?;
        target.close()?;
        out.note(format!("{}: subvolume {id}, a snapshot of {}", path.display(), source.display()));
        Ok(())
    }
}
