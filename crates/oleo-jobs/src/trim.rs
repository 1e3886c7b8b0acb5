//! Discards the bytes of devices that are free.
//!
//! Normal path: (1) a commit, so that no free space is still named by the state a crash would return to; (2) group by
//! group, compare what the group counts as used with what is recorded, since otherwise used space might look free; (3)
//! discard its free runs. The allocator holds one piece at a time: while a piece is discarded it is not allocated, but
//! still counts as free for reservations; (4) unless only a range of addresses was requested, discard what no chunk
//! covers; no chunk is made there meanwhile.
//!
//! A group whose records disagree is skipped; the others are trimmed, and then the call fails.
//! Crash: the contents of free space may be gone.

use oleo_format::{ByteLen, Logical};
use oleo_fs::Fs;
use oleo_space::HoldWant;

use crate::JobError;

/// How many bytes are kept from allocation at a time.
const PIECE_MAX: ByteLen = ByteLen(64 << 20);

/// What to trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimRange {
    /// From this address of the volume on.
    pub start: u64,
    /// Length in bytes. If this and `start` do not cover everything, space outside of chunks is not trimmed: it has no
    /// address.
    pub len: u64,
    /// Shorter runs are left alone.
    pub min_len: u64,
}

impl Default for TrimRange {
    fn default() -> TrimRange {
        TrimRange { start: 0, len: u64::MAX, min_len: 0 }
    }
}

/// Trims free space, and returns how many bytes.
///
/// # Errors
/// A device failed, free space cannot be read, or the records of a group are damaged (that group was skipped).
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
