//! `oleo subvolume create`

use std::ffi::OsString;

use oleo::control::{Reply, Request};

use crate::args::DeviceArgs;
use crate::out::{Out, misuse};
use crate::target::{self, Access, answer};

/// Make empty subvolumes
#[derive(clap::Args)]
#[command(override_usage = "oleo subvolume create [OPTIONS] [IMG] PATH...")]
pub(crate) struct Args {
    /// An image and new paths in it, or new paths on a mount.
    #[arg(value_name = "[IMG] PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Make missing parent directories too.
    #[arg(long, short)]
    parents: bool,
    /// Add the subvolume to this quota group (LEVEL/NUMBER); repeat it for each.
    #[arg(short = 'i', value_name = "QGROUP", value_parser = crate::args::qgroup)]
    inherit: Vec<u64>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let (target, paths) = target::split(&self.paths, &self.others, Access::Write)?;
        if paths.is_empty() {
            return Err(misuse!("missing argument PATH"));
        }
        let mut made = Vec::new();
        for path in &paths {
            if self.parents
                && target.is_mount()
                && let Some(parent) = std::path::Path::new(path).parent()
            {
                std::fs::create_dir_all(parent)?;
            }
            let at = target.new_at(path)?;
            let request = Request::SubvolCreate { at, parents: self.parents, groups: self.inherit.clone() };
            made.push((path, answer!(target.ask_of(path, request)?, Reply::Made(id) => id)?));
        }
        target.close()?;
        for (path, id) in made {
            out.note(format!("{}: subvolume {id}", path.display()));
        }
        Ok(())
    }
}
