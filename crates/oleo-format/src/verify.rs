//! The block verifier: everything about a tree block that can be checked without another block.
//!
//! (1) [`block`] checks what the reader expects (checksum, place, generation, level, owner, first key); (2)
//! [`structure`] checks the layout, after which every accessor of `CheckedNode` is safe; (3) each item is checked by
//! its type, and that its type belongs into the block's tree. Nothing here may panic, whatever the bytes are: it is fuzzed.
//!
//! Items of undefined types, and STRING_ITEMs, are not looked into: tests that need arbitrary items use those.

mod extents;
mod files;
mod volume;

use zerocopy::FromBytes;

use crate::csum::CSUM_FIELD_LEN;
use crate::error::{Corruption, Hex, ensure};
use crate::layout::{
    HEADER_LEN, ITEM_LEN, LEVELS_MAX, NODESIZE_MAX, NODESIZE_MIN, NodeExpect, NodeRules, node_capacity,
};
use crate::structs::{DiskItem, Header, KeyPtr};
use crate::{ItemType, Key, TreeId};

/// Checks a block completely.
pub(crate) fn block(bytes: &[u8], rules: &NodeRules, expect: &NodeExpect) -> Result<(), Corruption> {
    let place = |e: Corruption| e.within(format_args!("block {}", expect.logical));
    check_csum(bytes, rules).and_then(|()| check(bytes, rules, expect)).map_err(place)
}

/// Checks everything but the checksum.
pub(crate) fn block_without_csum(bytes: &[u8], rules: &NodeRules, expect: &NodeExpect) -> Result<(), Corruption> {
    check(bytes, rules, expect).map_err(|e| e.within(format_args!("block {}", expect.logical)))
}

fn check_csum(bytes: &[u8], rules: &NodeRules) -> Result<(), Corruption> {
    ensure!(bytes.len() == rules.nodesize as usize, "tree block", "length", bytes.len(), rules.nodesize);
    let header = Header::parse_prefix(bytes)?.0;
    let csum_len = rules.csum.csum_len();
    let csum = rules.csum.csum(&bytes[CSUM_FIELD_LEN..]);
    ensure!(
        header.csum[..csum_len] == csum[..csum_len],
        "tree block",
        "checksum",
        Hex(&header.csum[..csum_len]),
        Hex(&csum[..csum_len])
    );
    Ok(())
}

fn check(bytes: &[u8], rules: &NodeRules, expect: &NodeExpect) -> Result<(), Corruption> {
    ensure!(bytes.len() == rules.nodesize as usize, "tree block", "length", bytes.len(), rules.nodesize);
    let header = Header::parse_prefix(bytes)?.0;
    ensure!(header.bytenr.get() == expect.logical.0, "tree block", "bytenr", header.bytenr, expect.logical);
    let fsid = uuid::Uuid::from_bytes(header.fsid);
    ensure!(fsid == rules.fsid, "tree block", "fsid", fsid, rules.fsid);
    if let Some(generation) = expect.generation {
        ensure!(header.generation.get() == generation.0, "tree block", "generation", header.generation, generation);
    }
    if let Some(level) = expect.level {
        ensure!(header.level == level, "tree block", "level", header.level, level);
    }
    if let Some(owner) = expect.owner {
        ensure!(header.owner.get() == owner.0, "tree block", "owner", header.owner, owner);
    }
    structure(bytes)?;
    if let Some(first) = expect.first_key {
        let have = first_key(bytes, header);
        ensure!(have == Some(first), "tree block", "first key", format_args!("{have:?}"), first);
    }
    if header.level == 0 { items(bytes, header, rules) } else { children(bytes, header, rules) }
}

fn first_key(bytes: &[u8], header: &Header) -> Option<Key> {
    // Items and child pointers both start with the key.
    (header.nritems.get() > 0).then(|| DiskItem::ref_from_prefix(&bytes[HEADER_LEN..]).ok())?.map(|(i, _)| i.key.into())
}

/// Checks the layout of a block: sizes, counts, order of keys, that item data fills the end of the block without gaps.
pub(crate) fn structure(bytes: &[u8]) -> Result<(), Corruption> {
    ensure!(
        bytes.len() >= NODESIZE_MIN as usize && bytes.len() <= NODESIZE_MAX as usize,
        "tree block",
        "length",
        bytes.len(),
        "4096 to 65536"
    );
    let header = Header::parse_prefix(bytes)?.0;
    ensure!(header.level < LEVELS_MAX, "tree block", "level", header.level, "at most 7");
    ensure!(header.owner.get() != 0, "tree block", "owner", 0, "a tree");
    if header.level == 0 { leaf_structure(bytes, header) } else { node_structure(bytes, header) }
}

fn node_structure(bytes: &[u8], header: &Header) -> Result<(), Corruption> {
    let count = header.nritems.get();
    #[allow(clippy::cast_possible_truncation, reason = "the caller checked that it is at most 65536")]
    let max = node_capacity(bytes.len() as u32);
    ensure!(count > 0 && count as usize <= max, "node", "nritems", count, format_args!("1 to {max}"));
    let (children, _) = <[KeyPtr]>::ref_from_prefix_with_elems(&bytes[HEADER_LEN..], count as usize)
        .map_err(|_| Corruption::new("node", "nritems", count, max))?;
    let mut last: Option<Key> = None;
    for (slot, child) in children.iter().enumerate() {
        let key = Key::from(child.key);
        let place = |e: Corruption| e.within(format_args!("slot {slot}"));
        in_order(last, key).map_err(place)?;
        if child.blockptr.get() == 0 || !child.blockptr.get().is_multiple_of(u64::from(NODESIZE_MIN)) {
            return Err(place(Corruption::new(
                "node",
                "blockptr",
                child.blockptr,
                "a multiple of the sector size above 0",
            )));
        }
        last = Some(key);
    }
    Ok(())
}

fn leaf_structure(bytes: &[u8], header: &Header) -> Result<(), Corruption> {
    let count = header.nritems.get() as usize;
    let room = bytes.len() - HEADER_LEN;
    let owner = TreeId(header.owner.get());
    ensure!(count > 0 || may_be_empty(owner), "leaf", "nritems", 0, format_args!("some in tree {owner}"));
    ensure!(count <= room / ITEM_LEN, "leaf", "nritems", count, format_args!("at most {}", room / ITEM_LEN));
    let (items, _) = <[DiskItem]>::ref_from_prefix_with_elems(&bytes[HEADER_LEN..], count)
        .map_err(|_| Corruption::new("leaf", "nritems", count, room / ITEM_LEN))?;
    let table_end = count * ITEM_LEN;
    let mut last: Option<Key> = None;
    let mut data_end = room;
    for (slot, item) in items.iter().enumerate() {
        let key = Key::from(item.key);
        let place = |e: Corruption| e.within(format_args!("slot {slot} key {key}"));
        in_order(last, key).map_err(place)?;
        let (offset, size) = (item.offset.get() as usize, item.size.get() as usize);
        if offset.checked_add(size) != Some(data_end) {
            let have = format_args!("{}..{}", offset, offset.saturating_add(size)).to_string();
            return Err(place(Corruption::new(
                "leaf",
                "place of the item's data",
                have,
                format_args!("ending at {data_end}"),
            )));
        }
        if offset < table_end {
            return Err(place(Corruption::new(
                "leaf",
                "start of the item's data",
                offset,
                format_args!("{table_end} or more"),
            )));
        }
        data_end = offset;
        last = Some(key);
    }
    Ok(())
}

fn in_order(last: Option<Key>, key: Key) -> Result<(), Corruption> {
    match last {
        Some(last) if last >= key => {
            Err(Corruption::new("tree block", "order of keys", format_args!("{last} then {key}"), "rising"))
        }
        _ => Ok(()),
    }
}

/// The trees that every volume needs are never empty.
fn may_be_empty(owner: TreeId) -> bool {
    !matches!(owner, TreeId::ROOT | TreeId::CHUNK | TreeId::DEV | TreeId::FS | TreeId::DATA_RELOC)
}

/// What the checks of an item know beside its bytes.
struct Item<'a> {
    rules: &'a NodeRules,
    owner: TreeId,
    key: Key,
    data: &'a [u8],
    /// The item before it in the same leaf.
    prev: Option<(Key, &'a [u8])>,
}

impl Item<'_> {
    fn sectorsize(&self) -> u64 {
        u64::from(self.rules.sectorsize)
    }

    fn is_aligned(&self, n: u64) -> bool {
        n.is_multiple_of(self.sectorsize())
    }

    /// Returns an error unless `n` is a multiple of the sector size.
    fn aligned(&self, structure: &'static str, what: &'static str, n: u64) -> Result<(), Corruption> {
        ensure!(self.is_aligned(n), structure, what, n, format_args!("a multiple of {}", self.sectorsize()));
        Ok(())
    }

    /// Returns an error unless the item has exactly this length.
    fn len_is(&self, structure: &'static str, len: usize) -> Result<(), Corruption> {
        ensure!(self.data.len() == len, structure, "length", self.data.len(), len);
        Ok(())
    }

    /// Returns an error unless the item is a list, not empty, of entries of this length.
    fn len_is_multiple_of(&self, structure: &'static str, len: usize) -> Result<(), Corruption> {
        let whole = !self.data.is_empty() && self.data.len().is_multiple_of(len);
        ensure!(whole, structure, "length", self.data.len(), format_args!("a multiple of {len}"));
        Ok(())
    }

    /// Returns an error unless the object of the item before this one ends where this one begins, or earlier.
    fn begins_behind(&self, structure: &'static str, start: u64, prev_end: u64) -> Result<(), Corruption> {
        ensure!(prev_end <= start, structure, "end of the one before it", prev_end, format_args!("at most {start}"));
        Ok(())
    }

    /// The previous item if it belongs to the same object and has the same type.
    fn sibling(&self) -> Option<(Key, &[u8])> {
        self.prev.filter(|(key, _)| key.objectid == self.key.objectid && key.item_type == self.key.item_type)
    }
}

fn children(bytes: &[u8], header: &Header, rules: &NodeRules) -> Result<(), Corruption> {
    let (children, _) = <[KeyPtr]>::ref_from_prefix_with_elems(&bytes[HEADER_LEN..], header.nritems.get() as usize)
        .map_err(|_| Corruption::new("node", "nritems", header.nritems, "fewer"))?;
    for (slot, child) in children.iter().enumerate() {
        let at = child.blockptr.get();
        if !at.is_multiple_of(u64::from(rules.sectorsize)) || at.checked_add(u64::from(rules.nodesize)).is_none() {
            return Err(
                Corruption::new("node", "blockptr", at, "a sector's address").within(format_args!("slot {slot}"))
            );
        }
    }
    Ok(())
}

fn items(bytes: &[u8], header: &Header, rules: &NodeRules) -> Result<(), Corruption> {
    let (table, _) = <[DiskItem]>::ref_from_prefix_with_elems(&bytes[HEADER_LEN..], header.nritems.get() as usize)
        .map_err(|_| Corruption::new("leaf", "nritems", header.nritems, "fewer"))?;
    let owner = TreeId(header.owner.get());
    let mut prev = None;
    for (slot, entry) in table.iter().enumerate() {
        let key = Key::from(entry.key);
        let start = HEADER_LEN + entry.offset.get() as usize;
        let data = &bytes[start..start + entry.size.get() as usize];
        item(&Item { rules, owner, key, data, prev }).map_err(|e| e.within(format_args!("slot {slot} key {key}")))?;
        prev = Some((key, data));
    }
    Ok(())
}

fn item(i: &Item<'_>) -> Result<(), Corruption> {
    if !may_hold(i.owner, i.key.item_type) {
        return Err(Corruption::new(
            "leaf",
            "item type",
            format_args!("{:?}", i.key.item_type),
            format_args!("one that belongs into tree {}", i.owner),
        ));
    }
    match i.key.item_type {
        ItemType::INODE_ITEM => files::inode_item(i),
        ItemType::INODE_REF => files::inode_ref(i),
        ItemType::INODE_EXTREF => files::inode_extref(i),
        ItemType::XATTR_ITEM | ItemType::DIR_ITEM | ItemType::DIR_INDEX => files::dir_entries(i),
        ItemType::EXTENT_DATA => files::extent_data(i),
        ItemType::VERITY_DESC_ITEM => files::verity_desc(i),
        // The key says everything.
        ItemType::ORPHAN_ITEM => Ok(()),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => i.len_is("directory log item", 8),
        ItemType::ROOT_ITEM => volume::root_item(i),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => volume::root_ref(i),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extents::record(i),
        ItemType::TREE_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::EXTENT_OWNER_REF
        | ItemType::EXTENT_REF_V0 => extents::keyed_ref(i),
        ItemType::EXTENT_CSUM => extents::csums(i),
        ItemType::BLOCK_GROUP_ITEM => extents::block_group(i),
        ItemType::FREE_SPACE_INFO => extents::free_space_info(i),
        ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP => extents::free_space(i),
        ItemType::RAID_STRIPE => extents::raid_stripe(i),
        ItemType::IDENTITY_REMAP | ItemType::REMAP | ItemType::REMAP_BACKREF => extents::remap(i),
        ItemType::CHUNK_ITEM => volume::chunk(i),
        ItemType::DEV_ITEM => volume::dev_item(i),
        ItemType::DEV_EXTENT => volume::dev_extent(i),
        ItemType::DEV_REPLACE => volume::dev_replace(i),
        // Device statistics, as many counters as the writer knew.
        ItemType::PERSISTENT_ITEM => Ok(()),
        ItemType::TEMPORARY_ITEM => volume::temporary(i),
        ItemType::QGROUP_STATUS | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT | ItemType::QGROUP_RELATION => {
            volume::qgroup(i)
        }
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => volume::uuid(i),
        ItemType(0) => volume::untyped(i),
        _ => Ok(()),
    }
}

/// Which trees an item may be in. Blocks of log and relocation trees hold what their subvolumes do.
fn may_hold(owner: TreeId, item_type: ItemType) -> bool {
    let is_log = matches!(owner, TreeId::TREE_LOG | TreeId::TREE_LOG_FIXUP);
    match item_type {
        // mkfs.btrfs of 2018 gave the uuid tree a root directory, which is not used.
        ItemType::INODE_ITEM | ItemType::INODE_REF if owner == TreeId::UUID => true,
        ItemType::INODE_ITEM
        | ItemType::INODE_REF
        | ItemType::DIR_ITEM
        | ItemType::EXTENT_DATA
        | ItemType::XATTR_ITEM
        | ItemType::ORPHAN_ITEM => is_log || owner == TreeId::ROOT || owner.is_shareable(),
        ItemType::INODE_EXTREF
        | ItemType::DIR_INDEX
        | ItemType::DIR_LOG_ITEM
        | ItemType::DIR_LOG_INDEX
        | ItemType::VERITY_DESC_ITEM
        | ItemType::VERITY_MERKLE_ITEM => is_log || owner.is_shareable(),
        ItemType::ROOT_ITEM => is_log || owner == TreeId::ROOT,
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => owner == TreeId::ROOT,
        ItemType::EXTENT_CSUM => is_log || owner == TreeId::CSUM,
        ItemType::EXTENT_ITEM
        | ItemType::METADATA_ITEM
        | ItemType::TREE_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::SHARED_DATA_REF => owner == TreeId::EXTENT,
        ItemType::BLOCK_GROUP_ITEM => matches!(owner, TreeId::EXTENT | TreeId::BLOCK_GROUP),
        ItemType::FREE_SPACE_INFO | ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP => {
            owner == TreeId::FREE_SPACE
        }
        ItemType::CHUNK_ITEM | ItemType::DEV_ITEM => owner == TreeId::CHUNK,
        ItemType::DEV_EXTENT | ItemType::DEV_REPLACE => owner == TreeId::DEV,
        ItemType::RAID_STRIPE => owner == TreeId::RAID_STRIPE,
        ItemType::IDENTITY_REMAP | ItemType::REMAP | ItemType::REMAP_BACKREF => owner == TreeId::REMAP,
        ItemType::QGROUP_STATUS | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT | ItemType::QGROUP_RELATION => {
            owner == TreeId::QUOTA
        }
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => owner == TreeId::UUID,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
