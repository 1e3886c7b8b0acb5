//! The calls of a device: what is asked again if a session breaks, and what never is.
//!
//! Normal path of something that only reads ([`Shared::read`], [`Shared::ask`]): (1) a session; (2) the requests; (3)
//! what was not answered because the session broke, from the beginning, until it takes too long. Of a change
//! ([`Shared::change`]): once, on one session, whatever comes. Of a flush: again, if nothing could be lost meanwhile,
//! which the state decides.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oleo_device::{DeviceError, Extent, ExtentKind, Op, WriteReq};
use oleo_lock::{Mutex, rank};

use super::batch::{self, After, Outcome, Piece};
use super::handshake::Agreed;
use super::keeper::Kept;
use super::link::NoSink;
use super::options::ClientOptions;
use super::reads::{Cut, Reads, Want};
use super::session::Session;
use super::slots::{Answer, Ask, ServerError};
use super::state::{Reconnect, State, Task};
use super::unflushed::{Ended, Ranges, Witness};
use super::writes::{self, Edges};
use crate::error::NbdError;
use crate::uri::Uri;
use crate::wire::reply::StatusExtent;
use crate::wire::{AllocationFlags, Command, CommandFlags, ReplyError};

/// Longest request without payload, in bytes.
pub(super) const EFFECT_LEN_MAX: u64 = 1 << 30;
/// How long is waited before a server that went is tried, at first and at last.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a device and its keeper share.
pub(super) struct Shared {
    /// Where.
    pub(super) uri: Uri,
    /// Its name in messages.
    pub(super) name: Arc<str>,
    /// Whether it may be written.
    pub(super) write: bool,
    /// How it behaves.
    pub(super) options: ClientOptions,
    /// What the first session agreed, and every later one has to.
    pub(super) agreed: Agreed,
    /// How requests are cut.
    pub(super) cut: Cut,
    /// What may be done.
    pub(super) state: State<Session>,
    /// Held while blocks of which only a part is written are read and written back.
    pub(super) edges: Mutex<rank::NbdEdges, ()>,
    /// What was done.
    pub(super) counts: Counts,
}

/// What was done so far.
#[derive(Default)]
#[allow(missing_docs)]
pub(super) struct Counts {
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) write_bytes: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) discards: AtomicU64,
    pub(super) retries: AtomicU64,
}

/// Counts.
pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// Why a request, or what it belongs to, failed.
pub(super) enum Trouble {
    /// There is no session for it.
    Session(NbdError),
    /// The server answered so.
    Server(ServerError),
}

impl From<NbdError> for Trouble {
    fn from(why: NbdError) -> Trouble {
        Trouble::Session(why)
    }
}

impl Kept for Shared {
    fn keep(&self) -> bool {
        match self.state.task(self.options.settle_after) {
            Task::Stop => false,
            Task::Flush => {
                // The state remembers what failed, and tells the next who writes.
                let _told = self.flush();
                true
            }
        }
    }

    fn stop(&self) {
        self.state.stop();
    }
}

impl Reconnect<Session> for Shared {
    fn reconnect(&self, until: Instant, witnesses: &[Witness]) -> Result<Session, NbdError> {
        let mut pause = PAUSE.0;
        loop {
            std::thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
            let deadline = until.min(Instant::now() + self.options.connect_max);
            let result = Session::open(&self.uri, &self.options, deadline)
                .and_then(|session| self.is_the_same(&session, witnesses).map(|()| session));
            match result {
                Err(why) if Instant::now() < until && !matches!(why, NbdError::Changed { .. }) => {}
                result => return result,
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

impl Shared {
    /// Whether a new session is with the export that was there before.
    fn is_the_same(&self, session: &Session, witnesses: &[Witness]) -> Result<(), NbdError> {
        let changed = |what: String| {
            session.say_goodbye();
            NbdError::Changed { what }
        };
        if let Some(what) = self.agreed.differs(session.agreed()) {
            return Err(changed(what));
        }
        let mut bytes: Vec<Vec<u8>> = witnesses.iter().map(|witness| vec![0; witness.len as usize]).collect();
        let want = |(witness, buf)| {
            let (witness, buf): (&Witness, &mut Vec<u8>) = (witness, buf);
            Want { offset: witness.offset, req: 0, buf }
        };
        let mut reads = Reads::plan(witnesses.iter().zip(&mut bytes).map(want).collect(), self.cut, false);
        let mut outcome = batch::run(session, &reads.pieces(self.cut), &mut reads, After::GoOn);
        if let Some(why) = outcome.broken.take() {
            return Err(why);
        }
        if let Some((_, error)) = reads.sort(&mut outcome).failed.pop() {
            return Err(answered(&error));
        }
        for (witness, bytes) in witnesses.iter().zip(&bytes) {
            if Witness::of(witness.offset, &[bytes]) != *witness {
                let what = "bytes at {} that were flushed are others now";
                return Err(changed(what.replace("{}", &witness.offset.to_string())));
            }
        }
        Ok(())
    }

    /// Until when what broke is asked again.
    fn give_up_at(&self) -> Instant {
        Instant::now() + self.options.request_max + self.options.reconnect_max
    }

    /// Notes that a session broke. An error: whoever asked is not to ask again.
    fn broke(&self, epoch: u64, outcome: &mut Outcome, give_up: Instant) -> Result<(), NbdError> {
        let Some(why) = outcome.broken.take() else { return Ok(()) };
        self.state.broke(epoch, &why);
        add(&self.counts.retries, 1);
        if Instant::now() < give_up { Ok(()) } else { Err(why) }
    }

    /// Reads what is wanted; `failed` gets the number of each of the caller's reads that could not be, and why.
    pub(super) fn read(&self, wants: Vec<Want<'_>>, failed: &mut dyn FnMut(u32, Trouble)) {
        let give_up = self.give_up_at();
        let mut rounds = vec![(wants, true)];
        while let Some((mut wants, join)) = rounds.pop() {
            if wants.is_empty() {
                continue;
            }
            let entered = match self.state.enter(self) {
                Ok(entered) => entered,
                Err(why) => {
                    wants.iter().for_each(|want| failed(want.req, why.clone().into()));
                    continue;
                }
            };
            if let Some((lost, why)) = &entered.lost {
                wants.retain(|want| {
                    let is_lost = lost.overlaps(want.offset, want.end());
                    if is_lost {
                        failed(want.req, why.clone().into());
                    }
                    !is_lost
                });
            }
            let mut reads = Reads::plan(wants, self.cut, join);
            let mut outcome = batch::run(&entered.session, &reads.pieces(self.cut), &mut reads, After::GoOn);
            let result = self.broke(entered.epoch, &mut outcome, give_up);
            let sorted = reads.sort(&mut outcome);
            sorted.failed.into_iter().for_each(|(req, error)| failed(req, Trouble::Server(error)));
            rounds.push((sorted.apart, false));
            match result {
                Ok(()) => rounds.push((sorted.again, join)),
                Err(why) => sorted.again.iter().for_each(|want| failed(want.req, why.clone().into())),
            }
        }
    }

    /// Asks for something that changes nothing and has no data.
    pub(super) fn ask(&self, ask: Ask) -> Result<Answer, NbdError> {
        let give_up = self.give_up_at();
        loop {
            let entered = self.state.enter(self)?;
            let pieces = [Piece { ask, parts: &[] }];
            let mut outcome = batch::run(&entered.session, &pieces, &mut NoSink, After::GoOn);
            let result = self.broke(entered.epoch, &mut outcome, give_up);
            match outcome.answers.pop().flatten() {
                Some(answer) => return Ok(answer),
                None => result?,
            }
        }
    }

    /// What the server knows of a range of whole blocks: at least one extent, the last of which may reach beyond.
    pub(super) fn extents_of(&self, start: u64, end: u64, one: bool) -> Result<Vec<Extent>, NbdError> {
        let unknown = vec![Extent { len: end - start, kind: ExtentKind::Data }];
        // What may be lost is read with an error.
        if self.agreed.context.is_none() || self.state.enter(self)?.lost.is_some() {
            return Ok(unknown);
        }
        let flags = if one { CommandFlags::REQ_ONE } else { CommandFlags::empty() };
        let ask = Ask { command: Command::BlockStatus, flags, offset: start, len: (end - start) as u32 };
        let answer = self.ask(ask)?;
        // It is only asked what need not be read; a read will tell what is wrong.
        if answer.error.is_some() {
            return Ok(unknown);
        }
        let extent = |extent: &StatusExtent| {
            let kind =
                match (extent.flags.contains(AllocationFlags::ZERO), extent.flags.contains(AllocationFlags::HOLE)) {
                    (true, true) => ExtentKind::Hole,
                    (true, false) => ExtentKind::Zeros,
                    (false, _) => ExtentKind::Data,
                };
            Extent { len: extent.len.into(), kind }
        };
        Ok(answer.extents.iter().map(extent).collect())
    }

    /// Sends requests that change bytes: once, on one session, whatever comes.
    pub(super) fn change(
        &self,
        pieces: &[Piece<'_>],
        ranges: Ranges,
        witnesses: &[Witness],
        ended: Ended,
    ) -> Result<(), (Trouble, Ask)> {
        let Some(first) = pieces.first() else { return Ok(()) };
        let (entered, call) =
            self.state.begin(self, ranges, witnesses).map_err(|why| (Trouble::Session(why), first.ask))?;
        let mut outcome = batch::run(&entered.session, pieces, &mut NoSink, After::Stop);
        if let Some(why) = outcome.broken.take() {
            self.state.broke(entered.epoch, &why);
            self.state.end(call, Ended::Failed);
            return Err((Trouble::Session(why), first.ask));
        }
        let failed = pieces.iter().zip(outcome.answers).find_map(|(piece, answer)| match answer {
            Some(Answer { error, .. }) => error.map(|error| (error, piece.ask)),
            // It was not sent, because another one failed.
            None => None,
        });
        self.state.end(call, if failed.is_some() { Ended::Failed } else { ended });
        match failed {
            Some((error, ask)) => Err((Trouble::Server(error), ask)),
            None => Ok(()),
        }
    }

    /// Makes durable what was written.
    pub(super) fn flush(&self) -> Result<(), NbdError> {
        let give_up = self.give_up_at();
        let ask = Ask { command: Command::Flush, flags: CommandFlags::empty(), offset: 0, len: 0 };
        loop {
            let (entered, flush) = self.state.begin_flush(self)?;
            add(&self.counts.flushes, 1);
            let pieces = [Piece { ask, parts: &[] }];
            let mut outcome = batch::run(&entered.session, &pieces, &mut NoSink, After::GoOn);
            let result = self.broke(entered.epoch, &mut outcome, give_up);
            match outcome.answers.pop().flatten() {
                Some(Answer { error: None, .. }) => return self.state.end_flush(flush, None),
                Some(Answer { error: Some(error), .. }) => {
                    return self.state.end_flush(flush, Some(&answered(&error)));
                }
                // If anything was unflushed the state does not let it begin again.
                None => result?,
            }
        }
    }

    /// Writes; `durable`: each of them, by itself.
    pub(super) fn write(&self, reqs: &[WriteReq<'_>], durable: bool) -> Result<(), DeviceError> {
        self.may_write(Op::Write)?;
        for req in reqs {
            self.inside(Op::Write, req.offset, req.len())?;
        }
        let mut edges = Edges::of(reqs, self.cut);
        let mut _guard = None;
        if !edges.is_empty() {
            _guard = Some(self.edges.lock());
            let mut failed = None;
            self.read(edges.wants(), &mut |_, trouble| failed = Some(trouble));
            if let Some(trouble) = failed {
                return Err(self.failed(Op::Write, reqs[0].offset, reqs[0].len(), trouble));
            }
            edges.patch(reqs, self.cut);
        }
        let writes = writes::plan(writes::runs(reqs, self.cut, &edges), self.cut);
        let (flags, ended) = match durable {
            true => (CommandFlags::FUA, Ended::Durable),
            false => (CommandFlags::empty(), Ended::Written),
        };
        let witnesses = writes::witnesses(&writes);
        let pieces = writes::pieces(&writes, flags);
        add(&self.counts.writes, pieces.len() as u64);
        add(&self.counts.write_bytes, pieces.iter().map(|piece| piece.ask.cost()).sum());
        self.change(&pieces, writes::ranges(&writes), &witnesses, ended)
            .map_err(|(trouble, ask)| self.failed(Op::Write, ask.offset, ask.len.into(), trouble))
    }

    /// A change without payload of whole blocks.
    pub(super) fn effect(
        &self,
        op: Op,
        command: Command,
        flags: CommandFlags,
        start: u64,
        end: u64,
    ) -> Result<(), DeviceError> {
        let mut pieces = Vec::new();
        let mut at = start;
        while at < end {
            let len = (end - at).min(EFFECT_LEN_MAX - at % EFFECT_LEN_MAX);
            pieces.push(Piece { ask: Ask { command, flags, offset: at, len: len as u32 }, parts: &[] });
            at += len;
        }
        let not_so =
            |trouble: &Trouble| matches!(trouble, Trouble::Server(ServerError { error: ReplyError::NotSup, .. }));
        self.change(&pieces, Ranges::from_iter([(start, end)]), &[], Ended::Written).map_err(|(trouble, ask)| {
            match not_so(&trouble) {
                true => DeviceError::Unsupported { name: self.name.clone(), op },
                false => self.failed(op, ask.offset, ask.len.into(), trouble),
            }
        })
    }

    /// Zeros as bytes.
    pub(super) fn write_zero_bytes(&self, start: u64, end: u64) -> Result<(), DeviceError> {
        const PIECE_LEN: usize = 64 << 10;
        const PIECE_COUNT: usize = 64;
        static ZEROS: [u8; PIECE_LEN] = [0; PIECE_LEN];
        let mut at = start;
        while at < end {
            let mut left = (end - at).min((PIECE_LEN * PIECE_COUNT) as u64) as usize;
            let mut parts = Vec::with_capacity(PIECE_COUNT);
            let offset = at;
            at += left as u64;
            while left > 0 {
                let part = &ZEROS[..left.min(PIECE_LEN)];
                left -= part.len();
                parts.push(part);
            }
            self.write(&[WriteReq { offset, parts: &parts }], false)?;
        }
        Ok(())
    }

    /// Whether it may be written.
    pub(super) fn may_write(&self, op: Op) -> Result<(), DeviceError> {
        match self.write {
            true => Ok(()),
            false => Err(DeviceError::ReadOnly { name: self.name.clone(), op }),
        }
    }

    /// The end of a request, if it lies in the device.
    pub(super) fn inside(&self, op: Op, offset: u64, len: u64) -> Result<u64, DeviceError> {
        let size = self.agreed.size;
        let end = offset.checked_add(len).filter(|end| *end <= size);
        end.ok_or_else(|| DeviceError::OutOfRange { name: self.name.clone(), op, offset, len, size })
    }

    /// The device's error for something that failed.
    pub(super) fn failed(&self, op: Op, offset: u64, len: u64, trouble: Trouble) -> DeviceError {
        let source = match trouble {
            Trouble::Session(NbdError::Device(inner)) => return inner,
            // Which may be repeated; see `DeviceError::is_full`.
            Trouble::Server(ServerError { error: ReplyError::NoSpace, .. }) => {
                io::Error::from_raw_os_error(ReplyError::NoSpace.number() as i32)
            }
            Trouble::Server(error) => io::Error::other(answered(&error)),
            Trouble::Session(why) => {
                let kind = match &why {
                    NbdError::TimedOut { .. } => io::ErrorKind::TimedOut,
                    NbdError::Broken { .. } => io::ErrorKind::ConnectionReset,
                    _ => io::ErrorKind::Other,
                };
                io::Error::new(kind, why)
            }
        };
        DeviceError::Io { name: self.name.clone(), op, offset, len, source: Arc::new(source) }
    }
}

fn answered(error: &ServerError) -> NbdError {
    NbdError::Answered { error: error.error, text: error.text.clone() }
}
