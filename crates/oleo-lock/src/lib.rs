//! Locks with ranks. Debug builds, and so all tests, refuse to take them out of order; in release builds the types are
//! those of `parking_lot` and nothing else.
//!
//! Every lock names its rank in its type: `Mutex<rank::Commit, ()>`. One table ([`Rank`], in `ranks.rs`) lists the
//! ranks in the order in which a thread may take them: which lock it is, what it covers, how long it is held, and
//! whether I/O is allowed meanwhile. The tables of `docs/locking.md` are generated from it ([`table`]).
//!
//! The rules that are checked, per thread (`order.rs`):
//! 1. A lock that is waited for has a higher rank than every lock that the thread holds.
//! 2. Several locks of one rank are taken only if the rank allows it ([`Kind::Several`]), each with a key
//!    ([`Mutex::lock_by`], …), and the keys rise. So reading a [`RwLock`] twice is refused: a writer that waits between
//!    the two reads would wait for ever, and so would the second read.
//! 3. Under a lock whose rank is a [`Kind::Leaf`] no other lock is taken.
//! 4. `try_lock` and its like do not wait, so they are never refused. What they take counts as held like any other
//!    lock, for rule 1, too.
//! 5. A thread that waits at a [`Condvar`] takes its lock again at the end, so that lock must be the one of highest
//!    rank it holds.
//! 6. When a device is read or written ([`before_io`]) no lock may be held whose rank forbids I/O.
//!
//! A violation panics with the names of the two locks and where each was taken. Only code that runs is checked, and
//! only the locks of one thread: if a thread that holds a lock waits for another thread (a channel, a join), that is
//! not seen. If a pool works for a thread that waits, [`carry`] passes on what that thread holds.
//!
//! Other things that are waited for like locks (the transaction barrier) note their rank with [`Held::enter`].

mod locks;
mod order;
mod ranks;
#[cfg(test)]
mod tests;

pub use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[doc(hidden)]
pub use order::taken;
pub use order::{Carried, Held, Key, before_io, carry};
pub use parking_lot::WaitTimeoutResult;
pub use ranks::{Entry, Io, Kind, Rank, Ranked, rank, table};
