//! A free-space tree for volumes that have none that is kept up: those with the old cache of free space (version 1), and those whose tree is marked
//! as not valid.
//!
//! Normal path of [`build`]: (1) an engine is opened that reads free space from the extent tree and keeps the new tree up, once it is
//! there; (2) one stage makes the tree empty, takes away the old cache of every group, and writes what was free in each group at the last
//! commit; (3) the commit settles what that itself has used and freed, as any commit does, and its superblock says that the tree is
//! valid. The caller opens the engine anew.
//!
//! Invariants: what the stage writes is what the last commit left; everything after it is a change like any other.
//! Crash: the commit is whole or not there; without it the volume is as before, and the next opening begins anew.
//! Memory: the new tree. Where there is little room for it the volume stays as it is.

use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::{BlockGroupFlags, CompatRo, ItemType, Key, RootItem, SuperBlock, TreeId};
use oleo_space::Kind;
use oleo_tree::Change;
use oleo_volume::Volume;

use crate::TxnError;
use crate::engine::Engine;
use crate::free_runs::FreeItems;
use crate::options::EngineOptions;
use crate::staged::Staged;

/// Bytes of metadata that must be free besides what the tree takes, which is written twice at most.
const ROOM_MIN: u64 = 16 << 20;
/// What an item of the tree takes, about, bytes.
const ITEM_BYTES: u64 = 64;

/// Makes the tree, if it is wanted and missing.
pub(crate) fn build(volume: &Arc<Volume>, opts: &EngineOptions) -> Result<(), TxnError> {
    let sb = volume.super_block();
    // With a log on disk there is no commit before it is applied: the next opening does it.
    if opts.read_only || !opts.make_free_space_tree || is_kept_up(&sb) || sb.log_root.get() != 0 {
        return Ok(());
    }
    let engine = Engine::open_as(volume.clone(), opts, true)?;
    let is_marked = sb.features().compat_ro.contains(CompatRo::FREE_SPACE_TREE);
    // The kernel writes no caches of small groups, but keeps the number of their generation up. Neither of the two: there was never one.
    let has_generation = !matches!(sb.cache_generation.get(), 0 | u64::MAX);
    if !is_marked && !has_generation && !engine.has_old_cache()? {
        return Ok(());
    }
    let groups = engine.0.space.groups();
    let mut found = Vec::with_capacity(groups.len());
    for group in &groups {
        found.push((group.start, group.len, engine.0.load_free(group.start)?));
    }
    let items: u64 = found.iter().map(|(.., runs)| runs.len() as u64 + 1).sum();
    let room = engine.0.space.totals(Kind::Metadata).free.0 + volume.unallocated(BlockGroupFlags::METADATA).0;
    if room < ROOM_MIN + 2 * items * ITEM_BYTES {
        return Ok(());
    }
    engine.stage(|staged| {
        staged.empty_free_space_tree()?;
        let inner = staged.inner();
        for (start, len, runs) in &found {
            let cache = staged.old_cache(inner, *start)?;
            staged.put(TreeId::ROOT, &cache)?;
            let mut free = FreeItems::new(*start, *len, inner.rules.sectorsize, runs);
            staged.put(TreeId::FREE_SPACE, &free.changes())?;
        }
        Ok(())
    })?;
    engine.edit_super(|sb| {
        let flags = sb.features().compat_ro | CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        sb.compat_ro_flags.set(flags.bits());
        // There is no old cache.
        sb.cache_generation.set(0);
    })?;
    engine.commit().map(drop)
}

/// Whether there is a free-space tree that everybody keeps up.
pub(crate) fn is_kept_up(sb: &SuperBlock) -> bool {
    sb.features().compat_ro.contains(CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID)
}

impl Engine {
    /// Whether the root tree has caches of free space of version 1.
    fn has_old_cache(&self) -> Result<bool, TxnError> {
        let root = self.0.tree(TreeId::ROOT)?.root;
        let mut cursor = self.0.blocks.cursor(&root);
        let there = cursor.seek(&Key::new(Key::FREE_SPACE, ItemType(0), 0))?;
        Ok(there && cursor.key().is_some_and(|key| key.objectid == Key::FREE_SPACE))
    }
}

impl Staged<'_> {
    /// A free-space tree with nothing in it.
    fn empty_free_space_tree(&mut self) -> Result<(), TxnError> {
        let inner = self.inner();
        if inner.trees.get(&inner.blocks, TreeId::FREE_SPACE)?.is_none() {
            let mut item = RootItem::default();
            item.refs.set(1);
            item.bytes_used.set(u64::from(inner.rules.nodesize));
            return self.create_tree(TreeId::FREE_SPACE, item);
        }
        let root = self.root(TreeId::FREE_SPACE)?;
        let mut gone = Vec::new();
        inner.blocks.scan(&root, Key::MIN, Key::MAX, |key, _| {
            gone.push(Change::delete(*key));
            Ok::<_, TxnError>(ControlFlow::Continue(()))
        })?;
        self.put(TreeId::FREE_SPACE, &gone)
    }
}
