//! `oleo subvolume delete`

use std::ffi::OsString;

use oleo::TreeId;
use oleo::control::{Request, SubvolRef};

use crate::args::DeviceArgs;
use crate::out::{Out, misuse};
use crate::target::{self, Access};

/// Delete subvolumes with everything in them
#[derive(clap::Args)]
pub(crate) struct Args {
    /// An image and subvolumes in it (paths or numbers), or subvolumes on a mount.
    #[arg(value_name = "[IMG] SUBVOL", required = true)]
    subvols: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Make the deletion durable before the command ends; on an image it is anyway.
    #[arg(long, short = 'c')]
    commit_after: bool,
    /// Make each deletion durable before the next.
    #[arg(long, short = 'C', conflicts_with = "commit_after")]
    commit_each: bool,
    /// Delete the subvolume of this number.
    #[arg(long, short = 'i', value_name = "ID")]
    subvolid: Option<u64>,
    /// Delete subvolumes inside them too.
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
                return Err(misuse!("either a number or paths"));
            }
            doomed.push((OsString::from(id.to_string()), SubvolRef::Id(TreeId(id))));
        }
        for subvol in subvols {
            let which = target.which(&subvol)?;
            doomed.push((subvol, which));
        }
        if doomed.is_empty() {
            return Err(misuse!("which subvolume shall go?"));
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
