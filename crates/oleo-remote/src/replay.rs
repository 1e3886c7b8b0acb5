//! What a head says, put into the state: the pages of the last checkpoint, the segments since, and the tail.
//!
//! Of the map only the index and the segment table are read; regions are loaded when they are looked at. Of segments only
//! the directories are read.

use oleo_format::Corruption;

use crate::append::frame;
use crate::error::RemoteError;
use crate::fetch::{PageTicket, Part, begin_kept, begin_page, checked, keep, page};
use crate::format::map::{INDEX_REGIONS, Root, Row, TABLE_ROWS, parse_graves, parse_index, parse_table};
use crate::format::segment::{Bound, Change, Frame, parse_directory, parse_tail};
use crate::format::{ObjectRef, SegmentRef};
use crate::origins::{shifted, shifted_ref};
use crate::shared::Core;
use crate::state::NewFrame;
use crate::store::{Deadline, Ticket};

/// How many parts are read together, of at most half a MiB.
const PARTS_COUNT: usize = 32;

/// Reads pages and directories.
pub(crate) fn replay(core: &Core, deadline: Deadline) -> Result<(), RemoteError> {
    let (root, segments, position, tail_count) = {
        let published = core.published.lock();
        let head = &published.head;
        let bound = Bound { uuid: core.source.uuid, id: head.tail_id };
        let tail = parse_tail(&head.tail, &bound, head.position)?;
        (head.root, head.segments.clone(), head.position, tail.len() as u64)
    };
    let listed: u64 = segments.iter().map(|s| u64::from(s.frames)).sum();
    let Some(from) = position.checked_sub(listed + tail_count) else {
        return Err(Corruption::new("head", "position", position, format!("at least {}", listed + tail_count)).into());
    };
    if let Some(at) = root {
        restore(core, at, from, deadline)?;
    }
    {
        let (now, published) = (core.options.host.now(), core.published.lock());
        let mut state = core.state.lock();
        state.restore(from);
        state.graves.restore_horizon(published.head.horizon);
        published.head.graves.iter().for_each(|grave| state.graves.add(*grave, Some(now)));
    }
    for some in segments.chunks(PARTS_COUNT) {
        let begin = |segment: &SegmentRef| {
            let part = directory_of(segment);
            (part, begin_kept(core, part, segment.dir_xxh, deadline))
        };
        let begun: Vec<(Part, Ticket)> = some.iter().map(begin).collect();
        for (segment, (part, ticket)) in some.iter().zip(begun) {
            let entries = checked(core, part, ticket, deadline, |bytes| {
                let entries = parse_directory(bytes, segment, core.bound(segment.id).uuid, core.coder.key())?;
                keep(core, part, bytes);
                Ok(entries)
            })?;
            core.state.lock().replay(segment, &entries)?;
        }
    }
    Ok(())
}

/// Takes over the frames of the tail, and the length that the head says.
pub(crate) fn take_tail(core: &Core) -> Result<(), RemoteError> {
    let published = core.published.lock();
    let head = &published.head;
    let bound = Bound { uuid: core.source.uuid, id: head.tail_id };
    let mut state = core.state.lock();
    for old in parse_tail(&head.tail, &bound, head.position)? {
        state.append(again(core, &old, &bound)?)?;
    }
    state.set_device_len(head.device_len);
    Ok(())
}

/// A frame that is appended again, in another place.
pub(crate) fn again(core: &Core, old: &Frame<'_>, bound: &Bound) -> Result<NewFrame, RemoteError> {
    let blocks = core.coder.unpack(old, bound)?;
    let change = match old.entry.change {
        Change::Data { first, blocks: count, moved, .. } => {
            Change::Data { first, blocks: count, stored: blocks.len() as u32, moved }
        }
        other @ (Change::Zeros { .. } | Change::Len { .. }) => other,
    };
    Ok(frame(core, change, &[&blocks]))
}

fn directory_of(segment: &SegmentRef) -> Part {
    Part { id: segment.id, off: segment.dir_off.into(), len: segment.dir_len().into() }
}

/// Restores what the last checkpoint wrote.
fn restore(core: &Core, at: ObjectRef, position: u64, deadline: Deadline) -> Result<(), RemoteError> {
    let by = core.source.shift;
    let mut root = page(core, at, begin_page(core, at, deadline), deadline, Root::parse)?;
    for pages in [&mut root.index, &mut root.table, &mut root.graves] {
        pages.iter_mut().for_each(|(_, page)| *page = shifted_ref(*page, by));
    }
    root.objects.iter_mut().for_each(|object| object.id = shifted(object.id, by));
    if root.position != position {
        return Err(Corruption::new("root page", "position", root.position, position).within(at.id).into());
    }
    for (place, (number, _)) in (0..).zip(&root.table) {
        if *number != place {
            return Err(Corruption::new("root page", "page of the segment table", *number, place).within(at.id).into());
        }
    }
    each_page(core, &root.table, deadline, parse_table, |number, rows| {
        let whole = rows.len() == TABLE_ROWS as usize || number + 1 == root.table.len() as u32;
        if !whole {
            return Err(Corruption::new("segment table", "rows of a page", rows.len(), TABLE_ROWS).into());
        }
        let rows = rows.into_iter().map(|row| row.map(|row| Row { id: shifted(row.id, by), ..row })).collect();
        core.state.lock().table.restore(rows)
    })?;
    each_page(core, &root.index, deadline, parse_index, |number, regions| {
        debug_assert!(regions.iter().all(|(region, _)| region / INDEX_REGIONS == number));
        let mut state = core.state.lock();
        regions.into_iter().for_each(|(region, page)| state.regions.restore(region, shifted_ref(page, by)));
        Ok(())
    })?;
    if core.write && by == 0 {
        let now = core.options.host.now();
        each_page(core, &root.graves, deadline, parse_graves, |number, graves| {
            core.state.lock().graves.restore(number, graves, now);
            Ok(())
        })?;
    }
    core.state.lock().restore_root(at, &root);
    Ok(())
}

/// Reads pages, some together, and hands them over in their order.
fn each_page<T>(
    core: &Core,
    pages: &[(u32, ObjectRef)],
    deadline: Deadline,
    parse: impl Fn(&[u8], u32) -> Result<T, Corruption>,
    mut take: impl FnMut(u32, T) -> Result<(), RemoteError>,
) -> Result<(), RemoteError> {
    for some in pages.chunks(PARTS_COUNT) {
        let begun: Vec<PageTicket> = some.iter().map(|(_, at)| begin_page(core, *at, deadline)).collect();
        for ((number, at), ticket) in some.iter().zip(begun) {
            take(*number, page(core, *at, ticket, deadline, |bytes| parse(bytes, *number))?)?;
        }
    }
    Ok(())
}
