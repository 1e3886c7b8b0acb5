//! A segment that is ended: its bytes as they will be stored.

use std::sync::Arc;

use crate::format::SegmentRef;
use crate::format::segment::Entry;
use crate::store::Body;

/// A segment as it will be stored.
pub(crate) struct Sealed {
    pub(crate) row: u32,
    pub(crate) known: SegmentRef,
    /// The position after its last frame.
    pub(crate) after: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) pieces: Vec<Arc<Vec<u8>>>,
}

impl Sealed {
    /// All its bytes.
    pub(crate) fn body(&self) -> Body {
        Body::of(self.pieces.clone())
    }

    /// The position of its first frame.
    pub(crate) fn first_position(&self) -> u64 {
        self.after - self.entries.len() as u64
    }

    /// Its frames, one after the other.
    pub(crate) fn frames(&self) -> &[Arc<Vec<u8>>] {
        // Behind them is the directory.
        &self.pieces[..self.entries.len()]
    }

    /// Its directory.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The frame at an offset.
    pub(crate) fn piece(&self, off: u32) -> Option<Arc<Vec<u8>>> {
        piece(&self.entries, &self.pieces, off)
    }
}

/// The piece of the frame at an offset.
pub(super) fn piece(entries: &[Entry], pieces: &[Arc<Vec<u8>>], off: u32) -> Option<Arc<Vec<u8>>> {
    let at = entries.binary_search_by_key(&off, |entry| entry.off).ok()?;
    pieces.get(at).cloned()
}
