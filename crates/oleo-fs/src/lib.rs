//! Files and names: inodes, directories, extents, xattrs, subvolumes.
//!
//! An operation changes objects in memory, never a tree. Each [`Inode`] keeps which of its items differ
//! from the tree; a commit turns all of them into one sorted batch per tree (`object::commit`), which the engine applies. Reads
//! look through the open changes, the changes that a commit is writing, and the tree, in that order (`object::delta`).
//!
//! The rooms, from below: `error` and `options`; `object` has inodes and subvolumes in memory, their guards, and what they share;
//! `items` the forms of items that have to do with names. [`Fs`] is the open file system. On it are built `attributes`, [`data`] (what is
//! inside files), `names` (directories, links, the end of an inode), `subvolumes` (and snapshots), `log` (what an fsync writes), `commits`
//! (when changes become durable) and `cleaner`. The state that an inode holds for its data and for the log is defined in `data::buffer`
//! and `log::mark`, which know nothing of inodes; behaviour is added to [`Inode`] from above.
//!
//! Locks, in their order: `moving` (held while a directory changes its parent), a file's `flush` (see `data`),
//! the engine's transaction barrier inside `join`, inodes by (tree, number), objects of trees that are no
//! inodes, then others, most of them leaves: root items, shards of the cache and of the dirty list, buffers. Nothing but `flush` and
//! `moving` is held over `join`.

mod attributes;
mod cleaner;
mod commits;
pub mod data;
mod error;
mod fs;
mod items;
mod log;
mod names;
pub mod object;
mod options;
mod ranges;
mod subvolumes;

pub use attributes::{
    AtimePolicy, Attr, COMPRESSION, FileKind, NameValue, NewInode, NewKind, Rdev, SetAttr, Strip, Times, Verity,
    XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrMode,
};
pub use data::{DataOptions, WriteBy};
pub use error::{FsError, errno};
pub use fs::Fs;
pub use items::{DirEntryInfo, NAME_MAX, NameOf, Target};
pub use log::{LogStats, Replayed, replay};
pub use names::{Descent, EntryAndInode, Follow, RenameMode};
pub use object::{Direction, Inode, InodeFields, InodeRef, Subvol, Value, Visit};
pub use options::{Clock, FixedClock, FsOptions, RandomUuids, SystemClock, Time, UuidSource};
pub use subvolumes::{NewSubvol, ReadOnly, Received, RootPlace, SnapshotOptions, SubvolInfo, UuidKind};
