//! `oleo subvolume list`

use std::path::PathBuf;

use oleo::TreeId;
use oleo::control::{Reply, Request, SizeLine, Subvol};

use crate::args::DeviceArgs;
use crate::out::{date, human, json, println_or_end, text, uuid_or_dash};
use crate::target::{self, Access, answer};

/// List subvolumes
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Only read-only subvolumes.
    #[arg(long, short = 'r')]
    read_only: bool,
    /// Only snapshots, with the time of their creation.
    #[arg(long, short = 's')]
    snapshots: bool,
    /// Only children of the subvolume that the path is in.
    #[arg(long, short = 'o')]
    only_below: bool,
    /// Show the parent's ID.
    #[arg(long, short = 'p')]
    parent: bool,
    /// Show the generation at creation.
    #[arg(long, short = 'c')]
    created: bool,
    /// Show UUIDs too.
    #[arg(long, short = 'u')]
    uuid: bool,
    /// Show the UUID of the subvolume that each was received from.
    #[arg(long, short = 'R')]
    received: bool,
    /// Show instead the IDs of deleted subvolumes that are not removed completely yet.
    #[arg(long, short = 'd')]
    deleted: bool,
    /// Show all subvolumes (the default).
    #[arg(long, short = 'a')]
    all: bool,
    /// Show the generation (the default).
    #[arg(short = 'g')]
    generation: bool,
    /// Only subvolumes with this generation; +N: at least N; -N: at most N.
    #[arg(long = "gen", short = 'G', value_name = "[+|-]N", allow_hyphen_values = true, value_parser = bound)]
    of_generation: Option<Bound>,
    /// The same for the generation at creation.
    #[arg(long, short = 'C', value_name = "[+|-]N", allow_hyphen_values = true, value_parser = bound)]
    ogen: Option<Bound>,
    /// Show a table.
    #[arg(long, short = 't')]
    table: bool,
    /// Sort by these keys, separated by commas: rootid, gen, ogen, path; with a leading - in descending order.
    #[arg(long, value_name = "KEYS", allow_hyphen_values = true, value_delimiter = ',', value_parser = order)]
    sort: Vec<Order>,
    /// Show the referenced and exclusive bytes of each subvolume, and the bytes it shares with the one before and after it (by ID).
    #[arg(long, conflicts_with = "deleted")]
    sizes: bool,
    /// Show sizes in bytes.
    #[arg(long, requires = "sizes")]
    raw: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// A generation to be reached, met or not exceeded.
#[derive(Clone, Copy)]
enum Bound {
    Least(u64),
    Just(u64),
    Most(u64),
}

impl Bound {
    fn holds(self, n: u64) -> bool {
        match self {
            Bound::Least(least) => n >= least,
            Bound::Just(just) => n == just,
            Bound::Most(most) => n <= most,
        }
    }
}

fn bound(text: &str) -> Result<Bound, String> {
    let (make, digits): (fn(u64) -> Bound, _) = match text.split_at_checked(1) {
        Some(("+", digits)) => (Bound::Least, digits),
        Some(("-", digits)) => (Bound::Most, digits),
        _ => (Bound::Just, text),
    };
    digits.parse().map(make).map_err(|_| format!("{text} is not a generation, optionally with a leading + or -"))
}

/// What subvolumes are sorted by.
#[derive(Clone, Copy)]
struct Order {
    key: SortKey,
    falling: bool,
}

#[derive(Clone, Copy)]
enum SortKey {
    Id,
    Generation,
    Created,
    Path,
}

impl Order {
    fn compare(self, a: &Subvol, b: &Subvol) -> std::cmp::Ordering {
        let order = match self.key {
            SortKey::Id => a.id.cmp(&b.id),
            SortKey::Generation => a.generation.cmp(&b.generation),
            SortKey::Created => a.otransid.cmp(&b.otransid),
            SortKey::Path => a.path.0.cmp(&b.path.0),
        };
        if self.falling { order.reverse() } else { order }
    }
}

fn order(text: &str) -> Result<Order, String> {
    let (falling, name) = match text.split_at_checked(1) {
        Some(("-", name)) => (true, name),
        Some(("+", name)) => (false, name),
        _ => (false, text),
    };
    let key = match name {
        "rootid" => SortKey::Id,
        "gen" => SortKey::Generation,
        "ogen" => SortKey::Created,
        "path" => SortKey::Path,
        _ => return Err(format!("{name} is not a sort key: use rootid, gen, ogen or path")),
    };
    Ok(Order { key, falling })
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        if self.deleted {
            return self.show_deleted(&target);
        }
        let mut list = answer!(target.ask(Request::SubvolList)?, Reply::Subvols(list) => list)?;
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
                && self.of_generation.is_none_or(|bound| bound.holds(info.generation))
                && self.ogen.is_none_or(|bound| bound.holds(info.otransid))
        });
        list.sort_by(|a, b| {
            let each = self.sort.iter().map(|order| order.compare(a, b));
            each.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        });
        let sizes = match self.sizes {
            true => answer!(target.ask(Request::SubvolSizes)?, Reply::Sizes(sizes) => sizes)?,
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
            for (i, info) in list.iter().enumerate() {
                let columns = self.columns(info, size_of(info.id));
                if self.table && i == 0 {
                    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
                    let lines: Vec<String> = titles.iter().map(|title| "-".repeat(title.len())).collect();
                    println_or_end(&titles.join("\t"));
                    println_or_end(&lines.join("\t"));
                }
                let words = columns.iter().map(|(title, value)| match self.table {
                    true => value.clone(),
                    false => format!("{title} {value}"),
                });
                println_or_end(&words.collect::<Vec<_>>().join(if self.table { "\t" } else { " " }));
            }
        }
        Ok(())
    }

    fn show_deleted(&self, target: &target::Target) -> anyhow::Result<()> {
        let ids = answer!(target.ask(Request::SubvolPending { ids: Vec::new() })?, Reply::Subvolumes(ids) => ids)?;
        if self.json {
            json(&ids.iter().map(|id| serde_json::json!({ "id": id.0 })).collect());
        } else {
            ids.iter().for_each(|id| println_or_end(&format!("ID {id} DELETED")));
        }
        Ok(())
    }

    /// What is shown of one: titles and values.
    fn columns(&self, info: &Subvol, size: Option<&SizeLine>) -> Vec<(&'static str, String)> {
        let parent = info.parent.map_or(0, |id| id.0).to_string();
        let mut columns = vec![("ID", info.id.to_string()), ("gen", info.generation.to_string())];
        if self.created || self.snapshots {
            columns.push(("cgen", info.otransid.to_string()));
        }
        if self.parent {
            columns.push(("parent", parent.clone()));
        }
        columns.push(("top level", parent));
        if let Some(size) = size {
            let bytes = |n: u64| if self.raw { n.to_string() } else { human(n) };
            columns.push(("rfer", bytes(size.rfer)));
            columns.push(("excl", bytes(size.excl)));
            columns.push(("with previous", bytes(size.with_previous)));
            columns.push(("with next", bytes(size.with_next)));
        }
        if self.snapshots {
            columns.push(("otime", date(oleo::fs::Time { sec: info.otime.0, nsec: info.otime.1 })));
        }
        if self.uuid {
            columns.push(("parent_uuid", uuid_or_dash(info.parent_uuid)));
        }
        if self.received {
            columns.push(("received_uuid", uuid_or_dash(info.received_uuid)));
        }
        if self.uuid {
            columns.push(("uuid", uuid_or_dash(info.uuid)));
        }
        columns.push(("path", text(&info.path.0)));
        columns
    }
}
