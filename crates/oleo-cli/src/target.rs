//! The target of a control command: an image that the command opens itself, or a mount that another process serves. The
//! path decides which; the rest of the command is the same for both.
//!
//! A path is on a mount of Oleo if it is on a FUSE file system that answers our ioctl; everything else has to be an
//! image. If the path is to be created, its directory decides.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, bail};
use oleo::control::{self, Caller, Client, Location, Reply, Request, SubvolRef};
use oleo::device::Place;
use oleo::fs::Ino;
use oleo::{Image, TreeId};

use crate::args::{DeviceArgs, ImageArgs, subvol_ref};
use crate::out::{Out, misuse};

/// `f_type` of a btrfs that the kernel has mounted (`BTRFS_SUPER_MAGIC` of linux/magic.h).
const BTRFS_SUPER_MAGIC: u64 = 0x9123_683e;

/// Whether the image is opened for changes. A mount is what it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What a control command works on.
pub(crate) enum Target {
    Image {
        image: Box<Image>,
        access: Access,
        /// Where paths begin.
        start: (TreeId, Ino),
    },
    Mount {
        client: Mutex<Client>,
        socket: PathBuf,
    },
}

/// The volume that a command is about, if it takes nothing else.
#[derive(clap::Args)]
pub(crate) struct VolumeArg {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    pub path: PathBuf,
    #[command(flatten)]
    pub others: DeviceArgs,
}

impl VolumeArg {
    /// Opens it.
    pub fn open(&self, access: Access) -> anyhow::Result<Target> {
        open(&self.path, &self.others, access, None)
    }

    /// Has a request carried out on it, after it was opened; an error names it.
    pub fn ask(&self, target: &Target, request: Request) -> oleo::Result<Reply> {
        target.ask_of(self.path.as_os_str(), request)
    }

    /// Opens it, has a change made, and says what is the case now.
    pub fn change(&self, out: &Out, request: Request, done: &str) -> anyhow::Result<()> {
        let target = self.open(Access::Write)?;
        self.ask(&target, request)?;
        target.close()?;
        out.note(format!("{}: {done}", self.path.display()));
        Ok(())
    }
}

/// Splits the arguments of a command that takes `IMG THING…` or, on a mount, `THING…`: the target, and the things.
pub(crate) fn split(args: &[OsString], others: &DeviceArgs, access: Access) -> anyhow::Result<(Target, Vec<OsString>)> {
    let Some((first, rest)) = args.split_first() else { return Err(misuse!("missing argument IMG or PATH")) };
    let target = open(Path::new(first), others, access, None)?;
    let things = if target.is_mount() { args } else { rest };
    Ok((target, things.to_vec()))
}

/// Opens what a path names.
pub(crate) fn open(path: &Path, others: &DeviceArgs, access: Access, subvol: Option<&OsStr>) -> anyhow::Result<Target> {
    if let Some(mount) = mount_of(path)? {
        return Ok(mount);
    }
    if fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
        let kernel = control::open_to_ask(path).is_ok_and(|file| f_type(&file) == Some(BTRFS_SUPER_MAGIC));
        let hint = if kernel { "; the kernel has it mounted: use btrfs" } else { "" };
        bail!("{} is neither an image nor on a mount of oleo{hint}", path.display());
    }
    let args = ImageArgs { image: path.to_owned(), others: others.clone() };
    let image = if access == Access::Write { args.write() } else { args.read() }?;
    let start = match subvol {
        Some(spec) => (image.subvol(subvol_ref(spec))?.tree(), Ino::ROOT_DIR),
        None => (TreeId::FS, Ino::ROOT_DIR),
    };
    Ok(Target::Image { image: Box::new(image), access, start })
}

/// The mount that a path is on, if it is one of ours.
pub(crate) fn mount_of(path: &Path) -> anyhow::Result<Option<Target>> {
    // A name that is no path would be looked for in the directories that it looks like, up to the present one.
    if !Place::parse(path)?.is_file() {
        return Ok(None);
    }
    let found = socket_of(path).with_context(|| path.display().to_string())?;
    let Some((file, socket)) = found else { return Ok(None) };
    let client = Client::connect_of(&file, &socket)
        .with_context(|| format!("{} is on a mount whose server does not answer", path.display()))?;
    Ok(Some(Target::Mount { client: Mutex::new(client), socket }))
}

fn f_type(file: &File) -> Option<u64> {
    rustix::fs::fstatfs(file).ok().map(|stat| stat.f_type as u64 & 0xffff_ffff)
}

impl Target {
    /// An image that is open for changes.
    pub fn of(image: Image) -> Target {
        Target::Image { image: Box::new(image), access: Access::Write, start: (TreeId::FS, Ino::ROOT_DIR) }
    }

    pub fn is_mount(&self) -> bool {
        matches!(self, Target::Mount { .. })
    }

    /// Has a request carried out.
    pub fn ask(&self, request: Request) -> oleo::Result<Reply> {
        match self {
            Target::Image { image, .. } => Ok(control::execute(image, &Caller::owner(), request)?.0),
            Target::Mount { client, .. } => match client.lock() {
                Ok(mut client) => client.ask(&request),
                Err(poisoned) => poisoned.into_inner().ask(&request),
            },
        }
    }

    /// The same for a request about one thing, which is named in an error.
    pub fn ask_of(&self, thing: &OsStr, request: Request) -> oleo::Result<Reply> {
        self.ask(request).map_err(|error| error.at(thing.display()))
    }

    /// Something that is there.
    pub fn at(&self, thing: &OsStr) -> anyhow::Result<Location> {
        match self {
            Target::Image { start, .. } => Ok(Location::below(start.0, start.1, thing.as_bytes())),
            Target::Mount { socket, .. } => {
                ident_of(Path::new(thing), socket).with_context(|| thing.display().to_string())
            }
        }
    }

    /// Something that is to be made.
    pub fn new_at(&self, thing: &OsStr) -> anyhow::Result<Location> {
        let Target::Mount { socket, .. } = self else { return self.at(thing) };
        let path = Path::new(thing);
        let name = path.file_name().with_context(|| format!("{} does not end in a name", path.display()))?;
        let found = ident_of(parent(path), socket).with_context(|| parent(path).display().to_string());
        Ok(Location { path: name.as_bytes().into(), ..found? })
    }

    /// A subvolume, by path or, in an image, number.
    pub fn which(&self, thing: &OsStr) -> anyhow::Result<SubvolRef> {
        Ok(match subvol_ref(thing) {
            oleo::SubvolRef::Id(id) if !self.is_mount() => SubvolRef::Id(id),
            _ => SubvolRef::At(self.at(thing)?),
        })
    }

    /// Takes apart what was deleted, where that is ours to do; a mount's server does so by itself.
    pub fn clean(&self) -> oleo::Result<()> {
        match self {
            Target::Image { image, access: Access::Write, .. } => {
                image.sync()?;
                image.clean()
            }
            _ => Ok(()),
        }
    }

    /// Ends the work: what was done to an image is durable afterwards.
    pub fn close(self) -> oleo::Result<()> {
        match self {
            Target::Image { image, .. } => image.close(),
            Target::Mount { .. } => Ok(()),
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// Opens a regular file or directory, or else the directory that it is in.
fn open_near(path: &Path) -> io::Result<(File, bool)> {
    let plain = fs::metadata(path).is_ok_and(|meta| meta.is_file() || meta.is_dir());
    match control::open_to_ask(path) {
        Ok(file) if plain => Ok((file, true)),
        _ => Ok((control::open_to_ask(parent(path))?, false)),
    }
}

/// The control socket of the mount that a path is on, if it is on one of ours.
fn socket_of(path: &Path) -> io::Result<Option<(File, PathBuf)>> {
    let mut at = path;
    loop {
        match open_near(at) {
            Ok((file, _)) => return Ok(control::control_socket(&file)?.map(|socket| (file, socket))),
            // The directories on the way may be missing too.
            Err(error) if error.kind() == io::ErrorKind::NotFound && parent(at) != at => at = parent(at),
            // Whoever opens it as an image will say it better.
            Err(_) => return Ok(None),
        }
    }
}

/// Which inode a path on that mount is.
fn ident_of(path: &Path, socket: &Path) -> anyhow::Result<Location> {
    // Links are followed here, so that whatever cannot be opened is an entry of its directory.
    let path = fs::canonicalize(path)?;
    let (file, itself) = open_near(&path)?;
    if control::control_socket(&file)?.as_deref() != Some(socket) {
        bail!("not on the same mount");
    }
    let [tree, ino] = control::ident(&file)?.context("the mount does not report which inode it is")?;
    let name = if itself { &[][..] } else { path.file_name().map_or(&[][..], OsStr::as_bytes) };
    Ok(Location::below(TreeId(tree), Ino(ino), name))
}

/// What a reply holds, as a result: `answer!(target.ask(Request::Df)?, Reply::Df(groups) => groups)?`.
macro_rules! answer {
    ($reply:expr, $wanted:pat => $held:expr) => {
        match $reply {
            $wanted => Ok($held),
            other => $crate::target::unexpected(other),
        }
    };
}
pub(crate) use answer;

/// A reply of another kind than the request's: the server is of another version.
pub(crate) fn unexpected<T>(reply: Reply) -> anyhow::Result<T> {
    bail!("unexpected reply from the mount's server, whose version may differ: {reply:?}")
}
