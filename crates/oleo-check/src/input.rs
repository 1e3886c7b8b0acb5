//! What the core gives to the checks of files: trees, their items in key order, and facts about the volume.
//!
//! Trees of files are checked in two steps, so that a block shared by 64 snapshots is read only once. (1)
//! `LeafSummary::of_leaf` turns every leaf into a [`LeafSummary`](crate::files::LeafSummary), once. Summaries join: the
//! summaries of two adjacent runs of leaves give that of the longer run. So the summary of a subtree is computed once
//! however many trees share it, and the summary of a tree is that of its root (`reduce`). (2) `Forest::tree` checks a
//! tree from its summary. If something does not add up, it reads that tree alone again, in key order, to name the items
//! at fault.
//!
//! Trees that snapshots do not share (root tree, uuid, quota, log) are read in key order with [`Input::each`].

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use oleo_format::{Generation, ItemType, Key, Logical, NodeExpect, NodeRules, RootItem, SuperBlock, TreeId};
use oleo_volume::Volume;

use crate::Finding;

/// The start of a tree: its root block and root item.
#[derive(Clone, Debug)]
pub(crate) struct TreeStart {
    /// The tree.
    pub tree: TreeId,
    /// The key of its root item; for trees without one, a key with its number.
    pub key: Key,
    /// Its root block.
    pub logical: Logical,
    /// The transaction that wrote the root block.
    pub generation: Generation,
    /// The level of the root block.
    pub level: u8,
    /// Its root item; zeros for the root, chunk and log root tree, which have none.
    pub item: RootItem,
}

impl TreeStart {
    /// A tree with a root item.
    pub fn of_item(key: Key, item: RootItem) -> TreeStart {
        TreeStart {
            tree: TreeId(key.objectid),
            key,
            logical: Logical(item.bytenr.get()),
            generation: Generation(item.generation.get()),
            level: item.level,
            item,
        }
    }

    /// A tree that the superblock names.
    pub fn of_super(tree: TreeId, logical: u64, generation: u64, level: u8) -> TreeStart {
        TreeStart {
            tree,
            key: Key::new(tree.0, ItemType::ROOT_ITEM, 0),
            logical: Logical(logical),
            generation: Generation(generation),
            level,
            item: RootItem::default(),
        }
    }

    /// For a tree that is being deleted: the first key it still has, and the level of the node that key is in.
    pub fn drop_progress(&self) -> Option<(Key, u8)> {
        let key = Key::from(self.item.drop_progress);
        (key != Key::MIN).then_some((key, self.item.drop_level))
    }
}

/// Facts about the whole volume.
#[derive(Debug)]
pub(crate) struct Env {
    /// The superblock that the volume was opened with.
    pub sb: SuperBlock,
    /// The rules all tree blocks follow.
    pub rules: NodeRules,
}

/// How many bytes of extents are reached by exactly these trees. Each extent counts once, in the set of all trees that
/// reach it.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Subvolumes, rising.
    pub trees: Vec<TreeId>,
    /// Bytes on disk, data and tree blocks.
    pub bytes: u64,
}

/// The usage that quota's numbers are compared with.
#[derive(Clone, Debug)]
pub(crate) enum Used {
    /// Of full quotas.
    Shares(Vec<Share>),
    /// Of simple quotas: bytes by the subvolume that wrote them, as far as they count.
    Owned(Owned),
}

/// Bytes by subvolume.
pub(crate) type Owned = BTreeMap<TreeId, u64>;

/// Reads trees in key order.
pub(crate) struct Input<'a> {
    pub volume: &'a Volume,
}

/// How many children are fetched in one batch.
const AHEAD: usize = 32;

impl Input<'_> {
    /// Calls `each` for all items of a tree from `from` to `to`, both included, in key order. Blocks that cannot be
    /// read are skipped (the walk over all blocks has reported them), and then the result is false. The part of a
    /// half-deleted tree that is already dropped is left out.
    pub fn each(
        &self,
        start: &TreeStart,
        from: Key,
        to: Key,
        each: &mut dyn FnMut(&Key, &[u8]) -> ControlFlow<()>,
    ) -> bool {
        let from = from.max(start.drop_progress().map_or(Key::MIN, |(key, _)| key));
        let mut whole = true;
        let root = NodeExpect {
            logical: start.logical,
            generation: Some(start.generation),
            level: Some(start.level),
            owner: None,
            first_key: None,
        };
        // Levels fall with every step down, so the stack holds at most the children of one node per level.
        let mut stack: Vec<NodeExpect> = vec![root];
        while let Some(top) = stack.pop() {
            let mut batch = vec![top];
            if top.level == Some(0) {
                while batch.len() < AHEAD
                    && let Some(next) = stack.pop_if(|next| next.level == Some(0))
                {
                    batch.push(next);
                }
            }
            for node in self.volume.read_blocks(&batch) {
                let Ok(node) = node else {
                    whole = false;
                    continue;
                };
                if node.is_leaf() {
                    for (key, item) in node.iter().filter(|(key, _)| *key >= from && *key <= to) {
                        if each(&key, item).is_break() {
                            return whole;
                        }
                    }
                    continue;
                }
                let first = node.child_slot(&from);
                for slot in (first..node.len()).rev().filter(|&slot| node.key(slot) <= to) {
                    stack.push(NodeExpect::child(&node.child(slot), node.level()));
                }
            }
        }
        whole
    }

    /// Returns one item of a tree.
    pub fn get(&self, start: &TreeStart, key: Key) -> Option<Vec<u8>> {
        let mut found = None;
        self.each(start, key, key, &mut |_, item| {
            found = Some(item.to_vec());
            ControlFlow::Break(())
        });
        found
    }
}

/// Takes findings; from any thread.
pub(crate) type ReportFinding<'a> = &'a (dyn Fn(Finding) + Sync);
