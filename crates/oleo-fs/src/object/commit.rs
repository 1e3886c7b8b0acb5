//! The hand-over of the deltas to a commit.
//!
//! Normal path, called by the engine: (1) [`freeze`](DeltaSource::freeze) while no handle is out: the epoch rises by one and the lists
//! of dirty inodes and subvolumes are set aside; (2) [`itemise`](DeltaSource::itemise) turns them into sorted changes, while new operations
//! go on; (3) [`published`](DeltaSource::published) once the new roots can be read: the frozen deltas are dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_format::{InodeItem, ItemType, Key, TreeId};
use oleo_tree::{Change, ItemBytes, Op};
use oleo_txn::{DeltaSource, Stage, TxnError};
use rayon::prelude::*;
use zerocopy::IntoBytes;

use crate::object::delta::ItemMap;
use crate::object::fields::InodeFields;
use crate::object::inode::{Inode, ItemFate, ORPHAN_OBJECT, OrphanChange};
use crate::object::{Core, Listed};

/// Inodes that one task itemises: enough to hide the cost of handing out the task.
const ITEMISE_CHUNK: usize = 2048;

impl DeltaSource for Core {
    fn release_idle_reservations(&self) -> bool {
        self.data.release_idle_reservations()
    }

    fn freeze(&self) {
        let mut frozen = self.frozen.lock();
        assert!(frozen.inodes.is_empty() && frozen.subvols.is_empty(), "the last freeze has been published");
        frozen.epoch = self.epoch.fetch_add(1, Ordering::AcqRel);
        self.log.forget_before(self.engine.generation());
        self.dirty_inodes.store(0, Ordering::Relaxed);
        for shard in &self.dirty {
            frozen.inodes.append(&mut shard.list.0.lock());
            shard.len.0.store(0, Ordering::Relaxed);
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
        // Each shard is mostly sorted, which a stable sort makes use of.
        frozen.inodes.par_sort_by_key(|listed| listed.0);
        frozen.subvols.sort_unstable_by_key(|s| s.id());
        let parts: Vec<Vec<TreeChanges>> =
            frozen.inodes.par_chunks(ITEMISE_CHUNK).map(|chunk| itemise_chunk(chunk, epoch)).collect();
        let mut lens: Vec<(TreeId, usize)> = Vec::new();
        for part in parts.iter().flatten() {
            let len = part.changes.len() + part.orphans.len();
            match lens.last_mut() {
                Some(last) if last.0 == part.tree => last.1 += len,
                _ => lens.push((part.tree, len)),
            }
        }
        let mut trees: Vec<(TreeId, Vec<Change>)> =
            lens.into_iter().map(|(tree, len)| (tree, Vec::with_capacity(len))).collect();
        let mut orphans: Vec<Vec<Change>> = trees.iter().map(|_| Vec::new()).collect();
        let mut to = 0;
        for mut part in parts.into_iter().flatten() {
            while trees[to].0 != part.tree {
                to += 1;
            }
            trees[to].1.append(&mut part.changes);
            orphans[to].append(&mut part.orphans);
        }
        for ((_, changes), mut orphans) in trees.iter_mut().zip(orphans) {
            // Those of the object itself came last.
            orphans.sort_unstable_by_key(|change| change.key);
            changes.append(&mut orphans);
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

/// Changes of one tree.
struct TreeChanges {
    tree: TreeId,
    /// In key order.
    changes: Vec<Change>,
    /// Of orphan items, whose keys come after those of all inodes.
    orphans: Vec<Change>,
}

/// The changes of some inodes, which are sorted by tree and number.
fn itemise_chunk(inodes: &[Listed], epoch: u64) -> Vec<TreeChanges> {
    let mut trees: Vec<TreeChanges> = Vec::new();
    let mut inode_items = InodeItems::default();
    for (_, inode) in inodes {
        if inode.subvol().is_deleted() {
            continue;
        }
        if trees.last().is_none_or(|t| t.tree != inode.tree()) {
            inode_items.put_into(trees.last_mut());
            let changes = Vec::with_capacity(inodes.len() * 2);
            trees.push(TreeChanges { tree: inode.tree(), changes, orphans: Vec::new() });
        }
        if inode_items.is_full() {
            inode_items.put_into(trees.last_mut());
        }
        let Some(TreeChanges { changes, orphans, .. }) = trees.last_mut() else { continue };
        let to = if inode.ino().0 == ORPHAN_OBJECT { &mut *orphans } else { changes };
        let orphan = inode.itemise(epoch, |items, fate, fields| {
            itemise_inode(inode, items, fate, fields, to, &mut inode_items);
        });
        if let Some(orphan) = orphan {
            let op = match orphan {
                OrphanChange::Put => Op::Put(ItemBytes::default()),
                OrphanChange::Delete => Op::Delete,
            };
            orphans.push(Change { key: Key::new(ORPHAN_OBJECT, ItemType::ORPHAN_ITEM, inode.ino().0), op });
        }
    }
    inode_items.put_into(trees.last_mut());
    trees
}

/// Inode items that are made in one piece of memory.
#[derive(Default)]
struct InodeItems {
    bytes: Vec<u8>,
    /// The changes that put them, of one tree, in their order.
    changes: Vec<usize>,
}

impl InodeItems {
    /// As many as parts of one piece can be.
    fn is_full(&self) -> bool {
        self.bytes.len() + size_of::<InodeItem>() > usize::from(u16::MAX)
    }

    /// One more, which the change that comes next in the list is to put.
    fn add(&mut self, fields: &InodeFields, change: usize) {
        self.bytes.extend_from_slice(fields.to_item().as_bytes());
        self.changes.push(change);
    }

    /// Gives them to the changes that put them.
    fn put_into(&mut self, tree: Option<&mut TreeChanges>) {
        let Some(tree) = tree else { return };
        let all: Arc<[u8]> = self.bytes.as_slice().into();
        for (n, change) in self.changes.drain(..).enumerate() {
            let start = n * size_of::<InodeItem>();
            tree.changes[change].op = Op::Put(ItemBytes::part(&all, start..start + size_of::<InodeItem>()));
        }
        self.bytes.clear();
    }
}

/// One inode's changes in key order: the inode item's type is the lowest. Its bytes come later, out of `inode_items`.
fn itemise_inode(
    inode: &Inode,
    items: &ItemMap,
    fate: ItemFate,
    fields: &InodeFields,
    changes: &mut Vec<Change>,
    inode_items: &mut InodeItems,
) {
    let item = inode.key(ItemType::INODE_ITEM, 0);
    match fate {
        ItemFate::Clean => {}
        ItemFate::Dirty => {
            inode_items.add(fields, changes.len());
            changes.push(Change { key: item, op: Op::Put(ItemBytes::default()) });
        }
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
