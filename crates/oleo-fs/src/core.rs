//! What all inodes of an open file system share: the engine, the epoch, the list of dirty inodes, the cache, and the
//! hand-over of the delta to a commit.
//!
//! Normal path of a commit, called by the engine: (1) [`freeze`](DeltaSource::freeze) while no handle is out: the
//! epoch rises by one and the lists of dirty inodes and subvolumes are set aside; (2)
//! [`itemise`](DeltaSource::itemise) turns them into sorted changes, while new operations go on; (3)
//! [`published`](DeltaSource::published) once the new roots can be read: the frozen deltas are dropped.
//!
//! Invariants: an inode is in the open list exactly when its open delta belongs to the present epoch. The lists hold
//! the inodes by `Arc`, so that the cache cannot evict what is dirty.
//! Locks: a list's shard and a cache's shard are leaves, held for a push or a look-up.
//! Crash: memory only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oleo_format::{Ino, ItemType, Key, TreeId};
use oleo_lock::{Condvar, Mutex, rank};
use oleo_tree::{Change, Op};
use oleo_txn::{DeltaSource, Engine, Stage, TxnError};
use rayon::prelude::*;

use crate::cache::InodeCache;
use crate::delta::{Base, Direction, ItemMap, Slot, Value, Visit};
use crate::inode::{Inode, InodeFields, ItemFate};
use crate::options::{FsOptions, Time};
use crate::subvol::{Subvol, Subvols};
use crate::{FsError, InodeRef};

/// Changed items that weigh as much as a changed inode: few files with very many extents (clones) are pressure, too. More
/// than creating a file announces.
const ITEMS_PER_INODE: u64 = 16;

/// An inode that lost its last name less than this ago is expected to be closed soon, which frees its space.
const NAMELESS_AWAITED: Duration = Duration::from_secs(1);

/// Inodes that wait to be erased before those who remove names erase some, too: each stays in memory until then.
const EVICTABLE_MAX: usize = 4096;

/// Shards of the list of dirty inodes: a few times the number of threads that push in parallel.
const DIRTY_SHARDS: usize = 32;
/// Inodes that enter a shard between two looks at whether all shards hold too many.
const DIRTY_COUNT_STEP: usize = 64;
/// Inodes that one task itemises: enough to hide the cost of handing out the task.
const ITEMISE_CHUNK: usize = 2048;

/// What all inodes share.
pub struct Core {
    engine: Engine,
    pub(crate) opts: FsOptions,
    /// Rises by one with each freeze; starts at 1, so that 0 is "never".
    epoch: AtomicU64,
    dirty: [Mutex<rank::DirtyInodes, Vec<Listed>>; DIRTY_SHARDS],
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
    /// When the last name of an inode went that somebody held.
    nameless: Mutex<rank::Nameless, Option<Instant>>,
    /// There are more of them than should be, as of the last look.
    pub(crate) many_evictable: AtomicBool,
    /// Held while a directory moves to another one, so that nobody else changes who is whose ancestor.
    pub(crate) moving: Mutex<rank::Moving, ()>,
    /// The number the next new subvolume gets; 0: not known yet.
    pub(crate) next_tree: AtomicU64,
    /// Why the open transaction must not be committed.
    pub(crate) poisoned: Mutex<rank::FsPoisoned, Option<String>>,
    /// What a crash left without names has been looked for, in every subvolume that may be changed.
    pub(crate) orphans_seen: AtomicBool,
    /// What all files' data has in common.
    pub(crate) data: crate::data::Shared,
    /// Who waits for the log, and whose names it must learn.
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
            dirty: std::array::from_fn(|_| Mutex::default()),
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
        let shard = (inode.ino().0 >> 3) as usize % DIRTY_SHARDS;
        let mut list = self.dirty[shard].lock();
        list.push((inode.rank(), inode.clone()));
        let len = list.len();
        drop(list);
        if len.is_multiple_of(DIRTY_COUNT_STEP) {
            let all: usize = self.dirty.iter().map(|shard| shard.lock().len()).sum();
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

    /// More is dirty than the hard limit allows: operations wait for a commit.
    pub(crate) fn over_hard_limit(&self) -> bool {
        self.is_over(self.opts.dirty_inodes_max.saturating_mul(2))
    }

    fn is_over(&self, inodes: usize) -> bool {
        let items = u64::try_from(inodes).unwrap_or(u64::MAX).saturating_mul(ITEMS_PER_INODE);
        self.dirty_inodes.load(Ordering::Relaxed) > inodes || self.engine.open_items() > items
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
            let gone = std::mem::take(&mut *shard.lock());
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

    /// Takes note that an inode has lost its last name that somebody holds.
    pub(crate) fn note_nameless(&self) {
        *self.nameless.lock() = Some(Instant::now());
    }

    /// Whether an inode lost its last name a moment ago, so that it may be closed in the next.
    pub(crate) fn awaits_eviction(&self) -> bool {
        self.nameless.lock().is_some_and(|at| at.elapsed() < NAMELESS_AWAITED)
    }

    /// The inode of that number, or `None` if the subvolume has none.
    pub(crate) fn inode(&self, subvol: &Arc<Subvol>, ino: Ino) -> Result<Option<Arc<Inode>>, FsError> {
        self.cache.get_or_load((subvol.id(), ino.0), || {
            let base = TreeBase { core: self, tree: subvol.id(), objectid: ino.0 };
            let Some(item) = base.get((ItemType::INODE_ITEM, 0))? else { return Ok(None) };
            let fields = InodeFields::parse(&item, Key::new(ino.0, ItemType::INODE_ITEM, 0))?;
            Ok(Some(Arc::new(Inode::new(subvol.clone(), ino, fields, false))))
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
            Ok(Some(Arc::new(Inode::new(subvol.clone(), Ino(objectid), InodeFields::default(), false))))
        })?;
        loaded.ok_or(FsError::NotFound)
    }
}

impl DeltaSource for Core {
    fn release_idle_reservations(&self) -> bool {
        self.data.release_idle_reservations()
    }

    fn freeze(&self) {
        let mut frozen = self.frozen.lock();
        assert!(frozen.inodes.is_empty() && frozen.subvols.is_empty(), "the last freeze has been published");
        frozen.epoch = self.epoch.fetch_add(1, Ordering::AcqRel);
        self.log.forget();
        self.dirty_inodes.store(0, Ordering::Relaxed);
        for shard in &self.dirty {
            frozen.inodes.append(&mut shard.lock());
        }
        frozen.subvols = std::mem::take(&mut self.dirty_subvols.lock());
        let (now, generation) = (self.now(), self.engine.generation());
        for subvol in &frozen.subvols {
            subvol.freeze(now, generation);
        }
    }

    fn itemise(&self) -> Result<Stage, TxnError> {
        self.check_not_poisoned()?;
        let mut frozen = self.frozen.lock();
        let epoch = frozen.epoch;
        // Each shard is sorted by and large, which a stable sort makes use of.
        frozen.inodes.par_sort_by_key(|listed| listed.0);
        frozen.subvols.sort_unstable_by_key(|s| s.id());
        let parts: Vec<Vec<(TreeId, Vec<Change>)>> =
            frozen.inodes.par_chunks(ITEMISE_CHUNK).map(|chunk| itemise_chunk(chunk, epoch)).collect();
        let mut lens: Vec<(TreeId, usize)> = Vec::new();
        for (tree, changes) in parts.iter().flatten() {
            match lens.last_mut() {
                Some(last) if last.0 == *tree => last.1 += changes.len(),
                _ => lens.push((*tree, changes.len())),
            }
        }
        let mut trees: Vec<(TreeId, Vec<Change>)> =
            lens.into_iter().map(|(tree, len)| (tree, Vec::with_capacity(len))).collect();
        let mut to = 0;
        for (tree, mut changes) in parts.into_iter().flatten() {
            while trees[to].0 != tree {
                to += 1;
            }
            trees[to].1.append(&mut changes);
        }
        let root_items = frozen.subvols.iter().filter_map(|s| Some((s.id(), s.frozen_item()?))).collect();
        Ok(Stage { trees, root_items })
    }

    fn published(&self) {
        let (epoch, inodes, subvols) = {
            let mut frozen = self.frozen.lock();
            (frozen.epoch, std::mem::take(&mut frozen.inodes), std::mem::take(&mut frozen.subvols))
        };
        inodes.par_iter().with_min_len(ITEMISE_CHUNK).for_each(|(_, inode)| {
            if inode.forget_frozen(epoch) {
                self.cache.remove((inode.tree(), inode.ino().0));
            }
        });
        for subvol in &subvols {
            subvol.forget_frozen();
        }
        drop((inodes, subvols));
        self.cache.trim();
        let durable = self.engine.durable();
        self.subvols.lock().sweep(durable);
    }
}

/// The changes of some inodes, which are sorted by tree and number.
fn itemise_chunk(inodes: &[Listed], epoch: u64) -> Vec<(TreeId, Vec<Change>)> {
    let mut trees: Vec<(TreeId, Vec<Change>)> = Vec::new();
    for (_, inode) in inodes {
        if inode.subvol().is_deleted() {
            continue;
        }
        if trees.last().is_none_or(|t| t.0 != inode.tree()) {
            trees.push((inode.tree(), Vec::with_capacity(inodes.len() * 2)));
        }
        if let Some((_, changes)) = trees.last_mut() {
            inode.itemise(epoch, |items, fate, fields| itemise_inode(inode, items, fate, fields, changes));
        }
    }
    trees
}

/// One inode's changes in key order: the inode item's type is the lowest.
fn itemise_inode(inode: &Inode, items: &ItemMap, fate: ItemFate, fields: &InodeFields, changes: &mut Vec<Change>) {
    let item = inode.key(ItemType::INODE_ITEM, 0);
    match fate {
        ItemFate::Clean => {}
        ItemFate::Dirty => changes.push(Change { key: item, op: Op::Put(fields.encode()) }),
        ItemFate::Deleted => changes.push(Change { key: item, op: Op::Delete }),
    }
    changes.reserve(items.len());
    items.for_each(|(t, offset), fate| {
        let op = match fate {
            Some(bytes) => Op::Put(bytes.clone()),
            None => Op::Delete,
        };
        changes.push(Change { key: inode.key(t, offset), op });
    });
}

/// The items of one object in a tree, at the newest root when it is asked.
pub(crate) struct TreeBase<'a> {
    pub(crate) core: &'a Core,
    pub(crate) tree: TreeId,
    pub(crate) objectid: u64,
}

impl Base for TreeBase<'_> {
    fn get(&self, slot: Slot) -> Result<Option<Value>, FsError> {
        let _reader = self.core.engine.reader();
        let Some(root) = self.core.engine.root(self.tree)? else { return Ok(None) };
        let key = Key::new(self.objectid, slot.0, slot.1);
        Ok(self.core.engine.blocks().get(&root, &key)?.map(Value::InTree))
    }

    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), FsError> {
        let _reader = self.core.engine.reader();
        let Some(root) = self.core.engine.root(self.tree)? else { return Ok(()) };
        let (low, high) = (Key::new(self.objectid, t, from), Key::new(self.objectid, t, to_incl));
        let mut cursor = self.core.engine.blocks().cursor(&root);
        match direction {
            Direction::Up => cursor.seek(&low)?,
            Direction::Down => cursor.seek_back(&high)?,
        };
        while let Some((key, bytes)) = cursor.current() {
            if key < low || key > high || visit(key.offset, bytes).is_break() {
                break;
            }
            match direction {
                Direction::Up => cursor.next()?,
                Direction::Down => cursor.prev()?,
            };
        }
        Ok(())
    }
}
