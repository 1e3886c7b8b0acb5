//! Requests that turn numbers into names: what is new in a subvolume, which files are at an address, the paths of an inode.

use oleo_format::{Ino, Logical};
use oleo_fs::{FsError, InodeRef};

use super::Executor;
use crate::SubvolRef;
use crate::control::bytes::Bytes;
use crate::control::error::Error;
use crate::control::reply::{NewPart, Place, Reply};

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
        if paths {
            return Ok(Reply::Places(self.image.files_at(at)?));
        }
        let found = oleo_jobs::referrers(self.image.fs(), at)?.into_iter();
        Ok(Reply::Places(found.map(Place::from).collect()))
    }
}
