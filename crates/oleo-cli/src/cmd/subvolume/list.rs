//! `oleo subvolume list`

use std::path::PathBuf;

use oleo::TreeId;
use oleo::control::{Reply, Request, SizeLine, Subvol};

use crate::args::DeviceArgs;
use crate::out::{date, human, json, println_or_end, text, uuid_or_dash};
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
    /// Show what each takes: referenced and exclusive bytes, and what it shares with the one before and the one after it (by
    /// number).
    #[arg(long, conflicts_with = "deleted")]
    sizes: bool,
    /// Numbers in bytes.
    #[arg(long, requires = "sizes")]
    raw: bool,
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
        let sizes = match self.sizes {
            true => match target.ask(Request::SubvolSizes)? {
                Reply::Sizes(sizes) => sizes,
                other => return target::unexpected(other),
            },
            false => Vec::new(),
        };
        let size_of = |id: TreeId| sizes.iter().find(|size| size.id == id);
        if self.json {
            let lines = list.iter().map(|info| {
                let mut line = super::as_json(info);
                if let Some(size) = size_of(info.id) {
                    line["referenced"] = size.rfer.into();
                    line["exclusive"] = size.excl.into();
                    line["shared_with_previous"] = size.with_previous.into();
                    line["shared_with_next"] = size.with_next.into();
                }
                line
            });
            json(&lines.collect());
        } else {
            list.iter().for_each(|info| self.show(info, size_of(info.id)));
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

    fn show(&self, info: &Subvol, size: Option<&SizeLine>) {
        let parent = info.parent.map_or(0, |id| id.0);
        let mut line = format!("ID {} gen {}", info.id, info.generation);
        if self.created || self.snapshots {
            line += &format!(" cgen {}", info.otransid);
        }
        if self.parent {
            line += &format!(" parent {parent}");
        }
        line += &format!(" top level {parent}");
        if let Some(size) = size {
            let bytes = |n: u64| if self.raw { n.to_string() } else { human(n) };
            let (rfer, excl) = (bytes(size.rfer), bytes(size.excl));
            let (previous, next) = (bytes(size.with_previous), bytes(size.with_next));
            line += &format!(" rfer {rfer} excl {excl} with previous {previous} with next {next}");
        }
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
