//! The directories that a restore is filling, and which of them are open.
//!
//! A directory is being filled until everything below it is done, so there are as many as the tree has levels. Only
//! [`DIRS_OPEN_MAX`] of them are open: those that were made last. One that is needed again is opened
//! - by "..", when a directory in it is complete ([`DirTask::finish`]): the usual way back up;
//! - or name by name from the next one above that is open ([`Core::opened`]).
//!
//! Until it is complete, only its owner may enter a directory, so no other user can move it or replace it. All the same, a
//! directory that was opened again must be the inode that was made.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_fs::InodeRef;
use oleo_lock::{Mutex, rank};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Core, Place};
use crate::{Error, Result};

/// Directories that are open at most, those in use by a worker aside. Far below the usual limit of 1024 descriptors.
const DIRS_OPEN_MAX: usize = 256;
/// How directories are opened.
pub(super) const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory that is being filled. Its attributes are set when no task holds it any more.
pub(super) struct DirTask<'a> {
    /// Rises with each directory made.
    number: u64,
    /// Device and inode number on the host.
    id: (u64, u64),
    /// From the top of what is restored.
    pub place: Arc<Place>,
    /// `None`: it keeps the attributes it has.
    pub inode: Option<InodeRef>,
    parent: Option<Arc<DirTask<'a>>>,
    pub core: &'a Core<'a>,
}

/// The open directories, by [`DirTask::number`]. The top, number 0, is always open.
#[derive(Default)]
pub(super) struct OpenDirs {
    open: Mutex<rank::RestoreDirs, BTreeMap<u64, Arc<OwnedFd>>>,
    made: AtomicU64,
}

impl OpenDirs {
    fn get(&self, number: u64) -> Option<Arc<OwnedFd>> {
        self.open.lock().get(&number).cloned()
    }

    /// Adds one. The directory that was made first is closed if there are too many.
    fn add(&self, number: u64, fd: OwnedFd) -> Arc<OwnedFd> {
        let fd = Arc::new(fd);
        let mut open = self.open.lock();
        open.insert(number, fd.clone());
        let oldest = open.range(1..).next().map(|(&oldest, _)| oldest);
        let closed = oldest.filter(|_| open.len() > DIRS_OPEN_MAX).and_then(|oldest| open.remove(&oldest));
        drop(open);
        drop(closed);
        fd
    }

    fn remove(&self, number: u64) {
        let closed = self.open.lock().remove(&number);
        drop(closed);
    }
}

impl<'a> DirTask<'a> {
    /// The directory that everything is restored into.
    pub(super) fn top(core: &'a Core<'a>, fd: OwnedFd, id: (u64, u64), inode: Option<InodeRef>) -> DirTask<'a> {
        core.dirs.add(0, fd);
        DirTask { number: 0, id, place: Place::new(b""), inode, parent: None, core }
    }

    /// A directory that has just been made in `parent`.
    pub(super) fn new(
        core: &'a Core<'a>,
        fd: OwnedFd,
        id: (u64, u64),
        place: Arc<Place>,
        inode: InodeRef,
        parent: Arc<DirTask<'a>>,
    ) -> DirTask<'a> {
        let number = core.dirs.made.fetch_add(1, Ordering::Relaxed) + 1;
        core.dirs.add(number, fd);
        DirTask { number, id, place, inode: Some(inode), parent: Some(parent), core }
    }

    /// Sets the attributes of a directory that is complete, and closes it.
    fn finish(&mut self) {
        if let Some(inode) = self.inode.take() {
            match self.core.opened(self) {
                Ok(fd) => {
                    self.reopen_parent(&fd);
                    self.core.set_attributes(&fd, &inode, &self.place);
                }
                Err(error) => self.core.fail(error),
            }
        }
        self.core.dirs.remove(self.number);
    }

    /// Opens the directory above if it is closed. If that fails, [`Core::opened`] finds it by its names.
    fn reopen_parent(&self, fd: &OwnedFd) {
        if let Some(parent) = &self.parent
            && self.core.dirs.get(parent.number).is_none()
            && let Ok(above) = rustix::fs::openat(fd, "..", FLAGS, Mode::empty())
            && is(&above, parent.id).is_ok()
        {
            self.core.dirs.add(parent.number, above);
        }
    }
}

impl Drop for DirTask<'_> {
    fn drop(&mut self) {
        self.finish();
        // A chain of parents ends one by one, not each inside the one below: depth has no bound here.
        let mut next = self.parent.take();
        while let Some(mut parent) = next.and_then(Arc::into_inner) {
            parent.finish();
            next = parent.parent.take();
        }
    }
}

impl Core<'_> {
    /// The descriptor of a directory that is being filled.
    pub(super) fn opened(&self, dir: &DirTask<'_>) -> Result<Arc<OwnedFd>> {
        let mut closed = Vec::new();
        let mut at = dir;
        let mut fd = loop {
            if let Some(fd) = self.dirs.get(at.number) {
                break fd;
            }
            closed.push(at);
            at = at.parent.as_deref().expect("the top is always open");
        };
        for &dir in closed.iter().rev() {
            let below = rustix::fs::openat(&fd, dir.place.name(), FLAGS, Mode::empty());
            let below = below.and_then(|below| is(&below, dir.id).map(|()| below));
            let below = below.map_err(|e| Error::host("open", self.on_host(&dir.place))(e.into()))?;
            fd = Arc::new(below);
        }
        if closed.is_empty() {
            return Ok(fd);
        }
        let own = Arc::into_inner(fd).expect("opened here");
        Ok(self.dirs.add(dir.number, own))
    }
}

/// Whether a descriptor is of the inode that was made.
fn is(fd: &OwnedFd, id: (u64, u64)) -> std::result::Result<(), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    if (stat.st_dev, stat.st_ino) == id { Ok(()) } else { Err(Errno::STALE) }
}
