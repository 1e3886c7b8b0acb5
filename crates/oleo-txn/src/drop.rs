//! Taking deleted subvolumes apart in bounded steps.
//!
//! A deleted tree has a root item without references and an orphan item in the root tree. Each step gives up what a bounded
//! number of its blocks reference, and writes how far it came into the root item (`drop_progress`, `drop_level`), in one
//! transaction; so a crash, or the kernel, goes on from there. When nothing is left, root item and orphan item go.

use oleo_format::{Generation, ItemType, Key, TreeId};
use oleo_tree::{Change, DropPlan, DropProgress, DropStep};

use crate::TxnError;
use crate::commit::{ORPHAN_OBJECT, Staged};
use crate::engine::Engine;

/// How far a step of [`Engine::drop_step`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// There is more to do.
    Partly,
    /// The tree is gone.
    Whole,
}

impl Engine {
    /// Deleted trees that are not gone yet, in the order of their numbers.
    pub fn dead_trees(&self) -> Result<Vec<TreeId>, TxnError> {
        let mut dead = Vec::new();
        let mut from = TreeId(0);
        while let Some(tree) = self.dead_tree_from(from)? {
            dead.push(tree);
            from = TreeId(tree.0 + 1);
        }
        Ok(dead)
    }

    /// The first of them with this number or a higher one.
    pub fn dead_tree_from(&self, from: TreeId) -> Result<Option<TreeId>, TxnError> {
        let _reader = self.reader();
        let Some(root) = self.root(TreeId::ROOT)? else { return Ok(None) };
        let mut cursor = self.0.blocks.cursor(&root);
        let mut more = cursor.seek(&Key::new(ORPHAN_OBJECT, ItemType::ORPHAN_ITEM, from.0))?;
        while more {
            let Some((key, _)) = cursor.current() else { break };
            if key.objectid != ORPHAN_OBJECT || key.item_type != ItemType::ORPHAN_ITEM {
                break;
            }
            let tree = TreeId(key.offset);
            if tree.is_subvol() && self.root_item(tree)?.is_some_and(|item| item.refs.get() == 0) {
                return Ok(Some(tree));
            }
            more = cursor.next()?;
        }
        Ok(None)
    }

    /// One step of taking a dead tree apart, looking at about `budget_blocks` of its blocks. It becomes durable with the next
    /// commit. The caller holds no handle.
    pub fn drop_step(&self, tree: TreeId, budget_blocks: usize) -> Result<Dropped, TxnError> {
        // A snapshot is counted as a copy of its source, which must not be taken apart before.
        let fresh = !self.0.quota.notes.lock().snapshots.is_empty();
        if fresh {
            self.commit()?;
        }
        self.stage(|staged| staged.drop_step(tree, budget_blocks))
    }
}

impl Staged<'_> {
    fn drop_step(&mut self, tree: TreeId, budget_blocks: usize) -> Result<Dropped, TxnError> {
        let generation = self.generation();
        let inner = self.inner();
        if inner.trees.is_gone(tree) {
            // Somebody else has just done it.
            return Ok(Dropped::Whole);
        }
        let state = inner.tree(tree)?;
        let Some(item) = state.item else { return Err(TxnError::NoTree(tree)) };
        if item.refs.get() != 0 {
            return Err(TxnError::Refused(format!("tree {tree} is not deleted")));
        }
        let key = Key::from(item.drop_progress);
        let from = (key != Key::new(0, ItemType(0), 0)).then(|| DropProgress {
            key,
            level: item.drop_level,
            turning: inner.turning.lock().get(&tree).copied(),
        });
        let from = from.or_else(|| {
            let turning = inner.turning.lock().get(&tree).copied();
            turning.map(|t| DropProgress { key, level: state.root.level.max(1), turning: Some(t) })
        });
        let plan = DropPlan { created: Generation(state.key_offset), from, budget_blocks, full_root: false };
        let step = inner
            .with_env(&state, tree, generation, |env| inner.blocks.drop_tree(&state.root, &plan, env))
            .map_err(|e| inner.poison(e))?;
        match step {
            DropStep::More(progress) => {
                match progress.turning {
                    Some(t) => drop(inner.turning.lock().insert(tree, t)),
                    None => drop(inner.turning.lock().remove(&tree)),
                }
                inner.trees.update(tree, |t| {
                    if let Some(item) = &mut t.item {
                        item.drop_progress = progress.key.into();
                        item.drop_level = progress.level;
                    }
                    t.changed = true;
                });
                Ok(Dropped::Partly)
            }
            DropStep::Done => {
                inner.turning.lock().remove(&tree);
                // A tree that was made and deleted in one transaction has no item yet: deleting nothing is no harm.
                let gone = [
                    Change::delete(Key::new(ORPHAN_OBJECT, ItemType::ORPHAN_ITEM, tree.0)),
                    Change::delete(Key::new(tree.0, ItemType::ROOT_ITEM, state.key_offset)),
                ];
                let mut gone = Vec::from(gone);
                gone.sort_unstable_by_key(|c| c.key);
                self.put(TreeId::ROOT, &gone)?;
                // Only now: whoever asks for a tree that is not in memory looks into the root tree, and would bring it back.
                inner.trees.remove(tree);
                if inner.quota.table.read().is_some() {
                    inner.quota.notes.lock().dropped.push(state);
                }
                Ok(Dropped::Whole)
            }
        }
    }
}
