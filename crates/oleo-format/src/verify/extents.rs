//! Items of space: extents and references to them, checksums, block groups, free space, raid stripes.

use std::cmp::Reverse;

use super::Item;
use super::files::is_ino;
use crate::error::{Corruption, ensure};
use crate::extent::{BackRef, ExtentRecord, InlineRefs};
use crate::flags::Features;
use crate::flags::{BlockGroupFlags, ExtentFlags, Incompat};
use crate::layout::LEVELS_MAX;
use crate::structs::{BlockGroupItem, BlockGroupItemV2, FreeSpaceInfo, RaidStride, RemapItem};
use crate::{ItemType, Key, TreeId};

/// The end of a record's extent, or `None` if it is not a record or the end exceeds 64 bits.
fn record_end(key: &Key, nodesize: u32) -> Option<u64> {
    match key.item_type {
        ItemType::EXTENT_ITEM => key.objectid.checked_add(key.offset),
        ItemType::METADATA_ITEM => key.objectid.checked_add(u64::from(nodesize)),
        _ => None,
    }
}

pub(super) fn record(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "extent item";
    let is_skinny = i.key.item_type == ItemType::METADATA_ITEM;
    i.aligned(WHAT, "address", i.key.objectid)?;
    if is_skinny {
        ensure!(i.rules.features.skinny_metadata(), WHAT, "type", "METADATA_ITEM", "none without SKINNY_METADATA");
        ensure!(i.key.offset < u64::from(LEVELS_MAX), WHAT, "level", i.key.offset, "at most 7");
    }
    let (head, inline) = ExtentRecord::parse_head(&i.key, i.data)?;
    ensure!(head.refs > 0, WHAT, "refs", 0, "more");
    let is_tree = head.flags.contains(ExtentFlags::TREE_BLOCK);
    let is_data = head.flags.contains(ExtentFlags::DATA);
    let flags = format_args!("{:#x}", head.flags.bits()).to_string();
    ensure!(is_tree != is_data, WHAT, "flags", flags, "data or tree block");
    if is_tree {
        let len = if is_skinny { u64::from(i.rules.nodesize) } else { i.key.offset };
        ensure!(len == u64::from(i.rules.nodesize), WHAT, "length of a tree block", len, i.rules.nodesize);
        if let Some((_, level)) = head.tree_block {
            ensure!(level < LEVELS_MAX, WHAT, "level", level, "at most 7");
        }
    } else {
        ensure!(!is_skinny, WHAT, "flags", flags, "tree block");
        ensure!(!head.flags.contains(ExtentFlags::FULL_BACKREF), WHAT, "flags", flags, "no full backrefs of data");
        ensure!(i.key.offset > 0, WHAT, "length", 0, "more");
        i.aligned(WHAT, "length", i.key.offset)?;
    }
    ensure!(record_end(&i.key, i.rules.nodesize).is_some(), WHAT, "end", "beyond 64 bits", "within");
    inline_refs(i, &head, inline)?;
    if let Some((prev, _)) = i.prev
        && let Some(prev_end) = record_end(&prev, i.rules.nodesize)
    {
        i.begins_behind(WHAT, i.key.objectid, prev_end)?;
    }
    Ok(())
}

fn inline_refs(i: &Item<'_>, head: &ExtentRecord, inline: &[u8]) -> Result<(), Corruption> {
    const WHAT: &str = "inline reference";
    let is_tree = head.flags.contains(ExtentFlags::TREE_BLOCK);
    let mut total = 0u64;
    let mut last: Option<(ItemType, Reverse<u64>)> = None;
    for one in InlineRefs(inline) {
        let one = one?;
        reference(i, WHAT, &one, Some(is_tree))?;
        total = total.saturating_add(u64::from(one.count()));
        let order = one.order();
        if let Some(last) = last {
            ensure!(
                last <= order,
                WHAT,
                "order",
                format_args!("{last:?} then {order:?}"),
                "rising types, falling numbers"
            );
        }
        last = Some(order);
    }
    ensure!(total <= head.refs, WHAT, "sum of counts", total, format_args!("at most {}", head.refs));
    Ok(())
}

/// Checks a reference, inline or not. `is_tree`: which kind of extent it refers to, if that is known.
fn reference(i: &Item<'_>, structure: &'static str, one: &BackRef, is_tree: Option<bool>) -> Result<(), Corruption> {
    let to_tree = matches!(one, BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. });
    if let Some(is_tree) = is_tree
        && !matches!(one, BackRef::Owner { .. })
    {
        let kind = if is_tree { "a reference to a tree block" } else { "a reference to data" };
        ensure!(to_tree == is_tree, structure, "type", format_args!("{:?}", one.item_type()), kind);
    }
    match *one {
        BackRef::Owner { root } | BackRef::TreeBlock { root } => {
            ensure!(root.0 != 0, structure, "root", root, "a tree");
        }
        BackRef::SharedBlock { parent } => {
            ensure!(parent.0 != 0, structure, "parent", parent, "a block");
            i.aligned(structure, "parent", parent.0)?;
        }
        BackRef::SharedData { parent, count } => {
            ensure!(parent.0 != 0, structure, "parent", parent, "a block");
            i.aligned(structure, "parent", parent.0)?;
            ensure!(count > 0, structure, "count", 0, "more");
        }
        BackRef::Data { root, ino, offset, count } => {
            let holds_files = root == TreeId::ROOT || root.is_shareable();
            ensure!(holds_files, structure, "root", root, "a tree of files");
            ensure!(is_ino(ino.0), structure, "objectid", ino, "an inode");
            i.aligned(structure, "offset", offset)?;
            ensure!(count > 0, structure, "count", 0, "more");
        }
    }
    Ok(())
}

pub(super) fn keyed_ref(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "extent reference";
    i.aligned(WHAT, "address", i.key.objectid)?;
    let one = BackRef::parse_keyed(&i.key, i.data)?;
    reference(i, WHAT, &one, None)
}

pub(super) fn csums(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "checksum item";
    ensure!(i.key.objectid == Key::EXTENT_CSUM, WHAT, "objectid", i.key.objectid, Key::EXTENT_CSUM);
    i.aligned(WHAT, "address", i.key.offset)?;
    let csum_len = i.rules.csum.csum_len();
    i.len_is_multiple_of(WHAT, csum_len)?;
    let end = |key: Key, data: &[u8]| key.offset.checked_add((data.len() / csum_len) as u64 * i.sectorsize());
    ensure!(end(i.key, i.data).is_some(), WHAT, "end", "beyond 64 bits", "within");
    if let Some((prev, data)) = i.sibling() {
        let prev_end = end(prev, data).unwrap_or(u64::MAX);
        i.begins_behind(WHAT, i.key.offset, prev_end)?;
    }
    Ok(())
}

/// A range in a key: start and length are aligned, the length is not zero, the end within 64 bits.
fn range(i: &Item<'_>, structure: &'static str) -> Result<(), Corruption> {
    i.aligned(structure, "start", i.key.objectid)?;
    i.aligned(structure, "length", i.key.offset)?;
    ensure!(i.key.offset > 0, structure, "length", 0, "more");
    ensure!(i.key.objectid.checked_add(i.key.offset).is_some(), structure, "end", "beyond 64 bits", "within");
    Ok(())
}

/// Whether flags are those of a chunk or block group: known types that may go together, at most one profile; remapped only what can be.
pub(super) fn group_flags(
    structure: &'static str,
    flags: BlockGroupFlags,
    features: &Features,
) -> Result<(), Corruption> {
    let shown = format_args!("{:#x}", flags.bits()).to_string();
    let profile = flags.profile();
    ensure!(profile.bits().count_ones() <= 1, structure, "profile", shown, "one at most");
    let types = flags.types();
    let is_files = types == BlockGroupFlags::DATA
        || types == BlockGroupFlags::METADATA
        || (features.mixed_groups() && types == BlockGroupFlags::DATA | BlockGroupFlags::METADATA);
    let fitting = is_files || types == BlockGroupFlags::SYSTEM || types == BlockGroupFlags::METADATA_REMAP;
    ensure!(fitting, structure, "type", shown, "data, metadata or system");
    let has_tree = features.remap_tree() || !flags.intersects(BlockGroupFlags::OF_REMAP_TREE);
    ensure!(has_tree, structure, "type", shown, "nothing remapped without REMAP_TREE");
    ensure!(is_files || !flags.is_remapped(), structure, "type", shown, "data or metadata, since it is remapped");
    Ok(())
}

pub(super) fn block_group(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "block group item";
    range(i, WHAT)?;
    let features = &i.rules.features;
    let long = features.remap_tree();
    i.len_is(WHAT, if long { size_of::<BlockGroupItemV2>() } else { size_of::<BlockGroupItem>() })?;
    let group = BlockGroupItemV2::decode(i.data)?;
    let used = group.used.get();
    ensure!(used <= i.key.offset, WHAT, "used", used, format_args!("at most {}", i.key.offset));
    let v2 = features.incompat.contains(Incompat::EXTENT_TREE_V2);
    let of_chunk_tree = group.chunk_objectid.get() == Key::FIRST_CHUNK_TREE;
    ensure!(v2 || of_chunk_tree, WHAT, "chunk_objectid", group.chunk_objectid, Key::FIRST_CHUNK_TREE);
    let remapped = group.remap_bytes.get();
    ensure!(remapped <= i.key.offset, WHAT, "remap_bytes", remapped, format_args!("at most {}", i.key.offset));
    let (count, sectors) = (u64::from(group.identity_remap_count.get()), i.key.offset / i.sectorsize());
    ensure!(count <= sectors, WHAT, "identity_remap_count", count, format_args!("at most {sectors}"));
    group_flags(WHAT, group.group_flags(), features)
}

pub(super) fn free_space_info(i: &Item<'_>) -> Result<(), Corruption> {
    range(i, "free space info")?;
    FreeSpaceInfo::parse_start(i.data).map(|_| ())
}

pub(super) fn free_space(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "free space";
    range(i, WHAT)?;
    // The key of an extent says everything.
    if i.key.item_type == ItemType::FREE_SPACE_BITMAP {
        let bits = i.key.offset / i.sectorsize();
        let len = bits.div_ceil(8);
        ensure!(i.data.len() as u64 == len, WHAT, "length of its bitmap", i.data.len(), len);
    }
    // An info item is keyed by its whole group; extents and bitmaps of one group do not overlap.
    if let Some((prev, _)) = i.prev
        && prev.item_type != ItemType::FREE_SPACE_INFO
    {
        let prev_end = prev.objectid.saturating_add(prev.offset);
        i.begins_behind(WHAT, i.key.objectid, prev_end)?;
    }
    Ok(())
}

pub(super) fn raid_stripe(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "raid stripe";
    range(i, WHAT)?;
    i.len_is_multiple_of(WHAT, size_of::<RaidStride>())?;
    let on = i.rules.features.incompat.contains(Incompat::RAID_STRIPE_TREE);
    ensure!(on, WHAT, "type", "RAID_STRIPE", "none without RAID_STRIPE_TREE");
    Ok(())
}

/// An item of the remap tree. Ranges that were remapped do not overlap; they are not in the order of what refers back to them.
pub(super) fn remap(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "remap item";
    range(i, WHAT)?;
    ensure!(
        i.rules.features.remap_tree(),
        WHAT,
        "type",
        format_args!("{:?}", i.key.item_type),
        "none without REMAP_TREE"
    );
    if i.key.item_type == ItemType::IDENTITY_REMAP {
        i.len_is(WHAT, 0)?;
    } else {
        let address = RemapItem::parse(i.data)?.address.get();
        i.aligned(WHAT, "address", address)?;
        ensure!(
            address.checked_add(i.key.offset).is_some(),
            WHAT,
            "address",
            address,
            "one whose end is within 64 bits"
        );
    }
    let prev = i.prev.map(|(key, _)| key).filter(|prev| prev.item_type != ItemType::REMAP_BACKREF);
    match prev {
        Some(prev) if i.key.item_type != ItemType::REMAP_BACKREF => {
            i.begins_behind(WHAT, i.key.objectid, prev.objectid.saturating_add(prev.offset))
        }
        _ => Ok(()),
    }
}
