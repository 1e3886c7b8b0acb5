//! Removing an empty block group with its chunk.
//!
//! Normal path: (1) everything that was in it is free: what was freed has been committed, and no reader is left from before;
//! (2) in one stage the items of chunk, device extents, group and free space go, the allocator forgets the group, the volume
//! counts the chunk as gone; (3) when that is durable, its places on the devices may have other chunks.
//!
//! Volumes without a free-space tree may have an old cache of what is free in the group: its file goes with it.
//! Crash: before (3) the group is there, empty.

use std::sync::atomic::Ordering;

use oleo_format::{BlockGroupFlags, FreeSpaceHeader, Incompat, ItemType, Key, Logical, TreeId, data_use};
use oleo_space::{ExtentKind, RefKey, Run};
use oleo_tree::Change;
use oleo_volume::Profile;

use crate::TxnError;
use crate::engine::{Engine, Inner};
use crate::free_runs::group_items;
use crate::staged::Staged;

/// The features that a group's profile needs.
fn features_of(flags: BlockGroupFlags) -> Incompat {
    Profile::of(flags).map_or(Incompat::empty(), Profile::incompat)
}

impl Inner {
    /// The features that the profiles of all groups need.
    pub(crate) fn features_of_profiles(&self) -> Incompat {
        self.space.groups().iter().fold(Incompat::empty(), |all, group| all | features_of(group.flags))
    }
}

impl Engine {
    /// Whether all of a group is free.
    pub(super) fn is_empty_group(&self, start: Logical) -> Result<bool, TxnError> {
        self.0.reap();
        let info = self.0.space.group(start)?;
        if info.used.0 != 0 {
            return Ok(false);
        }
        let free: u64 = self.0.space.free_runs(start).map_err(free_runs_error)?.iter().map(|run| run.len.0).sum();
        Ok(free + info.excluded.0 >= info.len.0)
    }

    /// Removes an empty group, durably.
    pub(super) fn remove_group(&self, start: Logical) -> Result<(), TxnError> {
        self.stage(|staged| staged.remove_group(start))?;
        self.commit()?;
        self.0.volume.remove_chunk(start);
        Ok(())
    }
}

fn free_runs_error(error: oleo_space::FreeRunsError) -> TxnError {
    match error {
        oleo_space::FreeRunsError::Space(e) => e.into(),
        oleo_space::FreeRunsError::Load(e) => e.into(),
    }
}

impl Staged<'_> {
    fn remove_group(&mut self, start: Logical) -> Result<(), TxnError> {
        let inner = self.inner();
        // Refused if somebody has something in it after all: nothing has changed then.
        let info = inner.space.remove_group(start)?;
        inner.profile_gone.fetch_or(features_of(info.flags).bits(), Ordering::Relaxed);
        self.remove_records(start, Run::new(start, info.len)).map_err(|e| inner.poison(e))
    }

    fn remove_records(&mut self, start: Logical, group: Run) -> Result<(), TxnError> {
        let inner = self.inner();
        let held = inner.growth.lock_chunk_alloc();
        let gone = inner.volume.retire_chunk(start)?;
        let mut chunk_tree = vec![Change::delete(gone.chunk_key)];
        for (key, item) in gone.dev_items {
            inner.growth.replace_in_plans(&held, &key, &item);
            chunk_tree.push(Change::put(key, item));
        }
        drop(held);
        chunk_tree.sort_unstable_by_key(|change| change.key);
        let mut dev_tree: Vec<Change> = gone.dev_extent_keys.into_iter().map(Change::delete).collect();
        dev_tree.sort_unstable_by_key(|change| change.key);
        let groups = if inner.rules.block_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
        let item = Key::new(start.0, ItemType::BLOCK_GROUP_ITEM, group.len.0);
        if inner.rules.free_space_tree {
            let root = inner.tree(TreeId::FREE_SPACE)?.root;
            let items = group_items(&inner.blocks, &root, start, group.len)?;
            let free: Vec<Change> = items.into_iter().map(|(key, _)| Change::delete(key)).collect();
            self.put(TreeId::FREE_SPACE, &free)?;
        } else {
            let cache = self.old_cache(inner, start)?;
            self.put(TreeId::ROOT, &cache)?;
        }
        self.put(TreeId::CHUNK, &chunk_tree)?;
        self.put(TreeId::DEV, &dev_tree)?;
        self.put(groups, &[Change::delete(item)])
    }

    /// What takes away the kernel's old cache of a group.
    pub(crate) fn old_cache(&self, inner: &Inner, start: Logical) -> Result<Vec<Change>, TxnError> {
        let root = inner.tree(TreeId::ROOT)?.root;
        let head = Key::new(Key::FREE_SPACE, ItemType(0), start.0);
        let Some(header) = inner.blocks.get(&root, &head)? else { return Ok(Vec::new()) };
        let file = Key::from(FreeSpaceHeader::parse(&header)?.location);
        let mut changes = vec![Change::delete(head)];
        let mut cursor = inner.blocks.cursor(&root);
        let mut more = cursor.seek(&Key::new(file.objectid, ItemType::INODE_ITEM, 0))?;
        while more && let Some((key, item)) = cursor.current().filter(|(key, _)| key.objectid == file.objectid) {
            if let Some(used) = data_use(&key, item) {
                let by = RefKey::DataRoot { root: TreeId::ROOT, ino: used.ino, offset: used.offset };
                inner.ledger.record(used.extent, used.len, ExtentKind::Data, by, -1);
            }
            changes.push(Change::delete(key));
            more = cursor.next()?;
        }
        changes.sort_unstable_by_key(|change| change.key);
        Ok(changes)
    }
}
