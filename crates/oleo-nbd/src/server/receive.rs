//! Requests, as they come in: what is there already is taken together, as a round.
//!
//! One thread at a time receives. It takes from the buffer what is completely there, in order, until [`ROUND_COUNT_MAX`]
//! requests, [`ROUND_LEN_MAX`] bytes of data, or a request that goes alone: all but reads up to that length and writes
//! without FUA. So many small requests cost one call to receive them and one to answer them.
//! A write whose data is not completely there goes alone too, and its data is received straight into its place.
//!
//! Bounds: a round's memory is at most [`ROUND_LEN_MAX`]; a longer write takes its memory from the server's budget
//! before it is received. A begun request has to come in at a pace.

use std::io;
use std::time::{Duration, Instant};

use super::budget::{Budget, Memory};
use super::stop::Stopper;
use crate::channel::{Channel, Interest, Pace};
use crate::wire::{Command, CommandFlags, Request};

/// Bytes that are received with one call.
const BUFFER_LEN: usize = 64 << 10;
/// Most requests of a round.
const ROUND_COUNT_MAX: usize = 32;
/// Most bytes of data of a round, read and written together.
pub(super) const ROUND_LEN_MAX: usize = 1 << 20;
/// Most bytes of data of a round that the receiving thread carries out before it lets another one receive.
const ALONE_LEN_MAX: usize = 64 << 10;
/// What a thread's memory is cut to when nothing comes for a while, in bytes.
const IDLE_LEN_MAX: usize = 64 << 10;

/// Why nothing more is received.
#[derive(Debug)]
pub(super) enum End {
    /// The client says so, or closes between requests; or nothing came for too long; or the server ends.
    Closed,
    /// The stream failed, or the client broke the protocol.
    Broken(String),
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> End {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => End::Broken("closed within a request".into()),
            io::ErrorKind::TimedOut => End::Broken("a request stalls".into()),
            _ => End::Broken(e.to_string()),
        }
    }
}

/// What receiving needs to know.
pub(super) struct Terms<'a> {
    pub(super) channel: &'a Channel,
    pub(super) stop: &'a Stopper,
    pub(super) budget: &'a Budget,
    /// Longest payload, in bytes.
    pub(super) payload_max: u32,
    /// Longest time without a byte inside of a request.
    pub(super) progress_max: Duration,
    /// Longest time between requests.
    pub(super) idle_max: Option<Duration>,
}

/// Requests that are carried out together, and their memory.
#[derive(Default)]
pub(super) struct Round<'a> {
    pub(super) requests: Vec<Request>,
    /// The data of writes one after the other, then place for that of reads. Longer than it need be: what was allocated
    /// for earlier rounds stays.
    pub(super) bytes: Vec<u8>,
    /// Bytes of writes.
    pub(super) payload_len: usize,
    /// Bytes of reads.
    pub(super) read_len: usize,
    /// The data of a long write instead.
    pub(super) large: Option<Memory<'a>>,
    /// A single request, of any kind.
    pub(super) is_single: bool,
}

impl Round<'_> {
    fn clear(&mut self) {
        self.requests.clear();
        (self.payload_len, self.read_len, self.large, self.is_single) = (0, 0, None, false);
    }

    fn len(&self) -> usize {
        self.payload_len + self.read_len
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn has_place_for(&self, len: usize) -> bool {
        self.requests.len() < ROUND_COUNT_MAX && self.len() + len <= ROUND_LEN_MAX
    }

    /// Makes the memory as long as the round needs.
    pub(super) fn extend_memory(&mut self) {
        let need = self.len();
        if self.bytes.len() < need {
            // Growing piece by piece would zero and copy again and again.
            self.bytes.resize(need.next_power_of_two(), 0);
        }
    }

    /// Gives memory back.
    pub(super) fn shrink_memory(&mut self) {
        if self.bytes.len() > IDLE_LEN_MAX {
            self.bytes = Vec::new();
        }
    }

    fn push_read(&mut self, request: Request) {
        self.requests.push(request);
        self.read_len += request.len as usize;
    }

    /// Takes a write; its place.
    fn push_write(&mut self, request: Request) -> &mut [u8] {
        let (from, len) = (self.payload_len, request.len as usize);
        self.requests.push(request);
        self.payload_len += len;
        self.extend_memory();
        &mut self.bytes[from..from + len]
    }

    /// Whether the thread that received it may carry it out at the expense of those that come next.
    pub(super) fn is_small(&self) -> bool {
        let quick = |r: &Request| {
            matches!(Command::of(r.command), Some(Command::Read | Command::Write))
                && !r.flags.contains(CommandFlags::FUA)
        };
        self.len() <= ALONE_LEN_MAX && self.large.is_none() && self.requests.iter().all(quick)
    }
}

/// The receiving end of a connection.
pub(super) struct Receiver {
    buf: Box<[u8]>,
    start: usize,
    end: usize,
    /// Nothing more is received.
    pub(super) ended: bool,
}

impl Receiver {
    pub(super) fn new() -> Receiver {
        Receiver { buf: vec![0; BUFFER_LEN].into(), start: 0, end: 0, ended: false }
    }

    /// Whether nothing is there for another thread to receive.
    pub(super) fn is_drained(&self, channel: &Channel) -> bool {
        self.start == self.end && !channel.has_input()
    }

    /// Waits for requests, and takes a round of them.
    pub(super) fn take_round<'a>(&mut self, terms: &Terms<'a>, round: &mut Round<'a>) -> Result<(), End> {
        round.clear();
        self.fill(terms, round)?;
        while let Some(head) = self.buf[self.start..self.end].first_chunk() {
            let Some(request) = Request::decode(head) else {
                return or_later(round, End::Broken("no request where one should be".into()));
            };
            let (len, rest) = (request.len as usize, self.end - self.start - Request::LEN);
            match Command::of(request.command) {
                Some(Command::Disconnect) => return or_later(round, End::Closed),
                Some(Command::Write) if request.len > terms.payload_max => {
                    return or_later(round, End::Broken(format!("a write of {len} bytes")));
                }
                Some(Command::Write) => {
                    let joins = rest >= len && !request.flags.contains(CommandFlags::FUA) && round.has_place_for(len);
                    if !joins {
                        return if round.is_empty() { self.take_write(terms, request, round) } else { Ok(()) };
                    }
                    self.start += Request::LEN;
                    round.push_write(request).copy_from_slice(&self.buf[self.start..self.start + len]);
                    self.start += len;
                }
                Some(Command::Read) if round.has_place_for(len) => {
                    self.start += Request::LEN;
                    round.push_read(request);
                }
                _ => {
                    if round.is_empty() {
                        self.start += Request::LEN;
                        round.requests.push(request);
                        round.is_single = true;
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Takes a write alone, with data that may not be there yet.
    fn take_write<'a>(&mut self, terms: &Terms<'a>, request: Request, round: &mut Round<'a>) -> Result<(), End> {
        self.start += Request::LEN;
        let len = request.len as usize;
        round.is_single = request.flags.contains(CommandFlags::FUA);
        let place = if len <= ROUND_LEN_MAX {
            round.push_write(request)
        } else {
            round.requests.push(request);
            round.large.insert(terms.budget.take(terms.channel.peer(), request.len)).bytes_mut()
        };
        let there = len.min(self.end - self.start);
        place[..there].copy_from_slice(&self.buf[self.start..self.start + there]);
        self.start += there;
        terms.channel.recv_all(&mut place[there..], Pace::new(terms.progress_max, len as u64))?;
        Ok(())
    }

    /// Receives until a header is there.
    fn fill(&mut self, terms: &Terms<'_>, round: &mut Round<'_>) -> Result<(), End> {
        /// After this time without a request memory is given back.
        const IDLE: Duration = Duration::from_secs(10);
        if self.end - self.start >= Request::LEN {
            return Ok(());
        }
        self.buf.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let since = Instant::now();
        let mut begun = (self.end > 0).then_some(since);
        loop {
            match terms.channel.try_recv(&mut self.buf[self.end..]) {
                Ok(0) if self.end == 0 => return Err(End::Closed),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
            if self.end >= Request::LEN {
                return Ok(());
            }
            if terms.stop.is_set() {
                return Err(End::Closed);
            }
            if self.end > 0 {
                begun.get_or_insert_with(Instant::now);
            }
            let limit = match begun {
                Some(at) => Some(at + terms.progress_max),
                None => terms.idle_max.map(|max| since + max),
            };
            let wake = limit.unwrap_or(Instant::now() + IDLE).min(Instant::now() + IDLE);
            let came = terms.channel.wait(Interest::RECV, Some(wake), Some(terms.stop.event()))?;
            if came.is_empty() {
                round.shrink_memory();
                if limit.is_some_and(|limit| limit <= Instant::now()) {
                    return Err(if begun.is_some() { End::Broken("a request stalls".into()) } else { End::Closed });
                }
            }
        }
    }
}

/// An end that comes after what was taken already.
fn or_later(round: &Round<'_>, end: End) -> Result<(), End> {
    if round.is_empty() { Err(end) } else { Ok(()) }
}
