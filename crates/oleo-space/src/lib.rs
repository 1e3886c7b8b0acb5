//! What is free, reserved and pinned, and which references have changed: block groups, the allocator, the ledger of delayed refs.
//!
//! This crate decides, in memory; it reads no disk and records nothing on one. [`Space`] gives out addresses and keeps
//! the promises about space; [`Ledger`] keeps what the open transaction has added to or taken from each extent until
//! the settling of a commit drains it. What this crate needs to know of the disk it asks through [`FreeSource`]; what
//! it cannot do itself (make a chunk) it returns as a value, [`Refusal::NeedChunk`].

mod account;
mod atomic;
mod error;
mod faults;
mod group;
mod guard;
mod hints;
mod hold;
mod index;
mod inner;
mod kind;
mod ledger;
mod load;
#[cfg(test)]
mod models;
mod pick;
mod ranges;
mod residents;
mod runs;
mod source;
mod space;
mod sync;
mod table;
#[cfg(test)]
mod testing;
mod threads;
mod wakeups;

pub use error::{FreeRunsError, LoadError, Refusal, SpaceError};
#[doc(hidden)]
pub use faults::FaultSpec;
pub use group::GroupInfo;
pub use guard::{Grant, PinSet, Reservation};
pub use hints::Goal;
pub use hold::{HeldRun, HoldFree, HoldWant};
pub use kind::Kind;
pub use ledger::{Batch, ExtentKind, Head, Ledger, Pending, RefChange, RefKey};
pub use pick::Want;
pub use source::FreeSource;
pub use space::{Space, Totals};

use oleo_format::{ByteLen, Logical};

/// A run of bytes in the logical address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// Where it starts.
    pub start: Logical,
    /// How long it is.
    pub len: ByteLen,
}

impl Run {
    /// The run of `len` bytes at `start`.
    pub fn new(start: Logical, len: ByteLen) -> Run {
        Run { start, len }
    }

    /// The first address behind it; the end of the address space if the run claims to go beyond.
    pub fn end(&self) -> Logical {
        Logical(self.start.0.saturating_add(self.len.0))
    }

    pub(crate) fn between(start: u64, end: u64) -> Run {
        Run { start: Logical(start), len: ByteLen(end - start) }
    }
}
