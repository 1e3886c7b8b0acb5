//! What the inode flags forbid: an immutable inode does not change at all, an append-only one only grows, of one that the format
//! marks as read-only what it holds (data, entries, attributes of users) stays.
//!
//! The mark is the format's: btrfs-convert gives it to the image of the file system that was converted, which nobody could go back to if
//! a byte of it changed. It says nothing of names, owner, mode and times. The others are Linux's rules for every file system. They look at the inode under its lock, so a caller that sets a
//! flag can rely on it from then on. What was buffered before is still written out. The caller decides who may set and
//! clear the flags (`Fs::set_attr`).

use oleo_format::InodeFlags;

use crate::FsError;
use crate::object::InodeFields;

const IMMUTABLE: FsError = FsError::NotPermitted("it is immutable");
const SEALED: FsError = FsError::NotPermitted("it is protected by fs-verity");
const READ_ONLY: FsError = FsError::Denied("it is marked as read-only");
const APPEND_ONLY: FsError = FsError::NotPermitted("it is append-only");
const UNKNOWN: FsError = FsError::NotSupported("changes of inodes with unknown read-only flags");

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
    if flags(file).contains(InodeFlags::RO_VERITY) { Err(SEALED) } else { held(file) }
}

/// All flags that forbid changes are known.
fn known(of: &InodeFields) -> Result<(), FsError> {
    let unknown = flags(of).intersection(InodeFlags::RO_COMPAT).difference(InodeFlags::RO_VERITY);
    if unknown.is_empty() { Ok(()) } else { Err(UNKNOWN) }
}

/// What it holds may change: bytes, entries, attributes of users.
pub(crate) fn held(by: &InodeFields) -> Result<(), FsError> {
    known(by)?;
    if flags(by).contains(InodeFlags::READONLY) { Err(READ_ONLY) } else { Ok(()) }
}

/// A directory may get an entry.
pub(crate) fn add_entry(dir: &InodeFields) -> Result<(), FsError> {
    held(dir)?;
    grow(dir)
}

/// A directory may lose an entry.
pub(crate) fn take_entry(dir: &InodeFields) -> Result<(), FsError> {
    held(dir)?;
    change(dir)
}

/// It may change in ways that take nothing away: more space for a file, a newer time.
pub(crate) fn grow(of: &InodeFields) -> Result<(), FsError> {
    known(of)?;
    if flags(of).contains(InodeFlags::IMMUTABLE) { Err(IMMUTABLE) } else { Ok(()) }
}

/// It may change in any way: content, attributes, names.
pub(crate) fn change(of: &InodeFields) -> Result<(), FsError> {
    if flags(of).contains(InodeFlags::APPEND) { Err(APPEND_ONLY) } else { grow(of) }
}
