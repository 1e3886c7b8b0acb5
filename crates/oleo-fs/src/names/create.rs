//! New inodes: with a name, or without one yet.
//!
//! Normal path of `create`: (1) join; (2) lock the directory, look whether the name is free; (3) see what the directory
//! hands down (`Start`); (4) add the entry; (5) give the new inode its items. It is entered in the cache last, so that
//! nobody else ever waits for its lock.
//!
//! `tmpfile` does the same without (2) and (4): the inode is an orphan from the beginning, and is deleted after a crash or
//! with its last handle, unless `link` gives it a name first ([`Inode::may_be_linked`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{FileExtentHead, Ino, InodeFlags, ItemType, item_len_max};
use zerocopy::IntoBytes;

use crate::FsError;
use crate::attributes::{Attr, FileKind, MODE_SETGID, NewInode, NewKind, Times, acl, rules, xattr};
use crate::fs::Fs;
use crate::items::dir::{self, Target};
use crate::items::refs;
use crate::names::TARGET_MAX;
use crate::names::link::{check_dir, name_need, stamp};
use crate::object::{Inode, InodeFields, InodeRef, Items, ItemsMut, Joined, WriteGuard};
use crate::options::Time;
use oleo_tree::ItemBytes;

/// Permission bits.
const PERMISSIONS: u32 = 0o777;

impl Fs {
    /// Makes a new inode with one name.
    pub fn create(&self, dir: &InodeRef, name: &[u8], new: &NewInode<'_>) -> Result<InodeRef, FsError> {
        self.create_with_attr(dir, name, new).map(|made| made.0)
    }

    /// The same, with the new inode's attributes.
    pub fn create_with_attr(
        &self,
        dir: &InodeRef,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(InodeRef, Attr), FsError> {
        let (made, flags) = self.create_named(dir, name, new)?;
        self.keep_names_by(flags, dir)?;
        Ok(made)
    }

    /// Also returns the directory's flags.
    fn create_named(
        &self,
        dir: &InodeRef,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<((InodeRef, Attr), u64), FsError> {
        dir::check_name(name)?;
        self.changeable(dir)?;
        let core = self.core();
        core.throttle_dirty_inodes()?;
        if let NewKind::Symlink(target) = new.kind {
            check_target(target, self.engine().nodesize())?;
        }
        let target_len = if let NewKind::Symlink(target) = new.kind { target.len() as u32 } else { 0 };
        let h = self.core().join_in(dir.tree(), name_need(name, target_len))?;
        let mut parent = dir.write();
        check_dir(&parent)?;
        let place = dir::Place::of(&parent, name)?;
        if place.entry.is_some() {
            return Err(FsError::Exists);
        }
        rules::add_entry(parent.fields())?;
        let start = Start::of(&mut parent, new)?;
        let ino = match new.ino {
            Some(ino) => ino,
            None => dir.subvol().give_inos(1)?,
        };
        let now = core.now();
        let own = |index| refs::ref_bytes(index, name);
        let named = dir::add_new(&mut parent, &h, place, name, Target::Inode(ino), new.kind.kind(), own)?;
        stamp(&mut parent, &h, now);
        let made = self.make(dir, &h, new, &start, ino, Some(named), now)?;
        Ok((made, parent.fields().flags))
    }

    /// Makes a regular file without a name, which takes over from `dir` what a named one would. [`link`](Fs::link) can
    /// give it a name as long as a handle is out; it goes with the last handle otherwise.
    pub fn tmpfile(&self, dir: &InodeRef, new: &NewInode<'_>) -> Result<InodeRef, FsError> {
        self.changeable(dir)?;
        if new.kind != NewKind::File {
            return Err(FsError::Invalid("only regular files can be made without a name"));
        }
        let core = self.core();
        core.throttle_dirty_inodes()?;
        let h = self.core().join_in(dir.tree(), name_need(b"", 0))?;
        let mut parent = dir.write();
        check_dir(&parent)?;
        rules::add_entry(parent.fields())?;
        let start = Start::of(&mut parent, new)?;
        drop(parent);
        let ino = match new.ino {
            Some(ino) => ino,
            None => dir.subvol().give_inos(1)?,
        };
        let (made, _) = self.make(dir, &h, new, &start, ino, None, core.now())?;
        made.may_be_linked.store(true, Ordering::SeqCst);
        made.unlinked.store(true, Ordering::SeqCst);
        Ok(made)
    }

    /// Gives a new inode its items, and returns it with its attributes. `named`: the item that says which name it has in `dir`, if it has one.
    #[allow(clippy::too_many_arguments, reason = "what, where and when; each used once")]
    pub(crate) fn make(
        &self,
        dir: &InodeRef,
        h: &dyn Joined,
        new: &NewInode<'_>,
        start: &Start,
        ino: Ino,
        named: Option<ItemBytes>,
        now: Time,
    ) -> Result<(InodeRef, Attr), FsError> {
        let core = self.core();
        let mut fields = start.fields(new, h.generation().0, now);
        fields.nlink = u32::from(named.is_some());
        let inode = Inode::new(dir.subvol(), ino, fields, true).made_in(dir.ino());
        let made = InodeRef::new(Arc::new(inode));
        let attr = {
            let mut child = made.write();
            child.fields_mut(h);
            if let Some(named) = named {
                child.put(h, ItemType::INODE_REF, dir.ino().0, named);
            }
            child.state_mut().next_index = if fields.kind() == FileKind::Dir { dir::FIRST_INDEX } else { 0 };
            if let NewKind::Symlink(target) = new.kind {
                child.put(h, ItemType::EXTENT_DATA, 0, inline_extent(h.generation().0, target));
            }
            for (name, value) in &start.xattrs {
                core.poison_on_error(|| xattr::set(&mut child, h, name, value, xattr::XattrMode::Any))?;
            }
            Attr::of(&made, child.fields())
        };
        core.cache.insert((dir.tree(), ino.0), Arc::clone(&made));
        Ok((made, attr))
    }
}

/// What a new inode takes over from its directory.
pub(crate) struct Start {
    flags: InodeFlags,
    gid: u32,
    /// With type bits.
    mode: u32,
    xattrs: Vec<(&'static [u8], Vec<u8>)>,
}

impl Start {
    pub(crate) fn of(dir: &mut WriteGuard<'_>, new: &NewInode<'_>) -> Result<Start, FsError> {
        let parent = *dir.fields();
        let kind = new.kind.kind();
        let mut start = Start {
            flags: inherited_flags(InodeFlags::from_bits_retain(parent.flags), kind),
            gid: new.gid,
            mode: new.mode & 0o7777 | kind.mode_bits(),
            xattrs: Vec::new(),
        };
        if new.bare {
            start.flags = InodeFlags::empty();
        }
        if kind == FileKind::File && !new.bare {
            start.flags |= dir.inode().core().opts.data.new_file_flags;
        }
        if kind == FileKind::Symlink {
            start.mode = 0o777 | kind.mode_bits();
        }
        if new.bare {
            return Ok(start);
        }
        if parent.mode & MODE_SETGID != 0 && !new.plain {
            start.gid = parent.gid;
            if kind == FileKind::Dir {
                start.mode |= MODE_SETGID;
            }
        }
        // A default ACL takes the place of the umask.
        let acl = xattr::any(dir)? && start.inherit_xattrs(dir, new, kind)?;
        if !acl && !new.plain && kind != FileKind::Symlink {
            start.mode &= !(new.umask & PERMISSIONS);
        }
        Ok(start)
    }

    /// Whether there was a default ACL to go by.
    fn inherit_xattrs(&mut self, dir: &dyn Items, new: &NewInode<'_>, kind: FileKind) -> Result<bool, FsError> {
        let compresses = matches!(kind, FileKind::File | FileKind::Dir) && !self.flags.contains(InodeFlags::NODATACOW);
        if compresses && let Some((value, flags)) = xattr::inherited_compression(dir)? {
            self.flags = (self.flags - InodeFlags::NOCOMPRESS) | flags;
            self.xattrs.push((xattr::COMPRESSION, value));
        }
        if new.plain || kind == FileKind::Symlink {
            return Ok(false);
        }
        let default = xattr::get(dir, acl::DEFAULT)?;
        let found = default.is_some();
        if let Some(default) = default {
            let (mode, access) = acl::inherit(&default, self.mode);
            self.mode = mode;
            if let Some(access) = access {
                self.xattrs.push((acl::ACCESS, access));
            }
            if kind == FileKind::Dir {
                self.xattrs.push((acl::DEFAULT, default));
            }
        }
        Ok(found)
    }

    fn fields(&self, new: &NewInode<'_>, generation: u64, now: Time) -> InodeFields {
        let times = new.times.unwrap_or(Times::all(now));
        let len = if let NewKind::Symlink(target) = new.kind { target.len() as u64 } else { 0 };
        let rdev = match new.kind {
            NewKind::CharDevice(rdev) | NewKind::BlockDevice(rdev) => rdev.to_disk(),
            _ => 0,
        };
        InodeFields {
            generation,
            transid: generation,
            size: len,
            nbytes: len,
            nlink: 1,
            uid: new.uid,
            gid: self.gid,
            mode: self.mode,
            rdev,
            flags: self.flags.bits(),
            sequence: 0,
            atime: times.atime,
            ctime: times.ctime,
            mtime: times.mtime,
            otime: times.otime,
        }
    }
}

/// The flags that an inode takes over from its directory.
fn inherited_flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    if parent.contains(InodeFlags::NOCOMPRESS) {
        flags |= InodeFlags::NOCOMPRESS;
    } else if parent.contains(InodeFlags::COMPRESS) {
        flags |= InodeFlags::COMPRESS;
    }
    if parent.contains(InodeFlags::NODATACOW) {
        flags |= InodeFlags::NODATACOW;
        if kind == FileKind::File {
            flags |= InodeFlags::NODATASUM;
        }
    }
    flags
}

fn check_target(target: &[u8], nodesize: u32) -> Result<(), FsError> {
    if target.is_empty() || target.contains(&0) {
        return Err(FsError::Invalid("a link's target is empty or has a zero byte"));
    }
    if target.len() > TARGET_MAX.min(item_len_max(nodesize) - size_of::<FileExtentHead>()) {
        return Err(FsError::NameTooLong);
    }
    Ok(())
}

/// A file extent whose bytes are in the item, as a symbolic link's target does.
fn inline_extent(generation: u64, bytes: &[u8]) -> ItemBytes {
    let head = FileExtentHead {
        generation: generation.into(),
        ram_bytes: (bytes.len() as u64).into(),
        ..FileExtentHead::default()
    };
    [head.as_bytes(), bytes].concat().into()
}
