//! Handles to inodes: as long as one is out, the inode can be used.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::object::inode::Inode;

/// A counted handle to an inode: while one is out, the inode stays usable even when its last name is removed.
pub struct InodeRef(Arc<Inode>);

impl InodeRef {
    /// Counts a handle. The caller checks afterwards whether the inode still lives.
    pub(crate) fn new(inode: Arc<Inode>) -> InodeRef {
        inode.handles.fetch_add(1, Ordering::SeqCst);
        InodeRef(inode)
    }

    /// Whether both name the same inode.
    pub fn same(&self, other: &InodeRef) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        InodeRef::new(self.0.clone())
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.unlinked.load(Ordering::SeqCst) {
            self.0.may_be_linked.store(false, Ordering::SeqCst);
            self.0.core().queue_eviction(self.0.clone());
        }
    }
}

impl Deref for InodeRef {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.0
    }
}

impl std::fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
