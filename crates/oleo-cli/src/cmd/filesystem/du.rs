//! `oleo filesystem du`

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use oleo::TreeId;
use oleo::control::{Reply, Request, SubvolRef};
use oleo::usage::FileUsage;

use crate::args::{DeviceArgs, SubvolArg};
use crate::out::{human, json, misuse, println_or_end, text};
use crate::target::{self, Access, answer};

/// Show the space that files take and share
#[derive(clap::Args)]
#[command(override_usage = "oleo filesystem du [OPTIONS] IMG [PATH]...\n       \
    oleo filesystem du [OPTIONS] PATH...\n       \
    oleo filesystem du --set SUBVOL,... IMG|PATH")]
pub(crate) struct Args {
    /// An image and paths in it (by default everything), or paths on a mount.
    #[arg(value_name = "[IMG] PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Show only the sum of each path.
    #[arg(long, short)]
    summarize: bool,
    /// Show how many bytes deleting exactly these subvolumes (paths or IDs, separated by commas) would free.
    #[arg(long, value_name = "SUBVOL,...", value_delimiter = ',', conflicts_with = "summarize")]
    set: Vec<OsString>,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target =
            target::open(Path::new(&self.paths[0]), &self.others, Access::Read, self.subvol.subvol.as_deref())?;
        if !self.set.is_empty() {
            return self.show_set(&target);
        }
        let mut paths = self.paths.clone();
        if !target.is_mount() {
            paths.remove(0);
            if paths.is_empty() {
                paths.push("/".into());
            }
        }
        let mut lines: Vec<(String, FileUsage)> = Vec::new();
        for path in &paths {
            let found = answer!(target.ask_of(path, Request::Du { at: target.at(path)? })?, Reply::Du(found) => found)?;
            let whole = |name: &[u8]| name.is_empty();
            for line in found.into_iter().filter(|line| !self.summarize || whole(&line.path.0)) {
                let shown = match line.path.0.as_slice() {
                    b"" => PathBuf::from(path),
                    name => Path::new(path).join(text(name)),
                };
                lines.push((shown.display().to_string(), line.usage));
            }
        }
        if self.json {
            json(
                &lines
                    .iter()
                    .map(|(path, u)| {
                        serde_json::json!({
                            "path": path, "total": u.total, "exclusive": u.exclusive, "set_shared": u.set_shared,
                        })
                    })
                    .collect(),
            );
            return Ok(());
        }
        println_or_end("     Total   Exclusive  Set shared  Filename");
        for (path, u) in lines {
            let (total, exclusive, shared) = (human(u.total), human(u.exclusive), human(u.set_shared));
            println_or_end(&format!("{total:>10}  {exclusive:>10}  {shared:>10}  {path}"));
        }
        Ok(())
    }

    fn show_set(&self, target: &target::Target) -> anyhow::Result<()> {
        if self.paths.len() != 1 {
            return Err(misuse!("--set takes one argument IMG or PATH"));
        }
        let which = |subvol: &OsString| match subvol.to_str().and_then(|text| text.parse().ok()) {
            Some(id) => Ok(SubvolRef::Id(TreeId(id))),
            None => target.which(subvol),
        };
        let subvols = self.set.iter().map(which).collect::<anyhow::Result<_>>()?;
        let bytes = answer!(target.ask(Request::Frees { subvols })?, Reply::Bytes(bytes) => bytes.0)?;
        if self.json {
            json(&serde_json::json!({ "frees": bytes }));
        } else {
            println_or_end(&format!("deleting these frees {} ({bytes} bytes)", human(bytes)));
        }
        Ok(())
    }
}
