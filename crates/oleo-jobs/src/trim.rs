//! Tells devices which bytes of block groups are free.
//!
//! Normal path: (1) a commit, so that nothing free is still named by what a crash would go back to; (2) for each group,
//! its free runs; (3) a run is taken as if something was to be written there, in pieces of at most [`PIECE_MAX`], told to
//! the devices, and given back. So nobody writes to what is being discarded.
//!
//! Crash: what is free on disk may be gone, which is what free means. Space outside of chunks is left alone.

use oleo_format::{ByteLen, Logical};
use oleo_fs::Fs;
use oleo_space::{Refusal, Run};

use crate::JobError;

/// Bytes that nobody else can have at one moment.
const PIECE_MAX: u64 = 64 << 20;

/// What to trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimRange {
    /// From this address of the volume on.
    pub start: u64,
    /// So many bytes.
    pub len: u64,
    /// Shorter runs are left alone.
    pub min_len: u64,
}

impl Default for TrimRange {
    fn default() -> TrimRange {
        TrimRange { start: 0, len: u64::MAX, min_len: 0 }
    }
}

/// Trims free space, and answers how many bytes.
///
/// # Errors
/// A device failed, or free space cannot be read.
pub fn trim(fs: &Fs, range: &TrimRange) -> Result<ByteLen, JobError> {
    fs.sync()?;
    let space = fs.engine().space().clone();
    let volume = fs.engine().volume().clone();
    let end = range.start.saturating_add(range.len);
    let mut trimmed = 0;
    for group in space.groups() {
        let runs = space.free_runs(group.start).map_err(|e| JobError::refused(oleo_fs::errno::EIO, e.to_string()))?;
        for run in runs {
            let (mut at, stop) = (run.start.0.max(range.start), run.end().0.min(end));
            if stop <= at || stop - at < range.min_len.max(1) {
                continue;
            }
            while at < stop {
                let len = (stop - at).min(PIECE_MAX);
                let piece = Run { start: Logical(at), len: ByteLen(len) };
                at += len;
                // Somebody has used a part of it meanwhile: then it is in use, and the rest is for the next time.
                if !claim(&space, piece)? {
                    continue;
                }
                let told = volume.discard(piece.start, piece.len);
                space.give_back(piece);
                told?;
                trimmed += len;
            }
        }
    }
    Ok(ByteLen(trimmed))
}

fn claim(space: &oleo_space::Space, piece: Run) -> Result<bool, JobError> {
    match space.claim(piece) {
        Ok(got) => Ok(got),
        Err(Refusal::NeedChunk(_) | Refusal::NoSpace(_)) => Ok(false),
        Err(Refusal::Load(error)) => Err(JobError::refused(oleo_fs::errno::EIO, error.to_string())),
    }
}
