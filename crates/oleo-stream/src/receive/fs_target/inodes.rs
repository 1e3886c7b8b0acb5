//! Creating, naming and removing inodes; sizes and space of files.

use std::ops::Range;

use oleo_format::InodeFlags;
use oleo_format::stream::Command;
use oleo_fs::data::KeepSize;
use oleo_fs::{FileKind, FsError, InodeRef, NewInode, NewKind, Rdev, RenameMode, SetAttr, Times, Verity};

use super::super::paths::split;
use super::super::{ApplyError, Item};
use super::attrs::applied_later;
use super::{Current, FsTarget, refused};

/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// Type bits of a mode, and two of the types.
const TYPE: u64 = 0o170_000;
const CHAR_DEVICE: u64 = 0o020_000;
const BLOCK_DEVICE: u64 = 0o060_000;

/// A device number as streams have it.
fn rdev(number: u64) -> Result<Rdev, ApplyError> {
    let number = u32::try_from(number).map_err(|_| refused("a device number beyond 32 bits"))?;
    Ok(Rdev::of_stat(number))
}

fn kind_of<'s>(command: &Command<'s>) -> Result<NewKind<'s>, ApplyError> {
    Ok(match *command {
        Command::MkFile { .. } => NewKind::File,
        Command::MkDir { .. } => NewKind::Dir,
        Command::MkFifo { .. } => NewKind::Fifo,
        Command::MkSock { .. } => NewKind::Socket,
        Command::Symlink { target, .. } => NewKind::Symlink(target),
        Command::MkNod { mode, rdev: number, .. } => match mode & TYPE {
            CHAR_DEVICE => NewKind::CharDevice(rdev(number)?),
            BLOCK_DEVICE => NewKind::BlockDevice(rdev(number)?),
            _ => return Err(refused(format!("a device of mode {mode:o}"))),
        },
        _ => return Err(refused("not a command that makes an inode")),
    })
}

impl FsTarget {
    /// Creates an inode under the name that the next command renames it to, if that is its first use and the name is
    /// free.
    pub(super) fn create(&mut self, items: &[Item<'_>], at: usize) -> Result<usize, ApplyError> {
        let command = &items[at].command;
        let path = command.path().unwrap_or_default();
        self.settle()?;
        let (mut goal, mut used) = (path, 1);
        if let Some(Command::Rename { path: from, to }) = items.get(at + 1).map(|next| next.command)
            && from == path
            && self.is_free(to)?
        {
            // The name in between is never seen, but it must have been possible.
            if !self.is_free(path)? {
                return Err(FsError::Exists.into());
            }
            (goal, used) = (to, 2);
        }
        let reported = applied_later(&items[at + used..], goal);
        let inode = self.make(goal, command, &reported)?;
        let current = Current::new(&self.fs, goal, inode);
        self.open()?.current = Some(Current { plain: true, ..current });
        Ok(used)
    }

    fn make(&mut self, path: &[u8], command: &Command<'_>, reported: &SetAttr) -> Result<InodeRef, ApplyError> {
        let kind = kind_of(command)?;
        let (dir, name) = self.dir_of(path)?;
        let now = self.fs.options().clock.now();
        let times = Times {
            atime: reported.atime.unwrap_or(now),
            mtime: reported.mtime.unwrap_or(now),
            ctime: reported.ctime.unwrap_or(now),
            otime: reported.otime.unwrap_or(now),
        };
        let new = NewInode::new(kind, reported.mode.unwrap_or(0o600))
            .uid(reported.uid.unwrap_or(0))
            .gid(reported.gid.unwrap_or(0))
            .times(Some(times))
            .plain(true)
            .bare(true);
        let inode = self.fs.create(&dir, name, &new)?;
        let cow = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        if let Some(flags) = reported.flags.filter(|flags| flags.intersects(cow) && kind == NewKind::File) {
            // Only while it is empty can a file get these.
            let set = SetAttr::default().flags(Some(flags & cow)).ctime(Some(times.ctime));
            self.fs.set_attr(&inode, &set)?;
        }
        Ok(inode)
    }

    /// The directory that a path's last name is in, free to be changed, and that name.
    fn dir_of<'p>(&mut self, path: &'p [u8]) -> Result<(InodeRef, &'p [u8]), ApplyError> {
        let (dir, name) = split(path);
        let fs = self.fs.clone();
        let dir = self.open()?.finder.dir(&fs, dir)?;
        self.unlock(&dir)?;
        Ok((dir, name))
    }

    fn is_free(&mut self, path: &[u8]) -> Result<bool, ApplyError> {
        let (dir, name) = self.dir_of(path)?;
        Ok(self.fs.lookup(&dir, name)?.is_none())
    }

    pub(super) fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<(), ApplyError> {
        let mut moved = None;
        if self.open()?.current.as_ref().is_some_and(|current| current.path == path) {
            moved = self.open()?.current.take();
        } else {
            self.settle()?;
        }
        let fs = self.fs.clone();
        let inode = match &moved {
            Some(current) => current.inode.clone(),
            None => self.open()?.finder.find(&fs, path)?,
        };
        self.unlock(&inode)?;
        if !self.is_free(to)? {
            let replaced = self.open()?.finder.find(&fs, to)?;
            self.unlock(&replaced)?;
        }
        let (src_dir, src) = self.dir_of(path)?;
        let (dst_dir, dst) = self.dir_of(to)?;
        let renamed = fs.rename(&src_dir, src, &dst_dir, dst, RenameMode::Replace);
        let open = self.open()?;
        open.finder.forget(path);
        open.finder.forget(to);
        if let Some(mut current) = moved {
            if renamed.is_ok() {
                current.path = to.to_vec();
            }
            open.current = Some(current);
        }
        Ok(renamed?)
    }

    pub(super) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), ApplyError> {
        let inode = self.go_to(target)?.inode.clone();
        let (dir, name) = self.dir_of(path)?;
        Ok(self.fs.link(&inode, &dir, name)?)
    }

    pub(super) fn unlink(&mut self, path: &[u8]) -> Result<(), ApplyError> {
        let inode = self.go_to(path)?.inode.clone();
        if self.open()?.current.as_ref().is_some_and(|current| current.kind == FileKind::Dir) {
            return Err(FsError::IsDir.into());
        }
        self.install_for(&inode)?;
        self.settle()?;
        let (dir, name) = self.dir_of(path)?;
        self.fs.unlink(&dir, name)?;
        self.open()?.finder.forget(path);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, path: &[u8]) -> Result<(), ApplyError> {
        // Finding it refuses paths in other subvolumes.
        self.go_to(path)?;
        self.settle()?;
        self.open()?.finder.forget(path);
        let (dir, name) = self.dir_of(path)?;
        Ok(self.fs.rmdir(&dir, name)?)
    }

    pub(super) fn truncate(&mut self, path: &[u8], size: u64) -> Result<(), ApplyError> {
        let fs = self.fs.clone();
        let current = self.file(path)?;
        if current.size == size && current.plain {
            return Ok(());
        }
        let inode = current.inode.clone();
        self.install_for(&inode)?;
        if i64::try_from(size).is_err() {
            return Err(FsError::FileTooBig.into());
        }
        fs.truncate(&inode, size)?;
        self.file(path)?.size = size;
        Ok(())
    }

    /// `place`: offset and length.
    pub(super) fn fallocate(&mut self, path: &[u8], mode: u32, place: Range<u64>) -> Result<(), ApplyError> {
        let fs = self.fs.clone();
        let (at, len) = (place.start, place.end);
        let inode = self.file(path)?.inode.clone();
        self.install_for(&inode)?;
        at.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or(FsError::FileTooBig)?;
        let keep = if mode & KEEP_SIZE == 0 { KeepSize::No } else { KeepSize::Yes };
        match mode & !KEEP_SIZE {
            _ if len == 0 => return Err(FsError::Invalid("no bytes to allocate").into()),
            0 => fs.preallocate(&inode, at, len, keep)?,
            PUNCH_HOLE if keep == KeepSize::Yes => fs.punch_hole(&inode, at, len)?,
            ZERO_RANGE => fs.zero_range(&inode, at, len, keep)?,
            _ => return Err(refused(format!("fallocate with mode {mode:#x}"))),
        }
        fs.flush(&inode)?;
        let size = fs.attr(&inode).size;
        let current = self.file(path)?;
        (current.size, current.plain) = (size, false);
        Ok(())
    }

    /// Hashes all of the file as it is now, and seals it.
    pub(super) fn enable_verity(&mut self, path: &[u8], verity: &Verity<'_>) -> Result<(), ApplyError> {
        let inode = self.file(path)?.inode.clone();
        self.install_for(&inode)?;
        self.fs.enable_verity(&inode, verity)?;
        Ok(())
    }
}
