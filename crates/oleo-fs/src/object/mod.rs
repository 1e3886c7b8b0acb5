//! What is in memory of an open file system: inodes, subvolumes, and what all of them share (`Core`).
//!
//! An operation joins the transaction, locks its inodes (`guard`) and changes their items and fields (`items`); the changes are kept with
//! the inode (`inode`, `delta`) until a commit takes them (`commit`). An inode is found by its number (`cache`), a subvolume by the
//! number of its tree (`subvol`); users hold a `handle`. What an inode holds for its data and for the log is defined in `data` and `log`.
//!
//! Invariants: an inode is in the open list exactly when its open delta belongs to the present epoch. The lists hold
//! the inodes by `Arc`, so that the cache cannot evict what is dirty.
//! Locks: a list's shard and a cache's shard are leaves, held for a push or a look-up.
//! Crash: memory only.
//! Not here: operations, and the forms of items.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oleo_format::{Generation, Ino, ItemType, Key, TreeId};
use oleo_lock::{Condvar, Mutex, rank};
use oleo_txn::{Engine, TxnError, thread_number};

mod cache;
mod commit;
mod delta;
#[cfg(debug_assertions)]
mod ends;
mod fields;
mod guard;
mod handle;
mod inode;
mod items;
mod known;
mod subvol;
mod tree_base;

pub use delta::{Direction, Seen, Value, Visit};
pub use fields::InodeFields;
pub use guard::{LockedSet, ReadGuard, WriteGuard, lock_all};
pub use handle::InodeRef;
pub use inode::Inode;
pub use items::{Items, ItemsMut, Joined};
pub use subvol::Subvol;

pub(crate) use delta::Slot;
pub(crate) use fields::{time_of, timespec_of};
pub(crate) use inode::{InodeState, ORPHAN_OBJECT};

use cache::InodeCache;
use delta::Base;
use subvol::Subvols;
use tree_base::TreeBase;

use crate::FsError;
use crate::options::{FsOptions, Time};

/// Changed items that weigh as much as a changed inode: few files with very many extents (clones) are pressure, too. More
/// than creating a file announces.
const ITEMS_PER_INODE: u64 = 16;

/// An inode that lost its last name less than this ago is expected to be closed soon, which frees its space.
const NAMELESS_AWAITED: Duration = Duration::from_secs(1);

/// Inodes that wait to be erased before operations that remove names erase some, too: each stays in memory until then.
pub(crate) const EVICTABLE_MAX: usize = 4096;

/// Shards of the list of dirty inodes: more threads than that share them.
const DIRTY_SHARDS: usize = 64;
/// Inodes that enter a shard between two looks at whether all shards hold too many.
const DIRTY_COUNT_STEP: usize = 64;

/// On lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct OnLines<T>(T);

/// A shard of the list of dirty inodes.
#[derive(Default)]
struct DirtyShard {
    list: OnLines<Mutex<rank::DirtyInodes, Vec<Listed>>>,
    /// As many as there are in it, in steps of [`DIRTY_COUNT_STEP`]. Read without the lock by those who add up, so not written each time.
    len: OnLines<AtomicUsize>,
}

/// What all inodes share.
pub(crate) struct Core {
    engine: Engine,
    pub(crate) opts: FsOptions,
    /// Rises by one with each freeze; starts at 1, so that 0 is "never".
    epoch: AtomicU64,
    dirty: Box<[DirtyShard]>,
    /// How many inodes are dirty, as of the last look.
    dirty_inodes: AtomicUsize,
    /// Held by the one operation that commits because they are too many.
    pub(crate) throttling: Mutex<rank::Throttling, ()>,
    /// Somebody commits in the background.
    pub(crate) has_background_committer: AtomicBool,
    /// Held by the background committer while it checks whether to commit, until it waits for `commit_wanted`.
    pub(crate) waiting: Mutex<rank::CommitWanted, ()>,
    /// There are too many dirty inodes.
    pub(crate) commit_wanted: Condvar,
    dirty_subvols: Mutex<rank::DirtySubvols, Vec<Arc<Subvol>>>,
    /// Set aside by `freeze`, emptied by `published`.
    frozen: Mutex<rank::Frozen, FrozenList>,
    pub(crate) cache: InodeCache,
    pub(crate) subvols: Mutex<rank::Subvols, Subvols>,
    /// Unlinked inodes whose last handle is gone.
    pub(crate) evictable: Mutex<rank::Evictable, VecDeque<Arc<Inode>>>,
    /// When an inode last lost its last name while a handle was out.
    nameless: Mutex<rank::Nameless, Option<Instant>>,
    /// There are more of them than should be, as of the last look.
    pub(crate) many_evictable: AtomicBool,
    /// Held while a directory moves to another one, so that nobody else changes who is whose ancestor.
    pub(crate) moving: Mutex<rank::Moving, ()>,
    /// The number the next new subvolume gets; 0: not known yet.
    pub(crate) next_tree: AtomicU64,
    /// Why the open transaction must not be committed.
    pub(crate) poisoned: Mutex<rank::FsPoisoned, Option<String>>,
    /// Inodes that a crash left without names have been looked for, in every subvolume that may be changed.
    pub(crate) orphans_seen: AtomicBool,
    /// What all files' data has in common.
    pub(crate) data: crate::data::Shared,
    /// Callers that wait for the log, and inodes whose names have changed since they were logged.
    pub(crate) log: crate::log::Shared,
}

/// A dirty inode, with its rank beside it so that sorting does not touch the inode.
type Listed = ((TreeId, Ino), Arc<Inode>);

#[derive(Default)]
struct FrozenList {
    epoch: u64,
    inodes: Vec<Listed>,
    subvols: Vec<Arc<Subvol>>,
}

impl Core {
    pub(crate) fn new(engine: Engine, opts: FsOptions) -> Core {
        Core {
            engine,
            epoch: AtomicU64::new(1),
            dirty: (0..DIRTY_SHARDS).map(|_| DirtyShard::default()).collect(),
            dirty_inodes: AtomicUsize::new(0),
            throttling: Mutex::default(),
            has_background_committer: AtomicBool::new(false),
            waiting: Mutex::default(),
            commit_wanted: Condvar::new(),
            dirty_subvols: Mutex::default(),
            frozen: Mutex::default(),
            cache: InodeCache::new(opts.inodes_max),
            subvols: Mutex::default(),
            evictable: Mutex::default(),
            nameless: Mutex::default(),
            many_evictable: AtomicBool::new(false),
            moving: Mutex::default(),
            next_tree: AtomicU64::new(0),
            poisoned: Mutex::default(),
            orphans_seen: AtomicBool::new(false),
            data: crate::data::Shared::new(&opts.data),
            log: crate::log::Shared::default(),
            opts,
        }
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The time that new timestamps get.
    pub fn now(&self) -> Time {
        self.opts.clock.now()
    }

    /// The present epoch. Stable while a handle is out.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Enters an inode that is changed for the first time in this epoch.
    pub(crate) fn list_dirty(&self, inode: &Arc<Inode>, epoch: u64) {
        let shard = &self.dirty[thread_number() % DIRTY_SHARDS];
        let mut list = shard.list.0.lock();
        list.push((inode.rank(), inode.clone()));
        let len = list.len();
        let is_step = len.is_multiple_of(DIRTY_COUNT_STEP);
        if is_step {
            shard.len.0.store(len, Ordering::Relaxed);
        }
        drop(list);
        if is_step {
            let all: usize = self.dirty.iter().map(|shard| shard.len.0.load(Ordering::Relaxed)).sum();
            self.dirty_inodes.store(all, Ordering::Relaxed);
        }
        if inode.subvol().touch(epoch) {
            self.dirty_subvols.lock().push(inode.subvol().clone());
        }
    }

    /// More is dirty than the soft limit allows: somebody should commit.
    pub(crate) fn over_soft_limit(&self) -> bool {
        self.is_over(self.opts.dirty_inodes_max)
    }

    /// So many quarters of the way to the hard limit are behind.
    pub(crate) fn over_soft_limit_by(&self, quarters: usize) -> bool {
        let soft = self.opts.dirty_inodes_max;
        self.is_over(soft.saturating_add((soft / 4).saturating_mul(quarters)))
    }

    /// More is dirty than the hard limit allows: operations wait for a commit.
    pub(crate) fn over_hard_limit(&self) -> bool {
        self.is_over(self.opts.dirty_inodes_max.saturating_mul(2))
    }

    fn is_over(&self, inodes: usize) -> bool {
        let items = u64::try_from(inodes).unwrap_or(u64::MAX).saturating_mul(ITEMS_PER_INODE);
        self.dirty_inodes.load(Ordering::Relaxed) > inodes || self.engine.has_open_items_over(items)
    }

    /// Enters a subvolume whose root item has changed.
    pub(crate) fn list_dirty_subvol(&self, subvol: &Arc<Subvol>) {
        if subvol.touch(self.epoch()) {
            self.dirty_subvols.lock().push(subvol.clone());
        }
    }

    /// Drops the lists of dirty inodes: for the end, when nothing is committed any more.
    pub(crate) fn forget_dirty(&self) {
        for shard in &self.dirty {
            let gone = std::mem::take(&mut *shard.list.0.lock());
            drop(gone);
        }
        let gone = std::mem::take(&mut *self.dirty_subvols.lock());
        drop(gone);
        let gone = std::mem::take(&mut *self.frozen.lock());
        drop(gone);
    }

    /// Queues an unlinked inode whose last handle is gone; the next step of the cleaner deletes it.
    pub(crate) fn queue_eviction(&self, inode: Arc<Inode>) {
        let mut evictable = self.evictable.lock();
        evictable.push_back(inode);
        self.many_evictable.store(evictable.len() > EVICTABLE_MAX, Ordering::Relaxed);
    }

    /// Notes that an inode has lost its last name while a handle is out.
    pub(crate) fn note_nameless(&self) {
        // Where there is no clock nobody waits.
        *self.nameless.lock() = (!cfg!(target_family = "wasm")).then(Instant::now);
    }

    /// Whether an inode lost its last name a moment ago, so that it may be closed in the next.
    pub(crate) fn awaits_eviction(&self) -> bool {
        self.nameless.lock().is_some_and(|at| at.elapsed() < NAMELESS_AWAITED)
    }

    /// The inode of that number, or `None` if the subvolume has none.
    pub(crate) fn inode(&self, subvol: &Arc<Subvol>, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        self.cache.get_or_load((subvol.id(), ino.0), || {
            let base = TreeBase { core: self, tree: subvol.id(), objectid: ino.0 };
            let mut fields = None;
            let key = Key::new(ino.0, ItemType::INODE_ITEM, 0);
            base.see((ItemType::INODE_ITEM, 0), &mut |item| {
                fields = item.map(|item| InodeFields::parse(item, key));
            })?;
            let Some(fields) = fields.transpose()? else { return Ok(None) };
            Ok(Some(Arc::new(Inode::new(subvol, ino, fields, false))))
        })
    }

    /// A handle to the inode of that number, unless it is deleted.
    pub(crate) fn handle(&self, subvol: &Arc<Subvol>, ino: Ino) -> Result<Option<InodeRef>, FsError> {
        let Some(inode) = self.inode(subvol, ino)? else { return Ok(None) };
        let handle = InodeRef::new(inode);
        let alive = handle.read().alive().is_ok();
        Ok(alive.then_some(handle))
    }

    /// An object that is no inode: its items are kept like an inode's.
    pub(crate) fn object(self: &Arc<Self>, tree: TreeId, objectid: u64) -> Result<Arc<Inode>, FsError> {
        let subvol = self.tree(tree)?;
        let loaded = self.cache.get_or_load((tree, objectid), || {
            Ok(Some(Arc::new(Inode::new(&subvol, Ino(objectid), InodeFields::default(), false))))
        })?;
        loaded.ok_or(FsError::NotFound)
    }

    /// Drops what holds the core itself in a circle.
    pub(crate) fn close(&self) {
        self.evictable.lock().clear();
        self.cache.clear();
        self.subvols.lock().clear();
        self.forget_dirty();
        self.log.forget_before(Generation(u64::MAX));
        self.data.forget();
    }

    /// An operation failed half way, which only a broken disk can do: nothing may be committed any more, or half of it
    /// would be.
    pub(crate) fn poison(&self, error: &FsError) {
        let mut poisoned = self.poisoned.lock();
        if poisoned.is_none() {
            *poisoned = Some(format!("an operation failed half way: {error}"));
        }
    }

    /// Runs changes that belong together: if one fails after others were made, nothing may be committed.
    pub(crate) fn poison_on_error<R>(&self, changes: impl FnOnce() -> Result<R, FsError>) -> Result<R, FsError> {
        changes().inspect_err(|e| self.poison(e))
    }

    pub(crate) fn check_not_poisoned(&self) -> Result<(), TxnError> {
        match &*self.poisoned.lock() {
            Some(why) => Err(TxnError::Source(why.as_str().into())),
            None => Ok(()),
        }
    }

    /// The key of the highest item at or below a key, in a tree as it is now.
    pub(crate) fn highest(&self, tree: TreeId, at_or_below: Key) -> Result<Option<Key>, FsError> {
        let _reader = self.engine().reader();
        let Some(root) = self.engine().root(tree)? else { return Ok(None) };
        let mut cursor = self.engine().blocks().cursor(&root);
        cursor.seek_back(&at_or_below)?;
        Ok(cursor.key())
    }
}
