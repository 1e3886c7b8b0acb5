//! `oleo inspect inode-resolve`, `logical-resolve`, `subvolid-resolve`, `rootid`: from numbers to names, and back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use oleo::TreeId;
use oleo::control::{Bytes, Reply, Request};

use crate::args::{DeviceArgs, SubvolArg};
use crate::out::{json, misuse, println_or_end, text};
use crate::target::{self, Access, Target, answer};

/// Show the paths of an inode
#[derive(clap::Args)]
pub(crate) struct Inode {
    /// Its number.
    #[arg(value_name = "INODE")]
    inode: u64,
    /// Image file or block device; or a path on a mount, in the subvolume that the inode is in.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// Show the files that use a logical address
#[derive(clap::Args)]
pub(crate) struct Logical {
    /// Logical address in bytes.
    #[arg(value_name = "LOGICAL")]
    logical: u64,
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Show inode numbers and subvolume IDs instead of paths.
    #[arg(long, short = 'P')]
    no_paths: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// Show the path of a subvolume
#[derive(clap::Args)]
pub(crate) struct Subvolid {
    /// Its number.
    #[arg(value_name = "ID")]
    id: u64,
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
}

/// Show the ID of the subvolume that contains a path
#[derive(clap::Args)]
pub(crate) struct Rootid {
    /// An image and a path in it, or a path on a mount.
    #[arg(value_name = "[IMG] PATH", required = true, num_args = 1..=2)]
    path: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
}

fn paths_of(target: &Target, request: Request) -> anyhow::Result<Vec<Bytes>> {
    answer!(target.ask(request)?, Reply::Paths(paths) => paths)
}

impl Inode {
    pub fn run(self) -> anyhow::Result<()> {
        let subvol = self.subvol.subvol.as_deref();
        let target = target::open(&self.path, &self.others, Access::Read, subvol)?;
        let tree = match &target {
            Target::Image { start, .. } => start.0,
            Target::Mount { .. } => target.at(self.path.as_os_str())?.tree,
        };
        let paths = paths_of(&target, Request::InodeResolve { tree, ino: oleo::fs::Ino(self.inode) })?;
        if self.json {
            json(&paths.iter().map(|path| text(&path.0)).collect());
        } else {
            paths.iter().for_each(|path| println_or_end(&text(&path.0)));
        }
        Ok(())
    }
}

impl Logical {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        let request = Request::LogicalResolve { at: oleo::format::Logical(self.logical), paths: !self.no_paths };
        let places = answer!(target.ask(request)?, Reply::Places(places) => places)?;
        if self.json {
            let one = |p: &oleo::control::Place| {
                let paths: Vec<String> = p.paths.iter().map(|path| text(&path.0)).collect();
                serde_json::json!({ "inode": p.ino, "offset": p.at, "root": p.tree, "paths": paths })
            };
            json(&places.iter().map(one).collect());
            return Ok(());
        }
        for place in &places {
            if self.no_paths {
                println_or_end(&format!("inode {} offset {} root {}", place.ino, place.at, place.tree));
            }
            place.paths.iter().for_each(|path| println_or_end(&text(&path.0)));
        }
        Ok(())
    }
}

impl Subvolid {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        for path in paths_of(&target, Request::SubvolPath { id: TreeId(self.id) })? {
            println_or_end(&text(&path.0));
        }
        Ok(())
    }
}

impl Rootid {
    pub fn run(self) -> anyhow::Result<()> {
        let first = Path::new(&self.path[0]);
        let target = target::open(first, &self.others, Access::Read, self.subvol.subvol.as_deref())?;
        let path = match (target.is_mount(), self.path.get(1)) {
            (true, None) => self.path[0].clone(),
            (false, path) => path.cloned().unwrap_or_else(|| "/".into()),
            (true, Some(_)) => return Err(misuse!("expected one PATH on a mount")),
        };
        let request = Request::Rootid { at: target.at(&path)? };
        let id = answer!(target.ask_of(&path, request)?, Reply::Made(id) => id)?;
        println_or_end(&id.to_string());
        Ok(())
    }
}
