//! Finding inodes by name: entries, paths, parents, symbolic links.

use std::sync::Arc;

use oleo_format::{Ino, ItemType, TreeId};

use crate::FsError;
use crate::attributes::{Attr, FileKind};
use crate::fs::Fs;
use crate::items::dir::{self, DirEntryInfo, Target};
use crate::items::refs::{self, NameOf};
use crate::names::{RETRIES_MAX, TARGET_MAX};
use crate::object::{Inode, InodeFields, InodeRef, Items, ReadGuard};

/// Symbolic links that one path may go through (what Linux allows).
const SYMLINKS_MAX: usize = 40;
/// Bytes of a path, all links' targets included: 40 links of 4 KiB.
const PATH_MAX: usize = 41 * 4096;
/// Directories from an inode to its root, at most: as deep as a path can be.
const DEPTH_MAX: usize = 4096;
/// Bytes of all paths of an inode, at most.
const PATHS_BYTES_MAX: usize = 64 << 20;
/// Permissions of the empty directory in place of a subvolume that is elsewhere.
const EMPTY_SUBVOL_DIR_MODE: u32 = 0o040_755;

/// Whether the last part of a path may be a symbolic link that is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Follow {
    /// It is followed.
    #[default]
    Yes,
    /// The link itself is meant.
    No,
}

impl Fs {
    /// The inode that an entry leads to. Steps into subvolumes; an entry for one that no ROOT_REF confirms leads to an empty
    /// directory.
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>, FsError> {
        Ok(self.lookup_as(dir, name, |_, _| ())?.map(|found| found.0))
    }

    /// The same, with the inode's attributes.
    pub fn lookup_with_attr(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<(InodeRef, Attr)>, FsError> {
        self.lookup_as(dir, name, |inode, guard| Attr::of(inode, &crate::data::shown(guard)))
    }

    /// The same, with what `see` makes of the inode while it is locked.
    fn lookup_as<R>(
        &self,
        dir: &InodeRef,
        name: &[u8],
        see: impl Fn(&InodeRef, &ReadGuard<'_>) -> R,
    ) -> Result<Option<(InodeRef, R)>, FsError> {
        for _ in 0..RETRIES_MAX {
            let place = {
                let guard = dir.read();
                guard.alive()?;
                if guard.fields().kind() != FileKind::Dir {
                    return Err(FsError::NotDir);
                }
                if name.len() > dir::NAME_MAX {
                    return Err(FsError::NameTooLong);
                }
                dir::Place::seen(&guard, name)?
            };
            let Some(target) = place.target() else { return Ok(None) };
            match target {
                Target::Subvol(id) => {
                    let root = self.enter_subvol(dir, name, id)?;
                    let seen = see(&root, &root.read());
                    return Ok(Some((root, seen)));
                }
                Target::Inode(ino) => {
                    if let Some(inode) = self.core().inode(dir.subvol(), ino)? {
                        let inode = InodeRef::new(inode);
                        let guard = inode.read();
                        if guard.alive().is_ok() {
                            let seen = see(&inode, &guard);
                            drop(guard);
                            return Ok(Some((inode, seen)));
                        }
                    }
                    self.check_dangling(dir, name, target)?;
                }
            }
        }
        Err(FsError::Busy("the directory keeps changing"))
    }

    /// The inode that an entry of a listing leads to, if it is still there.
    pub fn open_entry(&self, dir: &InodeRef, entry: &DirEntryInfo) -> Result<Option<InodeRef>, FsError> {
        match entry.target {
            Target::Inode(ino) => self.core().handle(dir.subvol(), ino),
            Target::Subvol(id) => self.enter_subvol(dir, &entry.name, id).map(Some),
        }
    }

    fn enter_subvol(&self, dir: &InodeRef, name: &[u8], id: TreeId) -> Result<InodeRef, FsError> {
        if self.is_subvol_here(dir, name, id)? {
            return self.root(id);
        }
        let parent = *dir.read().fields();
        let fields = InodeFields {
            generation: parent.generation,
            nlink: 1,
            mode: EMPTY_SUBVOL_DIR_MODE,
            atime: parent.mtime,
            ctime: parent.mtime,
            mtime: parent.mtime,
            otime: parent.mtime,
            ..InodeFields::default()
        };
        Ok(InodeRef::new(Arc::new(Inode::new_empty_subvol_dir(dir.subvol(), fields))))
    }

    /// The directory that a directory is in, across subvolumes; `None` at the top.
    pub fn parent(&self, dir: &InodeRef) -> Result<Option<InodeRef>, FsError> {
        match self.parent_of(dir.tree(), dir.ino())? {
            None => Ok(None),
            Some((tree, ino)) => self.inode(&self.subvol(tree)?, ino).map(Some),
        }
    }

    pub(crate) fn parent_of(&self, tree: TreeId, ino: Ino) -> Result<Option<(TreeId, Ino)>, FsError> {
        if ino == Ino::ROOT_DIR {
            return Ok(self.root_backref(tree)?.map(|(parent, r)| (parent, r.dirid)));
        }
        let subvol = self.subvol(tree)?;
        let Some(inode) = self.core().inode(&subvol, ino)? else { return Ok(None) };
        let guard = inode.read();
        match refs::parent(&guard)? {
            Some(parent) => Ok(Some((tree, parent))),
            None if guard.fields().nlink == 0 => Ok(None),
            None => Err(FsError::corrupt("inode", ino, "names", "none", "one at least")),
        }
    }

    /// All names of an inode within its subvolume.
    pub fn names(&self, inode: &InodeRef) -> Result<Vec<NameOf>, FsError> {
        let guard = inode.read();
        guard.alive()?;
        refs::all(&guard)
    }

    /// All paths of an inode from the top level, without a leading slash.
    pub fn paths(&self, inode: &InodeRef) -> Result<Vec<Vec<u8>>, FsError> {
        let subvol = self.subvol_info(inode.tree())?.path;
        if inode.ino() == Ino::ROOT_DIR {
            return Ok(vec![subvol]);
        }
        let mut paths = Vec::new();
        let mut bytes = 0;
        for name in self.names(inode)? {
            let mut parts = vec![name.name];
            let mut dir = name.parent;
            for _ in 0..DEPTH_MAX {
                if dir == Ino::ROOT_DIR {
                    break;
                }
                let inode = self.inode(inode.subvol(), dir)?;
                let name = self.names(&inode)?.into_iter().next().ok_or(FsError::NotFound)?;
                dir = name.parent;
                parts.push(name.name);
            }
            if !subvol.is_empty() {
                parts.push(subvol.clone());
            }
            parts.reverse();
            let path = parts.join(&b'/');
            bytes += path.len();
            if dir != Ino::ROOT_DIR || bytes > PATHS_BYTES_MAX {
                return Err(FsError::Overflow("its names are too many, or too deep"));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    /// The inode at a path. A leading slash, and links to absolute paths, start at the root directory of the
    /// subvolume that `start` is in, which ".." does not leave.
    pub fn resolve(&self, start: &InodeRef, path: &[u8], follow: Follow) -> Result<InodeRef, FsError> {
        let root = self.root(start.tree())?;
        let mut at = if path.first() == Some(&b'/') { root.clone() } else { start.clone() };
        let mut rest: Vec<Vec<u8>> = parts(path);
        let mut links = 0;
        let mut bytes = path.len();
        while let Some(part) = rest.pop() {
            match part.as_slice() {
                b"." => {
                    if at.read().fields().kind() != FileKind::Dir {
                        return Err(FsError::NotDir);
                    }
                    continue;
                }
                b".." => {
                    if at.read().fields().kind() != FileKind::Dir {
                        return Err(FsError::NotDir);
                    }
                    if !at.same(&root)
                        && let Some(parent) = self.parent(&at)?
                    {
                        at = parent;
                    }
                    continue;
                }
                _ => {}
            }
            let next = self.lookup(&at, &part)?.ok_or(FsError::NotFound)?;
            let is_link = next.read().fields().kind() == FileKind::Symlink;
            if !is_link || (rest.is_empty() && follow == Follow::No) {
                at = next;
                continue;
            }
            links += 1;
            let target = self.read_link(&next)?;
            bytes += target.len();
            if links > SYMLINKS_MAX || bytes > PATH_MAX {
                return Err(FsError::TooManySymlinks);
            }
            if target.first() == Some(&b'/') {
                at = root.clone();
            }
            rest.extend(parts(&target));
        }
        Ok(at)
    }

    /// The target of a symbolic link: its content up to the size in the inode, or to the first zero byte. There may be more in
    /// the item than that.
    pub fn read_link(&self, link: &InodeRef) -> Result<Vec<u8>, FsError> {
        let size = {
            let guard = link.read();
            guard.alive()?;
            if guard.fields().kind() != FileKind::Symlink {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            guard.fields().size
        };
        let mut target = vec![0; size.min(TARGET_MAX as u64) as usize];
        self.read(link, 0, &mut target)?;
        let len = target.iter().position(|&b| b == 0).unwrap_or(target.len());
        target.truncate(len);
        if target.is_empty() {
            let at = link.key(ItemType::EXTENT_DATA, 0);
            return Err(FsError::corrupt("symbolic link", at, "target", "none", "1 byte at least"));
        }
        Ok(target)
    }
}

/// The parts of a path, the first one last.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = path.split(|b| *b == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect();
    if path.last() == Some(&b'/') {
        // "dir/" is "dir/.": it must be a directory, and a link to one is followed.
        parts.push(b".".to_vec());
    }
    parts.reverse();
    parts
}
