//! Defragmentation: rewrites parts of files that are in many small extents, so that they have fewer and longer ones.
//!
//! Normal path, for one file: (1) write out what is buffered; (2) go through its extents in order. Runs of small
//! extents that are adjacent in the file but not on disk become candidates; if a compression is requested, so do
//! extents that are not compressed that way; (3) rewrite each candidate in steps of at most [`STEP_MAX`], each under
//! the file's own lock (`Fs::rewrite`), so that no write is lost and writers do not wait long; times stay as they are.
//!
//! What is rewritten is no longer shared; extents that are long enough are not touched and stay shared. Holes and
//! preallocated space stay what they are.
//! Crash: each step is done completely or not at all.

use std::ops::Range;

use oleo_format::Compression;
use oleo_fs::data::{Compress, ExtentInfo, ExtentKind};
use oleo_fs::{Descent, FileKind, Fs, FsError, InodeRef, Target};
use serde::{Deserialize, Serialize};

use crate::JobError;

/// Bytes that are read and written under one holding of the file's lock.
const STEP_MAX: u64 = 32 << 20;
/// Extents from this length on are not rewritten by default (32 MiB).
const THRESHOLD: u64 = 32 << 20;
/// The most uncompressed bytes in a compressed extent (format: `BTRFS_MAX_UNCOMPRESSED`): it cannot become longer.
const COMPRESSED_MAX: u64 = 128 << 10;
/// Entries of a directory read in one batch.
const ENTRIES_AT_ONCE: usize = 1024;

/// How to defragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DefragOptions {
    /// From this byte of each file on.
    pub start: u64,
    /// So many bytes of each file.
    pub len: u64,
    /// Extents of this many bytes are long enough; 0: 32 MiB.
    pub threshold: u64,
    /// Compress everything rewritten in this way, and also rewrite what is not compressed so.
    pub compress: Option<(Compression, i32)>,
}

impl Default for DefragOptions {
    fn default() -> DefragOptions {
        DefragOptions { start: 0, len: u64::MAX, threshold: 0, compress: None }
    }
}

oleo_format::setters!(DefragOptions {
    start: u64,
    len: u64,
    threshold: u64,
    compress: Option<(Compression, i32)>,
});

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Defragmented {
    /// Files examined.
    pub files: u64,
    /// Bytes written anew.
    pub bytes: u64,
    /// Extents before and after.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// Defragments a file, or every file below a directory of the same subvolume. Files that cannot be defragmented are
/// passed to `skipped`.
///
/// # Errors
/// There is no space, a device failed, or the image is damaged.
pub fn defragment(
    fs: &Fs,
    start: &InodeRef,
    options: &DefragOptions,
    skipped: &mut dyn FnMut(&InodeRef, &FsError),
) -> Result<Defragmented, JobError> {
    let mut done = Defragmented::default();
    let mut left = vec![start.clone()];
    let mut descent = Descent::new(start);
    while let Some(inode) = left.pop() {
        match fs.attr(&inode).kind {
            FileKind::File => match one(fs, &inode, options, &mut done) {
                Err(error @ (FsError::Data { .. } | FsError::ReadOnly(_) | FsError::Denied(_) | FsError::Stale)) => {
                    skipped(&inode, &error)
                }
                other => other?,
            },
            FileKind::Dir => below(fs, &inode, &mut descent, &mut left)?,
            _ => {}
        }
    }
    Ok(done)
}

/// Everything directly in a directory that is not another subvolume.
fn below(fs: &Fs, dir: &InodeRef, descent: &mut Descent, left: &mut Vec<InodeRef>) -> Result<(), FsError> {
    let mut after = 0;
    loop {
        let batch = fs.readdir(dir, after, ENTRIES_AT_ONCE)?;
        let Some(last) = batch.last() else { return Ok(()) };
        after = last.index;
        for entry in batch.iter().filter(|entry| matches!(entry.target, Target::Inode(_))) {
            if matches!(entry.kind, FileKind::File | FileKind::Dir) {
                let Some(found) = fs.open_entry(dir, entry)? else { continue };
                // A damaged entry may call a directory a file.
                if fs.attr(&found).kind != FileKind::Dir || descent.enters(fs, dir, &entry.name, &found) {
                    left.push(found);
                }
            }
        }
    }
}

fn one(fs: &Fs, file: &InodeRef, options: &DefragOptions, done: &mut Defragmented) -> Result<(), FsError> {
    fs.flush(file)?;
    let extents = fs.extents(file, options.start, options.len)?;
    done.files += 1;
    done.before += extents.len() as u64;
    for candidate in candidates(&extents, options) {
        let compress = options.compress.map(|(algorithm, level)| Compress { algorithm, level, force: true });
        let kept = Some(candidate.compression).filter(|c| *c != Compression::None);
        let compress = compress.or(kept.map(|algorithm| Compress { algorithm, level: 0, force: false }));
        let mut at = candidate.range.start;
        while at < candidate.range.end {
            let len = (candidate.range.end - at).min(STEP_MAX);
            done.bytes += fs.rewrite(file, at, len, compress)?;
            at += len;
        }
    }
    done.after += fs.extents(file, options.start, options.len)?.len() as u64;
    Ok(())
}

/// Bytes to write anew.
#[derive(PartialEq, Eq, Debug)]
struct Candidate {
    range: Range<u64>,
    /// How the first of them are compressed now.
    compression: Compression,
}

fn candidates(extents: &[ExtentInfo], options: &DefragOptions) -> Vec<Candidate> {
    let threshold = if options.threshold == 0 { THRESHOLD } else { options.threshold };
    let mut found = Vec::new();
    // Neighbours in the file that are all worth rewriting, if there are enough of them.
    let mut run: Vec<&ExtentInfo> = Vec::new();
    let mut close = |run: &mut Vec<&ExtentInfo>| {
        let unlike = |e: &&ExtentInfo| options.compress.is_some_and(|(wanted, _)| e.compression != wanted);
        if let (Some(first), Some(last)) = (run.first(), run.last())
            && (run.len() > 1 || run.iter().any(unlike))
        {
            found.push(Candidate { range: first.at..last.at + last.len, compression: first.compression });
        }
        run.clear();
    };
    for extent in extents {
        let limit = if extent.compression == Compression::None { threshold } else { threshold.min(COMPRESSED_MAX) };
        let recompress = options.compress.is_some_and(|(wanted, _)| extent.compression != wanted);
        let worth = extent.kind == ExtentKind::Data && (extent.len < limit || recompress);
        let follows =
            run.last().is_none_or(|last| last.at + last.len == extent.at && last.compression == extent.compression);
        if !worth || !follows {
            close(&mut run);
        }
        if worth {
            run.push(extent);
        }
    }
    close(&mut run);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(at: u64, len: u64, compression: Compression, kind: ExtentKind) -> ExtentInfo {
        ExtentInfo { at, len, kind, disk: None, extent: None, compression, shared: false }
    }

    fn ranges(extents: &[ExtentInfo], options: &DefragOptions) -> Vec<(u64, u64)> {
        candidates(extents, options).into_iter().map(|c| (c.range.start, c.range.end)).collect()
    }

    /// Goal: only what can gain is rewritten. Method: small neighbours, a lone one, a long one, a hole, preallocated
    /// space, full compressed extents; with and without a compression.
    #[test]
    fn what_is_worth_it() {
        let data = |at, len| extent(at, len, Compression::None, ExtentKind::Data);
        let some = DefragOptions { threshold: 100, ..DefragOptions::default() };
        assert_eq!(ranges(&[data(0, 10), data(10, 10), data(20, 200), data(220, 10)], &some), [(0, 20)]);
        assert_eq!(ranges(&[data(0, 10), data(12, 10)], &some), [], "a hole between them stays");
        let prealloc = extent(10, 10, Compression::None, ExtentKind::Unwritten);
        assert_eq!(ranges(&[data(0, 10), prealloc, data(20, 10), data(30, 10)], &some), [(20, 40)]);
        let full = |at| extent(at, COMPRESSED_MAX, Compression::Zstd, ExtentKind::Data);
        let all = DefragOptions::default();
        assert_eq!(ranges(&[full(0), full(COMPRESSED_MAX)], &all), []);
        let zstd = DefragOptions { compress: Some((Compression::Zstd, 0)), ..all };
        assert_eq!(ranges(&[full(0), full(COMPRESSED_MAX)], &zstd), []);
        assert_eq!(ranges(&[data(0, 1 << 30)], &zstd), [(0, 1 << 30)]);
        let lzo = DefragOptions { compress: Some((Compression::Lzo, 0)), ..all };
        assert_eq!(ranges(&[full(0)], &lzo), [(0, COMPRESSED_MAX)]);
    }
}
