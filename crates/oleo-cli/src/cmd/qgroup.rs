//! `oleo qgroup`

mod show;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use oleo::control::{NewLimit, QuotaChange, Request, WhichGroup};
use oleo::fs::Ino;

use crate::args::{DeviceArgs, qgroup, size, subvol_ref};
use crate::out::{Out, misuse};
use crate::target::{self, Access, Target};

/// Manage quota groups
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Show(show::Args),
    /// Create a quota group of level 1 or higher
    Create(One),
    /// Destroy a quota group that has no members
    Destroy(One),
    /// Add a quota group to another one of a higher level
    Assign(Pair),
    /// Remove a quota group from another one
    Remove(Pair),
    Limit(Limit),
    ClearStale(ClearStale),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Show(args) => args.run(),
            Command::Create(args) => args.change(out, QuotaChange::Create { id: args.id }, "created"),
            Command::Destroy(args) => args.change(out, QuotaChange::Destroy { id: args.id }, "destroyed"),
            Command::Assign(args) => {
                let rescan = !args.no_rescan;
                args.change(out, |member, parent| QuotaChange::Assign { member, parent, rescan }, "is in")
            }
            Command::Remove(args) => {
                let rescan = !args.no_rescan;
                args.change(out, |member, parent| QuotaChange::Remove { member, parent, rescan }, "is not in")
            }
            Command::Limit(args) => args.run(out),
            Command::ClearStale(args) => args.run(out),
        }
    }
}

// The variants of the command describe what it does with the group.
#[derive(clap::Args)]
pub(crate) struct One {
    /// Quota group: LEVEL/NUMBER.
    #[arg(value_name = "QGROUP", value_parser = qgroup)]
    id: u64,
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
}

// The variants of the command describe what it does with the groups.
#[derive(clap::Args)]
pub(crate) struct Pair {
    /// Quota group that is the member: LEVEL/NUMBER, or the path of a subvolume, whose group it is.
    #[arg(value_name = "MEMBER|SUBVOL")]
    member: OsString,
    /// Quota group that it is a member of: LEVEL/NUMBER.
    #[arg(value_name = "PARENT", value_parser = qgroup)]
    parent: u64,
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Rescan if the new numbers do not follow from the old ones (the default).
    #[arg(long)]
    rescan: bool,
    /// Mark the numbers as inconsistent instead of a rescan.
    #[arg(long, conflicts_with = "rescan")]
    no_rescan: bool,
}

/// Limit the space of a quota group
#[derive(clap::Args)]
#[command(override_usage = "oleo qgroup limit [OPTIONS] SIZE|none QGROUP IMG|PATH\n       \
    oleo qgroup limit [OPTIONS] SIZE|none SUBVOL")]
pub(crate) struct Limit {
    /// Limit in bytes (suffixes K, M, G, T), or "none".
    #[arg(value_name = "SIZE|none")]
    limit: String,
    /// Quota group (LEVEL/NUMBER) and an image file, block device or any path on a mount; or a subvolume on a mount.
    #[arg(value_name = "[QGROUP] IMG|PATH", required = true, num_args = 1..=2)]
    of: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Limit exclusive instead of referenced bytes.
    #[arg(short = 'e')]
    exclusive: bool,
    /// Count bytes after compression (the default).
    #[arg(short = 'c')]
    compressed: bool,
}

/// Delete quota groups whose subvolumes are deleted
#[derive(clap::Args)]
pub(crate) struct ClearStale {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
}

/// A group as people write it.
pub(crate) fn shown(id: u64) -> String {
    format!("{}/{}", id >> 48, id & ((1 << 48) - 1))
}

impl One {
    fn change(&self, out: &Out, change: QuotaChange, done: &str) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        target.ask_of(self.path.as_os_str(), Request::QuotaChange { change })?;
        target.close()?;
        out.note(format!("{}: {done}", shown(self.id)));
        Ok(())
    }
}

impl Pair {
    fn change(&self, out: &Out, change: impl FnOnce(u64, u64) -> QuotaChange, done: &str) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        let id = self.member_id(&target)?;
        target.ask_of(self.path.as_os_str(), Request::QuotaChange { change: change(id, self.parent) })?;
        target.close()?;
        out.note(format!("{}: {done} {} now", shown(id), shown(self.parent)));
        Ok(())
    }

    /// The group that is named, or that of the subvolume.
    fn member_id(&self, target: &Target) -> anyhow::Result<u64> {
        let text = self.member.to_str().unwrap_or_default();
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if text.split_once('/').is_some_and(|(level, number)| digits(level) && digits(number)) {
            return qgroup(text).map_err(|why| misuse!("{why}"));
        }
        match target {
            Target::Image { image, .. } => {
                let found = image.subvol(subvol_ref(&self.member)).with_context(|| text.to_owned())?;
                Ok(found.tree().0)
            }
            Target::Mount { .. } => {
                let found = target.at(&self.member)?;
                match found.ino == Ino::ROOT_DIR && found.path.0.is_empty() {
                    true => Ok(found.tree.0),
                    false => Err(misuse!("{} is neither a quota group nor a subvolume", self.member.display())),
                }
            }
        }
    }
}

impl Limit {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        let limit = match self.limit.as_str() {
            "none" => NewLimit::None,
            text => NewLimit::Bytes(size(text).map_err(|why| misuse!("{why}"))?),
        };
        let (path, named) = match &self.of[..] {
            [path] => (PathBuf::from(path), None),
            [id, path] => {
                let id = id.to_str().ok_or_else(|| misuse!("{} is not a quota group", id.display()))?;
                (PathBuf::from(path), Some(qgroup(id).map_err(|why| misuse!("{why}"))?))
            }
            _ => return Err(misuse!("missing argument QGROUP")),
        };
        let target = target::open(&path, &self.others, Access::Write, None)?;
        let group = match named {
            Some(id) => WhichGroup::Id(id),
            None if target.is_mount() => WhichGroup::Of(target.which(path.as_os_str())?),
            None => {
                return Err(misuse!(
                    "missing argument QGROUP: {} is an image (oleo qgroup limit SIZE 0/ID IMG)",
                    path.display()
                ));
            }
        };
        let (rfer, excl) = if self.exclusive { (NewLimit::Keep, limit) } else { (limit, NewLimit::Keep) };
        let change = QuotaChange::Limit { group, rfer, excl };
        target.ask_of(path.as_os_str(), Request::QuotaChange { change })?;
        target.close()?;
        out.note(format!("{}: the limit is {} now", path.display(), self.limit));
        Ok(())
    }
}

impl ClearStale {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        target.ask_of(self.path.as_os_str(), Request::QuotaChange { change: QuotaChange::ClearStale })?;
        target.close()?;
        out.note(format!("{}: no groups of deleted subvolumes are left", self.path.display()));
        Ok(())
    }
}
