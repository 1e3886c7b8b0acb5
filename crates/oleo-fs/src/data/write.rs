//! Writing into the buffer.
//!
//! Normal path: (1) `write` cuts the bytes into steps; (2) a step locks the inode and its buffer and counts the new
//! sectors it will touch. If the reservation does not cover them, it drops the locks, reserves more and tries again. If that is
//! refused, it counts only the sectors that the file has no space for ([`Space`]), and holds the `flush` lock and addresses from that
//! look-up until it has buffered the bytes, since a change or a clone of the map flushes them first. If it is
//! the first to write a part of a sector, it also reads the rest of it, without the locks (`beside`), and refuses what could not
//! be written back; (3) it copies the bytes in; (4) if too much is buffered, it flushes or waits before it returns (`write_back`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::ByteLen;
use oleo_txn::{DataReservation, TxnError};

use crate::attributes::rules;
use crate::data::FILE_LEN_MAX;
use crate::data::edges::{parts_beside, read_part, tail_gap};
use crate::data::in_place::{self, Place};
use crate::data::items::MapOf;
use crate::data::map;
use crate::data::room::Flushing;
use crate::data::write_back::throttle;
use crate::object::{Inode, Items};
use crate::{FileKind, FsError};

/// Bytes that one step copies with the locks held.
const STEP_LEN: usize = 1 << 20;
/// Space is promised ahead if there is plenty, as much as the file has buffered and this at most, so that small writes
/// do not each ask for it.
const PROMISE_LEN: u64 = 1 << 20;

/// Whose bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteBy {
    /// The caller's: the file's times become the present, and its flags must allow it.
    #[default]
    Caller,
    /// A cache's that took them earlier. It sets the file's times itself ([`Fs::set_attr`](crate::Fs::set_attr)).
    Cache {
        /// The writer has opened the file when its flags still allowed any change, and so may go on.
        opened: bool,
    },
}

/// Writes `data` at `at`.
pub(crate) fn write(inode: &Arc<Inode>, at: u64, data: &[u8], by: WriteBy) -> Result<(), FsError> {
    inode.subvol().writable()?;
    // If the file system refuses changes: a write over bytes that are buffered already needs no space, so nothing else would refuse it,
    // and it would be lost in silence.
    inode.not_failed()?;
    if at.checked_add(data.len() as u64).is_none_or(|end| end > FILE_LEN_MAX) {
        return Err(FsError::FileTooBig);
    }
    // Bytes that cannot be written stay in memory, up to this bound; beyond it the writer tries once more and gets the error.
    let core = inode.core();
    if core.data.bytes() > core.opts.data.dirty_bytes_max && inode.data.has_failed() {
        inode.flush()?;
    }
    let mut pos = at;
    for step in data.chunks(STEP_LEN) {
        // A reservation that it is not going to use would be missing for others.
        let done = write_step(inode, pos, step, by);
        if done.is_err() {
            inode.release_unused_reservation();
        }
        done?;
        pos += step.len() as u64;
        throttle(inode, step.len() as u64)?;
    }
    Ok(())
}

/// How a write comes by its space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// All that it touches is promised new space.
    New,
    /// That was refused: what it touches where the file has space already goes there, and the rest is promised.
    InPlace,
    /// That was refused, too, and room has been made since.
    Last,
}

fn write_step(inode: &Arc<Inode>, at: u64, data: &[u8], by: WriteBy) -> Result<(), FsError> {
    let sector = u64::from(inode.core().engine().sectorsize());
    let end = at + data.len() as u64;
    let sectors = at / sector * sector..end.next_multiple_of(sector);
    let mut promise: Option<(DataReservation, u64)> = None;
    let mut space = Space::New;
    // The items that say that something was written in place need room all the same.
    let mut has_items = false;
    // Parts of sectors beside the bytes, which have been read.
    let mut seen: Vec<Range<u64>> = Vec::new();
    // Each round but the last promises space that other writers of the same file may use up before the next, or reads what lies beside
    // the bytes in at most three sectors, or goes on to the next way to come by space.
    loop {
        // What has a place keeps it until it is buffered: from then on, a change or a clone of the file's map flushes first.
        let map_lock = (space != Space::New).then(|| inode.lock_flush());
        let addresses = (space != Space::New).then(|| inode.core().engine().hold_addresses());
        let guard = inode.read();
        guard.alive()?;
        if guard.fields().kind() != FileKind::File {
            return Err(FsError::Invalid("not a regular file"));
        }
        let size = guard.fields().size;
        // The old end's sector, if the bytes do not begin in it.
        let tail = size / sector * sector..(size / sector * sector + sector).min(sectors.start);
        let (mut places, mut tail_places) = (Vec::new(), Vec::new());
        if space != Space::New && !inode.subvol().is_being_shared() {
            places = in_place::places(inode, &guard, sectors.clone())?;
            tail_places = in_place::places(inode, &guard, tail.start..tail.end.max(tail.start))?;
        }
        let mut slot = inode.data.buffer.lock();
        let buffer = slot.get_or_insert_default();
        if let Some((guard, len)) = promise.take() {
            buffer.promises.push(guard);
            buffer.unused_reservation += len;
        }
        match by {
            WriteBy::Cache { opened: true } => rules::content(guard.fields())?,
            _ => rules::write(guard.fields(), at, size.max(buffer.end()))?,
        }
        let zeros = tail_gap(&guard, Some(buffer), at, sector)?;
        let extra = if zeros && !tail.is_empty() { sector } else { 0 };
        let mut beside = parts_beside(at..end, size.max(buffer.end()), sector);
        if zeros {
            beside.push(size / sector * sector..size);
        }
        beside.retain(|part| !seen.contains(part) && buffer.is_untouched(part.start, sector));
        if !beside.is_empty() {
            let map = MapOf { items: &guard, sector };
            let has_data =
                beside.iter().map(|part| map::has_data(&map, part.clone())).collect::<Result<Vec<_>, _>>()?;
            drop(slot);
            drop(guard);
            drop((addresses, map_lock));
            for (part, has_data) in beside.into_iter().zip(has_data) {
                if has_data {
                    read_part(inode, &part)?;
                }
                seen.push(part);
            }
            continue;
        }
        let placed_by = |places: &[Place]| places.iter().map(|place| buffer.placed_by(place, sector)).sum::<u64>();
        let placed = placed_by(&places) + placed_by(&tail_places).min(extra);
        let need = (buffer.dirty.sectors_missing(at..end, sector) + extra).saturating_sub(placed);
        if buffer.unused_reservation < need || (placed > 0 && !has_items) {
            let lacks = need.saturating_sub(buffer.unused_reservation);
            // A file that has grown is likely to go on; a small one must not hold what others need.
            let likely = buffer.bytes().min(PROMISE_LEN) / sector * sector;
            drop(slot);
            drop(guard);
            drop((addresses, map_lock));
            if space == Space::InPlace && placed == 0 {
                // It would be asked for the same as before.
                inode.core().make_room(Flushing::None)?;
                space = Space::Last;
                continue;
            }
            promise = reserve(inode, lacks, likely, &mut space)?;
            has_items = promise.is_some();
            continue;
        }
        let before = buffer.weight();
        if zeros {
            buffer.dirty.zero_gaps(size..size.next_multiple_of(sector).min(at));
        }
        buffer.dirty.write(at, data);
        buffer.unused_reservation = buffer.unused_reservation.saturating_sub(need);
        if by == WriteBy::Caller
            && let Some(time) = inode.data.time_of(inode.core().now())
        {
            buffer.touched = Some(time);
        }
        let shared = &inode.core().data;
        shared.count(before, buffer.weight());
        if before == 0 {
            shared.enlist(inode);
        }
        return Ok(());
    }
}

/// Promises space for `need` bytes, or for as many as are likely if there is plenty. If there is none, it goes on to the next
/// `space` and returns `None`: what is needed may be less there. An error if there is no next.
fn reserve(
    inode: &Arc<Inode>,
    need: u64,
    likely: u64,
    space: &mut Space,
) -> Result<Option<(DataReservation, u64)>, FsError> {
    let engine = inode.core().engine();
    let shared = &inode.core().data;
    if *space == Space::New && need < likely && !shared.tight.load(Ordering::Relaxed) {
        match engine.reserve_data_in(inode.tree(), ByteLen(likely)) {
            Ok(promise) => return Ok(Some((promise, likely))),
            Err(TxnError::NoSpace { .. }) => shared.tight.store(true, Ordering::Relaxed),
            Err(TxnError::QuotaExceeded(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // What has a place was charged when it got it.
    let promised = match need {
        0 => engine.reserve_data(ByteLen(0)),
        _ => engine.reserve_data_in(inode.tree(), ByteLen(need)),
    };
    let refused = match promised {
        Ok(promise) => return Ok(Some((promise, need))),
        Err(e @ TxnError::NoSpace { .. }) => e.into(),
        Err(TxnError::QuotaExceeded(_)) if *space == Space::New => {
            // What is buffered, here or elsewhere in its groups, may come to less than what was charged for it.
            let settle = || -> Result<(), FsError> {
                shared.release_idle_reservations();
                inode.core().flush_what_can_be();
                Ok(engine.commit().map(drop)?)
            };
            match engine.reserve_data_alone(inode.tree(), ByteLen(need), settle) {
                Err(e @ (FsError::NoSpace | FsError::Txn(TxnError::QuotaExceeded(_)))) => e,
                other => return Ok(Some((other?, need))),
            }
        }
        Err(e) => return Err(e.into()),
    };
    match *space {
        Space::New => *space = Space::InPlace,
        Space::InPlace => {
            // What is buffered may need less than was promised for it, and what was preallocated has a place then.
            inode.core().make_room(Flushing::None)?;
            *space = Space::Last;
        }
        Space::Last => return Err(refused),
    }
    Ok(None)
}
