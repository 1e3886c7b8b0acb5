//! Reading: (1) under the state's lock it is looked up where the blocks are, and what is in memory is noted; regions that
//! are not in memory are loaded in between, without the lock; (2) frames that are stored come from the cache, or from the
//! store, those near to each other with one request, many together; (3) each frame is checked against its own header, its
//! place and its address, opened and decompressed, and read again if it is wrong. What came from the store is kept on the
//! local disk, if that is wanted, and looked for there first.
//!
//! A reader whose object is gone gets an error, never bytes of another moment.

use std::collections::HashMap;
use std::sync::Arc;

use oleo_format::Corruption;

use crate::error::{RemoteError, StoreError};
use crate::fetch::{Part, begin, begin_page, checked, end, page};
use crate::format::map::parse_region;
use crate::format::segment::{Change, FRAME_HEADER_LEN, is_plain, parse_frame};
use crate::format::{BLOCK_LEN, ObjectId};
use crate::shared::{Core, add};
use crate::state::{Found, Missing, Source};
use crate::store::{Deadline, Ticket};

/// Frames so near to each other are got together, bytes between them.
const GAP_MAX: u64 = 64 << 10;
/// Longest request, bytes.
const JOIN_MAX: u64 = 4 << 20;
/// How many requests are under way for one call, and their bytes.
const GETS_MAX: usize = 32;
const GETS_BYTES_MAX: u64 = 8 << 20;
/// How often regions are loaded for one look-up: one call reads few of them, but others may make it lose them again.
const LOADS_MAX: usize = 64;

/// A request to read, and what came of it.
pub(crate) struct Reading<'a> {
    pub(crate) offset: u64,
    pub(crate) buf: &'a mut [u8],
    pub(crate) result: Result<(), RemoteError>,
}

/// A frame that is stored, and who wants blocks of it.
struct Frame {
    id: ObjectId,
    off: u32,
    stored: u32,
    wants: Vec<(usize, Found)>,
}

/// Fills all buffers; each request has its own result.
pub(crate) fn read(core: &Core, reads: &mut [Reading<'_>]) {
    let deadline = core.deadline(core.options.bounds.read_max);
    let mut frames: HashMap<(ObjectId, u32), Frame> = HashMap::new();
    for n in 0..reads.len() {
        if reads[n].result.is_err() || reads[n].buf.is_empty() {
            continue;
        }
        let (first, end) = span(&reads[n]);
        match look_up(core, first, end - first, deadline) {
            Ok(found) => found.into_iter().for_each(|found| take(core, reads, n, found, &mut frames)),
            Err(e) => reads[n].result = Err(e),
        }
    }
    let mut frames: Vec<Frame> =
        frames.into_values().filter(|frame| !on_disk(core, reads, frame) && !known(core, reads, frame)).collect();
    frames.sort_unstable_by_key(|frame| (frame.id, frame.off));
    fetch_all(core, reads, frames, deadline);
}

/// One whole block.
pub(crate) fn read_block(core: &Core, block: u64) -> Result<Vec<u8>, RemoteError> {
    let mut out = vec![0; BLOCK_LEN];
    let mut reads = [Reading { offset: block * BLOCK_LEN as u64, buf: &mut out, result: Ok(()) }];
    read(core, &mut reads);
    let [read] = reads;
    read.result.map(|()| out)
}

/// Where blocks are. Regions that this needs are loaded.
pub(crate) fn look_up(core: &Core, first: u64, count: u64, deadline: Deadline) -> Result<Vec<Found>, RemoteError> {
    for _ in 0..LOADS_MAX {
        let mut found = Vec::new();
        let missing = core.state.lock().look_up(first, count, &mut found)?;
        match missing {
            None => return Ok(found),
            Some(missing) => load(core, missing, deadline)?,
        }
    }
    Err(RemoteError::Limit { what: format!("the map of {count} blocks does not stay in memory") })
}

/// Loads a region.
pub(crate) fn load(core: &Core, missing: Missing, deadline: Deadline) -> Result<(), RemoteError> {
    let Missing { region, page: at } = missing;
    let runs = page(core, at, begin_page(core, at, deadline), deadline, |bytes| parse_region(bytes, region))?;
    let mut state = core.state.lock();
    // First, so that what is loaded now is there when it is looked for.
    state.regions.evict(core.options.bounds.map_bytes_max);
    state.install(missing, &runs)
}

/// The blocks of a request.
fn span(read: &Reading<'_>) -> (u64, u64) {
    let end = (read.offset + read.buf.len() as u64).div_ceil(BLOCK_LEN as u64);
    (read.offset / BLOCK_LEN as u64, end)
}

/// Copies what is known of some blocks, or notes which frame has them.
fn take(core: &Core, reads: &mut [Reading<'_>], n: usize, found: Found, frames: &mut HashMap<(ObjectId, u32), Frame>) {
    match &found.source {
        Source::Zeros => copy(&mut reads[n], &found, None),
        Source::Memory { id, off, piece } => {
            let (id, off, piece) = (*id, *off, piece.clone());
            match in_memory(core, id, off, &piece) {
                Ok(None) => copy(&mut reads[n], &found, Some(&piece[FRAME_HEADER_LEN..])),
                Ok(Some(payload)) => copy(&mut reads[n], &found, Some(&payload)),
                Err(e) => reads[n].result = Err(e.into()),
            }
        }
        &Source::Stored { id, off, stored } => match core.cache.get(id, off) {
            Some(payload) => {
                add(&core.counts.cache_hits, 1);
                copy(&mut reads[n], &found, Some(&payload));
            }
            None => {
                let frame = frames.entry((id, off)).or_insert_with(|| Frame { id, off, stored, wants: Vec::new() });
                frame.wants.push((n, found));
            }
        },
    }
}

/// The blocks of a frame in memory; none: they are there as they are.
fn in_memory(core: &Core, id: ObjectId, off: u32, piece: &[u8]) -> Result<Option<Arc<Vec<u8>>>, Corruption> {
    if core.coder.key().is_none() && is_plain(piece) {
        return Ok(None);
    }
    if let Some(payload) = core.unpacked.get(id, off) {
        return Ok(Some(payload));
    }
    let bound = core.bound(id);
    let payload = Arc::new(core.coder.unpack(&parse_frame(piece, off, &bound)?, &bound)?.into_owned());
    core.unpacked.put(id, off, payload.clone());
    Ok(Some(payload))
}

/// Copies the bytes of some blocks that the request wants.
fn copy(read: &mut Reading<'_>, found: &Found, payload: Option<&[u8]>) {
    let block = BLOCK_LEN as u64;
    let from = (found.first * block).max(read.offset);
    let to = ((found.first + found.blocks) * block).min(read.offset + read.buf.len() as u64);
    let part = &mut read.buf[(from - read.offset) as usize..(to - read.offset) as usize];
    match payload {
        None => part.fill(0),
        Some(payload) => {
            let at = usize::from(found.skip) * BLOCK_LEN + (from - found.first * block) as usize;
            match payload.get(at..at + part.len()) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => {
                    let error =
                        Corruption::new("run", "blocks in the frame", payload.len() / BLOCK_LEN, at / BLOCK_LEN + 1);
                    read.result = Err(error.into());
                }
            }
        }
    }
}

/// Frames that come with one request.
struct Group {
    part: Part,
    frames: Vec<Frame>,
}

fn groups(frames: Vec<Frame>) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for frame in frames {
        let (off, len) = (u64::from(frame.off), frame.stored as u64 + FRAME_HEADER_LEN as u64);
        match out.last_mut() {
            Some(Group { part, frames })
                if part.id == frame.id
                    && off <= part.off + part.len + GAP_MAX
                    && (off + len).max(part.off + part.len) - part.off <= JOIN_MAX =>
            {
                part.len = (off + len).max(part.off + part.len) - part.off;
                frames.push(frame);
            }
            _ => out.push(Group { part: Part { id: frame.id, off, len }, frames: vec![frame] }),
        }
    }
    out
}

fn fetch_all(core: &Core, reads: &mut [Reading<'_>], frames: Vec<Frame>, deadline: Deadline) {
    let mut waiting = groups(frames).into_iter().peekable();
    let mut begun: std::collections::VecDeque<(Group, Ticket)> = std::collections::VecDeque::new();
    let mut bytes = 0;
    loop {
        while begun.len() < GETS_MAX
            && waiting.peek().is_some_and(|next| begun.is_empty() || bytes + next.part.len <= GETS_BYTES_MAX)
        {
            let Some(group) = waiting.next() else { break };
            bytes += group.part.len;
            let ticket = begin(core, group.part, deadline);
            begun.push_back((group, ticket));
        }
        let Some((group, ticket)) = begun.pop_front() else { return };
        bytes -= group.part.len;
        let whole = end(core, group.part, ticket);
        for frame in group.frames {
            let payload = match &whole {
                Ok(whole) => {
                    let from = (u64::from(frame.off) - group.part.off) as usize;
                    let bytes = &whole[from..from + frame.stored as usize + FRAME_HEADER_LEN];
                    let payload = check(core, &frame, bytes);
                    if let (Ok(_), Some((disk, id))) = (&payload, core.disk_of(frame.id)) {
                        disk.write(id, frame.off, bytes);
                    }
                    payload.or_else(|_| fetch_one(core, &frame, deadline))
                }
                Err(RemoteError::Store { source: StoreError::Wrong(_), .. }) => fetch_one(core, &frame, deadline),
                Err(e) => Err(e.clone()),
            };
            if let Err(e) = &payload {
                core.away.note_damage(core.options.host.now(), frame.id, frame.off, e);
            }
            hand_out(core, reads, &frame, payload);
        }
    }
}

/// Hands out a frame that the disk has; false: it has not, or what it has is damaged.
fn on_disk(core: &Core, reads: &mut [Reading<'_>], frame: &Frame) -> bool {
    let Some((disk, id)) = core.disk_of(frame.id) else { return false };
    let len = frame.stored as usize + FRAME_HEADER_LEN;
    let Some(payload) = disk.read(id, frame.off, len).and_then(|bytes| check(core, frame, &bytes).ok()) else {
        return false;
    };
    add(&core.counts.disk_hits, 1);
    hand_out(core, reads, frame, Ok(payload));
    true
}

/// Hands out the error of a frame that is known to be damaged; false: it is not.
fn known(core: &Core, reads: &mut [Reading<'_>], frame: &Frame) -> bool {
    let Some(error) = core.away.damage(core.options.host.now(), frame.id, frame.off) else { return false };
    hand_out(core, reads, frame, Err(error));
    true
}

/// Gets a frame by itself, which was wrong.
fn fetch_one(core: &Core, frame: &Frame, deadline: Deadline) -> Result<Arc<Vec<u8>>, RemoteError> {
    let part = Part { id: frame.id, off: frame.off.into(), len: u64::from(frame.stored) + FRAME_HEADER_LEN as u64 };
    checked(core, part, begin(core, part, deadline), deadline, |bytes| check(core, frame, bytes))
}

/// The payload of a frame, if it is the one that is wanted.
fn check(core: &Core, frame: &Frame, bytes: &[u8]) -> Result<Arc<Vec<u8>>, Corruption> {
    let bound = core.bound(frame.id);
    let found = parse_frame(bytes, frame.off, &bound)?;
    let odd = |have: String, want: String| Corruption::new("frame", "blocks", have, want).within(frame.id);
    let Change::Data { first, blocks, .. } = found.entry.change else {
        return Err(odd("none".into(), "data".into()));
    };
    for (_, want) in &frame.wants {
        let skip = u64::from(want.skip);
        if first + skip != want.first || skip + want.blocks > u64::from(blocks) {
            return Err(odd(format!("{blocks} from {first}"), format!("{} from {}", want.blocks, want.first)));
        }
    }
    Ok(Arc::new(core.coder.unpack(&found, &bound)?.into_owned()))
}

fn hand_out(core: &Core, reads: &mut [Reading<'_>], frame: &Frame, payload: Result<Arc<Vec<u8>>, RemoteError>) {
    if let Ok(payload) = &payload {
        core.cache.put(frame.id, frame.off, payload.clone());
    }
    for (n, found) in &frame.wants {
        match &payload {
            Ok(payload) => copy(&mut reads[*n], found, Some(payload)),
            Err(e) => reads[*n].result = Err(e.clone()),
        }
    }
}
