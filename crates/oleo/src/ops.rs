//! Operations on files by path: put, remove, copy, rename, link.
//!
//! Each call is complete when it returns, but durable only after [`Image::sync`](crate::Image::sync). Paths are resolved
//! from a start directory; a target that is a directory means "into it, under the same name", as with cp and mv.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;

use oleo_format::Corruption;
use oleo_fs::data::CloneRange;
use oleo_fs::{
    Attr, Descent, DirEntryInfo, FileKind, Follow, Fs, FsError, InodeRef, NewInode, NewKind, RenameMode, SetAttr,
    Target, Times, XattrMode,
};
use oleo_mkfs::{FillOptions, Report, fill_from_dir};

use crate::error::AtPlace;
use crate::{Error, Hint, Image, ImagePath, Result};

/// Bytes copied at a time.
const STEP_BYTES: usize = 4 << 20;
/// Entries of a directory that are read at a time.
const ENTRIES_AT_ONCE: usize = 1024;
/// Entries that a directory keeps while what is in one of them is handled: this divided by its depth. The others are read again.
const SET_ASIDE_MAX: usize = 16 << 10;

/// The entries of a directory, which are read many at a time and handled one by one.
#[derive(Default)]
struct Listing {
    read: VecDeque<DirEntryInfo>,
    /// The index of the last entry that was returned.
    after: u64,
}

impl Listing {
    /// The next entry behind those that were returned.
    fn next(&mut self, fs: &Fs, dir: &InodeRef) -> Result<Option<DirEntryInfo>> {
        if self.read.is_empty() {
            self.read.extend(fs.readdir(dir, self.after, ENTRIES_AT_ONCE)?);
        }
        let entry = self.read.pop_front();
        self.after = entry.as_ref().map_or(self.after, |entry| entry.index);
        Ok(entry)
    }

    /// Begins anew at the end of the directory; whether there was anything before.
    fn rewind(&mut self) -> bool {
        std::mem::take(&mut self.after) > 0
    }

    /// Keeps memory bounded while a directory in it is handled.
    fn set_aside(&mut self, depth: usize) {
        self.read.truncate(SET_ASIDE_MAX / depth.max(1));
    }
}

/// Whether to include the contents of directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Depth {
    /// Only what is named; a directory is refused.
    #[default]
    One,
    /// A directory with everything in it.
    Tree,
}

/// How data is copied inside an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// Bytes are written again.
    #[default]
    Copy,
    /// The copy shares the extents of the original.
    Reflink,
}

fn shown(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}

fn is_directory(path: &[u8]) -> Error {
    Error::refused(oleo_fs::errno::EISDIR, format!("{} is a directory", shown(path))).with_hint(Hint::IncludeContents)
}

impl Image {
    /// Where a new name goes: `path` itself, or, if there is a directory, `path/name`.
    fn target<'p>(&self, start: &InodeRef, path: &'p [u8], name: &'p [u8]) -> Result<(InodeRef, &'p [u8])> {
        match self.fs().resolve(start, path, Follow::Yes) {
            Ok(inode) if self.fs().attr(&inode).kind == FileKind::Dir => Ok((inode, name)),
            Ok(_) | Err(FsError::NotFound) => self.find_parent(start, path),
            Err(error) => Err(Error::from(error).at(shown(path))),
        }
    }

    /// Makes an empty regular file, or empties the one that is there.
    fn emptied(&self, dir: &InodeRef, name: &[u8], attr: &NewInode<'_>) -> Result<InodeRef> {
        match self.fs().lookup(dir, name)? {
            None => Ok(self.fs().create(dir, name, attr)?),
            Some(inode) if self.fs().attr(&inode).kind == FileKind::File => {
                self.fs().truncate(&inode, 0)?;
                Ok(inode)
            }
            Some(_) => Err(FsError::Exists.into()),
        }
    }

    /// Writes a stream into a regular file, made or replaced.
    ///
    /// # Errors
    /// The stream cannot be read, or there is no room.
    pub fn put_stream(
        &self,
        start: &InodeRef,
        mut stream: impl Read,
        path: impl ImagePath,
        new: &NewInode<'_>,
    ) -> Result<u64> {
        let path = path.path_bytes();
        let (dir, name) = self.find_parent(start, path)?;
        let inode = self.emptied(&dir, name, new).at(|| shown(path))?;
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        loop {
            let mut have = 0;
            while have < buffer.len() {
                match stream.read(&mut buffer[have..]).map_err(Error::host("read", "the input"))? {
                    0 => break,
                    n => have += n,
                }
            }
            if have == 0 {
                return Ok(at);
            }
            self.fs().write(&inode, at, &buffer[..have]).at(|| shown(path))?;
            at += have as u64;
        }
    }

    /// Copies a file or directory of the host into the image, with owners, modes, times and attributes.
    ///
    /// # Errors
    /// The source cannot be read, the name is taken by something of another kind, or there is no room.
    pub fn put(
        &self,
        start: &InodeRef,
        source: impl AsRef<Path>,
        path: impl ImagePath,
        options: &FillOptions,
    ) -> Result<Report> {
        let (source, path) = (source.as_ref(), path.path_bytes());
        let name = source.file_name().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
        let (dir, name) = self.target(start, path, &name)?;
        let meta = std::fs::symlink_metadata(source).map_err(Error::host("read", source))?;
        if meta.is_dir() {
            let into = match self.fs().lookup(&dir, name)? {
                Some(inode) => inode,
                None => self.fs().create(&dir, name, &NewInode::new(NewKind::Dir, 0o755)).at(|| shown(path))?,
            };
            return Ok(fill_from_dir(self.fs(), &into, source, options)?);
        }
        if self.fs().lookup(&dir, name)?.is_some() {
            self.fs().unlink(&dir, name).at(|| shown(path))?;
        }
        Ok(oleo_mkfs::fill_one(self.fs(), &dir, name, source, options)?)
    }

    /// Removes a name; with [`Depth::Tree`] a directory with everything below, nested subvolumes included.
    ///
    /// # Errors
    /// There is nothing of that name, or it is a directory and only one thing shall go.
    pub fn remove(&self, start: &InodeRef, path: impl ImagePath, depth: Depth) -> Result<()> {
        self.remove_as(start, path.path_bytes(), depth, |_, _| Ok(None))
    }

    /// The same, also of a name that its directory lists but does not find, which damage leaves. If the name is not found, it goes through the whole
    /// directory.
    ///
    /// # Errors
    /// Those of [`remove`](Image::remove).
    pub fn remove_listed(&self, start: &InodeRef, path: impl ImagePath, depth: Depth) -> Result<()> {
        self.remove_as(start, path.path_bytes(), depth, |dir, name| self.fs().listed(dir, name))
    }

    fn remove_as(
        &self,
        start: &InodeRef,
        path: &[u8],
        depth: Depth,
        listed: impl Fn(&InodeRef, &[u8]) -> std::result::Result<Option<DirEntryInfo>, FsError>,
    ) -> Result<()> {
        let (dir, name) = self.find_parent(start, path)?;
        let found = match self.fs().lookup(&dir, name) {
            // An entry whose inode is missing.
            Err(FsError::Corruption(_)) => None,
            Ok(None) => {
                let entry = listed(&dir, name).and_then(|entry| entry.ok_or(FsError::NotFound)).at(|| shown(path))?;
                self.fs().open_entry(&dir, &entry)?
            }
            found => found.at(|| shown(path))?,
        };
        let kind = found.as_ref().map(|inode| self.fs().attr(inode).kind);
        if kind.is_none_or(|kind| kind != FileKind::Dir) {
            match self.fs().remove_entry(&dir, name, false) {
                // The entry of a directory that is missing.
                Err(FsError::IsDir) if kind.is_none() && depth == Depth::Tree => {
                    return self.fs().remove_entry(&dir, name, true).at(|| shown(path));
                }
                removed => return removed.at(|| shown(path)),
            }
        }
        let Some(inode) = found.filter(|_| depth == Depth::Tree) else { return Err(is_directory(path)) };
        // Each step goes one directory down, or removes one entry: nothing is held but the way down, and entries that were read.
        let mut descent = Descent::new(&inode);
        let mut way = vec![(dir, name.to_vec(), inode, Listing::default())];
        while let Some((parent, name, dir, listing)) = way.last_mut() {
            let entry = match listing.next(self.fs(), dir)? {
                Some(entry) => entry,
                // There may be new ones.
                None if listing.rewind() => continue,
                None => match self.fs().remove_entry(parent, name, true) {
                    Err(FsError::NotEmpty) if let Ok(Some(unlisted)) = self.fs().unlisted(dir) => unlisted,
                    removed => {
                        removed.at(|| shown(name))?;
                        way.pop();
                        continue;
                    }
                },
            };
            if entry.kind != FileKind::Dir {
                self.fs().remove_entry(dir, &entry.name, false).at(|| shown(&entry.name))?;
                continue;
            }
            // By its name, as every other program: damage may have changed where the list leads.
            let child = match self.fs().lookup(dir, &entry.name) {
                Ok(Some(found)) => Some(found),
                _ => self.fs().open_entry(dir, &entry)?,
            };
            let Some(child) = child else {
                self.fs().remove_entry(dir, &entry.name, true).at(|| shown(&entry.name))?;
                continue;
            };
            descent.enter(self.fs(), dir, &entry.name, &child).at(|| shown(&entry.name))?;
            let dir = dir.clone();
            let depth = way.len();
            if let Some((.., listing)) = way.last_mut() {
                listing.set_aside(depth);
            }
            way.push((dir, entry.name, child, Listing::default()));
        }
        Ok(())
    }

    /// Renames or moves within the image; a file of the new name is replaced.
    ///
    /// # Errors
    /// The new place is in another subvolume, or holds something that cannot be replaced.
    pub fn rename(&self, start: &InodeRef, from: impl ImagePath, to: impl ImagePath) -> Result<()> {
        let (from, to) = (from.path_bytes(), to.path_bytes());
        let (from_dir, from_name) = self.find_parent(start, from)?;
        let (to_dir, to_name) = self.target(start, to, from_name)?;
        self.fs().rename(&from_dir, from_name, &to_dir, to_name, RenameMode::Replace).at(|| shown(from))
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// The new name is taken, or in another subvolume.
    pub fn hard_link(&self, start: &InodeRef, file: impl ImagePath, path: impl ImagePath) -> Result<()> {
        let (file, path) = (file.path_bytes(), path.path_bytes());
        let inode = self.fs().resolve(start, file, Follow::No).at(|| shown(file))?;
        let name = file.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let (dir, name) = self.target(start, path, name)?;
        self.fs().link(&inode, &dir, name).at(|| shown(path))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The name is taken.
    pub fn symlink(&self, start: &InodeRef, target: impl ImagePath, path: impl ImagePath) -> Result<()> {
        let (target, path) = (target.path_bytes(), path.path_bytes());
        let name = target.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let (dir, name) = self.target(start, path, name)?;
        self.fs().create(&dir, name, &NewInode::new(NewKind::Symlink(target), 0o777)).at(|| shown(path))?;
        Ok(())
    }

    /// Copies within the image, attributes included.
    ///
    /// # Errors
    /// The new name is taken by something of another kind, or there is no room.
    pub fn copy(
        &self,
        start: &InodeRef,
        from: impl ImagePath,
        to: impl ImagePath,
        depth: Depth,
        sharing: Sharing,
    ) -> Result<()> {
        let (from, to) = (from.path_bytes(), to.path_bytes());
        let inode = self.fs().resolve(start, from, Follow::No).at(|| shown(from))?;
        let name = from.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or_default();
        let (dir, name) = self.target(start, to, name)?;
        let attr = self.fs().attr(&inode);
        if attr.kind != FileKind::Dir {
            return self.copy_one(&inode, &attr, &dir, name, sharing).at(|| shown(from));
        }
        if depth == Depth::One {
            return Err(is_directory(from));
        }
        self.copy_tree(inode, &dir, name, sharing).at(|| shown(from))
    }

    fn copy_tree(&self, from: InodeRef, dir: &InodeRef, name: &[u8], sharing: Sharing) -> Result<()> {
        let made = self.copy_dir(&from, dir, name)?;
        if self.is_inside(dir, &from)? {
            return Err(Error::refused(oleo_fs::errno::EINVAL, "a directory cannot be copied into itself"));
        }
        let mut descent = Descent::new(&from);
        let mut open = vec![(from, made, Listing::default())];
        while let Some((from, to, listing)) = open.last_mut() {
            let Some(entry) = listing.next(self.fs(), from)? else {
                // New entries have changed its times.
                let times = only_times(&self.fs().attr(from));
                self.fs().set_attr(to, &times)?;
                open.pop();
                continue;
            };
            let Some(child) = self.fs().open_entry(from, &entry)? else { continue };
            if entry.kind != FileKind::Dir {
                self.copy_one(&child, &self.fs().attr(&child), to, &entry.name, sharing)?;
                continue;
            }
            descent.enter(self.fs(), from, &entry.name, &child).at(|| shown(&entry.name))?;
            let made = self.copy_dir(&child, to, &entry.name)?;
            let depth = open.len();
            if let Some((.., listing)) = open.last_mut() {
                listing.set_aside(depth);
            }
            open.push((child, made, Listing::default()));
        }
        Ok(())
    }

    fn is_inside(&self, dir: &InodeRef, of: &InodeRef) -> Result<bool> {
        /// Directories from anything up to the top level, at most.
        const DEPTH_MAX: usize = 1 << 16;
        let mut at = dir.clone();
        for _ in 0..DEPTH_MAX {
            if at.tree() == of.tree() && at.ino() == of.ino() {
                return Ok(true);
            }
            let Some(parent) = self.fs().parent(&at)? else { return Ok(false) };
            at = parent;
        }
        let lie = Corruption::new("directory", "depth", "endless", "a way to the top level").within(dir.ino());
        Err(FsError::Corruption(lie).into())
    }

    fn copy_dir(&self, from: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        let attr = self.fs().attr(from);
        let made = self.fs().create(dir, name, &new_like(NewKind::Dir, &attr))?;
        self.copy_xattrs(from, &made)?;
        Ok(made)
    }

    fn copy_xattrs(&self, from: &InodeRef, to: &InodeRef) -> Result<()> {
        for (name, value) in self.fs().xattrs(from)? {
            self.fs().xattr_set(to, &name, &value, XattrMode::Any)?;
        }
        Ok(())
    }

    fn copy_one(&self, from: &InodeRef, attr: &Attr, dir: &InodeRef, name: &[u8], sharing: Sharing) -> Result<()> {
        let target;
        let kind = match attr.kind {
            FileKind::File => NewKind::File,
            FileKind::Symlink => {
                target = self.fs().read_link(from)?;
                NewKind::Symlink(&target)
            }
            FileKind::CharDevice => NewKind::CharDevice(attr.rdev),
            FileKind::BlockDevice => NewKind::BlockDevice(attr.rdev),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            _ => return Err(Error::refused(oleo_fs::errno::EOPNOTSUPP, "an unknown kind of file")),
        };
        let new = new_like(kind, attr);
        let to = match kind {
            NewKind::File => self.emptied(dir, name, &new)?,
            _ => self.fs().create(dir, name, &new)?,
        };
        if to.tree() == from.tree() && to.ino() == from.ino() {
            return Err(Error::refused(oleo_fs::errno::EINVAL, "source and target are the same file"));
        }
        self.copy_xattrs(from, &to)?;
        if attr.kind == FileKind::File {
            match sharing {
                Sharing::Reflink => self.fs().clone_range(from, &to, &CloneRange { from: 0, to: 0, len: 0 })?,
                Sharing::Copy => self.copy_data(from, &to, attr.size)?,
            }
            self.fs().truncate(&to, attr.size)?;
            self.fs().flush(&to)?;
        }
        self.fs().set_attr(&to, &only_times(attr))?;
        Ok(())
    }

    fn copy_data(&self, from: &InodeRef, to: &InodeRef, size: u64) -> Result<()> {
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        while let Some(data) = self.fs().seek_data(from, at)?.filter(|&data| data < size) {
            let hole = self.fs().seek_hole(from, data)?.unwrap_or(size).min(size);
            at = data;
            while at < hole {
                let want = buffer.len().min(usize::try_from(hole - at).unwrap_or(usize::MAX));
                let n = self.fs().read(from, at, &mut buffer[..want])?;
                if n == 0 {
                    return Ok(());
                }
                self.fs().write(to, at, &buffer[..n])?;
                at += n as u64;
            }
        }
        Ok(())
    }

    /// Whether a listing's entry leads into another subvolume.
    pub fn is_subvol_entry(entry: &oleo_fs::DirEntryInfo) -> bool {
        matches!(entry.target, Target::Subvol(_))
    }
}

fn new_like<'a>(kind: NewKind<'a>, attr: &Attr) -> NewInode<'a> {
    let times = Times { atime: attr.atime, mtime: attr.mtime, ctime: attr.ctime, otime: attr.otime };
    NewInode::new(kind, attr.mode & 0o7777).uid(attr.uid).gid(attr.gid).times(Some(times)).plain(true)
}

fn only_times(attr: &Attr) -> SetAttr {
    SetAttr::default().atime(Some(attr.atime)).mtime(Some(attr.mtime))
}
