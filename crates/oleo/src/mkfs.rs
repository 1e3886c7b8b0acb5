//! Makes images: empty ones, and ones with everything of a directory or a tar archive in them.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oleo_device::{Device, DeviceError, FileDevice, FileOptions};
use oleo_fs::data::DataOptions;
use oleo_fs::{Clock, FixedClock, FsOptions, Time};
use oleo_mkfs::{SeededUuids, UNFINISHED, fill_from_dir, fill_from_layers, fill_from_tar, partitions, trim};

#[cfg(feature = "nbd")]
use crate::device::open::open_place;
use crate::device::{Place, PlaceOptions};
use crate::{Error, ErrorKind, Hint, Image, OpenOptions, Result};

mod needs;

pub use crate::settings::{parse_checksum, random_seed, seed_from_text};
pub use oleo_format::CsumType;
pub use oleo_mkfs::{
    FeatureSet, FillOptions, Made, MkfsError, MkfsOptions, OnProgress, Progress, Reflink, Report, SubvolSpec,
    TableEntry, TopAttributes, make, parse_table,
};
pub use oleo_volume::Profile;

/// How long a file is made while its contents are not known: sparse, and cut at the end. Less where the host does not
/// allow such files.
const GROWING_BYTES: u64 = 1 << 46;
/// The least that a growing file is tried with.
const GROWING_BYTES_MIN: u64 = 1 << 30;
/// Room that is left behind the last chunk of an image that was grown and is not to be shrunk.
const HEADROOM_BYTES: u64 = 256 << 20;
/// Chunks of an image that grows have at most this many bytes at first, so that little of the last one is in vain.
const GROWING_CHUNK_BYTES: u64 = 128 << 20;
/// Bytes of a volume on an object store for which nothing else is said: only what is written takes room.
#[cfg(feature = "remote")]
const REMOTE_BYTES: u64 = 1 << 40;
/// The same where the image is to be as small as can be.
const SHRUNK_CHUNK_BYTES: u64 = 16 << 20;

/// What goes into a new image.
pub enum Source {
    /// Nothing.
    Empty,
    /// Everything in a directory of the host.
    Dir(PathBuf),
    /// A tar archive, plain or compressed with gzip or zstd.
    Tar(Box<dyn Read + Send>),
    /// Tar archives on top of each other, the lowest first, with whiteouts, as the layers of a container's image (OCI).
    Layers(Vec<Box<dyn Read + Send>>),
}

/// How to make an image.
#[non_exhaustive]
pub struct BuildOptions {
    /// The file system.
    pub mkfs: MkfsOptions,
    /// What goes in.
    pub source: Source,
    /// How it goes in.
    pub fill: FillOptions,
    /// Bytes of each image. `None`: what is there already, or as much as the source needs.
    pub size: Option<u64>,
    /// Where in the file the image begins; only for a single one.
    pub offset: u64,
    /// Cut the image behind its last chunk; only files can be cut.
    pub shrink: bool,
    /// Overwrite what is there.
    pub force: bool,
    /// Share data with the files of a source directory, which must be on the same file system of the host as the
    /// image, and that file system able to (btrfs, XFS).
    pub reflink: bool,
    /// How devices are reached that are no files of this machine.
    pub places: PlaceOptions,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        BuildOptions {
            mkfs: MkfsOptions::default(),
            source: Source::Empty,
            fill: FillOptions::default(),
            size: None,
            offset: 0,
            shrink: false,
            force: false,
            reflink: false,
            places: PlaceOptions::default(),
        }
    }
}

oleo_format::setters!(BuildOptions {
    mkfs: MkfsOptions,
    source: Source,
    fill: FillOptions,
    size: Option<u64>,
    offset: u64,
    shrink: bool,
    force: bool,
    reflink: bool,
    places: PlaceOptions,
});

/// What was made.
#[derive(Clone, Debug)]
pub struct BuildReport {
    /// The file system.
    pub made: Made,
    /// What was put in.
    pub filled: Report,
    /// Bytes of all images together in the end.
    pub bytes: u64,
}

/// One image that is being made.
struct Target {
    name: PathBuf,
    what: What,
    /// There was nothing before: it goes away again when the work fails.
    created: bool,
    growing: bool,
    /// Its old contents are gone, and it grows: nothing of it is kept if the work fails.
    emptied: bool,
    len: u64,
}

/// What an image lies on.
enum What {
    /// A file or block device.
    File,
    /// What is no file of this machine is opened once, since it may not be there a second time.
    #[cfg(feature = "nbd")]
    Opened(Arc<dyn Device>),
    /// A volume on an object store, which is to be made.
    #[cfg(feature = "remote")]
    Volume(Box<oleo_remote::Url>),
}

/// Makes a file system in these image files or on these devices, and fills it.
///
/// Files that are not there are made. With a source and without a size they grow as needed, sparse.
///
/// # Errors
/// Something is there already and `force` is not set; there is no room; the source cannot be read.
pub fn build<P: AsRef<Path>>(images: &[P], mut options: BuildOptions) -> Result<BuildReport> {
    if images.len() > 1 && options.offset != 0 {
        return Err(Error::Request("an offset is for a single image".into()));
    }
    let mut targets = Vec::new();
    let result = build_all(images, &mut options, &mut targets);
    if result.is_err() {
        for target in &targets {
            // The error that ended the work is the one to report.
            let _kept = match (target.created, target.emptied) {
                (true, _) => fs::remove_file(&target.name),
                (false, true) => fs::OpenOptions::new().write(true).open(&target.name).and_then(|file| file.set_len(0)),
                (false, false) => Ok(()),
            };
        }
    }
    result
}

fn build_all<P: AsRef<Path>>(
    images: &[P],
    options: &mut BuildOptions,
    targets: &mut Vec<Target>,
) -> Result<BuildReport> {
    for image in images {
        let target = target(image.as_ref(), options).map_err(|error| error.of_image(image.as_ref()))?;
        targets.push(target);
    }
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for target in targets.iter_mut() {
        devices.push(open_target(target, options).map_err(|error| error.of_image(&target.name))?);
        if matches!(target.what, What::File) {
            let meta = fs::metadata(&target.name).map_err(Error::host("open", &target.name))?;
            options.fill.skip.extend(number_of(&meta));
        }
    }
    if options.reflink {
        options.fill.reflink = Some(reflink(targets, options)?);
    }
    let growing = targets.iter().any(|target| target.growing);
    if growing || options.shrink {
        options.mkfs.metadata_chunk_max = Some(chunk_bytes(options));
    }
    let made = make(&devices, &options.mkfs)?;
    let source = std::mem::replace(&mut options.source, Source::Empty);
    let mut filled = Report::default();
    let (quota, simple) = (options.mkfs.features.quota, options.mkfs.features.simple_quota);
    if growing || options.shrink || quota || simple || !matches!(source, Source::Empty) {
        let image = open_made(devices.clone(), options, growing)?;
        // Until everything is in it, no reader may take it for a file system: it would look clean, and be empty.
        image.volume().mark_unfinished(true)?;
        if simple {
            image.quota_enable_simple()?;
        }
        let top = image.top()?;
        filled = match source {
            Source::Empty => Report::default(),
            Source::Dir(dir) => fill_from_dir(image.fs(), &top, &dir, &options.fill)
                .map_err(|error| larger(error.into(), &dir, &made, devices.len()))?,
            Source::Tar(stream) => fill_from_tar(image.fs(), &top, stream, &options.fill)?,
            Source::Layers(layers) => fill_from_layers(image.fs(), &top, layers, &options.fill)?,
        };
        if quota {
            image.quota_enable()?;
        }
        if growing || options.shrink {
            trim(image.fs(), if options.shrink { 0 } else { HEADROOM_BYTES })?;
        }
        image.sync()?;
        image.volume().mark_unfinished(false)?;
        image.close()?;
    }
    Ok(BuildReport { made, filled, bytes: devices.iter().map(|device| device.len()).sum() })
}

/// Names the size that suffices, if the source does not fit.
fn larger(error: Error, dir: &Path, made: &Made, device_count: usize) -> Error {
    if error.errno() != oleo_fs::errno::ENOSPC || error.kind() != ErrorKind::Refusal {
        return error;
    }
    match needs::of_dir(dir, made, device_count as u64) {
        Some(bytes) => {
            let text = format!("no space left: {} needs about {} MiB", dir.display(), bytes.div_ceil(1 << 20));
            Error::refused(oleo_fs::errno::ENOSPC, text).with_hint(Hint::MakeRoom)
        }
        None => error,
    }
}

fn reflink(targets: &[Target], options: &BuildOptions) -> Result<Reflink> {
    let ([target], Source::Dir(dir)) = (targets, &options.source) else {
        return Err(Error::Request("sharing data needs a source directory and a single image".into()));
    };
    if options.fill.compress.is_some() || options.mkfs.data.is_some_and(|profile| profile != Profile::Single) {
        return Err(Error::Request("sharing data needs data that is not compressed and has one copy".into()));
    }
    let device_of = |path: &Path| -> Result<Option<u64>> {
        let meta = fs::metadata(path).map_err(Error::host("open", path))?;
        Ok(number_of(&meta).map(|(device, _)| device))
    };
    if device_of(dir)? != device_of(&target.name)? {
        let both = format!("{} and {}", dir.display(), target.name.display());
        return Err(Error::refused(
            oleo_fs::errno::EXDEV,
            format!("{both} are on different file systems and cannot share data"),
        ));
    }
    Ok(Reflink::new(&target.name, options.offset)?)
}

/// The numbers of a file's file system and of its inode, where directories of the host are filled from.
#[cfg(target_os = "linux")]
fn number_of(meta: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;

    Some((meta.dev(), meta.ino()))
}

#[cfg(target_os = "linux")]
fn is_block_device(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;

    meta.file_type().is_block_device()
}

#[cfg(not(target_os = "linux"))]
fn number_of(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}

#[cfg(not(target_os = "linux"))]
fn is_block_device(_: &fs::Metadata) -> bool {
    false
}

fn chunk_bytes(options: &BuildOptions) -> u64 {
    if options.shrink { SHRUNK_CHUNK_BYTES } else { GROWING_CHUNK_BYTES }
}

fn open_made(devices: Vec<Arc<dyn Device>>, options: &BuildOptions, growing: bool) -> Result<Image> {
    let clock: Arc<dyn Clock> = Arc::new(FixedClock(Time { sec: options.mkfs.created_seconds, nsec: 0 }));
    let fs = FsOptions::default()
        .clock(clock)
        .uuids(Arc::new(SeededUuids::new(options.mkfs.seed)))
        .data(DataOptions::default().compress(options.fill.compress));
    let chunk_len_max = (growing || options.shrink).then(|| chunk_bytes(options));
    Image::from_devices_sized(devices, &OpenOptions { fs, ..OpenOptions::writing() }, chunk_len_max)
}

/// Finds out what a name leads to, and how long the image shall be.
fn target(name: &Path, options: &BuildOptions) -> Result<Target> {
    let place = Place::parse(name)?;
    if options.reflink && !place.is_file() {
        return Err(Error::Request("sharing data needs an image file".into()));
    }
    match place {
        Place::File(path) => file_target(&path, options),
        #[cfg(feature = "remote")]
        Place::Remote(url) => volume_target(name, url, options),
        #[cfg(feature = "nbd")]
        Place::Nbd(_) => {
            must_be_whole(options)?;
            let mut how = FileOptions::default().write(true).offset(options.offset);
            if let Some(size) = options.size {
                how.len = Some(size);
            }
            let device = open_place(&place, &how, &options.places)?;
            if let Some(size) = options.size
                && device.len() < size
            {
                let text = format!("has {} bytes, not {size}, and cannot grow", device.len());
                return Err(Error::refused(oleo_fs::errno::ENOSPC, text));
            }
            let len = device.len();
            Ok(Target {
                name: name.to_owned(),
                what: What::Opened(device),
                created: false,
                growing: false,
                emptied: false,
                len,
            })
        }
    }
}

#[cfg(feature = "remote")]
fn volume_target(name: &Path, url: Box<oleo_remote::Url>, options: &BuildOptions) -> Result<Target> {
    if options.offset != 0 {
        return Err(Error::Request("an offset is for files and disks".into()));
    }
    let growing = options.shrink && options.size.is_none() && !matches!(options.source, Source::Empty);
    let len = options.size.unwrap_or(if growing { GROWING_BYTES } else { REMOTE_BYTES });
    Ok(Target { name: name.to_owned(), what: What::Volume(url), created: false, growing, emptied: false, len })
}

/// Of what has a length of its own, nothing is cut off. It is said before anything is written.
fn must_be_whole(options: &BuildOptions) -> Result<()> {
    match options.shrink {
        true => Err(Error::Request("only an image file can be cut behind what is needed".into())),
        false => Ok(()),
    }
}

fn file_target(path: &Path, options: &BuildOptions) -> Result<Target> {
    let empty = matches!(options.source, Source::Empty);
    let (created, is_block, have) = match fs::metadata(path) {
        Ok(meta) if is_block_device(&meta) => (false, true, 0),
        Ok(meta) if meta.is_file() => (false, false, meta.len()),
        Ok(_) => return Err(DeviceError::Kind { path: path.to_owned() }.into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (true, false, 0),
        Err(error) => return Err(Error::host("open", path)(error)),
    };
    let after = have.saturating_sub(options.offset);
    if is_block {
        must_be_whole(options)?;
    }
    if is_block || (options.offset > 0 && have > 0) {
        let len = part_of(path, options)?;
        return Ok(Target { name: path.to_owned(), what: What::File, created, growing: false, emptied: false, len });
    }
    // A file that is there and is not empty keeps its length, unless it is to be as short as can be.
    let growing = options.size.is_none() && !empty && (after == 0 || options.shrink);
    let len = match options.size {
        Some(size) => size,
        None if growing => 0,
        None if after > 0 => after,
        None => {
            let what = if created { "there is no such file yet" } else { "the file is empty" };
            return Err(Error::Request(what.into()).with_hint(Hint::GiveSize));
        }
    };
    Ok(Target { name: path.to_owned(), what: What::File, created, growing, emptied: false, len })
}

/// Bytes that the image may have on a block device, or in a file that holds more than it.
fn part_of(path: &Path, options: &BuildOptions) -> Result<u64> {
    let device = FileDevice::open(path, &FileOptions::default())?;
    let whole = device.len().saturating_sub(options.offset);
    // A file system that begins before the offset may reach beyond it; a table of partitions does not.
    if options.offset > 0 && partitions(&device)?.is_none() {
        must_be_free(&device, options)?;
    }
    if let Some(size) = options.size {
        if size > whole {
            let text = format!("there are {whole} bytes from byte {} on, not {size}", options.offset);
            return Err(Error::refused(oleo_fs::errno::ENOSPC, text));
        }
        return Ok(size);
    }
    if options.offset == 0 {
        return Ok(whole);
    }
    // Behind a partition are others, or the second copy of the table.
    match partitions(&device)? {
        None if whole == 0 => Err(Error::Request("the file ends there".into()).with_hint(Hint::GiveSize)),
        None => Ok(whole),
        Some(found) => {
            let partition = found.iter().find(|partition| partition.start == options.offset);
            let missing = || {
                let text = format!("no partition begins at byte {} of the partition table", options.offset);
                Error::Request(text).with_hint(Hint::GiveSize)
            };
            Ok(partition.ok_or_else(missing)?.len.min(whole))
        }
    }
}

/// Gives up what an old image holds, where the host or device can: a file becomes sparse.
fn discard(device: &dyn Device) -> Result<()> {
    match device.discard(0, device.len()) {
        Ok(()) | Err(DeviceError::Unsupported { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether it may be overwritten.
fn must_be_free(device: &dyn Device, options: &BuildOptions) -> Result<()> {
    if !options.force
        && let Some(what) = oleo_mkfs::signature(device)?
        && what != UNFINISHED
    {
        return Err(Error::refused(oleo_fs::errno::EEXIST, format!("holds {what}")).with_hint(Hint::Overwrite));
    }
    Ok(())
}

fn open_target(target: &mut Target, options: &BuildOptions) -> Result<Arc<dyn Device>> {
    match &target.what {
        What::File => {}
        #[cfg(feature = "nbd")]
        What::Opened(device) => {
            must_be_free(device.as_ref(), options)?;
            discard(device.as_ref())?;
            return Ok(device.clone());
        }
        // It begins with nothing but zeros, and is refused where one is already.
        #[cfg(feature = "remote")]
        What::Volume(url) => {
            let device = oleo_remote::create_at(url, target.len, options.force, &options.places.remote)?;
            return Ok(Arc::new(device));
        }
    }
    let file_options = |len| FileOptions::default().write(true).create(true).offset(options.offset).len(len);
    let is_block = fs::metadata(&target.name).is_ok_and(|meta| is_block_device(&meta));
    let device = if is_block {
        FileDevice::open(
            &target.name,
            &file_options((options.size.is_some() || options.offset > 0).then_some(target.len)),
        )?
    } else {
        FileDevice::open(&target.name, &file_options(None))?
    };
    must_be_free(&device, options)?;
    if is_block {
        discard(&device)?;
        return Ok(Arc::new(device));
    }
    if !target.growing {
        // A file whose image is only a part of it is never made shorter.
        if options.offset == 0 || device.len() < target.len {
            device.set_len(target.len)?;
        }
        if device.len() == target.len {
            discard(&device)?;
            return Ok(Arc::new(device));
        }
        drop(device);
        let part = FileDevice::open(&target.name, &file_options(Some(target.len)))?;
        discard(&part)?;
        return Ok(Arc::new(part));
    }
    target.emptied = true;
    device.set_len(0)?;
    let mut len = GROWING_BYTES;
    loop {
        match device.set_len(len) {
            Ok(()) => return Ok(Arc::new(device)),
            Err(_) if len > GROWING_BYTES_MIN => len /= 2,
            Err(error) => return Err(error.into()),
        }
    }
}
