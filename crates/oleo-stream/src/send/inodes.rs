//! Sends one inode after another: creates new ones, sends contents and attributes.
//!
//! Normal path, after the names (`names`): (1) each inode that is not a directory, in rising order: it is created under
//! its name and gets its further names; (2) properties that change how data is stored; (3) its contents; (4) owner,
//! mode, attributes, flags, times, in this order, since writing and a new owner remove capabilities and set-id bits,
//! and everything changes times. (5) Directories come last, so that new files in them neither inherit what they should
//! not nor change their times.

use std::sync::Arc;

use oleo_format::stream::Command;
use oleo_format::{Corruption, FileExtent, Ino, InodeFlags, ItemType, Key, Timespec};
use oleo_fs::InodeFields;
use oleo_fs::data::unpack_inline;
use oleo_fs::{FileKind, Rdev};
use oleo_txn::CsumCheck;

use super::contents::{Contents, File};
use super::names::{PROTECTED, sent_flags};
use super::walk::{self, Head, InodeVisitor, Part, Sides, Xattr};
use super::{Hook, Progress, SendError};

/// Lost when a file is written or gets another owner.
const CAPABILITY: &[u8] = b"security.capability";
/// Attributes that determine how data is stored.
const PROPERTIES: &[u8] = b"btrfs.";
/// Flags that a file must have before it has data.
const EARLY_FLAGS: InodeFlags =
    InodeFlags::NODATASUM.union(InodeFlags::NODATACOW).union(InodeFlags::COMPRESS).union(InodeFlags::NOCOMPRESS);
/// Inodes between two reports of progress.
const PROGRESS_INODES: u64 = 256;

/// Everything but the contents of the inode that is being sent.
struct Current {
    path: Arc<[u8]>,
    head: Head,
}

/// Sends the inodes that a walk reports.
pub(super) struct Inodes<'i, 'c, 'p, 'e> {
    pub contents: &'i mut Contents<'c, 'p, 'e>,
    sides: &'i Sides<'e>,
    /// The progress function, and the last inode there is.
    progress: Option<(&'i Hook<'i>, u64)>,
    current: Option<Current>,
    /// Directories that differ.
    dirs: Vec<u64>,
    inodes: u64,
}

impl<'i, 'c, 'p, 'e> Inodes<'i, 'c, 'p, 'e> {
    pub fn new(
        contents: &'i mut Contents<'c, 'p, 'e>,
        sides: &'i Sides<'e>,
        progress: Option<(&'i Hook<'i>, u64)>,
    ) -> Inodes<'i, 'c, 'p, 'e> {
        Inodes { contents, sides, progress, current: None, dirs: Vec::new(), inodes: 0 }
    }

    fn emit(&mut self, command: &Command<'_>) -> Result<(), SendError> {
        self.contents.pipe.command(command)
    }

    fn version(&self) -> u32 {
        self.contents.form.version
    }

    fn report(&mut self, ino: u64) -> Result<(), SendError> {
        self.inodes += 1;
        if self.inodes.is_multiple_of(PROGRESS_INODES)
            && let Some((progress, last_inode)) = self.progress
        {
            let now =
                Progress { inodes: self.inodes, at_inode: ino, last_inode, bytes: self.contents.pipe.bytes_written() };
            if progress(&now).is_break() {
                return Err(SendError::Stopped);
            }
        }
        Ok(())
    }

    /// Makes a new inode under all its names.
    fn make(&mut self, head: &Head, path: &[u8]) -> Result<(), SendError> {
        let (ino, mode) = (head.ino, head.now.mode);
        match FileKind::of_mode(mode) {
            FileKind::File => self.emit(&Command::MkFile { path, ino })?,
            FileKind::Fifo => self.emit(&Command::MkFifo { path, ino })?,
            FileKind::Socket => self.emit(&Command::MkSock { path, ino })?,
            FileKind::CharDevice | FileKind::BlockDevice => {
                let rdev = Rdev::of_disk(head.now.rdev).to_stat().into();
                self.emit(&Command::MkNod { path, ino, mode: u64::from(mode), rdev })?;
            }
            FileKind::Symlink => {
                let target = self.link_target(ino, head.now.size)?;
                self.emit(&Command::Symlink { path, ino, target: &target })?;
            }
            FileKind::Dir | FileKind::Unknown => {
                return Err(Corruption::new("inode", "mode", format!("{mode:o}"), "that of a file")
                    .within(format!("inode {ino}"))
                    .into());
            }
        }
        for name in &head.new.names[1..] {
            let link = self.contents.sources.list[0].paths.of_name(name)?;
            self.emit(&Command::Link { path: &link, target: path })?;
        }
        Ok(())
    }

    /// The target of a symbolic link: the bytes in the item up to the size in the inode, or to the first zero byte.
    fn link_target(&self, ino: u64, size: u64) -> Result<Vec<u8>, SendError> {
        let lie = |have: &str| {
            Corruption::new("symbolic link", "target", have, "1 to 4095 bytes in the item")
                .within(format!("inode {ino}"))
        };
        let key = Key::new(ino, ItemType::EXTENT_DATA, 0);
        let item = self.sides.blocks.get(&self.sides.new, &key)?.ok_or_else(|| lie("none"))?;
        let FileExtent::Inline { ram_bytes, compression, data, .. } = FileExtent::parse(&item)? else {
            return Err(lie("an extent on disk").into());
        };
        let sectorsize = self.contents.engine.sectorsize();
        let mut target = unpack_inline(Ino(ino), compression, &data, ram_bytes.0, sectorsize)?;
        target.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        let len = target.iter().position(|&b| b == 0).unwrap_or(target.len());
        target.truncate(len);
        if (1..4096).contains(&target.len()) { Ok(target) } else { Err(lie(&format!("{} bytes", target.len())).into()) }
    }

    /// Removes the attributes that are gone, of those that `which` takes.
    fn gone_xattrs(
        &mut self,
        path: &[u8],
        old: &Part,
        new: &Part,
        which: impl Fn(&[u8]) -> bool,
    ) -> Result<(), SendError> {
        for (name, _) in old.xattrs.iter().filter(|(name, _)| which(name)) {
            if !new.xattrs.iter().any(|(other, _)| other == name) {
                self.emit(&Command::RemoveXattr { path, name })?;
            }
        }
        Ok(())
    }

    /// Sets the attributes that are new or have another value, of those that `which` takes.
    fn new_xattrs(
        &mut self,
        path: &[u8],
        old: &Part,
        new: &Part,
        which: impl Fn(&[u8]) -> bool,
    ) -> Result<(), SendError> {
        for xattr in new.xattrs.iter().filter(|(name, _)| which(name)) {
            if !old.xattrs.contains(xattr) {
                self.set_xattr(path, xattr)?;
            }
        }
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], (name, value): &Xattr) -> Result<(), SendError> {
        let rest = oleo_format::stream::COMMAND_HEAD_LEN + 3 * 4;
        if self.version() == 1 && rest + path.len() + name.len() + value.len() > oleo_format::stream::COMMAND_LEN_MAX_V1
        {
            let text = format!("an attribute of {} bytes does not fit into a stream of version 1", value.len());
            return Err(SendError::refused(oleo_fs::errno::EOVERFLOW, text));
        }
        self.emit(&Command::SetXattr { path, name, value })
    }

    /// Owner, mode, attributes, flags, times.
    fn finish(&mut self, path: &[u8], head: &Head, written: bool) -> Result<(), SendError> {
        let (before, now) = (head.before.as_ref(), &head.now);
        let kind = FileKind::of_mode(now.mode);
        let owner = before.is_none_or(|before| (before.uid, before.gid) != (now.uid, now.gid));
        if owner {
            self.emit(&Command::Chown { path, uid: now.uid.into(), gid: now.gid.into() })?;
        }
        let set_id = now.mode & 0o6000 != 0;
        let mode = before.is_none_or(|before| before.mode != now.mode) || (set_id && (owner || written));
        if mode && kind != FileKind::Symlink {
            self.emit(&Command::Chmod { path, mode: u64::from(now.mode & 0o7777) })?;
        }
        let is_dir = kind == FileKind::Dir;
        // Those of files are removed before the data is written.
        self.gone_xattrs(path, &head.old, &head.new, |_| is_dir)?;
        self.new_xattrs(path, &head.old, &head.new, |name| is_dir || !name.starts_with(PROPERTIES))?;
        let reported = head.new.xattrs.iter().any(|x| x.0 == CAPABILITY && !head.old.xattrs.contains(x));
        if (owner || written)
            && before.is_some()
            && !reported
            && let Some(value) = walk::xattr(self.sides.blocks, &self.sides.new, head.ino, CAPABILITY)?
        {
            self.set_xattr(path, &(CAPABILITY.to_vec(), value))?;
        }
        self.flags(path, before, now)?;
        let time = |t: oleo_fs::Time| Timespec::new(t.sec, t.nsec);
        self.emit(&Command::Utimes {
            path,
            atime: time(now.atime),
            mtime: time(now.mtime),
            ctime: time(now.ctime),
            otime: Some(time(now.otime)),
        })
    }

    fn flags(&mut self, path: &[u8], before: Option<&InodeFields>, now: &InodeFields) -> Result<(), SendError> {
        let flags = InodeFlags::from_bits_retain(now.flags);
        let has = match before.map(|before| InodeFlags::from_bits_retain(before.flags)) {
            // Taken away for the time of the changes.
            Some(before) => before - PROTECTED,
            None => flags & EARLY_FLAGS,
        };
        if self.version() >= 2 && sent_flags(flags) != sent_flags(has) {
            self.emit(&Command::FileAttr { path, attr: sent_flags(flags) })?;
        }
        Ok(())
    }

    /// fs-verity of a file that did not have it.
    fn verity(&mut self, path: &[u8], head: &Head) -> Result<(), SendError> {
        let has = |f: &InodeFields| InodeFlags::from_bits_retain(f.flags).contains(InodeFlags::RO_VERITY);
        if self.version() < 3 || !has(&head.now) || head.before.as_ref().is_some_and(has) {
            return Ok(());
        }
        let descriptor = super::verity::read(self.sides, head.ino)?;
        self.emit(&Command::EnableVerity {
            path,
            algorithm: descriptor.algorithm,
            block_size: descriptor.block_size,
            salt: &descriptor.salt,
            signature: &descriptor.signature,
        })
    }

    /// Directories, when all else is done. `more`: some that do not differ, and lost attributes on the way; `touched`: whose times
    /// changed on the way.
    pub fn directories(&mut self, bare: &[u64], touched: &[u64]) -> Result<(), SendError> {
        let mut dirs = std::mem::take(&mut self.dirs);
        dirs.extend(bare);
        dirs.extend(touched);
        dirs.sort_unstable();
        dirs.dedup();
        for ino in dirs {
            let Some(now) = walk::fields(self.sides.blocks, &self.sides.new, ino)? else { continue };
            let Some(path) = self.contents.sources.list[0].paths.any(ino)? else { continue };
            let new = walk::part(self.sides.blocks, &self.sides.new, ino)?;
            let mut old = Part::default();
            let mut before = None;
            if let Some(root) = &self.sides.old {
                before = walk::fields(self.sides.blocks, root, ino)?
                    .filter(|before| before.generation == now.generation || ino == Ino::ROOT_DIR.0);
                if before.is_some() {
                    old = walk::part(self.sides.blocks, root, ino)?;
                }
            }
            if bare.binary_search(&ino).is_ok() {
                old.xattrs.retain(|(name, _)| !super::names::INHERITED.contains(&name.as_slice()));
            }
            if before.is_none() {
                self.early_flags(&path, &now)?;
            }
            self.finish(&path, &Head { ino, before, now, old, new }, false)?;
            self.report(ino)?;
        }
        Ok(())
    }

    fn early_flags(&mut self, path: &[u8], now: &InodeFields) -> Result<(), SendError> {
        let early = InodeFlags::from_bits_retain(now.flags) & EARLY_FLAGS;
        if self.version() >= 2 && !early.is_empty() {
            self.emit(&Command::FileAttr { path, attr: sent_flags(early) })?;
        }
        Ok(())
    }
}

impl InodeVisitor for Inodes<'_, '_, '_, '_> {
    fn head(&mut self, head: Head) -> Result<bool, SendError> {
        self.report(head.ino)?;
        let kind = FileKind::of_mode(head.now.mode);
        if kind == FileKind::Dir {
            self.dirs.push(head.ino);
            return Ok(false);
        }
        let paths = &mut self.contents.sources.list[0].paths;
        let path = match (&head.before, head.new.names.first()) {
            (None, Some(name)) => Some(paths.of_name(name)?),
            (None, None) => None,
            (Some(_), _) => paths.any(head.ino)?,
        };
        let Some(path) = path else {
            return Err(Corruption::new("inode", "names", "none", "one at least")
                .within(format!("inode {}", head.ino))
                .into());
        };
        let path: Arc<[u8]> = path.into();
        if head.before.is_none() {
            self.make(&head, &path)?;
            self.early_flags(&path, &head.now)?;
        }
        // A receiver that writes to a file, or changes its owner, loses its capabilities, and then cannot remove them.
        self.gone_xattrs(&path, &head.old, &head.new, |_| true)?;
        self.new_xattrs(&path, &head.old, &head.new, |name| name.starts_with(PROPERTIES))?;
        if kind != FileKind::File {
            self.finish(&path, &head, false)?;
            return Ok(false);
        }
        let no_sums = InodeFlags::from_bits_retain(head.now.flags).contains(InodeFlags::NODATASUM);
        self.contents.begin(File {
            ino: head.ino,
            path: path.clone(),
            size_before: head.before.map_or(0, |before| before.size),
            size: head.now.size,
            check: if no_sums { CsumCheck::Skip } else { CsumCheck::Verify },
        })?;
        self.current = Some(Current { path, head });
        Ok(true)
    }

    fn extent(&mut self, at: u64, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), SendError> {
        self.contents.extent(at, old, new)
    }

    fn end(&mut self) -> Result<(), SendError> {
        let written = self.contents.end()?;
        let Some(Current { path, head }) = self.current.take() else { return Ok(()) };
        self.verity(&path, &head)?;
        self.finish(&path, &head, written)
    }
}
