//! One connection: requests go out, replies come back in any order.
//!
//! Normal path: (1) [`Link::reserve`] takes a place in the window; (2) [`Link::send`]; (3) [`Link::wait`] for its answer.
//!
//! There is no thread that receives. Who waits for an answer receives, in the *role* ([`Incoming`]), which one thread
//! has at a time: the data of its own requests goes straight into its buffers, that of others into their slots. It
//! gives the role up, at the border of two messages, when its own answer is there; one of the others takes it then.
//!
//! Who sends and finds the socket full receives meanwhile, if nobody else does: two sides that both only send, each
//! with full buffers, would wait for each other for ever.
//!
//! Invariants: each byte from the server is checked before it is believed; the first thing that is wrong, late or
//! broken ends the connection ([`Link::kill`]) with all that is under way on it. A connection that was ended is never
//! used again, so a late answer meets nobody.
//! Locks: `send` while one message goes out, whole; `slots`, a leaf, for moments. Waiting is on the socket, with `send`
//! or without, or at `arrived`, and never longer than [`LOOK`] without a look at the time.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oleo_lock::{Condvar, Mutex, MutexGuard, rank};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::slots::{Answer, Ask, Collected, Payload, Place, Slots, Ticket, Window};
use crate::channel::{Channel, Interest};
use crate::error::NbdError;
use crate::wire::reply::{Chunk, OFFSET_DATA, SimpleReply};
use crate::wire::{CHUNK_MAGIC, Command, CommandFlags, Request, SIMPLE_REPLY_MAGIC};

/// Bytes that are received together, if they are not data that is longer.
const INCOMING_LEN: usize = 64 << 10;
/// Data of at least this many bytes is received where it belongs, without a copy.
const DIRECT_LEN_MIN: usize = 16 << 10;
/// How long anybody waits without looking at the time.
const LOOK: Duration = Duration::from_secs(1);
/// Nor are more messages received than this.
const LOOK_MESSAGES: u32 = 64;
/// How long a server that is late may stay so.
const GRACE: Duration = Duration::from_millis(500);
/// How long a sender waits for a full socket before it looks whether somebody still receives.
const FULL_LOOK: Duration = Duration::from_millis(5);

/// Where the data of a call's own requests goes.
pub(super) trait Sink {
    /// The memory for the bytes of a piece from `at` on: at least one byte.
    fn target(&mut self, piece: u32, at: u32) -> &mut [u8];
}

/// For calls without data to receive.
pub(super) struct NoSink;

impl Sink for NoSink {
    fn target(&mut self, _: u32, _: u32) -> &mut [u8] {
        unreachable!("data comes only for reads")
    }
}

/// A call: its number, and where its data goes.
pub(super) struct Caller<'a> {
    /// Unlike that of any other on the connection.
    pub(super) number: u64,
    /// Where data goes.
    pub(super) sink: &'a mut dyn Sink,
}

/// A request that is to be sent: its place, what is asked, and the payload.
pub(super) type Outgoing<'a> = (Ticket, Ask, &'a [&'a [u8]]);

/// What was received and not looked at yet. Whoever has it has the role of the receiver.
#[derive(Debug)]
struct Incoming {
    buf: Box<[u8]>,
    start: usize,
    end: usize,
    /// How many were received, modulo 2^32.
    messages: u32,
}

impl Incoming {
    fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes()[..N]);
        self.start += N;
        out
    }
}

struct Inner {
    slots: Slots,
    /// `None`: a thread receives.
    role: Option<Incoming>,
    dead: Option<NbdError>,
    /// Since when it is known that the server is late.
    late: Option<Instant>,
}

/// See the module's text.
pub(super) struct Link {
    channel: Channel,
    send: Mutex<rank::NbdSend, ()>,
    inner: Mutex<rank::NbdSlots, Inner>,
    /// An answer is complete, a place is free, the role is, or the link is dead.
    arrived: Condvar,
    began: Instant,
    /// When the last byte came or went, in milliseconds after `began`.
    moved: AtomicU64,
}

/// Has the role, and gives it back.
struct Role<'a> {
    link: &'a Link,
    /// `None`: it has not got it.
    incoming: Option<Incoming>,
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        if self.incoming.is_some() && std::thread::panicking() {
            self.link.kill(&NbdError::protocol("a panic while a reply was received"));
        }
        if let Some(incoming) = self.incoming.take() {
            self.link.inner.lock().role = Some(incoming);
            self.link.arrived.notify_all();
        }
    }
}

impl Link {
    /// A connection whose handshake is over.
    pub(super) fn new(channel: Channel, window: Window) -> Link {
        let incoming = Incoming { buf: vec![0; INCOMING_LEN].into(), start: 0, end: 0, messages: 0 };
        Link {
            channel,
            send: Mutex::new(()),
            inner: Mutex::new(Inner { slots: Slots::new(window), role: Some(incoming), dead: None, late: None }),
            arrived: Condvar::new(),
            began: Instant::now(),
            moved: AtomicU64::new(0),
        }
    }

    /// Takes a place in the window, if there is one now.
    pub(super) fn reserve(&self, ask: &Ask, owner: u64, piece: u32) -> Result<Option<Ticket>, NbdError> {
        let mut inner = self.alive()?;
        Ok(inner.slots.reserve(ask, owner, piece, None))
    }

    /// Waits for a place in the window. The caller has nothing under way, on this connection or another: two that
    /// wait for places which the other has would wait for ever.
    pub(super) fn reserve_waiting(&self, ask: &Ask, owner: u64, piece: u32) -> Result<Ticket, NbdError> {
        let mut inner = self.alive()?;
        let number = inner.slots.queue();
        loop {
            if let Some(ticket) = inner.slots.reserve(ask, owner, piece, Some(number)) {
                // There may be a place for the next one, too.
                self.arrived.notify_all();
                return Ok(ticket);
            }
            // Whoever has the places receives or waits for somebody who does, so there is nothing to do here.
            self.arrived.wait_for(&mut inner, LOOK);
            if let Some(why) = self.doom(&mut inner) {
                inner.slots.leave(number);
                return Err(self.ended(inner, why));
            }
        }
    }

    /// Sends requests. An error is the end of the connection.
    pub(super) fn send(&self, outgoing: &[Outgoing<'_>], caller: &mut Caller<'_>) -> Result<(), NbdError> {
        let headers: Vec<[u8; Request::LEN]> = outgoing.iter().map(|(ticket, ask, _)| ticket.header(ask)).collect();
        let mut slices = Vec::with_capacity(headers.len());
        for (header, (_, _, parts)) in headers.iter().zip(outgoing) {
            slices.push(IoSlice::new(header));
            slices.extend(parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        }
        let mut rest = &mut slices[..];
        let _sending = self.send.lock();
        while !rest.is_empty() {
            match self.channel.try_send(rest) {
                Ok(0) => self.receive_or_wait(caller)?,
                Ok(sent) => {
                    self.progress();
                    IoSlice::advance_slices(&mut rest, sent);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.receive_or_wait(caller)?,
                Err(e) => return Err(self.kill(&NbdError::broken(e))),
            }
        }
        loop {
            match self.channel.try_finish() {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.receive_or_wait(caller)?,
                Err(e) => return Err(self.kill(&NbdError::broken(e))),
            }
        }
    }

    /// The socket is full: receives one message, if one comes and nobody else receives, or waits a little.
    fn receive_or_wait(&self, caller: &mut Caller<'_>) -> Result<(), NbdError> {
        let mut role = Role { link: self, incoming: None };
        role.incoming = self.in_time()?.role.take();
        let Some(incoming) = &mut role.incoming else {
            let until = Some(Instant::now() + FULL_LOOK);
            let waited = self.channel.wait(Interest::SEND, until, None);
            return waited.map(drop).map_err(|e| self.kill(&NbdError::broken(e)));
        };
        let mut receive = || {
            if incoming.bytes().is_empty() && !self.fill_now(incoming)? {
                let until = Some(Instant::now() + LOOK);
                let came = self.channel.wait(Interest::SEND | Interest::RECV, until, None).map_err(NbdError::broken)?;
                if !came.contains(Interest::RECV) {
                    return Ok(());
                }
            }
            self.receive_one(incoming, caller)
        };
        receive().map_err(|e| self.kill(&e))
    }

    /// Waits for the answer to a request of this caller, and receives if nobody else does. Its place is free then.
    pub(super) fn wait(&self, ticket: Ticket, caller: &mut Caller<'_>) -> Result<Answer, NbdError> {
        let mut inner = self.inner.lock();
        let done = loop {
            if let Some(done) = inner.slots.collect(ticket) {
                drop(inner);
                break done;
            }
            if let Some(why) = self.doom(&mut inner) {
                return Err(self.ended(inner, why));
            }
            let Some(incoming) = inner.role.take() else {
                self.arrived.wait_for(&mut inner, LOOK);
                continue;
            };
            drop(inner);
            let mut role = Role { link: self, incoming: Some(incoming) };
            if let Some(incoming) = &mut role.incoming {
                break self.receive_until(ticket, incoming, caller).map_err(|e| self.kill(&e))?;
            }
            inner = self.inner.lock();
        };
        // For those who wait for a place.
        self.arrived.notify_all();
        for (start, mut bytes) in done.stash.runs() {
            let mut at = start;
            while !bytes.is_empty() {
                let target = caller.sink.target(done.piece, at);
                let len = target.len().min(bytes.len());
                target[..len].copy_from_slice(&bytes[..len]);
                bytes = &bytes[len..];
                at += len as u32;
            }
        }
        Ok(done.answer)
    }

    /// Receives until an answer is complete.
    fn receive_until(
        &self,
        ticket: Ticket,
        incoming: &mut Incoming,
        caller: &mut Caller<'_>,
    ) -> Result<Collected, NbdError> {
        loop {
            self.receive_one(incoming, caller)?;
            if let Some(done) = self.inner.lock().slots.collect(ticket) {
                return Ok(done);
            }
        }
    }

    /// Receives one message, whole.
    fn receive_one(&self, incoming: &mut Incoming, caller: &mut Caller<'_>) -> Result<(), NbdError> {
        // A server that never pauses may leave one request out.
        incoming.messages = incoming.messages.wrapping_add(1);
        if incoming.messages.is_multiple_of(LOOK_MESSAGES) {
            drop(self.in_time()?);
        }
        self.need(incoming, 4)?;
        let (cookie, done) = match incoming.bytes().first_chunk().map(|magic| u32::from_be_bytes(*magic)) {
            Some(SIMPLE_REPLY_MAGIC) => {
                self.need(incoming, SimpleReply::LEN)?;
                let reply = SimpleReply::decode(&incoming.take()).ok_or_else(|| NbdError::protocol("no reply"))?;
                let payload = self.alive()?.slots.simple(reply.cookie, reply.error, caller.number)?;
                self.data(payload, reply.cookie, Some(incoming), caller)?;
                (reply.cookie, true)
            }
            Some(CHUNK_MAGIC) => {
                self.need(incoming, Chunk::LEN)?;
                let chunk = Chunk::decode(&incoming.take()).ok_or_else(|| NbdError::protocol("no chunk"))?;
                let mut offset = None;
                if chunk.kind == OFFSET_DATA && chunk.len >= 8 {
                    self.need(incoming, 8)?;
                    offset = Some(u64::from_be_bytes(incoming.take()));
                }
                let mut payload = self.alive()?.slots.chunk(&chunk, offset, caller.number)?;
                if let Payload::Control { len } = payload {
                    let mut bytes = vec![0; len as usize];
                    self.fill(incoming, &mut bytes)?;
                    payload = self.alive()?.slots.control(&chunk, &bytes, caller.number)?;
                    // A hole.
                    self.data(payload, chunk.cookie, None, caller)?;
                } else {
                    self.data(payload, chunk.cookie, Some(incoming), caller)?;
                }
                (chunk.cookie, chunk.is_done())
            }
            _ => return Err(NbdError::protocol("what came is no reply")),
        };
        if done {
            let mut inner = self.alive()?;
            let owner = inner.slots.owner(cookie)?;
            inner.slots.done(cookie)?;
            drop(inner);
            if owner != caller.number {
                self.arrived.notify_all();
            }
        }
        Ok(())
    }

    /// Puts data where it belongs: received, or zeros.
    fn data(
        &self,
        payload: Payload,
        cookie: u64,
        mut from: Option<&mut Incoming>,
        caller: &mut Caller<'_>,
    ) -> Result<(), NbdError> {
        let Payload::Data { mut place, mut at, len } = payload else { return Ok(()) };
        let end = at + len;
        while at < end {
            let target = match &mut place {
                Place::Caller(piece) => caller.sink.target(*piece, at),
                Place::Slot(stash) => &mut stash.data[at as usize..],
            };
            let some = target.len().min((end - at) as usize);
            match from.as_deref_mut() {
                Some(incoming) => self.fill(incoming, &mut target[..some])?,
                None => target[..some].fill(0),
            }
            at += some as u32;
        }
        match place {
            Place::Caller(_) => Ok(()),
            Place::Slot(stash) => self.alive()?.slots.stashed(cookie, stash),
        }
    }

    /// Receives until at least `len` bytes are there; `len` is at most that of the buffer.
    fn need(&self, incoming: &mut Incoming, len: usize) -> Result<(), NbdError> {
        while incoming.bytes().len() < len {
            if incoming.buf.len() - incoming.start < len {
                incoming.buf.copy_within(incoming.start..incoming.end, 0);
                (incoming.start, incoming.end) = (0, incoming.end - incoming.start);
            }
            if !self.fill_now(incoming)? {
                self.await_input()?;
            }
        }
        Ok(())
    }

    /// Fills `target`.
    fn fill(&self, incoming: &mut Incoming, target: &mut [u8]) -> Result<(), NbdError> {
        let mut done = 0;
        while done < target.len() {
            let there = incoming.bytes().len().min(target.len() - done);
            target[done..done + there].copy_from_slice(&incoming.bytes()[..there]);
            incoming.start += there;
            done += there;
            let missing = target.len() - done;
            let came = match missing {
                0 => break,
                DIRECT_LEN_MIN.. => {
                    let some = self.receive(&mut target[done..])?;
                    done += some;
                    some > 0
                }
                _ => self.fill_now(incoming)?,
            };
            if !came {
                self.await_input()?;
            }
        }
        Ok(())
    }

    /// Receives what is there after what is left; whether anything was.
    fn fill_now(&self, incoming: &mut Incoming) -> Result<bool, NbdError> {
        if incoming.start == incoming.end {
            (incoming.start, incoming.end) = (0, 0);
        }
        let end = incoming.end;
        let some = self.receive(&mut incoming.buf[end..])?;
        incoming.end += some;
        Ok(some > 0)
    }

    /// Receives what is there: 0 bytes if there are none. The end of the stream is an error.
    fn receive(&self, buf: &mut [u8]) -> Result<usize, NbdError> {
        match self.channel.try_recv(buf) {
            Ok(0) => Err(NbdError::broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(some) => {
                self.progress();
                Ok(some)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(NbdError::broken(e)),
        }
    }

    /// Waits until something comes.
    fn await_input(&self) -> Result<(), NbdError> {
        loop {
            drop(self.in_time()?);
            let until = Some(Instant::now() + LOOK);
            if !self.channel.wait(Interest::RECV, until, None).map_err(NbdError::broken)?.is_empty() {
                return Ok(());
            }
        }
    }

    fn progress(&self) {
        self.moved.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Why the connection is over, or must be: a server that is late gets [`GRACE`] from when that is noticed, because
    /// it may be this process that was stopped, with the answers waiting to be received.
    fn doom(&self, inner: &mut Inner) -> Option<NbdError> {
        if let Some(why) = &inner.dead {
            return Some(why.clone());
        }
        let now = Instant::now();
        let moved = self.began + Duration::from_millis(self.moved.load(Ordering::Relaxed));
        let Some(why) = inner.slots.late(now, moved) else {
            inner.late = None;
            return None;
        };
        if now.duration_since(*inner.late.get_or_insert(now)) < GRACE {
            return None;
        }
        Some(self.doomed(inner, &why))
    }

    fn alive(&self) -> Result<MutexGuard<'_, rank::NbdSlots, Inner>, NbdError> {
        let inner = self.inner.lock();
        match &inner.dead {
            None => Ok(inner),
            Some(why) => Err(why.clone()),
        }
    }

    /// The same, with a look at the time.
    fn in_time(&self) -> Result<MutexGuard<'_, rank::NbdSlots, Inner>, NbdError> {
        let mut inner = self.inner.lock();
        match self.doom(&mut inner) {
            None => Ok(inner),
            Some(why) => Err(self.ended(inner, why)),
        }
    }

    /// Notes the end, and its first reason; [`Link::ended`] has to follow.
    fn doomed(&self, inner: &mut Inner, why: &NbdError) -> NbdError {
        let why = inner.dead.get_or_insert_with(|| why.clone()).clone();
        self.arrived.notify_all();
        why
    }

    /// Ends the stream, which wakes those who wait for the socket.
    fn ended(&self, inner: MutexGuard<'_, rank::NbdSlots, Inner>, why: NbdError) -> NbdError {
        drop(inner);
        self.channel.shutdown();
        why
    }

    /// Ends the connection; all that is under way on it fails. Returns the reason, which is that of the first who did.
    pub(super) fn kill(&self, why: &NbdError) -> NbdError {
        let mut inner = self.inner.lock();
        let why = self.doomed(&mut inner, why);
        self.ended(inner, why)
    }

    /// Says goodbye, if nothing is under way and the socket takes it, and ends the connection.
    pub(super) fn close(&self) {
        if let Some(_sending) = self.send.try_lock()
            && self.alive().is_ok_and(|inner| inner.slots.is_idle())
        {
            let flags = CommandFlags::empty();
            let command = Command::Disconnect.number();
            let goodbye = Request { flags, command, cookie: 0, offset: 0, len: 0 }.encode();
            // It is only a courtesy.
            let _sent = self.channel.try_send(&[IoSlice::new(&goodbye)]).and_then(|_| self.channel.try_finish());
        }
        self.kill(&NbdError::broken(io::ErrorKind::NotConnected.into()));
    }

    /// Whether the stream is known to have ended, by either side. Costs a system call; takes no lock.
    pub(super) fn has_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|_| !fds[0].revents().is_empty())
    }
}

#[cfg(test)]
mod tests;
