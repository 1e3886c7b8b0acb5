//! The bookkeeping trees during one settling: what each round writes into them.
//!
//! Normal path of a round: (1) checksums of freed data go, new ones come; (2) used and freed pieces go to the free-space
//! tree, group by group; (3) extent items; (4) counts of the groups touched; (5) chunks made meanwhile. Each is one sorted
//! batch for one tree.
//!
//! What a round does to checksums is found out beside what it does to free space, and groups beside each other; then one tree after the
//! other is changed, so that blocks get the same addresses whatever the number of threads.
//!
//! Freed pieces are pinned: they are free on disk once this commit is durable, and in memory only after it.
//! Invariants: what becomes used was free, and what becomes free was used (`group_changes` checks each piece).
//! Crash: all of it is part of the transaction. Not here: what the extent items look like (`extents`), free-space forms
//! (`free_runs`), checksum items (`csums`).

use std::collections::BTreeMap;

use oleo_format::{
    BlockGroupItem, ByteLen, Corruption, FreeSpaceHeader, Generation, InodeItem, ItemType, Key, Logical, TreeId,
};
use oleo_space::Run;
use oleo_tree::{Change, Op};
use rayon::prelude::*;
use zerocopy::IntoBytes;

use crate::TxnError;
use crate::engine::Inner;
use crate::extents::Settled;
use crate::free_runs::{FreeItems, FreeSpaceChange, GroupSpan, Piece, group_changes};
use crate::growth::state::NewChunk;

struct Group {
    len: u64,
    flags: u64,
    used: u64,
}

/// What a round changes in the free space of one group: where it starts, how long it is, and the pieces.
type GroupPart<'p> = (u64, u64, &'p [(Piece, FreeSpaceChange)]);

/// With fewer pieces than this one thread finds out what becomes of them.
const PARALLEL_PIECES_MIN: usize = 256;

pub(crate) struct BookkeepingWriter<'a> {
    inner: &'a Inner,
    generation: Generation,
    groups: BTreeMap<u64, Group>,
}

impl<'a> BookkeepingWriter<'a> {
    pub(crate) fn new(inner: &'a Inner, generation: Generation) -> BookkeepingWriter<'a> {
        BookkeepingWriter { inner, generation, groups: BTreeMap::new() }
    }

    /// One round: everything that `settled` implies, applied to the trees.
    pub(crate) fn round(&mut self, settled: Settled, first: bool) -> Result<(), TxnError> {
        let inner = self.inner;
        let Settled { mut changes, mut space_changes, mut freed_data, freed_blocks, vanished, vanished_data, .. } =
            settled;
        for (at, len) in &vanished {
            // Data may be under a reader's eyes; a tree block was never written.
            let run = Run::new(*at, *len);
            if vanished_data.binary_search(&(*at, *len)).is_ok() {
                inner.space.pin(run)?;
            } else {
                inner.space.give_back(run);
            }
        }
        drop(freed_blocks);
        if first {
            freed_data.extend(vanished_data);
        }
        freed_data.sort_unstable();
        space_changes.sort_unstable_by_key(|(piece, _)| *piece);
        let parts = self.count_groups(&space_changes)?;
        let parallel = freed_data.len() + space_changes.len() >= PARALLEL_PIECES_MIN;
        let of_csums = || self.csum_changes(&freed_data, first);
        let of_free_space = || self.free_space_changes(&parts, parallel);
        let (csums, free_space) =
            if parallel { rayon::join(of_csums, of_free_space) } else { (of_csums(), of_free_space()) };
        inner.apply(TreeId::CSUM, &csums?, self.generation)?;
        inner.apply(TreeId::FREE_SPACE, &free_space?, self.generation)?;
        let touched: Vec<u64> = parts.iter().map(|(start, ..)| *start).collect();
        if !inner.rules.free_space_tree {
            self.invalidate_caches(&touched)?;
        }
        let counts: Vec<Change> = touched.iter().map(|start| self.count_change(*start)).collect();
        if inner.rules.block_group_tree {
            inner.apply(TreeId::EXTENT, &changes, self.generation)?;
            inner.apply(TreeId::BLOCK_GROUP, &counts, self.generation)
        } else {
            changes.extend(counts);
            changes.sort_unstable_by_key(|c| c.key);
            inner.apply(TreeId::EXTENT, &changes, self.generation)
        }
    }

    /// Marks the kernel's caches of what was free in these groups as not written, as the kernel does before it changes one: the
    /// generation of a cache's file is 0. That the superblock marks all caches as old is not enough: the next kernel sets
    /// that right with its first commit, and then trusts the caches of groups that it has not changed itself.
    fn invalidate_caches(&self, groups: &[u64]) -> Result<(), TxnError> {
        let inner = self.inner;
        let root = inner.tree(TreeId::ROOT)?.root;
        let mut batch = Vec::new();
        for start in groups {
            if !inner.invalidated_caches.lock().insert(*start) {
                continue;
            }
            let Some(header) = inner.blocks.get(&root, &Key::new(Key::FREE_SPACE, ItemType(0), *start))? else {
                continue;
            };
            let file = Key::from(FreeSpaceHeader::parse(&header)?.location);
            let key = Key::new(file.objectid, ItemType::INODE_ITEM, 0);
            let Some(item) = inner.blocks.get(&root, &key)? else { continue };
            let mut inode = *InodeItem::parse(&item)?;
            inode.generation.set(0);
            batch.push(Change::put(key, inode.as_bytes().to_vec()));
        }
        batch.sort_unstable_by_key(|change| change.key);
        inner.apply(TreeId::ROOT, &batch, self.generation)
    }

    /// Splits what a round changes by groups, keeps what is used of each, and pins what became free.
    fn count_groups<'p>(
        &mut self,
        space_changes: &'p [(Piece, FreeSpaceChange)],
    ) -> Result<Vec<GroupPart<'p>>, TxnError> {
        let (mut parts, mut rest) = (Vec::new(), space_changes);
        while let Some((piece, _)) = rest.first() {
            let start = self.group_of(piece.start)?;
            let Some(group) = self.groups.get_mut(&start) else { break };
            let n = rest.partition_point(|(piece, _)| piece.start < start + group.len);
            let (mine, later) = rest.split_at(n);
            rest = later;
            parts.push((start, group.len, mine));
            count_group(self.inner, start, group, mine)?;
        }
        Ok(parts)
    }

    /// The changes of the checksum tree.
    fn csum_changes(&self, freed_data: &[(Logical, ByteLen)], first: bool) -> Result<Vec<Change>, TxnError> {
        let inner = self.inner;
        if !first && freed_data.is_empty() {
            return Ok(Vec::new());
        }
        let root = inner.tree(TreeId::CSUM)?.root;
        inner.csums.rewrite(inner.layout, &inner.blocks, &root, freed_data, first)
    }

    /// The changes of the free-space tree, if there is one.
    fn free_space_changes(&self, parts: &[GroupPart<'_>], parallel: bool) -> Result<Vec<Change>, TxnError> {
        let inner = self.inner;
        if !inner.rules.free_space_tree || parts.is_empty() {
            return Ok(Vec::new());
        }
        let root = inner.tree(TreeId::FREE_SPACE)?.root;
        let of_group = |(start, len, pieces): &GroupPart<'_>| {
            let group = GroupSpan { start: *start, len: *len, sectorsize: inner.rules.sectorsize };
            group_changes(&inner.blocks, &root, group, pieces)
        };
        let done: Vec<Result<Vec<Change>, TxnError>> = if parallel && parts.len() > 1 {
            parts.par_iter().map(of_group).collect()
        } else {
            parts.iter().map(of_group).collect()
        };
        let mut all = Vec::new();
        for changes in done {
            all.append(&mut changes?);
        }
        Ok(all)
    }

    fn count_change(&self, start: u64) -> Change {
        let group = &self.groups[&start];
        let item = BlockGroupItem {
            used: group.used.into(),
            chunk_objectid: Key::FIRST_CHUNK_TREE.into(),
            flags: group.flags.into(),
        };
        let key = Key::new(start, ItemType::BLOCK_GROUP_ITEM, group.len);
        Change { key, op: Op::Put(item.as_bytes().into()) }
    }

    /// The group that `at` lies in, taken up if it was not yet.
    fn group_of(&mut self, at: u64) -> Result<u64, TxnError> {
        if let Some((start, g)) = self.groups.range(..=at).next_back()
            && at - start < g.len
        {
            return Ok(*start);
        }
        let info = self.inner.space.group(Logical(at))?;
        let group = Group { len: info.len.0, flags: info.flags.bits(), used: info.used.0 };
        self.groups.insert(info.start.0, group);
        Ok(info.start.0)
    }

    /// Chunks that were made since the last look: their items, their groups, and what is free in them; a batch for each
    /// tree, however many they are.
    pub(crate) fn record_chunks(&mut self, chunks: Vec<NewChunk>) -> Result<(), TxnError> {
        let inner = self.inner;
        let (mut chunk_tree, mut dev_tree) = (Vec::new(), Vec::new());
        let (mut free_space, mut counts) = (Vec::new(), Vec::new());
        for chunk in chunks {
            chunk_tree.extend(chunk.chunk_tree);
            dev_tree.extend(chunk.dev_tree);
            let (start, len) = (chunk.start.0, chunk.len.0);
            let group = Group { len, flags: chunk.flags.bits(), used: 0 };
            if inner.rules.free_space_tree {
                let mut free = FreeItems::new(chunk.start, chunk.len, inner.rules.sectorsize, &chunk.free);
                free_space.extend(free.changes());
            }
            self.groups.insert(start, group);
            counts.push(self.count_change(start));
        }
        let groups = if inner.rules.block_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
        for (tree, changes) in
            [(TreeId::CHUNK, chunk_tree), (TreeId::DEV, dev_tree), (TreeId::FREE_SPACE, free_space), (groups, counts)]
        {
            inner.apply(tree, &last_of_each(changes), self.generation)?;
        }
        Ok(())
    }
}

/// Keeps what is used of a group, and pins what became free.
fn count_group(
    inner: &Inner,
    start: u64,
    group: &mut Group,
    space_changes: &[(Piece, FreeSpaceChange)],
) -> Result<(), TxnError> {
    let mut delta = 0i64;
    for (piece, new_state) in space_changes {
        let bytes = (piece.end - piece.start) as i64;
        match new_state {
            FreeSpaceChange::Used => delta += bytes,
            FreeSpaceChange::Free => {
                delta -= bytes;
                inner.space.pin(Run::new(Logical(piece.start), ByteLen(piece.end - piece.start)))?;
            }
        }
    }
    group.used = group.used.checked_add_signed(delta).filter(|used| *used <= group.len).ok_or_else(|| {
        Corruption::new("block group", "used", format!("{} {delta:+}", group.used), format!("0..={}", group.len))
            .within(format!("group {start}"))
    })?;
    inner.space.note_used(Logical(start), delta)?;
    inner.growth.add_bytes_used(delta);
    Ok(())
}

/// Sorted, and of several changes of one item (every chunk changes those of its devices) only the last.
fn last_of_each(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by_key(|c| c.key);
    changes.reverse();
    changes.dedup_by_key(|c| c.key);
    changes.reverse();
    changes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oleo_device::{Device, MemDevice};
    use oleo_format::{BlockGroupFlags, TreeId};
    use oleo_mkfs::MkfsOptions;
    use oleo_space::{GroupInfo, Kind};
    use oleo_volume::{OpenOptions, Volume};

    use crate::{Engine, EngineOptions};

    /// Goal: a block may lie in a chunk that was made after the last look at what was made: recording others needs room, and others make
    /// chunks at any time.
    /// Method: only a chunk that waits to be recorded has room, and that for one block; recording it takes more.
    #[test]
    fn a_chunk_made_while_another_is_recorded() {
        for free_space_tree in [true, false] {
            let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 30));
            let mut options = MkfsOptions::default().seed([1; 32]);
            options.features.free_space_tree = free_space_tree;
            oleo_mkfs::make(std::slice::from_ref(&device), &options).unwrap();
            let open = || {
                let volume = Volume::open(vec![device.clone()], &OpenOptions { write: true, ..OpenOptions::default() });
                Engine::open(Arc::new(volume.unwrap()), &EngineOptions::default()).unwrap()
            };
            let engine = open();
            let inner = &*engine.0;
            let old: Vec<_> = inner.space.groups();
            assert!(inner.grow(Kind::Metadata).unwrap());
            for group in old.iter().filter(|group| group.flags.contains(BlockGroupFlags::METADATA)) {
                inner.space.set_read_only(group.start, true).unwrap();
            }
            let is_metadata = |group: &GroupInfo| group.flags.contains(BlockGroupFlags::METADATA);
            let there = inner.space.groups();
            let new = there.iter().find(|g| is_metadata(g) && old.iter().all(|o| o.start != g.start)).unwrap();
            let blocks = (new.len.0 - new.excluded.0) / u64::from(inner.rules.nodesize);
            let mut taken = Vec::new();
            inner.alloc_blocks(Kind::Metadata, blocks as usize - 1, &mut taken).unwrap();
            inner.touched.store(true, std::sync::atomic::Ordering::Release);
            engine.commit().unwrap();
            assert!(inner.space.groups().len() > there.len(), "there was room: this shows nothing");
            let groups = |engine: &Engine| {
                let mut all = engine.0.space.groups();
                all.sort_by_key(|group| group.start);
                all.into_iter().map(|group| (group.start, group.used)).collect::<Vec<_>>()
            };
            let before = groups(&engine);
            drop(engine);
            let engine = open();
            assert_eq!(groups(&engine), before, "what is used");
            engine.commit().unwrap();
            assert_eq!(engine.dead_trees().unwrap(), Vec::<TreeId>::new());
        }
    }
}
