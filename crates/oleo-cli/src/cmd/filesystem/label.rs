//! `oleo filesystem label`

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use oleo::control::{Reply, Request};

use crate::out::{Out, println_or_end, text};
use crate::target::{Access, VolumeArg, answer};

/// Show or change the label of the file system
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// New label; empty for none.
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let access = if self.label.is_some() { Access::Write } else { Access::Read };
        let target = self.on.open(access)?;
        let Some(label) = &self.label else {
            let label = answer!(target.ask(Request::Label)?, Reply::Label(label) => label)?;
            println_or_end(&text(&label.0));
            return Ok(());
        };
        target.ask(Request::SetLabel { label: label.as_bytes().into() })?;
        target.close()?;
        out.note(format!("{}: the label is '{}' now", self.on.path.display(), label.display()));
        Ok(())
    }
}
