//! A subvolume in memory: its root item and the numbers it gives out.
//!
//! The root item's file-level fields (flags, UUIDs, times, transaction numbers) are kept here; where the tree is,
//! how large, and which snapshot it was last part of are the engine's. A subvolume in which anything changed gets its
//! `ctransid` and `ctime` set when the transaction is frozen.
//!
//! The same type stands for a tree that is no subvolume (the root tree, the UUID tree), of which only items are kept.
//!
//! If there are many, those that nobody uses are dropped from memory after a commit ([`Subvols`]).
//!
//! Inodes hold it by [`Share`]s, one for each thread that makes inodes or loads them, so that threads which do do not all write to the count of
//! its holders, beside which all read its number.
//!
//! Locks: `root` is a leaf.
//! Not here: creating, snapshotting and deleting subvolumes (`subvolumes`).

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use oleo_format::{Generation, Ino, Key, RootFlags, RootItem, TreeId};
use oleo_lock::{Mutex, rank};

use crate::FsError;
use crate::object::Core;
use crate::object::fields::timespec_of;
use crate::options::Time;

/// On lines of its own.
#[repr(align(128))]
struct NextIno(AtomicU64);

/// A subvolume that is in use.
pub struct Subvol {
    id: TreeId,
    core: Arc<Core>,
    root: Mutex<rank::SubvolRoot, RootState>,
    /// The number the next inode gets; 0: not known yet.
    next_ino: NextIno,
    /// The epoch in which it was last entered in the list of dirty subvolumes.
    touched: AtomicU64,
    read_only: AtomicBool,
    deleted: AtomicBool,
    /// Snapshots of it that are under way.
    snapshots_begun: AtomicU32,
    /// It is a snapshot, or one was made of it: others may share its blocks.
    may_share: AtomicBool,
    /// Orphans that a crash left behind have been looked for.
    pub(crate) orphans_seen: AtomicBool,
}

/// A thread's part in a subvolume. On lines of its own, the count of its holders included.
#[repr(align(128))]
pub(crate) struct Share(Arc<Subvol>);

/// Shares that a thread finds again, at the place that the subvolume's number names.
const SHARES_KEPT: usize = 8;

thread_local! {
    /// Weakly, so that a subvolume which nobody uses can be dropped.
    static SHARES: RefCell<[Weak<Share>; SHARES_KEPT]> = const { RefCell::new([const { Weak::new() }; SHARES_KEPT]) };
}

impl Share {
    /// That of the calling thread.
    pub(crate) fn of(subvol: &Arc<Subvol>) -> Arc<Share> {
        let place = subvol.id.0 as usize % SHARES_KEPT;
        // Whatever is dropped here is dropped outside of the thread's places: it may be the last of a file system.
        let kept = SHARES.try_with(|shares| shares.borrow()[place].upgrade()).ok().flatten();
        if let Some(share) = kept.filter(|share| Arc::ptr_eq(&share.0, subvol)) {
            return share;
        }
        let share = Arc::new(Share(subvol.clone()));
        let _before =
            SHARES.try_with(|shares| std::mem::replace(&mut shares.borrow_mut()[place], Arc::downgrade(&share)));
        share
    }

    pub(crate) fn subvol(&self) -> &Arc<Subvol> {
        &self.0
    }
}

/// See [`Subvol::begin_snapshot`].
pub(crate) struct BeingShared<'s>(&'s Subvol);

impl Drop for BeingShared<'_> {
    fn drop(&mut self) {
        self.0.snapshots_begun.fetch_sub(1, Ordering::SeqCst);
    }
}

struct RootState {
    /// `None` for a tree that is no subvolume.
    item: Option<RootItem>,
    frozen: Option<Box<RootItem>>,
}

impl Subvol {
    pub(crate) fn new(core: Arc<Core>, id: TreeId, item: Option<RootItem>) -> Subvol {
        let read_only = item.as_ref().is_some_and(is_read_only);
        let may_share = item.as_ref().is_some_and(|item| item.last_snapshot.get() > 0);
        Subvol {
            id,
            core,
            root: Mutex::new(RootState { item, frozen: None }),
            next_ino: NextIno(AtomicU64::new(0)),
            touched: AtomicU64::new(0),
            read_only: AtomicBool::new(read_only),
            deleted: AtomicBool::new(false),
            snapshots_begun: AtomicU32::new(0),
            may_share: AtomicBool::new(may_share),
            orphans_seen: AtomicBool::new(false),
        }
    }

    /// A snapshot of it is under way while the answer lives.
    pub(crate) fn begin_snapshot(&self) -> BeingShared<'_> {
        self.snapshots_begun.fetch_add(1, Ordering::SeqCst);
        BeingShared(self)
    }

    /// A snapshot of it is about to be made.
    pub(crate) fn note_sharing(&self) {
        self.may_share.store(true, Ordering::SeqCst);
    }

    /// Whether others may share its blocks.
    pub(crate) fn may_share(&self) -> bool {
        self.may_share.load(Ordering::SeqCst)
    }

    /// Whether a snapshot is under way: what files have to themselves will be shared.
    pub(crate) fn is_being_shared(&self) -> bool {
        self.snapshots_begun.load(Ordering::SeqCst) > 0
    }

    /// Its number.
    pub fn id(&self) -> TreeId {
        self.id
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Its root item; addresses, sizes and `last_snapshot` may be older than the engine's.
    pub fn root_item(&self) -> Option<RootItem> {
        self.root.lock().item
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Fails if nothing may be changed.
    pub(crate) fn writable(&self) -> Result<(), FsError> {
        if self.core.opts.read_only {
            Err(FsError::ReadOnly(FsError::OPENED_FOR_READING))
        } else if self.is_read_only() {
            Err(FsError::ReadOnly("the subvolume is read-only"))
        } else if self.is_deleted() {
            Err(FsError::Stale)
        } else {
            Ok(())
        }
    }

    /// Whether it has been deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    pub(crate) fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
    }

    /// Changes the root item. The caller holds a handle or is in a stage.
    pub(crate) fn edit_root(self: &Arc<Self>, edit: impl FnOnce(&mut RootItem)) {
        let mut root = self.root.lock();
        if let Some(item) = &mut root.item {
            edit(item);
            self.read_only.store(is_read_only(item), Ordering::Release);
        }
        drop(root);
        self.core.list_dirty_subvol(self);
    }

    /// Notes that something changed in this epoch; true the first time.
    pub(crate) fn touch(&self, epoch: u64) -> bool {
        self.touched.load(Ordering::Relaxed) != epoch && self.touched.swap(epoch, Ordering::AcqRel) != epoch
    }

    pub(crate) fn freeze(&self, now: Time, generation: Generation) {
        let mut root = self.root.lock();
        if let Some(item) = &mut root.item {
            item.ctransid = generation.0.into();
            item.ctime = timespec_of(now);
        }
        root.frozen = root.item.map(Box::new);
    }

    pub(crate) fn frozen_item(&self) -> Option<RootItem> {
        if self.is_deleted() { None } else { self.root.lock().frozen.as_deref().copied() }
    }

    pub(crate) fn forget_frozen(&self) {
        self.root.lock().frozen = None;
    }

    /// Gives out `count` inode numbers in a row and returns the first.
    pub(crate) fn give_inos(&self, count: u64) -> Result<Ino, FsError> {
        let next = &self.next_ino.0;
        if next.load(Ordering::Acquire) == 0 {
            self.load_next_ino()?;
        }
        let first = next.fetch_add(count, Ordering::AcqRel);
        match first.checked_add(count) {
            Some(end) if end <= Ino::LAST.0 => Ok(Ino(first)),
            _ => Err(FsError::NoSpace),
        }
    }

    /// Sets the next number from the highest in the tree. All inodes that were ever given a number since this value was
    /// made came from here and, while they are not in the tree, keep it, so that the tree knows every other one.
    fn load_next_ino(&self) -> Result<(), FsError> {
        let engine = self.core.engine();
        let _reader = engine.reader();
        let root = engine.root(self.id)?.ok_or(FsError::NotFound)?;
        let mut cursor = engine.blocks().cursor(&root);
        cursor.seek_back(&Key::new(Ino::LAST.0, oleo_format::ItemType(u8::MAX), u64::MAX))?;
        let highest = cursor.current().map_or(0, |(key, _)| key.objectid).max(Ino::ROOT_DIR.0);
        let _ = self.next_ino.0.compare_exchange(0, highest + 1, Ordering::AcqRel, Ordering::Acquire);
        Ok(())
    }
}

fn is_read_only(item: &RootItem) -> bool {
    item.flags.get() & RootFlags::SUBVOL_RDONLY.bits() != 0
}

impl std::fmt::Debug for Subvol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subvol({})", self.id.0)
    }
}

/// Subvolumes that are kept whatever happens, a few megabytes. Beyond them those that nobody uses go when they have doubled.
/// Few in builds for tests, so that any test of some subvolumes meets it.
const KEPT_MIN: usize = if cfg!(debug_assertions) { 16 } else { 4096 };

/// Looks for one root item while subvolumes are dropped from memory time and again; each takes a commit.
const LOADS_MAX: usize = 1000;

/// The subvolumes in memory.
#[derive(Default)]
pub(crate) struct Subvols {
    known: HashMap<TreeId, Arc<Subvol>>,
    /// How often some were taken out. Who has read a root item meanwhile may have an old one.
    evictions: u64,
    /// So many are too many; 0: [`KEPT_MIN`].
    sweep_at: usize,
}

impl Subvols {
    pub(crate) fn ids(&self) -> impl Iterator<Item = TreeId> {
        self.known.keys().copied()
    }

    pub(crate) fn insert(&mut self, subvol: Arc<Subvol>) {
        self.known.insert(subvol.id, subvol);
    }

    pub(crate) fn remove(&mut self, id: TreeId) {
        self.evictions += 1;
        self.known.remove(&id);
    }

    /// If there are many, drops those that nobody uses and that are in the root tree since `durable`. Inodes in
    /// memory and the lists of what is dirty count as users, so what the engine has of the others is the newest.
    pub(crate) fn sweep(&mut self, durable: Generation) {
        if self.known.len() <= self.sweep_at.max(KEPT_MIN) {
            return;
        }
        let is_stored = |item: &RootItem| item.otransid.get() <= durable.0;
        self.known.retain(|_, subvol| {
            // The only handle is this one.
            let unused = Arc::get_mut(subvol).map(|subvol| subvol.root.get_mut());
            !unused.is_some_and(|root| root.frozen.is_none() && root.item.as_ref().is_some_and(is_stored))
        });
        self.known.shrink_to(KEPT_MIN);
        self.evictions += 1;
        self.sweep_at = 2 * self.known.len();
    }

    pub(crate) fn clear(&mut self) {
        self.evictions += 1;
        self.known.clear();
    }
}

impl Core {
    /// The tree of that number, a subvolume or one of the fixed trees.
    pub(crate) fn tree(self: &Arc<Self>, id: TreeId) -> Result<Arc<Subvol>, FsError> {
        for _ in 0..LOADS_MAX {
            let evictions = {
                let subvols = self.subvols.lock();
                if let Some(subvol) = subvols.known.get(&id) {
                    return Ok(subvol.clone());
                }
                subvols.evictions
            };
            let item =
                if id == TreeId::ROOT { None } else { Some(self.engine().root_item(id)?.ok_or(FsError::NotFound)?) };
            let durable = self.engine().durable();
            let mut subvols = self.subvols.lock();
            if subvols.evictions == evictions {
                let new = || Arc::new(Subvol::new(self.clone(), id, item.filter(|_| id.is_subvol())));
                let subvol = subvols.known.entry(id).or_insert_with(new).clone();
                self.note_subvol(&subvols, &subvol);
                subvols.sweep(durable);
                return Ok(subvol);
            }
        }
        Err(FsError::Busy("subvolumes come and go"))
    }

    /// One more is in memory.
    pub(crate) fn note_subvol(&self, known: &Subvols, subvol: &Subvol) {
        if !subvol.is_read_only() {
            self.engine().note_subvols(known.known.len());
        }
    }

    /// The subvolume of that number, unless it is being deleted.
    pub(crate) fn subvol(self: &Arc<Self>, id: TreeId) -> Result<Arc<Subvol>, FsError> {
        if !id.is_subvol() {
            return Err(FsError::NotFound);
        }
        let subvol = self.tree(id)?;
        let alive = subvol.root_item().is_some_and(|item| item.refs.get() > 0);
        if alive && !subvol.is_deleted() { Ok(subvol) } else { Err(FsError::NotFound) }
    }
}
