//! Emptying segments of which little lives, so that they die.
//!
//! (1) The directory of a segment says what was in it, and the map which of that lives. (2) That is read, as any reader does.
//! (3) Each piece is appended again as a frame that says that it was moved, if the map still says, under the same lock, that it
//! is where it was: somebody may have written there meanwhile, and what is older must not come over it.
//!
//! To the map a moved frame is like any other; what the device reads is the same before and after it, wherever the log ends.

use crate::append::frame;
use crate::error::RemoteError;
use crate::fetch::{Part, begin, checked};
use crate::format::segment::{Change, FOOTER_LEN, parse_directory, parse_footer_of};
use crate::format::{BLOCK_LEN, ObjectId};
use crate::publish::begin_storing;
use crate::read::{Reading, load, look_up, read};
use crate::shared::{Core, add};
use crate::state::{Found, Source};
use crate::store::Deadline;

/// Bytes that are read together.
const BATCH_BYTES: usize = 4 << 20;
/// How often regions are loaded before a piece is left where it is.
const LOADS_MAX: usize = 64;

/// Which segments are emptied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Own ones of which less than half lives.
    Sparse,
    /// Those of other volumes.
    Foreign,
}

/// Empties segments, until about `bytes_max` bytes were moved; returns how many were.
pub(crate) fn repack(core: &Core, bytes_max: u64, wanted: Wanted) -> Result<u64, RemoteError> {
    let candidates = core.state.lock().sparse(wanted == Wanted::Foreign);
    let mut moved = 0;
    for (id, len) in candidates {
        // What is moved is in memory until it is published, and must not make others wait.
        let room = core.options.bounds.dirty_bytes_max / 2;
        if moved >= bytes_max || core.state.lock().dirty_bytes() >= room {
            break;
        }
        let deadline = core.deadline(core.options.bounds.read_max);
        moved += empty(core, id, len, deadline)?;
    }
    add(&core.counts.moved_bytes, moved);
    Ok(moved)
}

/// A piece of a segment that lives.
struct Piece {
    off: u32,
    found: Found,
}

/// Appends again what lives of a segment.
fn empty(core: &Core, id: ObjectId, len: u32, deadline: Deadline) -> Result<u64, RemoteError> {
    let end = Part { id, off: u64::from(len).saturating_sub(FOOTER_LEN as u64), len: FOOTER_LEN as u64 };
    let (segment, _) = checked(core, end, begin(core, end, deadline), deadline, |bytes| {
        parse_footer_of(bytes, len.into()).map_err(|e| e.within(id))
    })?;
    let part = Part { id, off: segment.dir_off.into(), len: segment.dir_len().into() };
    let entries = checked(core, part, begin(core, part, deadline), deadline, |bytes| {
        parse_directory(bytes, &segment, core.bound(id).uuid, core.coder.key())
    })?;
    let mut moved = 0;
    let mut batch = Vec::new();
    let mut batch_len = 0;
    for entry in entries {
        let Change::Data { first, blocks, .. } = entry.change else { continue };
        for found in look_up(core, first, blocks.into(), deadline)? {
            let is_here = matches!(found.source, Source::Stored { id: of, off, .. } if of == id && off == entry.off);
            if is_here {
                batch_len += found.blocks as usize * BLOCK_LEN;
                batch.push(Piece { off: entry.off, found });
            }
        }
        if batch_len >= BATCH_BYTES {
            moved += move_all(core, id, std::mem::take(&mut batch), deadline)?;
            batch_len = 0;
        }
    }
    moved += move_all(core, id, batch, deadline)?;
    Ok(moved)
}

/// Reads pieces and appends them.
fn move_all(core: &Core, id: ObjectId, pieces: Vec<Piece>, deadline: Deadline) -> Result<u64, RemoteError> {
    let mut bufs: Vec<Vec<u8>> = pieces.iter().map(|p| vec![0; p.found.blocks as usize * BLOCK_LEN]).collect();
    let offset = |piece: &Piece| piece.found.first * BLOCK_LEN as u64;
    let mut reads: Vec<Reading<'_>> = pieces
        .iter()
        .zip(&mut bufs)
        .map(|(piece, buf)| Reading { offset: offset(piece), buf, result: Ok(()) })
        .collect();
    read(core, &mut reads);
    for read in reads {
        read.result?;
    }
    let mut moved = 0;
    for (piece, buf) in pieces.iter().zip(&bufs) {
        if append_if_there(core, id, piece, buf, deadline)? {
            moved += buf.len() as u64;
        }
    }
    Ok(moved)
}

/// Appends a piece, if the map says that it is still where it was.
fn append_if_there(
    core: &Core,
    id: ObjectId,
    piece: &Piece,
    bytes: &[u8],
    deadline: Deadline,
) -> Result<bool, RemoteError> {
    let Found { first, blocks, skip, .. } = piece.found;
    let change = Change::Data { first, blocks: blocks as u8, stored: bytes.len() as u32, moved: true };
    let frame = frame(core, change, &[bytes]);
    for _ in 0..LOADS_MAX {
        let mut found = Vec::new();
        let mut state = core.state.lock();
        core.check_latch()?;
        if let Some(missing) = state.look_up(first, blocks, &mut found)? {
            drop(state);
            load(core, missing, deadline)?;
            continue;
        }
        let is_there = |f: &Found| {
            let same = matches!(f.source, Source::Stored { id: of, off, .. } if of == id && off == piece.off);
            same && f.skip == skip && f.blocks == blocks
        };
        if !(found.len() == 1 && is_there(&found[0])) {
            return Ok(false);
        }
        let mut sealed = None;
        let change = || {
            if !state.fits(frame.len(), core.options.bounds.segment_aim.into()) {
                sealed = state.seal()?;
            }
            state.append(frame)
        };
        // As for any change: the map and the log must say the same.
        change().inspect_err(|e| core.close_latch(e))?;
        drop(state);
        if let Some(sealed) = sealed {
            begin_storing(core, &sealed);
        }
        return Ok(true);
    }
    Ok(false)
}
