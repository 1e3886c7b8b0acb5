//! From a list of options to a mounted file system, and its end.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo::device::Place;
use oleo::fs::{Follow, FsOptions, InodeRef};
use oleo::{Device, ErrorKind, Follower, Hint, Image, Moment, OnNotice, OpenOptions, TreeId};
use oleo_device::mountinfo::mount_on;
use oleo_format::{Class, Classified, Generation, InodeFlags};

use crate::ask::Asking;
use crate::attach::{AttachOptions, attach, attach_image, detach, kernel_passes_sync, read_ahead};
use crate::background::Background;
use crate::control::Control;
use crate::follow::Following;
use crate::memory;
use crate::options::{MountOptions, Rescue, Uring};
use crate::server::{Log, Server};
use crate::transport::{Handler, IO_LEN_MAX, Transport, connect};

/// Inodes kept beyond those that the kernel knows.
const INODES_MAX: usize = 32 * 1024;
/// How long to wait for a device whose holder does not serve it: what the kernel still holds of an earlier mount.
const LETTING_GO: Duration = Duration::from_secs(2);
/// How long between two tries.
const HOLD_AGAIN: Duration = Duration::from_millis(10);
/// The default of the type's part behind `fuse.`.
const SUBTYPE: &str = "oleo";

/// Why a file system was not mounted, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The image could not be opened, or not be written at the end.
    #[error(transparent)]
    Image(#[from] oleo::Error),
    /// An option cannot be done.
    #[error("{0}")]
    Option(String),
    /// It could not be mounted there.
    #[error("cannot mount on {}: {source}", dir.display())]
    Attach {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The connection to the kernel broke.
    #[error("the connection to the kernel broke: {0}")]
    Connection(io::Error),
}

impl Classified for MountError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            MountError::Image(error) => error.class(),
            MountError::Option(_) => Class::USAGE,
            MountError::Attach { source, .. } => Class::of_io(source),
            MountError::Connection(_) => Class::DEVICE,
        }
    }
}

/// What to mount where.
#[derive(Clone)]
pub struct Plan {
    /// The image or device, and further devices of the same volume.
    pub images: Vec<PathBuf>,
    /// Directories in which to look for the other devices.
    pub scan: Vec<PathBuf>,
    /// Offset in the file at which the image begins, in bytes.
    pub offset: u64,
    /// The directory to mount on.
    pub dir: PathBuf,
    /// How.
    pub options: MountOptions,
    /// Receives messages.
    pub log: Log,
}

/// A mounted file system.
pub struct Mounted {
    server: Arc<Server>,
    transport: Arc<dyn Transport>,
    dir: PathBuf,
    read_only: bool,
    background: Background,
    control: Option<Control>,
    following: Option<(Arc<Following>, Asking)>,
    log: Log,
}

/// Ends a mount from another thread.
#[derive(Clone)]
pub struct Stopper {
    server: Arc<Server>,
    dir: PathBuf,
    log: Log,
}

impl Stopper {
    /// Writes everything to disk and unmounts; if files are in use, only from the directory, so that there are no new
    /// users. [`Mounted::serve`] returns when the last user is gone.
    pub fn stop(&self) {
        self.server.ending().hurry();
        if let Err(e) = self.sync() {
            (self.log)(&format!("not everything could be written: {e}"));
        }
        if !self.server.ending().shown().0 {
            // It is detached already, and another mount may have its device's number.
            return;
        }
        let unmount = |lazily| detach(&self.dir, self.server.device(), lazily);
        let done = unmount(false).or_else(|_| unmount(true));
        if let Err(e) = done {
            (self.log)(&format!("cannot unmount {}: {e}", self.dir.display()));
        }
    }

    /// Writes everything to disk.
    ///
    /// # Errors
    /// A device failed.
    pub fn sync(&self) -> oleo::Result<()> {
        self.server.sync()
    }
}

fn open_options(plan: &Plan) -> Result<OpenOptions, MountError> {
    let options = &plan.options;
    let rescue = options.rescue;
    if rescue != Rescue::default() && !options.read_only {
        return Err(MountError::Option("rescue= and nologreplay need ro".to_owned()));
    }
    let mut fs = FsOptions::default().inodes_max(INODES_MAX);
    fs.data.compress = options.compress;
    fs.data.ignore_csums = rescue.ignore_data_csums;
    fs.data.new_file_flags.set(InodeFlags::NODATASUM, options.no_data_sum || options.no_data_cow);
    fs.data.new_file_flags.set(InodeFlags::NODATACOW, options.no_data_cow);
    if let Some(max) = options.inline_max {
        fs.data.inline_max = max;
    }
    let devices = plan.images.iter().skip(1).cloned().chain(options.devices.iter().map(PathBuf::from)).collect();
    Ok(OpenOptions::default()
        .access(if options.read_only { oleo::Access::ReadOnly } else { oleo::Access::Write })
        .devices(devices)
        .scan(plan.scan.clone())
        .offset(plan.offset)
        .degraded(options.degraded)
        .discard(options.discard)
        .use_backup_root(rescue.use_backup_root)
        .ignore_bad_trees(rescue.ignore_bad_roots)
        .ignore_block_csums(rescue.ignore_meta_csums)
        .no_log_replay(rescue.no_log_replay)
        .wipe_stripe_records(options.wipe_stripe_records)
        .keep_space_cache(options.keep_space_cache)
        .cache_bytes(usize::try_from(options.cache_bytes.unwrap_or_else(memory::cache_bytes)).unwrap_or(usize::MAX))
        .places(options.places.clone())
        .on_notice(OnNotice::new({
            let log = plan.log.clone();
            move |line| log(line)
        }))
        .fs(fs))
}

/// Opens a volume to follow it.
fn follow(first: &Path, open: &OpenOptions, options: &MountOptions) -> Result<(Follower, Moment), MountError> {
    if !options.read_only {
        return Err(MountError::Option("follow= needs ro".to_owned()));
    }
    Ok(Follower::open(first, open)?)
}

/// The transport to ask for. A device behind a network may not answer for a minute, and only `/dev/fuse` can be given more threads
/// for other requests then (docs/decisions/0007-fuse-io-uring.md).
fn uring(plan: &Plan) -> Uring {
    let is_network = |place: &Path| Place::parse(place).is_ok_and(|place| !place.is_file());
    let others = plan.options.devices.iter().map(Path::new);
    match plan.options.uring {
        Uring::Auto if plan.images.iter().map(PathBuf::as_path).chain(others).any(is_network) => Uring::Off,
        wish => wish,
    }
}

fn attach_options(plan: &Plan, first: &Path, block: bool) -> AttachOptions {
    let options = &plan.options;
    let shown = Place::parse(first).map_or_else(|_| first.display().to_string(), |place| place.shown());
    AttachOptions {
        // The kernel takes the source of a block device for its name.
        source: options.fsname.clone().filter(|_| !block).unwrap_or(shown),
        subtype: options.subtype.clone().unwrap_or_else(|| SUBTYPE.to_owned()),
        read_only: options.read_only,
        allow_other: options.allow_other.unwrap_or_else(|| rustix::process::geteuid().is_root()),
        block,
        flags: options.flags,
    }
}

/// A mount whose requests wait for a server.
struct Attached {
    channel: std::fs::File,
    /// The kernel passes sync(2) and syncfs(2) on to the server.
    passes_sync: bool,
}

/// Mounts an image file so that the kernel passes sync(2) on to its server, if that is possible. A mount that cannot be
/// changed needs no sync, and a name given with `fsname=` replaces the source.
fn over_image(plan: &Plan, image: &Path, dir: &Path, options: &AttachOptions) -> Option<Attached> {
    let wanted = !options.read_only && plan.options.fsname.is_none() && kernel_passes_sync();
    if !wanted || !std::fs::metadata(image).is_ok_and(|m| m.is_file()) {
        return None;
    }
    let attached = attach_image(dir, image, options);
    let report =
        |e: &_| (plan.log)(&format!("sync(2) does not reach this mount, since no loop device can be its source: {e}"));
    Some(Attached { channel: attached.inspect_err(report).ok()?, passes_sync: true })
}

/// Holds a block device, so that neither the kernel nor another program that asks takes it. An earlier holder releases
/// it a moment after its server has ended.
fn claim(device: &Path, open: &OpenOptions) -> Result<std::fs::File, MountError> {
    use std::os::unix::fs::OpenOptionsExt;
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let hold = || std::fs::OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    if let Ok(claimed) = hold() {
        return Ok(claimed);
    }
    // Opening waits for a server that is ending, or names the holder.
    drop(Image::open(device, open)?);
    let begun = Instant::now();
    loop {
        match hold() {
            Ok(claimed) => return Ok(claimed),
            Err(_) if begun.elapsed() < LETTING_GO => std::thread::sleep(HOLD_AGAIN),
            Err(source) => return Err(oleo::Error::Host { what: "hold", path: device.to_path_buf(), source }.into()),
        }
    }
}

/// The root directory of the subvolume to show.
fn find_root(image: &Image, options: &MountOptions) -> Result<InodeRef, MountError> {
    let fs = image.fs();
    let root = match (&options.subvol, options.subvolid) {
        (Some(path), id) => {
            let found = fs
                .resolve(&image.top()?, path.as_bytes(), Follow::Yes)
                .map_err(|e| MountError::Option(format!("subvol={path}: {e}")))?;
            if found.ino() != oleo::fs::Ino::ROOT_DIR || found.is_empty_subvol_dir() {
                return Err(MountError::Option(format!("subvol={path}: not a subvolume")));
            }
            if id.is_some_and(|id| id != 0 && id != found.tree().0) {
                return Err(MountError::Option(format!(
                    "subvol={path} is subvolume {}, not the one of subvolid=",
                    found.tree().0
                )));
            }
            found
        }
        // 0 is another name of the top level.
        (None, Some(0)) => image.top()?,
        (None, Some(id)) => {
            fs.root(TreeId(id)).map_err(|_| MountError::Option(format!("subvolid={id}: there is no such subvolume")))?
        }
        (None, None) => {
            let id = fs.default_subvol().map_err(oleo::Error::from)?;
            fs.root(id).map_err(oleo::Error::from)?
        }
    };
    Ok(root)
}

impl Mounted {
    /// Opens and mounts. Requests wait until [`serve`](Mounted::serve).
    ///
    /// # Errors
    /// See [`MountError`]; nothing is mounted then.
    pub fn new(mut plan: Plan) -> Result<Mounted, MountError> {
        // Paths of devices must stay valid when this process changes its directory.
        for image in &mut plan.images {
            *image = Place::parse(image)?.absolute();
        }
        let Some(first) = plan.images.first() else { return Err(MountError::Option("no image".to_owned())) };
        let as_root = rustix::process::geteuid().is_root();
        let block = as_root && std::fs::metadata(first).is_ok_and(|m| m.file_type().is_block_device());
        let dir =
            std::fs::canonicalize(&plan.dir).map_err(|source| MountError::Attach { dir: plan.dir.clone(), source })?;
        let attach_options = attach_options(&plan, first, block);
        let attach = || match attach(&dir, &attach_options) {
            Ok(channel) => Ok(Attached { channel, passes_sync: block && kernel_passes_sync() }),
            Err(source) => Err(MountError::Attach { dir: dir.clone(), source }),
        };
        let open = open_options(&plan)?;
        let image = if block {
            // The image is opened completely before it is mounted, including the replay of a log: until its server
            // replies, a mount blocks callers that query all file systems. Meanwhile the device is held, and released
            // at the end for the kernel to take.
            let claim = claim(first, &open)?;
            let image = Image::open(first, &open.claimed(true))?;
            find_root(&image, &plan.options)?;
            drop(claim);
            image
        } else if plan.options.follow.is_some() {
            let (follower, moment) = follow(first, &open, &plan.options)?;
            find_root(&moment.image, &plan.options)?;
            let follows = Some((follower, moment.committed));
            return Mounted::start_or_detach(moment.image, follows, attach()?, &plan, &dir);
        } else {
            let image = Image::open(first, &open)?;
            find_root(&image, &plan.options)?;
            if as_root && let Some(attached) = over_image(&plan, first, &dir, &attach_options) {
                return Mounted::start_or_detach(image, None, attached, &plan, &dir);
            }
            image
        };
        Mounted::start_or_detach(image, None, attach()?, &plan, &dir)
    }

    /// The same over devices that are open already, in any order; the images of the plan are ignored.
    ///
    /// # Errors
    /// See [`MountError`]; nothing is mounted then.
    pub fn over(devices: Vec<Arc<dyn Device>>, plan: &Plan) -> Result<Mounted, MountError> {
        let failed = |source| MountError::Attach { dir: plan.dir.clone(), source };
        let dir = std::fs::canonicalize(&plan.dir).map_err(failed)?;
        let image = Image::from_devices(devices, &open_options(plan)?)?;
        find_root(&image, &plan.options)?;
        let channel = attach(&dir, &attach_options(plan, Path::new(SUBTYPE), false)).map_err(failed)?;
        Mounted::start_or_detach(image, None, Attached { channel, passes_sync: false }, plan, &dir)
    }

    fn start_or_detach(
        image: Image,
        follows: Option<(Follower, Generation)>,
        attached: Attached,
        plan: &Plan,
        dir: &Path,
    ) -> Result<Mounted, MountError> {
        let served = Mounted::start(image, follows, attached, plan, dir);
        if served.is_err() {
            // The error reported is why it could not be served.
            let _ = detach(dir, None, true);
        }
        served
    }

    fn start(
        image: Image,
        follows: Option<(Follower, Generation)>,
        attached: Attached,
        plan: &Plan,
        dir: &Path,
    ) -> Result<Mounted, MountError> {
        let Attached { channel, passes_sync } = attached;
        let options = plan.options.clone();
        let root = find_root(&image, &options)?;
        let server = Arc::new(Server::new(Arc::new(image), root, options.clone(), plan.log.clone()));
        let transport = connect(channel, options.threads, (uring(plan), options.halt_polling), &|init, uring| {
            server.agree(init, uring)
        })
        .map_err(|source| MountError::Attach { dir: dir.to_path_buf(), source })?;
        server.set_notifier(transport.notifier());
        if let Ok(Some(mount)) = mount_on(dir) {
            read_ahead(&mount, IO_LEN_MAX);
            server.set_device(mount.device);
        }
        server.set_dir(dir.to_path_buf());
        let control = match Control::start(&server, &plan.log) {
            Ok(control) => Some(control),
            Err(e) => {
                (plan.log)(&format!("no control socket, so no commands on this mount: {e}"));
                None
            }
        };
        let background = Background::start(&server, &options, options.commit_interval(passes_sync), &plan.log);
        let read_only = options.read_only;
        let following = match follows {
            Some((follower, committed)) => {
                let following = Following::new(&server, committed);
                server.set_following(following.clone());
                let shown = options.clone();
                let root = move |image: &Image| find_root(image, &shown).map_err(|e| e.to_string());
                let asking = Asking::start(&following, follower, Box::new(root));
                let asking = asking.map_err(|source| MountError::Attach { dir: dir.to_path_buf(), source })?;
                Some((following, asking))
            }
            None => None,
        };
        let dir = dir.to_path_buf();
        Ok(Mounted { server, transport, dir, read_only, background, control, following, log: plan.log.clone() })
    }

    /// The directory that it is mounted on.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file in which root can switch on FUSE over io_uring, which is faster: if this kernel has it, and offers it to nobody.
    pub fn uring_switch(&self) -> Option<&'static Path> {
        self.transport.switch()
    }

    /// A handle to end it from elsewhere.
    pub fn stopper(&self) -> Stopper {
        Stopper { server: self.server.clone(), dir: self.dir.clone(), log: self.log.clone() }
    }

    /// Answers requests until it is unmounted; then everything is on disk. What cannot be written is kept until it can
    /// be, or is given up (`ending`).
    ///
    /// # Errors
    /// The connection broke, or not everything could be written.
    pub fn serve(self) -> Result<(), MountError> {
        let handler: Arc<dyn Handler> = match &self.following {
            Some((following, _)) => following.clone(),
            None => self.server.clone(),
        };
        let served = self.transport.serve(handler);
        if let Some((following, asking)) = self.following {
            asking.stop();
            following.end();
        }
        // Requests that move groups end soon.
        self.server.image().balancer().stop();
        self.server.image().scrubber().stop();
        self.server.ending().begin();
        self.background.stop();
        self.server.forget_all();
        let written = if self.read_only { Ok(()) } else { write_all(&self.server, &self.log) };
        // Its process may live on for a moment, with threads that keep the image.
        let written = written.and_then(|()| self.server.image().release());
        self.server.ending().over(written.as_ref().err().filter(|e| is_lost(&self.server, e)).map(lost));
        if let Some(control) = self.control {
            control.stop();
        }
        written?;
        served.map_err(MountError::Connection)
    }
}

fn shown(error: &oleo::Error, hint: Option<Hint>) -> oleo::control::Error {
    let message = error.to_string();
    oleo::control::Error { errno: error.errno(), kind: error.kind(), message, hint }
}

/// Whether only bytes of files could not be written, and will not be: the commit was made.
fn is_lost(server: &Server, error: &oleo::Error) -> bool {
    error.kind() == ErrorKind::Corruption && server.image().fs().poisoned_by().is_none()
}

/// The error about lost bytes for the caller of unmount.
fn lost(error: &oleo::Error) -> oleo::control::Error {
    shown(error, Some(Hint::RestIsOnDisk))
}

/// Writes everything to disk, with as many attempts as it takes.
fn write_all(server: &Server, log: &Log) -> oleo::Result<()> {
    let mut failed = None;
    let mut reported = false;
    loop {
        let Err(error) = server.sync() else {
            if reported {
                log("everything is on disk now");
            }
            return Ok(());
        };
        if server.image().fs().poisoned_by().is_some() {
            failed.get_or_insert_with(Instant::now);
        } else if is_lost(server, &error) {
            // Sectors that cannot be read, so that writes to a part of them cannot be completed: everything else is on
            // disk.
            log(&format!("not everything could be written, and some bytes of files are lost: {error}"));
            return Err(error);
        }
        if !std::mem::replace(&mut reported, true) {
            let dir = server.dir().map(|dir| dir.display().to_string()).unwrap_or_default();
            log(&format!(
                "not everything could be written: {error}; it is kept in memory and tried again. `oleo unmount {dir}` tries \
                 immediately; with --save-to DIR it copies all files elsewhere, with --force it discards what is not on disk"
            ));
        }
        if !server.ending().stuck(shown(&error, None), failed) {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no device of a mount that chooses its transport is behind a network and served through io_uring. Method: devices as
    /// arguments and as options.
    #[test]
    fn networks_have_no_ring() {
        let of = |image: &str, options: &str| {
            let mut plan = Plan {
                images: vec![image.into()],
                scan: Vec::new(),
                offset: 0,
                dir: "dir".into(),
                options: MountOptions::default(),
                log: Arc::new(|_| {}),
            };
            plan.options.parse(options).expect("options");
            uring(&plan)
        };
        assert_eq!(of("image", "device=other,io_uring=auto"), Uring::Auto);
        assert_eq!(of("nbd://host/image", "io_uring=auto"), Uring::Off);
        assert_eq!(of("image", "device=nbd://host/other,io_uring=auto"), Uring::Off);
        assert_eq!(of("image", "device=nbd://host/other,io_uring=on"), Uring::On);
    }
}
