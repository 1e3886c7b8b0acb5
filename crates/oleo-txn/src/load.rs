//! Opening: which trees, which block groups, what cannot be written, and where free space comes from.
//!
//! Free space is read when an allocation first looks into a group: from the free-space tree if it is valid, else as what
//! the extent tree leaves between extents. A group that was not loaded has had nothing allocated by us, so the newest roots
//! are right about it but for what the open transaction freed, which `space` keeps pinned.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use oleo_format::{
    BlockGroupFlags, BlockGroupItemV2, ByteLen, CompatRo, Generation, Incompat, ItemType, Key, Logical, RootBackup,
    SuperBlock, TreeId,
};
use oleo_space::{FreeSource, GroupInfo, LoadError, Run};
use oleo_tree::{Blocks, TreeRoot};
use oleo_volume::{ChunkMap, ErrorCounters, Volume};
use rayon::prelude::*;

use crate::TxnError;
use crate::engine::{Engine, Inner, Rules};
use crate::free_runs::{FreeItems, group_items, sum_of, without};
use crate::new_free_space;
use crate::options::EngineOptions;
use crate::trees::{self, TreeState};
use crate::unreplayed_log;

impl Engine {
    /// Opens the trees of `volume`. For writing it refuses what it cannot carry on: the replacement of a device whose
    /// target is not there, features it does not know. If there is a log, what it uses is kept, and no commit happens
    /// before [`Engine::log_applied`].
    pub fn open(volume: Arc<Volume>, opts: &EngineOptions) -> Result<Engine, TxnError> {
        new_free_space::build(&volume, opts)?;
        Engine::open_as(volume, opts, false)
    }

    /// The same; `new_free_space`: to give it a free-space tree (`new_free_space.rs`).
    pub(crate) fn open_as(volume: Arc<Volume>, opts: &EngineOptions, new_free_space: bool) -> Result<Engine, TxnError> {
        let sb = volume.super_block();
        let features = sb.features();
        let blocks = Blocks::new(volume.clone(), opts.cache_bytes);
        let state = |root| TreeState { root, item: None, key_offset: 0, changed: false };
        let root_tree = TreeRoot::on_disk(TreeId::ROOT, sb.root(), sb.generation(), sb.root_level);
        let chunk_generation = Generation(sb.chunk_root_generation.get());
        let chunk_tree = TreeRoot::on_disk(TreeId::CHUNK, sb.chunk_root(), chunk_generation, sb.chunk_root_level);
        let rules = Rules {
            read_only: opts.read_only,
            chunk_len_max: opts.chunk_len_max,
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            csum: sb.csum()?,
            free_space_tree: new_free_space || new_free_space::is_kept_up(&sb),
            free_from_extents: new_free_space,
            block_group_tree: features.block_group_tree(),
            discard: opts.discard && !opts.read_only,
            ignore_bad_trees: opts.read_only && opts.ignore_bad_trees,
            uuid_tree: tolerant(opts, trees::find(&blocks, &root_tree, TreeId::UUID))?.flatten().is_some(),
            skinny: features.skinny_metadata(),
            metadata_uuid: sb.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            mixed: features.mixed_groups(),
        };
        let engine = Engine(Arc::new_cyclic(|this| {
            let free_space = Arc::new(Source(this.clone()));
            Inner::new(volume, blocks, rules, opts, free_space)
        }));
        let occupancy = Arc::downgrade(&engine.0);
        engine.0.volume.set_occupancy(occupancy);
        let witness = Arc::downgrade(&engine.0);
        engine.0.volume.set_witness(witness);
        let placement = Arc::downgrade(&engine.0);
        engine.0.volume.set_placement(placement);
        let inner = &*engine.0;
        inner.trees.set(state(root_tree.clone()));
        inner.trees.set(state(chunk_tree));
        if let Some((root, generation, level)) = sb.remap_tree() {
            inner.trees.set(state(TreeRoot::on_disk(TreeId::REMAP, root, generation, level)));
        }
        if !opts.read_only {
            refuse_unwritable(inner)?;
            refuse_lost_trees(inner)?;
            inner.carry_replace_on()?;
        }
        let loaded = [
            ("the error counters of devices", load_device_stats(inner)),
            ("the block groups, and so how much space is used,", load_groups(inner)),
            ("the quota groups", inner.load_quota()),
        ];
        let mut not_read = Vec::new();
        for (what, loaded) in loaded {
            match loaded {
                // Files can be read without them.
                Err(e) if opts.read_only => not_read.push((what, e)),
                other => other?,
            }
        }
        let _ = inner.not_read.set(not_read);
        if !opts.read_only {
            let found = unreplayed_log::read(inner)?;
            *inner.unreplayed_log.lock() = found.map(Arc::new);
            inner.root_tree_blocks.store(inner.count_blocks(&root_tree)?, Ordering::Relaxed);
        }
        Ok(engine)
    }

    /// What could not be read when the volume was opened for reading, and why: it counts as empty.
    pub fn not_read(&self) -> &[(&'static str, TxnError)] {
        self.0.not_read.get().map_or(&[], Vec::as_slice)
    }
}

/// Passes over what cannot be read, if that is wanted.
fn tolerant<T>(opts: &EngineOptions, loaded: Result<T, TxnError>) -> Result<Option<T>, TxnError> {
    match loaded {
        Ok(value) => Ok(Some(value)),
        Err(_) if opts.read_only && opts.ignore_bad_trees => Ok(None),
        Err(e) => Err(e),
    }
}

/// What is on the volume that writing would have to carry on, by name.
fn refuse_unwritable(inner: &Inner) -> Result<(), TxnError> {
    let refuse = |what: &str| Err(TxnError::Refused(what.into()));
    let sb = *inner.super_block.lock();
    let features = sb.features();
    let unknown = features.compat_ro.difference(
        CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID | CompatRo::BLOCK_GROUP_TREE | CompatRo::VERITY,
    );
    if !unknown.is_empty() {
        return refuse(&format!("unknown read-only compatible features {:#x}", unknown.bits()));
    }
    for (feature, name) in [
        (Incompat::ZONED, "zoned devices"),
        (Incompat::RAID_STRIPE_TREE, "the raid-stripe tree"),
        (Incompat::REMAP_TREE, "the remap tree"),
        (Incompat::EXTENT_TREE_V2, "extent tree v2"),
    ] {
        if features.incompat.contains(feature) {
            return refuse(&format!("{name} cannot be written yet"));
        }
    }
    Ok(())
}

/// Refuses a volume without a tree that commits change: it would accept changes and not be able to save them. Only roots are read: a
/// block below hides a part of the tree, and the rest can be changed, scrubbed and repaired.
fn refuse_lost_trees(inner: &Inner) -> Result<(), TxnError> {
    let trees = [
        (TreeId::EXTENT, "the extent tree", true),
        (TreeId::CSUM, "the checksum tree", true),
        (TreeId::DEV, "the device tree", true),
        (TreeId::BLOCK_GROUP, "the block-group tree", inner.rules.block_group_tree),
        (TreeId::FREE_SPACE, "the free-space tree", inner.rules.free_space_tree && !inner.rules.free_from_extents),
        (TreeId::UUID, "the UUID tree", inner.rules.uuid_tree),
    ];
    for (tree, name, _) in trees.into_iter().filter(|(_, _, needed)| *needed) {
        let read = inner.tree(tree).and_then(|tree| Ok(inner.blocks.root_node(&tree.root)?));
        read.map_err(|source| TxnError::Lost { name, source: Box::new(source) })?;
    }
    Ok(())
}

/// Error counters go on from where the last user left them.
fn load_device_stats(inner: &Inner) -> Result<(), TxnError> {
    let Some(dev) = inner.trees.get(&inner.blocks, TreeId::DEV)? else { return Ok(()) };
    for (devid, since_open) in inner.volume.error_counters() {
        if let Some(item) = inner.blocks.get(&dev.root, &Key::device_stats(devid))? {
            let mut values = since_open.to_values();
            for (value, bytes) in values.iter_mut().zip(item.as_chunks::<8>().0) {
                *value = value.saturating_add(u64::from_le_bytes(*bytes));
            }
            inner.volume.set_error_counters(devid, ErrorCounters::from_values(values));
        }
    }
    Ok(())
}

/// Block groups whose items one task reads. If they have no tree of their own they are among extents, a few to a leaf, so
/// that nearly all of the extent tree has to be read and verified.
const GROUPS_PER_TASK: usize = 1024;
/// Tasks whose findings are kept at a time: enough for all cores, and a few megabytes.
const TASKS: usize = 32;

fn load_groups(inner: &Inner) -> Result<(), TxnError> {
    let tree = if inner.rules.block_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
    let root = inner.tree(tree)?.root;
    let mut chunks = inner.volume.chunks();
    chunks.sort_unstable_by_key(|c| c.start);
    let read = |chunks: &[Arc<ChunkMap>]| read_group_items(&inner.blocks, &root, chunks);
    for some in chunks.chunks(GROUPS_PER_TASK * TASKS) {
        let found: Vec<Vec<Option<BlockGroupItemV2>>> = if some.len() <= GROUPS_PER_TASK {
            vec![read(some)?]
        } else {
            inner.commit_workers.run(|| some.par_chunks(GROUPS_PER_TASK).map(read).collect::<Result<_, _>>())?
        };
        // A chunk without a group is left alone: nothing is allocated from it.
        let groups = some.iter().zip(found.into_iter().flatten()).filter_map(|(chunk, item)| Some((chunk, item?)));
        add_groups(inner, groups)?;
    }
    Ok(())
}

/// The block groups of chunks, which are sorted.
fn read_group_items(
    blocks: &Blocks,
    root: &TreeRoot,
    chunks: &[Arc<ChunkMap>],
) -> Result<Vec<Option<BlockGroupItemV2>>, TxnError> {
    let keys: Vec<Key> = chunks.iter().map(|c| Key::new(c.start.0, ItemType::BLOCK_GROUP_ITEM, c.len.0)).collect();
    let mut found = vec![None; keys.len()];
    let mut wrong = None;
    blocks.get_many(root, &keys, |i, data| match data.map(BlockGroupItemV2::decode).transpose() {
        Ok(item) => found[i] = item,
        Err(e) => wrong = wrong.take().or(Some(e)),
    })?;
    wrong.map_or(Ok(found), |e| Err(e.into()))
}

fn add_groups<'a>(
    inner: &Inner,
    groups: impl Iterator<Item = (&'a Arc<ChunkMap>, BlockGroupItemV2)>,
) -> Result<(), TxnError> {
    let info = |(chunk, item): (&Arc<ChunkMap>, BlockGroupItemV2)| {
        // What the group has in its own place counts, whosever it is: so the bytes of all groups are those on the devices.
        let flags = item.group_flags() - BlockGroupFlags::REMAPPED;
        let used = inner
            .volume
            .unmoved_bytes(chunk)
            .map_or(item.used.get().saturating_add(item.remap_bytes.get()), |len| len.0);
        inner.growth.note_found(flags);
        GroupInfo {
            start: chunk.start,
            len: chunk.len,
            flags,
            used: ByteLen(used.min(chunk.len.0)),
            excluded: sum_of(&inner.volume.withheld_ranges_in(chunk)),
            free_extents: None,
            read_only: inner.rules.read_only || inner.volume.is_on_seed(chunk),
            row_len: chunk.row_len(),
        }
    };
    let infos: Vec<GroupInfo> = groups.map(info).collect();
    Ok(inner.space.add_groups(&infos)?)
}

/// Shows the allocator what is free in a group.
struct Source(Weak<Inner>);

impl FreeSource for Source {
    fn load(&self, group: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
        let inner = self.0.upgrade().ok_or_else(|| LoadError::source(group, TxnError::Refused("closed".into())))?;
        inner.load_free(group).map_err(|e| LoadError::source(group, e))
    }

    fn counts(&self, groups: &[Logical]) -> Vec<Option<u32>> {
        // A hint: what cannot be read is reported when it is needed.
        let counts = self.0.upgrade().and_then(|inner| inner.free_counts(groups).ok());
        counts.unwrap_or_else(|| vec![None; groups.len()])
    }

    fn expect(&self, groups: &[Logical]) {
        // The leaves with the groups' summaries, into the cache, in one batch: what is free is next to them.
        let _ = self.0.upgrade().map(|inner| inner.free_counts(groups));
    }
}

impl Inner {
    /// How many free runs groups have, by the free-space tree; `groups` rising.
    fn free_counts(&self, groups: &[Logical]) -> Result<Vec<Option<u32>>, TxnError> {
        let mut counts = vec![None; groups.len()];
        if !self.rules.free_space_tree || self.rules.free_from_extents {
            return Ok(counts);
        }
        let _reader = self.readers.enter();
        let mut keys = Vec::with_capacity(groups.len());
        for group in groups {
            keys.push(Key::new(group.0, ItemType::FREE_SPACE_INFO, self.volume.chunk_of(*group)?.len.0));
        }
        // Candidates that were found going round come after those behind the goal.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&i| keys[i]);
        let sorted: Vec<Key> = order.iter().map(|&i| keys[i]).collect();
        let root = self.tree(TreeId::FREE_SPACE)?.root;
        self.blocks.get_many(&root, &sorted, |i, data| {
            let count = data.and_then(|data| data.first_chunk::<4>()).map(|bytes| u32::from_le_bytes(*bytes));
            if let Some(slot) = order.get(i).and_then(|&i| counts.get_mut(i)) {
                *slot = count;
            }
        })?;
        Ok(counts)
    }

    pub(crate) fn load_free(&self, group: Logical) -> Result<Vec<(Logical, ByteLen)>, TxnError> {
        let _reader = self.readers.enter();
        let chunk = self.volume.chunk_of(group)?;
        let withheld = self.volume.withheld_ranges_in(&chunk);
        if self.rules.free_space_tree && !self.rules.free_from_extents {
            let root = self.tree(TreeId::FREE_SPACE)?.root;
            let items = group_items(&self.blocks, &root, chunk.start, chunk.len)?;
            let free = FreeItems::read(chunk.start, chunk.len, self.rules.sectorsize, items)?;
            // The kernel records the superblock mirrors in its new groups as free, and never gives them out.
            let runs = free.runs().map(|(start, len)| Run::new(start, len));
            return Ok(runs.flat_map(|run| without(run, &withheld)).collect());
        }
        let root = self.tree(TreeId::EXTENT)?.root;
        let mut taken = withheld;
        let mut cursor = self.blocks.cursor(&root);
        let mut more = cursor.seek(&Key::new(chunk.start.0, ItemType(0), 0))?;
        while more {
            let Some((key, _)) = cursor.current() else { break };
            if key.objectid - chunk.start.0 >= chunk.len.0 {
                break;
            }
            match key.item_type {
                ItemType::EXTENT_ITEM => taken.push((Logical(key.objectid), ByteLen(key.offset))),
                ItemType::METADATA_ITEM => {
                    taken.push((Logical(key.objectid), ByteLen(u64::from(self.rules.nodesize))));
                }
                _ => {}
            }
            more = cursor.next()?;
        }
        taken.sort_unstable();
        let all = Run::new(chunk.start, chunk.len);
        Ok(without(all, &taken))
    }

    /// The backup of the roots that are being committed.
    pub(crate) fn fill_backup(&self, sb: &mut SuperBlock, generation: Generation) -> Result<(), TxnError> {
        let mut b = RootBackup {
            tree_root: sb.root,
            tree_root_gen: generation.0.into(),
            tree_root_level: sb.root_level,
            chunk_root: sb.chunk_root,
            chunk_root_gen: sb.chunk_root_generation,
            chunk_root_level: sb.chunk_root_level,
            total_bytes: sb.total_bytes,
            bytes_used: sb.bytes_used,
            num_devices: sb.num_devices,
            ..RootBackup::default()
        };
        let root = |tree| Ok::<_, TxnError>(self.tree(tree)?.root);
        let (extent, fs, dev, csum) =
            (root(TreeId::EXTENT)?, root(TreeId::FS)?, root(TreeId::DEV)?, root(TreeId::CSUM)?);
        b.extent_root = extent.logical.0.into();
        b.extent_root_gen = extent.generation.0.into();
        b.extent_root_level = extent.level;
        b.fs_root = fs.logical.0.into();
        b.fs_root_gen = fs.generation.0.into();
        b.fs_root_level = fs.level;
        b.dev_root = dev.logical.0.into();
        b.dev_root_gen = dev.generation.0.into();
        b.dev_root_level = dev.level;
        b.csum_root = csum.logical.0.into();
        b.csum_root_gen = csum.generation.0.into();
        b.csum_root_level = csum.level;
        sb.push_backup(b);
        Ok(())
    }
}
