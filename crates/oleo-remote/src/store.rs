//! The seam to a store: all that this crate knows of one.
//!
//! A store has objects by key. What is assumed of it: a `Get` by key sees every `Put` and `Delete` that was answered
//! before it was sent; a conditional `Put` is atomic; a listing may be old; bodies may be wrong, which checksums notice.
//!
//! [`Store::submit`] begins an operation and [`Ticket::wait`] ends it, so that one thread has many under way. An error says
//! what is known of the outcome, see [`StoreError`]. [`Retry`] repeats what may be repeated; conditional operations never
//! are, since their repetition would see their own success: whoever sends one reads what is there and decides.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;

#[cfg(feature = "cloud")]
mod cloud;
mod counted;
#[cfg(feature = "cloud")]
mod credentials;
mod file;
#[cfg(feature = "cloud")]
mod http;
mod memory;
mod retry;

#[cfg(feature = "cloud")]
pub use cloud::CloudStore;
pub use counted::Counted;
pub use file::FileStore;
pub use memory::MemoryStore;
pub use retry::Retry;
#[cfg(feature = "cloud")]
pub(crate) use retry::{BYTES_PER_SECOND_MIN, SILENT_MAX};
pub(crate) use retry::{REPEATED, TRY_MAX, Waits, attempt};

/// When an operation must be over, on the clock of [`crate::Host`].
pub type Deadline = Duration;

/// Seconds of the store's clock since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StoreTime(pub u64);

/// Which content of a key. Two contents that differ have different versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// The entity tag.
    pub etag: String,
    /// The number that stores give that keep old contents.
    pub generation: Option<String>,
}

/// Pieces of memory that are one object; copies share them.
#[derive(Clone, Default, Debug)]
pub struct Body(Arc<[Arc<Vec<u8>>]>);

impl Body {
    /// Of pieces, in their order.
    pub fn of(pieces: Vec<Arc<Vec<u8>>>) -> Body {
        Body(pieces.into())
    }

    /// The pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|piece| piece.as_slice())
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.pieces().map(|piece| piece.len() as u64).sum()
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() as usize);
        self.pieces().for_each(|piece| out.extend_from_slice(piece));
        out
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::of(vec![Arc::new(bytes)])
    }
}

/// On what a `Put` depends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cond {
    /// Nothing.
    None,
    /// There is no such object.
    Absent,
    /// The object is this one.
    Match(Version),
}

/// What a store is asked for.
#[derive(Clone, Debug)]
pub enum Op {
    /// The bytes of an object.
    Get {
        /// Which.
        key: String,
        /// Which part; it lies within the object, or the answer is [`StoreError::Wrong`].
        range: Option<Range<u64>>,
        /// Longest body that is taken, bytes; a longer one is [`StoreError::Wrong`].
        len_max: u64,
        /// Not if the object is still this one.
        if_changed: Option<Version>,
    },
    /// To store an object.
    Put {
        /// Which.
        key: String,
        /// Its bytes.
        body: Body,
        /// On what it depends.
        cond: Cond,
    },
    /// To delete an object; none is fine, too.
    Delete {
        /// Which.
        key: String,
    },
    /// Which objects there are. It may be an old answer.
    List {
        /// Of keys that begin with this.
        prefix: String,
        /// And come after this.
        after: String,
        /// At most so many.
        count_max: usize,
    },
}

impl Op {
    /// The key, or the prefix.
    pub fn key(&self) -> &str {
        match self {
            Op::Get { key, .. } | Op::Put { key, .. } | Op::Delete { key } => key,
            Op::List { prefix, .. } => prefix,
        }
    }

    /// Whether doing it a second time changes nothing.
    pub fn may_repeat(&self) -> bool {
        !matches!(self, Op::Put { cond: Cond::Absent | Cond::Match(_), .. })
    }
}

/// An object of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its length, bytes.
    pub len: u64,
    /// When it was stored, if the store says.
    pub modified: Option<StoreTime>,
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An object, or the part that was asked for.
    Object {
        /// Its bytes.
        body: Vec<u8>,
        /// Which content; not always known for a part.
        version: Option<Version>,
    },
    /// The object is the one that is known.
    NotChanged,
    /// It is stored.
    Stored(Version),
    /// It is not there.
    Deleted,
    /// Some objects, by key; fewer than asked for: these are all.
    Listed(Vec<Listed>),
}

/// An operation under way.
pub struct Ticket(Box<dyn FnOnce() -> Result<Answer, StoreError> + Send>);

impl Ticket {
    /// One that ends with what `wait` returns, no later than the operation's deadline.
    pub fn new(wait: impl FnOnce() -> Result<Answer, StoreError> + Send + 'static) -> Ticket {
        Ticket(Box::new(wait))
    }

    /// Waits for the answer. Dropped without waiting, the operation may be carried out or not.
    pub fn wait(self) -> Result<Answer, StoreError> {
        (self.0)()
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// A store; see the module's text.
pub trait Store: Send + Sync {
    /// Begins an operation. Stores elsewhere do not wait here.
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket;
    /// What it is, for messages, without secrets.
    fn describe(&self) -> String;
    /// The store's clock, as the last answer gave it.
    fn now(&self) -> Option<StoreTime>;
    /// What was asked of it, by name, as far as somebody counts.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Gets a whole object.
pub(crate) fn get(
    store: &dyn Store,
    key: &str,
    len_max: u64,
    deadline: Deadline,
) -> Result<(Vec<u8>, Version), StoreError> {
    let op = Op::Get { key: key.into(), range: None, len_max, if_changed: None };
    match store.submit(op, deadline).wait()? {
        Answer::Object { body, version: Some(version) } if body.len() as u64 <= len_max => Ok((body, version)),
        Answer::Object { body, version } => Err(odd(&format!("{} bytes, version {version:?}", body.len()))),
        other => Err(odd(&format!("{other:?}"))),
    }
}

/// Begins to get a part of an object.
pub(crate) fn get_part(store: &dyn Store, key: &str, range: Range<u64>, deadline: Deadline) -> Ticket {
    let len_max = range.end - range.start;
    store.submit(Op::Get { key: key.into(), range: Some(range), len_max, if_changed: None }, deadline)
}

/// The bytes of an answer to [`get_part`] of `len` bytes.
pub(crate) fn part_of(answer: Answer, len: u64) -> Result<Vec<u8>, StoreError> {
    match answer {
        Answer::Object { body, .. } if body.len() as u64 == len => Ok(body),
        Answer::Object { body, .. } => Err(odd(&format!("{} bytes instead of {len}", body.len()))),
        other => Err(odd(&format!("{other:?}"))),
    }
}

/// Stores an object.
pub(crate) fn put(
    store: &dyn Store,
    key: &str,
    body: Body,
    cond: Cond,
    deadline: Deadline,
) -> Result<Version, StoreError> {
    match store.submit(Op::Put { key: key.into(), body, cond }, deadline).wait()? {
        Answer::Stored(version) => Ok(version),
        other => Err(odd(&format!("{other:?}"))),
    }
}

fn odd(what: &str) -> StoreError {
    StoreError::Wrong(what.chars().take(100).collect())
}

/// Whether a key is one that every store can have: parts of letters, digits, `.`, `_` and `-`, none with a dot in front.
pub fn is_key(key: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let part = |p: &str| (1..=200).contains(&p.len()) && !p.starts_with('.') && p.bytes().all(plain);
    key.len() <= 800 && key.split('/').all(part)
}

#[cfg(test)]
mod tests;
