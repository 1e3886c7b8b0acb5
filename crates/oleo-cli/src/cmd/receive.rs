//! `oleo receive`

#[cfg(feature = "remote")]
mod store;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use oleo::SubvolRef;
use oleo::control::{Feed, ReceiveHow, Received, Reply, Request};
use oleo::receive::{Commands, Dumper, Limits, Receive, ReceiveOptions, Report};

use crate::args::{DeviceArgs, ImageArgs, InPath, subvol_ref};
use crate::out::{Out, Progress, human, misuse};
use crate::target::{self, Target};

/// Apply a send stream to an image, a mount or a directory, or show its commands
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file or block device, or a directory on a mount; with --to-dir, any directory; not with --dump.
    #[arg(value_name = "IMG|PATH", required_unless_present = "dump", conflicts_with = "dump")]
    target: Option<PathBuf>,
    #[command(flatten)]
    others: DeviceArgs,
    /// Read the stream from this file, not from standard input; or from an object store, s3://BUCKET/PREFIX (gs://…, az://…,
    /// file:///DIRECTORY): its newest snapshot, or that of ?snapshot=NAME, and before it all that it is built on and that is not there.
    #[arg(short, long, value_name = "FILE|URL")]
    file: Option<PathBuf>,
    /// Create the subvolumes in this directory of the image, not in the top level.
    #[arg(long, value_name = "PATH", default_value = "/", hide_default_value = true)]
    into: InPath,
    /// Stop after the first end command instead of at the end of the input.
    #[arg(short = 'e', long)]
    terminate_on_end: bool,
    /// Accepted for compatibility: paths never leave the target.
    #[arg(short = 'C', long)]
    chroot: bool,
    /// Accepted for compatibility: the mount point is found without it.
    #[arg(short = 'm', long, value_name = "ROOT")]
    root: Option<PathBuf>,
    /// Stop after this many errors; 0: never. A subvolume received with errors differs from what was sent.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    max_errors: u64,
    /// All or nothing: keep nothing on disk unless the stream is complete.
    #[arg(long)]
    atomic: bool,
    /// Continue a subvolume that an earlier receive of the same stream left incomplete.
    #[arg(long, conflicts_with = "atomic")]
    resume: bool,
    /// Apply an incremental stream to this subvolume (path or ID) instead of the parent it names.
    #[arg(long, value_name = "PARENT")]
    rebase: Option<OsString>,
    /// Receive into a directory of any file system: subvolumes become directories, and snapshots copies of their parent, which
    /// --rebase names unless it is in the same stream. Attributes that only btrfs has are dropped.
    #[arg(long, conflicts_with_all = ["resume", "into"])]
    to_dir: bool,
    /// With --to-dir: keep modes regardless of the umask; always so for root.
    #[arg(short, long, requires = "to_dir")]
    preserve_permissions: bool,
    /// Show the stream, one line for each command, and apply nothing.
    #[arg(long)]
    dump: bool,
    /// With --dump: print each line as a JSON object.
    #[arg(long, requires = "dump")]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        #[cfg(feature = "remote")]
        if let Some(name) = store::named(self.file.as_deref())? {
            return store::Stored::open(&self, &name)?.run(&self, out);
        }
        let input = self.input()?;
        if self.dump {
            return self.dump(input);
        }
        let Some(target) = self.target.clone() else { return Err(misuse!("missing argument IMG or PATH")) };
        let input = self.reported(input, out);
        let how = self.how();
        if self.to_dir {
            let (report, result) = oleo::receive::receive_to_dir(&target, input, &how);
            print_report(out, &report);
            return Ok(result?);
        }
        match target::mount_of(&target)? {
            Some(mount) => self.on_mount(&mount, &target, input, out),
            None => self.apply_to(&target, input, &how, out),
        }
    }

    fn how(&self) -> Receive {
        Receive::default()
            .into(self.into.0.clone())
            // A directory of the host has no number.
            .rebase(self.rebase.as_deref().map(|p| if self.to_dir { SubvolRef::from(p) } else { subvol_ref(p) }))
            .atomic(self.atomic)
            .exact_modes(self.preserve_permissions)
            .options(
                ReceiveOptions::default()
                    .one_stream(self.terminate_on_end)
                    .errors_passed_max(self.max_errors.checked_sub(1))
                    .resume(self.resume),
            )
    }

    fn input(&self) -> anyhow::Result<Box<dyn Read + Send>> {
        match self.file.as_deref().filter(|file| *file != Path::new("-")) {
            Some(file) => Ok(Box::new(File::open(file).with_context(|| format!("cannot open {}", file.display()))?)),
            None => Ok(Box::new(io::stdin())),
        }
    }

    /// The same input, which says how far it has been read where somebody sees it.
    fn reported(&self, input: Box<dyn Read + Send>, out: &Out) -> Box<dyn Read + Send> {
        let meta = self.file.as_ref().and_then(|file| fs::metadata(file).ok());
        let total = meta.filter(fs::Metadata::is_file).map(|meta| meta.len());
        reported(input, total, out)
    }

    fn apply_to(&self, target: &Path, input: Box<dyn Read + Send>, how: &Receive, out: &Out) -> anyhow::Result<()> {
        let image = self.open(target, how)?;
        apply(&image, input, how, out)?;
        Ok(image.close()?)
    }

    fn open(&self, target: &Path, how: &Receive) -> oleo::Result<oleo::Image> {
        let args = ImageArgs { image: target.to_owned(), others: self.others.clone() };
        oleo::Image::open(target, &how.open_options(args.options()?))
    }

    fn on_mount(&self, mount: &Target, target: &Path, input: Box<dyn Read + Send>, out: &Out) -> anyhow::Result<()> {
        let feed = Feed::offer(input).context("cannot offer the stream to the mount's server")?;
        let request = Request::Receive {
            into: mount.at(target.as_os_str())?,
            feed: feed.name(),
            rebase: self.rebase.as_ref().map(|parent| mount.which(parent)).transpose()?,
            how: ReceiveHow {
                one_stream: self.terminate_on_end,
                errors_passed_max: self.max_errors.checked_sub(1),
                resume: self.resume,
                atomic: self.atomic,
            },
        };
        match mount.ask(request)? {
            Reply::Received(mut received) => {
                let error = received.error.take();
                tell_of(out, &received);
                error.map_or(Ok(()), |error| Err(oleo::Error::from(error).into()))
            }
            other => target::unexpected(other),
        }
    }

    fn dump(&self, input: Box<dyn Read + Send>) -> anyhow::Result<()> {
        let mut commands = Commands::new(input, Limits::default());
        let mut dumper = Dumper::default();
        let mut stdout = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
        while let Some(next) = commands.next()? {
            let end = matches!(next.command, oleo::receive::Command::End);
            let line = if self.json {
                dumper.json(next.position, &next.command)
            } else if end {
                continue;
            } else {
                dumper.text(&next.command)
            };
            if let Err(error) = writeln!(stdout, "{line}") {
                if error.kind() == io::ErrorKind::BrokenPipe {
                    return Ok(());
                }
                return Err(error).context("cannot write the output");
            }
            if end && self.terminate_on_end {
                break;
            }
        }
        stdout.flush().context("cannot write the output")
    }
}

/// An input that says how far it has been read where somebody sees it.
fn reported(input: Box<dyn Read + Send>, total: Option<u64>, out: &Out) -> Box<dyn Read + Send> {
    let progress = out.progress("receive");
    if !progress.is_shown() {
        return input;
    }
    Box::new(Reported { input, progress, total, bytes: 0, last: Instant::now() })
}

/// Receives, and says what became of it.
fn apply(image: &oleo::Image, input: Box<dyn Read + Send>, how: &Receive, out: &Out) -> oleo::Result<()> {
    let (report, result) = image.receive_report(input, how)?;
    print_report(out, &report);
    let incomplete = report.subvols.last().filter(|_| result.is_err() && !how.atomic);
    if let Some(subvol) = incomplete {
        out.warnings(&[format!("{} is incomplete; --resume continues it", subvol.path.escape_ascii())]);
    }
    result
}

/// The time between two lines of progress.
const PROGRESS_PAUSE: Duration = Duration::from_millis(50);

/// A stream that tells how much of it has been read. What is read is applied soon after.
struct Reported {
    input: Box<dyn Read + Send>,
    progress: Progress,
    bytes: u64,
    /// Bytes in all, if it is known.
    total: Option<u64>,
    last: Instant,
}

impl Read for Reported {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        self.bytes += len as u64;
        if self.last.elapsed() >= PROGRESS_PAUSE {
            self.last = Instant::now();
            self.progress.show(progress_line(self.bytes, self.total));
        }
        Ok(len)
    }
}

fn progress_line(bytes: u64, total: Option<u64>) -> String {
    match total {
        Some(total) => {
            let share = u128::from(bytes) * 100 / u128::from(total.max(1));
            format!("{} of {}, about {}%", human(bytes), human(total), share.min(100))
        }
        None => human(bytes),
    }
}

/// Says what was received.
fn print_report(out: &Out, report: &Report) {
    tell_of(out, &Received::of(report.clone(), None));
}

fn tell_of(out: &Out, received: &Received) {
    out.warnings(&received.errors);
    out.warnings(&received.warnings);
    for subvol in &received.subvols {
        let kind = if subvol.incremental { "snapshot" } else { "subvolume" };
        let was = if subvol.passed_over { ": complete already" } else { "" };
        out.note(format!("{kind} {}{was}", subvol.path.0.escape_ascii()));
    }
    out.detail(|| format!("{} commands, {}", received.commands, human(received.bytes)));
}
