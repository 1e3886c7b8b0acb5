//! The segment that frames are appended to.

use std::sync::Arc;

use super::Sealed;
use super::sealed::piece;
use crate::format::ObjectId;
use crate::format::segment::{
    Bound, Change, ENTRY_LEN, Entry, FOOTER_LEN, FRAME_HEADER_LEN, PayloadSum, close_segment, frame_header, frame_len,
};

/// A frame that has no place yet: room for its header, its payload, and what fills it up.
pub(crate) struct NewFrame {
    change: Change,
    bytes: Vec<u8>,
    sum: PayloadSum,
}

impl NewFrame {
    /// Of a change and its payload, which is as long as the change says.
    pub(crate) fn new(change: Change, payload: &[&[u8]]) -> NewFrame {
        let len = frame_len(change);
        let mut bytes = Vec::with_capacity(len);
        bytes.resize(FRAME_HEADER_LEN, 0);
        payload.iter().for_each(|part| bytes.extend_from_slice(part));
        let sum = PayloadSum::of(&bytes[FRAME_HEADER_LEN..]);
        debug_assert!(bytes.len() <= len && bytes.len() + 16 > len);
        bytes.resize(len, 0);
        NewFrame { change, bytes, sum }
    }

    /// Bytes that it takes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The segment that frames are appended to.
pub(crate) struct OpenSegment {
    uuid: [u8; 16],
    pub(crate) id: ObjectId,
    pub(crate) row: u32,
    /// The position of its first frame.
    first_position: u64,
    entries: Vec<Entry>,
    pieces: Vec<Arc<Vec<u8>>>,
    len: u32,
}

impl OpenSegment {
    pub(crate) fn new(uuid: [u8; 16], id: ObjectId, row: u32, first_position: u64) -> OpenSegment {
        OpenSegment { uuid, id, row, first_position, entries: Vec::new(), pieces: Vec::new(), len: 0 }
    }

    /// The position of its first frame.
    pub(crate) fn first_position(&self) -> u64 {
        self.first_position
    }

    /// Bytes of its frames.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// How long the whole segment would be with another frame.
    pub(crate) fn len_with(&self, frame_len: usize) -> u64 {
        u64::from(self.len) + frame_len as u64 + ((self.entries.len() + 1) * ENTRY_LEN + FOOTER_LEN) as u64
    }

    /// Gives a frame its place.
    pub(crate) fn push(&mut self, frame: NewFrame) -> Entry {
        let NewFrame { change, mut bytes, sum } = frame;
        let entry = Entry { off: self.len, change };
        let position = self.first_position + self.entries.len() as u64;
        let header = frame_header(&entry, position, sum, &Bound { uuid: self.uuid, id: self.id });
        bytes[..FRAME_HEADER_LEN].copy_from_slice(&header);
        self.len += bytes.len() as u32;
        self.entries.push(entry);
        self.pieces.push(Arc::new(bytes));
        entry
    }

    /// Its frames, one after the other.
    pub(crate) fn pieces(&self) -> &[Arc<Vec<u8>>] {
        &self.pieces
    }

    /// The frame at an offset.
    pub(crate) fn piece(&self, off: u32) -> Option<Arc<Vec<u8>>> {
        piece(&self.entries, &self.pieces, off)
    }

    /// Ends it.
    pub(crate) fn seal(self) -> Sealed {
        let OpenSegment { id, row, first_position, entries, mut pieces, len, .. } = self;
        let (end, known) = close_segment(id, &entries, len, first_position);
        pieces.push(Arc::new(end));
        Sealed { row, known, after: first_position + entries.len() as u64, entries, pieces }
    }
}
