//! An open file system: what all operations on files and names begin with.
//!
//! Operations are added to [`Fs`] in the rooms they belong to: `names`, `attributes`, `data`, `subvolumes`, `log`.
//!
//! Locks: see `object`. Crash: what was not committed is lost, whole operations at a time.

use std::sync::Arc;

use oleo_format::{Ino, TreeId};
use oleo_txn::{DeltaSource, Engine};

use crate::FsError;
use crate::object::{Core, Inode, InodeRef, Subvol};
use crate::options::FsOptions;

/// An open file system. Clones are the same one.
#[derive(Clone)]
pub struct Fs(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl Fs {
    /// Opens the files of a volume.
    pub fn open(engine: Engine, opts: &FsOptions) -> Result<Fs, FsError> {
        let core = Arc::new(Core::new(engine, opts.clone()));
        let source: Arc<dyn DeltaSource> = core.clone();
        core.engine().set_source(Arc::downgrade(&source));
        Ok(Fs(Arc::new(Inner { core })))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// How many inodes are in memory.
    pub fn inodes_in_memory(&self) -> usize {
        self.core().cache.len()
    }

    /// Drops inodes beyond [`FsOptions::inodes_max`] from memory that nobody holds any more; commits do that, too.
    pub fn shed(&self) {
        self.core().cache.shed();
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        self.0.core.engine()
    }

    /// How it was opened.
    pub fn options(&self) -> &FsOptions {
        &self.0.core.opts
    }

    /// The subvolume of that number.
    pub fn subvol(&self, id: TreeId) -> Result<Arc<Subvol>, FsError> {
        self.core().subvol(id)
    }

    /// The root directory of a subvolume.
    pub fn root(&self, id: TreeId) -> Result<InodeRef, FsError> {
        let subvol = self.core().subvol(id)?;
        self.inode(&subvol, Ino::ROOT_DIR)
    }

    /// The inode of that number.
    pub fn inode(&self, subvol: &Arc<Subvol>, ino: Ino) -> Result<InodeRef, FsError> {
        self.core().handle(subvol, ino)?.ok_or(FsError::NotFound)
    }

    /// Gives out `count` inode numbers in a row, for [`NewInode::ino`](crate::NewInode::ino), and returns the first. So
    /// the caller decides which file gets which number, whatever thread creates it.
    pub fn reserve_inos(&self, subvol: &Arc<Subvol>, count: u64) -> Result<Ino, FsError> {
        subvol.give_inos(count)
    }

    /// Fails if the inode may not be changed.
    pub(crate) fn changeable(&self, inode: &Inode) -> Result<(), FsError> {
        if inode.is_empty_subvol_dir() {
            return Err(FsError::NotPermitted("the empty directory in place of a subvolume that is elsewhere"));
        }
        inode.subvol().writable()
    }

    /// Refuses every change and commit from now on: an operation did not come to an end, and nobody knows
    /// what is complete. On disk is what the last commit wrote.
    pub fn refuse_changes(&self, why: &str) {
        self.core().poisoned.lock().get_or_insert_with(|| why.to_owned());
        self.engine().refuse_changes(why);
    }
}
