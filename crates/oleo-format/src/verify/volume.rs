//! Items of the volume: chunks, devices, roots, quota, uuids, balance.

use super::Item;
use super::extents::group_flags;
use super::files::{name_len, plain_name};
use crate::chunk::STRIPE_LEN;
use crate::error::{Corruption, ensure};
use crate::flags::{BlockGroupFlags, Features, RootFlags};
use crate::layout::LEVELS_MAX;
use crate::names::RootRefEntry;
use crate::records::QgroupStatus;
use crate::structs::{
    BalanceItem, DevExtent, DevItem, DevReplaceItem, FreeSpaceHeader, QgroupInfoItem, QgroupLimitItem, RootItem,
};
use crate::{Chunk, ItemType, Key, Logical, TreeId};

impl Chunk {
    /// Checks everything about a chunk that can be seen from it alone.
    pub fn check(&self, start: Logical, sectorsize: u32, features: &Features) -> Result<(), Corruption> {
        const WHAT: &str = "chunk";
        let unit = u64::from(sectorsize);
        let len = self.length.0;
        ensure!(start.0.is_multiple_of(unit), WHAT, "start", start, format_args!("a multiple of {unit}"));
        ensure!(len > 0 && len.is_multiple_of(unit), WHAT, "length", len, format_args!("a multiple of {unit} above 0"));
        ensure!(start.0.checked_add(len).is_some(), WHAT, "end", "beyond 64 bits", "within");
        ensure!(self.stripe_len == STRIPE_LEN, WHAT, "stripe_len", self.stripe_len, STRIPE_LEN);
        // Stripe numbers are counted in 32 bits everywhere.
        ensure!(len / STRIPE_LEN.0 <= u64::from(u32::MAX), WHAT, "length", len, "at most 2³² stripe elements");
        ensure!(self.sector_size == sectorsize, WHAT, "sector_size", self.sector_size, sectorsize);
        let known = BlockGroupFlags::TYPE_MASK | BlockGroupFlags::PROFILE_MASK | BlockGroupFlags::REMAPPED;
        let unknown = self.flags.difference(known);
        ensure!(unknown.is_empty(), WHAT, "type", format_args!("{:#x}", self.flags.bits()), "known bits");
        group_flags(WHAT, self.flags, features)?;
        self.check_stripes(unit)
    }

    fn check_stripes(&self, unit: u64) -> Result<(), Corruption> {
        const WHAT: &str = "chunk";
        let stripes = self.stripes.len();
        // All of it is elsewhere.
        if stripes == 0 && self.flags.is_remapped() {
            return Ok(());
        }
        let (min, max) = match self.flags.profile() {
            BlockGroupFlags::RAID0 => (1, usize::MAX),
            BlockGroupFlags::RAID1 | BlockGroupFlags::DUP => (2, 2),
            BlockGroupFlags::RAID1C3 => (3, 3),
            BlockGroupFlags::RAID1C4 => (4, 4),
            BlockGroupFlags::RAID10 => (2, usize::MAX),
            BlockGroupFlags::RAID5 => (2, usize::MAX),
            BlockGroupFlags::RAID6 => (3, usize::MAX),
            _ => (1, 1),
        };
        let name = self.flags.profile_name();
        ensure!(stripes >= min && stripes <= max, WHAT, "num_stripes", stripes, format_args!("that of {name}"));
        if self.flags.contains(BlockGroupFlags::RAID10) {
            ensure!(self.sub_stripes == 2, WHAT, "sub_stripes", self.sub_stripes, 2);
            ensure!(stripes.is_multiple_of(2), WHAT, "num_stripes", stripes, "an even number");
        }
        for stripe in &self.stripes {
            let offset = stripe.offset.get();
            let place = offset.is_multiple_of(unit) && offset.checked_add(self.length.0).is_some();
            ensure!(place, WHAT, "offset of a stripe", offset, format_args!("a multiple of {unit}"));
        }
        Ok(())
    }
}

pub(super) fn chunk(i: &Item<'_>) -> Result<(), Corruption> {
    ensure!(i.key.objectid == Key::FIRST_CHUNK_TREE, "chunk", "objectid", i.key.objectid, Key::FIRST_CHUNK_TREE);
    let chunk = Chunk::parse(i.data)?;
    chunk.check(Logical(i.key.offset), i.rules.sectorsize, &i.rules.features)?;
    if let Some((prev, data)) = i.sibling()
        && let Ok(before) = Chunk::parse(data)
    {
        let prev_end = prev.offset.saturating_add(before.length.0);
        i.begins_behind("chunk", i.key.offset, prev_end)?;
    }
    Ok(())
}

pub(super) fn dev_item(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "device item";
    ensure!(i.key.objectid == Key::DEV_ITEMS, WHAT, "objectid", i.key.objectid, Key::DEV_ITEMS);
    let dev = DevItem::parse(i.data)?;
    ensure!(dev.devid.get() == i.key.offset, WHAT, "devid", dev.devid, i.key.offset);
    let (used, total) = (dev.bytes_used.get(), dev.total_bytes.get());
    ensure!(used <= total, WHAT, "bytes_used", used, format_args!("at most {total}"));
    Ok(())
}

pub(super) fn dev_extent(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "device extent";
    let e = DevExtent::parse_start(i.data)?;
    ensure!(e.chunk_tree.get() == TreeId::CHUNK.0, WHAT, "chunk_tree", e.chunk_tree, TreeId::CHUNK);
    let objectid = e.chunk_objectid.get();
    ensure!(objectid == Key::FIRST_CHUNK_TREE, WHAT, "chunk_objectid", objectid, Key::FIRST_CHUNK_TREE);
    i.aligned(WHAT, "start", i.key.offset)?;
    i.aligned(WHAT, "chunk_offset", e.chunk_offset.get())?;
    i.aligned(WHAT, "length", e.length.get())?;
    ensure!(e.length.get() > 0, WHAT, "length", 0, "more");
    ensure!(i.key.offset.checked_add(e.length.get()).is_some(), WHAT, "end", "beyond 64 bits", "within");
    if let Some((prev, data)) = i.sibling()
        && let Ok(before) = DevExtent::parse_start(data)
    {
        let prev_end = prev.offset.saturating_add(before.length.get());
        i.begins_behind(WHAT, i.key.offset, prev_end)?;
    }
    Ok(())
}

pub(super) fn dev_replace(i: &Item<'_>) -> Result<(), Corruption> {
    DevReplaceItem::parse_start(i.data).map(|_| ())
}

pub(super) fn temporary(i: &Item<'_>) -> Result<(), Corruption> {
    if i.owner == TreeId::ROOT && i.key.objectid == Key::BALANCE {
        BalanceItem::parse_start(i.data)?;
    }
    Ok(())
}

/// Items without a type are headers of version-1 free-space caches.
pub(super) fn untyped(i: &Item<'_>) -> Result<(), Corruption> {
    if i.owner == TreeId::ROOT && i.key.objectid == Key::FREE_SPACE {
        FreeSpaceHeader::parse(i.data)?;
    }
    Ok(())
}

pub(super) fn root_item(i: &Item<'_>) -> Result<(), Corruption> {
    const WHAT: &str = "root item";
    let tree = TreeId(i.key.objectid);
    ensure!(tree.0 != 0, WHAT, "tree", tree, "a tree");
    // The offset is the generation of a snapshot's creation, or the tree of a relocation or log tree; btrfs-convert
    // gives the data relocation tree one, too.
    let may_have_offset = tree.is_shareable() || tree == TreeId::TREE_LOG;
    ensure!(i.key.offset == 0 || may_have_offset, WHAT, "offset of its key", i.key.offset, 0);
    let root = RootItem::decode(i.data)?;
    i.aligned(WHAT, "bytenr", root.bytenr.get())?;
    ensure!(root.level < LEVELS_MAX, WHAT, "level", root.level, "at most 7");
    ensure!(root.drop_level < LEVELS_MAX, WHAT, "drop_level", root.drop_level, "at most 7");
    let known = RootFlags::SUBVOL_RDONLY | RootFlags::SUBVOL_DEAD;
    let unknown = root.root_flags().difference(known);
    ensure!(unknown.is_empty(), WHAT, "flags", format_args!("{:#x}", root.flags), "known ones");
    Ok(())
}

pub(super) fn root_ref(i: &Item<'_>) -> Result<(), Corruption> {
    let entry = RootRefEntry::parse(i.data)?;
    name_len("root reference", entry.name.len())?;
    plain_name("root reference", entry.name.as_ref())
}

pub(super) fn qgroup(i: &Item<'_>) -> Result<(), Corruption> {
    match i.key.item_type {
        ItemType::QGROUP_STATUS => QgroupStatus::parse(i.data).map(|_| ()),
        ItemType::QGROUP_INFO => QgroupInfoItem::parse_start(i.data).map(|_| ()),
        ItemType::QGROUP_LIMIT => QgroupLimitItem::parse_start(i.data).map(|_| ()),
        // The key of a relation says everything.
        _ => Ok(()),
    }
}

pub(super) fn uuid(i: &Item<'_>) -> Result<(), Corruption> {
    ensure!(i.data.len() >= 8, "uuid item", "length", i.data.len(), "at least 8");
    Ok(())
}
