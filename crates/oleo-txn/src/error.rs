//! What can go wrong in a transaction.

use oleo_format::{ByteLen, Corruption, Logical, TreeId};
use oleo_space::SpaceError;
use oleo_tree::TreeError;
use oleo_volume::VolumeError;
use std::sync::Arc;

/// Errors of the transaction room. The four kinds of the house: corruption, device, refusal; a bug panics.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The image lies.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A tree could not be read or changed.
    #[error(transparent)]
    Tree(#[from] Arc<TreeError>),
    /// The volume could not read or write, or refused.
    #[error(transparent)]
    Volume(#[from] Arc<VolumeError>),
    /// The allocator was told what cannot be: a bug or a corrupt count.
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
    /// No such tree.
    #[error("tree {0} does not exist")]
    NoTree(TreeId),
    /// Data has no checksum though it should have one.
    #[error("data at {0} has no checksum")]
    NoChecksum(Logical),
    /// Reported by the room above while it turned its changes into items.
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
