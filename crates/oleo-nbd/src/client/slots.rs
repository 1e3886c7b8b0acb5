//! The requests under way on one connection: who waits for which, what came of it, and the window that bounds them.
//!
//! Normal path: (1) [`Slots::reserve`] takes a place in the window and gives a [`Ticket`]; (2) replies are checked
//! against the slot of their cookie ([`Slots::simple`], [`Slots::chunk`]), which accumulates what came; (3)
//! [`Slots::collect`] gives the owner the answer and frees the place.
//!
//! Invariants: a cookie names a slot and how often it was used, so that a reply that comes twice fits nothing. Data lies
//! in its request, never overlaps, and is all there when a read is done. Runs of data that came, extents and texts are
//! bounded. What a thread received for another is kept in the slot, at most the request's length, which the window
//! counts.
//! Places are given in the order of those who wait ([`Slots::queue`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::error::NbdError;
use crate::wire::reply::{BLOCK_STATUS, Chunk, ChunkError, ERROR_OFFSET, NONE, OFFSET_DATA, OFFSET_HOLE, StatusExtent};
use crate::wire::{Command, CommandFlags, ReplyError, Request, STRING_LEN_MAX, shown};

/// The pace that a busy server must keep, in bytes per second: a request may take the time that all bytes under way
/// before it need.
const RATE_MIN: u64 = 64 << 10;
/// Most separate runs of data that came of one read.
const RUNS_MAX: usize = 1024;
/// Most extents in one answer, by the protocol.
const EXTENTS_MAX: usize = 1 << 20;
/// So many of them are kept: the rest can be asked for again.
const EXTENTS_KEPT: usize = 4096;

/// One request, as it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// What.
    pub(super) command: Command,
    /// How.
    pub(super) flags: CommandFlags,
    /// Offset in bytes.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) len: u32,
}

impl Ask {
    /// Bytes of payload, of either direction.
    pub(super) fn cost(&self) -> u64 {
        match self.command {
            Command::Read | Command::Write => self.len.into(),
            _ => 0,
        }
    }
}

/// A place in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    /// The header of its request.
    pub(super) fn header(self, ask: &Ask) -> [u8; Request::LEN] {
        let cookie = u64::from(self.slot) << 32 | u64::from(self.generation);
        Request { flags: ask.flags, command: ask.command.number(), cookie, offset: ask.offset, len: ask.len }.encode()
    }
}

/// An error that the server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerError {
    /// Which.
    pub(super) error: ReplyError,
    /// For people, escaped.
    pub(super) text: String,
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Answer {
    /// Why it failed, if it did.
    pub(super) error: Option<ServerError>,
    /// Of a question what is where.
    pub(super) extents: Vec<StatusExtent>,
}

/// Runs of bytes of one read, from its beginning.
#[derive(Clone, Default, Debug)]
struct Runs(SmallVec<[(u32, u32); 2]>);

impl Runs {
    /// Adds `start..end`, of which nothing may be there.
    fn add(&mut self, start: u32, end: u32) -> Result<(), NbdError> {
        let at = self.0.partition_point(|run| run.0 < start);
        let before = at > 0 && self.0[at - 1].1 >= start;
        if (before && self.0[at - 1].1 > start) || self.0.get(at).is_some_and(|run| run.0 < end) {
            return Err(NbdError::protocol("data came twice"));
        }
        let after = self.0.get(at).is_some_and(|run| run.0 == end);
        match (before, after) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = end,
            (false, true) => self.0[at].0 = start,
            (false, false) if self.0.len() == RUNS_MAX => {
                return Err(NbdError::protocol("data in too many pieces"));
            }
            (false, false) => self.0.insert(at, (start, end)),
        }
        Ok(())
    }

    fn are_all(&self, len: u32) -> bool {
        self.0.as_slice() == [(0, len)]
    }
}

/// Data that a thread received for another.
#[derive(Default, Debug)]
pub(super) struct Stash {
    /// As long as the request, or empty.
    pub(super) data: Vec<u8>,
    runs: Runs,
}

impl Stash {
    /// The runs that are in it: start, bytes.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.runs.0.iter().map(|&(start, end)| (start, &self.data[start as usize..end as usize]))
    }
}

/// What is left when a request is answered.
#[derive(Debug)]
pub(super) struct Collected {
    /// What came of it.
    pub(super) answer: Answer,
    /// Which piece of its call it was.
    pub(super) piece: u32,
    /// What others received for it.
    pub(super) stash: Stash,
}

/// A request under way.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    /// The call that waits for it.
    owner: u64,
    /// Which piece of the call it is.
    piece: u32,
    /// When it will have taken too long.
    deadline: Instant,
    came: Runs,
    stash: Stash,
    answer: Answer,
    answered: bool,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    waiting: Option<Box<Waiting>>,
}

/// Where data goes.
#[derive(Debug)]
pub(super) enum Place {
    /// To the caller, which is the owner: its piece.
    Caller(u32),
    /// Into the slot, by [`Slots::stashed`].
    Slot(Stash),
}

/// What to do with the payload of a reply.
#[derive(Debug)]
pub(super) enum Payload {
    /// There is none, or nothing is left to be done.
    Nothing,
    /// `len` bytes of data for `at` of the request.
    Data { place: Place, at: u32, len: u32 },
    /// To be read whole, `len` bytes, and given to [`Slots::control`].
    Control { len: u32 },
}

/// What the window allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Requests in parallel.
    pub(super) requests: usize,
    /// Bytes of payload in parallel; a single request may have more.
    pub(super) bytes: u64,
    /// See [`super::ClientOptions::request_max`].
    pub(super) request_max: Duration,
    /// Whether reads are answered by chunks.
    pub(super) structured: bool,
    /// The number of the context of allocations.
    pub(super) context: Option<u32>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Slots {
    list: Vec<Slot>,
    free: Vec<u32>,
    bytes: u64,
    window: Window,
    /// Those who wait for a place, in their order.
    queue: VecDeque<u64>,
    /// The last number that was given to somebody in the queue.
    queued: u64,
    /// How many wait for answers, and since when there were any.
    unanswered: usize,
    since: Instant,
}

impl Slots {
    /// An empty window.
    pub(super) fn new(window: Window) -> Slots {
        let count = window.requests.clamp(1, 1 << 16) as u32;
        Slots {
            list: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count).rev().collect(),
            bytes: 0,
            window,
            queue: VecDeque::new(),
            queued: 0,
            unanswered: 0,
            since: Instant::now(),
        }
    }

    /// Takes a place, if there is one. `number`: the place in the queue of whoever waits already; nobody else gets
    /// anything while somebody waits.
    pub(super) fn reserve(&mut self, ask: &Ask, owner: u64, piece: u32, number: Option<u64>) -> Option<Ticket> {
        if self.queue.front().copied() != number {
            return None;
        }
        let fits = self.bytes == 0 || self.bytes.saturating_add(ask.cost()) <= self.window.bytes;
        let slot = if fits { self.free.pop()? } else { return None };
        if number.is_some() {
            self.queue.pop_front();
        }
        self.bytes += ask.cost();
        let now = Instant::now();
        if self.unanswered == 0 {
            self.since = now;
        }
        self.unanswered += 1;
        let place = &mut self.list[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        place.waiting = Some(Box::new(Waiting {
            ask: *ask,
            owner,
            piece,
            deadline: now + self.window.request_max + Duration::from_secs(self.bytes / RATE_MIN),
            came: Runs::default(),
            stash: Stash::default(),
            answer: Answer::default(),
            answered: false,
        }));
        Some(Ticket { slot, generation: place.generation })
    }

    /// A number in the queue for places.
    pub(super) fn queue(&mut self) -> u64 {
        self.queued += 1;
        self.queue.push_back(self.queued);
        self.queued
    }

    /// Leaves the queue without a place.
    pub(super) fn leave(&mut self, number: u64) {
        self.queue.retain(|n| *n != number);
    }

    /// The answer to a request and what others received for it, if it is complete; then its place is free.
    pub(super) fn collect(&mut self, ticket: Ticket) -> Option<Collected> {
        let slot = &mut self.list[ticket.slot as usize];
        let done = slot.waiting.take_if(|w| w.answered && slot.generation == ticket.generation)?;
        self.free.push(ticket.slot);
        self.bytes -= done.ask.cost();
        Some(Collected { answer: done.answer, piece: done.piece, stash: done.stash })
    }

    /// Whether nothing waits for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.unanswered == 0
    }

    /// How long the server has kept a request waiting beyond what is allowed, if it has. `moved`: when the last byte
    /// came or went.
    pub(super) fn late(&self, now: Instant, moved: Instant) -> Option<NbdError> {
        if self.unanswered == 0 {
            return None;
        }
        let quiet = now.saturating_duration_since(moved.max(self.since));
        let oldest = self.list.iter().filter_map(|slot| slot.waiting.as_ref()).filter(|w| !w.answered);
        let over = oldest.map(|w| w.deadline).min().is_some_and(|deadline| now > deadline);
        (over || quiet > self.window.request_max).then_some(NbdError::TimedOut { after: self.window.request_max })
    }

    fn waiting(&mut self, cookie: u64) -> Result<&mut Waiting, NbdError> {
        let (slot, generation) = ((cookie >> 32) as usize, cookie as u32);
        let slot = self.list.get_mut(slot).filter(|slot| slot.generation == generation);
        let waiting = slot.and_then(|slot| slot.waiting.as_deref_mut()).filter(|w| !w.answered);
        waiting.ok_or_else(|| NbdError::protocol("an answer to nothing that was asked"))
    }

    /// Whose request a cookie is.
    pub(super) fn owner(&mut self, cookie: u64) -> Result<u64, NbdError> {
        self.waiting(cookie).map(|w| w.owner)
    }

    /// A simple reply has come; a read's data follows.
    pub(super) fn simple(&mut self, cookie: u64, error: u32, me: u64) -> Result<Payload, NbdError> {
        let structured = self.window.structured;
        let waiting = self.waiting(cookie)?;
        match (ReplyError::of(error), waiting.ask.command) {
            (_, Command::Read) if structured => Err(NbdError::protocol("a simple reply to a read, chunks were agreed")),
            (None, Command::Read) => waiting.data(0, waiting.ask.len, me),
            // It would have extents.
            (None, Command::BlockStatus) => Err(NbdError::protocol("a simple reply to a question for extents")),
            (None, _) => Ok(Payload::Nothing),
            (Some(error), _) => {
                waiting.answer.error = Some(ServerError { error, text: String::new() });
                Ok(Payload::Nothing)
            }
        }
    }

    /// The header of a chunk has come; for data its offset too (`offset`).
    pub(super) fn chunk(&mut self, chunk: &Chunk, offset: Option<u64>, me: u64) -> Result<Payload, NbdError> {
        if !self.window.structured {
            return Err(NbdError::protocol("a chunk, and chunks were not agreed"));
        }
        let waiting = self.waiting(chunk.cookie)?;
        let control = |len_max: usize| match chunk.len as usize <= len_max {
            true => Ok(Payload::Control { len: chunk.len }),
            false => Err(NbdError::protocol(format!("a chunk of {} bytes", chunk.len))),
        };
        match (chunk.kind, waiting.ask.command) {
            (NONE, _) if chunk.len == 0 && chunk.is_done() => Ok(Payload::Nothing),
            (NONE, _) => Err(NbdError::protocol("an empty chunk that is not empty, or not the last")),
            (OFFSET_DATA, Command::Read) => {
                let len = chunk.len.checked_sub(8).filter(|len| *len > 0);
                let (len, offset) = len.zip(offset).ok_or_else(|| NbdError::protocol("a chunk without data"))?;
                let at = waiting.place_of(offset, len)?;
                waiting.data(at, len, me)
            }
            (OFFSET_HOLE, Command::Read) if chunk.len == 12 => control(12),
            (BLOCK_STATUS, Command::BlockStatus) => control(4 + 8 * EXTENTS_MAX),
            _ if chunk.is_error() => control(STRING_LEN_MAX + 64),
            (kind, command) => Err(NbdError::protocol(format!("a chunk of kind {kind} to {command:?}"))),
        }
    }

    /// The payload of a chunk that is no data. Of a hole, what is to be filled with zeros.
    pub(super) fn control(&mut self, chunk: &Chunk, payload: &[u8], me: u64) -> Result<Payload, NbdError> {
        let context = self.window.context;
        let waiting = self.waiting(chunk.cookie)?;
        if chunk.is_error() {
            let found = ChunkError::decode(chunk.kind, payload);
            let found = found.ok_or_else(|| NbdError::protocol("an error that is none"))?;
            if chunk.kind == ERROR_OFFSET {
                waiting.place_of(found.offset.unwrap_or_default(), 0)?;
            }
            // The first is kept.
            if let (None, Some(error)) = (&waiting.answer.error, ReplyError::of(found.error)) {
                waiting.answer.error = Some(ServerError { error, text: shown(&found.text) });
            }
            return Ok(Payload::Nothing);
        }
        match chunk.kind {
            OFFSET_HOLE => {
                let mut fields = crate::wire::Fields(payload);
                let (offset, len) = fields
                    .u64()
                    .zip(fields.u32())
                    .filter(|(_, len)| *len > 0)
                    .ok_or_else(|| NbdError::protocol("an empty hole"))?;
                let at = waiting.place_of(offset, len)?;
                waiting.data(at, len, me)
            }
            _ => {
                let status = crate::wire::reply::status_of(payload);
                let (id, mut extents) = status.ok_or_else(|| NbdError::protocol("extents that are none"))?;
                if Some(id) != context || !waiting.answer.extents.is_empty() {
                    return Err(NbdError::protocol("extents of a context that was not asked for"));
                }
                extents.truncate(EXTENTS_KEPT);
                extents.shrink_to_fit();
                waiting.answer.extents = extents;
                Ok(Payload::Nothing)
            }
        }
    }

    /// Data for somebody else is there: puts its memory back.
    pub(super) fn stashed(&mut self, cookie: u64, stash: Stash) -> Result<(), NbdError> {
        self.waiting(cookie).map(|w| w.stash = stash)
    }

    /// The last of a reply has come: the request is answered, if nothing is missing.
    pub(super) fn done(&mut self, cookie: u64) -> Result<(), NbdError> {
        let waiting = self.waiting(cookie)?;
        if waiting.answer.error.is_none() {
            match waiting.ask.command {
                Command::Read if !waiting.came.are_all(waiting.ask.len) => {
                    return Err(NbdError::protocol("a read is done and data is missing"));
                }
                Command::BlockStatus if waiting.answer.extents.is_empty() => {
                    return Err(NbdError::protocol("a question for extents is done and there are none"));
                }
                _ => {}
            }
        }
        waiting.answered = true;
        self.unanswered -= 1;
        Ok(())
    }
}

impl Waiting {
    /// Where in the request `len` bytes at `offset` of the device are.
    fn place_of(&self, offset: u64, len: u32) -> Result<u32, NbdError> {
        let at = offset.checked_sub(self.ask.offset).and_then(|at| u32::try_from(at).ok());
        at.filter(|at| at.checked_add(len).is_some_and(|end| end <= self.ask.len))
            .ok_or_else(|| NbdError::protocol("something outside of what was asked for"))
    }

    /// Notes that data comes, and says where it goes.
    fn data(&mut self, at: u32, len: u32, me: u64) -> Result<Payload, NbdError> {
        self.came.add(at, at + len)?;
        if self.owner == me {
            return Ok(Payload::Data { place: Place::Caller(self.piece), at, len });
        }
        let mut stash = std::mem::take(&mut self.stash);
        if stash.data.is_empty() {
            stash.data = vec![0; self.ask.len as usize];
        }
        stash.runs.add(at, at + len)?;
        Ok(Payload::Data { place: Place::Slot(stash), at, len })
    }
}

#[cfg(test)]
mod tests;
