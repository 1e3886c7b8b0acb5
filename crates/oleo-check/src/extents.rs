//! The extent tree as it is recorded: records, the references they claim, block groups. Everything here is a claim,
//! which is compared later with what the trees hold.
//!
//! Leaves are parsed in parallel and merged in key order by [`ExtentRecords::merge`]: references with keys of their own
//! at the start of a leaf belong to the last extent of the leaf before.

use oleo_format::{
    BackRef, BlockGroupFlags, BlockGroupItemV2, CheckedNode, ExtentFlags, ExtentRecord, InlineRefs, ItemType, Key,
    Logical, TreeId,
};

use crate::finding::{Kind, Place};
use crate::input::Owned;
use crate::refs::{Extent, ExtentKind, Extents, RefHash, RefKey};
use crate::walk::{Context, Visit, Visitor};

/// Longer extents are not believed; the longest data extent is 128 MiB.
const EXTENT_LEN_MAX: u64 = 1 << 40;

/// A block of a tree that is walked before extents are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Early {
    pub at: u64,
    pub generation: u64,
    pub level: u8,
    pub tree: TreeId,
}

/// A block group's item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub start: u64,
    pub len: u64,
    /// `None` if the item is missing.
    pub used: Option<u64>,
    pub flags: BlockGroupFlags,
    pub tree: TreeId,
}

/// A record of the extent tree.
struct Record {
    at: u64,
    extent: Extent,
    /// The count in `refs` less the counts of the references listed inline and after it.
    owing: i64,
    /// Hashes of its references, to find one that is listed twice.
    hashes: Vec<u64>,
}

/// What a leaf of the extent tree holds.
#[derive(Default)]
struct Leaf {
    first: Option<Key>,
    records: Vec<Record>,
    /// References at its start, to the last extent of the leaf before.
    lead: Vec<(u64, RefKey, u32)>,
}

/// What one batch of blocks yields.
#[derive(Default)]
pub(crate) struct Part {
    leaves: Vec<Leaf>,
    pub groups: Vec<Group>,
    pub early: Vec<Early>,
    /// Children that blocks point to, with the tree that does.
    pub refs: Vec<(u64, TreeId)>,
    /// Data that simple quotas count.
    owned: Owned,
}

/// Visits the extent tree and the block-group tree.
pub(crate) struct ExtentVisitor<'a, 'b> {
    pub cx: &'a Context<'b>,
    pub hash: RefHash,
}

impl Visitor for ExtentVisitor<'_, '_> {
    type Out = Part;

    fn block(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut Part) -> usize {
        note_early(node, visit, &mut out.early, &mut out.refs);
        if node.is_leaf() {
            self.leaf(node, visit, out);
        }
        0
    }
}

/// Keeps what is needed to compare a block and its children with their records later.
pub(crate) fn note_early(node: &CheckedNode, visit: &Visit<'_>, early: &mut Vec<Early>, refs: &mut Vec<(u64, TreeId)>) {
    early.push(Early {
        at: node.logical().0,
        generation: visit.generation,
        level: node.level(),
        tree: visit.tree.tree,
    });
    if !node.is_leaf() {
        refs.extend(node.key_ptrs().iter().map(|p| (p.blockptr.get(), node.owner())));
    }
}

impl ExtentVisitor<'_, '_> {
    fn leaf(&self, node: &CheckedNode, visit: &Visit<'_>, out: &mut Part) {
        let mut leaf = Leaf { first: (!node.is_empty()).then(|| node.key(0)), ..Leaf::default() };
        for (key, item) in node.iter() {
            let place =
                Place { tree: Some(visit.tree.tree), block: Some(node.logical()), key: Some(key), ..Place::default() };
            match key.item_type {
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                    if let Some(record) = self.record(key, item, &place) {
                        self.own(&key, item, &mut out.owned);
                        leaf.records.push(record);
                    }
                }
                ItemType::BLOCK_GROUP_ITEM => {
                    let Ok(group) = BlockGroupItemV2::decode(item) else { continue };
                    out.groups.push(Group {
                        start: key.objectid,
                        len: key.offset,
                        used: Some(group.used.get()),
                        flags: group.group_flags(),
                        tree: visit.tree.tree,
                    });
                }
                ItemType::TREE_BLOCK_REF
                | ItemType::SHARED_BLOCK_REF
                | ItemType::EXTENT_DATA_REF
                | ItemType::SHARED_DATA_REF => {
                    let Ok(backref) = BackRef::parse_keyed(&key, item) else { continue };
                    self.keyed_place(&key, &backref, &place);
                    let Some((ref_key, count)) = RefKey::of(&backref) else { continue };
                    match leaf.records.last_mut() {
                        Some(record) if record.at == key.objectid => record.claim(self.hash, ref_key, count),
                        // The extent's record is in an earlier leaf, or in none.
                        _ => leaf.lead.push((key.objectid, ref_key, count)),
                    }
                }
                _ => {}
            }
        }
        out.leaves.push(leaf);
    }

    /// Counts data for the subvolume that wrote it.
    fn own(&self, key: &Key, item: &[u8], owned: &mut Owned) {
        let Some(since) = self.cx.simple_since else { return };
        let Ok((head, inline)) = ExtentRecord::parse_head(key, item) else { return };
        if !head.flags.contains(ExtentFlags::DATA) || head.generation.0 < since {
            return;
        }
        let owner = InlineRefs(inline).find_map(|backref| match backref {
            Ok(BackRef::Owner { root }) => Some(root),
            _ => None,
        });
        if let Some(owner) = owner {
            let sum = owned.entry(owner).or_default();
            *sum = sum.saturating_add(key.offset);
        }
    }

    /// The key of a data reference is its hash, or a little more if other references have the same hash.
    fn keyed_place(&self, key: &Key, backref: &BackRef, place: &Place) {
        /// Up to this many references with one hash may follow each other; after that one counts as misplaced.
        const SAME_HASH_MAX: u64 = 64;
        let want = backref.key_offset();
        if key.offset.wrapping_sub(want) > SAME_HASH_MAX {
            self.cx.error(Kind::ExtentRefKey, place.clone(), key.offset, want);
        }
    }

    fn record(&self, key: Key, item: &[u8], place: &Place) -> Option<Record> {
        let (head, inline) = ExtentRecord::parse_head(&key, item).ok()?;
        let rules = &self.cx.env.rules;
        let is_skinny = key.item_type == ItemType::METADATA_ITEM;
        let len = if is_skinny { u64::from(rules.nodesize) } else { key.offset };
        if len > EXTENT_LEN_MAX || key.objectid.checked_add(len).is_none() {
            self.cx.error(Kind::ExtentSize, place.clone(), len, format_args!("at most {EXTENT_LEN_MAX}"));
            return None;
        }
        let kind = match (head.flags.contains(ExtentFlags::DATA), head.flags.contains(ExtentFlags::FULL_BACKREF)) {
            (true, _) => ExtentKind::Data,
            (false, false) => ExtentKind::Block,
            (false, true) => ExtentKind::FullBlock,
        };
        let newest = self.cx.env.sb.generation.get();
        if kind == ExtentKind::Data && head.generation.0 > newest {
            self.cx.error(Kind::ExtentGeneration, place.clone(), head.generation, format_args!("at most {newest}"));
        }
        let level = if is_skinny { key.offset.min(255) as u8 } else { head.tree_block.map_or(0, |(_, level)| level) };
        let sectors = u32::try_from(len.div_ceil(u64::from(rules.sectorsize))).unwrap_or(u32::MAX);
        let mut record = Record {
            at: key.objectid,
            extent: Extent::new(sectors, head.generation.0, kind, level),
            owing: i64::try_from(head.refs).unwrap_or(i64::MAX),
            hashes: Vec::new(),
        };
        for backref in InlineRefs(inline) {
            if let Some((ref_key, count)) = backref.ok().and_then(|b| RefKey::of(&b)) {
                record.claim(self.hash, ref_key, count);
            }
        }
        Some(record)
    }
}

impl Record {
    fn claim(&mut self, hash: RefHash, key: RefKey, count: u32) {
        let hash = hash.of(key);
        self.extent.claim(hash, count);
        self.owing = self.owing.saturating_sub(count.into());
        self.hashes.push(hash);
        match key {
            RefKey::Tree(root) => self.extent.claim_root(root),
            RefKey::Parent(_) => self.extent.claim_parent(),
            RefKey::Data { .. } | RefKey::DataParent(_) => {}
        }
    }
}

/// The merged extent tree.
#[derive(Default)]
pub(crate) struct ExtentRecords {
    pub extents: Extents,
    pub groups: Vec<Group>,
    pub early: Vec<Early>,
    pub refs: Vec<(u64, TreeId)>,
    pub owned: Owned,
}

impl ExtentRecords {
    /// Merges the parts in key order.
    pub fn merge(cx: &Context<'_>, hash: RefHash, parts: Vec<Part>) -> ExtentRecords {
        let mut all = ExtentRecords::default();
        let mut leaves = Vec::new();
        for mut part in parts {
            leaves.append(&mut part.leaves);
            all.groups.append(&mut part.groups);
            all.early.append(&mut part.early);
            all.refs.append(&mut part.refs);
            for (tree, bytes) in part.owned {
                let sum = all.owned.entry(tree).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        leaves.sort_by_key(|leaf| leaf.first);
        let count = leaves.iter().map(|leaf| leaf.records.len()).sum();
        all.extents.at.reserve_exact(count);
        all.extents.of.reserve_exact(count);
        let mut open: Option<Record> = None;
        for leaf in leaves {
            for (at, key, count) in leaf.lead {
                match &mut open {
                    Some(record) if record.at == at => record.claim(hash, key, count),
                    _ => {
                        let place = extent_place(at);
                        cx.error(
                            Kind::ExtentRefWithoutExtent,
                            place,
                            format_args!("a reference by {key}"),
                            "an extent",
                        );
                    }
                }
            }
            for record in leaf.records {
                all.close(cx, open.replace(record));
            }
        }
        all.close(cx, open.take());
        all.groups.sort_by_key(|g| (g.start, g.len));
        all
    }

    /// Takes a record that is complete.
    fn close(&mut self, cx: &Context<'_>, record: Option<Record>) {
        let Some(mut record) = record else { return };
        let place = extent_place(record.at);
        if record.owing != 0 {
            let have = format!("refs differs by {} from the sum of counts", record.owing);
            cx.error(Kind::ExtentRefsSum, place.clone(), have, "the sum of the counts of its references");
        }
        record.hashes.sort_unstable();
        if record.hashes.windows(2).any(|w| w[0] == w[1]) {
            cx.error(Kind::ExtentRefTwice, place.clone(), "the same reference twice", "once, with a count");
        }
        if let Some(&last) = self.extents.at.last() {
            let end = self.extents.end(self.extents.len() - 1, cx.env.rules.sectorsize.into());
            if record.at <= last || record.at < end {
                let have = format!("{} begins inside {last}..{end}", record.at);
                cx.error(Kind::ExtentOverlap, place, have, format_args!("{end} or more"));
                if record.at <= last {
                    return;
                }
            }
        }
        self.extents.at.push(record.at);
        self.extents.of.push(record.extent);
    }
}

pub(crate) fn extent_place(at: u64) -> Place {
    Place { tree: Some(TreeId::EXTENT), block: Some(Logical(at)), ..Place::default() }
}
