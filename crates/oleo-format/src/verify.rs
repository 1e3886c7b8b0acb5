//! The block verifier: everything about a tree block that can be checked without another block.
//!
//! (1) [`block`] checks what the reader expected (checksum, place, generation, level, owner, first key); (2) [`structure`]
//! checks the layout, after which every accessor of `CheckedNode` is safe; (3) each item is checked by its type.
//! Nothing here may panic whatever the bytes are: it is fuzzed.

use zerocopy::FromBytes;

use crate::csum::CSUM_FIELD_LEN;
use crate::error::{Corruption, ensure};
use crate::node::{HEADER_LEN, ITEM_LEN, NODESIZE_MAX, NODESIZE_MIN, NodeExpect, NodeRules, node_capacity};
use crate::structs::{DiskItem, Header, KeyPtr};
use crate::super_block::{Hex, LEVELS_MAX};
use crate::{Key, TreeId};

/// Checks a block completely.
pub(crate) fn block(bytes: &[u8], rules: &NodeRules, expect: &NodeExpect) -> Result<(), Corruption> {
    check(bytes, rules, expect).map_err(|e| e.within(format_args!("block {}", expect.logical)))
}

fn check(bytes: &[u8], rules: &NodeRules, expect: &NodeExpect) -> Result<(), Corruption> {
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
    Ok(())
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

/// The trees without which there is no volume hold something at all times.
fn may_be_empty(owner: TreeId) -> bool {
    !matches!(owner, TreeId::ROOT | TreeId::CHUNK | TreeId::DEV | TreeId::FS | TreeId::DATA_RELOC)
}
