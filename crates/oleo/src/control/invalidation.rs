//! What a request changed, for the kernel that the server of a mount answers.

use oleo_format::{Ino, TreeId};

/// What a kernel that caches names and attributes has to forget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Invalidation {
    /// An entry of a directory, whether it was there or not.
    Entry {
        /// The directory's tree.
        tree: TreeId,
        /// The directory.
        dir: Ino,
        /// The entry's name.
        name: Vec<u8>,
    },
    /// Attributes of an inode.
    Inode {
        /// Its tree.
        tree: TreeId,
        /// Its number.
        ino: Ino,
    },
    /// Everything in a subvolume.
    Subtree {
        /// The subvolume.
        tree: TreeId,
    },
}
