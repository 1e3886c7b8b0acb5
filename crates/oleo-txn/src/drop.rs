//! Taking deleted subvolumes apart in bounded steps.
//!
//! A deleted tree has a root item without references and an orphan item in the root tree. Each step drops the references of a
//! bounded number of its blocks, and writes its progress into the root item (`drop_progress`, `drop_level`), in one
//! transaction; so after a crash we, or the kernel, continue from there. When nothing is left, root item and orphan item are deleted.
//!
//! A step joins the open transaction like an operation, and neither operations nor the log wait for it: a dead tree has no changes in
//! memory, and other trees stay as they are except for the reference counts, which the commit settles.
//!
//! With quota on, a subtree whose owner changes is dropped leaf by leaf, so that the accounting of the
//! transaction has no more to visit than the steps did ([`QUOTA_BYTES_MAX`] in all). That needs space for a few blocks; without it the
//! subtree is dropped in one step, and the accounting takes as long as it takes.

use std::sync::atomic::Ordering;

use oleo_format::{ByteLen, Generation, ItemType, Key, TreeId};
use oleo_space::Kind;
use oleo_tree::{Change, DropPlan, DropProgress, DropStep, Dropping, Node, TakesApart, TreeError};

use crate::TxnError;
use crate::backrefs::Backrefs;
use crate::engine::{Engine, Inner};
use crate::options::{Claim, Need};
use crate::quota::table::Table;
use crate::staged::Staged;
use crate::trees::TreeState;

/// Blocks that steps may look at in one transaction with quota on, in bytes: the count keeps them in memory until it ends. A tree
/// that follows others in a transaction may have it look at theirs again, and counts for as many.
const QUOTA_BYTES_MAX: usize = 64 << 20;
/// Blocks for which there must be room for a subtree to be taken apart: a path of copies, and paths of bookkeeping trees, which list them.
const COPY_ROOM_BLOCKS: u64 = 64;
/// The need of a step: it changes bookkeeping trees only, and the path of the dead tree if there is plenty of space for that.
const STEP_NEED: Need = Need { items: 16, row: 16, bytes: 512, claim: Claim::Reclaim };

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
        let mut more = cursor.seek(&Key::orphan(from.0))?;
        while more {
            let Some((key, _)) = cursor.current() else { break };
            if key.objectid != Key::ORPHAN || key.item_type != ItemType::ORPHAN_ITEM {
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
        let enough = QUOTA_BYTES_MAX / self.0.rules.nodesize as usize;
        let due = {
            let notes = self.0.quota.notes.lock();
            // A snapshot is counted as a copy of its source, which must not be taken apart before.
            !notes.snapshots.is_empty() || notes.drop_blocks >= enough
        };
        if due || self.staged_ref_changes() > self.0.staged_ref_changes_max {
            self.commit()?;
        }
        self.among_the_dead(|staged| staged.drop_step(tree, budget_blocks))
    }

    /// Changes what no operation has to do with: a dead tree, and its items in the root tree. So operations go on meanwhile, while
    /// blocks are read from disk, what they have changed stays apart from the trees, and the log stays possible.
    fn among_the_dead<R: Send>(
        &self,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, TxnError> + Send,
    ) -> Result<R, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        let _one = self.with_commit_lock(STEP_NEED)?;
        inner.write_unwritten()?;
        inner.log_is_settled()?;
        // No commit ends the transaction while the lock is held.
        let generation = self.generation();
        inner.touched.store(true, Ordering::Release);
        inner.commit_workers.run(|| {
            let done = f(&mut Staged::new(self, generation));
            inner.staged_ref_changes.store(inner.ledger.len(), Ordering::Relaxed);
            done
        })
    }
}

impl Staged<'_> {
    fn drop_step(&mut self, tree: TreeId, budget_blocks: usize) -> Result<Dropped, TxnError> {
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
            backref_conversion: inner.backref_conversion.lock().get(&tree).copied(),
        });
        let from = from.or_else(|| {
            let backref_conversion = inner.backref_conversion.lock().get(&tree).copied();
            backref_conversion.map(|t| DropProgress {
                key,
                level: state.root.level.max(1),
                backref_conversion: Some(t),
            })
        });
        let plan = DropPlan { created: Generation(state.key_offset), from, budget_blocks, full_root: false };
        let Dropping { step, root, looked_at } = self.drop_blocks(&state, &plan).map_err(|e| inner.poison(e))?;
        if inner.counts_drops() {
            let mut notes = inner.quota.notes.lock();
            notes.drop_blocks += looked_at * (1 + notes.dropped.len());
            notes.dropping.entry(tree).or_insert_with(|| state.clone());
        }
        match step {
            DropStep::More(progress) => {
                match progress.backref_conversion {
                    Some(t) => drop(inner.backref_conversion.lock().insert(tree, t)),
                    None => drop(inner.backref_conversion.lock().remove(&tree)),
                }
                inner.trees.update(tree, |t| {
                    if let Some(root) = root {
                        t.root = root;
                    }
                    if let Some(item) = &mut t.item {
                        item.drop_progress = progress.key.into();
                        item.drop_level = progress.level;
                    }
                    t.changed = true;
                });
                Ok(Dropped::Partly)
            }
            DropStep::Done => {
                inner.backref_conversion.lock().remove(&tree);
                // A tree that was made and deleted in one transaction has no item yet: deleting nothing is no harm.
                let gone = [
                    Change::delete(Key::orphan(tree.0)),
                    Change::delete(Key::new(tree.0, ItemType::ROOT_ITEM, state.key_offset)),
                ];
                let mut gone = Vec::from(gone);
                gone.sort_unstable_by_key(|c| c.key);
                self.put(TreeId::ROOT, &gone)?;
                // Only now: a look-up of a tree that is not in memory looks into the root tree, and would bring it back.
                inner.trees.remove(tree);
                if inner.quota.table.read().is_some() {
                    inner.quota.notes.lock().dropped.push(state);
                }
                Ok(Dropped::Whole)
            }
        }
    }

    /// The step among blocks. Whether a shared subtree changes hands is asked of the extent tree as the last commit left it: who
    /// has come to share it since, or does no more, is overlooked, which costs time at worst.
    fn drop_blocks(&self, state: &TreeState, plan: &DropPlan) -> Result<Dropping, TxnError> {
        let (inner, generation, tree) = (self.inner(), self.generation(), state.root.tree);
        let room = ByteLen(COPY_ROOM_BLOCKS * u64::from(inner.rules.nodesize));
        // Held until the copies have their places.
        let room = if inner.counts_drops() { inner.space.reserve(Kind::Metadata, room).ok() } else { None };
        if room.is_none() {
            return inner
                .with_env(state, tree, generation, |env| inner.blocks.drop_tree_slowly(&state.root, plan, env, None));
        }
        // Each other tree that refers to a block reaches it in a way of its own. So if no group has two subvolumes, two of them say enough.
        let simple = inner.quota.table.read().as_ref().is_some_and(Table::is_flat);
        let refs_max = if simple { 2 } else { u64::MAX };
        let mut refs = Backrefs::new(inner)?;
        let mut changes_hands = |node: &Node| {
            let all = refs.of_block(node).map_err(TreeError::outside)?;
            let others = refs.sets.only(all, |other| other != tree);
            let table = inner.quota.table.read();
            Ok(table.as_ref().is_some_and(|table| !table.is_free_of(tree, refs.sets.trees(others))))
        };
        inner.with_env(state, tree, generation, |env| {
            let takes_apart = TakesApart { refs_max, asks: &mut changes_hands };
            inner.blocks.drop_tree_slowly(&state.root, plan, env, Some(takes_apart))
        })
    }
}

impl Inner {
    /// Whether what deleted trees drop is counted.
    fn counts_drops(&self) -> bool {
        self.quota.table.read().as_ref().is_some_and(|table| !table.is_simple())
    }
}
