//! `oleo filesystem sync`

use std::path::PathBuf;

use oleo::control::Request;

use crate::args::DeviceArgs;
use crate::out::Out;
use crate::target::{self, Access};

/// Make everything written so far durable
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Any path on a mount (an image is always durable between two commands).
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Write, None)?;
        target.ask(Request::Sync)?;
        target.close()?;
        out.detail(|| format!("{}: everything is durable", self.path.display()));
        Ok(())
    }
}
