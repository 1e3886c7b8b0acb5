//! A connection that reads and writes an export.
//!
//! A few threads ([`Connection::work`]) take turns: the one that has the receiving end takes a round of requests, gives
//! the end to the next thread, carries the round out, and sends its replies. So a slow request delays no other until
//! all threads have one, and a slow client delays nobody else. A small round with nothing behind it is carried out
//! before the end is given up: then nobody has to be woken.
//!
//! A reply is sent whole under the sending end's lock. If that fails, or stalls, the connection is shut down: every
//! thread finds that out when it receives or sends next, and ends. If receiving fails, nothing more is received, and what
//! was received before is answered.
//! When the server is to end, rounds that are under way are finished, requests that come after that are refused with
//! `ESHUTDOWN`, and the connection ends as soon as nothing more is there.

use std::io::IoSlice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oleo_device::Device;
use oleo_lock::{Mutex, rank};

use super::budget::Budget;
use super::execute::{self, Failure};
use super::export::Served;
use super::handshake::{ALLOCATION_ID, Agreed};
use super::receive::{End, ROUND_LEN_MAX, Receiver, Round, Terms};
use super::stop::Stopper;
use crate::channel::{Channel, Pace};
use crate::wire::reply::{BLOCK_STATUS, Chunk, ChunkError, DATA_HEAD_LEN, NONE, OFFSET_DATA, SimpleReply, status_data};
use crate::wire::{ChunkFlags, Command, CommandFlags, ReplyError, Request};

/// How long a thread waits for the receiving end before it gives its memory back.
const IDLE: Duration = Duration::from_secs(10);

/// A connection after its handshake.
pub(super) struct Connection<'a> {
    pub(super) channel: Arc<Channel>,
    pub(super) served: &'a Served,
    pub(super) agreed: Agreed,
    pub(super) budget: &'a Budget,
    pub(super) stop: &'a Stopper,
    pub(super) progress_max: Duration,
    pub(super) idle_max: Option<Duration>,
    receive: Mutex<rank::NbdServeReceive, Receiver>,
    send: Mutex<rank::NbdServeSend, ()>,
    /// Why it ended, if not well.
    broken: OnceLock<String>,
}

/// Times of a connection.
pub(super) struct Times {
    pub(super) progress_max: Duration,
    pub(super) idle_max: Option<Duration>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        channel: Arc<Channel>,
        served: &'a Served,
        agreed: Agreed,
        (budget, stop): (&'a Budget, &'a Stopper),
        Times { progress_max, idle_max }: Times,
    ) -> Connection<'a> {
        let (receive, send, broken) = (Mutex::new(Receiver::new()), Mutex::default(), OnceLock::new());
        Connection { channel, served, agreed, budget, stop, progress_max, idle_max, receive, send, broken }
    }

    /// Serves until the end, on `threads` threads, this one included. Why it ended, if not well.
    pub(super) fn serve(&self, threads: usize) -> Option<String> {
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // With fewer threads it goes on all the same.
                let _ = std::thread::Builder::new().name("nbd".into()).spawn_scoped(scope, || self.work());
            }
            self.work();
        });
        self.channel.shutdown();
        self.broken.get().cloned()
    }

    fn work(&self) {
        let mut round = Round::default();
        let terms = Terms {
            channel: &self.channel,
            stop: self.stop,
            budget: self.budget,
            payload_max: self.served.payload_max,
            progress_max: self.progress_max,
            idle_max: self.idle_max,
        };
        loop {
            let Some(mut receiver) = self.receive.try_lock_for(IDLE) else {
                round.shrink_memory();
                continue;
            };
            if receiver.ended {
                return;
            }
            if let Err(end) = receiver.take_round(&terms, &mut round) {
                receiver.ended = true;
                if let End::Broken(why) = end {
                    // What was taken before is still answered: the last thread to end closes. Of two that fail one is the first.
                    let _ = self.broken.set(why);
                }
                return;
            }
            let stays = round.is_small() && receiver.is_drained(&self.channel);
            let _held = stays.then_some(receiver);
            self.carry_out(&mut round);
        }
    }

    /// The connection is of no use any more.
    fn fail(&self, why: String) {
        // Of two threads that fail one is the first.
        let _ = self.broken.set(why);
        self.channel.shutdown();
    }

    fn carry_out(&self, round: &mut Round<'_>) {
        if self.stop.is_set() {
            let mut out = Vec::new();
            let failure = Failure::new(ReplyError::Shutdown, "the server ends");
            round.requests.iter().for_each(|request| self.push_error(&mut out, request, &failure));
            self.send(&mut [IoSlice::new(&out)]);
            return;
        }
        if !round.is_single {
            let failures = execute::read_and_write(self.served, round);
            return self.answer_round(round, failures);
        }
        let Some(&request) = round.requests.first() else { return };
        match Command::of(request.command) {
            Some(Command::Read) => self.read_long(&request, round),
            Some(Command::Write) => {
                let large = round.large.as_ref().map(|large| large.bytes());
                let data = large.unwrap_or(&round.bytes[..round.payload_len]);
                self.answer(&request, execute::write_durable(self.served, &request, data));
            }
            Some(Command::BlockStatus) => self.answer_status(&request),
            _ => self.answer(&request, execute::change(self.served, &request)),
        }
    }

    /// The replies of a round, sent together.
    fn answer_round(&self, round: &Round<'_>, failures: Vec<Option<Failure>>) {
        let mut heads = Vec::new();
        // Ends of the heads, and the data behind each.
        let mut parts: Vec<(usize, &[u8])> = Vec::new();
        let mut read = &round.bytes[round.payload_len..];
        for (request, failure) in round.requests.iter().zip(failures) {
            let is_read = request.command == Command::Read.number();
            let (data, after) = read.split_at(if is_read { request.len as usize } else { 0 });
            read = after;
            match failure {
                Some(failure) => {
                    self.push_error(&mut heads, request, &failure);
                    parts.push((heads.len(), &[]));
                }
                None => {
                    if is_read && self.agreed.structured {
                        push_data_head(&mut heads, request, ChunkFlags::DONE, request.offset, data.len());
                    } else {
                        heads.extend_from_slice(&SimpleReply { error: 0, cookie: request.cookie }.encode());
                    }
                    parts.push((heads.len(), data));
                }
            }
        }
        let mut slices = Vec::with_capacity(parts.len() * 2);
        let mut from = 0;
        for (to, data) in parts {
            slices.push(IoSlice::new(&heads[from..to]));
            slices.push(IoSlice::new(data));
            from = to;
        }
        self.send(&mut slices);
    }

    /// A reply without data.
    fn answer(&self, request: &Request, result: Result<(), Failure>) {
        let mut out = Vec::new();
        match result {
            Ok(()) => out.extend_from_slice(&SimpleReply { error: 0, cookie: request.cookie }.encode()),
            Err(failure) => self.push_error(&mut out, request, &failure),
        }
        self.send(&mut [IoSlice::new(&out)]);
    }

    fn push_error(&self, out: &mut Vec<u8>, request: &Request, failure: &Failure) {
        if !self.agreed.structured {
            let reply = SimpleReply { error: failure.error.number(), cookie: request.cookie };
            return out.extend_from_slice(&reply.encode());
        }
        let (kind, payload) = ChunkError::encode(failure.error, &failure.text, None);
        push_chunk(out, request, (ChunkFlags::DONE, kind), &payload);
    }

    fn answer_status(&self, request: &Request) {
        if !self.agreed.allocation {
            return self.answer(request, Err(Failure::new(ReplyError::Inval, "no context was chosen")));
        }
        match execute::status(self.served, request) {
            Err(failure) => self.answer(request, Err(failure)),
            Ok(extents) => {
                let mut out = Vec::new();
                push_chunk(&mut out, request, (ChunkFlags::DONE, BLOCK_STATUS), &status_data(ALLOCATION_ID, &extents));
                self.send(&mut [IoSlice::new(&out)]);
            }
        }
    }

    /// A read that is longer than a round: piece by piece if the client takes chunks, else whole.
    fn read_long(&self, request: &Request, round: &mut Round<'_>) {
        let no_pieces = request.flags.contains(CommandFlags::DF);
        if let Err(failure) = execute::refusal(self.served, request) {
            return self.answer(request, Err(failure));
        }
        if !self.agreed.structured {
            let mut memory = self.budget.take(self.channel.peer(), request.len);
            let data = memory.bytes_mut();
            return match self.served.device.read_at(request.offset, data) {
                Err(e) => self.answer(request, Err(Failure::new(ReplyError::Io, e.to_string()))),
                Ok(()) => {
                    let head = SimpleReply { error: 0, cookie: request.cookie }.encode();
                    self.send(&mut [IoSlice::new(&head), IoSlice::new(data)]);
                }
            };
        }
        if no_pieces {
            return self.answer(request, Err(Failure::new(ReplyError::Overflow, "too long for one chunk")));
        }
        round.read_len = ROUND_LEN_MAX;
        round.extend_memory();
        let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
        while at < end {
            let len = (end - at).min(ROUND_LEN_MAX as u64) as usize;
            let data = &mut round.bytes[..len];
            let mut out = Vec::new();
            if let Err(e) = self.served.device.read_at(at, data) {
                let (kind, payload) = ChunkError::encode(ReplyError::Io, &e.to_string(), Some(at));
                push_chunk(&mut out, request, (ChunkFlags::DONE, kind), &payload);
                self.send(&mut [IoSlice::new(&out)]);
                return;
            }
            push_data_head(&mut out, request, ChunkFlags::empty(), at, len);
            if !self.send(&mut [IoSlice::new(&out), IoSlice::new(data)]) {
                return;
            }
            at += len as u64;
        }
        let mut out = Vec::new();
        push_chunk(&mut out, request, (ChunkFlags::DONE, NONE), &[]);
        self.send(&mut [IoSlice::new(&out)]);
    }

    /// Sends; `false`: the connection has failed.
    fn send(&self, parts: &mut [IoSlice<'_>]) -> bool {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let _sending = self.send.lock();
        let sent = self.channel.send_all(parts, Pace::new(self.progress_max, len));
        sent.map_err(|e| self.fail(format!("sending: {e}"))).is_ok()
    }
}

fn push_chunk(out: &mut Vec<u8>, request: &Request, (flags, kind): (ChunkFlags, u16), payload: &[u8]) {
    out.extend_from_slice(&Chunk { flags, kind, cookie: request.cookie, len: payload.len() as u32 }.encode());
    out.extend_from_slice(payload);
}

/// The head of a chunk of `len` bytes of data, which follow.
fn push_data_head(out: &mut Vec<u8>, request: &Request, flags: ChunkFlags, offset: u64, len: usize) {
    let len = (DATA_HEAD_LEN + len) as u32;
    out.extend_from_slice(&Chunk { flags, kind: OFFSET_DATA, cookie: request.cookie, len }.encode());
    out.extend_from_slice(&offset.to_be_bytes());
}
