//! Carries out the requests of one call on a session: dealt to its connections, as many in parallel as the windows take.
//!
//! Normal path: (1) each request takes a place in the window of its connection; (2) what has places is sent, several
//! requests with one system call; (3) where the window is full, the oldest answer is waited for; (4) at the end, all.
//!
//! Invariants: when [`run`] returns nothing of the call is under way any more: everything is answered, or the session is
//! closed. A call that has something under way never waits for a place, only for answers: so no two can wait for each
//! other's places. Before a wait, what has a place has been sent.

use std::collections::VecDeque;

use super::link::{Caller, Outgoing, Sink};
use super::session::Session;
use super::slots::{Answer, Ask, Ticket};
use super::state::Connection;
use crate::error::NbdError;
use crate::wire::ReplyError;

/// So many bytes of payload are collected before they are sent.
const SEND_LEN: u64 = 64 << 10;
/// And so many requests.
const SEND_COUNT: usize = 32;

/// One request, and the payload of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    /// What is asked.
    pub(super) ask: Ask,
    /// What is written.
    pub(super) parts: &'a [&'a [u8]],
}

/// What to do about a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    /// The others are still sent.
    GoOn,
    /// Those that have not been sent yet are not.
    Stop,
}

/// What came of a call.
pub(super) struct Outcome {
    /// By piece; `None`: it was not sent, or the session broke before its answer came.
    pub(super) answers: Vec<Option<Answer>>,
    /// Why the session broke, if it did. It is closed then.
    pub(super) broken: Option<NbdError>,
}

/// Carries out a call; see the module's text.
pub(super) fn run(session: &Session, pieces: &[Piece<'_>], sink: &mut dyn Sink, after: After) -> Outcome {
    let mut run = Run {
        session,
        pieces,
        caller: Caller { number: session.call(), sink },
        unsent: session.links().iter().map(|_| Vec::new()).collect(),
        under_way: VecDeque::new(),
        answers: vec![None; pieces.len()],
        stopped: false,
        after,
    };
    let broken = run.all().err().inspect(|why| {
        session.close(why);
        // What was answered before counts: it will not be asked again.
        run.collect_the_rest();
    });
    Outcome { answers: run.answers, broken }
}

struct Run<'a> {
    session: &'a Session,
    pieces: &'a [Piece<'a>],
    caller: Caller<'a>,
    /// By connection: what has a place and is not sent.
    unsent: Vec<Vec<(usize, Ticket)>>,
    /// Piece, connection, place; the oldest first.
    under_way: VecDeque<(usize, usize, Ticket)>,
    answers: Vec<Option<Answer>>,
    stopped: bool,
    after: After,
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), NbdError> {
        for (index, piece) in self.pieces.iter().enumerate() {
            if self.stopped {
                break;
            }
            let at = self.session.link_for(piece.ask.offset);
            let ticket = self.place(at, index)?;
            self.unsent[at].push((index, ticket));
            self.under_way.push_back((index, at, ticket));
            let unsent = &self.unsent[at];
            let bytes: u64 = unsent.iter().map(|(index, _)| payload(&self.pieces[*index])).sum();
            if bytes >= SEND_LEN || unsent.len() >= SEND_COUNT {
                self.send(at)?;
            }
        }
        self.send_all()?;
        while !self.under_way.is_empty() {
            self.collect()?;
        }
        Ok(())
    }

    /// A place in the window of a connection.
    fn place(&mut self, at: usize, index: usize) -> Result<Ticket, NbdError> {
        let (link, ask) = (&self.session.links()[at], &self.pieces[index].ask);
        loop {
            if let Some(ticket) = link.reserve(ask, self.caller.number, index as u32)? {
                return Ok(ticket);
            }
            self.send_all()?;
            if self.under_way.is_empty() {
                return link.reserve_waiting(ask, self.caller.number, index as u32);
            }
            self.collect()?;
        }
    }

    fn send_all(&mut self) -> Result<(), NbdError> {
        (0..self.unsent.len()).try_for_each(|at| self.send(at))
    }

    fn send(&mut self, at: usize) -> Result<(), NbdError> {
        let unsent = std::mem::take(&mut self.unsent[at]);
        if unsent.is_empty() {
            return Ok(());
        }
        let pieces = self.pieces;
        let outgoing: Vec<Outgoing<'_>> =
            unsent.iter().map(|&(index, ticket)| (ticket, pieces[index].ask, pieces[index].parts)).collect();
        self.session.links()[at].send(&outgoing, &mut self.caller)
    }

    /// Waits for the oldest answer.
    fn collect(&mut self) -> Result<(), NbdError> {
        let Some((index, at, ticket)) = self.under_way.pop_front() else { return Ok(()) };
        let answer = self.session.links()[at].wait(ticket, &mut self.caller)?;
        if is_end(&answer) {
            return Err(NbdError::broken(std::io::ErrorKind::ConnectionAborted.into()));
        }
        self.stopped |= answer.error.is_some() && self.after == After::Stop;
        self.answers[index] = Some(answer);
        Ok(())
    }

    /// Of a closed session: the answers that are there.
    fn collect_the_rest(&mut self) {
        for (index, at, ticket) in std::mem::take(&mut self.under_way) {
            let answer = self.session.links()[at].wait(ticket, &mut self.caller).ok();
            self.answers[index] = answer.filter(|answer| !is_end(answer));
        }
    }
}

/// The server ends: what it has not answered it will not, and it did not do this.
fn is_end(answer: &Answer) -> bool {
    answer.error.as_ref().is_some_and(|error| error.error == ReplyError::Shutdown)
}

fn payload(piece: &Piece<'_>) -> u64 {
    piece.parts.iter().map(|part| part.len() as u64).sum()
}
