//! Parts of objects that are read and checked: what is wrong is read again, since bits change on the way, too.

use std::sync::Arc;

use oleo_format::Corruption;

use crate::error::{RemoteError, StoreError};
use crate::format::{ObjectId, ObjectRef, xxh64};
use crate::shared::{Core, add};
use crate::store::{Answer, Deadline, Ticket, get_part, part_of};
use crate::swap::{HEAD, WRONG_TRIES, read};

/// A part of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) id: ObjectId,
    pub(crate) off: u64,
    pub(crate) len: u64,
}

/// Begins to read a part.
pub(crate) fn begin(core: &Core, part: Part, deadline: Deadline) -> Ticket {
    let Some(deadline) = core.away.may_wait(core.options.host.now(), deadline) else {
        return Ticket::new(|| Err(StoreError::Away("it did not answer before".into())));
    };
    add(&core.counts.gets, 1);
    let Some((store, _)) = core.owner_of(part.id) else { return Ticket::new(|| Err(StoreError::Absent)) };
    let ticket = get_part(store, &part.id.key(), part.off..part.off + part.len, deadline);
    let (away, host, mirrored) = (core.away.clone(), core.options.host.clone(), core.options.mirrored);
    // Only what was sent shows whether the store is away.
    Ticket::new(move || {
        let done = ticket.wait();
        away.note(mirrored, host.now(), &done);
        done
    })
}

/// Its bytes.
pub(crate) fn end(core: &Core, part: Part, ticket: Ticket) -> Result<Vec<u8>, RemoteError> {
    let bytes = ticket.wait().and_then(|answer| part_of(answer, part.len));
    bytes.map_err(|e| match e {
        StoreError::Absent if core.write => why_missing(core, part.id),
        StoreError::Absent => RemoteError::Stale { what: part.id.to_string() },
        e => RemoteError::store("get", part.id.key(), e),
    })
}

/// Why a writer finds that an object of its volume is missing: somebody has overtaken it and collected, or it is damaged.
fn why_missing(core: &Core, id: ObjectId) -> RemoteError {
    let deadline = core.deadline(core.options.bounds.publish_try);
    let found = read(&*core.store, HEAD, core.options.key.as_ref(), deadline);
    match found {
        Ok((head, _)) if head.uuid == core.uuid && head.epoch > core.epoch => {
            let error = RemoteError::Overtaken { owner: head.writer().into(), epoch: head.epoch };
            core.close_latch(&error);
            error
        }
        Ok((head, _)) if head.uuid == core.uuid => {
            Corruption::new("volume", "object", "missing", "stored").within(id).into()
        }
        Ok(_) => RemoteError::Replaced { prefix: core.store.describe(), what: "made anew" },
        Err(e) => e,
    }
}

/// A part, made into something; read again if that fails.
pub(crate) fn checked<T>(
    core: &Core,
    part: Part,
    ticket: Ticket,
    deadline: Deadline,
    parse: impl Fn(&[u8]) -> Result<T, Corruption>,
) -> Result<T, RemoteError> {
    let mut bytes = end(core, part, ticket);
    for _ in 1..WRONG_TRIES {
        match &bytes {
            Ok(whole) => {
                if let Ok(out) = parse(whole) {
                    return Ok(out);
                }
            }
            Err(RemoteError::Store { source: StoreError::Wrong(_), .. }) => {}
            Err(_) => break,
        }
        bytes = end(core, part, begin(core, part, deadline));
    }
    Ok(parse(&bytes?)?)
}

/// A page that is being read.
pub(crate) struct PageTicket {
    ticket: Ticket,
    /// Whether it is to be kept on the disk.
    keep: bool,
}

/// Begins to read the page that a reference is to, from the disk if that has it.
pub(crate) fn begin_page(core: &Core, at: ObjectRef, deadline: Deadline) -> PageTicket {
    let on_disk = core.disk_of(at.id).and_then(|(disk, id)| disk.read(id, at.off, at.len as usize));
    match on_disk.filter(|bytes| xxh64(bytes) == at.xxh) {
        Some(body) => {
            add(&core.counts.disk_hits, 1);
            PageTicket { ticket: Ticket::new(|| Ok(Answer::Object { body, version: None })), keep: false }
        }
        None => PageTicket { ticket: begin_kept(core, part_of_ref(at), at.xxh, deadline), keep: true },
    }
}

/// Begins to read a page or a directory that has this checksum, unless an earlier moment has read it.
pub(crate) fn begin_kept(core: &Core, part: Part, xxh: u64, deadline: Deadline) -> Ticket {
    let kept = core.pages.as_ref().and_then(|pages| pages.get(part.id, part.off as u32));
    match kept.filter(|bytes| bytes.len() as u64 == part.len && xxh64(bytes) == xxh) {
        Some(bytes) => {
            add(&core.counts.cache_hits, 1);
            Ticket::new(move || Ok(Answer::Object { body: bytes.to_vec(), version: None }))
        }
        None => begin(core, part, deadline),
    }
}

/// Keeps a page or a directory that is as it should be, for later moments.
pub(crate) fn keep(core: &Core, part: Part, bytes: &[u8]) {
    if let Some(pages) = core.pages.as_ref().filter(|pages| pages.get(part.id, part.off as u32).is_none()) {
        pages.put(part.id, part.off as u32, Arc::new(bytes.to_vec()));
    }
}

/// The page.
pub(crate) fn page<T>(
    core: &Core,
    at: ObjectRef,
    ticket: PageTicket,
    deadline: Deadline,
    parse: impl Fn(&[u8]) -> Result<T, Corruption>,
) -> Result<T, RemoteError> {
    let PageTicket { ticket, keep } = ticket;
    checked(core, part_of_ref(at), ticket, deadline, |bytes| {
        let have = xxh64(bytes);
        if have != at.xxh {
            return Err(Corruption::new("map page", "checksum in its reference", have, at.xxh).within(at.id));
        }
        if let Some((disk, id)) = core.disk_of(at.id).filter(|_| keep) {
            disk.write(id, at.off, bytes);
        }
        self::keep(core, part_of_ref(at), bytes);
        let page = core.coder.unpack_page(bytes, core.bound(at.id).uuid, at.id, at.off)?;
        parse(&page).map_err(|e| e.within(at.id))
    })
}

/// The part that a reference is to.
fn part_of_ref(at: ObjectRef) -> Part {
    Part { id: at.id, off: at.off.into(), len: at.len.into() }
}
