//! Things that hold space: a [`Grant`] holds addresses, a [`Reservation`] holds a promise, a [`PinSet`] holds what a
//! commit has freed until the commit is durable. The first two give back what they hold when they are dropped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use oleo_format::ByteLen;

use crate::faults::RequestKind;
use crate::inner::Share;
use crate::{Kind, Refusal, Run};

/// Addresses that were given out and are not referenced by anything yet. Dropping it frees them immediately.
#[must_use = "a grant that is dropped is free again"]
pub struct Grant {
    pub(crate) inner: Share,
    pub(crate) run: Run,
    pub(crate) live: bool,
}

impl Grant {
    /// What was granted.
    pub fn run(&self) -> Run {
        self.run
    }

    /// Takes the run over for good: from here on the caller is responsible for it.
    pub fn keep(mut self) -> Run {
        self.live = false;
        self.run
    }

    /// Gives back all behind the first `len` bytes (a multiple of the sector size).
    pub fn shorten(&mut self, len: ByteLen) {
        if len < self.run.len {
            self.inner.put_back(Run::between(self.run.start.0 + len.0, self.run.end().0));
            self.run.len = len;
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.live && self.run.len.0 > 0 {
            self.inner.put_back(self.run);
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({:?})", self.run)
    }
}

/// A promise of space without an address. Dropping it gives up what is left of it. Many threads may allocate against
/// one reservation.
#[must_use = "a reservation that is dropped promises nothing"]
pub struct Reservation {
    pub(crate) inner: Share,
    pub(crate) kind: Kind,
    pub(crate) left: AtomicU64,
}

impl Reservation {
    /// What it is for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes not yet turned into addresses.
    pub fn left(&self) -> ByteLen {
        ByteLen(self.left.load(SeqCst))
    }

    /// Asks for `len` bytes more.
    pub fn grow(&self, len: ByteLen) -> Result<(), Refusal> {
        self.inner.faults.check(RequestKind::Promise, self.kind)?;
        self.inner.reserve_some(self.kind, len.0, len.0)?;
        self.left.fetch_add(len.0, SeqCst);
        Ok(())
    }

    /// Gives up to `len` bytes of the promise back; returns how many it was.
    pub fn give_up(&self, len: ByteLen) -> ByteLen {
        let len = self.claim(len.0);
        self.inner.unreserve(self.kind, len);
        ByteLen(len)
    }

    /// Makes a reservation of its own out of up to `len` bytes of this one.
    pub fn split(&self, len: ByteLen) -> Reservation {
        let len = self.claim(len.0);
        Reservation { inner: self.inner.clone(), kind: self.kind, left: AtomicU64::new(len) }
    }

    /// Takes over what is left of `other`, which must be of the same kind.
    pub fn join(&self, other: Reservation) {
        if other.kind == self.kind && Arc::ptr_eq(&*other.inner, &*self.inner) {
            self.left.fetch_add(other.left.swap(0, SeqCst), SeqCst);
        }
        debug_assert!(other.left().0 == 0, "reservations of two kinds or spaces joined");
    }

    /// Up to `len` bytes are no longer this reservation's; the caller is responsible for them.
    pub(crate) fn claim(&self, len: u64) -> u64 {
        let mut claimed = 0;
        let _ = self.left.fetch_update(SeqCst, SeqCst, |left| {
            claimed = left.min(len);
            Some(left - claimed)
        });
        claimed
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let left = self.left.swap(0, SeqCst);
        if left > 0 {
            self.inner.unreserve(self.kind, left);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({:?}, {:?} left)", self.kind, self.left())
    }
}

/// What the transactions so far have freed, taken out for one commit. `Space::release` makes it free; a set that is
/// dropped instead (the commit failed, and the file system is read-only from then on) stays pinned for good.
#[must_use = "pins that are not released are lost until the next mount"]
#[derive(Default, Debug)]
pub struct PinSet {
    pub(crate) runs: Vec<Run>,
}

impl PinSet {
    /// The runs in rising order, neighbours merged: what a discard would name.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Bytes in the set.
    pub fn len(&self) -> ByteLen {
        ByteLen(self.runs.iter().map(|r| r.len.0).sum())
    }

    /// Whether nothing was freed.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}
