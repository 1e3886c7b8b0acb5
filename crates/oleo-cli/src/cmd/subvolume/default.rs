//! `oleo subvolume set-default` and `get-default`

use std::ffi::OsString;
use std::path::PathBuf;

use oleo::TreeId;
use oleo::control::{Reply, Request, SubvolRef};

use crate::args::DeviceArgs;
use crate::out::{Out, json, misuse, println_or_end, text};
use crate::target::{self, Access, answer};

/// Set the subvolume that is mounted by default
#[derive(clap::Args)]
#[command(override_usage = "oleo subvolume set-default [OPTIONS] [IMG] SUBVOL\n       \
    oleo subvolume set-default [OPTIONS] ID PATH")]
pub(crate) struct Set {
    /// An image and a subvolume in it (path or ID; 5 is the top level); or a subvolume on a mount; or an ID and any path on the mount.
    #[arg(value_name = "[IMG] SUBVOL", required = true, num_args = 1..=2)]
    subvol: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
}

/// Show the subvolume that is mounted by default
#[derive(clap::Args)]
pub(crate) struct Get {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub fn run(mut self, out: &Out) -> anyhow::Result<()> {
        // A number in front of a path on a mount.
        let number = self.subvol[0].to_str().and_then(|text| text.parse().ok());
        if self.subvol.len() == 2 && number.is_some() && !std::path::Path::new(&self.subvol[0]).exists() {
            self.subvol.swap(0, 1);
        }
        let (target, mut subvol) = target::split(&self.subvol, &self.others, Access::Write)?;
        let Some(name) = subvol.pop() else { return Err(misuse!("missing argument SUBVOL")) };
        if target.is_mount() && !subvol.is_empty() && number.is_none() {
            return Err(misuse!("one SUBVOL is the default, and {} is on a mount", subvol[0].display()));
        }
        let which = match number.filter(|_| target.is_mount() && self.subvol.len() == 2) {
            Some(id) => SubvolRef::Id(TreeId(id)),
            None => target.which(&name)?,
        };
        let id = answer!(target.ask_of(&name, Request::SetDefault { which })?, Reply::Made(id) => id)?;
        target.close()?;
        out.note(format!("{}: the default is subvolume {id} now", name.display()));
        Ok(())
    }
}

impl Get {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        let info = answer!(target.ask(Request::GetDefault)?, Reply::Subvol(shown) => shown.subvol)?;
        if self.json {
            json(&super::as_json(&info));
        } else if info.id == TreeId::FS {
            println_or_end("ID 5 (FS_TREE)");
        } else {
            let parent = info.parent.map_or(0, |id| id.0);
            let (id, path) = (info.id, text(&info.path.0));
            println_or_end(&format!("ID {id} gen {} top level {parent} path {path}", info.generation));
        }
        Ok(())
    }
}
