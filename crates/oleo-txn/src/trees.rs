//! The trees of the volume as the open transaction sees them: root block and root item of each, loaded on first use.
//!
//! A commit looks only at the trees that it has changed, however many are known: their numbers are kept beside the map.
//!
//! At the end of a commit the root tree has everything, and if there are many subvolumes ([`KEPT_MIN`]) their states
//! are evicted. So a state may disappear whenever no commit and no stage is running; inside one, states that were looked up
//! stay. A reader of a root item meanwhile counts evictions ([`Known::evictions`]), since what it has read may be older.
//!
//! Each look-up needs the newest root of its tree. A thread keeps copies of the roots it used last ([`Trees::peek_root`], `copies`) and compares
//! the number of changes, which only commits and stages raise: so a look-up takes no lock and writes nothing.
//!
//! Locks: that of the map, held for a look-up or a store, never over I/O; and that of the set of trees that are gone, a leaf,
//! which is looked at under it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use oleo_format::{Generation, ItemType, Key, Logical, RootItem, TreeId};
use oleo_lock::{RwLock, rank};
use oleo_tree::{Blocks, DropProgress, TreeRoot};

use crate::TxnError;
use crate::copies::{Copied, Counted};

/// One tree.
#[derive(Clone)]
pub(crate) struct TreeState {
    pub(crate) root: TreeRoot,
    /// `None` for the root tree, the chunk tree and the remap tree, which the superblock names.
    pub(crate) item: Option<RootItem>,
    /// The offset of the root item's key: the generation of its making for snapshots, else 0.
    pub(crate) key_offset: u64,
    /// The root item in the root tree does not say this yet.
    pub(crate) changed: bool,
}

impl TreeState {
    /// The last snapshot's generation, for trees whose blocks may be shared.
    pub(crate) fn last_snapshot(&self) -> Option<Generation> {
        let shareable = self.root.tree.is_shareable();
        shareable.then(|| Generation(self.item.as_ref().map_or(0, |i| i.last_snapshot.get())))
    }

    /// According to a root item.
    pub(crate) fn of(tree: TreeId, key: &Key, data: &[u8]) -> Result<TreeState, TxnError> {
        let item = RootItem::decode(data)?;
        let root = TreeRoot::on_disk(tree, Logical(item.bytenr.get()), Generation(item.generation.get()), item.level);
        Ok(TreeState { root, item: Some(item), key_offset: key.offset, changed: false })
    }

    /// How far the deletion of the tree has come, if it has begun.
    pub(crate) fn drop_progress(&self) -> Option<DropProgress> {
        let item = self.item.as_ref()?;
        let begun = item.refs.get() == 0 && item.drop_level > 0;
        begun.then(|| DropProgress { key: item.drop_progress.into(), level: item.drop_level, backref_conversion: None })
    }

    pub(crate) fn key(&self) -> Key {
        Key::new(self.root.tree.0, ItemType::ROOT_ITEM, self.key_offset)
    }
}

/// States that are kept whatever happens, a few megabytes. Beyond them those of subvolumes go when they have doubled. Few in
/// builds for tests, so that any test of some subvolumes meets it.
const KEPT_MIN: usize = if cfg!(debug_assertions) { 16 } else { 4096 };

/// Looks into the root tree for one state, while others are evicted time and again; each takes a commit.
const LOOKS_MAX: usize = 1000;

#[derive(Default)]
struct Known {
    trees: HashMap<TreeId, TreeState>,
    /// How often states were evicted.
    evictions: u64,
    /// So many states are too many; 0: [`KEPT_MIN`].
    sweep_at: usize,
    /// Those that are `changed`.
    changed: BTreeSet<TreeId>,
    /// Those whose roots may hold blocks that are not on disk.
    unsettled: HashSet<TreeId>,
}

impl Known {
    /// Keeps the sets right after a tree's state was replaced or changed.
    fn note(&mut self, tree: TreeId, changed: bool) {
        self.unsettled.insert(tree);
        if changed {
            self.changed.insert(tree)
        } else {
            self.changed.remove(&tree)
        };
    }

    /// Evicts the subvolumes that are as the root tree has them, if there are many.
    fn sweep(&mut self) {
        if self.trees.len() <= self.sweep_at.max(KEPT_MIN) {
            return;
        }
        let unsettled = &self.unsettled;
        self.trees.retain(|tree, state| !tree.is_subvol() || state.changed || unsettled.contains(tree));
        self.trees.shrink_to(KEPT_MIN);
        self.evictions += 1;
        self.sweep_at = 2 * self.trees.len();
    }
}

/// Roots that a thread keeps; those of one file system's subvolume, its bookkeeping trees, and a few more.
const ROOTS_KEPT: usize = 8;

/// A copy of a root of the trees with that number.
struct Kept {
    trees: u64,
    root: Copied<TreeRoot>,
}

thread_local! {
    /// The roots that this thread used last, at the place that the tree's number names.
    static KEPT: RefCell<[Option<Kept>; ROOTS_KEPT]> = const { RefCell::new([const { None }; ROOTS_KEPT]) };
}

pub(crate) struct Trees {
    /// Tells apart the trees of several engines.
    number: u64,
    map: Counted<RwLock<rank::Trees, Known>>,
    /// Levels of the highest tree so far.
    pub(crate) levels: Arc<AtomicU64>,
    /// Trees that were taken apart. Their numbers are not given out again, and a thread that has just read their items from an
    /// older root tree must not bring them back.
    gone: RwLock<rank::TreesGone, HashSet<TreeId>>,
}

impl Default for Trees {
    fn default() -> Trees {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Trees {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            map: Counted::new(RwLock::default()),
            levels: Arc::default(),
            gone: RwLock::default(),
        }
    }
}

impl Trees {
    /// The root alone: the item beside it is several times as long.
    pub(crate) fn peek_root(&self, tree: TreeId) -> Option<TreeRoot> {
        KEPT.with_borrow_mut(|kept| {
            let place = &mut kept[tree.0 as usize % ROOTS_KEPT];
            if let Some(kept) = place
                && kept.trees == self.number
                && kept.root.part.tree == tree
                && self.map.is_newest(&kept.root)
            {
                return Some(kept.root.part.clone());
            }
            let copied = self.map.copy(|known| known.trees.get(&tree).map(|state| state.root.clone()))?;
            let root = copied.part.clone();
            // One with blocks that are not on disk would keep them all in memory for as long as this thread does nothing.
            *place = root.is_settled().then_some(Kept { trees: self.number, root: copied });
            Some(root)
        })
    }

    pub(crate) fn set(&self, state: TreeState) {
        self.note_levels(&state);
        self.map.change(|known| {
            known.note(state.root.tree, state.changed);
            known.trees.insert(state.root.tree, state);
        });
    }

    fn note_levels(&self, state: &TreeState) {
        self.levels.fetch_max(u64::from(state.root.level) + 1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, tree: TreeId) {
        self.gone.write().insert(tree);
        self.map.change(|known| {
            known.trees.remove(&tree);
            known.changed.remove(&tree);
            known.unsettled.remove(&tree);
        });
    }

    /// Whether it was taken apart since the volume was opened.
    pub(crate) fn is_gone(&self, tree: TreeId) -> bool {
        self.gone.read().contains(&tree)
    }

    /// Those whose root items are stale, in the order of their numbers.
    pub(crate) fn changed(&self) -> Vec<TreeState> {
        let known = self.map.value.read();
        known.changed.iter().filter_map(|tree| known.trees.get(tree)).cloned().collect()
    }

    /// Those that were looked at for changing since the last commit, in the order of their numbers.
    pub(crate) fn touched(&self) -> Vec<TreeState> {
        let known = self.map.value.read();
        let mut all: Vec<_> = known.unsettled.iter().filter_map(|tree| known.trees.get(tree)).cloned().collect();
        all.sort_unstable_by_key(|state| state.root.tree);
        all
    }

    /// Changes a state that was looked up in this commit or stage.
    pub(crate) fn update(&self, tree: TreeId, f: impl FnOnce(&mut TreeState)) {
        self.map.change(|known| {
            debug_assert!(known.trees.contains_key(&tree), "{tree} is changed and was not looked up");
            if let Some(t) = known.trees.get_mut(&tree) {
                f(t);
                let changed = t.changed;
                known.note(tree, changed);
            }
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.map.value.read().trees.len()
    }

    /// Every root as it is now is on disk, and so are the items: drops the blocks in memory, and states.
    pub(crate) fn committed(&self) {
        self.map.change(|known| {
            for tree in std::mem::take(&mut known.unsettled) {
                if let Some(t) = known.trees.get_mut(&tree) {
                    t.root = t.root.settled();
                }
            }
            known.sweep();
        });
    }

    /// The tree's state, from memory or through the root tree. Outside of a commit the caller has a reader.
    pub(crate) fn get(&self, blocks: &Blocks, tree: TreeId) -> Result<Option<TreeState>, TxnError> {
        for _ in 0..LOOKS_MAX {
            let (evictions, root_tree) = {
                let known = self.map.value.read();
                if let Some(state) = known.trees.get(&tree) {
                    return Ok(Some(state.clone()));
                }
                let Some(root_tree) = known.trees.get(&TreeId::ROOT) else { return Ok(None) };
                (known.evictions, root_tree.root.clone())
            };
            let found = find(blocks, &root_tree, tree)?;
            // Somebody may have changed the tree between the look and now: what is there wins, …
            let mut known = self.map.value.write();
            if self.is_gone(tree) {
                return Ok(None);
            }
            if let Some(state) = known.trees.get(&tree) {
                return Ok(Some(state.clone()));
            }
            // … and what was there may have been evicted again.
            if known.evictions == evictions {
                return Ok(found.inspect(|state| {
                    self.note_levels(state);
                    known.trees.insert(tree, state.clone());
                }));
            }
        }
        Err(TxnError::Refused(format!("tree {} is not found in time", tree.0)))
    }
}

/// Reads the newest root item of `tree`.
pub(crate) fn find(blocks: &Blocks, root_tree: &TreeRoot, tree: TreeId) -> Result<Option<TreeState>, TxnError> {
    let mut cursor = blocks.cursor(root_tree);
    if !cursor.seek_back(&Key::new(tree.0, ItemType::ROOT_ITEM, u64::MAX))? {
        return Ok(None);
    }
    let Some((key, data)) = cursor.current() else { return Ok(None) };
    if key.objectid != tree.0 || key.item_type != ItemType::ROOT_ITEM {
        return Ok(None);
    }
    Ok(Some(TreeState::of(tree, &key, data)?))
}
