//! What can go wrong: a refusal (no space), a source that could not tell what is free, or an image whose records
//! contradict what this room knows.

use std::error::Error;
use std::sync::Arc;

use oleo_format::{ByteLen, Logical};

use crate::{Kind, Run};

/// Why nothing was given.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing fits in the groups there are. Whoever asked may make a chunk and ask again.
    #[error("no space for {0} in the existing block groups")]
    NeedChunk(Kind),
    /// No space, and a chunk would not help: the answer that a test asked for.
    #[error("no space for {0}")]
    NoSpace(Kind),
    /// A group's free space could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Why a group's free space is not known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// The source failed.
    #[error("free space of block group {group}: {cause}")]
    Source {
        /// Start of the group.
        group: Logical,
        /// What the source said.
        cause: Arc<dyn Error + Send + Sync>,
    },
    /// The source named a run that is empty, out of order, overlapping, or outside its group.
    #[error("free space of block group {group}: run {run:?} is out of order or outside the group")]
    BadRun {
        /// Start of the group.
        group: Logical,
        /// The offending run.
        run: Run,
    },
}

impl LoadError {
    /// The source of `group`'s free space failed with `cause`.
    pub fn source(group: Logical, cause: impl Error + Send + Sync + 'static) -> LoadError {
        LoadError::Source { group, cause: Arc::new(cause) }
    }
}

/// A request that contradicts what is known, as happens when an image's records contradict each other.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpaceError {
    /// No block group holds the whole run.
    #[error("no block group holds {0:?}")]
    NoGroup(Run),
    /// An extent was freed that is free, or freed twice in one transaction.
    #[error("{0:?} is freed but is free or freed already")]
    FreedTwice(Run),
    /// A block group's used bytes would leave 0..=len.
    #[error("block group {group}: used bytes {used} changed by {delta} leave the group's {len} bytes")]
    UsedOutOfRange {
        /// Start of the group.
        group: Logical,
        /// Bytes used before.
        used: ByteLen,
        /// The change asked for.
        delta: i64,
        /// Length of the group.
        len: ByteLen,
    },
    /// A group was added that overlaps one there is, is empty, or leaves the address space.
    #[error("block group {0:?} is empty or overlaps another")]
    BadGroup(Run),
    /// A group cannot be removed yet: something in it was freed by a transaction that is not durable.
    #[error("block group {0} cannot be removed: some of it is pinned")]
    Pinned(Logical),
    /// A group cannot be closed for writing: what is reserved would no longer fit.
    #[error("block group {0} cannot be closed: its free space is reserved")]
    Reserved(Logical),
}
