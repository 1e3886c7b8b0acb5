//! What can go wrong with a tree.

use oleo_format::{Corruption, Key, TreeId};
use oleo_space::Refusal;

/// Why a tree could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The image lies.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A block could not be read.
    #[error(transparent)]
    Volume(oleo_volume::VolumeError),
    /// There is no room for new blocks.
    #[error("no room for new tree blocks: {0}")]
    Space(#[from] Refusal),
    /// Told by what the caller lent: the allocator, or whoever counts references.
    #[error(transparent)]
    Outside(Box<dyn std::error::Error + Send + Sync>),
    /// An item is larger than a leaf.
    #[error("item {key} of tree {tree} has {len} bytes, a leaf holds {max}")]
    ItemTooLarge {
        /// The tree.
        tree: TreeId,
        /// The item.
        key: Key,
        /// Its bytes.
        len: usize,
        /// The most that fits.
        max: usize,
    },
    /// The tree would be higher than the format allows.
    #[error("tree {tree} would need more than {max} levels")]
    TooHigh {
        /// The tree.
        tree: TreeId,
        /// The most levels there may be.
        max: usize,
    },
}

impl TreeError {
    /// An error of what the caller lent.
    pub fn outside(cause: impl std::error::Error + Send + Sync + 'static) -> TreeError {
        TreeError::Outside(Box::new(cause))
    }

    /// A corruption found in a tree.
    #[cold]
    pub(crate) fn corrupt(
        tree: TreeId,
        what: &'static str,
        have: impl std::fmt::Display,
        want: impl std::fmt::Display,
        place: impl std::fmt::Display,
    ) -> TreeError {
        TreeError::Corrupt(Corruption::new("tree", what, have, want).within(place).within(format!("tree {tree}")))
    }
}
