//! Oleo for C: what `include/oleo.h` declares, and `liboleo.so` and `liboleo.a` have. docs/c.md shows how it is used and installed.
//!
//! 1. Handles are numbers in one table (`table`), not pointers: one that was closed, or is of another kind, is refused.
//! 2. Every function runs in `error::call`, which keeps the message of an error for its thread, and panics on this side of the border.
//! 3. Pointers are looked at in `pointers` and nowhere else: there is all unsafe code.
//!
//! The header is made by cbindgen from the signatures and comments here; a test compares it.
//! Locks: that of the table, a leaf, held to look something up.

// What C calls has unsafe signatures, and names without mangling; what is done with pointers is in `pointers`.
#![allow(unsafe_code, reason = "the border to C")]

mod check;
mod error;
mod files;
mod image;
mod names;
mod pointers;
mod subvolumes;
mod table;

pub use check::{
    Finding, OLEO_AT_BLOCK, OLEO_AT_DEVICE, OLEO_AT_KEY, OLEO_AT_TREE, OLEO_CHECK_DATA, oleo_check,
    oleo_findings_close, oleo_findings_next,
};
pub use error::{oleo_error_kind, oleo_error_message};
pub use files::{
    Extent, OLEO_EXTENT_DELAYED, OLEO_EXTENT_INLINE, OLEO_EXTENT_SHARED, OLEO_EXTENT_UNWRITTEN, oleo_file_close,
    oleo_file_create, oleo_file_extents, oleo_file_open, oleo_file_read, oleo_file_stat, oleo_file_sync,
    oleo_file_truncate, oleo_file_write,
};
pub use image::{
    Info, OLEO_OPEN_BACKUP_ROOT, OLEO_OPEN_DEGRADED, OLEO_OPEN_IGNORE_BAD_TREES, OLEO_OPEN_IN_USE,
    OLEO_OPEN_NO_LOG_REPLAY, OLEO_OPEN_WRITE, oleo_close, oleo_create, oleo_get_info, oleo_open, oleo_open_devices,
    oleo_sync, oleo_version,
};
pub use names::{
    Entry, OLEO_NOFOLLOW, OLEO_XATTR_CREATE, OLEO_XATTR_REPLACE, Stat, Time, oleo_dir_close, oleo_dir_next,
    oleo_dir_open, oleo_getxattr, oleo_link, oleo_listxattr, oleo_mkdir, oleo_readlink, oleo_remove_tree,
    oleo_removexattr, oleo_rename, oleo_rmdir, oleo_set_mode, oleo_set_owner, oleo_setxattr, oleo_stat, oleo_symlink,
    oleo_unlink,
};
pub use subvolumes::{
    OLEO_READ_ONLY, Subvolume, oleo_snapshot, oleo_subvolume_create, oleo_subvolume_delete, oleo_subvolumes_close,
    oleo_subvolumes_next, oleo_subvolumes_open,
};
pub use table::{Dir, FileHandle, Findings, Image, Subvolumes};
