//! What an access does beside what it was asked for: a write takes privileges away, a read leaves a time.
//!
//! Both are called with every write and every read, so both look first under the read lock and usually return there.
//! The inode remembers that it has no capabilities ([`Inode::nosec`](crate::Inode)).

use std::sync::atomic::Ordering;

use oleo_format::InodeFlags;
use oleo_txn::Need;

use crate::FsError;
use crate::attributes::{FileKind, MODE_SETGID, xattr};
use crate::fs::Fs;
use crate::object::{InodeFields, InodeRef, Items, ItemsMut, ReadGuard};
use crate::options::Time;

/// The set-user-id bit.
const MODE_SETUID: u32 = 0o4000;
/// Execution by the group: with it the set-group-id bit is a privilege, without it a mark for mandatory locks.
const MODE_GROUP_EXEC: u32 = 0o0010;
/// Age of an access time from which on a read renews it whatever else happened.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Why privileges are taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strip {
    /// A regular file's content was changed by somebody who may not keep its privileges: the set-user-id bit, the
    /// set-group-id bit if the group may execute it, and its capabilities go.
    Content,
    /// A regular file's content was changed by somebody who may keep the bits: its capabilities go.
    CapabilityOnly,
    /// The owner or group of anything but a directory was changed: as for `Content`.
    Owner,
}

/// When a read renews the access time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimePolicy {
    /// Never.
    None,
    /// When it is not younger than the last change, or a day old.
    #[default]
    Relatime,
    /// Always.
    Strict,
}

/// The bits of a mode that are taken away.
fn bits_to_strip(fields: &InodeFields, why: Strip) -> u32 {
    let concerned = match why {
        Strip::Content => fields.kind() == FileKind::File,
        Strip::CapabilityOnly => false,
        Strip::Owner => fields.kind() != FileKind::Dir,
    };
    if !concerned {
        return 0;
    }
    let group = if fields.mode & MODE_GROUP_EXEC != 0 { MODE_SETGID } else { 0 };
    fields.mode & (MODE_SETUID | group)
}

fn has_capability(guard: &ReadGuard<'_>) -> Result<bool, FsError> {
    let known = &guard.inode().nosec;
    if known.load(Ordering::Relaxed) || guard.state().has_xattrs == Some(false) {
        return Ok(false);
    }
    let has = xattr::get(guard, xattr::CAPABILITY)?.is_some();
    if !has {
        known.store(true, Ordering::Relaxed);
    }
    Ok(has)
}

fn is_stale(fields: &InodeFields, policy: AtimePolicy, now: Time) -> bool {
    match policy {
        AtimePolicy::None => false,
        AtimePolicy::Relatime => {
            fields.atime <= fields.mtime
                || fields.atime <= fields.ctime
                || now.sec.saturating_sub(fields.atime.sec) >= RELATIME_SECONDS
        }
        AtimePolicy::Strict => fields.atime != now,
    }
}

impl Fs {
    /// Takes away the privileges that a file must not keep after what was done to it. Whether there were any: then
    /// caches of its mode are out of date.
    pub fn strip_privileges(&self, file: &InodeRef, why: Strip) -> Result<bool, FsError> {
        {
            let guard = file.read();
            if bits_to_strip(guard.fields(), why) == 0 && !has_capability(&guard)? {
                return Ok(false);
            }
        }
        self.changeable(file)?;
        self.core().throttle_dirty_inodes()?;
        let h = self.core().join_to_release(file.subvol(), Need { items: 2, bytes: 512, ..Need::default() })?;
        let mut guard = file.write();
        guard.alive()?;
        let bits = bits_to_strip(guard.fields(), why);
        if !xattr::remove(&mut guard, &h, xattr::CAPABILITY)? && bits == 0 {
            return Ok(false);
        }
        let now = self.core().now();
        let fields = guard.fields_mut(&h);
        fields.mode &= !bits;
        fields.ctime = now;
        fields.sequence += 1;
        Ok(true)
    }

    /// Notes that a file was read or a directory listed. If that cannot be noted it is not: nobody's read fails for
    /// it.
    pub fn touch_atime(&self, file: &InodeRef, policy: AtimePolicy) {
        if policy == AtimePolicy::None || self.changeable(file).is_err() {
            return;
        }
        let now = self.core().now();
        {
            let guard = file.read();
            let keeps = InodeFlags::from_bits_retain(guard.fields().flags).contains(InodeFlags::NOATIME);
            if keeps || guard.alive().is_err() || !is_stale(&file.data.show(guard.fields()), policy, now) {
                return;
            }
        }
        drop(self.set_atime(file, now));
    }

    fn set_atime(&self, file: &InodeRef, now: Time) -> Result<(), FsError> {
        self.core().throttle_dirty_inodes()?;
        let h = self.engine().join(Need { items: 1, bytes: 0, ..Need::default() })?;
        let mut guard = file.write();
        guard.alive()?;
        guard.fields_mut(&h).atime = now;
        Ok(())
    }
}
