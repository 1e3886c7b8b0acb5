//! What can go wrong: a refusal (no space), a source that could not say what is free, or an image whose records
//! contradict what this crate knows.

use std::error::Error;
use std::sync::Arc;

use oleo_format::{ByteLen, Class, Classified, Logical, errno};

use crate::{Kind, Run};

/// Why nothing was given.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing fits in the groups there are. The caller may make a chunk and ask again.
    #[error("no space for {0} in the existing block groups")]
    NeedChunk(Kind),
    /// No space, and a chunk would not help: a test asked for this.
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
        /// What the cause is.
        class: Class,
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
    pub fn source(group: Logical, cause: impl Error + Classified + Send + Sync + 'static) -> LoadError {
        LoadError::Source { group, class: cause.class(), cause: Arc::new(cause) }
    }
}

impl Classified for LoadError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            LoadError::Source { class, .. } => *class,
            LoadError::BadRun { .. } => Class::DAMAGE,
        }
    }
}

impl Classified for Refusal {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            Refusal::NeedChunk(_) | Refusal::NoSpace(_) => Class::refusal(errno::ENOSPC),
            Refusal::Load(error) => error.class(),
        }
    }
}

impl Classified for SpaceError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            SpaceError::NoGroup(_)
            | SpaceError::FreedTwice(_)
            | SpaceError::UsedOutOfRange { .. }
            | SpaceError::BadGroup(_) => Class::DAMAGE,
            SpaceError::Pinned(_) | SpaceError::Reserved(_) => Class::refusal(errno::EBUSY),
        }
    }
}

/// Why a group's free runs are unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FreeRunsError {
    /// There is no such group.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// They could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Classified for FreeRunsError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            FreeRunsError::Space(error) => error.class(),
            FreeRunsError::Load(error) => error.class(),
        }
    }
}

/// A request that contradicts what is known, as happens when an image's records contradict each other.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn classes() {
        let (group, run) = (Logical(1), Run::new(Logical(1), ByteLen(1)));
        let bad = || LoadError::BadRun { group, run };
        let busy = Class::refusal(errno::EBUSY);
        oleo_format::assert_classes!(LoadError {
            BadRun: bad() => Class::DAMAGE,
            Source: LoadError::source(group, SpaceError::Pinned(group)) => busy,
            Source: LoadError::source(group, bad()) => Class::DAMAGE,
        });
        oleo_format::assert_classes!(Refusal {
            NeedChunk: Refusal::NeedChunk(Kind::Data) => Class::refusal(errno::ENOSPC),
            NoSpace: Refusal::NoSpace(Kind::Data) => Class::refusal(errno::ENOSPC),
            Load: bad().into() => Class::DAMAGE,
        });
        let (used, len) = (ByteLen(1), ByteLen(2));
        oleo_format::assert_classes!(SpaceError {
            NoGroup: SpaceError::NoGroup(run) => Class::DAMAGE,
            FreedTwice: SpaceError::FreedTwice(run) => Class::DAMAGE,
            UsedOutOfRange: SpaceError::UsedOutOfRange { group, used, delta: 5, len } => Class::DAMAGE,
            BadGroup: SpaceError::BadGroup(run) => Class::DAMAGE,
            Pinned: SpaceError::Pinned(group) => busy,
            Reserved: SpaceError::Reserved(group) => busy,
        });
        oleo_format::assert_classes!(FreeRunsError {
            Space: SpaceError::Pinned(group).into() => busy,
            Load: bad().into() => Class::DAMAGE,
        });
    }
}
