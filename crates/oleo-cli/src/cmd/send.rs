//! `oleo send`

#[cfg(feature = "remote")]
mod store;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Context;
use oleo::control::{Bytes, Feed, Reply, Request, SendHow, SentShown};
#[cfg(feature = "remote")]
use oleo::remote::streams::StreamName;
use oleo::send::{Progress, SendOptions};
use oleo::{Image, TreeId};

use crate::args::{DeviceArgs, ImageArgs, size, subvol_ref};
use crate::out::{Out, human, misuse};
use crate::target::{self, Target, answer};

/// Write read-only subvolumes as a stream, for btrfs receive or oleo receive
#[derive(clap::Args)]
#[command(override_usage = "oleo send [OPTIONS] IMG --subvol SUBVOL...\n       oleo send [OPTIONS] PATH...")]
pub(crate) struct Args {
    /// An image, whose subvolumes --subvol names; or subvolumes on a mount, which are sent one after another.
    #[arg(value_name = "IMG|PATH", required = true)]
    targets: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Subvolume of the image to send (path or ID); repeat it for each.
    #[arg(long, value_name = "SUBVOL")]
    subvol: Vec<OsString>,
    /// Send the differences from this subvolume, which the receiver has.
    #[arg(short, long, value_name = "SUBVOL")]
    parent: Option<OsString>,
    /// Clone data that this subvolume shares, which the receiver has; repeat it for each. Without --parent the best of them is the parent.
    #[arg(short, long, value_name = "SUBVOL")]
    clone_source: Vec<OsString>,
    /// Stream version: 1, 2 (compressed data, holes, flags) or 3 (fs-verity).
    #[arg(long, value_name = "1|2|3", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    proto: u32,
    /// Send compressed extents as they are; implies at least version 2.
    #[arg(long)]
    compressed_data: bool,
    /// Send no data, only which parts of files changed.
    #[arg(long)]
    no_data: bool,
    /// Write one end command after the last of several subvolumes.
    #[arg(short = 'e', long)]
    end_once: bool,
    /// Write the stream to this file, not to standard output; or keep it on an object store, under s3://BUCKET/PREFIX, gs://…, az://… or
    /// file:///DIRECTORY, each subvolume as a stream of its own.
    #[arg(short, long, value_name = "FILE|URL")]
    file: Option<PathBuf>,
    /// On an object store: send the differences from the best snapshot that is there and in the image, or all if there is none.
    #[cfg(feature = "remote")]
    #[arg(short, long, conflicts_with = "parent", requires = "file")]
    incremental: bool,
    /// Approximate amount of memory to use.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let first = Path::new(&self.targets[0]);
        let sent = match target::mount_of(first)? {
            Some(mount) => self.of_mount(&mount, out)?,
            None => self.of_image(first, out)?,
        };
        out.detail(|| {
            let (bytes, data, cloned) = (human(sent.bytes), human(sent.data_bytes), human(sent.cloned_bytes));
            format!("{bytes}: {} commands, {data} of contents; {cloned} cloned", sent.commands)
        });
        Ok(())
    }

    fn version(&self) -> u32 {
        if self.compressed_data { self.proto.max(2) } else { self.proto }
    }

    fn of_image(&self, path: &Path, out: &Out) -> anyhow::Result<SentShown> {
        if self.subvol.is_empty() || self.targets.len() > 1 {
            return Err(misuse!("missing option --subvol: it names the subvolumes of one image"));
        }
        let args = ImageArgs { image: path.to_owned(), others: self.others.clone() };
        // Both walks go over the same blocks: half of the memory keeps them.
        let memory = usize::try_from(self.memory).unwrap_or(usize::MAX);
        let options = args.options()?;
        let cache_bytes = options.cache_bytes.max(memory / 2);
        let image = Image::open(path, &options.cache_bytes(cache_bytes))?;
        let progress = out.progress("send");
        let hook = |now: &Progress| {
            progress.show(line(now));
            ControlFlow::Continue(())
        };
        let options = SendOptions::default()
            .parent(self.parent.as_deref().map(|spec| id(&image, spec)).transpose()?)
            .clone_sources(ids(&image, &self.clone_source)?)
            .version(self.version())
            .compressed(self.compressed_data)
            .no_data(self.no_data)
            .one_end(self.end_once)
            .memory_bytes(memory / 2)
            .progress(progress.is_shown().then_some(&hook));
        let subvols = ids(&image, &self.subvol)?;
        #[cfg(feature = "remote")]
        if let Some(name) = self.store()? {
            return store::of_image(self, &name, &image, &subvols, &options, out);
        }
        let sent = match self.output()? {
            Some(mut file) => {
                let sent = image.send(&subvols, &options, &mut file)?;
                make_durable(&file).with_context(|| self.place())?;
                sent
            }
            None => image.send(&subvols, &options, &mut Stdout(io::stdout()))?,
        };
        Ok(sent.into())
    }

    /// The mount's server makes the stream.
    fn of_mount(&self, mount: &Target, out: &Out) -> anyhow::Result<SentShown> {
        if !self.subvol.is_empty() {
            return Err(misuse!("--subvol is for images; on a mount give the paths of the subvolumes"));
        }
        #[cfg(feature = "remote")]
        if let Some(name) = self.store()? {
            return store::of_mount(self, &name, mount, out);
        }
        let which =
            |things: &[OsString]| things.iter().map(|thing| mount.which(thing)).collect::<anyhow::Result<Vec<_>>>();
        let (subvols, clone_sources) = (which(&self.targets)?, which(&self.clone_source)?);
        let parent = self.parent.as_ref().map(|thing| mount.which(thing)).transpose()?;
        let file = self.output()?;
        let kept = file.as_ref().map(File::try_clone).transpose()?;
        let output: Box<dyn Write + Send> = match file {
            Some(file) => Box::new(file),
            None => Box::new(Stdout(io::stdout())),
        };
        let (feed, collected) = Feed::collect(output).context("cannot wait for the stream of the mount's server")?;
        let progress = out.progress("send");
        let watch = progress.is_shown().then(|| Feed::watch(move |now| progress.show(line(&now)))).transpose();
        let watch = watch.context("cannot wait for news of the mount's server")?;
        let request = Request::Send {
            subvols,
            parent,
            clone_sources,
            feed: feed.name(),
            how: self.how(watch.as_ref().map(|(feed, _)| feed.name())),
        };
        let reply = mount.ask(request);
        if let Some((feed, watching)) = watch {
            // A server that knows nothing of this never came.
            feed.give_up();
            let _panicked = watching.join();
        }
        if reply.is_err() {
            feed.give_up();
        }
        let written = collected.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")));
        let reply = reply?;
        written.with_context(|| self.place())?;
        if let Some(file) = kept {
            make_durable(&file).with_context(|| self.place())?;
        }
        answer!(reply, Reply::Sent(sent) => sent)
    }

    /// How a mount's server makes the stream.
    fn how(&self, progress: Option<Bytes>) -> SendHow {
        SendHow {
            version: self.version(),
            compressed: self.compressed_data,
            no_data: self.no_data,
            one_end: self.end_once,
            memory_bytes: self.memory,
            progress,
        }
    }

    /// The store that the stream goes to, if it does.
    #[cfg(feature = "remote")]
    fn store(&self) -> anyhow::Result<Option<StreamName>> {
        let name = store::named(self.file.as_deref())?;
        match &name {
            Some(_) if self.end_once => Err(misuse!("-e is not for stores: each subvolume is a stream of its own")),
            Some(_) if self.no_data => Err(misuse!("--no-data is not for stores: nothing could be received from it")),
            None if self.incremental => Err(misuse!("--incremental is for stores: -f s3://BUCKET/PREFIX")),
            _ => Ok(name),
        }
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
            return Err(misuse!("refusing to write a stream to a terminal; use -f FILE or a pipe"));
        }
        Ok(None)
    }
}

/// Makes a file durable; what is none (a pipe with a name, /dev/null) is as durable as it gets.
fn make_durable(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        done => done,
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

fn id(image: &Image, spec: &OsStr) -> anyhow::Result<TreeId> {
    Ok(image.subvol(subvol_ref(spec))?.tree())
}

fn ids(image: &Image, specs: &[OsString]) -> anyhow::Result<Vec<TreeId>> {
    specs.iter().map(|spec| id(image, spec)).collect()
}

fn line(now: &Progress) -> String {
    // The numbers of inodes rise; how many are left is not known, but how far up it is.
    let share = now.at_inode.saturating_sub(256) * 100 / now.last_inode.saturating_sub(255).max(1);
    format!("{} inodes, {}, about {}%", now.inodes, human(now.bytes), share.min(100))
}
