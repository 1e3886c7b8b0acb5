//! Inodes in memory: the inode item's fields, the open and the frozen delta, and the guards through which both are
//! read and changed.
//!
//! Normal path of a change: (1) the operation joins the transaction (`Engine::join`) and so holds a handle; (2) it
//! locks its inodes with [`write`](Inode::write), several together with [`lock_all`]; (3) it changes items with
//! [`ItemsMut::put`] and [`ItemsMut::delete`], fields with [`WriteGuard::fields_mut`]; the first change of an inode
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
//! dropped only after the root that holds it was published, and under the inode's write lock; so whoever holds the
//! lock and loads the root last cannot miss a change.
//! Locks: several inodes are locked in the order of (tree, number); [`lock_all`] does so. Objects that are no inodes come
//! after all inodes. No lock is held over `join`.
//! Not here: which items an operation changes (`dir`, `refs`, `xattr`, `data`).

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use oleo_format::{Generation, Ino, InodeItem, ItemType, Key, Timespec, TreeId};
use oleo_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use oleo_txn::{Handle, Staged};

use crate::core::{Core, TreeBase};
use crate::data::FileData;
use crate::delta::{Base, Direction, ItemMap, Layers, Slot, Value, Visit};
use crate::log::LogMark;
use crate::options::Time;
use crate::subvol::Subvol;
use crate::{FileKind, FsError};

/// The fields of an inode item, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeFields {
    /// The transaction that created the inode.
    pub generation: u64,
    /// The transaction that last changed it.
    pub transid: u64,
    /// Bytes of content; of a directory twice the length of all names.
    pub size: u64,
    /// Bytes that the extents take, before compression.
    pub nbytes: u64,
    /// Names that the inode has; 1 for a directory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Device number as stored; see [`Rdev`](crate::Rdev).
    pub rdev: u64,
    /// `BTRFS_INODE_*`; see [`InodeFlags`](oleo_format::InodeFlags).
    pub flags: u64,
    /// Counts changes.
    pub sequence: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Creation.
    pub otime: Time,
}

pub(crate) fn time_of(t: &Timespec) -> Time {
    Time { sec: t.seconds(), nsec: t.nsec.get() }
}

pub(crate) fn timespec_of(t: Time) -> Timespec {
    Timespec::new(t.sec, t.nsec)
}

impl InodeFields {
    /// Decodes an inode item.
    pub fn parse(bytes: &[u8], at: Key) -> Result<InodeFields, FsError> {
        Ok(InodeFields::of(InodeItem::parse(bytes).map_err(|e| e.within(at))?))
    }

    /// What an inode item says.
    pub fn of(item: &InodeItem) -> InodeFields {
        InodeFields {
            generation: item.generation.get(),
            transid: item.transid.get(),
            size: item.size.get(),
            nbytes: item.nbytes.get(),
            nlink: item.nlink.get(),
            uid: item.uid.get(),
            gid: item.gid.get(),
            mode: item.mode.get(),
            rdev: item.rdev.get(),
            flags: item.flags.get(),
            sequence: item.sequence.get(),
            atime: time_of(&item.atime),
            ctime: time_of(&item.ctime),
            mtime: time_of(&item.mtime),
            otime: time_of(&item.otime),
        }
    }

    /// The inode item that says the same.
    pub fn to_item(&self) -> InodeItem {
        InodeItem {
            generation: self.generation.into(),
            transid: self.transid.into(),
            size: self.size.into(),
            nbytes: self.nbytes.into(),
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mode: self.mode.into(),
            rdev: self.rdev.into(),
            flags: self.flags.into(),
            sequence: self.sequence.into(),
            atime: timespec_of(self.atime),
            ctime: timespec_of(self.ctime),
            mtime: timespec_of(self.mtime),
            otime: timespec_of(self.otime),
            ..InodeItem::default()
        }
    }

    /// The item's bytes.
    pub fn encode(&self) -> Box<[u8]> {
        use zerocopy::IntoBytes;
        self.to_item().as_bytes().into()
    }

    /// What kind of file the mode says this is.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode)
    }
}

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

/// A delta that a commit is writing.
pub(crate) struct Frozen {
    pub(crate) items: ItemMap,
    pub(crate) fate: ItemFate,
    pub(crate) fields: InodeFields,
}

/// What an inode's lock guards.
pub(crate) struct InodeState {
    pub(crate) fields: InodeFields,
    fate: ItemFate,
    open: ItemMap,
    frozen: Option<Arc<Frozen>>,
    /// The epoch in which the inode was last entered in the list of dirty inodes; the open delta belongs to it.
    listed: u64,
    /// Nothing of this object is in the tree yet: reads need not look there.
    fresh: bool,
    /// All items are deleted or being deleted; nobody may use the inode any more.
    pub(crate) gone: bool,
    /// The sequence number of the next entry of this directory; 0: not known yet.
    pub(crate) next_index: u64,
    /// No extent item reaches beyond this offset; `None`: not known.
    pub(crate) extents_end: Option<u64>,
    /// Whether there are extended attributes; `None`: not known.
    pub(crate) has_xattrs: Option<bool>,
    /// What the log of the open transaction has of it, if it was logged.
    pub(crate) log: Option<Box<LogMark>>,
    /// The transaction in which it was last linked, renamed or unlinked, and not synced since.
    pub(crate) moved: Generation,
}

impl InodeState {
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

    /// Moves the open delta to the frozen one.
    fn freeze(&mut self) {
        if !self.has_open() {
            return;
        }
        assert!(self.frozen.is_none(), "one transaction is in flight at most");
        self.frozen =
            Some(Arc::new(Frozen { items: std::mem::take(&mut self.open), fate: self.fate, fields: self.fields }));
        self.fate = ItemFate::Clean;
    }
}

/// An inode in memory. See [`InodeRef`] for the handle that users hold.
pub struct Inode {
    subvol: Arc<Subvol>,
    ino: Ino,
    /// The directory it was made in, while it was in memory ever since; else 0. New files lie near their like.
    directory: Ino,
    state: RwLock<rank::InodeState, InodeState>,
    /// The file's data: buffers and extents.
    pub(crate) data: FileData,
    /// [`InodeRef`]s out.
    handles: AtomicU32,
    /// No name is left: when the last handle goes, so does the inode.
    pub(crate) unlinked: AtomicBool,
    /// It was made without a name and never had one: it may be given its first. Until its last handle goes.
    pub(crate) may_be_linked: AtomicBool,
    /// Known to have no `security.capability`; changed with the lock held, at least for reading.
    pub(crate) nosec: AtomicBool,
    /// Used since the cache last looked for something to evict.
    pub(crate) used: AtomicBool,
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

    pub(crate) fn new(subvol: Arc<Subvol>, ino: Ino, fields: InodeFields, fresh: bool) -> Inode {
        Inode {
            subvol,
            ino,
            directory: Ino(0),
            state: RwLock::new(InodeState {
                fields,
                fate: ItemFate::Clean,
                open: ItemMap::default(),
                frozen: None,
                listed: 0,
                fresh,
                gone: false,
                next_index: 0,
                extents_end: if fresh { Some(0) } else { None },
                has_xattrs: if fresh { Some(false) } else { None },
                log: None,
                moved: Generation(0),
            }),
            data: FileData::default(),
            handles: AtomicU32::new(0),
            unlinked: AtomicBool::new(false),
            may_be_linked: AtomicBool::new(false),
            nosec: AtomicBool::new(fresh),
            used: AtomicBool::new(true),
            empty_subvol_dir: false,
        }
    }

    /// The empty directory that a snapshot shows where its source had a nested subvolume.
    pub(crate) fn new_empty_subvol_dir(subvol: Arc<Subvol>, fields: InodeFields) -> Inode {
        Inode { empty_subvol_dir: true, ..Inode::new(subvol, Ino::EMPTY_SUBVOL_DIR, fields, true) }
    }

    /// The subvolume that the inode is in.
    pub fn subvol(&self) -> &Arc<Subvol> {
        &self.subvol
    }

    /// The number of the tree that the inode is in.
    pub fn tree(&self) -> TreeId {
        self.subvol.id()
    }

    /// Its number, unique within the subvolume.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Whether this stands in for a nested subvolume that is not there: always empty, never changed.
    pub fn is_empty_subvol_dir(&self) -> bool {
        self.empty_subvol_dir
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.subvol.core()
    }

    /// Where it comes in the order of inodes: lists are sorted by this, and several locks taken in this order.
    pub(crate) fn rank(&self) -> (TreeId, Ino) {
        (self.tree(), self.ino)
    }

    /// The order of its locks among those of others: objects that are no inodes are changed while inodes are locked.
    pub(crate) fn lock_key(&self) -> oleo_lock::Key {
        let is_object = !self.tree().is_subvol() || self.ino.0 == crate::orphan::ORPHAN_OBJECT;
        [u64::from(is_object), self.tree().0, self.ino.0]
    }

    /// A key of this inode.
    pub(crate) fn key(&self, t: ItemType, offset: u64) -> Key {
        Key::new(self.ino.0, t, offset)
    }

    /// How many [`InodeRef`]s are out.
    pub(crate) fn handles(&self) -> u32 {
        self.handles.load(Ordering::SeqCst)
    }

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

    /// Passes what the commit of `epoch` is to write of this inode to `emit`.
    ///
    /// A small delta stays in the open map as long as nobody changes the inode: it is read from there.
    pub(crate) fn itemise(&self, epoch: u64, emit: impl FnOnce(&ItemMap, ItemFate, &InodeFields)) {
        let mut state = self.state.write_by(self.lock_key());
        if state.listed <= epoch && state.has_open() {
            if matches!(state.open, ItemMap::Small(_)) {
                emit(&state.open, state.fate, &state.fields);
                return;
            }
            state.freeze();
        }
        // Without the lock: a directory may have a million changes.
        let frozen = state.frozen.clone();
        drop(state);
        if let Some(frozen) = frozen {
            emit(&frozen.items, frozen.fate, &frozen.fields);
        }
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

/// A counted handle to an inode: while one is out, the inode stays usable even when its last name is removed.
pub struct InodeRef(Arc<Inode>);

impl InodeRef {
    /// Counts a handle. Whether the inode still lives is for the caller to ask afterwards.
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

/// One inode's items, its lock held.
pub trait Items {
    /// The item at `offset`, or `None`.
    fn get(&self, t: ItemType, offset: u64) -> Result<Option<Value>, FsError>;

    /// Calls `visit` for the items of type `t` from `from` to `to_incl` until it breaks; upwards or downwards.
    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), FsError>;

    /// The inode item's fields as they stand.
    fn fields(&self) -> &InodeFields;

    /// At most `limit` items of type `t` from `from` to `to_incl`, rising.
    fn range_limit(&self, t: ItemType, from: u64, to_incl: u64, limit: usize) -> Result<Vec<(u64, Value)>, FsError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        self.walk(t, from, to_incl, Direction::Up, &mut |offset, bytes| {
            found.push((offset, Value::Owned(bytes.into())));
            if found.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }

    /// The items of type `t` from `from` to `to_incl`, rising.
    fn range(&self, t: ItemType, from: u64, to_incl: u64) -> Result<Vec<(u64, Value)>, FsError> {
        self.range_limit(t, from, to_incl, usize::MAX)
    }

    /// The last item of type `t` at or below an offset.
    fn last(&self, t: ItemType, at_or_below: u64) -> Result<Option<(u64, Value)>, FsError> {
        let mut found = None;
        self.walk(t, 0, at_or_below, Direction::Down, &mut |offset, bytes| {
            found = Some((offset, Value::Owned(bytes.into())));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}

/// Proof of being inside the open transaction: an operation's handle, or a stage.
pub trait Joined {
    /// The generation that changes made now will be committed under.
    fn generation(&self) -> Generation;
}

impl Joined for Handle<'_> {
    fn generation(&self) -> Generation {
        Handle::generation(self)
    }
}

impl Joined for Staged<'_> {
    fn generation(&self) -> Generation {
        Staged::generation(self)
    }
}

/// One inode's items, locked for changing.
pub trait ItemsMut: Items {
    /// Sets an item. The handle says which transaction the change belongs to.
    fn put(&mut self, h: &dyn Joined, t: ItemType, offset: u64, v: Box<[u8]>);
    /// Removes an item; one that is not there stays so.
    fn delete(&mut self, h: &dyn Joined, t: ItemType, offset: u64);
    /// The inode item's fields, to be changed.
    fn fields_mut(&mut self, h: &dyn Joined) -> &mut InodeFields;
}

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

fn with_layers<R>(inode: &Inode, state: &InodeState, f: impl FnOnce(Layers<'_>) -> R) -> R {
    let base = TreeBase { core: inode.core(), tree: inode.tree(), objectid: inode.ino.0 };
    f(Layers {
        open: &state.open,
        frozen: state.frozen.as_deref().map(|f| &f.items),
        base: if state.fresh { None } else { Some(&base as &dyn Base) },
    })
}

impl Items for ReadGuard<'_> {
    fn get(&self, t: ItemType, offset: u64) -> Result<Option<Value>, FsError> {
        with_layers(self.inode, &self.state, |l| l.get((t, offset)))
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
}

impl Items for WriteGuard<'_> {
    fn get(&self, t: ItemType, offset: u64) -> Result<Option<Value>, FsError> {
        with_layers(self.inode, &self.state, |l| l.get((t, offset)))
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
}

impl ItemsMut for WriteGuard<'_> {
    fn put(&mut self, h: &dyn Joined, t: ItemType, offset: u64, v: Box<[u8]>) {
        if !self.may_change() {
            return;
        }
        self.touch();
        self.note(h, (t, offset));
        if t == ItemType::EXTENT_DATA {
            // Whoever knows the item's length says so afterwards.
            self.state.extents_end = None;
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
    if state.gone || inode.subvol.is_deleted() { Err(FsError::Stale) } else { Ok(()) }
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

    /// Whether what is to be logged of it concerns no other inode: it is no directory, and its names are as the last
    /// commit has them, or as the log has them if it is there whole.
    pub(crate) fn is_nameless_change(&self) -> bool {
        let state = &self.state;
        let renamed = || {
            state.has_open_of(ItemType::INODE_REF)
                || state.has_open_of(ItemType::INODE_EXTREF)
                || state.fields.nlink == 0
        };
        let generation = self.inode.core().engine().generation();
        state.fields.kind() != crate::FileKind::Dir
            && state.moved != generation
            && match &state.log {
                Some(mark) if mark.generation == generation => !mark.renamed,
                _ => !renamed(),
            }
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
    /// whoever comes late checks for it ([`alive`](Self::alive)), and here nothing happens.
    fn may_change(&self) -> bool {
        debug_assert!(!self.state.gone, "{:?} is erased", self.inode);
        !self.state.gone
    }

    /// Enters the inode in the list of dirty ones, unless it is there.
    fn touch(&mut self) {
        let core = self.inode.core();
        let epoch = core.epoch();
        if self.state.listed != epoch {
            self.state.freeze();
            self.state.listed = epoch;
            core.list_dirty(self.inode, epoch);
        }
    }

    /// Tells the mark that the log has left, if it has, what has changed since.
    fn note(&mut self, h: &dyn Joined, slot: Slot) {
        let Some(mark) = &mut self.state.log else { return };
        if mark.generation != h.generation() {
            self.state.log = None;
        } else if mark.note(slot) {
            self.inode.core().log.renamed(self.inode);
        }
    }

    fn remove(&mut self, slot: Slot) {
        if self.is_fresh() { self.state.open.forget(slot) } else { self.state.open.set(slot, None) }
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
