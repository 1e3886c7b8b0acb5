//! `oleo subvolume delete`

use std::ffi::OsString;

use oleo::TreeId;
use oleo::control::{Request, SubvolRef};

use crate::args::DeviceArgs;
use crate::out::{Out, misuse};
use crate::target::{self, Access};

/// Delete subvolumes and their contents
#[derive(clap::Args)]
#[command(override_usage = "oleo subvolume delete [OPTIONS] [IMG] SUBVOL...\n       \
    oleo subvolume delete [OPTIONS] --subvolid ID IMG|PATH")]
pub(crate) struct Args {
    /// An image and subvolumes in it (paths or IDs), or subvolumes on a mount.
    #[arg(value_name = "[IMG] SUBVOL", required = true)]
    subvols: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Make the deletions durable before the command returns; always so on an image.
    #[arg(long, short = 'c')]
    commit_after: bool,
    /// Make each deletion durable before the next.
    #[arg(long, short = 'C', conflicts_with = "commit_after")]
    commit_each: bool,
    /// Delete the subvolume with this ID.
    #[arg(long, short = 'i', value_name = "ID")]
    subvolid: Option<u64>,
    /// Delete nested subvolumes too.
    #[arg(long, short = 'R')]
    recursive: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let (target, mut subvols) = target::split(&self.subvols, &self.others, Access::Write)?;
        let mut doomed = Vec::new();
        if let Some(id) = self.subvolid {
            // The path only tells which file system is meant.
            if target.is_mount() {
                subvols.clear();
            }
            if !subvols.is_empty() {
                return Err(misuse!("--subvolid cannot be combined with paths of subvolumes"));
            }
            doomed.push((OsString::from(id.to_string()), SubvolRef::Id(TreeId(id))));
        }
        for subvol in subvols {
            let which = target.which(&subvol)?;
            doomed.push((subvol, which));
        }
        if doomed.is_empty() {
            return Err(misuse!("missing argument SUBVOL"));
        }
        let mut gone = Vec::new();
        for (name, which) in doomed {
            target.ask_of(&name, Request::SubvolDelete { which, recursive: self.recursive })?;
            if self.commit_each {
                target.ask(Request::Sync)?;
            }
            gone.push(name);
        }
        if self.commit_after {
            target.ask(Request::Sync)?;
        }
        target.clean()?;
        target.close()?;
        for name in gone {
            out.note(format!("{}: deleted", name.display()));
        }
        Ok(())
    }
}
