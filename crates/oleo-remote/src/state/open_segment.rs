//! The segment that frames are appended to.

use std::sync::Arc;

use super::Sealed;
use super::sealed::piece;
use crate::format::ObjectId;
use crate::format::packing::{Coder, Packed};
use crate::format::segment::{Bound, DirectorySeal, ENTRY_LEN, Entry, FOOTER_LEN, close_frame, close_segment};
use crate::seal::{Nonce, SEAL_LEN};

/// The segment that frames are appended to.
pub(crate) struct OpenSegment {
    coder: Coder,
    pub(crate) id: ObjectId,
    pub(crate) row: u32,
    /// That of its first frame, in a volume that is sealed.
    nonce: Option<Nonce>,
    /// The position of its first frame.
    first_position: u64,
    entries: Vec<Entry>,
    pieces: Vec<Arc<Vec<u8>>>,
    len: u32,
}

impl OpenSegment {
    pub(crate) fn new(coder: Coder, id: ObjectId, row: u32, first_position: u64) -> OpenSegment {
        OpenSegment { coder, id, row, nonce: None, first_position, entries: Vec::new(), pieces: Vec::new(), len: 0 }
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
        u64::from(self.len) + frame_len as u64 + ((self.entries.len() + 1) * ENTRY_LEN + SEAL_LEN + FOOTER_LEN) as u64
    }

    /// Gives a frame its place. In a volume that is sealed it must be sealed.
    pub(crate) fn push(&mut self, frame: Packed) -> Entry {
        let Packed { change, codec, mut bytes, sum, nonce } = frame;
        assert!(nonce.is_some() == self.coder.key.is_some(), "everything in a sealed volume is sealed");
        self.nonce = self.nonce.or(nonce);
        let entry = Entry { off: self.len, change, codec };
        let position = self.first_position + self.entries.len() as u64;
        let bound = Bound { uuid: self.coder.uuid, id: self.id };
        close_frame(&mut bytes, &entry, position, sum, &bound, self.coder.key());
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
        let OpenSegment { coder, id, row, nonce, first_position, entries, mut pieces, len } = self;
        let seal = coder.key().zip(nonce).map(|(key, nonce)| DirectorySeal { key, uuid: coder.uuid, nonce });
        let (end, known) = close_segment(id, &entries, len, first_position, seal);
        pieces.push(Arc::new(end));
        Sealed { row, known, after: first_position + entries.len() as u64, entries, pieces }
    }
}
