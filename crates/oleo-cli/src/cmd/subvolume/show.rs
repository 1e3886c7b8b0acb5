//! `oleo subvolume show`

use std::ffi::OsString;

use oleo::TreeId;
use oleo::control::{QgroupShown, Reply, Request, SubvolRef};

use crate::args::{DeviceArgs, UnitArgs};
use crate::cmd::qgroup;
use crate::out::{date, json, misuse, println_or_end, text, uuid_or_dash};
use crate::target::{self, Access, answer};

/// Show details of a subvolume
#[derive(clap::Args)]
#[command(
    override_usage = "oleo subvolume show [OPTIONS] IMG [SUBVOL]\n       \
    oleo subvolume show [OPTIONS] SUBVOL",
    disable_help_flag = true
)]
pub(crate) struct Args {
    /// An image and a subvolume in it (path or ID; by default the top level), or a subvolume on a mount.
    #[arg(value_name = "[IMG] SUBVOL", required = true, num_args = 1..=2)]
    subvol: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Show the subvolume with this ID.
    #[arg(long, short = 'r', value_name = "ID")]
    rootid: Option<u64>,
    #[command(flatten)]
    unit: UnitArgs,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let (target, subvol) = target::split(&self.subvol, &self.others, Access::Read)?;
        let most = if self.rootid.is_some() { 0 } else { 1 };
        if target.is_mount() && subvol.len() > 1 {
            return Err(misuse!("one SUBVOL is shown at a time, and {} is on a mount", self.subvol[0].display()));
        }
        if !target.is_mount() && subvol.len() > most {
            return Err(misuse!("--rootid says which subvolume; {} is one argument too many", subvol[0].display()));
        }
        let which = match (self.rootid, subvol.first()) {
            (Some(id), _) => SubvolRef::Id(TreeId(id)),
            (None, Some(subvol)) => target.which(subvol)?,
            (None, None) => SubvolRef::Id(TreeId::FS),
        };
        let name = subvol.first().unwrap_or(&self.subvol[0]);
        let shown = answer!(target.ask_of(name, Request::SubvolShow { which })?, Reply::Subvol(shown) => shown)?;
        let info = &shown.subvol;
        if self.json {
            json(&super::as_json(info));
            return Ok(());
        }
        let path = text(&info.path.0);
        let name = if info.parent.is_some() { text(&info.name.0) } else { "<FS_TREE>".into() };
        println_or_end(if path.is_empty() { "/" } else { &path });
        let time = |(sec, nsec): (i64, u32)| match sec {
            0 => "-".to_owned(),
            _ => format!("{} +0000", date(oleo::fs::Time { sec, nsec })),
        };
        for (what, value) in [
            ("Name", name),
            ("UUID", uuid_or_dash(info.uuid)),
            ("Parent UUID", uuid_or_dash(info.parent_uuid)),
            ("Received UUID", uuid_or_dash(info.received_uuid)),
            ("Creation time", time(info.otime)),
            ("Subvolume ID", info.id.to_string()),
            ("Generation", info.generation.to_string()),
            ("Gen at creation", info.otransid.to_string()),
            ("Parent ID", info.parent.map_or(0, |id| id.0).to_string()),
            ("Top level ID", info.parent.map_or(0, |id| id.0).to_string()),
            ("Flags", if info.read_only { "readonly".into() } else { "-".into() }),
            ("Send transid", info.stransid.to_string()),
            ("Send time", time(info.stime)),
            ("Receive transid", info.rtransid.to_string()),
            ("Receive time", time(info.rtime)),
        ] {
            println_or_end(&format!("\t{:<24}{value}", format!("{what}:")));
        }
        println_or_end("\tSnapshot(s):");
        for path in &shown.snapshots {
            println_or_end(&format!("\t\t\t\t{}", text(&path.0)));
        }
        // Other users of a mount may not ask for quota groups.
        let group = match target.ask(Request::Quota) {
            Ok(Reply::Quota(Some(quota))) => quota.groups.into_iter().find(|group| group.id == info.id.0),
            _ => None,
        };
        self.quota(group.as_ref());
        Ok(())
    }

    fn quota(&self, group: Option<&QgroupShown>) {
        let line = |what: &str, value: &str| println_or_end(&format!("\t{what:<24}{value}"));
        let Some(group) = group else { return line("Quota group:", "n/a") };
        let limit = |limit: Option<u64>| limit.map_or("-".into(), |bytes| self.unit.show(bytes));
        line("Quota group:", &qgroup::shown(group.id));
        line("  Limit referenced:", &limit(group.max_rfer));
        line("  Limit exclusive:", &limit(group.max_excl));
        line("  Usage referenced:", &self.unit.show(group.rfer));
        line("  Usage exclusive:", &self.unit.show(group.excl));
    }
}
