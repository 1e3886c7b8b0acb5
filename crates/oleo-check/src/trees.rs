//! Visits every tree but the extent and checksum trees: compares the references that trees hold with the extent
//! records, and collects the items of the bookkeeping trees and the summaries of files.
//!
//! The form of a block's references follows from the block's own record. With FULL_BACKREF they name the block as
//! parent; without it they name the tree that owns the block (and, for data, the inode and offset). So each block is
//! compared once, however many trees reach it.

use std::sync::atomic::{AtomicU32, Ordering};

use oleo_format::{
    CheckedNode, Chunk, DevExtent, DevItem, FileExtentItem, FreeSpaceInfo, HeaderFlags, ItemType, Key, Logical, TreeId,
    bitmap_runs, data_use,
};

use crate::csums::Csums;
use crate::extents::extent_place;
use crate::files::LeafSummary;
use crate::finding::{Kind, Place};
use crate::input::Owned;
use crate::prealloc::{self, Suspects};
use crate::reduce::{Inner, NOWHERE, with_reporter};
use crate::refs::{Extent, ExtentKind, Extents, RefHash, RefKey};
use crate::sets::SetId;
use crate::walk::{Class, Context, Visit, Visitor, first_live_slot};

/// An item of the free-space tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FreeItem {
    /// Of a group: start, length, number of extents, flags.
    Info(u64, u64, u32, u32),
    /// Free: start, length.
    Extent(u64, u64),
    /// Covered by a bitmap: start, length. Its runs follow as `Bits`.
    Bitmap(u64, u64),
    /// Free in a bitmap.
    Bits(u64, u64),
}

/// Numbers of objects in the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Tree blocks, log trees included.
    pub blocks: u64,
    /// Of these, leaves.
    pub leaves: u64,
    /// Of these, blocks of log trees.
    pub log_blocks: u64,
    /// Extents with a record: data and tree blocks.
    pub extents: u64,
    /// Data extents with a record.
    pub data_extents: u64,
    /// References to extents that trees hold.
    pub refs: u64,
    /// Data extents that only log trees name.
    pub log_extents: u64,
    /// Inodes in blocks of trees of files, those that snapshots share counted once.
    pub inodes: u64,
    /// Trees with root items.
    pub trees: u64,
    /// Subvolumes and snapshots.
    pub subvolumes: u64,
    /// Bytes of data with checksums.
    pub csum_bytes: u64,
    /// Bytes of data extents.
    pub data_bytes: u64,
    /// Bytes that were verified against data checksums, each copy counted; 0 unless asked for.
    pub verified_bytes: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.blocks += other.blocks;
        self.leaves += other.leaves;
        self.log_blocks += other.log_blocks;
        self.refs += other.refs;
        self.log_extents += other.log_extents;
        self.inodes += other.inodes;
        self.verified_bytes += other.verified_bytes;
    }
}

/// What one batch of blocks yields.
#[derive(Default)]
pub(crate) struct TreePart {
    pub counts: Counts,
    /// References to extents without a record.
    pub missing: Vec<(u64, RefKey)>,
    /// Nodes of trees of files.
    pub nodes: Vec<Inner>,
    /// Summaries of leaves of trees of files.
    pub leaves: Vec<(u64, LeafSummary)>,
    pub chunks: Vec<(Key, Chunk)>,
    pub dev_items: Vec<DevItem>,
    pub dev_extents: Vec<(Key, DevExtent)>,
    pub free: Vec<FreeItem>,
    /// Preallocated data with checksums.
    pub prealloc: Suspects,
    /// Bytes of tree blocks by the set of subvolumes that reach them.
    pub set_blocks: Vec<SetId>,
    /// How many tree blocks simple quotas count, by who wrote them.
    pub owned_blocks: Owned,
}

impl TreePart {
    /// Adds what another batch yielded.
    pub fn append(&mut self, mut part: TreePart) {
        self.counts.add(&part.counts);
        self.missing.append(&mut part.missing);
        self.nodes.append(&mut part.nodes);
        self.leaves.append(&mut part.leaves);
        self.chunks.append(&mut part.chunks);
        self.dev_items.append(&mut part.dev_items);
        self.dev_extents.append(&mut part.dev_extents);
        self.free.append(&mut part.free);
        self.prealloc.append(&mut part.prealloc);
        self.set_blocks.append(&mut part.set_blocks);
        for (tree, blocks) in part.owned_blocks {
            *self.owned_blocks.entry(tree).or_default() += blocks;
        }
    }
}

/// Visits every tree but those of extents and checksums.
pub(crate) struct TreeVisitor<'a, 'b> {
    pub cx: &'a Context<'b>,
    pub hash: RefHash,
    pub extents: &'a Extents,
    pub csums: &'a Csums,
    /// For each extent, the set of subvolumes that reach it; empty unless quota needs it.
    pub extent_sets: &'a [AtomicU32],
    /// Subvolumes that are being deleted, and trees that have a relocation tree.
    pub dying: &'a [TreeId],
}

impl Visitor for TreeVisitor<'_, '_> {
    type Out = TreePart;

    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut TreePart) -> usize {
        let at = node.logical().0;
        out.counts.blocks += 1;
        let record = self.extents.get(at);
        if let Some(record) = record {
            check_record(self.cx, at, visit.tree.tree, node.level(), visit.generation, record);
        }
        let full = record.is_some_and(|r| r.kind == ExtentKind::FullBlock);
        if let Some(record) = record.filter(|_| visit.class.is_shared()) {
            self.check_owner(node, visit, record);
        }
        if self.cx.sets.is_on() && visit.class == Class::Files {
            out.set_blocks.push(visit.set);
        }
        if self.cx.simple_since.is_some_and(|since| visit.generation >= since) {
            *out.owned_blocks.entry(node.owner()).or_default() += 1;
        }
        if node.is_leaf() {
            out.counts.leaves += 1;
            self.leaf(node, visit, full, out);
            return 0;
        }
        let from = first_live_slot(node, visit);
        let key = if full { RefKey::Parent(Logical(at)) } else { RefKey::Tree(node.owner()) };
        let hash = self.hash.of(key);
        for child in &node.key_ptrs()[from..] {
            self.found(child.blockptr.get(), key, hash, out);
        }
        if is_files(visit.class) {
            // The part that a half-deleted tree has dropped is treated like blocks that cannot be read.
            let dropped = (from > 0).then_some(NOWHERE);
            let left = node.key_ptrs()[from..].iter().map(|p| p.blockptr.get());
            let children = dropped.into_iter().chain(left).collect();
            out.nodes.push(Inner { level: node.level(), at, owner: node.owner(), children });
        }
        from
    }
}

fn is_files(class: Class) -> bool {
    matches!(class, Class::Files | Class::DataReloc)
}

/// Compares a block with its record.
pub(crate) fn check_record(cx: &Context<'_>, at: u64, tree: TreeId, level: u8, generation: u64, record: &Extent) {
    let place = Place { tree: Some(tree), block: Some(Logical(at)), ..Place::default() };
    if record.is_data() {
        cx.error(Kind::ExtentFlags, place, "a data extent's record", "that of a tree block");
        return;
    }
    if record.level != level {
        cx.error(Kind::ExtentLevel, place.clone(), record.level, level);
    }
    if record.kind == ExtentKind::FullBlock && !Class::of(tree).is_shared() {
        cx.error(Kind::ExtentFlags, place.clone(), "full backrefs", "none, as no other tree shares the block");
    }
    if record.generation > cx.env.sb.generation.get() {
        // The kernel refuses the block with the record.
        cx.error(Kind::ExtentGeneration, place, record.generation, generation);
    } else if record.generation != generation {
        // The kernel and `btrfs check` do not compare them.
        cx.warn(Kind::ExtentGeneration, place, record.generation, generation);
    }
}

impl TreeVisitor<'_, '_> {
    /// Readers that look for the users of a block without full backrefs search the tree that owns it. A subvolume that
    /// is being deleted may have half of its blocks changed to full backrefs. A block that another one references by
    /// address may belong to the owner through that block: relocation (the kernel's, too) leaves it so if it moved the
    /// upper block alone. A block gets full backrefs when its owner stops using it, or from relocation, which marks it.
    fn check_owner(&self, node: &CheckedNode, visit: &Visit<'_>, record: &Extent) {
        let owner = node.owner();
        if self.dying.contains(&owner) {
            return;
        }
        let place = || Place { tree: Some(owner), block: Some(node.logical()), ..Place::default() };
        if record.kind == ExtentKind::FullBlock {
            if is_files(visit.class) && owner == visit.tree.tree && !node.flags().contains(HeaderFlags::RELOC) {
                self.cx.error(
                    Kind::ExtentFlags,
                    place(),
                    "full backrefs",
                    "none, as the tree that owns the block has it",
                );
            }
        } else if !record.may_have_root(owner) {
            let place = place();
            let have = format!("owner {owner}, which has no reference to it, without full backrefs");
            self.cx.error(Kind::BlockOwner, place, have, "a tree that has it, or full backrefs");
        }
    }

    /// Records a reference found in a tree.
    fn found(&self, at: u64, key: RefKey, hash: u64, out: &mut TreePart) -> Option<usize> {
        out.counts.refs += 1;
        let index = self.extents.find(at);
        match index {
            Some(i) => self.extents.of[i].found(hash),
            None => out.missing.push((at, key)),
        }
        index
    }

    fn leaf(&self, node: &CheckedNode, visit: &Visit<'_>, full: bool, out: &mut TreePart) {
        match visit.class {
            Class::Files | Class::DataReloc | Class::Reloc => self.files_leaf(node, visit, full, out),
            Class::Chunk => chunk_leaf(node, out),
            Class::Dev => dev_leaf(node, out),
            Class::FreeSpace => free_leaf(node, self.cx.env.rules.sectorsize, out),
            _ => {}
        }
    }

    fn files_leaf(&self, node: &CheckedNode, visit: &Visit<'_>, full: bool, out: &mut TreePart) {
        for (key, item) in node.iter() {
            match key.item_type {
                ItemType::INODE_ITEM => out.counts.inodes += 1,
                ItemType::EXTENT_DATA => self.file_extent(node, visit, full, &key, item, out),
                _ => {}
            }
        }
        if is_files(visit.class) {
            let summaries = match visit.tainted {
                true => LeafSummary::lost(),
                false => {
                    with_reporter(self.cx, self.csums, |reporter| LeafSummary::of_leaf(&self.cx.env, node, reporter))
                }
            };
            out.leaves.push((node.logical().0, summaries));
        }
    }

    fn file_extent(
        &self,
        node: &CheckedNode,
        visit: &Visit<'_>,
        full: bool,
        key: &Key,
        item: &[u8],
        out: &mut TreePart,
    ) {
        let Some(used) = data_use(key, item) else { return };
        let at = used.extent.0;
        let ref_key = match full {
            true => RefKey::DataParent(node.logical()),
            false => RefKey::Data { root: node.owner(), ino: used.ino, offset: used.offset },
        };
        let place =
            || Place { tree: Some(node.owner()), block: Some(node.logical()), key: Some(*key), ..Place::default() };
        if let Some(i) = self.found(at, ref_key, self.hash.of(ref_key), out) {
            let record = &self.extents.of[i];
            let len = self.extents.bytes(i, self.cx.env.rules.sectorsize.into());
            if !record.is_data() {
                self.cx.error(Kind::ExtentFlags, extent_place(at), "a tree block's record", "that of data");
            } else if len != used.len.0 {
                self.cx.error(Kind::ExtentSize, place(), used.len, len);
            }
            if let Some(set) = self.extent_sets.get(i).filter(|_| visit.class == Class::Files) {
                self.join_set(set, visit.set);
            }
        }
        if visit.class == Class::Files {
            let prealloc = prealloc::range_of(item, FileExtentItem::PREALLOC);
            if let Some(range) = prealloc.filter(|(start, len)| self.csums.covered(*start, *len) > 0) {
                out.prealloc.entry(range).or_insert_with(place);
            }
        }
    }

    fn join_set(&self, set: &AtomicU32, more: SetId) {
        let mut old = set.load(Ordering::Relaxed);
        loop {
            let new = self.cx.sets.union(SetId(old), more).0;
            match set.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }
}

fn chunk_leaf(node: &CheckedNode, out: &mut TreePart) {
    for (key, item) in node.iter() {
        match key.item_type {
            ItemType::CHUNK_ITEM => out.chunks.extend(Chunk::parse(item).ok().map(|chunk| (key, chunk))),
            ItemType::DEV_ITEM => out.dev_items.extend(DevItem::parse(item).ok()),
            _ => {}
        }
    }
}

fn dev_leaf(node: &CheckedNode, out: &mut TreePart) {
    for (key, item) in node.iter().filter(|(key, _)| key.item_type == ItemType::DEV_EXTENT) {
        out.dev_extents.extend(DevExtent::parse_start(item).ok().map(|extent| (key, *extent)));
    }
}

fn free_leaf(node: &CheckedNode, sectorsize: u32, out: &mut TreePart) {
    for (key, item) in node.iter() {
        match key.item_type {
            ItemType::FREE_SPACE_INFO => {
                if let Ok(info) = FreeSpaceInfo::parse_start(item) {
                    out.free.push(FreeItem::Info(key.objectid, key.offset, info.extent_count.get(), info.flags.get()));
                }
            }
            ItemType::FREE_SPACE_EXTENT => out.free.push(FreeItem::Extent(key.objectid, key.offset)),
            ItemType::FREE_SPACE_BITMAP => {
                out.free.push(FreeItem::Bitmap(key.objectid, key.offset));
                let runs = bitmap_runs(Logical(key.objectid), item, sectorsize);
                out.free.extend(runs.iter().map(|(at, len)| FreeItem::Bits(at.0, len.0)));
            }
            _ => {}
        }
    }
}
