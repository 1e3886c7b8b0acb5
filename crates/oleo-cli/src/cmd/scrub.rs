//! `oleo scrub`

mod limit;
mod show;
mod start;
mod status;

use std::path::PathBuf;

use oleo::control::{Reply, Request, ScrubChange, ScrubShown};
use rustix::io::Errno;

use crate::out::{Out, Said};
use crate::target::{Access, Target, VolumeArg, answer};

/// Verify and heal every copy of data and metadata, and parity
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Start(start::Args),
    Cancel(Cancel),
    Resume(start::Resume),
    Status(status::Args),
    Limit(limit::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Start(args) => args.run(out),
            Command::Cancel(args) => args.run(out),
            Command::Resume(args) => args.run(out),
            Command::Status(args) => args.run(),
            Command::Limit(args) => args.run(out),
        }
    }
}

/// Cancel the scrub of a mount; it can be resumed
///
/// The scrub of an image is interrupted with Ctrl-C.
#[derive(clap::Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    on: VolumeArg,
}

impl Cancel {
    fn run(&self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        match self.on.ask(&target, Request::Scrub { change: ScrubChange::Cancel }) {
            Err(error) if error.errno() == Errno::NOTCONN.raw_os_error() => Err(nothing_there(error)),
            Err(error) => Err(error.into()),
            Ok(_) => {
                out.note("scrub cancelled");
                Ok(())
            }
        }
    }
}

/// The error of a scrub that is not there has the exit code that btrfs gives it.
fn nothing_there(error: oleo::Error) -> anyhow::Error {
    Said(oleo::ErrorKind::Usage, error.to_string()).into()
}

/// Where the state of scrubs is kept: where btrfs keeps it, or for those who must not write there with their own things.
pub(crate) fn state_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return oleo::scrub::STATE_DIR.into();
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || set("HOME").map(|home| home.join(".local/state"));
    set("XDG_STATE_HOME").or_else(home).unwrap_or_else(std::env::temp_dir).join("oleo")
}

/// Opens a volume whose scrubs are kept and found.
fn open(on: &VolumeArg, access: Access) -> anyhow::Result<Target> {
    let target = on.open(access)?;
    if let Target::Image { image, .. } = &target {
        image.keep_scrubs_in(state_dir());
    }
    Ok(target)
}

fn look(on: &VolumeArg, target: &Target, files: bool) -> anyhow::Result<ScrubShown> {
    answer!(on.ask(target, Request::ScrubStatus { files })?, Reply::Scrub(shown) => *shown)
}
