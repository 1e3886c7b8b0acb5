//! Tells devices which bytes nobody needs.
//!
//! Normal path: (1) a commit, so that nothing free is still named by what a crash would go back to; (2) the free runs of the
//! block groups, which the allocator holds for us one piece at a time: while a piece is told to the devices, nobody else is
//! given any of it, and promises still count it as free; (3) unless only a range of addresses was asked for, what no
//! chunk has: no chunk is made there meanwhile.
//!
//! Crash: what is free on disk may be gone, which is what free means.

use oleo_format::{ByteLen, Logical};
use oleo_fs::Fs;
use oleo_space::HoldWant;

use crate::JobError;

/// Bytes that nobody else can have at one moment.
const PIECE_MAX: ByteLen = ByteLen(64 << 20);

/// What to trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimRange {
    /// From this address of the volume on.
    pub start: u64,
    /// So many bytes. Where this and `start` do not name all there is, what no chunk has is left alone: it has no address.
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
    let engine = fs.engine();
    let min_len = ByteLen(range.min_len);
    let mut trimmed = ByteLen(0);
    let (start, end) = (Logical(range.start), Logical(range.start.saturating_add(range.len)));
    for held in engine.space().hold_free(HoldWant { start, end, min_len, piece_max: PIECE_MAX }) {
        let held = held.map_err(|e| JobError::refused(oleo_fs::errno::EIO, e.to_string()))?;
        let run = held.run();
        engine.volume().discard(run.start, run.len)?;
        trimmed += run.len;
    }
    if range.start == 0 && range.len == u64::MAX {
        trimmed += engine.discard_unallocated(min_len)?;
    }
    Ok(trimmed)
}
