//! The second look: a tree whose sums do not balance is read again to say which items are at fault.
//!
//! Normal path, with the whole tree fed item by item in each round: (1) the first round adds claims up in buckets by hash, so
//! that what is at fault lies in the few buckets that do not balance; (2) the second round keeps the claims in those
//! buckets; (3) [`Look::end`] pairs them and tells what has no other side.

use oleo_format::Key;

use super::Context;
use super::facts::Closed;

/// See the module's essay.
#[derive(Debug)]
pub(super) struct Look {
    round: u8,
}

impl Look {
    pub(super) fn new(_closed: &Closed) -> Look {
        Look { round: 0 }
    }

    /// Whether the whole tree must be read (once more).
    pub(super) fn again(&mut self) -> bool {
        self.round += 1;
        self.round <= 2
    }

    /// The next item.
    pub(super) fn item(&mut self, _key: &Key, _item: &[u8]) {}

    /// Tells what was found.
    pub(super) fn end(self, _c: &Context<'_>) {}
}
