//! The forms of items that have to do with names: entries of directories, and the names that an inode has.

pub(crate) mod dir;
pub(crate) mod refs;

pub use dir::{DirEntryInfo, NAME_MAX, Target};
pub use refs::NameOf;
