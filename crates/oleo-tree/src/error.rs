//! Why an operation on a tree failed.

use oleo_format::{Class, Classified, Corruption, Key, TreeId, errno};
use oleo_space::Refusal;

/// Why a tree could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The image is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A block could not be read.
    #[error(transparent)]
    Volume(oleo_volume::VolumeError),
    /// There is no space for new blocks.
    #[error("no room for new tree blocks: {0}")]
    Space(#[from] Refusal),
    /// Reported by what the caller passed in: the allocator, or the counter of references.
    #[error("{cause}")]
    Outside {
        /// What it is.
        class: Class,
        /// What was reported.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
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
    pub fn outside(cause: impl std::error::Error + Classified + Send + Sync + 'static) -> TreeError {
        TreeError::Outside { class: cause.class(), cause: Box::new(cause) }
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

impl Classified for TreeError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            TreeError::Corrupt(error) => error.class(),
            TreeError::Volume(error) => error.class(),
            TreeError::Space(error) => error.class(),
            TreeError::Outside { class, .. } => *class,
            TreeError::ItemTooLarge { .. } => Class::refusal(errno::EOVERFLOW),
            TreeError::TooHigh { .. } => Class::refusal(errno::EFBIG),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let (tree, max) = (TreeId(5), 1);
        let no_room = || Refusal::NoSpace(oleo_space::Kind::Data);
        oleo_format::assert_classes!(TreeError {
            Corrupt: Corruption::new("node", "level", 9, 1).into() => Class::DAMAGE,
            Volume: TreeError::Volume(oleo_volume::VolumeError::ReadOnly) => Class::refusal(errno::EROFS),
            Space: no_room().into() => Class::refusal(errno::ENOSPC),
            Outside: TreeError::outside(no_room()) => Class::refusal(errno::ENOSPC),
            ItemTooLarge: TreeError::ItemTooLarge { tree, key: Key::MIN, len: 2, max } => Class::refusal(errno::EOVERFLOW),
            TooHigh: TreeError::TooHigh { tree, max } => Class::refusal(errno::EFBIG),
        });
    }
}
