//! Parts of objects on the local disk, so that what was read once is not read from the store again, also not by another
//! process or after a restart.
//!
//! A file of the directory of a volume is a MiB of an object, named by the object and which MiB it is. It is sparse: a frame
//! or a page that was read is written at its own place in it, and what is not there reads as zeros. Nothing in it is
//! believed: who reads compares the checksum that the frame or the reference has, so holes, torn writes and damage are all
//! found as being absent, and are written again. Names of objects are never used twice, so nothing in it becomes wrong. What
//! is sealed stays so in it.
//!
//! Several processes share a directory: they write the same bytes to the same places. Each counts what it finds when it
//! begins and after every sixteenth of the bound that it writes, and then removes what was used least recently until it is
//! below the bound; so together they may be above it by a sixteenth each. A disk that is full or fails ends writing to it for
//! a while; nobody fails for it.
//!
//! Locks: `DiskCache::files`, of the lowest kind, never held over I/O.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oleo_lock::{Mutex, rank};

use crate::error::RemoteError;
use crate::format::ObjectId;

/// Bytes of an object in one file.
const PIECE_LEN: u64 = 1 << 20;
/// Bytes of the unit of [`MetadataExt::blocks`].
const DISK_UNIT: u64 = 512;
/// What is counted for a file besides its data.
const FILE_BYTES: u64 = 4096;
/// What is below the bound after files were removed: an eighth of it.
const ROOM_SHARE: u64 = 8;
/// After how much of the bound is written the directory is looked at again: a sixteenth.
const LOOK_SHARE: u64 = 16;

/// A piece of an object.
type Piece = (ObjectId, u32);

#[derive(Clone, Copy)]
struct Known {
    bytes: u64,
    used: u64,
}

#[derive(Default)]
struct Files {
    known: HashMap<Piece, Known>,
    bytes: u64,
    clock: u64,
    /// Bytes written since the directory was looked at.
    written: u64,
}

/// See the module's text.
pub(crate) struct DiskCache {
    dir: PathBuf,
    bytes_max: u64,
    files: Mutex<rank::RemoteDiskCache, Files>,
    failures: AtomicU64,
    /// Whether the last attempt to write failed, and what was not written since one did.
    failing: AtomicBool,
    left_out: AtomicU64,
}

impl DiskCache {
    /// Of a volume, in a directory that is made if need be, and is the user's alone.
    pub(crate) fn open(dir: &Path, uuid: [u8; 16], bytes_max: u64) -> Result<DiskCache, RemoteError> {
        let dir = volume_dir(dir, uuid)?;
        let cache = DiskCache {
            dir,
            bytes_max,
            files: Mutex::default(),
            failures: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            left_out: AtomicU64::new(0),
        };
        cache.look();
        Ok(cache)
    }

    /// The directory of the volume.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes that are in it, as far as is known.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.lock().bytes
    }

    /// How often the disk failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The bytes at a place of an object, which may be anything: see the module's text.
    pub(crate) fn read(&self, id: ObjectId, off: u32, len: usize) -> Option<Vec<u8>> {
        debug_assert!(id.origin == 0, "objects of another volume are in the directory of that");
        let mut out = vec![0; len];
        for (piece, at, part) in parts(id, off, len) {
            let file = File::open(self.path(piece)).ok()?;
            file.read_exact_at(&mut out[part], at).ok()?;
            let mut files = self.files.lock();
            files.clock += 1;
            let used = files.clock;
            files.known.entry(piece).or_insert(Known { bytes: 0, used }).used = used;
        }
        Some(out)
    }

    /// Keeps bytes that were read and compared.
    pub(crate) fn write(&self, id: ObjectId, off: u32, bytes: &[u8]) {
        if self.bytes_max < PIECE_LEN {
            return;
        }
        // While the disk fails only every so many attempts are made.
        const TRY_EVERY: u64 = 64;
        if self.failing.load(Ordering::Relaxed)
            && !self.left_out.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRY_EVERY)
        {
            return;
        }
        let done = self.write_parts(id, off, bytes);
        self.failing.store(done.is_err(), Ordering::Relaxed);
        if done.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let (written, bytes) = {
            let files = self.files.lock();
            (files.written, files.bytes)
        };
        if written > self.bytes_max / LOOK_SHARE || bytes > self.bytes_max {
            self.look();
        }
    }

    fn write_parts(&self, id: ObjectId, off: u32, bytes: &[u8]) -> io::Result<()> {
        for (piece, at, part) in parts(id, off, bytes.len()) {
            let part = &bytes[part];
            let file = File::options().create(true).write(true).truncate(false).open(self.path(piece))?;
            file.write_all_at(part, at)?;
            let now = bytes_of(&file.metadata()?);
            let mut files = self.files.lock();
            files.clock += 1;
            let used = files.clock;
            let before = files.known.insert(piece, Known { bytes: now, used }).map_or(0, |known| known.bytes);
            files.bytes = (files.bytes + now).saturating_sub(before);
            files.written += part.len() as u64;
        }
        Ok(())
    }

    /// Looks at what is there, and removes what is too much. A directory that cannot be read is taken for empty.
    fn look(&self) {
        let mut found: Vec<(Piece, u64, i64)> = Vec::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let piece = entry.file_name().to_str().and_then(piece_of);
            if let (Some(piece), Ok(meta)) = (piece, entry.metadata()) {
                found.push((piece, bytes_of(&meta), meta.mtime()));
            }
        }
        let mut files = self.files.lock();
        let before = std::mem::take(&mut files.known);
        files.written = 0;
        files.bytes = found.iter().map(|(_, bytes, _)| bytes).sum();
        // What nobody here has used comes first, in the order of its writing.
        let used = |piece: &Piece| before.get(piece).map_or(0, |known| known.used);
        let mut by_use: Vec<(u64, i64, Piece, u64)> =
            found.into_iter().map(|(piece, bytes, modified)| (used(&piece), modified, piece, bytes)).collect();
        by_use.sort_unstable();
        files.known = by_use.iter().map(|&(used, _, piece, bytes)| (piece, Known { bytes, used })).collect();
        if files.bytes <= self.bytes_max {
            return;
        }
        let mut gone = Vec::new();
        for (_, _, piece, bytes) in by_use {
            if files.bytes <= self.bytes_max - self.bytes_max / ROOM_SHARE {
                break;
            }
            files.bytes -= bytes;
            files.known.remove(&piece);
            gone.push(piece);
        }
        drop(files);
        for piece in gone {
            // Gone already, or again there with the next look.
            let _gone = fs::remove_file(self.path(piece));
        }
    }

    fn path(&self, (id, n): Piece) -> PathBuf {
        let kind = if id.map { "map" } else { "seg" };
        self.dir.join(format!("{kind}-{:08x}-{:012x}.{n:02x}", id.epoch, id.n))
    }
}

/// The piece that a name of a file is of.
fn piece_of(name: &str) -> Option<Piece> {
    let (object, n) = name.split_once('.')?;
    let mut parts = object.split('-');
    let map = match parts.next()? {
        "map" => true,
        "seg" => false,
        _ => return None,
    };
    let epoch = u32::from_str_radix(parts.next()?, 16).ok()?;
    let number = u64::from_str_radix(parts.next()?, 16).ok()?;
    let n = u32::from_str_radix(n, 16).ok()?;
    Some((ObjectId { epoch, n: number, map, origin: 0 }, n))
}

/// Parts of a range of an object, each in one piece: which, where in it, and which bytes of the range.
fn parts(id: ObjectId, off: u32, len: usize) -> impl Iterator<Item = (Piece, u64, Range<usize>)> {
    let (first, end) = (u64::from(off), u64::from(off) + len as u64);
    let pieces = first / PIECE_LEN..end.div_ceil(PIECE_LEN);
    pieces.map(move |n| {
        let (from, to) = (first.max(n * PIECE_LEN), end.min((n + 1) * PIECE_LEN));
        ((id, n as u32), from - n * PIECE_LEN, (from - first) as usize..(to - first) as usize)
    })
}

fn bytes_of(meta: &fs::Metadata) -> u64 {
    meta.blocks() * DISK_UNIT + FILE_BYTES
}

/// The directory of a volume in another, both made if need be and the user's alone.
pub(crate) fn volume_dir(dir: &Path, uuid: [u8; 16]) -> Result<PathBuf, RemoteError> {
    own_dir_in(dir, &uuid::Uuid::from_bytes(uuid).simple().to_string())
}

/// The directory of the places of volumes, made in the same way.
pub(crate) fn place_dir(dir: &Path) -> Result<PathBuf, RemoteError> {
    own_dir_in(dir, "names")
}

fn own_dir_in(dir: &Path, name: &str) -> Result<PathBuf, RemoteError> {
    let below = dir.join(name);
    let above = dir.parent().map_or(Ok(()), fs::create_dir_all);
    let made = above.and_then(|()| own_dir(dir)).and_then(|()| own_dir(&below));
    made.map_err(|e| RemoteError::Local { path: dir.into(), source: Arc::new(e) })?;
    Ok(below)
}

/// Makes a directory that nobody else may look into, or finds that it is one.
fn own_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other("the directory must be the user's alone (mode 700)"));
    }
    Ok(())
}
