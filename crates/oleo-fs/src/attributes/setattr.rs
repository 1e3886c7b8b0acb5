//! Reading and changing attributes.
//!
//! Normal path: (1) a new size goes first, through the file's data; (2) everything else is one operation on the inode
//! item, with the access ACL if the mode changes.
//!
//! Times follow POSIX: any change sets the change time, a change of size the content's time as well, and setting
//! nothing changes nothing.

use oleo_format::InodeFlags;
use oleo_txn::Need;

use crate::FsError;
use crate::attributes::{Attr, FileKind, Rdev, SetAttr, acl, rules, xattr};
use crate::fs::Fs;
use crate::object::{Inode, InodeFields, InodeRef, Items, ItemsMut};

/// Inode flags that [`SetAttr`] cannot change: the format's own.
const FIXED_FLAGS: InodeFlags = InodeFlags::PREALLOC.union(InodeFlags::ROOT_ITEM_INIT).union(InodeFlags::RO_VERITY);
/// Inode flags that only empty files can change.
const EMPTY_ONLY_FLAGS: InodeFlags = InodeFlags::NODATACOW.union(InodeFlags::NODATASUM);

impl Attr {
    pub(crate) fn of(inode: &Inode, fields: &InodeFields) -> Attr {
        Attr {
            subvol: inode.tree(),
            ino: inode.ino(),
            kind: fields.kind(),
            mode: fields.mode,
            uid: fields.uid,
            gid: fields.gid,
            nlink: fields.nlink,
            size: fields.size,
            nbytes: fields.nbytes,
            rdev: Rdev::of_disk(fields.rdev),
            flags: InodeFlags::from_bits_retain(fields.flags),
            sequence: fields.sequence,
            generation: fields.generation,
            transid: fields.transid,
            atime: fields.atime,
            mtime: fields.mtime,
            ctime: fields.ctime,
            otime: fields.otime,
        }
    }
}

impl SetAttr {
    /// Whether nothing is to change.
    fn is_empty(&self) -> bool {
        !self.owns() && !self.times() && self.ctime.is_none() && self.flags.is_none()
    }

    /// Whether nothing but the size changes.
    fn is_size_alone(&self) -> bool {
        self.size.is_some() && SetAttr { size: None, ..*self }.is_empty()
    }

    /// Whether something changes that takes more than a newer time.
    fn owns(&self) -> bool {
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || self.size.is_some()
    }

    fn times(&self) -> bool {
        self.atime.is_some() || self.mtime.is_some() || self.otime.is_some()
    }

    /// What the inode's flags allow. The flags themselves can always be changed.
    fn check_flags(&self, fields: &InodeFields) -> Result<(), FsError> {
        if self.opened && !self.owns() {
            Ok(())
        } else if self.owns() || (self.times() && !self.touch) {
            rules::change(fields)
        } else if self.times() {
            rules::grow(fields)
        } else {
            Ok(())
        }
    }
}

impl Fs {
    /// What is known of an inode.
    pub fn attr(&self, inode: &InodeRef) -> Attr {
        let guard = inode.read();
        Attr::of(inode, &crate::data::shown(&guard))
    }

    /// Changes attributes. Owner and mode are set as given: the caller decides which bits a change of owner clears
    /// (see [`strip_privileges`](Fs::strip_privileges)).
    pub fn set_attr(&self, inode: &InodeRef, set: &SetAttr) -> Result<Attr, FsError> {
        self.changeable(inode)?;
        if set.is_empty() {
            inode.read().alive()?;
            return Ok(self.attr(inode));
        }
        set.check_flags(inode.read().fields())?;
        let mut releases = false;
        if let Some(size) = set.size {
            releases = size <= inode.read().fields().size;
            match inode.read().fields().kind() {
                FileKind::File => {}
                FileKind::Dir => return Err(FsError::IsDir),
                _ => return Err(FsError::Invalid("only files have a size to set")),
            }
            inode.truncate(size)?;
        }
        if set.is_size_alone() {
            // It has set the times, too.
            self.keep_content(inode)?;
            return Ok(self.attr(inode));
        }
        self.core().throttle_dirty_inodes()?;
        let need = Need { items: 4, bytes: 1024, ..Need::default() };
        let h = match releases {
            true => self.core().join_to_release(inode.subvol(), need)?,
            false => self.engine().join(need)?,
        };
        let mut guard = inode.write();
        guard.alive()?;
        let old = *guard.fields();
        set.check_flags(&old)?;
        let flags = set.flags.map(|f| new_flags(&old, f)).transpose()?;
        if let Some(mode) = set.mode
            && xattr::any(&mut guard)?
            && let Some(access) = xattr::get(&guard, acl::ACCESS)?
            && let Some(access) = acl::chmod(&access, mode)
        {
            xattr::set(&mut guard, &h, acl::ACCESS, &access, xattr::XattrMode::Any)?;
        }
        let now = self.core().now();
        let written = inode.data.take_touched();
        let fields = guard.fields_mut(&h);
        fields.mtime = written.unwrap_or(fields.mtime);
        if let Some(mode) = set.mode {
            fields.mode = old.kind().mode_bits() | mode & 0o7777;
        }
        fields.uid = set.uid.unwrap_or(fields.uid);
        fields.gid = set.gid.unwrap_or(fields.gid);
        fields.flags = flags.unwrap_or(fields.flags);
        fields.atime = set.atime.unwrap_or(fields.atime);
        fields.mtime = set.mtime.unwrap_or(fields.mtime);
        fields.otime = set.otime.unwrap_or(fields.otime);
        fields.ctime = set.ctime.unwrap_or(now);
        fields.sequence += 1;
        drop((guard, h));
        self.keep_content(inode)?;
        Ok(self.attr(inode))
    }
}

fn new_flags(old: &InodeFields, new: InodeFlags) -> Result<u64, FsError> {
    let had = InodeFlags::from_bits_retain(old.flags);
    let new = (new - FIXED_FLAGS) | (had & FIXED_FLAGS);
    if (new ^ had).intersects(EMPTY_ONLY_FLAGS) && old.kind() == FileKind::File && old.size > 0 {
        return Err(FsError::Invalid("only an empty file can change its copy-on-write flags"));
    }
    let against = InodeFlags::NOCOMPRESS | InodeFlags::NODATACOW;
    // The kernel notes beside a wish to compress that it is not worth while: what an inode has, it may keep.
    let changes = (new ^ had).intersects(against | InodeFlags::COMPRESS);
    if changes && new.contains(InodeFlags::COMPRESS) && new.intersects(against) {
        return Err(FsError::Invalid("compression contradicts other flags"));
    }
    Ok(new.bits())
}
