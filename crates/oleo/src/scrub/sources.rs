//! Bytes from elsewhere for what no copy has: the same file in a directory or in another image.
//!
//! For a bad sector: (1) the files that it is in, and where in them; (2) the same places under the same names in each source; of a compressed extent all of
//! its bytes, compressed again in every way that we have, since the same bytes are compressed the same way only with the same level. Whether what comes
//! out belongs there, its checksum decides (`oleo-jobs`). What cannot be read is passed over.

use std::ffi::OsStr;
use std::fs::File as HostFile;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oleo_format::{Compression, FileExtent, Key, TreeId, compress};
use oleo_fs::Fs;
use oleo_jobs::{Candidates, Referrer, Wanted, referrers_at_commit};

use crate::{Image, OpenOptions, Result};

/// Places in files that are tried for one sector.
const PLACES_MAX: usize = 64;
/// Levels of compression that are tried: all that we write with, the usual ones first.
const LEVELS: [(Compression, &[i32]); 3] = [
    (Compression::Zlib, &[3, 1, 2, 4, 5, 6, 7, 8, 9]),
    (Compression::Lzo, &[0]),
    (Compression::Zstd, &[3, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
];

enum Source {
    Dir(PathBuf),
    Image(Box<Image>),
}

/// See the text of the module.
pub struct Sources(Vec<Source>);

impl Sources {
    /// Opens directories, and images for reading.
    ///
    /// # Errors
    /// One is neither.
    pub fn open(paths: &[PathBuf]) -> Result<Sources> {
        let open = |path: &PathBuf| match path.is_dir() {
            true => Ok(Source::Dir(path.clone())),
            false => Ok(Source::Image(Box::new(Image::open(path, &OpenOptions::default())?))),
        };
        Ok(Sources(paths.iter().map(open).collect::<Result<_>>()?))
    }
}

impl Source {
    /// So many bytes of a file from an offset on, zeros behind its end; `None` if it is not there.
    fn read(&self, path: &[u8], at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self {
            Source::Dir(dir) => {
                let file = HostFile::open(dir.join(Path::new(OsStr::from_bytes(path)))).ok()?;
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
        }
    }
}

/// Which bytes of a file a sector is made of.
struct Made {
    at: u64,
    len: usize,
    /// How they are compressed, and where in that the sector is.
    packed: Option<(Compression, usize)>,
}

/// `None`: the file has changed since.
fn made_of(fs: &Fs, wanted: &Wanted, referrer: &Referrer) -> Option<Made> {
    let engine = fs.engine();
    let root = engine.root(referrer.tree).ok()??;
    let mut cursor = engine.blocks().cursor(&root);
    let key = Key::extent_data(referrer.ino, referrer.at);
    if !cursor.seek_back(&key).ok()? {
        return None;
    }
    let (found, item) = cursor.current()?;
    let (FileExtent::Regular(part) | FileExtent::Prealloc(part)) = FileExtent::parse(item).ok()? else { return None };
    if (found.objectid, found.item_type) != (key.objectid, key.item_type) {
        return None;
    }
    let len = usize::try_from(wanted.len).ok()?;
    if part.compression == Compression::None {
        return Some(Made { at: referrer.at, len, packed: None });
    }
    let inside = usize::try_from(wanted.at.0.checked_sub(part.disk_bytenr.0)?).ok()?;
    let ram = usize::try_from(part.ram_bytes.0).ok().filter(|len| *len <= compress::EXTENT_LEN_MAX)?;
    Some(Made { at: found.offset.checked_sub(part.offset.0)?, len: ram, packed: Some((part.compression, inside)) })
}

impl Candidates for Sources {
    fn offer(&self, fs: &Fs, wanted: &Wanted, fits: &mut dyn FnMut(&[u8]) -> bool) {
        let Ok(referrers) = referrers_at_commit(fs, wanted.at) else { return };
        for referrer in referrers.iter().take(PLACES_MAX) {
            let Some(made) = made_of(fs, wanted, referrer) else { continue };
            let inode = fs.subvol(referrer.tree).and_then(|subvol| fs.inode(&subvol, referrer.ino));
            let Ok(names) = inode.and_then(|inode| fs.paths(&inode)) else { continue };
            let below = fs.subvol_info(referrer.tree).map(|info| info.path).unwrap_or_default();
            for name in &names {
                // A source may be of everything, or of the one subvolume.
                let inside = name.strip_prefix(&*below).map(|rest| rest.strip_prefix(b"/").unwrap_or(rest));
                let both = [Some(name.as_slice()), inside.filter(|_| referrer.tree != TreeId::FS)];
                for path in both.into_iter().flatten() {
                    for source in &self.0 {
                        if source
                            .read(path, made.at, made.len)
                            .is_some_and(|bytes| offer(fs, &made, wanted, bytes, fits))
                        {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Offers bytes of a file, packed as they are stored; whether they were taken.
fn offer(fs: &Fs, made: &Made, wanted: &Wanted, bytes: Vec<u8>, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let Some((kind, inside)) = made.packed else { return fits(&bytes) };
    let levels = LEVELS.iter().filter(|(known, _)| *known == kind).flat_map(|(_, levels)| levels.iter());
    levels.into_iter().any(|level| {
        let packed = compress(kind, *level, &bytes, fs.engine().sectorsize());
        packed.and_then(|packed| packed.get(inside..inside + wanted.len as usize).map(&mut *fits)).unwrap_or(false)
    })
}
