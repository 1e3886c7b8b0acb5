//! Requests that turn numbers into names: what is new in a subvolume, which files are at an address, the paths of an inode.

use oleo_format::{Ino, Logical};
use oleo_fs::{Fs, FsError, InodeRef, errno};

use super::Executor;
use crate::control::bytes::Bytes;
use crate::control::error::Error;
use crate::control::reply::{NewPart, Place, Reply};
use crate::control::wire::REPLY_MAX;
use crate::{Image, SubvolRef};

impl Executor<'_> {
    pub(super) fn find_new(&self, which: &SubvolRef, since: u64) -> Result<Reply, Error> {
        let fs = self.image.fs();
        let root = self.subvol(which)?;
        self.caller.must_be_privileged("list what is new")?;
        let found = oleo_jobs::find_new(fs, root.tree(), since)?;
        let mut known: Option<(Ino, Bytes)> = None;
        let mut parts = Vec::with_capacity(found.extents.len());
        for extent in found.extents {
            let path = match &known {
                Some((ino, path)) if *ino == extent.ino => path.clone(),
                _ => self.first_path(&root, extent.ino)?,
            };
            known = Some((extent.ino, path.clone()));
            parts.push(NewPart { extent, path });
        }
        Ok(Reply::New { parts, marker: found.marker })
    }

    /// A path of a file in the subvolume that `root` is of; empty where it has none any more.
    pub(super) fn first_path(&self, root: &InodeRef, ino: Ino) -> Result<Bytes, Error> {
        match self.image.fs().inode(root.subvol(), ino) {
            Ok(inode) => Ok(self.image.paths(&inode)?.into_iter().next().unwrap_or_default().into()),
            Err(FsError::NotFound | FsError::Stale) => Ok(Bytes::default()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn places(&self, at: Logical, paths: bool) -> Result<Reply, Error> {
        let fs = self.image.fs();
        let mut places = Vec::new();
        for found in oleo_jobs::referrers(fs, at)? {
            let mut place = Place { tree: found.tree, ino: found.ino, at: found.at, paths: Vec::new() };
            if paths {
                // Deleted subvolumes that are not gone yet have no names.
                match fs.subvol(found.tree).and_then(|subvol| fs.inode(&subvol, found.ino)) {
                    Ok(inode) => place.paths = self.image.paths(&inode)?.into_iter().map(Into::into).collect(),
                    Err(FsError::NotFound | FsError::Stale) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            places.push(place);
        }
        Ok(Reply::Places(places))
    }
}

impl Image {
    /// All paths of an inode from the top level, without a leading slash.
    ///
    /// # Errors
    /// The inode is gone, or the image is damaged.
    pub fn paths(&self, inode: &InodeRef) -> crate::Result<Vec<Vec<u8>>> {
        paths(self.fs(), inode)
    }
}

/// The same of any file system.
pub(crate) fn paths(fs: &Fs, inode: &InodeRef) -> crate::Result<Vec<Vec<u8>>> {
    /// Directories on the way up, at most: as deep as a path can be.
    const DEPTH_MAX: usize = 4096;
    let subvol = fs.subvol_info(inode.tree())?.path;
    let mut paths = Vec::new();
    let mut bytes = 0;
    let too_many = || Error::refused(errno::EOVERFLOW, "its names are too many, or too deep");
    if inode.ino() == Ino::ROOT_DIR {
        return Ok(vec![subvol]);
    }
    for name in fs.names(inode)? {
        let mut parts = vec![name.name];
        let mut dir = name.parent;
        for _ in 0..DEPTH_MAX {
            if dir == Ino::ROOT_DIR {
                break;
            }
            let inode = fs.inode(inode.subvol(), dir)?;
            let Some(name) = fs.names(&inode)?.into_iter().next() else {
                return Err(FsError::NotFound.into());
            };
            dir = name.parent;
            parts.push(name.name);
        }
        if dir != Ino::ROOT_DIR {
            return Err(too_many().into());
        }
        if !subvol.is_empty() {
            parts.push(subvol.clone());
        }
        parts.reverse();
        let path = parts.join(&b'/');
        bytes += path.len();
        if bytes > REPLY_MAX {
            return Err(too_many().into());
        }
        paths.push(path);
    }
    Ok(paths)
}
