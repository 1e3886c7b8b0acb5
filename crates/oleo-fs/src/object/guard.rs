//! Inodes locked for reading and for changing, one or several.
//!
//! Several inodes are locked in the order of (tree, number); [`lock_all`] does so. A change goes into the open delta, and the first one
//! of an inode in an epoch enters it in the list of dirty inodes.

use std::sync::Arc;

use oleo_format::{Generation, ItemType, item_len_max};
use oleo_lock::{RwLockReadGuard, RwLockWriteGuard, rank};
use oleo_tree::ItemBytes;

use crate::FsError;
use crate::object::delta::{Base, Direction, Layers, Seen, Slot, Value, Visit};
use crate::object::fields::InodeFields;
use crate::object::inode::{Inode, InodeState, ItemFate};
use crate::object::items::{Items, ItemsMut, Joined};
use crate::object::tree_base::TreeBase;

/// An inode locked for reading.
pub struct ReadGuard<'a> {
    inode: &'a Inode,
    state: RwLockReadGuard<'a, rank::InodeState, InodeState>,
}

/// An inode locked for changing.
pub struct WriteGuard<'a> {
    inode: &'a Arc<Inode>,
    state: RwLockWriteGuard<'a, rank::InodeState, InodeState>,
}

impl Inode {
    /// Locks for reading.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard { inode: self, state: self.state.read_by(self.lock_key()) }
    }

    /// Locks for changing. The caller holds a handle before it locks.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(self: &Arc<Self>) -> WriteGuard<'_> {
        WriteGuard { inode: self, state: self.state.write_by(self.lock_key()) }
    }
}

fn with_layers<R>(inode: &Inode, state: &InodeState, f: impl FnOnce(Layers<'_>) -> R) -> R {
    let base = TreeBase { core: inode.core(), tree: inode.tree(), objectid: inode.ino.0 };
    f(Layers {
        open: &state.open,
        frozen: state.frozen.as_deref().map(|f| &f.items),
        base: if state.fresh { None } else { Some(&base as &dyn Base) },
        empty: state.empty.as_deref().map(|ranges| (state.empty_of(), ranges)),
    })
}

macro_rules! items_of {
    ($guard:ident) => {
        impl Items for $guard<'_> {
            fn get(&self, t: ItemType, offset: u64) -> Result<Option<Value>, FsError> {
                with_layers(self.inode, &self.state, |l| l.get((t, offset)))
            }
            fn see(&self, t: ItemType, offset: u64, seen: &mut Seen<'_>) -> Result<(), FsError> {
                with_layers(self.inode, &self.state, |l| l.see((t, offset), seen))
            }
            fn walk(
                &self,
                t: ItemType,
                from: u64,
                to_incl: u64,
                direction: Direction,
                visit: &mut Visit<'_>,
            ) -> Result<(), FsError> {
                with_layers(self.inode, &self.state, |l| l.walk(t, from, to_incl, direction, visit))
            }
            fn fields(&self) -> &InodeFields {
                &self.state.fields
            }
            fn extents_end(&self) -> Option<u64> {
                #[cfg(debug_assertions)]
                crate::object::ends::compare(self.inode, &self.state);
                self.state.extents_end
            }
        }

        impl $guard<'_> {
            /// The slots of all items, its own included, in one walk; `None` if more than `extents_max` are of extents.
            pub(crate) fn slots(&self, extents_max: usize) -> Result<Option<Vec<Slot>>, FsError> {
                with_layers(self.inode, &self.state, |l| l.slots(ItemType::EXTENT_DATA, extents_max))
            }
        }
    };
}

items_of!(ReadGuard);
items_of!(WriteGuard);

impl ItemsMut for WriteGuard<'_> {
    fn put(&mut self, h: &dyn Joined, t: ItemType, offset: u64, v: ItemBytes) {
        if !self.may_change() {
            return;
        }
        // The commit could not save it: an operation that lets an item grow has to refuse before it changes anything.
        debug_assert!(v.len() <= item_len_max(self.inode.core().engine().nodesize()), "{t:?} {offset} outgrows a leaf");
        self.touch();
        self.note(h, (t, offset));
        if t == self.state.empty_of()
            && let Some(empty) = &mut self.state.empty
        {
            empty.remove(offset);
        }
        if t == ItemType::EXTENT_DATA {
            // A caller that knows the item's length sets it afterwards.
            self.state.extents_end = None;
        } else if t == ItemType::DIR_ITEM {
            self.inode.forget_absent();
        }
        self.state.open.set((t, offset), Some(v));
    }

    fn delete(&mut self, h: &dyn Joined, t: ItemType, offset: u64) {
        if !self.may_change() {
            return;
        }
        self.touch();
        self.note(h, (t, offset));
        self.remove((t, offset));
    }

    fn fields_mut(&mut self, h: &dyn Joined) -> &mut InodeFields {
        // Nobody reads the fields of what is erased, and no commit writes them.
        if !self.may_change() {
            return &mut self.state.fields;
        }
        self.touch();
        self.state.fate = ItemFate::Dirty;
        self.note(h, (ItemType::INODE_ITEM, 0));
        self.state.fields.transid = h.generation().0;
        &mut self.state.fields
    }
}

fn alive(inode: &Inode, state: &InodeState) -> Result<(), FsError> {
    if state.gone || inode.subvol().is_deleted() { Err(FsError::Stale) } else { Ok(()) }
}

impl ReadGuard<'_> {
    pub(crate) fn state(&self) -> &InodeState {
        &self.state
    }

    /// Whether the transaction `generation` does not have all of the inode's changes.
    pub(crate) fn changed_after(&self, generation: Generation) -> bool {
        // What is in the trees but not on disk is in neither delta.
        self.state.has_open() || self.state.frozen.is_some() || self.state.fields.transid > generation.0
    }

    /// Whether nothing of it is in any tree or commit under way.
    pub(crate) fn is_uncommitted(&self) -> bool {
        self.state.fresh && self.state.frozen.is_none()
    }

    /// See [`InodeState::is_nameless_change`].
    pub(crate) fn is_nameless_change(&self) -> bool {
        self.state.is_nameless_change(self.inode.core().engine().generation())
    }

    /// The size that the inode item in the tree says; `None` if there is none.
    pub(crate) fn committed_size(&self) -> Result<Option<u64>, FsError> {
        let base = TreeBase { core: self.inode.core(), tree: self.inode.tree(), objectid: self.inode.ino.0 };
        let key = self.inode.key(ItemType::INODE_ITEM, 0);
        let item = base.get((ItemType::INODE_ITEM, 0))?;
        item.map(|item| Ok(InodeFields::parse(&item, key)?.size)).transpose()
    }

    /// Fails when the inode has been deleted.
    pub(crate) fn alive(&self) -> Result<(), FsError> {
        alive(self.inode, &self.state)
    }

    /// The inode that is locked.
    pub fn inode(&self) -> &Inode {
        self.inode
    }
}

impl<'a> WriteGuard<'a> {
    /// Fails when the inode has been deleted.
    pub(crate) fn alive(&self) -> Result<(), FsError> {
        alive(self.inode, &self.state)
    }

    /// The inode that is locked.
    pub fn inode(&self) -> &'a Arc<Inode> {
        self.inode
    }

    pub(crate) fn state(&self) -> &InodeState {
        &self.state
    }

    pub(crate) fn state_mut(&mut self) -> &mut InodeState {
        &mut self.state
    }

    /// Whether no item of this object is in the tree or in a commit under way.
    pub(crate) fn is_fresh(&self) -> bool {
        self.state.fresh && self.state.frozen.is_none()
    }

    /// Whether the inode is not erased. A change of an erased one would put its item back, with neither name nor orphan item:
    /// a late caller checks for it ([`alive`](Self::alive)), and here nothing happens.
    fn may_change(&self) -> bool {
        debug_assert!(!self.state.gone, "{:?} is erased", self.inode);
        !self.state.gone
    }

    /// Enters the inode in the list of dirty ones, unless it is there.
    fn touch(&mut self) {
        self.state.changes = self.state.changes.wrapping_add(1);
        let core = self.inode.core();
        let epoch = core.epoch();
        if self.state.listed != epoch {
            self.state.freeze();
            self.state.listed = epoch;
            core.list_dirty(self.inode, epoch);
        }
    }

    /// Notes a change in the mark that the last log commit has left, if there is one.
    fn note(&mut self, h: &dyn Joined, slot: Slot) {
        let Some(mark) = &mut self.state.log else { return };
        if mark.generation != h.generation() {
            self.state.log = None;
        } else if mark.note(slot) {
            self.inode.core().log.renamed(self.inode, h.generation());
        }
    }

    /// Has the next commit remove the inode's orphan item, which the tree has although the inode has a name.
    pub(crate) fn forget_orphan(&mut self, h: &dyn Joined) {
        self.fields_mut(h);
        self.state.orphan = true;
    }

    fn remove(&mut self, slot: Slot) {
        if self.is_fresh() {
            return self.state.open.forget(slot);
        }
        self.state.open.set(slot, None);
        // The indices of a directory have few gaps, so the ranges merge.
        if slot.0 == ItemType::DIR_INDEX && self.state.empty_of() == slot.0 {
            self.note_empty(slot.1, slot.1.saturating_add(1));
        }
    }

    /// Notes that between two offsets no item is left of the type that [`InodeState::empty_of`] names: walks need not look there.
    pub(crate) fn note_empty(&mut self, from: u64, to: u64) {
        // If there are few tombstones, passing over them costs less.
        if from < to && !self.is_fresh() && (self.state.empty.is_some() || self.state.open.is_big()) {
            self.state.empty.get_or_insert_default().add(from, to);
        }
    }

    /// Deletes the inode item, and bars the inode from further use. All other items are gone.
    pub(crate) fn delete_item(&mut self, h: &dyn Joined) {
        self.touch();
        self.note(h, (ItemType::INODE_ITEM, 0));
        self.state.gone = true;
        self.state.fate = if self.is_fresh() { ItemFate::Clean } else { ItemFate::Deleted };
    }
}

/// Inodes that one operation locks together: rename has the most, two directories and two entries.
const LOCKED_MAX: usize = 4;

/// Several inodes locked for changing, in the order of (tree, number), whatever the order they were named in.
pub struct LockedSet<'a> {
    guards: smallvec::SmallVec<[WriteGuard<'a>; LOCKED_MAX]>,
}

/// Locks the inodes, each once even when it is named twice.
pub fn lock_all<'a>(inodes: &[&'a Arc<Inode>]) -> LockedSet<'a> {
    let mut sorted: smallvec::SmallVec<[&Arc<Inode>; LOCKED_MAX]> = inodes.iter().copied().collect();
    sorted.sort_by_key(|i| i.rank());
    sorted.dedup_by(|a, b| Arc::ptr_eq(a, b));
    LockedSet { guards: sorted.into_iter().map(|i| i.write()).collect() }
}

impl<'a> LockedSet<'a> {
    /// The guard of one of the inodes that were locked.
    ///
    /// # Panics
    /// When the inode was not named to [`lock_all`], which is a bug.
    pub fn of(&mut self, inode: &Arc<Inode>) -> &mut WriteGuard<'a> {
        match self.guards.iter_mut().find(|g| Arc::ptr_eq(g.inode, inode)) {
            Some(guard) => guard,
            None => panic!("{inode:?} is not locked"),
        }
    }
}
