//! `oleo qgroup show`

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::PathBuf;

use oleo::control::{QgroupShown, Reply, Request};

use super::shown;
use crate::args::DeviceArgs;
use crate::out::{human, json, misuse, println_or_end, text};
use crate::target::{self, Access};

/// List quota groups with their usage and limits
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Show the parents of each group.
    #[arg(short = 'p')]
    parents: bool,
    /// Show the members of each group.
    #[arg(short = 'c')]
    children: bool,
    /// Show limits of referenced bytes.
    #[arg(short = 'r')]
    max_rfer: bool,
    /// Show limits of exclusive bytes.
    #[arg(short = 'e')]
    max_excl: bool,
    /// Only groups that count the subvolume of the path, including those of higher levels.
    #[arg(short = 'F')]
    impacting: bool,
    /// Only the group of the subvolume of the path.
    #[arg(short = 'f')]
    only: bool,
    /// Numbers in bytes.
    #[arg(long)]
    raw: bool,
    /// Numbers with units of 1024 (the default).
    #[arg(long, alias = "iec")]
    human_readable: bool,
    /// Numbers with units of 1000.
    #[arg(long)]
    si: bool,
    /// Numbers in KiB, or kB with --si.
    #[arg(long)]
    kbytes: bool,
    /// Numbers in MiB, or MB with --si.
    #[arg(long)]
    mbytes: bool,
    /// Numbers in GiB, or GB with --si.
    #[arg(long)]
    gbytes: bool,
    /// Numbers in TiB, or TB with --si.
    #[arg(long)]
    tbytes: bool,
    /// Sort by these keys, separated by commas: qgroupid, rfer, excl, max_rfer, max_excl, path; with a leading - in descending order.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Commit first.
    #[arg(long)]
    sync: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        if self.sync && target.is_mount() {
            target.ask(Request::Sync)?;
        }
        let quota = match target.ask_of(self.path.as_os_str(), Request::Quota)? {
            Reply::Quota(Some(quota)) => quota,
            Reply::Quota(None) => anyhow::bail!("{}: quota is off", self.path.display()),
            other => return target::unexpected(other),
        };
        if quota.rescan {
            eprintln!("WARNING: the groups are being counted; numbers are not complete");
        } else if quota.inconsistent {
            eprintln!("WARNING: the numbers are known to be wrong; `oleo quota rescan` counts anew");
        }
        let mut groups = quota.groups;
        if self.only || self.impacting {
            let tree = if target.is_mount() { target.at(self.path.as_os_str())?.tree } else { oleo::TreeId::FS };
            let keep = self.wanted(&groups, tree.0);
            groups.retain(|group| keep.contains(&group.id));
        }
        sort(&mut groups, self.sort.as_deref().unwrap_or("qgroupid"))?;
        if self.json {
            json(&groups.iter().map(as_json).collect());
            return Ok(());
        }
        self.table(&groups);
        Ok(())
    }

    /// The group of a subvolume, and those above it if they are wanted.
    fn wanted(&self, groups: &[QgroupShown], tree: u64) -> BTreeSet<u64> {
        let mut keep = BTreeSet::new();
        let mut todo = vec![tree];
        while let Some(id) = todo.pop() {
            if keep.insert(id) && self.impacting {
                todo.extend(groups.iter().filter(|g| g.id == id).flat_map(|g| &g.parents));
            }
        }
        keep
    }

    fn size(&self, bytes: u64) -> String {
        let base: u64 = if self.si { 1000 } else { 1024 };
        let units = if self.si { ["kB", "MB", "GB", "TB"] } else { ["KiB", "MiB", "GiB", "TiB"] };
        let fixed = [self.kbytes, self.mbytes, self.gbytes, self.tbytes].into_iter().position(|wanted| wanted);
        let scaled = |n: usize| {
            let unit = base.pow(n as u32 + 1);
            let hundredths = u128::from(bytes) * 100 / u128::from(unit);
            format!("{}.{:02}{}", hundredths / 100, hundredths % 100, units[n])
        };
        match fixed {
            _ if self.raw => bytes.to_string(),
            Some(n) => scaled(n),
            None if self.si => match (0..4).rev().find(|n| bytes >= base.pow(*n as u32 + 1)) {
                Some(n) => scaled(n),
                None => format!("{bytes}.00B"),
            },
            None => human(bytes),
        }
    }

    fn table(&self, groups: &[QgroupShown]) {
        let limit = |limit: Option<u64>| limit.map_or("none".into(), |bytes| self.size(bytes));
        let list = |ids: &[u64]| match ids {
            [] => "-".to_owned(),
            ids => ids.iter().map(|id| shown(*id)).collect::<Vec<_>>().join(","),
        };
        let mut columns: Vec<(&str, bool, Vec<String>)> = vec![
            ("Qgroupid", false, groups.iter().map(|g| shown(g.id)).collect()),
            ("Referenced", true, groups.iter().map(|g| self.size(g.rfer)).collect()),
            ("Exclusive", true, groups.iter().map(|g| self.size(g.excl)).collect()),
        ];
        if self.max_rfer {
            columns.push(("Max referenced", true, groups.iter().map(|g| limit(g.max_rfer)).collect()));
        }
        if self.max_excl {
            columns.push(("Max exclusive", true, groups.iter().map(|g| limit(g.max_excl)).collect()));
        }
        if self.parents {
            columns.push(("Parent", false, groups.iter().map(|g| list(&g.parents)).collect()));
        }
        if self.children {
            columns.push(("Child", false, groups.iter().map(|g| list(&g.children)).collect()));
        }
        columns.push(("Path", false, groups.iter().map(path).collect()));
        let widths: Vec<usize> = columns
            .iter()
            .map(|(name, _, cells)| cells.iter().map(|c| c.chars().count()).fold(name.len(), usize::max))
            .collect();
        let line = |cells: &mut dyn Iterator<Item = (&str, bool)>| {
            let padded: Vec<String> = cells
                .zip(&widths)
                .map(|((cell, right), &w)| if right { format!("{cell:>w$}") } else { format!("{cell:<w$}") })
                .collect();
            println_or_end(padded.join("   ").trim_end());
        };
        line(&mut columns.iter().map(|(name, right, _)| (*name, *right)));
        let dashes: Vec<String> = columns.iter().map(|(name, ..)| "-".repeat(name.len())).collect();
        line(&mut dashes.iter().zip(&columns).map(|(dash, (_, right, _))| (dash.as_str(), *right)));
        for row in 0..groups.len() {
            line(&mut columns.iter().map(|(_, right, cells)| (cells[row].as_str(), *right)));
        }
    }
}

fn path(group: &QgroupShown) -> String {
    match &group.path {
        Some(path) if path.0.is_empty() => "<toplevel>".into(),
        Some(path) => text(&path.0),
        None if group.id >> 48 == 0 => "<stale>".into(),
        None => {
            let count = group.children.len();
            format!("<{count} member qgroup{}>", if count == 1 { "" } else { "s" })
        }
    }
}

fn sort(groups: &mut [QgroupShown], by: &str) -> anyhow::Result<()> {
    type Compare = fn(&QgroupShown, &QgroupShown) -> Ordering;
    let mut keys: Vec<(Compare, bool)> = Vec::new();
    for word in by.split(',') {
        let (name, down) = match word.strip_prefix('-') {
            Some(name) => (name, true),
            None => (word.strip_prefix('+').unwrap_or(word), false),
        };
        let compare: Compare = match name {
            "qgroupid" => |a, b| a.id.cmp(&b.id),
            "rfer" => |a, b| a.rfer.cmp(&b.rfer),
            "excl" => |a, b| a.excl.cmp(&b.excl),
            "max_rfer" => |a, b| a.max_rfer.cmp(&b.max_rfer),
            "max_excl" => |a, b| a.max_excl.cmp(&b.max_excl),
            "path" => |a, b| path(a).cmp(&path(b)),
            _ => {
                return Err(misuse!("{name} is not a sort key: use qgroupid, rfer, excl, max_rfer, max_excl or path"));
            }
        };
        keys.push((compare, down));
    }
    groups.sort_by(|a, b| {
        let order = |(compare, down): &(Compare, bool)| if *down { compare(b, a) } else { compare(a, b) };
        keys.iter().map(order).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    });
    Ok(())
}

fn as_json(group: &QgroupShown) -> serde_json::Value {
    let ids = |ids: &[u64]| ids.iter().map(|id| shown(*id)).collect::<Vec<_>>();
    serde_json::json!({
        "qgroupid": shown(group.id),
        "referenced": group.rfer,
        "exclusive": group.excl,
        "max_referenced": group.max_rfer,
        "max_exclusive": group.max_excl,
        "parents": ids(&group.parents),
        "children": ids(&group.children),
        "path": group.path.as_ref().map(|path| text(&path.0)),
    })
}
