//! Extended attributes: XATTR_ITEM by the hash of the name, in the form of directory entries.
//!
//! The one name with a meaning of its own here is `btrfs.compression`: it sets the inode's compression flags, and new
//! files of a directory inherit it. POSIX ACLs are kept as they are given (`acl` knows what they mean).

use std::sync::atomic::Ordering;

use oleo_format::{FileType, InodeFlags, ItemType, Key, dir_hash, item_len_max};
use oleo_txn::Need;

use crate::attributes::{acl, rules};
use crate::fs::Fs;
use crate::items::dir::{self, Entry};
use crate::object::{InodeFields, InodeRef, Items, ItemsMut, Joined, WriteGuard};
use crate::{FileKind, FsError};

/// Bytes that an attribute's name may have (`XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;
/// Bytes that an attribute's value may have on any file system (`XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: usize = 65536;
/// The property that says how files are compressed.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// The attribute that holds a file's capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// An attribute's name and value.
pub type NameValue = (Vec<u8>, Vec<u8>);

/// Whether setting an attribute may create or replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// Both.
    #[default]
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    const SPACES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(FsError::Range("attribute name of 1 to 255 bytes"));
    }
    if name.contains(&0) {
        return Err(FsError::Invalid("attribute name with a zero byte"));
    }
    let Some(space) = SPACES.iter().find(|s| name.starts_with(s)) else {
        return Err(FsError::NotSupported("attributes outside user, trusted, security, system and btrfs"));
    };
    if name.len() == space.len() {
        return Err(FsError::Invalid("attribute name that ends with its namespace"));
    }
    if *space == b"system." && name != acl::ACCESS && name != acl::DEFAULT {
        return Err(FsError::NotSupported("system attributes other than POSIX ACLs"));
    }
    if *space == b"btrfs." && name != COMPRESSION {
        return Err(FsError::Invalid("there is no property of this name"));
    }
    Ok(())
}

/// Whether an inode can have attributes of this name: `user.` is for files and directories, where permission bits say who
/// may read and write them.
fn fits(fields: &InodeFields, name: &[u8]) -> bool {
    matches!(fields.kind(), FileKind::File | FileKind::Dir) || !name.starts_with(b"user.")
}

/// Fails unless the attribute may be changed.
fn check_change(fields: &InodeFields, name: &[u8]) -> Result<(), FsError> {
    if !fits(fields, name) {
        return Err(FsError::NotPermitted("user attributes are for files and directories"));
    }
    if name.starts_with(b"user.") {
        rules::held(fields)?;
    }
    rules::change(fields)
}

/// The value of an attribute.
pub(crate) fn get(inode: &dyn Items, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
    inode.with(ItemType::XATTR_ITEM, u64::from(dir_hash(name)), |item| {
        for entry in dir::entries(item.unwrap_or_default()) {
            let entry = entry?;
            if entry.name == name {
                return Ok(Some(entry.data.to_vec()));
            }
        }
        Ok(None)
    })
}

/// Sets an attribute to a value.
pub(crate) fn set(
    inode: &mut WriteGuard<'_>,
    h: &dyn Joined,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<(), FsError> {
    let len_max = item_len_max(inode.inode().core().engine().nodesize());
    let hash = u64::from(dir_hash(name));
    let old = inode.get(ItemType::XATTR_ITEM, hash)?;
    let mut exists = false;
    let mut bytes = Vec::new();
    if let Some(old) = &old {
        bytes = dir::without(old, name)?;
        exists = bytes.len() != old.len();
    }
    match mode {
        XattrMode::Create if exists => return Err(FsError::Exists),
        XattrMode::Replace if !exists => return Err(FsError::NoData),
        _ => {}
    }
    bytes.extend_from_slice(&dir::encode(Key::MIN, h.generation().0, FileType::Xattr, name, value));
    if bytes.len() > len_max {
        return Err(FsError::NoSpace);
    }
    inode.put(h, ItemType::XATTR_ITEM, hash, bytes.into());
    if name == CAPABILITY {
        inode.inode().nosec.store(false, Ordering::Relaxed);
    }
    inode.state_mut().has_xattrs = Some(true);
    Ok(())
}

/// Removes an attribute; false when there is none.
pub(crate) fn remove(inode: &mut WriteGuard<'_>, h: &dyn Joined, name: &[u8]) -> Result<bool, FsError> {
    let hash = u64::from(dir_hash(name));
    let Some(old) = inode.get(ItemType::XATTR_ITEM, hash)? else { return Ok(false) };
    let kept = dir::without(&old, name)?;
    if kept.len() == old.len() {
        return Ok(false);
    }
    if kept.is_empty() {
        inode.delete(h, ItemType::XATTR_ITEM, hash);
    } else {
        inode.put(h, ItemType::XATTR_ITEM, hash, kept.into());
    }
    Ok(true)
}

/// Whether the inode has any attributes; remembered, since this is asked of the directory for each new file.
pub(crate) fn any(inode: &mut WriteGuard<'_>) -> Result<bool, FsError> {
    if let Some(known) = inode.state().has_xattrs {
        return Ok(known);
    }
    let any = !inode.range_limit(ItemType::XATTR_ITEM, 0, u64::MAX, 1)?.is_empty();
    inode.state_mut().has_xattrs = Some(any);
    Ok(any)
}

/// The flags that a value of [`COMPRESSION`] stands for: set and cleared.
pub(crate) fn compression_flags(value: &[u8]) -> Result<(InodeFlags, InodeFlags), FsError> {
    let both = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
    let algorithm = value.split(|b| *b == b':').next().unwrap_or(value);
    match algorithm {
        b"" => Ok((InodeFlags::empty(), both)),
        b"zlib" | b"lzo" | b"zstd" => Ok((InodeFlags::COMPRESS, InodeFlags::NOCOMPRESS)),
        b"no" | b"none" => Ok((InodeFlags::NOCOMPRESS, InodeFlags::COMPRESS)),
        _ => Err(FsError::Invalid("compression is one of zlib, lzo, zstd, no, none")),
    }
}

/// The compression that new files take over from `dir`, with the flag it stands for. "None" is not handed down by this,
/// but by the flags.
pub(crate) fn inherited_compression(dir: &dyn Items) -> Result<Option<(Vec<u8>, InodeFlags)>, FsError> {
    let Some(value) = get(dir, COMPRESSION)? else { return Ok(None) };
    Ok(match compression_flags(&value) {
        Ok((set, _)) if set.contains(InodeFlags::COMPRESS) => Some((value, set)),
        _ => None,
    })
}

impl Fs {
    /// The value of an attribute, or `None`.
    pub fn xattr_get(&self, inode: &InodeRef, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        check_name(name)?;
        let guard = inode.read();
        guard.alive()?;
        if fits(guard.fields(), name) { get(&guard, name) } else { Ok(None) }
    }

    /// The names of all attributes, in the order of their hashes.
    pub fn xattr_list(&self, inode: &InodeRef) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.xattrs(inode)?.into_iter().map(|(name, _)| name).collect())
    }

    /// All attributes with their values, in the order of their hashes.
    pub fn xattrs(&self, inode: &InodeRef) -> Result<Vec<NameValue>, FsError> {
        let guard = inode.read();
        guard.alive()?;
        let mut all = Vec::new();
        for (_, item) in guard.range(ItemType::XATTR_ITEM, 0, u64::MAX)? {
            for entry in dir::entries(&item) {
                let Entry { name, data, .. } = entry?;
                all.push((name.to_vec(), data.to_vec()));
            }
        }
        Ok(all)
    }

    /// Sets an attribute.
    pub fn xattr_set(&self, inode: &InodeRef, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), FsError> {
        check_name(name)?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(FsError::TooBig);
        }
        let len_max = item_len_max(self.engine().nodesize()) - size_of::<oleo_format::DirItem>();
        if name.len() + value.len() > len_max {
            return Err(FsError::NoSpace);
        }
        self.changeable(inode)?;
        if name == COMPRESSION {
            // Refusals come before the join, which would make a transaction.
            let guard = inode.read();
            guard.alive()?;
            check_change(guard.fields(), name)?;
            match guard.fields().kind() {
                FileKind::File | FileKind::Dir => drop(self.check_compression(&guard, value)?),
                _ => return compression_flags(value).map(drop),
            }
        }
        self.core().throttle_dirty_inodes()?;
        let h = self
            .core()
            .join_in(inode.tree(), Need { items: 2, bytes: (value.len() + 512) as u32, ..Need::default() })?;
        let mut guard = inode.write();
        guard.alive()?;
        check_change(guard.fields(), name)?;
        if name == COMPRESSION && !matches!(guard.fields().kind(), FileKind::File | FileKind::Dir) {
            // There is nothing to compress: btrfs accepts the property and ignores it.
            return compression_flags(value).map(drop);
        }
        let flags = if name == COMPRESSION { Some(self.check_compression(&guard, value)?) } else { None };
        let acl = acl::checked(guard.fields(), name, value)?;
        if (value.is_empty() && flags.is_some()) || acl.is_some_and(|acl| acl.says_nothing_more) {
            remove(&mut guard, &h, name)?;
        } else {
            set(&mut guard, &h, name, value, mode)?;
        }
        let now = self.core().now();
        let fields = guard.fields_mut(&h);
        if let Some((set, clear)) = flags {
            fields.flags = (fields.flags & !clear.bits()) | set.bits();
        }
        fields.mode = acl.map_or(fields.mode, |acl| acl.mode);
        fields.ctime = now;
        fields.sequence += 1;
        Ok(())
    }

    fn check_compression(&self, inode: &dyn Items, value: &[u8]) -> Result<(InodeFlags, InodeFlags), FsError> {
        if !matches!(inode.fields().kind(), FileKind::File | FileKind::Dir) {
            return Err(FsError::Invalid("only files and directories can be compressed"));
        }
        let flags = InodeFlags::from_bits_retain(inode.fields().flags);
        if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
            return Err(FsError::Invalid("files without copy-on-write or checksums cannot be compressed"));
        }
        compression_flags(value)
    }

    /// Removes an attribute, which must exist.
    pub fn xattr_remove(&self, inode: &InodeRef, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        self.changeable(inode)?;
        let h = self.core().join_to_release(inode.subvol(), Need { items: 2, bytes: 512, ..Need::default() })?;
        let mut guard = inode.write();
        guard.alive()?;
        check_change(guard.fields(), name)?;
        if !remove(&mut guard, &h, name)? {
            return Err(FsError::NoData);
        }
        let now = self.core().now();
        let fields = guard.fields_mut(&h);
        if name == COMPRESSION {
            fields.flags &= !(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS).bits();
        }
        fields.ctime = now;
        fields.sequence += 1;
        Ok(())
    }
}
