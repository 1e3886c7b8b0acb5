//! Discarding on the devices what no chunk has.
//!
//! No chunk may be made there meanwhile, so chunks wait: for one piece at a time. A chunk that was taken away keeps its place
//! until that is durable, so nothing that a crash would go back to is discarded.

use oleo_format::{ByteLen, DevId, Physical};

use crate::TxnError;
use crate::engine::Engine;

/// Bytes that new chunks wait for at a time: what a device forgets in a moment.
const PIECE_MAX: ByteLen = ByteLen(1 << 30);

impl Engine {
    /// Discards every run of at least `min_len` bytes that no chunk has, superblocks and the first MiB of a device left out,
    /// and returns how many bytes it was.
    ///
    /// # Errors
    /// It is open for reading only, or a device failed.
    pub fn discard_unallocated(&self, min_len: ByteLen) -> Result<ByteLen, TxnError> {
        self.0.writable()?;
        let (mut from, mut discarded) = ((DevId(0), Physical(0)), ByteLen(0));
        // Each round goes on behind the last piece.
        loop {
            let _no_chunk_is_made = self.0.growth.lock_chunk_alloc();
            match self.0.volume.discard_unallocated(from, min_len, PIECE_MAX)? {
                Some(piece) => {
                    from = piece.next;
                    discarded += piece.len;
                }
                None => return Ok(discarded),
            }
        }
    }
}
