//! What the inode flags forbid: an immutable inode does not change at all, an append-only one only grows.
//!
//! These are Linux's rules for every file system. They look at the inode under its lock, so a caller that sets a
//! flag can rely on it from then on. What was buffered before is still written out. The caller decides who may set and
//! clear the flags (`Fs::set_attr`).

use oleo_format::InodeFlags;

use crate::FsError;
use crate::object::InodeFields;

const IMMUTABLE: FsError = FsError::NotPermitted("it is immutable");
const SEALED: FsError = FsError::NotPermitted("it is protected by fs-verity");
const APPEND_ONLY: FsError = FsError::NotPermitted("it is append-only");

fn flags(of: &InodeFields) -> InodeFlags {
    InodeFlags::from_bits_retain(of.flags)
}

/// Data may be written from `at` on, if the file ends at `size`.
pub(crate) fn write(file: &InodeFields, at: u64, size: u64) -> Result<(), FsError> {
    content(file)?;
    let flags = flags(file);
    if flags.contains(InodeFlags::APPEND) && at < size {
        return Err(APPEND_ONLY);
    }
    grow(file)
}

/// The bytes of a file may change at all.
pub(crate) fn content(file: &InodeFields) -> Result<(), FsError> {
    if flags(file).contains(InodeFlags::RO_VERITY) { Err(SEALED) } else { Ok(()) }
}

/// It may change in ways that take nothing away: more space for a file, one more entry for a directory, a newer time.
pub(crate) fn grow(of: &InodeFields) -> Result<(), FsError> {
    if flags(of).contains(InodeFlags::IMMUTABLE) { Err(IMMUTABLE) } else { Ok(()) }
}

/// It may change in any way: content, attributes, names; of a directory, entries may go.
pub(crate) fn change(of: &InodeFields) -> Result<(), FsError> {
    if flags(of).contains(InodeFlags::APPEND) { Err(APPEND_ONLY) } else { grow(of) }
}
