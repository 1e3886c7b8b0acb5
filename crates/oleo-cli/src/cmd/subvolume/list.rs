//! `oleo subvolume list`

use std::path::PathBuf;

use oleo::TreeId;
use oleo::control::{Reply, Request, Subvol};

use crate::args::DeviceArgs;
use crate::out::{date, json, println_or_end, text, uuid_or_dash};
use crate::target::{self, Access};

/// List all subvolumes
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Only read-only ones.
    #[arg(long, short = 'r')]
    read_only: bool,
    /// Only snapshots; shows when they were made.
    #[arg(long, short = 's')]
    snapshots: bool,
    /// Only those directly inside the subvolume that the path is in.
    #[arg(long, short = 'o')]
    only_below: bool,
    /// Show the number of the subvolume that each is in.
    #[arg(long, short = 'p')]
    parent: bool,
    /// Show the generation at creation.
    #[arg(long, short = 'c')]
    created: bool,
    /// Show UUIDs too.
    #[arg(long, short = 'u')]
    uuid: bool,
    /// Show the UUID of what each was received from.
    #[arg(long, short = 'R')]
    received: bool,
    /// Show numbers of deleted ones that are not gone yet, instead.
    #[arg(long, short = 'd')]
    deleted: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        if self.deleted {
            return self.show_deleted(&target);
        }
        let mut list = match target.ask(Request::SubvolList)? {
            Reply::Subvols(list) => list,
            other => return target::unexpected(other),
        };
        let below = match self.only_below {
            true if target.is_mount() => Some(target.at(self.path.as_os_str())?.tree),
            true => Some(TreeId::FS),
            false => None,
        };
        list.retain(|info| {
            info.parent.is_some()
                && (!self.read_only || info.read_only)
                && (!self.snapshots || !info.parent_uuid.is_nil())
                && (below.is_none() || info.parent == below)
        });
        if self.json {
            json(&list.iter().map(super::as_json).collect());
        } else {
            list.iter().for_each(|info| self.show(info));
        }
        Ok(())
    }

    fn show_deleted(&self, target: &target::Target) -> anyhow::Result<()> {
        let ids = match target.ask(Request::SubvolPending { ids: Vec::new() })? {
            Reply::Subvolumes(ids) => ids,
            other => return target::unexpected(other),
        };
        if self.json {
            json(&ids.iter().map(|id| serde_json::json!({ "id": id.0 })).collect());
        } else {
            ids.iter().for_each(|id| println_or_end(&format!("ID {id} DELETED")));
        }
        Ok(())
    }

    fn show(&self, info: &Subvol) {
        let parent = info.parent.map_or(0, |id| id.0);
        let mut line = format!("ID {} gen {}", info.id, info.generation);
        if self.created || self.snapshots {
            line += &format!(" cgen {}", info.otransid);
        }
        if self.parent {
            line += &format!(" parent {parent}");
        }
        line += &format!(" top level {parent}");
        if self.snapshots {
            line += &format!(" otime {}", date(oleo::Time { sec: info.otime.0, nsec: info.otime.1 }));
        }
        if self.uuid {
            line += &format!(" parent_uuid {}", uuid_or_dash(info.parent_uuid));
        }
        if self.received {
            line += &format!(" received_uuid {}", uuid_or_dash(info.received_uuid));
        }
        if self.uuid {
            line += &format!(" uuid {}", uuid_or_dash(info.uuid));
        }
        println_or_end(&format!("{line} path {}", text(&info.path.0)));
    }
}
