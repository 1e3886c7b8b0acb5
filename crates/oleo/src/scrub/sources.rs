//! Bytes from elsewhere for what no copy has: the same file in a directory, in another image, or in streams of snapshots.
//!
//! For a bad sector: (1) the files that it is in, and where in them; (2) the same places under the same names in each source. Sectors
//! of compressed extents come as they are stored from an image that has the same extent there, from streams with compressed data
//! (`streams`), and from a directory on the kernel's btrfs (`encoded`). Another directory has only the contents: these are compressed
//! again at every level, which gives the same sectors by chance only, if the same compressor wrote them. The checksum decides whether a candidate belongs there (`oleo-jobs`). Sources that
//! cannot be read are passed over.

use std::path::PathBuf;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use oleo_format::stream::EncodedCompression;
use oleo_format::{Compression, DiskExtent, FileExtent, Ino, Key, Logical, TreeId, compress};
use oleo_fs::Fs;
use oleo_jobs::{Candidates, Referrer, Wanted, referrers_at_commit};
use oleo_stream::lookup::Steps;
use oleo_txn::CsumCheck;

use super::streams::{Made, Offer, StreamFiles, is_stream};
use crate::{Image, OpenOptions, Result};

/// Places in files that are tried for one sector.
const PLACES_MAX: usize = 64;
/// Steps that are taken in streams for one sector: a tenth of a second.
const STEPS_MAX: u64 = 1 << 24;
/// Levels of compression that are tried: all that we write with, the usual ones first.
const LEVELS: [(Compression, &[i32]); 3] = [
    (Compression::Zlib, &[3, 1, 2, 4, 5, 6, 7, 8, 9]),
    (Compression::Lzo, &[0]),
    (Compression::Zstd, &[3, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
];

enum Source {
    #[cfg(unix)]
    Dir(PathBuf),
    Image(Box<Image>),
    /// All streams: one may be built on another.
    Streams(Box<StreamFiles>),
}

/// See the text of the module.
pub struct Sources(Vec<Source>);

impl Sources {
    /// Opens directories, images for reading, and files with streams of `btrfs send`, of which all are read.
    ///
    /// # Errors
    /// One is none of these, or a stream is damaged, or is built on one that is not among them.
    pub fn open(paths: &[PathBuf]) -> Result<Sources> {
        let (mut sources, mut streams) = (Vec::new(), Vec::new());
        for path in paths {
            if path.is_dir() {
                sources.push(dir(path)?);
            } else if is_stream(path) {
                streams.push(path);
            } else {
                sources.push(Source::Image(Box::new(Image::open(path, &OpenOptions::default())?)));
            }
        }
        if !streams.is_empty() {
            sources.push(Source::Streams(Box::new(StreamFiles::open(&streams)?)));
        }
        Ok(Sources(sources))
    }
}

#[cfg(unix)]
fn dir(path: &std::path::Path) -> Result<Source> {
    Ok(Source::Dir(path.to_owned()))
}

/// Names in an image may be anything, and elsewhere some lead out of a directory.
#[cfg(not(unix))]
fn dir(path: &std::path::Path) -> Result<Source> {
    let text = "directories are sources on systems of the Unix kind only; images and streams are everywhere";
    Err(crate::Error::refused(oleo_fs::errno::EOPNOTSUPP, text).at(path.display()))
}

impl Source {
    /// Offers what is at a path; whether it was taken.
    fn offer(&self, path: &[u8], made: &Made, steps: &mut Steps, take: &mut dyn FnMut(Offer<'_>) -> bool) -> bool {
        match self {
            Source::Streams(streams) => streams.offer(path, made, steps, take),
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Source::Dir(dir)
                if encoded(dir, path, made).is_some_and(|(kind, bytes)| take(Offer::Packed(kind, &bytes))) =>
            {
                true
            }
            Source::Image(image) if stored(image, path, made).is_some_and(|sector| take(Offer::Stored(&sector))) => {
                true
            }
            _ => self.read(path, made.at, made.len).is_some_and(|bytes| take(Offer::Plain(&bytes))),
        }
    }

    /// So many bytes of a file from an offset on, zeros behind its end; `None` if it is not there.
    fn read(&self, path: &[u8], at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self {
            #[cfg(unix)]
            Source::Dir(dir) => {
                use std::os::unix::fs::FileExt;

                let file = open_below(dir, path)?;
                let mut done = 0;
                while done < len {
                    match file.read_at(&mut bytes[done..], at + done as u64).ok()? {
                        0 => break,
                        more => done += more,
                    }
                }
                (done > 0).then_some(bytes)
            }
            Source::Image(image) => {
                let file = image.open_file(path).ok()?;
                (file.read_at(&mut bytes, at).ok()? > 0).then_some(bytes)
            }
            Source::Streams(_) => None,
        }
    }
}

/// Opens a regular file below a directory. Links in its path are not followed.
#[cfg(unix)]
fn open_below(dir: &std::path::Path, path: &[u8]) -> Option<std::fs::File> {
    use rustix::fs::{Mode, OFlags, open, openat};

    let dir_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = open(dir, dir_flags, Mode::empty()).ok()?;
    let (dirs, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&path[..0], path),
    };
    for part in dirs.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        at = openat(&at, part, dir_flags | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    }
    // Opening a pipe otherwise waits for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(openat(&at, name, flags, Mode::empty()).ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}

/// Returns a compressed extent of a file in a directory, as it is stored there, if the file system tells.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn encoded(dir: &std::path::Path, path: &[u8], made: &Made) -> Option<(Compression, Vec<u8>)> {
    made.packed?;
    let (number, bytes) = super::encoded::read(&open_below(dir, path)?, made.begins)?;
    Some((EncodedCompression::from_number(number).ok()?.kind, bytes))
}

/// Returns a sector of a compressed extent as an image stores it, if the part of the file that begins there is of such an extent.
fn stored(image: &Image, path: &[u8], made: &Made) -> Option<Vec<u8>> {
    let (kind, inside) = made.packed?;
    let file = image.open_file(path).ok()?;
    let (begins, part) = extent_at(image.fs(), file.inode().tree(), file.inode().ino(), made.begins)?;
    let end = inside.checked_add(made.sector)?;
    let is_same = part.compression == kind && begins.checked_sub(part.offset.0) == Some(made.at);
    let engine = image.fs().engine();
    if !is_same || end as u64 > part.disk_num_bytes.0 || !made.sector.is_multiple_of(engine.sectorsize() as usize) {
        return None;
    }
    let mut sector = vec![0; made.sector];
    engine.read_data(Logical(part.disk_bytenr.0.checked_add(inside as u64)?), &mut sector, CsumCheck::Verify).ok()?;
    Some(sector)
}

/// Returns the file extent that covers an offset in a file, as of the last commit, and where in the file its item begins.
fn extent_at(fs: &Fs, tree: TreeId, ino: Ino, at: u64) -> Option<(u64, DiskExtent)> {
    let engine = fs.engine();
    let root = engine.root(tree).ok()??;
    let mut cursor = engine.blocks().cursor(&root);
    let key = Key::extent_data(ino, at);
    if !cursor.seek_back(&key).ok()? {
        return None;
    }
    let (found, item) = cursor.current()?;
    let (FileExtent::Regular(part) | FileExtent::Prealloc(part)) = FileExtent::parse(item).ok()? else { return None };
    ((found.objectid, found.item_type) == (key.objectid, key.item_type)).then_some((found.offset, part))
}

/// `None`: the file has changed since.
fn made_of(fs: &Fs, wanted: &Wanted, referrer: &Referrer) -> Option<Made> {
    let (begins, part) = extent_at(fs, referrer.tree, referrer.ino, referrer.at)?;
    let sector = usize::try_from(wanted.len).ok()?;
    if part.compression == Compression::None {
        return Some(Made { at: referrer.at, len: sector, begins, sector, packed: None });
    }
    let inside = usize::try_from(wanted.at.0.checked_sub(part.disk_bytenr.0)?).ok()?;
    let ram = usize::try_from(part.ram_bytes.0).ok().filter(|len| *len <= compress::EXTENT_LEN_MAX)?;
    let packed = Some((part.compression, inside));
    Some(Made { at: begins.checked_sub(part.offset.0)?, len: ram, begins, sector, packed })
}

impl Candidates for Sources {
    fn offer(&self, fs: &Fs, wanted: &Wanted, fits: &mut dyn FnMut(&[u8]) -> bool) {
        let Ok(referrers) = referrers_at_commit(fs, wanted.at) else { return };
        let mut steps = Steps::new(STEPS_MAX);
        for referrer in referrers.iter().take(PLACES_MAX) {
            let Some(made) = made_of(fs, wanted, referrer) else { continue };
            let inode = fs.subvol(referrer.tree).and_then(|subvol| fs.inode(&subvol, referrer.ino));
            let Ok(names) = inode.and_then(|inode| fs.paths(&inode)) else { continue };
            let below = fs.subvol_info(referrer.tree).map(|info| info.path).unwrap_or_default();
            let mut take = |offer: Offer<'_>| offer.is_taken(fs, &made, wanted, fits);
            for name in &names {
                // A source may be of everything, or of the one subvolume.
                let inside = name.strip_prefix(&*below).map(|rest| rest.strip_prefix(b"/").unwrap_or(rest));
                let both = [Some(name.as_slice()), inside.filter(|_| referrer.tree != TreeId::FS)];
                let mut tried = both.into_iter().flatten().flat_map(|path| self.0.iter().map(move |s| (s, path)));
                if tried.any(|(source, path)| source.offer(path, &made, &mut steps, &mut take)) {
                    return;
                }
            }
        }
    }
}

impl Offer<'_> {
    /// Offers it as it is stored; whether it was taken.
    fn is_taken(&self, fs: &Fs, made: &Made, wanted: &Wanted, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let len = wanted.len as usize;
        match (self, made.packed) {
            (Offer::Plain(bytes), None) | (Offer::Stored(bytes), _) => fits(bytes),
            (Offer::Plain(bytes), Some((kind, inside))) => {
                let levels = LEVELS.iter().filter(|(known, _)| *known == kind).flat_map(|(_, levels)| levels.iter());
                levels.into_iter().any(|level| {
                    let packed = compress(kind, *level, bytes, fs.engine().sectorsize());
                    packed.and_then(|packed| packed.get(inside..inside + len).map(&mut *fits)).unwrap_or(false)
                })
            }
            (Offer::Packed(as_kind, bytes), Some((kind, inside))) if *as_kind == kind => {
                // Zeros fill the last sector.
                let mut sector = bytes.get(inside..).unwrap_or_default().to_vec();
                sector.resize(len, 0);
                inside < bytes.len() && fits(&sector)
            }
            (Offer::Packed(..), _) => false,
        }
    }
}
