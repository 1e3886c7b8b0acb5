//! File data: the buffer of what is written but not on disk yet, the extent map, and every operation on them.
//!
//! The life of written bytes: (1) `write` reserves space, checks that sectors which the bytes cover in part can be read, and copies
//! the bytes into the inode's `dirty` pieces; (2) a flush (by `sync`, by the caller, or because too much is dirty) moves these to
//! `writeback`, completes partial sectors, compresses and computes checksums ([`Prepared`]), allocates space and writes; (3) it joins
//! the transaction, locks the inode, puts the extent items, records new extents and checksums, sets size and `nbytes`, and clears
//! what was under write-back, all under that lock; (4) the next commit makes it durable.
//!
//! A read combines three layers under the inode's lock, the first that has a byte wins: dirty bytes, bytes under write-back, the
//! extent map. So it sees every write that returned before it began. It does its I/O after the lock is dropped, under an
//! [`Engine::reader`] guard, which keeps the space it is about to read from being reused.
//!
//! The size on disk and the size that users see differ: dirty bytes are not in the inode item. So a
//! commit in between never makes a file longer than its written data. `FileData::shown` is the size users see: the
//! item's, or the end of the last dirty byte.
//!
//! Bytes of the last sector behind the end of the file are undefined: truncating a file does not rewrite
//! its last sector. An operation that makes a file longer first writes zeros from the old end to the end of that sector.
//!
//! Invariants:
//! - Only the holder of an inode's `flush` lock changes its extent map or moves `dirty` to `writeback`.
//! - `writeback` is empty whenever nobody holds the `flush` lock.
//! - The bytes of all inodes that are dirty or under write-back sum up to `Shared::bytes`, which stays near
//!   `dirty_bytes_max`: a writer that finds it exceeded makes room before it returns (`write_back`).
//! - A file with dirty bytes is in `Shared::files`, which keeps it in memory.
//! - Sectors with dirty bytes are covered by data reservations, so that a flush does not run out of space.
//!
//! Locks, in this order: `flush` (of several files by (tree, number)), then the engine's `join` and `reserve_data`, then the inode's
//! lock, then `buffer`, then `Shared::files`. Only `flush` is held over I/O of data; trees are
//! read under all but the last. A commit needs the inode's lock but none
//! of ours, so it may happen while `flush` is held, not while anything behind it is.
//! Crash: buffers are lost, and so is the open transaction, whose items name data that nothing else names.
//!
//! [`Engine::reader`]: oleo_txn::Engine::reader

use oleo_lock::{MutexGuard, rank};

mod api;
mod buffer;
mod buffered_bytes;
mod dirty;
mod edges;
mod flush;
mod in_place;
mod install;
mod items;
pub(crate) mod map;
mod options;
mod packed;
mod pieces;
mod policy;
mod prepare;
mod query;
mod read;
mod resize;
mod rewrite;
mod room;
mod share;
mod shared;
mod unpacked;
mod unplaced;
mod write;
mod write_back;

pub use api::Stamp;
pub use options::DataOptions;
pub use packed::PackedExtent;
pub use prepare::{Compress, Encoded, Policy, Prepared, Whole};
pub use query::{DataRun, ExtentInfo, ExtentKind};
pub use read::{read_plain, unpack_inline};
pub use share::{CloneRange, Dedupe};
pub use unplaced::KeepSize;
pub use write::WriteBy;

pub(crate) use buffer::FileData;
pub(crate) use items::{MapMutOf, MapOf};
pub(crate) use map::{Extent, ExtentMap, walk as map_walk};
pub(crate) use query::shown;
pub(crate) use resize::MAP_END;
pub(crate) use room::Flushing;
pub(crate) use shared::Shared;

/// The most bytes a file can have.
pub(crate) const FILE_LEN_MAX: u64 = i64::MAX as u64;

/// Holds a file's extent map against changes by others.
pub(crate) type FlushGuard<'a> = MutexGuard<'a, rank::FileFlush, ()>;
