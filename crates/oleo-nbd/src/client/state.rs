//! What may still be done on a device whose server may go: one table, and who waits for what.
//!
//! ```text
//!            write                       broke                 returned
//!   Clean ──────────▶ Dirty      Clean ─────────▶ Away       ───────────▶ Clean
//!     ▲                 │                           │ gave up
//!     └─────────────────┘                           ▼
//!        all is flushed                           Gone ◀──────────┐ gave up
//!                       broke                                     │
//!                Dirty ─────────────────────────────────────▶ LostAway ──────▶ Lost ──▶ LostAway
//!                Dirty, Clean ── a flush fails ──▶ Lost                returned    broke
//! ```
//!
//! Normal path of a read: (1) [`State::enter`] gives it the session, or waits until there is one again; (2) it asks; (3)
//! if the session broke, [`State::broke`], and from the beginning. Of a change: (1) [`State::begin`] notes what will be
//! written and gives it the session, in one step; (2) it is sent, on that session and never on another; (3)
//! [`State::end`], or [`State::broke`].
//!
//! Why a change is never sent twice: it may be stuck in the server of the connection that broke. Sent again, both
//! succeed, a newer write to the same place is confirmed, then the stuck one runs and brings the old bytes back.
//!
//! Invariants: a change is sent only from `Clean` or `Dirty`, and the state is `Dirty` before its first byte leaves. From
//! `Lost` no way leads back to writing. What is not confirmed when a session breaks stays unreadable (`lost`).
//! Whoever needs a session that is away makes the new one, the first of them for all; nothing is locked meanwhile.
//! Locks: one, a leaf; waiting is at its condition variables, up to a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo_lock::{Condvar, Mutex, MutexGuard, rank};

use super::unflushed::{Ended, Ranges, Unflushed, Witness};
use crate::error::NbdError;

/// How long whoever waits for another to reconnect gives it beyond the agreed time.
const RECONNECT_GRACE: Duration = Duration::from_secs(1);

/// Between two looks at a server that lets us in and hangs up.
const HUNG_UP_PAUSE: Duration = Duration::from_millis(20);

/// Where a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Connected, everything is durable.
    Clean,
    /// Connected, something is not.
    Dirty,
    /// Not connected, everything was durable.
    Away,
    /// Connected, something may be lost.
    Lost,
    /// Not connected, something may be lost.
    LostAway,
    /// For ever without a server.
    Gone,
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Something is about to be written.
    Write,
    /// Everything is durable.
    Flushed,
    /// A flush was refused.
    FlushFailed,
    /// A connection broke.
    Broke,
    /// There is a new session, with the same export.
    Returned,
    /// There will be none.
    GaveUp,
}

/// What is to be done on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Something that changes nothing.
    Read,
    /// A write, zeros, a discard, a flush.
    Change,
}

/// Whether it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leave {
    /// It may.
    Pass,
    /// It waits until somebody has reconnected.
    Wait,
    /// Never again.
    Refused,
}

use Event::{Broke, FlushFailed, Flushed, GaveUp, Returned, Write};
use Leave::{Pass, Refused, Wait};
use Phase::{Away, Clean, Dirty, Gone, Lost, LostAway};

/// What leads where; anything else changes nothing.
const TABLE: [(Phase, Event, Phase); 13] = [
    (Clean, Write, Dirty),
    (Clean, FlushFailed, Lost),
    (Clean, Broke, Away),
    (Dirty, Flushed, Clean),
    (Dirty, FlushFailed, Lost),
    (Dirty, Broke, LostAway),
    (Away, FlushFailed, LostAway),
    (Away, Returned, Clean),
    (Away, GaveUp, Gone),
    (Lost, Broke, LostAway),
    (Lost, GaveUp, Gone),
    (LostAway, Returned, Lost),
    (LostAway, GaveUp, Gone),
];

impl Phase {
    /// Where something leads.
    pub(super) fn after(self, event: Event) -> Phase {
        TABLE.iter().find(|(from, what, _)| (*from, *what) == (self, event)).map_or(self, |(.., to)| *to)
    }

    /// What may be done.
    pub(super) fn leave(self, to: Use) -> Leave {
        match (self, to) {
            (Clean | Dirty, _) | (Lost, Use::Read) => Pass,
            (Away, _) | (LostAway, Use::Read) => Wait,
            (Lost | LostAway, Use::Change) | (Gone, _) => Refused,
        }
    }
}

/// What a state needs to know of a session.
pub(super) trait Connection {
    /// Ends it; whoever waits for an answer gets `why`.
    fn close(&self, why: &NbdError);
    /// Whether the other side is known to have gone. Called with the state's lock held.
    fn has_hung_up(&self) -> bool;
}

/// Who makes a new session.
pub(super) trait Reconnect<S> {
    /// A session with the same export, on which the witnesses are as they were; tried until a time.
    fn reconnect(&self, until: Instant, witnesses: &[Witness]) -> Result<S, NbdError>;
}

/// A session that may be used, until it breaks.
#[derive(Debug)]
pub(super) struct Entered<S> {
    /// Which one, for [`State::broke`].
    pub(super) epoch: u64,
    /// It.
    pub(super) session: Arc<S>,
    /// What must not be read, if anything, and the error of whoever does.
    pub(super) lost: Option<(Arc<Ranges>, NbdError)>,
}

/// What the keeper is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Flush.
    Flush,
    /// End.
    Stop,
}

struct Inner<S> {
    phase: Phase,
    session: Option<Arc<S>>,
    epoch: u64,
    /// Why it is not `Clean` or `Dirty`.
    why: Option<NbdError>,
    /// Until when a session that is away is waited for; from the first call that needs one.
    until: Option<Instant>,
    /// Somebody makes a new session.
    reconnecting: bool,
    unflushed: Unflushed,
    lost: Option<Arc<Ranges>>,
    /// It is `Lost` because a flush was refused, for the reason in `why`.
    flush_failed: bool,
    /// When the last change began or ended.
    changed_at: Instant,
    stopped: bool,
    reconnects: u64,
}

/// See the module's text.
pub(super) struct State<S> {
    inner: Mutex<rank::NbdState, Inner<S>>,
    /// A session has come, or is given up.
    back: Condvar,
    /// The keeper has something to do.
    keeper: Condvar,
    reconnect_max: Duration,
}

type Guard<'a, S> = MutexGuard<'a, rank::NbdState, Inner<S>>;

impl<S: Connection> State<S> {
    /// With a session, and nothing written.
    pub(super) fn new(session: S, reconnect_max: Duration) -> State<S> {
        let inner = Inner {
            phase: Clean,
            session: Some(Arc::new(session)),
            epoch: 0,
            why: None,
            until: None,
            reconnecting: false,
            unflushed: Unflushed::default(),
            lost: None,
            flush_failed: false,
            changed_at: Instant::now(),
            stopped: false,
            reconnects: 0,
        };
        State { inner: Mutex::new(inner), back: Condvar::new(), keeper: Condvar::new(), reconnect_max }
    }

    /// Waits until something may be done, and returns the session for it, the lock still held.
    fn passed(&self, to: Use, by: &dyn Reconnect<S>) -> Result<Guard<'_, S>, NbdError> {
        let mut inner = self.inner.lock();
        loop {
            match inner.phase.leave(to) {
                Pass => return Ok(inner),
                Refused => return Err(inner.refusal()),
                Wait => {}
            }
            let until = *inner.until.get_or_insert_with(|| Instant::now() + self.reconnect_max);
            if inner.reconnecting {
                if self.back.wait_until(&mut inner, until + RECONNECT_GRACE).timed_out() {
                    return Err(inner.refusal());
                }
                continue;
            }
            inner.reconnecting = true;
            let witnesses = inner.unflushed.witnesses();
            drop(inner);
            let result = by.reconnect(until, &witnesses);
            inner = self.inner.lock();
            inner.reconnecting = false;
            inner.until = None;
            match result {
                Ok(session) => {
                    inner.session = Some(Arc::new(session));
                    inner.epoch += 1;
                    inner.reconnects += 1;
                    inner.happens(Returned);
                }
                Err(e) => {
                    inner.why = Some(e);
                    inner.happens(GaveUp);
                }
            }
            self.back.notify_all();
        }
    }

    /// The session, for something that changes nothing.
    pub(super) fn enter(&self, by: &dyn Reconnect<S>) -> Result<Entered<S>, NbdError> {
        self.passed(Use::Read, by)?.entered()
    }

    /// A change of `ranges` begins: the session on which it may be sent, and its number for [`State::end`].
    pub(super) fn begin(
        &self,
        by: &dyn Reconnect<S>,
        ranges: Ranges,
        candidates: &[Witness],
    ) -> Result<(Entered<S>, u64), NbdError> {
        let give_up = Instant::now() + self.reconnect_max;
        loop {
            let mut inner = self.passed(Use::Change, by)?;
            let entered = inner.entered()?;
            // So far nothing can be lost, so it is worth a look whether the server is still there.
            if inner.phase == Clean && entered.session.has_hung_up() {
                drop(inner);
                let why = NbdError::broken(std::io::ErrorKind::UnexpectedEof.into());
                self.broke(entered.epoch, &why);
                // It lets us in and hangs up, again and again.
                if Instant::now() >= give_up {
                    return Err(why);
                }
                std::thread::sleep(HUNG_UP_PAUSE.min(self.reconnect_max));
                continue;
            }
            let call = inner.unflushed.begin(ranges, candidates);
            inner.changed_at = Instant::now();
            if inner.phase == Clean {
                inner.happens(Write);
                self.keeper.notify_all();
            }
            return Ok((entered, call));
        }
    }

    /// All answers to a change are there.
    pub(super) fn end(&self, call: u64, how: Ended) {
        let mut inner = self.inner.lock();
        inner.unflushed.end(call, how);
        inner.changed_at = Instant::now();
        inner.settle();
    }

    /// A flush begins: the session for it, and its number for [`State::end_flush`].
    pub(super) fn begin_flush(&self, by: &dyn Reconnect<S>) -> Result<(Entered<S>, u64), NbdError> {
        let mut inner = self.passed(Use::Change, by)?;
        let flush = inner.unflushed.begin_flush();
        Ok((inner.entered()?, flush))
    }

    /// A flush has succeeded, or was refused for a reason: then nothing that was written since the last one can be
    /// relied on, and asking again would prove nothing.
    pub(super) fn end_flush(&self, flush: u64, refused: Option<&NbdError>) -> Result<(), NbdError> {
        let mut inner = self.inner.lock();
        if inner.phase.leave(Use::Change) == Refused {
            return Err(inner.refusal());
        }
        match refused {
            None => {
                inner.unflushed.end_flush(flush);
                inner.settle();
                Ok(())
            }
            Some(why) => {
                inner.why = Some(why.clone());
                inner.flush_failed = true;
                inner.happens(FlushFailed);
                Err(why.clone())
            }
        }
    }

    /// The session of a number broke: it is closed, and what follows is decided by the table. Does nothing if
    /// that is known already.
    pub(super) fn broke(&self, epoch: u64, why: &NbdError) {
        let mut inner = self.inner.lock();
        if inner.epoch != epoch {
            return;
        }
        let Some(session) = inner.session.take() else { return };
        if inner.phase.leave(Use::Change) == Pass {
            inner.why = Some(why.clone());
        }
        inner.happens(Broke);
        if self.reconnect_max.is_zero() {
            inner.happens(GaveUp);
        }
        self.back.notify_all();
        drop(inner);
        session.close(why);
    }

    /// Waits until a device without changes for `settle_after` has something unflushed, or is to be closed.
    pub(super) fn task(&self, settle_after: Duration) -> Task {
        let mut inner = self.inner.lock();
        loop {
            let at = inner.changed_at + settle_after;
            if inner.stopped {
                return Task::Stop;
            } else if inner.phase != Dirty {
                self.keeper.wait(&mut inner);
            } else if Instant::now() >= at && !inner.unflushed.is_under_way() {
                return Task::Flush;
            } else {
                let at = at.max(Instant::now() + settle_after / 4);
                self.keeper.wait_until(&mut inner, at);
            }
        }
    }

    /// The keeper is to end.
    pub(super) fn stop(&self) {
        self.inner.lock().stopped = true;
        self.keeper.notify_all();
    }

    /// Whether something is written that a flush could save.
    pub(super) fn is_dirty(&self) -> bool {
        self.inner.lock().phase == Dirty
    }

    /// The session, if there is one, without waiting.
    pub(super) fn session(&self) -> Option<Arc<S>> {
        self.inner.lock().session.clone()
    }

    /// How often a new session was made.
    pub(super) fn reconnects(&self) -> u64 {
        self.inner.lock().reconnects
    }

    #[cfg(test)]
    pub(super) fn phase(&self) -> Phase {
        self.inner.lock().phase
    }
}

impl<S> Inner<S> {
    fn happens(&mut self, event: Event) {
        let before = self.phase;
        self.phase = before.after(event);
        let writes = |phase: Phase| phase.leave(Use::Change) != Refused;
        if matches!(self.phase, Lost | LostAway) && writes(before) {
            self.lost = Some(Arc::new(self.unflushed.all()));
        }
    }

    fn settle(&mut self) {
        if self.unflushed.is_empty() {
            self.happens(Flushed);
        }
    }

    fn entered(&self) -> Result<Entered<S>, NbdError> {
        let session = self.session.clone().ok_or_else(|| self.refusal())?;
        let lost = self.lost.as_ref().map(|lost| (lost.clone(), self.refusal()));
        Ok(Entered { epoch: self.epoch, session, lost })
    }

    fn refusal(&self) -> NbdError {
        let why = self.why.clone();
        let why = why.unwrap_or_else(|| NbdError::broken(std::io::ErrorKind::NotConnected.into()));
        match &self.lost {
            Some(lost) if self.phase != Gone && !self.flush_failed => {
                NbdError::Lost { bytes: lost.bytes(), why: Arc::new(why) }
            }
            _ => why,
        }
    }
}

#[cfg(test)]
mod tests;
