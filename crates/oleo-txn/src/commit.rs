//! Commit: freeze, apply, settle, write, publish.
//!
//! Normal path:
//! 1. `freeze`: joins are blocked for a moment; the crate above, new extents, checksums and the metadata reserve turn
//!    from open to frozen; the next generation is open.
//! 2. `apply_stage`: the crate above itemises; each tree's batch is applied; the ledger records what changed; roots are replaced.
//! 3. `settle`: rounds of drain (on all cores) → extent tree, checksum tree, free-space tree, block groups, chunk and device trees, root
//!    items, each a sorted batch, until a round leaves nothing: a block made in this transaction is rewritten in memory
//!    without a new record, so each round touches fewer new blocks.
//! 4. `write`: data is flushed with the tree blocks: blocks sorted and written, flush, superblocks, flush.
//! 5. `publish`: the blocks go into the cache; pins are handed to the readers' queue.
//!
//! `stage` is 1 and 2 with joins kept blocked: changes reach the trees without a commit, so that a snapshot can be taken
//! of them; many stages make one transaction. It does both once without blocking joins first, so that little is left.
//!
//! If the file system below the devices is full, a write of 4 fails without harm: the transaction is settled and stays in memory
//! (`Inner::unwritten`). Every caller gets the error; the next holder of the commit lock writes all of it again before anything else.
//!
//! If a device fails that the volume can do without (`Volume::owes_commit`), another commit follows.
//!
//! Crash: until the superblock is written the old generation is valid, untouched, since nothing it names is overwritten; after
//! it the new one does. Errors: from step 2 on memory and disk differ, so the engine turns read-only; the old state is intact.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use oleo_format::{Generation, Incompat, Key, Logical, RootItem, SuperBlock, TreeId};
use oleo_space::ExtentKind;
use oleo_tree::{Change, Op};
use zerocopy::IntoBytes;

use crate::TxnError;
use crate::barrier::FreezeGuard;
use crate::bookkeeping::BookkeepingWriter;
use crate::engine::{Engine, Inner, NewExtent, Unwritten};
use crate::extents::{ItemRules, settle_ledger};
use crate::quota::simple::OwnedBytes;
use crate::source::{DeltaSource, Stage};

/// Rounds of settling. Each round's new blocks are the bookkeeping leaves that the one before touched first; real runs take
/// three to seven. More than this is a bug, not a big transaction.
const SETTLE_ROUNDS_MAX: u32 = 100;

/// Commits that one commit is followed by at most, since devices failed: each failure asks for two, and what is left is for the next.
const COMMITS_AFTER_LOSS_MAX: u32 = 4;

/// The superblock of a settled transaction, and the one that it was made from.
struct NewSuper {
    before: SuperBlock,
    sb: SuperBlock,
}

/// Something that one commit does when all else is settled: relocation is one.
pub(crate) trait LastStep {
    /// Whether operations have to wait from the freeze until it is done.
    fn keeps_out(&self) -> bool;

    /// Does it; returns whether there is anything to settle after it. An error fails the commit: the trees may have changed in part.
    fn run(&mut self, inner: &Inner, generation: Generation) -> Result<bool, TxnError>;
}

impl Inner {
    pub(crate) fn source(&self) -> Option<Arc<dyn DeltaSource>> {
        self.source.read().as_ref().and_then(|w| w.upgrade())
    }

    /// Step 1, joins being blocked by the caller.
    pub(crate) fn freeze(&self, source: Option<&Arc<dyn DeltaSource>>) -> Vec<Vec<NewExtent>> {
        if let Some(s) = source {
            s.freeze();
        }
        self.csums.freeze();
        self.metadata_reserve.freeze();
        self.data_ahead.freeze();
        self.quota.charges.freeze();
        self.take_new_extents()
    }

    /// Step 2.
    pub(crate) fn apply_stage(
        &self,
        source: Option<&Arc<dyn DeltaSource>>,
        new_extents: Vec<Vec<NewExtent>>,
        generation: Generation,
    ) -> Result<(), TxnError> {
        let mut new_extents = new_extents.concat();
        new_extents.sort_unstable();
        self.note_owners(&new_extents);
        for (at, len, _) in new_extents {
            self.ledger.record_new_extent(at, len, ExtentKind::Data);
        }
        let Some(source) = source else { return Ok(()) };
        let stage = source.itemise()?;
        self.put_stage(stage, generation)?;
        source.published();
        Ok(())
    }

    pub(crate) fn put_stage(&self, stage: Stage, generation: Generation) -> Result<(), TxnError> {
        for (tree, item) in stage.root_items {
            self.tree(tree)?;
            self.trees.update(tree, |t| {
                t.item = Some(merge_root_item(t.item.as_ref(), item));
                t.changed = true;
            });
        }
        // Blocks are given out tree by tree in the order of tree numbers, so that equal work gives equal images; inside a
        // tree the merge runs on all cores.
        let mut trees = stage.trees;
        trees.sort_by_key(|(tree, _)| *tree);
        for (tree, batch) in &trees {
            self.apply(*tree, batch, generation)?;
        }
        Ok(())
    }

    /// Step 3.
    fn settle<'m>(
        &'m self,
        generation: Generation,
        mut last_step: Option<&mut dyn LastStep>,
        mut freeze_guard: Option<FreezeGuard<'m>>,
    ) -> Result<NewSuper, TxnError> {
        let rules = ItemRules::new(self.rules.skinny, self.rules.nodesize, generation).owned(self.owned());
        let mut bookkeeping = BookkeepingWriter::new(self, generation);
        let (mut counted, mut owned) = (false, OwnedBytes::new());
        self.put_device_stats(generation)?;
        for round in 0..SETTLE_ROUNDS_MAX {
            let extent_root = self.tree(TreeId::EXTENT)?.root;
            let settled = settle_ledger(&self.ledger, &rules, &self.blocks, &extent_root)?;
            // Only now: what the ledger names may lie in a chunk that somebody made a moment ago. What recording adds is for the next round.
            let plans = self.growth.take_plans();
            let grown = !plans.is_empty();
            if grown {
                bookkeeping.record_chunks(plans)?;
            }
            let roots = self.trees.changed();
            if settled.is_none() && !grown && roots.is_empty() && round > 0 {
                if self.tree(TreeId::ROOT)?.root.generation != generation {
                    self.renew_root_tree(generation)?;
                    continue;
                }
                // What is moved after the count may come to count, too.
                let more_owned = owned.values().any(|delta| *delta != 0);
                let owned = std::mem::take(&mut owned);
                if (!std::mem::replace(&mut counted, true) || more_owned) && self.count_quota(generation, &owned)? {
                    continue;
                }
                if let Some(step) = last_step.take() {
                    let more = step.run(self, generation)?;
                    drop(freeze_guard.take());
                    if more {
                        continue;
                    }
                }
                // A chunk that is made from here on is the next transaction's: neither these trees nor this superblock know it.
                let _no_chunk_is_made = self.growth.lock_chunk_alloc();
                if self.growth.has_plans() {
                    continue;
                }
                return self.new_super(generation);
            }
            let settled = settled.unwrap_or_default();
            for (tree, delta) in &settled.owned {
                *owned.entry(*tree).or_default() += delta;
            }
            self.ref_items_read.fetch_add(settled.items_read, Ordering::Relaxed);
            for at in &settled.freed_blocks {
                self.dirty.remove(*at);
            }
            self.count_tree_blocks(&settled.tree_blocks)?;
            bookkeeping.round(settled, round == 0)?;
            self.put_root_items(generation)?;
        }
        Err(TxnError::Unsettled(SETTLE_ROUNDS_MAX))
    }

    /// The superblock's generation must be that of the root tree's block, even if no tree changed (a new label, say). An
    /// item that comes and goes rewrites the block.
    fn renew_root_tree(&self, generation: Generation) -> Result<(), TxnError> {
        let key = Key::orphan(u64::MAX);
        self.apply(TreeId::ROOT, &[Change::put(key, [])], generation)?;
        self.apply(TreeId::ROOT, &[Change::delete(key)], generation)
    }

    /// Writes the devices' error counters if they have changed.
    fn put_device_stats(&self, generation: Generation) -> Result<(), TxnError> {
        let root = self.tree(TreeId::DEV)?.root;
        let mut batch = Vec::new();
        for (devid, counters) in self.volume.error_counters() {
            let key = Key::device_stats(devid);
            let values = counters.to_values();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let old = self.blocks.get(&root, &key)?;
            if old.as_deref().map_or(values == [0; 5], |old| old == bytes.as_slice()) {
                continue;
            }
            batch.push(Change::put(key, bytes));
        }
        batch.sort_unstable_by_key(|c| c.key);
        self.apply(TreeId::DEV, &batch, generation)
    }

    /// Keeps `bytes_used` of root items: blocks that the tree refers to by name.
    fn count_tree_blocks(&self, counts: &HashMap<TreeId, i64>) -> Result<(), TxnError> {
        let nodesize = i128::from(self.rules.nodesize);
        for (tree, delta) in counts.iter().filter(|(_, d)| **d != 0) {
            if *tree == TreeId::ROOT {
                self.root_tree_blocks.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
                continue;
            }
            // A tree that is being dropped for good has no item to keep.
            if self.trees.get(&self.blocks, *tree)?.is_none() {
                continue;
            }
            self.trees.update(*tree, |t| {
                if let Some(item) = &mut t.item {
                    let bytes = i128::from(item.bytes_used.get()) + i128::from(*delta) * nodesize;
                    item.bytes_used.set(u64::try_from(bytes).unwrap_or(0));
                    t.changed = true;
                }
            });
        }
        Ok(())
    }

    /// Writes stale root items into the root tree. The root tree's own state is named by the superblock.
    fn put_root_items(&self, generation: Generation) -> Result<(), TxnError> {
        let mut batch = Vec::new();
        for state in self.trees.changed() {
            self.trees.update(state.root.tree, |t| t.changed = false);
            let Some(mut item) = state.item else { continue };
            item.bytenr.set(state.root.logical.0);
            item.generation.set(state.root.generation.0);
            // Equal generations show readers that the fields behind the second one are kept up.
            item.generation_v2.set(state.root.generation.0);
            item.level = state.root.level;
            self.trees.update(state.root.tree, |t| t.item = Some(item));
            batch.push(Change { key: state.key(), op: Op::Put(item.encode().into()) });
        }
        batch.sort_unstable_by_key(|c| c.key);
        self.apply(TreeId::ROOT, &batch, generation)
    }

    /// The superblock of the trees as they are settled now. No chunk is made meanwhile: it lists those that the trees know.
    fn new_super(&self, generation: Generation) -> Result<NewSuper, TxnError> {
        let before = *self.super_block.lock();
        let mut sb = before;
        let incompat = Incompat::from_bits_retain(self.wanted_incompat.load(Ordering::Relaxed));
        let mut features = sb.features().incompat | incompat;
        let gone = Incompat::from_bits_retain(self.profile_gone.swap(0, Ordering::Relaxed));
        if !gone.is_empty() {
            // From here on what there is decides, not what was once asked for.
            self.wanted_incompat.fetch_and(!gone.bits(), Ordering::Relaxed);
            features = (features - gone) | (self.features_of_profiles() & gone);
        }
        sb.incompat_flags.set(features.bits());
        let root = self.tree(TreeId::ROOT)?.root;
        let chunk = self.tree(TreeId::CHUNK)?.root;
        sb.generation.set(generation.0);
        sb.drop_log();
        sb.root.set(root.logical.0);
        sb.root_level = root.level;
        sb.chunk_root.set(chunk.logical.0);
        sb.chunk_root_level = chunk.level;
        sb.chunk_root_generation.set(chunk.generation.0);
        sb.bytes_used.set(self.growth.bytes_used());
        // `cache_generation` stays: older than this generation it shows every reader that the old free-space cache, which is
        // not kept up, is outdated. (Zero would say that there is none, and `btrfs check` would believe what is left of it.)
        if self.rules.uuid_tree {
            sb.uuid_tree_generation.set(generation.0);
        }
        self.volume.stamp(&mut sb)?;
        self.fill_backup(&mut sb, generation)?;
        Ok(NewSuper { before, sb })
    }

    /// What step 4 writes.
    fn to_write(
        &self,
        number: u64,
        generation: Generation,
        ended_log: Vec<Logical>,
        NewSuper { before, sb }: NewSuper,
    ) -> Result<Unwritten, TxnError> {
        self.pin_log(generation, ended_log)?;
        let blocks = self.dirty.drain_sorted();
        Ok(Unwritten { number, generation, logged: None, blocks, before, sb })
    }

    /// Steps 4 and 5. Without room below the devices the transaction is kept for the next try.
    fn write(&self, mut unwritten: Unwritten) -> Result<Generation, TxnError> {
        // A log commit in flight comes first; one of the next generation has to wait.
        let mut log_on_disk = self.log_on_disk.lock();
        if let Some(logged) = log_on_disk.close() {
            unwritten.logged = Some(logged);
        }
        match self.put_out(&unwritten) {
            Ok(()) => {}
            Err(e) if e.is_full() => {
                *self.unwritten.lock() = Some(unwritten);
                return Err(e);
            }
            Err(e) => return Err(self.poison(e)),
        }
        let Unwritten { number, generation, blocks, before, sb, .. } = unwritten;
        keep_edits(&mut self.super_block.lock(), &before, &sb);
        log_on_disk.opened(&sb);
        drop(log_on_disk);
        self.blocks.publish(&blocks);
        self.csums.settled();
        self.trees.committed();
        // A tree whose item cannot be read counts with its former size.
        let _ = self.measure_trees();
        self.metadata_reserve.settled();
        self.quota_settled();
        self.quota.owners.clear();
        self.readers.published(self.space.take_pinned());
        self.reap_quickly();
        self.replenish_reserve();
        self.space.drain_used();
        self.durable.store(number, Ordering::SeqCst);
        Ok(generation)
    }

    /// Every write of step 4, whatever of it was done before.
    fn put_out(&self, unwritten: &Unwritten) -> Result<(), TxnError> {
        if let Some(sb) = &unwritten.logged {
            self.volume.write_other_mirrors(sb)?;
        }
        let parts: Vec<(Logical, &[u8])> = unwritten.blocks.iter().map(|n| (n.logical(), n.bytes())).collect();
        // The cache takes them all when they are written (`publish`), unless they are more than it holds.
        let bytes: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
        if bytes as u64 <= self.blocks.cache_bytes_max() {
            self.volume.write_uncached(&parts)?;
        } else {
            self.volume.write(&parts)?;
        }
        self.space.turn();
        Ok(self.volume.write_supers(&unwritten.sb)?)
    }

    /// Writes what found no room before. The caller holds the commit lock, and does nothing else if this fails.
    pub(crate) fn write_unwritten(&self) -> Result<(), TxnError> {
        let unwritten = self.unwritten.lock().take();
        unwritten.map_or(Ok(()), |unwritten| self.write(unwritten).map(drop))
    }
}

/// Puts `written`, which was made from `before`, in the place of `now`, but for what somebody has changed there meanwhile: that is
/// for the next commit.
fn keep_edits(now: &mut SuperBlock, before: &SuperBlock, written: &SuperBlock) {
    for ((now, before), written) in now.as_mut_bytes().iter_mut().zip(before.as_bytes()).zip(written.as_bytes()) {
        if *now == *before {
            *now = *written;
        }
    }
}

/// Takes the file-level fields of `new`, keeps the engine's own of `old`.
fn merge_root_item(old: Option<&RootItem>, mut new: RootItem) -> RootItem {
    if let Some(old) = old {
        new.bytenr = old.bytenr;
        new.level = old.level;
        new.generation = old.generation;
        new.generation_v2 = old.generation_v2;
        new.bytes_used = old.bytes_used;
        new.last_snapshot = old.last_snapshot;
        new.drop_progress = old.drop_progress;
        new.drop_level = old.drop_level;
    }
    new
}

impl Engine {
    /// Makes everything done so far durable and returns its generation. If nothing was done it returns the last one.
    /// Concurrent callers share a commit that began after they asked. The caller holds no handle.
    pub fn commit(&self) -> Result<Generation, TxnError> {
        self.commit_notifying(&|| {})
    }

    /// The same; calls `frozen` as soon as everything done from then on belongs to a later transaction. It is not called
    /// if nothing had to be committed, or if that failed before.
    pub fn commit_notifying(&self, frozen: &(dyn Fn() + Sync)) -> Result<Generation, TxnError> {
        let done = self.commit_alone(frozen);
        if self.0.rules.discard && done.is_ok() {
            self.0.reap();
        }
        done
    }

    fn commit_alone(&self, frozen: &(dyn Fn() + Sync)) -> Result<Generation, TxnError> {
        let inner = &*self.0;
        inner.writable()?;
        let begun = inner.begun.load(Ordering::SeqCst);
        let _one = inner.commit_lock.lock();
        inner.writable()?;
        inner.write_unwritten()?;
        let served = inner.durable.load(Ordering::SeqCst) > begun;
        if served {
            return Ok(self.durable());
        }
        if !inner.touched.load(Ordering::Acquire) && !inner.volume.owes_commit() {
            inner.quota_idle();
            return Ok(self.durable());
        }
        inner.log_is_settled()?;
        crate::log::count_commit();
        let mut done = inner.commit_workers.run(|| inner.commit_locked(None, frozen))?;
        // A device that was left out has to be seen to be behind when it comes back.
        for _ in 0..COMMITS_AFTER_LOSS_MAX {
            if !inner.volume.owes_commit() {
                break;
            }
            done = inner.commit_workers.run(|| inner.commit_locked(None, &|| {}))?;
        }
        Ok(done)
    }
}

impl Inner {
    /// All steps, the commit lock held; `last_step` comes when all else is settled.
    pub(crate) fn commit_locked(
        &self,
        last_step: Option<&mut dyn LastStep>,
        frozen: &dyn Fn(),
    ) -> Result<Generation, TxnError> {
        let source = self.source();
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let recording_barred = self.log_recording.write();
        let (ended_log, new_extents, generation, freeze_guard) = {
            let ended_log = self.end_log();
            let freeze_guard = self.barrier.block_joins();
            let new_extents = self.freeze(source.as_ref());
            self.touched.store(false, Ordering::Release);
            self.staged_ref_changes.store(0, Ordering::Relaxed);
            let keeps_out = last_step.as_ref().is_some_and(|step| step.keeps_out());
            let generation = Generation(self.open_generation.fetch_add(1, Ordering::AcqRel));
            (ended_log, new_extents, generation, keeps_out.then_some(freeze_guard))
        };
        frozen();
        let done = self
            .apply_stage(source.as_ref(), new_extents, generation)
            .and_then(|()| {
                // The trees that a log is based on stay as they are from now on, unless the last step changes them.
                let recording_barred = last_step.is_some().then_some(recording_barred);
                let settled = self.settle(generation, last_step, freeze_guard);
                drop(recording_barred);
                settled
            })
            .and_then(|new_super| self.to_write(number, generation, ended_log, new_super));
        self.write(done.map_err(|e| self.poison(e))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is edited in the superblock while a commit writes its own copy is in the next one, and everything of the commit is
    /// there.
    #[test]
    fn edits_beside_a_commit_are_kept() {
        let mut before = SuperBlock::default();
        before.label[..3].copy_from_slice(b"old");
        before.generation.set(7);
        let mut written = before;
        written.generation.set(8);
        written.root.set(1 << 20);
        let mut now = before;
        now.label[..5].copy_from_slice(b"newer");
        keep_edits(&mut now, &before, &written);
        assert_eq!((now.generation.get(), now.root.get(), &now.label[..6]), (8, 1 << 20, &b"newer\0"[..]));
    }
}
