//! `oleo filesystem label`

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use oleo::control::{Reply, Request};

use crate::args::DeviceArgs;
use crate::out::{Out, println_or_end, text};
use crate::target::{self, Access};

/// Show or change the label of the file system
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// New label; empty for none.
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let access = if self.label.is_some() { Access::Write } else { Access::Read };
        let target = target::open(&self.path, &self.others, access, None)?;
        let Some(label) = &self.label else {
            match target.ask(Request::Label)? {
                Reply::Label(label) => println_or_end(&text(&label.0)),
                other => return target::unexpected(other),
            }
            return Ok(());
        };
        target.ask(Request::SetLabel { label: label.as_bytes().into() })?;
        target.close()?;
        out.note(format!("{}: the label is '{}' now", self.path.display(), label.display()));
        Ok(())
    }
}
