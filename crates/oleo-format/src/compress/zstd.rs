//! zstd. One frame per extent, its window at most 128 KiB: the kernel's workspace for decompression has that size.

use std::cell::RefCell;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, find_frame_compressed_size};

use super::DecompressError;
use crate::Compression;

/// The base-2 logarithm of the largest window that the kernel takes.
const WINDOW_LOG_MAX: u32 = 17;

thread_local! {
    static COMPRESSOR: RefCell<Option<(i32, CCtx<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

fn compressor(level: i32) -> Option<CCtx<'static>> {
    let mut c = CCtx::try_create()?;
    c.set_parameter(CParameter::CompressionLevel(level)).ok()?;
    c.set_parameter(CParameter::WindowLog(WINDOW_LOG_MAX)).ok()?;
    Some(c)
}

/// Compresses into at most `limit` bytes, or not at all.
pub(super) fn compress(level: i32, data: &[u8], limit: usize) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|slot| {
        if !matches!(slot, Some((l, _)) if *l == level) {
            *slot = Some((level, compressor(level)?));
        }
        let (_, context) = slot.as_mut()?;
        let mut out = vec![0; limit];
        let len = context.compress2(out.as_mut_slice(), data).ok()?;
        out.truncate(len);
        Some(out)
    })
}

/// Decompresses as much as fits and returns how much that was. Bytes after the frame are ignored.
pub(super) fn decompress(data: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
    let broken = |what| DecompressError::Broken(Compression::Zstd, what);
    let frame_len = find_frame_compressed_size(data).map_err(|_| broken("no whole frame"))?;
    let frame = data.get(..frame_len).ok_or_else(|| broken("no whole frame"))?;
    DECOMPRESSOR.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut context = DCtx::try_create().ok_or_else(|| broken("no memory for a context"))?;
            context
                .set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
                .map_err(|_| broken("no limit for the window"))?;
            *slot = Some(context);
        }
        let context = slot.as_mut().ok_or_else(|| broken("no context"))?;
        if let Ok(len) = context.decompress(out, frame) {
            return Ok(len);
        }
        decompress_part(context, frame, out)
    })
}

/// Decompresses the start of a frame that is longer than `out`, or finds out that it is broken.
fn decompress_part(context: &mut DCtx<'static>, frame: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
    let broken = |what| DecompressError::Broken(Compression::Zstd, what);
    context.init().map_err(|_| broken("no context"))?;
    let mut input = InBuffer::around(frame);
    let mut output = OutBuffer::around(out);
    // Each round takes input or makes output, or else the stream is broken.
    loop {
        let before = (input.pos(), output.pos());
        let hint = context.decompress_stream(&mut output, &mut input).map_err(|_| broken("bad data"))?;
        if hint == 0 || output.pos() == output.capacity() {
            return Ok(output.pos());
        }
        if before == (input.pos(), output.pos()) {
            return Err(broken("bad data"));
        }
    }
}
