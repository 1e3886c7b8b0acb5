//! Inodes in memory: the inode item's fields, the open and the frozen delta. (`guard` has the guards through which both are read and
//! changed.)
//!
//! Normal path of a change: (1) the operation joins the transaction (`Engine::join`) and so holds a handle; (2) it
//! locks its inodes with [`write`](Inode::write), several together with [`lock_all`](crate::object::lock_all); (3) it changes items with
//! [`ItemsMut::put`](crate::object::ItemsMut::put) and `delete`, fields with `fields_mut`; the first change of an inode
//! in an epoch enters it in the list of dirty inodes; (4) it drops the guards, then the handle.
//!
//! Epochs: a freeze adds one to the epoch while no handle is out. The open delta of an inode belongs to the epoch in
//! which the inode was last listed. It becomes the frozen delta when the first of two things happens: the inode is
//! changed in a later epoch, or the commit comes to itemise it and it is large. So nobody waits for a walk over all
//! inodes. Only one transaction is in flight, so there is never a second frozen delta.
//!
//! An *object* that is no inode (the orphan items of a subvolume, a subvolume's references in the root tree) is kept
//! in the same way, without fields.
//!
//! Invariants: `fields`, `open` over `frozen` over the tree at the newest root is the truth. The frozen delta is
//! dropped only after the root that holds it was published, and under the inode's write lock; so a thread that holds the
//! lock and loads the root last cannot miss a change.
//! Locks: several inodes are locked in the order of (tree, number); `lock_all` does so. Objects that are no inodes come
//! after all inodes. Of the locks here none is held over `join`; a flush holds the file's `flush` lock (`data`).
//! Not here: which items an operation changes (`items`, `attributes::xattr`, `data`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use oleo_format::{Generation, Ino, ItemType, Key, TreeId};
use oleo_lock::{RwLock, rank};

use crate::FileKind;
use crate::data::FileData;
use crate::log::LogMark;
use crate::object::Core;
use crate::object::delta::ItemMap;
use crate::object::fields::InodeFields;
use crate::object::subvol::{Share, Subvol};
use crate::ranges::Ranges;

/// The object that holds the orphan items of a subvolume (`BTRFS_ORPHAN_OBJECTID` in the UAPI header).
pub(crate) const ORPHAN_OBJECT: u64 = -5i64 as u64;

/// The bit of a remembered hash: those of names have 32.
const ABSENT: u64 = 1 << 32;

/// What becomes of the inode item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemFate {
    /// As in the layers below; of objects that are no inodes always.
    Clean,
    /// The fields have changed.
    Dirty,
    /// The inode is deleted: its item goes.
    Deleted,
}

/// What a commit does with an inode's orphan item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OrphanChange {
    /// The inode has no name and was not erased.
    Put,
    /// It was erased, or given a name.
    Delete,
}

/// A delta that a commit is writing.
pub(crate) struct Frozen {
    pub(crate) items: ItemMap,
    pub(crate) fate: ItemFate,
    pub(crate) fields: InodeFields,
}

/// What an inode's lock guards.
pub(crate) struct InodeState {
    pub(crate) fields: InodeFields,
    pub(super) fate: ItemFate,
    pub(super) open: ItemMap,
    pub(super) frozen: Option<Arc<Frozen>>,
    /// The epoch in which the inode was last entered in the list of dirty inodes; the open delta belongs to it.
    pub(super) listed: u64,
    /// How often an item or a field was changed since it came into memory, to see that nothing was between two looks.
    pub(crate) changes: u32,
    /// Nothing of this object is in the tree yet: reads need not look there.
    pub(super) fresh: bool,
    /// All items are deleted or being deleted; nobody may use the inode any more.
    pub(crate) gone: bool,
    /// The sequence number of the next entry of this directory; 0: not known yet.
    pub(crate) next_index: u64,
    /// No extent item begins or reaches beyond this offset; `None`: not known. Who goes by it asks [`Items::extents_end`](crate::object::Items), where debug
    /// builds compare it with the items (`ends`).
    pub(crate) extents_end: Option<u64>,
    /// Offsets at which no extent item begins, and of directories indices that no entry has, as far as deletions that are not in the
    /// tree have noted them: what walks need not look at. Both are of one type of items ([`empty_of`](Self::empty_of)).
    pub(super) empty: Option<Box<Ranges>>,
    /// Whether there are extended attributes; `None`: not known.
    pub(crate) has_xattrs: Option<bool>,
    /// The trees have an orphan item of it, or will have once the transaction that was itemised last is committed.
    pub(super) orphan: bool,
    /// What the log of the open transaction has of it, if it was logged.
    pub(crate) log: Option<Box<LogMark>>,
    /// The transaction in which it was last linked, renamed or unlinked, and not synced since.
    pub(crate) moved: Generation,
}

impl InodeState {
    /// The type of the items whose absence [`empty`](Self::empty) notes.
    pub(super) fn empty_of(&self) -> ItemType {
        if self.fields.kind() == FileKind::Dir { ItemType::DIR_INDEX } else { ItemType::EXTENT_DATA }
    }

    /// The offsets of the items of one type that were changed in the open transaction, rising.
    pub(crate) fn open_offsets(&self, t: ItemType) -> Vec<u64> {
        self.open.range(t, 0, u64::MAX).map(|(slot, _)| slot.1).collect()
    }

    /// Whether any item of the type was changed in the open transaction.
    pub(crate) fn has_open_of(&self, t: ItemType) -> bool {
        self.open.range(t, 0, u64::MAX).next().is_some()
    }

    pub(crate) fn has_open(&self) -> bool {
        self.fate != ItemFate::Clean || !self.open.is_empty()
    }

    /// Notes what becomes of the orphan item in a transaction that leaves the inode's item like this.
    fn orphan_change(&mut self, fate: ItemFate, nlink: u32) -> Option<OrphanChange> {
        let wanted = match fate {
            ItemFate::Clean => return None,
            ItemFate::Dirty => nlink == 0,
            ItemFate::Deleted => false,
        };
        if wanted == std::mem::replace(&mut self.orphan, wanted) {
            return None;
        }
        Some(if wanted { OrphanChange::Put } else { OrphanChange::Delete })
    }

    /// Whether what is to be logged of it concerns no other inode: it is no directory, and its names are as the last
    /// commit has them, or as the log has them if it is there whole.
    pub(crate) fn is_nameless_change(&self, generation: Generation) -> bool {
        let renamed = || {
            self.has_open_of(ItemType::INODE_REF) || self.has_open_of(ItemType::INODE_EXTREF) || self.fields.nlink == 0
        };
        self.fields.kind() != FileKind::Dir
            && self.moved != generation
            && match &self.log {
                Some(mark) if mark.generation == generation => !mark.renamed,
                _ => !renamed(),
            }
    }

    /// Moves the open delta to the frozen one.
    pub(super) fn freeze(&mut self) {
        if !self.has_open() {
            return;
        }
        assert!(self.frozen.is_none(), "one transaction is in flight at most");
        self.frozen =
            Some(Arc::new(Frozen { items: std::mem::take(&mut self.open), fate: self.fate, fields: self.fields }));
        self.fate = ItemFate::Clean;
    }
}

/// An inode in memory. See [`InodeRef`](crate::InodeRef) for the handle that users hold.
pub struct Inode {
    subvol: Arc<Share>,
    pub(super) ino: Ino,
    /// The directory it was made in, while it was in memory ever since; else 0. New files are placed near those of the same directory.
    directory: Ino,
    pub(super) state: RwLock<rank::InodeState, InodeState>,
    /// The file's data: buffers and extents.
    pub(crate) data: FileData,
    /// [`InodeRef`](crate::InodeRef)s out.
    pub(super) handles: AtomicU32,
    /// No name is left: when the last handle goes, so does the inode.
    pub(crate) unlinked: AtomicBool,
    /// It was made without a name and never had one: it may be given its first. Until its last handle goes.
    pub(crate) may_be_linked: AtomicBool,
    /// Known to have no `security.capability`; changed with the lock held, at least for reading.
    pub(crate) nosec: AtomicBool,
    /// Used since the cache last looked for something to evict.
    pub(crate) used: AtomicBool,
    /// A hash of which this directory has no DIR_ITEM, as the last look found, and a bit above; 0: unknown. Set with the lock held, at least for
    /// reading; taken back by whoever puts such an item.
    absent: AtomicU64,
    /// An empty directory in place of a subvolume that is not there, not in any tree.
    empty_subvol_dir: bool,
}

impl Inode {
    /// The same, made in a directory.
    pub(crate) fn made_in(self, directory: Ino) -> Inode {
        Inode { directory, ..self }
    }

    /// The directory it was made in, if that is known.
    pub(crate) fn directory(&self) -> Ino {
        self.directory
    }

    pub(crate) fn new(subvol: &Arc<Subvol>, ino: Ino, fields: InodeFields, fresh: bool) -> Inode {
        Inode {
            subvol: Share::of(subvol),
            ino,
            directory: Ino(0),
            state: RwLock::new(InodeState {
                fields,
                fate: ItemFate::Clean,
                open: ItemMap::default(),
                frozen: None,
                listed: 0,
                changes: 0,
                fresh,
                gone: false,
                next_index: 0,
                extents_end: if fresh { Some(0) } else { None },
                empty: None,
                has_xattrs: if fresh { Some(false) } else { None },
                orphan: !fresh && fields.nlink == 0,
                log: None,
                moved: Generation(0),
            }),
            data: FileData::default(),
            handles: AtomicU32::new(0),
            unlinked: AtomicBool::new(false),
            may_be_linked: AtomicBool::new(false),
            nosec: AtomicBool::new(fresh),
            used: AtomicBool::new(true),
            absent: AtomicU64::new(0),
            empty_subvol_dir: false,
        }
    }

    /// The empty directory that a snapshot shows where its source had a nested subvolume.
    pub(crate) fn new_empty_subvol_dir(subvol: &Arc<Subvol>, fields: InodeFields) -> Inode {
        Inode { empty_subvol_dir: true, ..Inode::new(subvol, Ino::EMPTY_SUBVOL_DIR, fields, true) }
    }

    /// The subvolume that the inode is in.
    pub fn subvol(&self) -> &Arc<Subvol> {
        self.subvol.subvol()
    }

    /// The number of the tree that the inode is in.
    pub fn tree(&self) -> TreeId {
        self.subvol().id()
    }

    /// Its number, unique within the subvolume.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Whether this is in place of a nested subvolume that is not there: always empty, never changed.
    pub fn is_empty_subvol_dir(&self) -> bool {
        self.empty_subvol_dir
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.subvol().core()
    }

    /// Where it comes in the order of inodes: lists are sorted by this, and several locks taken in this order.
    pub(crate) fn rank(&self) -> (TreeId, Ino) {
        (self.tree(), self.ino)
    }

    /// The order of its locks among those of others: objects that are no inodes are changed while inodes are locked.
    pub(crate) fn lock_key(&self) -> oleo_lock::Key {
        let is_object = !self.tree().is_subvol() || self.ino.0 == ORPHAN_OBJECT;
        [u64::from(is_object), self.tree().0, self.ino.0]
    }

    /// Says that it was used, to whoever looks for something to evict.
    pub(crate) fn note_used(&self) {
        // Only read, mostly, so that several threads can use one inode.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Remembers that this directory has no DIR_ITEM of a hash. The caller holds the lock.
    pub(crate) fn note_absent(&self, hash: u64) {
        let noted = hash | ABSENT;
        // Only read, mostly, if several threads look for the same.
        if self.absent.load(Ordering::Relaxed) != noted {
            self.absent.store(noted, Ordering::Relaxed);
        }
    }

    /// Whether it is known that this directory has no DIR_ITEM of a hash. The caller holds the lock.
    pub(crate) fn is_absent(&self, hash: u64) -> bool {
        self.absent.load(Ordering::Relaxed) == hash | ABSENT
    }

    /// A DIR_ITEM is put. The caller holds the lock for changing.
    pub(super) fn forget_absent(&self) {
        self.absent.store(0, Ordering::Relaxed);
    }

    /// A key of this inode.
    pub(crate) fn key(&self, t: ItemType, offset: u64) -> Key {
        Key::new(self.ino.0, t, offset)
    }

    /// How many [`InodeRef`](crate::InodeRef)s are out.
    pub(crate) fn handles(&self) -> u32 {
        self.handles.load(Ordering::SeqCst)
    }

    /// Passes what the commit of `epoch` is to write of this inode to `emit`. Returns what becomes of its orphan item, if
    /// that changes; so each epoch is itemised once.
    ///
    /// A small delta stays in the open map as long as nobody changes the inode: it is read from there.
    pub(crate) fn itemise(
        &self,
        epoch: u64,
        emit: impl FnOnce(&ItemMap, ItemFate, &InodeFields),
    ) -> Option<OrphanChange> {
        let mut state = self.state.write_by(self.lock_key());
        if state.listed <= epoch && state.has_open() {
            if matches!(state.open, ItemMap::Small(_)) {
                emit(&state.open, state.fate, &state.fields);
                let (fate, nlink) = (state.fate, state.fields.nlink);
                return state.orphan_change(fate, nlink);
            }
            state.freeze();
        }
        // Without the lock: a directory may have a million changes.
        let frozen = state.frozen.clone()?;
        let change = state.orphan_change(frozen.fate, frozen.fields.nlink);
        drop(state);
        emit(&frozen.items, frozen.fate, &frozen.fields);
        change
    }

    /// The roots hold the delta of `epoch` now. Whether the inode is gone for good: the cache had to keep it, so that
    /// nobody read it from the old root.
    pub(crate) fn forget_frozen(&self, epoch: u64) -> bool {
        let mut state = self.state.write_by(self.lock_key());
        state.fresh = false;
        let frozen = state.frozen.take();
        if state.listed <= epoch {
            state.open = ItemMap::default();
            state.fate = ItemFate::Clean;
        }
        // The tree no longer has the items that the frozen tombstones hid. Each change of the open delta adds one range at most, so the
        // ranges that it needs are never more than its changes.
        if state.empty.as_ref().is_some_and(|empty| empty.len() > state.open.len() || state.open.is_empty()) {
            state.empty = None;
        }
        let gone = state.gone && !state.has_open();
        drop(state);
        drop(frozen);
        gone
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({}/{})", self.tree().0, self.ino.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a mount holds millions of clean inodes: each is as small as the docs say of it.
    #[test]
    fn inodes_are_small() {
        let len = std::mem::size_of::<Inode>();
        assert!(len <= 448, "{len} bytes");
    }
}
