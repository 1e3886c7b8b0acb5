//! Files and names: inodes, directories, extents, xattrs, subvolumes.
//!
//! An operation changes objects in memory, never a tree. Each [`Inode`] keeps which of its items differ
//! from the tree; a commit turns all of them into one sorted batch per tree (`core`), which the engine applies. Reads
//! look through the open changes, the changes that a commit is writing, and the tree, in that order (`delta`).
//!
//! Where to look: [`Fs`] is the open file system; `create`, `names` and `rename` have the operations on names; `setattr`
//! and `privileges` those on attributes, `listing` reads directories, `rules` what inode flags forbid; `dir`, `refs` and `xattr` know the forms of
//! items; `orphan` the end of an inode; `commits` says when changes become durable, `log` what an fsync writes; `subvols` subvolumes and snapshots; `data` what is inside files.
//!
//! Locks, in their order: `moving` (held while a directory changes its parent), a file's `flush` (see `data`),
//! the engine's transaction barrier inside `join`, inodes by (tree, number), objects of trees that are no
//! inodes, then others, most of them leaves: root items, shards of the cache and of the dirty list, buffers. Nothing but `flush` and
//! `moving` is held over `join`.

mod acl;
pub mod attr;
mod cache;
mod commits;
mod core;
mod create;
pub mod data;
mod delta;
mod dir;
mod error;
mod fs;
pub mod inode;
mod listing;
mod log;
mod names;
mod options;
mod orphan;
mod privileges;
mod refs;
mod rename;
mod rules;
mod setattr;
mod subvol;
mod subvols;
mod verity;
mod walk;
mod xattr;

pub use attr::{Attr, FileKind, NewInode, NewKind, Rdev, SetAttr, Times};
pub use data::DataOptions;
pub use delta::{Direction, Value, Visit};
pub use dir::{DirEntryInfo, NAME_MAX, Target};
pub use error::{FsError, errno};
pub use fs::{Follow, Fs};
pub use inode::{Inode, InodeRef};
pub use listing::EntryAndInode;
pub use log::{LogStats, Replayed, replay};
pub use options::{Clock, FixedClock, FsOptions, RandomUuids, SystemClock, Time, UuidSource};
pub use privileges::{AtimePolicy, Strip};
pub use refs::NameOf;
pub use rename::RenameMode;
pub use subvol::Subvol;
pub use subvols::{NewSubvol, ReadOnly, Received, RootPlace, SnapshotOptions, SubvolInfo, UuidKind};
pub use verity::Verity;
pub use walk::Descent;
pub use xattr::{COMPRESSION, NameValue, XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrMode};
