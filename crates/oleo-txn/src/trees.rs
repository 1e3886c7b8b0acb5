//! The trees of the volume as the open transaction sees them: root block and root item of each, loaded on first use.
//!
//! A commit looks only at the trees that it has changed, however many are known: their numbers are kept beside the map.
//!
//! Locks: rank 50, `RwLock` around a map; held for a look-up or a store, never over I/O; and the set of trees that are gone,
//! which is looked at under it.

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use oleo_format::{Generation, ItemType, Key, Logical, RootItem, TreeId};
use oleo_tree::{Blocks, TreeRoot};
use parking_lot::RwLock;

use crate::TxnError;

/// One tree.
#[derive(Clone)]
pub(crate) struct TreeState {
    pub(crate) root: TreeRoot,
    /// `None` for the root tree and the chunk tree, which the superblock names.
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

    /// As a root item tells.
    pub(crate) fn of(tree: TreeId, key: &Key, data: &[u8]) -> Result<TreeState, TxnError> {
        let item = RootItem::decode(data)?;
        let root = TreeRoot::on_disk(tree, Logical(item.bytenr.get()), Generation(item.generation.get()), item.level);
        Ok(TreeState { root, item: Some(item), key_offset: key.offset, changed: false })
    }

    pub(crate) fn key(&self) -> Key {
        Key::new(self.root.tree.0, ItemType::ROOT_ITEM, self.key_offset)
    }
}

#[derive(Default)]
struct Known {
    trees: HashMap<TreeId, TreeState>,
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
}

#[derive(Default)]
pub(crate) struct Trees {
    map: RwLock<Known>,
    /// Trees that were taken apart. Their numbers are not given out again, and whoever has just read their items from an
    /// older root tree must not bring them back.
    gone: RwLock<HashSet<TreeId>>,
}

impl Trees {
    pub(crate) fn peek(&self, tree: TreeId) -> Option<TreeState> {
        self.map.read().trees.get(&tree).cloned()
    }

    /// The root alone: the item beside it is several times as long.
    pub(crate) fn peek_root(&self, tree: TreeId) -> Option<TreeRoot> {
        self.map.read().trees.get(&tree).map(|t| t.root.clone())
    }

    pub(crate) fn set(&self, state: TreeState) {
        let mut known = self.map.write();
        known.note(state.root.tree, state.changed);
        known.trees.insert(state.root.tree, state);
    }

    pub(crate) fn remove(&self, tree: TreeId) {
        self.gone.write().insert(tree);
        let mut known = self.map.write();
        known.trees.remove(&tree);
        known.changed.remove(&tree);
        known.unsettled.remove(&tree);
    }

    /// Those whose root items are stale, in the order of their numbers.
    pub(crate) fn changed(&self) -> Vec<TreeState> {
        let known = self.map.read();
        known.changed.iter().filter_map(|tree| known.trees.get(tree)).cloned().collect()
    }

    /// Those that were looked at for changing since the last commit, in the order of their numbers.
    pub(crate) fn touched(&self) -> Vec<TreeState> {
        let known = self.map.read();
        let mut all: Vec<_> = known.unsettled.iter().filter_map(|tree| known.trees.get(tree)).cloned().collect();
        all.sort_unstable_by_key(|state| state.root.tree);
        all
    }

    pub(crate) fn update(&self, tree: TreeId, f: impl FnOnce(&mut TreeState)) {
        let mut known = self.map.write();
        if let Some(t) = known.trees.get_mut(&tree) {
            f(t);
            let changed = t.changed;
            known.note(tree, changed);
        }
    }

    /// Every root as it is now on disk: let go of the blocks in memory.
    pub(crate) fn committed(&self) {
        let mut known = self.map.write();
        for tree in std::mem::take(&mut known.unsettled) {
            if let Some(t) = known.trees.get_mut(&tree) {
                t.root = t.root.settled();
            }
        }
    }

    /// The tree's state, from memory or through the root tree.
    pub(crate) fn get(&self, blocks: &Blocks, tree: TreeId) -> Result<Option<TreeState>, TxnError> {
        if let Some(t) = self.peek(tree) {
            return Ok(Some(t));
        }
        let Some(root_tree) = self.peek(TreeId::ROOT) else { return Ok(None) };
        let Some(found) = find(blocks, &root_tree.root, tree)? else { return Ok(None) };
        // Somebody may have changed the tree between the look and now: what is there wins.
        let mut known = self.map.write();
        if self.gone.read().contains(&tree) {
            return Ok(None);
        }
        Ok(Some(known.trees.entry(tree).or_insert(found).clone()))
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
