//! zstd without C, for WebAssembly: reading only. Tests compare it with the reference implementation.

use std::cell::RefCell;
use std::io::Read;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::DecompressError;
use crate::Compression;

/// The largest window that the kernel takes.
const WINDOW_BYTES_MAX: u64 = 128 << 10;

thread_local! {
    static DECOMPRESSOR: RefCell<FrameDecoder> = RefCell::new(FrameDecoder::new());
}

/// Nothing is compressed.
#[cfg(target_family = "wasm")]
pub(super) fn compress(_level: i32, _data: &[u8], _limit: usize) -> Option<Vec<u8>> {
    None
}

/// Decompresses as much as fits and returns how much that was. Bytes after the frame are ignored.
pub(super) fn decompress(data: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
    let broken = |what| DecompressError::Broken(Compression::Zstd, what);
    DECOMPRESSOR.with_borrow_mut(|decoder| {
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        let mut input = data;
        decoder.init(&mut input).map_err(|_| broken("no frame"))?;
        let mut len = 0;
        // Each round takes a block, of which there are not more than bytes.
        loop {
            if !decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                decoder.decode_blocks(&mut input, strategy).map_err(|_| broken("bad data"))?;
            }
            loop {
                match decoder.read(&mut out[len..]).map_err(|_| broken("bad data"))? {
                    0 => break,
                    n => len += n,
                }
            }
            if decoder.is_finished() || len == out.len() {
                return Ok(len);
            }
        }
    })
}
