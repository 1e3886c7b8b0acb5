//! `oleo explore`

use std::path::PathBuf;

use oleo_view::explore::{Ask, Explorer, Target as Explored};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::map::Source;
use crate::args::{DeviceArgs, size};
use crate::out::{Out, println_or_end};

/// Look at a volume in the browser, without changing it
///
/// Serves pages on this machine's own address (127.0.0.1) until it is interrupted: subvolumes and snapshots, files as text, pictures
/// and bytes, downloads of files and directories (tar, zip), comparison of snapshots, search by name, a check with the paths of what
/// is damaged, the maps of `oleo map`; of a mount, what it is doing. The address that is printed has a secret: whoever
/// knows it can read everything that you can read in the volume.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  oleo explore disk.img")]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Port to listen on; 0: one that is free.
    #[arg(long, short, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Memory for the tables of maps, about (suffixes K, M, G).
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let Source { image, options, mount } = Source::find(&self.path, &self.others)?;
        let mount: Option<Ask> = match mount {
            Some(mount) => Some(Box::new(move |request| mount.ask(request))),
            None => None,
        };
        let explorer = Explorer::start(Explored { image, options, mount, map_bytes: self.memory }, self.port)?;
        // The address is the result, and comes last: whoever starts this as a program reads one line, and may close the pipe then.
        out.advice(|| "open this address in a browser; Ctrl-C ends the explorer".into());
        println_or_end(&explorer.url());
        signals.forever().next();
        explorer.stop();
        Ok(())
    }
}
