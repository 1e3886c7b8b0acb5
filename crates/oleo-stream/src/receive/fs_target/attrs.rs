//! The current inode, its attributes, extended attributes and flags.

use oleo_format::stream::Command;
use oleo_format::{InodeFlags, Timespec};
use oleo_fs::data::Policy;
use oleo_fs::{Attr, FileKind, Fs, FsError, InodeRef, SetAttr, Time, XattrMode};

use super::super::{ApplyError, Item};
use super::batch::check_file;
use super::{Current, FsTarget, MARK_NAME};

/// Flags that forbid changes.
const LOCKS: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);
/// Flags that a stream's FILEATTR may set; the others belong to the format.
const SETTABLE: InodeFlags = InodeFlags::NODATASUM
    .union(InodeFlags::NODATACOW)
    .union(InodeFlags::NOCOMPRESS)
    .union(InodeFlags::COMPRESS)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::DIRSYNC)
    .union(LOCKS);

pub(super) fn time(t: &Timespec) -> Time {
    Time { sec: t.seconds(), nsec: t.nsec.get() }
}

impl Current {
    pub fn new(fs: &Fs, path: &[u8], inode: InodeRef) -> Current {
        let attr = fs.attr(&inode);
        Current {
            path: path.to_vec(),
            inode,
            kind: attr.kind,
            size: attr.size,
            attrs: SetAttr::default(),
            buffered: false,
            plain: false,
            policy: None,
        }
    }

    /// How its data is to be prepared: pieces are prepared on all cores already, one on each.
    pub fn policy(&mut self, fs: &Fs) -> Result<Policy, ApplyError> {
        match self.policy {
            Some(policy) => Ok(policy),
            None => Ok(*self.policy.insert(Policy { threads: false, ..fs.policy(&self.inode)? })),
        }
    }
}

/// Whether something of this is not so yet.
fn changes(set: &SetAttr, attr: &Attr) -> bool {
    fn differs<T: PartialEq>(want: Option<T>, have: T) -> bool {
        want.is_some_and(|want| want != have)
    }
    differs(set.mode, attr.mode & 0o7777)
        || differs(set.uid, attr.uid)
        || differs(set.gid, attr.gid)
        || differs(set.atime, attr.atime)
        || differs(set.mtime, attr.mtime)
        || differs(set.ctime, attr.ctime)
        || differs(set.otime, attr.otime)
        || differs(set.flags, attr.flags)
}

impl FsTarget {
    /// Goes to the inode at a path: what waits for another one is done.
    pub(super) fn go_to(&mut self, path: &[u8]) -> Result<&mut Current, ApplyError> {
        let here = self.open()?.current.as_ref().is_some_and(|current| current.path == path);
        if !here {
            self.settle()?;
            let fs = self.fs.clone();
            let open = self.open()?;
            let inode = open.finder.find(&fs, path)?;
            let mut current = Current::new(&fs, path, inode);
            self.unlock(&current.inode)?;
            let open = self.open()?;
            let waiting = open.waiting.get(&current.inode.ino());
            current.size = current.size.max(waiting.map_or(0, |waiting| waiting.size));
            open.current = Some(current);
        }
        self.open()?.current.as_mut().ok_or_else(|| FsError::NotFound.into())
    }

    /// The same for a regular file.
    pub(super) fn file(&mut self, path: &[u8]) -> Result<&mut Current, ApplyError> {
        let current = self.go_to(path)?;
        check_file(current.kind)?;
        Ok(current)
    }

    /// The attributes to be set on the inode at a path.
    pub(super) fn attrs(&mut self, path: &[u8]) -> Result<&mut SetAttr, ApplyError> {
        Ok(&mut self.go_to(path)?.attrs)
    }

    /// Does what waits for the current inode, and leaves it.
    pub(super) fn settle(&mut self) -> Result<(), ApplyError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let Some(current) = open.current.take() else { return Ok(()) };
        if current.buffered {
            self.fs.flush(&current.inode)?;
        }
        let mut set = current.attrs;
        if current.kind == FileKind::Symlink {
            set.mode = None;
        }
        if changes(&set, &self.fs.attr(&current.inode)) {
            self.fs.set_attr(&current.inode, &set)?;
        }
        Ok(())
    }

    /// Takes away flags that forbid changes, until the end.
    pub(super) fn unlock(&mut self, inode: &InodeRef) -> Result<(), ApplyError> {
        let flags = self.fs.attr(inode).flags;
        if flags.intersects(LOCKS) {
            self.fs.set_attr(inode, &SetAttr::default().flags(Some(flags - LOCKS)))?;
            self.open()?.locked.insert(inode.ino(), flags & LOCKS);
        }
        Ok(())
    }

    /// Gives such flags back.
    pub(super) fn lock_again(&mut self) -> Result<(), ApplyError> {
        let fs = self.fs.clone();
        let open = self.open()?;
        let mut locked: Vec<_> = open.locked.drain().collect();
        locked.sort_unstable_by_key(|(ino, _)| *ino);
        for (ino, locks) in locked {
            let inode = match fs.inode(open.root.subvol(), ino) {
                Err(FsError::NotFound) => continue,
                other => other?,
            };
            let attr = fs.attr(&inode);
            let set = SetAttr::default().flags(Some(attr.flags | locks)).ctime(Some(attr.ctime));
            fs.set_attr(&inode, &set)?;
        }
        Ok(())
    }

    pub(super) fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), ApplyError> {
        check_name(path, name)?;
        let fs = self.fs.clone();
        let current = self.go_to(path)?;
        current.policy = None;
        Ok(fs.xattr_set(&current.inode, name, value, XattrMode::Any)?)
    }

    pub(super) fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<(), ApplyError> {
        check_name(path, name)?;
        let fs = self.fs.clone();
        let current = self.go_to(path)?;
        current.policy = None;
        Ok(fs.xattr_remove(&current.inode, name)?)
    }

    /// Sets the inode's flags to those of the sender, as far as possible.
    pub(super) fn file_attr(&mut self, path: &[u8], attr: u64) -> Result<(), ApplyError> {
        let want = InodeFlags::from_bits_retain(attr) & SETTABLE;
        let fs = self.fs.clone();
        let current = self.go_to(path)?;
        if !matches!(current.kind, FileKind::File | FileKind::Dir) {
            // Others have none of these.
            return Ok(());
        }
        let inode = current.inode.clone();
        self.install_for(&inode)?;
        let have = fs.attr(&inode);
        let mut flags = (have.flags - SETTABLE) | (want - LOCKS);
        let cow = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        if (flags ^ have.flags).intersects(cow) && have.kind == FileKind::File && have.size > 0 {
            flags = (flags - cow) | (have.flags & cow);
            let shown = path.escape_ascii();
            self.warn(format!("{shown}: copy on write is not changed, since it has data already"));
        }
        if flags.contains(InodeFlags::COMPRESS) && flags.intersects(InodeFlags::NOCOMPRESS | InodeFlags::NODATACOW) {
            // The kernel sets both if a file that is to be compressed turned out not to compress: then it is not
            // compressed.
            flags -= InodeFlags::COMPRESS;
        }
        if flags != have.flags {
            fs.set_attr(&inode, &SetAttr::default().flags(Some(flags)))?;
        }
        let open = self.open()?;
        if want.intersects(LOCKS) {
            open.locked.insert(inode.ino(), want & LOCKS);
        } else {
            open.locked.remove(&inode.ino());
        }
        if let Some(current) = &mut open.current {
            current.policy = None;
        }
        Ok(())
    }
}

/// Refuses the mark's name: only Oleo sets it.
fn check_name(path: &[u8], name: &[u8]) -> Result<(), ApplyError> {
    if path.is_empty() && name == MARK_NAME {
        return Err(FsError::NotPermitted("the attribute is reserved for incomplete subvolumes").into());
    }
    Ok(())
}

/// The attributes that the commands after the creation of an inode finally give it.
pub(super) fn applied_later(items: &[Item<'_>], path: &[u8]) -> SetAttr {
    let mut set = SetAttr::default();
    for item in items.iter().take_while(|item| item.command.path() == Some(path)) {
        match item.command {
            Command::Chmod { mode, .. } => set.mode = u32::try_from(mode & 0o7777).ok(),
            Command::Chown { uid, gid, .. } => (set.uid, set.gid) = (u32::try_from(uid).ok(), u32::try_from(gid).ok()),
            Command::Utimes { ref atime, ref mtime, ref ctime, ref otime, .. } => {
                set.atime = Some(time(atime));
                set.mtime = Some(time(mtime));
                set.ctime = Some(time(ctime));
                set.otime = otime.as_ref().map(time).or(set.otime);
            }
            Command::FileAttr { attr, .. } => set.flags = Some(InodeFlags::from_bits_retain(attr)),
            Command::Rename { .. } | Command::Unlink { .. } => break,
            _ => {}
        }
    }
    set
}
