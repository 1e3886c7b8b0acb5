//! Tells devices which bytes nobody needs.
//!
//! Normal path: (1) a commit, so that nothing free is still named by what a crash would go back to; (2) group by group: what it counts
//! as used must be recorded, or something that is needed may look free; (3) its free runs, which the allocator holds for us one
//! piece at a time: while a piece is told to the devices, nobody else is given any of it, and promises still count it as free; (4) unless
//! only a range of addresses was asked for, what no chunk has: no chunk is made there meanwhile.
//!
//! A group that does not agree is left alone; the others are trimmed, and then that is an error.
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
/// A device failed, free space cannot be read, or a group's records are damaged: that group was left alone.
pub fn trim(fs: &Fs, range: &TrimRange) -> Result<ByteLen, JobError> {
    fs.sync()?;
    let engine = fs.engine();
    let min_len = ByteLen(range.min_len);
    let mut trimmed = ByteLen(0);
    let (start, end) = (Logical(range.start), Logical(range.start.saturating_add(range.len)));
    let mut groups = engine.space().groups();
    groups.sort_unstable_by_key(|group| group.start);
    let mut damaged = None;
    for group in groups.into_iter().filter(|group| group.start < end && group.start + group.len > start) {
        if let Err(e) = engine.verify_group(group.start) {
            damaged = damaged.or(Some(e));
            continue;
        }
        let (start, end) = (start.max(group.start), end.min(group.start + group.len));
        for held in engine.space().hold_free(HoldWant { start, end, min_len, piece_max: PIECE_MAX }) {
            let held = held.map_err(|e| JobError::refused(oleo_fs::errno::EIO, e.to_string()))?;
            let run = held.run();
            engine.volume().discard(run.start, run.len)?;
            trimmed += run.len;
        }
    }
    if range.start == 0 && range.len == u64::MAX {
        trimmed += engine.discard_unallocated(min_len)?;
    }
    damaged.map_or(Ok(trimmed), |e| Err(e.into()))
}
