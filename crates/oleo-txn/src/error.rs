//! What can go wrong in a transaction.

use oleo_format::{ByteLen, Class, Classified, Corruption, ErrorKind, Logical, TreeId, errno};
use oleo_space::{LoadError, SpaceError};
use oleo_tree::TreeError;
use oleo_volume::VolumeError;
use std::sync::Arc;

/// Errors of the transaction crate. The four kinds of the house: corruption, device, refusal; a bug panics.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The image is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A tree could not be read or changed.
    #[error(transparent)]
    Tree(#[from] Arc<TreeError>),
    /// The volume could not read or write, or refused.
    #[error(transparent)]
    Volume(#[from] Arc<VolumeError>),
    /// The allocator got a request that cannot be right: a bug or a corrupt count.
    #[error(transparent)]
    Space(#[from] Arc<SpaceError>),
    /// No space is left for data or metadata; the call changed nothing.
    #[error("no space left for {what}: {wanted} more bytes are needed")]
    NoSpace {
        /// "data" or "metadata".
        what: &'static str,
        /// Bytes that could not be had.
        wanted: ByteLen,
    },
    /// The volume was opened for reading, or became read-only after an error.
    #[error("the file system is read-only: {0}")]
    ReadOnly(Arc<str>),
    /// What is on the volume cannot be written to yet.
    #[error("cannot open for writing: {0}")]
    Refused(String),
    /// A tree that every change needs cannot be read.
    #[error("cannot open for writing, only for reading: {name} cannot be read: {source}")]
    Lost {
        /// The name of the tree.
        name: &'static str,
        /// Why it cannot be read.
        source: Box<TxnError>,
    },
    /// This build cannot do it.
    #[error("{0}")]
    NotSupported(String),
    /// No such tree.
    #[error("tree {0} does not exist")]
    NoTree(TreeId),
    /// Data has no checksum though it should have one.
    #[error("data at {0} has no checksum")]
    NoChecksum(Logical),
    /// The free space of a block group is unknown.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Reported by the crate above while it turned its changes into items.
    #[error("{0}")]
    Source(Arc<str>),
    /// What is in a block group cannot be moved: somebody has used it, or read it, for minutes.
    #[error("block group {0} does not become empty: something in it is in use")]
    StillUsed(Logical),
    /// Quota is not on.
    #[error("quota is off")]
    QuotaOff,
    /// A quota group has no room for what the tree would come to use; the call changed nothing.
    #[error("the quota of subvolume {0} is exceeded")]
    QuotaExceeded(TreeId),
    /// A change of quota groups cannot be.
    #[error("{text}")]
    Qgroup {
        /// The number of the error, as Linux has it.
        errno: i32,
        /// What is wrong.
        text: String,
    },
    /// Settling did not come to rest: a bug, reported rather than looped on.
    #[error("settling the transaction did not come to rest after {0} rounds")]
    Unsettled(u32),
}

impl TxnError {
    /// Whether a write found no room in what holds a device (a full file system below the image). Nothing is lost: what was to
    /// be written is kept, and is written when somebody asks again and there is room.
    pub fn is_full(&self) -> bool {
        matches!(self, TxnError::Volume(e) if e.is_full())
    }
}

impl From<TreeError> for TxnError {
    fn from(e: TreeError) -> TxnError {
        TxnError::Tree(Arc::new(e))
    }
}

impl From<VolumeError> for TxnError {
    fn from(e: VolumeError) -> TxnError {
        TxnError::Volume(Arc::new(e))
    }
}

impl From<SpaceError> for TxnError {
    fn from(e: SpaceError) -> TxnError {
        TxnError::Space(Arc::new(e))
    }
}

impl Classified for TxnError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            TxnError::Corrupt(error) => error.class(),
            TxnError::Tree(error) => error.class(),
            TxnError::Volume(error) => error.class(),
            TxnError::Space(error) => error.class(),
            TxnError::Load(error) => error.class(),
            TxnError::Lost { source, .. } => match source.class() {
                // The tree has no root item.
                Class { kind: ErrorKind::Refusal, .. } => Class::DAMAGE,
                class => class,
            },
            TxnError::NoSpace { .. } => Class::refusal(errno::ENOSPC),
            TxnError::ReadOnly(_) => Class::refusal(errno::EROFS),
            TxnError::Refused(_) | TxnError::NotSupported(_) => Class::refusal(errno::EOPNOTSUPP),
            TxnError::NoTree(_) => Class::refusal(errno::ENOENT),
            TxnError::NoChecksum(_) => Class::DATA,
            // After an operation that failed half way: nothing is written any more.
            TxnError::Source(_) => Class::DEVICE,
            TxnError::StillUsed(_) => Class::refusal(errno::EBUSY),
            TxnError::QuotaOff => Class::refusal(errno::ENOTCONN),
            TxnError::QuotaExceeded(_) => Class::refusal(errno::EDQUOT),
            TxnError::Qgroup { errno, .. } => Class::refusal(*errno),
            TxnError::Unsettled(_) => Class::DATA,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn classes() {
        let (at, tree) = (Logical(1), TreeId(5));
        let run = oleo_space::Run::new(at, ByteLen(1));
        oleo_format::assert_classes!(TxnError {
            Corrupt: Corruption::new("node", "level", 9, 1).into() => Class::DAMAGE,
            Tree: TreeError::TooHigh { tree, max: 8 }.into() => Class::refusal(errno::EFBIG),
            Volume: VolumeError::ReadOnly.into() => Class::refusal(errno::EROFS),
            Space: SpaceError::NoGroup(run).into() => Class::DAMAGE,
            Load: LoadError::BadRun { group: at, run }.into() => Class::DAMAGE,
            NoSpace: TxnError::NoSpace { what: "data", wanted: ByteLen(1) } => Class::refusal(errno::ENOSPC),
            ReadOnly: TxnError::ReadOnly("so".into()) => Class::refusal(errno::EROFS),
            Lost: TxnError::Lost { name: "so", source: Box::new(TxnError::NoTree(tree)) } => Class::DAMAGE,
            Refused: TxnError::Refused("so".into()) => Class::refusal(errno::EOPNOTSUPP),
            NotSupported: TxnError::NotSupported("so".into()) => Class::refusal(errno::EOPNOTSUPP),
            NoTree: TxnError::NoTree(tree) => Class::refusal(errno::ENOENT),
            NoChecksum: TxnError::NoChecksum(at) => Class::DATA,
            Source: TxnError::Source("so".into()) => Class::DEVICE,
            StillUsed: TxnError::StillUsed(at) => Class::refusal(errno::EBUSY),
            QuotaOff: TxnError::QuotaOff => Class::refusal(errno::ENOTCONN),
            QuotaExceeded: TxnError::QuotaExceeded(tree) => Class::refusal(errno::EDQUOT),
            Qgroup: TxnError::Qgroup { errno: errno::ENOENT, text: "so".into() } => Class::refusal(errno::ENOENT),
            Unsettled: TxnError::Unsettled(1) => Class::DATA,
        });
    }
}
