//! Changes of the device, as frames.
//!
//! A write is cut at multiples of 256 KiB; bytes beside it in its first and last block are read and written again, under a
//! lock of those who do so. Frames are put together, compressed, sealed and summed outside the state's lock. Whoever finds too many bytes in
//! memory publishes them, and so waits.

use oleo_lock::{MutexGuard, rank};

use crate::error::RemoteError;
use crate::flush::publish;
use crate::format::segment::Change;
use crate::format::{BLOCK_LEN, FRAME_BLOCKS_MAX};
use crate::host::nonce;
use crate::publish::begin_storing;
use crate::read::read_block;
use crate::shared::Core;
use crate::state::NewFrame;

const BLOCK: u64 = BLOCK_LEN as u64;

/// Writes pieces of memory that follow one another from `offset` on, within the device.
pub(crate) fn write(core: &Core, offset: u64, parts: &[&[u8]]) -> Result<(), RemoteError> {
    let len: u64 = parts.iter().map(|p| p.len() as u64).sum();
    if len == 0 {
        return Ok(());
    }
    let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
    let (before, after) = ((offset % BLOCK) as usize, (end * BLOCK - offset - len) as usize);
    if before == 0 && after == 0 {
        return write_blocks(core, first, end, parts);
    }
    let _edges = edges(core)?;
    let front = if before > 0 { read_block(core, first)? } else { Vec::new() };
    let back = match after {
        0 => Vec::new(),
        _ if end - first == 1 && before > 0 => front.clone(),
        _ => read_block(core, end - 1)?,
    };
    let mut whole = Vec::with_capacity(parts.len() + 2);
    whole.push(&front[..before]);
    whole.extend_from_slice(parts);
    whole.push(&back[back.len() - after..]);
    write_blocks(core, first, end, &whole)
}

/// Who writes blocks in part. Whoever is there may publish and wait, so there is a bound to this, too.
fn edges(core: &Core) -> Result<MutexGuard<'_, rank::RemoteEdges, ()>, RemoteError> {
    let wait = core.options.bounds.flush_max * 2;
    core.edges.try_lock_for(wait).ok_or(RemoteError::Stalled { after: wait })
}

/// Writes whole blocks, of pieces that need not end where blocks do.
fn write_blocks(core: &Core, first: u64, end: u64, parts: &[&[u8]]) -> Result<(), RemoteError> {
    let (mut at, mut rest, mut part) = (first, parts.iter().copied(), &[][..]);
    let mut payload = Vec::new();
    while at < end {
        let blocks = (FRAME_BLOCKS_MAX - at % FRAME_BLOCKS_MAX).min(end - at);
        let stored = blocks as usize * BLOCK_LEN;
        payload.clear();
        let mut missing = stored;
        while missing > 0 {
            if part.is_empty() {
                match rest.next() {
                    Some(next) => part = next,
                    None => unreachable!("the pieces are as long as the blocks"),
                }
            }
            let (now, later) = part.split_at(part.len().min(missing));
            payload.push(now);
            (part, missing) = (later, missing - now.len());
        }
        let change = Change::Data { first: at, blocks: blocks as u8, stored: stored as u32, moved: false };
        append(core, frame(core, change, &payload))?;
        at += blocks;
    }
    Ok(())
}

/// Makes a range read as zeros.
pub(crate) fn zero(core: &Core, offset: u64, len: u64) -> Result<(), RemoteError> {
    const ZEROS: [u8; BLOCK_LEN] = [0; BLOCK_LEN];
    let end = offset + len;
    let (first, after) = (offset.div_ceil(BLOCK), end / BLOCK);
    if first > after {
        // Inside one block.
        return write(core, offset, &[&ZEROS[..len as usize]]);
    }
    write(core, offset, &[&ZEROS[..(first * BLOCK - offset) as usize]])?;
    if after > first {
        append(core, frame(core, Change::Zeros { first, count: after - first }, &[]))?;
    }
    write(core, after * BLOCK, &[&ZEROS[..(end - after * BLOCK) as usize]])
}

/// Gives the device another length.
pub(crate) fn set_len(core: &Core, len: u64) -> Result<(), RemoteError> {
    let now = core.state.lock().device_len();
    let cut = len.next_multiple_of(BLOCK).min(now);
    if cut > len {
        // What is cut off must not be there when the device grows again.
        zero(core, len, cut - len)?;
    }
    append(core, frame(core, Change::Len { len }, &[]))
}

/// A frame, packed as the volume's are.
pub(crate) fn frame(core: &Core, change: Change, parts: &[&[u8]]) -> NewFrame {
    core.coder.pack(change, parts, || nonce(&*core.options.host))
}

/// Takes a frame into the log.
pub(crate) fn append(core: &Core, frame: NewFrame) -> Result<(), RemoteError> {
    let bounds = &core.options.bounds;
    let mut sealed = None;
    let dirty_bytes = {
        let mut state = core.state.lock();
        core.check_latch()?;
        let change = || {
            if !state.fits(frame.len(), bounds.segment_aim.into()) {
                sealed = state.seal()?;
            }
            state.append(frame)
        };
        // The map and the log must say the same, so what fails here ends writing.
        change().inspect_err(|e| core.close_latch(e))?;
        state.dirty_bytes()
    };
    if let Some(sealed) = sealed {
        begin_storing(core, &sealed);
    }
    if dirty_bytes > bounds.dirty_bytes_max {
        let position = core.state.lock().position();
        publish(core, position, false)?;
    }
    Ok(())
}
