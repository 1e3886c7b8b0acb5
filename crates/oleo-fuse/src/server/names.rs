//! Names: creating, linking, moving and removing files.

use oleo::fs::{Attr, FileKind, NewInode, NewKind, RenameMode};
use oleo_fs::InodeRef;
use rustix::mount::MountFlags;

use super::{Answer, Errno, Server};
use crate::wire::Reply;
use crate::wire::abi;

/// `RENAME_*` of `linux/fs.h`.
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;
/// A symbolic link's permissions.
const LINK_MODE: u32 = 0o777;

/// The properties of the caller that a new inode gets.
struct Maker {
    mode: u32,
    umask: u32,
}

impl Server {
    fn make(
        &self,
        head: &abi::InHeader,
        name: &[u8],
        kind: NewKind<'_>,
        maker: &Maker,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let (made, attr) = self.made(head, name, kind, maker.mode, maker.umask)?;
        reply.put(&self.entry_with(made, &attr));
        Ok(())
    }

    /// Makes an inode and its name.
    pub(super) fn made(
        &self,
        head: &abi::InHeader,
        name: &[u8],
        kind: NewKind<'_>,
        mode: u32,
        umask: u32,
    ) -> Result<(InodeRef, Attr), Errno> {
        let dir = self.inode(head.nodeid)?;
        let new = self.new_inode(head, kind, &Maker { mode, umask });
        let made = self.fs.create_with_attr(&dir, name, &new).map_err(|e| self.errno("create", &e))?;
        self.keep_names(&[&dir])?;
        Ok(made)
    }

    fn new_inode<'a>(&self, head: &abi::InHeader, kind: NewKind<'a>, maker: &Maker) -> NewInode<'a> {
        NewInode::new(kind, maker.mode & PERMISSIONS).uid(head.uid).gid(head.gid).umask(maker.umask)
    }

    pub(super) fn mknod(
        &self,
        head: &abi::InHeader,
        args: &abi::MknodIn,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answer {
        let rdev = oleo::fs::Rdev::of_stat(args.rdev);
        let kind = match FileKind::of_mode(args.mode) {
            FileKind::File => NewKind::File,
            FileKind::CharDevice => NewKind::CharDevice(rdev),
            FileKind::BlockDevice => NewKind::BlockDevice(rdev),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::Dir | FileKind::Symlink | FileKind::Unknown => return Err(Errno::EINVAL),
        };
        self.make(head, name, kind, &Maker { mode: args.mode, umask: args.umask }, reply)
    }

    pub(super) fn mkdir(
        &self,
        head: &abi::InHeader,
        args: &abi::MkdirIn,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answer {
        self.make(head, name, NewKind::Dir, &Maker { mode: args.mode, umask: args.umask }, reply)
    }

    pub(super) fn symlink(&self, head: &abi::InHeader, name: &[u8], target: &[u8], reply: &mut Reply<'_>) -> Answer {
        self.make(head, name, NewKind::Symlink(target), &Maker { mode: LINK_MODE, umask: 0 }, reply)
    }

    pub(super) fn tmpfile(&self, head: &abi::InHeader, args: &abi::CreateIn, reply: &mut Reply<'_>) -> Answer {
        let dir = self.inode(head.nodeid)?;
        let maker = Maker { mode: args.mode, umask: args.umask };
        let new = self.new_inode(head, NewKind::File, &maker);
        let made = self.fs.tmpfile(&dir, &new).map_err(|e| self.errno("tmpfile", &e))?;
        self.put_created(made, args.flags, reply)
    }

    pub(super) fn link(&self, file: u64, dir: u64, name: &[u8], reply: &mut Reply<'_>) -> Answer {
        let (file, dir) = (self.inode(file)?, self.inode(dir)?);
        self.fs.link(&file, &dir, name).map_err(|e| self.errno("link", &e))?;
        self.keep_names(&[&dir])?;
        reply.put(&self.entry(file));
        Ok(())
    }

    pub(super) fn unlink(&self, dir: u64, name: &[u8]) -> Answer {
        let dir = self.inode(dir)?;
        // The kernel asks only for names that it has seen.
        self.fs.remove_entry(&dir, name, false).map_err(|e| self.errno("unlink", &e))?;
        self.keep_names(&[&dir])
    }

    pub(super) fn rmdir(&self, dir: u64, name: &[u8]) -> Answer {
        let dir = self.inode(dir)?;
        self.fs.remove_entry(&dir, name, true).map_err(|e| self.errno("rmdir", &e))?;
        self.keep_names(&[&dir])
    }

    pub(super) fn rename(&self, head: &abi::InHeader, from: &[u8], to_dir: u64, to: &[u8], flags: u32) -> Answer {
        let (from_dir, to_dir): (InodeRef, InodeRef) = (self.inode(head.nodeid)?, self.inode(to_dir)?);
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            _ if flags & !(RENAME_WHITEOUT | RENAME_NOREPLACE) == 0 => {
                RenameMode::Whiteout { uid: head.uid, gid: head.gid, no_replace: flags & RENAME_NOREPLACE != 0 }
            }
            _ => return Err(Errno::EINVAL),
        };
        if !from_dir.same(&to_dir) {
            self.may_get_parent(&from_dir, from)?;
            if mode == RenameMode::Exchange {
                self.may_get_parent(&to_dir, to)?;
            }
        }
        self.fs.rename(&from_dir, from, &to_dir, to, mode).map_err(|e| self.errno("rename", &e))?;
        self.keep_names(&[&from_dir, &to_dir])
    }

    /// A directory that gets another parent counts as written to: its `..` changes. The kernel asks for permission, and does not know
    /// that one which begins a read-only subvolume cannot be written.
    fn may_get_parent(&self, dir: &InodeRef, name: &[u8]) -> Answer {
        let found = self.fs.lookup(dir, name).map_err(|e| self.errno("rename", &e))?;
        match found {
            Some(inode) if inode.subvol().is_read_only() && self.fs.attr(&inode).kind == FileKind::Dir => {
                Err(Errno::EROFS)
            }
            _ => Ok(()),
        }
    }

    /// Makes changes of these directories' entries durable on a mount with `dirsync` or `sync`.
    fn keep_names(&self, dirs: &[&InodeRef]) -> Answer {
        if self.options.flags.intersects(MountFlags::DIRSYNC | MountFlags::SYNCHRONOUS) {
            dirs.iter().try_for_each(|dir| self.fs.fsync(dir)).map_err(|e| self.errno("fsync", &e))?;
        }
        Ok(())
    }
}
