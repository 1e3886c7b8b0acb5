//! From paths to inodes, within one subvolume, with a cache of directories.

use std::collections::BTreeMap;
use std::ops::Bound;

use oleo_fs::{Fs, FsError, InodeRef};

use super::super::ApplyError;
use super::super::paths::{is_within, split};

/// Directories that are remembered.
const DIRS_MAX: usize = 16 * 1024;
/// Longer paths are not remembered, so that a deep one does not take memory by the square of its length.
const PATH_LEN_MAX: usize = 4096;

/// Finds inodes of one subvolume.
pub(super) struct Finder {
    root: InodeRef,
    dirs: BTreeMap<Box<[u8]>, InodeRef>,
    /// The last one that was found for reading.
    last: Option<(Box<[u8]>, InodeRef)>,
}

impl Finder {
    pub fn new(root: InodeRef) -> Finder {
        Finder { root, dirs: BTreeMap::new(), last: None }
    }

    /// Finds the inode at a path; follows no link and enters no other subvolume.
    pub fn find(&mut self, fs: &Fs, path: &[u8]) -> Result<InodeRef, ApplyError> {
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        let (dir, name) = split(path);
        let dir = self.dir(fs, dir)?;
        self.enter(fs, &dir, name)
    }

    /// The same for a path that is used repeatedly.
    pub fn find_again(&mut self, fs: &Fs, path: &[u8]) -> Result<InodeRef, ApplyError> {
        if let Some((known, inode)) = &self.last
            && **known == *path
        {
            return Ok(inode.clone());
        }
        let inode = self.find(fs, path)?;
        self.last = Some((path.into(), inode.clone()));
        Ok(inode)
    }

    /// The directory at a path.
    pub fn dir(&mut self, fs: &Fs, path: &[u8]) -> Result<InodeRef, ApplyError> {
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        if let Some(dir) = self.dirs.get(path) {
            return Ok(dir.clone());
        }
        // Begins with the longest known prefix of the path.
        let mut known = split(path).0;
        while !known.is_empty() && !self.dirs.contains_key(known) {
            known = split(known).0;
        }
        let mut at = self.dirs.get(known).unwrap_or(&self.root).clone();
        let mut end = known.len();
        while end < path.len() {
            let start = if end == 0 { 0 } else { end + 1 };
            end = path[start..].iter().position(|b| *b == b'/').map_or(path.len(), |len| start + len);
            at = self.enter(fs, &at, &path[start..end])?;
            self.note(&path[..end], &at);
        }
        Ok(at)
    }

    fn enter(&self, fs: &Fs, dir: &InodeRef, name: &[u8]) -> Result<InodeRef, ApplyError> {
        let next = fs.lookup(dir, name)?.ok_or(FsError::NotFound)?;
        if next.tree() != self.root.tree() || next.is_empty_subvol_dir() {
            return Err(FsError::CrossSubvolume.into());
        }
        Ok(next)
    }

    fn note(&mut self, path: &[u8], dir: &InodeRef) {
        if path.len() > PATH_LEN_MAX {
            return;
        }
        if self.dirs.len() >= DIRS_MAX {
            self.dirs.clear();
        }
        self.dirs.insert(path.into(), dir.clone());
    }

    /// Forgets a path whose inode has changed, and everything below it.
    pub fn forget(&mut self, path: &[u8]) {
        if self.last.as_ref().is_some_and(|(known, _)| is_within(known, path)) {
            self.last = None;
        }
        self.dirs.remove(path);
        // Paths below it begin with it and a slash, so they are adjacent.
        let below = [path, b"/"].concat().into_boxed_slice();
        loop {
            let first = self.dirs.range::<[u8], _>((Bound::Included(&*below), Bound::Unbounded)).next();
            let Some(found) = first.map(|(known, _)| known.clone()).filter(|known| known.starts_with(&below)) else {
                return;
            };
            self.dirs.remove(&found);
        }
    }
}
