//! Staged work: what is done to the trees themselves while no operation is under way, such as a snapshot.
//!
//! [`Engine::stage`](crate::Engine::stage) brings all changes into the trees and hands out a [`Staged`]; the commit that follows writes
//! what was done like everything else. Quota, relocation and removed devices add methods of their own to it.

use std::sync::atomic::Ordering;

use oleo_format::{Generation, Key, Logical, RootItem, TreeId};
use oleo_lock::{MutexGuard, rank};
use oleo_tree::{Change, TreeRoot};

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::options::{Claim, Need};
use crate::trees::TreeState;

/// The need of [`Engine::stage`]: items of bookkeeping trees alone.
const STAGE_NEED: Need = Need { items: 8, row: 8, bytes: 1024, claim: Claim::Reclaim };

impl Engine {
    /// Brings all changes into the trees, keeps everybody out, and runs `f` on the trees as they are then. Nothing is written
    /// to disk: the next commit does it. If earlier stages have left too much for that, it happens here, first. The caller
    /// holds no handle, and `f` changes nothing but a few items of bookkeeping trees.
    pub fn stage<R: Send>(&self, f: impl FnOnce(&mut Staged<'_>) -> Result<R, TxnError> + Send) -> Result<R, TxnError> {
        self.commit_what_stages_left()?;
        let locked = match self.with_commit_lock(STAGE_NEED) {
            // So few items have always found room among what nothing is reserved for.
            Err(TxnError::NoSpace { .. }) => Ok(self.0.commit_lock.lock()),
            other => other,
        };
        self.stage_locked(locked?, f)
    }

    /// The same for what may need more.
    ///
    /// # Errors
    /// There is not enough space, as with [`Engine::join`].
    pub fn stage_with<R: Send>(
        &self,
        need: Need,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, TxnError> + Send,
    ) -> Result<R, TxnError> {
        self.commit_what_stages_left()?;
        let locked = self.with_commit_lock(need)?;
        self.stage_locked(locked, f)
    }

    fn commit_what_stages_left(&self) -> Result<(), TxnError> {
        self.0.writable()?;
        if self.staged_ref_changes() > self.0.staged_ref_changes_max {
            self.commit()?;
        }
        Ok(())
    }

    fn stage_locked<R: Send>(
        &self,
        _one: MutexGuard<'_, rank::Commit, ()>,
        f: impl FnOnce(&mut Staged<'_>) -> Result<R, TxnError> + Send,
    ) -> Result<R, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        inner.write_unwritten()?;
        inner.log_is_settled()?;
        let source = inner.source();
        let _recording_barred = inner.log_recording.write();
        inner.staged.store(self.generation().0, Ordering::Release);
        if inner.touched.load(Ordering::Acquire) {
            // What is there by now goes in while others go on, so that they have to wait for the rest only.
            let freeze_guard = inner.barrier.block_joins();
            let generation = self.generation();
            let new_extents = inner.freeze(source.as_ref());
            drop(freeze_guard);
            let done = inner.commit_workers.run(|| inner.apply_stage(source.as_ref(), new_extents, generation));
            done.map_err(|e| inner.poison(e))?;
        }
        let _freeze_guard = inner.barrier.block_joins();
        let generation = self.generation();
        inner.touched.store(true, Ordering::Release);
        let new_extents = inner.freeze(source.as_ref());
        inner.commit_workers.run(|| {
            inner.apply_stage(source.as_ref(), new_extents, generation).map_err(|e| inner.poison(e))?;
            let done = f(&mut Staged::new(self, generation));
            inner.staged_ref_changes.store(inner.ledger.len(), Ordering::Relaxed);
            done
        })
    }
}

/// The trees with everything in them and nobody else inside. A call that fails after it began leaves the engine read-only.
pub struct Staged<'a> {
    engine: &'a Engine,
    generation: Generation,
}

impl<'a> Staged<'a> {
    pub(crate) fn new(engine: &'a Engine, generation: Generation) -> Staged<'a> {
        Staged { engine, generation }
    }

    pub(crate) fn inner(&self) -> &'a Inner {
        &self.engine.0
    }

    /// The generation that this will be committed under.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The root of a tree with all changes in it.
    pub fn root(&self, tree: TreeId) -> Result<TreeRoot, TxnError> {
        Ok(self.inner().tree(tree)?.root)
    }

    /// Applies sorted changes to a tree.
    pub fn put(&mut self, tree: TreeId, changes: &[Change]) -> Result<(), TxnError> {
        self.inner().apply(tree, changes, self.generation).map_err(|e| self.inner().poison(e))
    }

    /// Makes a new tree: one empty leaf.
    pub fn create_tree(&mut self, tree: TreeId, item: RootItem) -> Result<(), TxnError> {
        let inner = self.inner();
        let fresh = TreeState {
            root: TreeRoot::on_disk(tree, Logical(0), self.generation, 0),
            item: Some(item),
            key_offset: 0,
            changed: true,
        };
        let root = inner
            .with_env(&fresh, tree, self.generation, |env| inner.blocks.create_tree(&[], env))
            .map_err(|e| inner.poison(e))?;
        inner.trees.set(TreeState { root, ..fresh });
        self.quota_of_new(tree)
    }

    /// Makes `target` a snapshot of `source` as it is now.
    pub fn snapshot(&mut self, source: TreeId, target: TreeId, mut item: RootItem) -> Result<(), TxnError> {
        let inner = self.inner();
        let from = inner.tree(source)?;
        let root = inner
            .with_env(&from, target, self.generation, |env| inner.blocks.copy_root(&from.root, target, env))
            .map_err(|e| inner.poison(e))?;
        item.last_snapshot.set(self.generation.0);
        item.bytes_used = from.item.as_ref().map_or(item.bytes_used, |i| i.bytes_used);
        inner.trees.set(TreeState { root, item: Some(item), key_offset: self.generation.0, changed: true });
        inner.trees.update(source, |t| {
            if let Some(item) = &mut t.item {
                item.last_snapshot.set(self.generation.0);
            }
            t.changed = true;
        });
        if inner.quota.table.read().as_ref().is_some_and(|table| !table.is_simple()) {
            inner.quota.notes.lock().snapshots.push((source, target));
        }
        self.quota_of_snapshot(source, target)
    }

    /// Marks a tree dead: no references left to it by name; [`Engine::drop_step`] takes it apart.
    pub fn orphan_tree(&mut self, tree: TreeId) -> Result<(), TxnError> {
        let inner = self.inner();
        inner.tree(tree)?;
        inner.trees.update(tree, |t| {
            if let Some(item) = &mut t.item {
                item.refs.set(0);
            }
            t.changed = true;
        });
        let key = Key::orphan(tree.0);
        self.put(TreeId::ROOT, &[Change::put(key, [])])?;
        self.quota_of_deleted(tree)
    }
}
