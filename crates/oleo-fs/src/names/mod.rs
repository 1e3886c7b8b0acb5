//! Names: making, linking, renaming and removing them, and finding inodes by them, up to the end of an inode that has none left.

mod create;
mod halves;
mod link;
mod listing;
mod lookup;
mod orphan;
mod rename;
mod walk;

pub use listing::EntryAndInode;
pub use lookup::Follow;
pub use rename::RenameMode;
pub use walk::Descent;

pub(crate) use link::{check_dir, stamp};
pub(crate) use orphan::{BATCH_INODES, Remains, last_name_gone};

/// Times that an operation starts over because others changed what it had looked at: each time one of them got on, so
/// this many in a row means that something is wrong.
const RETRIES_MAX: usize = 10_000;
/// Bytes of a symbolic link's target: those of a path, less the zero byte that system calls add.
const TARGET_MAX: usize = 4095;
