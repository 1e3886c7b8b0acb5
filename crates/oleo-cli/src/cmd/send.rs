//! `oleo send`

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, bail};
use oleo::send::{Progress, SendOptions};
use oleo::{Image, TreeId};

use crate::args::{DeviceArgs, ImageArgs, size};
use crate::out::{Out, human};

/// Write read-only subvolumes as a stream, for btrfs receive or oleo receive
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file or block device.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// The subvolume to send (path or number). May be given several times: they are sent one after another.
    #[arg(long, value_name = "SUBVOL", required = true)]
    subvol: Vec<String>,
    /// Send what differs from this subvolume, which the receiver has.
    #[arg(short, long, value_name = "SUBVOL")]
    parent: Option<String>,
    /// The receiver has this one too: what it shares is cloned. Without --parent the best of them is the parent.
    #[arg(short, long, value_name = "SUBVOL")]
    clone_source: Vec<String>,
    /// Version of the stream: 1, 2 (compressed data, holes, flags) or 3 (fs-verity).
    #[arg(long, value_name = "1|2|3", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    proto: u32,
    /// Send compressed extents as they are; takes version 2, if none is given.
    #[arg(long)]
    compressed_data: bool,
    /// Send no contents, only which parts of files changed.
    #[arg(long)]
    no_data: bool,
    /// Of several subvolumes, end once, behind the last one.
    #[arg(short = 'e', long)]
    end_once: bool,
    /// Write the stream to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// About how much memory to use.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let args = ImageArgs { image: self.image.clone(), others: self.others.clone() };
        let image = args.read()?;
        let subvols = ids(&image, &self.subvol)?;
        let progress = out.progress("send");
        let hook = |now: &Progress| {
            progress.tell(line(now));
            ControlFlow::Continue(())
        };
        let options = SendOptions {
            parent: self.parent.as_deref().map(|spec| id(&image, spec)).transpose()?,
            clone_sources: ids(&image, &self.clone_source)?,
            version: if self.compressed_data { self.proto.max(2) } else { self.proto },
            compressed: self.compressed_data,
            no_data: self.no_data,
            one_end: self.end_once,
            memory_bytes: usize::try_from(self.memory).unwrap_or(usize::MAX),
            progress: progress.is_shown().then_some(&hook),
            ..SendOptions::default()
        };
        let sent = match self.output()? {
            Some(mut file) => {
                let sent = image.send(&subvols, &options, &mut file)?;
                file.sync_all().with_context(|| self.place())?;
                sent
            }
            None => image.send(&subvols, &options, &mut Stdout(io::stdout()))?,
        };
        drop(progress);
        out.detail(|| {
            let (bytes, data, cloned) = (human(sent.bytes), human(sent.data_bytes), human(sent.cloned_bytes));
            format!("{bytes}: {} commands, {data} of contents; {cloned} cloned", sent.commands)
        });
        Ok(())
    }

    fn place(&self) -> String {
        self.file.as_ref().map_or("standard output".into(), |file| file.display().to_string())
    }

    /// The file; none for standard output.
    fn output(&self) -> anyhow::Result<Option<File>> {
        if let Some(path) = &self.file {
            return Ok(Some(File::create(path).with_context(|| format!("cannot create {}", path.display()))?));
        }
        if io::stdout().is_terminal() {
            bail!("a stream is nothing for a terminal: send it to a file (-f FILE) or a pipe");
        }
        Ok(None)
    }
}

/// Standard output, not line by line.
struct Stdout(io::Stdout);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        rustix::io::write(&self.0, bytes).map_err(io::Error::from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn id(image: &Image, spec: &str) -> anyhow::Result<TreeId> {
    Ok(image.subvol(spec)?.tree())
}

fn ids(image: &Image, specs: &[String]) -> anyhow::Result<Vec<TreeId>> {
    specs.iter().map(|spec| id(image, spec)).collect()
}

fn line(now: &Progress) -> String {
    // The numbers of inodes rise; how many are left is not known, but how far up it is.
    let share = now.at_inode.saturating_sub(256) * 100 / now.last_inode.saturating_sub(255).max(1);
    format!("{} inodes, {}, about {}%", now.inodes, human(now.bytes), share.min(100))
}
