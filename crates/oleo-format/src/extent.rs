//! Extents and their references: EXTENT_ITEM and METADATA_ITEM with their inline references, and the references that
//! have items of their own because the record is full.
//!
//! Inline references are sorted: types rise; within one type the number that would be the key's offset (hash of the
//! data reference, parent, root) falls.

use std::cmp::Reverse;

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U32, U64};

use crate::csum::data_ref_hash;
use crate::error::{Corruption, ensure};
use crate::flags::ExtentFlags;
use crate::layout::{ITEM_LEN, leaf_capacity};
use crate::structs::{ExtentDataRef, ExtentItem, TreeBlockInfo};
use crate::{Generation, Ino, ItemType, Key, Logical, TreeId};

/// The longest extent record that may grow by another inline reference; beyond it references get items of their own.
pub const fn extent_record_len_max(nodesize: u32) -> usize {
    (leaf_capacity(nodesize) >> 4) - ITEM_LEN
}

/// One reference to an extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BackRef {
    /// Not a reference: the subvolume that the extent is accounted to (simple quota). Inline only.
    Owner {
        /// The subvolume.
        root: TreeId,
    },
    /// A tree references the block.
    TreeBlock {
        /// The tree.
        root: TreeId,
    },
    /// File extents of one file, with the same file offset less extent offset, reference the extent.
    Data {
        /// The subvolume.
        root: TreeId,
        /// The file.
        ino: Ino,
        /// File offset less offset in the extent; wraps below zero.
        offset: u64,
        /// How many file extents.
        count: u32,
    },
    /// A node whose flag is `FULL_BACKREF` references the block.
    SharedBlock {
        /// The node.
        parent: Logical,
    },
    /// A leaf whose flag is `FULL_BACKREF` references the extent.
    SharedData {
        /// The leaf.
        parent: Logical,
        /// How many file extents in it.
        count: u32,
    },
}

impl BackRef {
    /// The type of its item.
    pub fn item_type(&self) -> ItemType {
        match self {
            BackRef::Owner { .. } => ItemType::EXTENT_OWNER_REF,
            BackRef::TreeBlock { .. } => ItemType::TREE_BLOCK_REF,
            BackRef::Data { .. } => ItemType::EXTENT_DATA_REF,
            BackRef::SharedBlock { .. } => ItemType::SHARED_BLOCK_REF,
            BackRef::SharedData { .. } => ItemType::SHARED_DATA_REF,
        }
    }

    /// The offset in the key of its item; a data reference whose key is taken by another with the same hash goes to the next.
    pub fn key_offset(&self) -> u64 {
        match *self {
            BackRef::Owner { root } | BackRef::TreeBlock { root } => root.0,
            BackRef::Data { root, ino, offset, .. } => data_ref_hash(root, ino, offset),
            BackRef::SharedBlock { parent } | BackRef::SharedData { parent, .. } => parent.0,
        }
    }

    /// What inline references are sorted by.
    pub fn order(&self) -> (ItemType, Reverse<u64>) {
        (self.item_type(), Reverse(self.key_offset()))
    }

    /// How many references this counts as.
    pub fn count(&self) -> u32 {
        match *self {
            BackRef::Owner { .. } => 0,
            BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => 1,
            BackRef::Data { count, .. } | BackRef::SharedData { count, .. } => count,
        }
    }

    /// The same reference with another count. Blocks are referenced once by each.
    pub fn with_count(self, new: u32) -> BackRef {
        match self {
            BackRef::Data { root, ino, offset, .. } => BackRef::Data { root, ino, offset, count: new },
            BackRef::SharedData { parent, .. } => BackRef::SharedData { parent, count: new },
            other => other,
        }
    }

    /// The key of its own item, if it is not inline.
    pub fn key(&self, extent: Logical) -> Key {
        Key::new(extent.0, self.item_type(), self.key_offset())
    }

    /// Its own item, if it is not inline.
    pub fn encode_keyed(&self) -> Vec<u8> {
        match *self {
            BackRef::Data { root, ino, offset, count } => data_ref(root, ino, offset, count).as_bytes().to_vec(),
            BackRef::SharedData { count, .. } => U32::from(count).as_bytes().to_vec(),
            BackRef::Owner { .. } | BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => Vec::new(),
        }
    }

    /// The reference in an item of its own.
    pub fn parse_keyed(key: &Key, item: &[u8]) -> Result<BackRef, Corruption> {
        match key.item_type {
            ItemType::EXTENT_DATA_REF => Ok(BackRef::from_data_ref(ExtentDataRef::parse(item)?)),
            ItemType::SHARED_DATA_REF => {
                let count = crate::structs::SharedDataRef::parse(item)?.count.get();
                Ok(BackRef::SharedData { parent: Logical(key.offset), count })
            }
            ItemType::TREE_BLOCK_REF | ItemType::SHARED_BLOCK_REF => {
                ensure!(item.is_empty(), "block reference", "length", item.len(), 0);
                Ok(if key.item_type == ItemType::TREE_BLOCK_REF {
                    BackRef::TreeBlock { root: TreeId(key.offset) }
                } else {
                    BackRef::SharedBlock { parent: Logical(key.offset) }
                })
            }
            other => {
                Err(Corruption::new("extent reference", "type of its key", format_args!("{other:?}"), "a reference"))
            }
        }
    }

    fn from_data_ref(r: &ExtentDataRef) -> BackRef {
        BackRef::Data {
            root: TreeId(r.root.get()),
            ino: Ino(r.objectid.get()),
            offset: r.offset.get(),
            count: r.count.get(),
        }
    }

    /// The bytes that it takes inline.
    pub fn inline_len(&self) -> usize {
        match self {
            BackRef::Owner { .. } | BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } => 1 + 8,
            BackRef::Data { .. } => 1 + size_of::<ExtentDataRef>(),
            BackRef::SharedData { .. } => 1 + 8 + 4,
        }
    }

    fn encode_inline(&self, out: &mut Vec<u8>) {
        out.push(self.item_type().0);
        match *self {
            BackRef::Data { root, ino, offset, count } => {
                out.extend_from_slice(data_ref(root, ino, offset, count).as_bytes());
            }
            BackRef::Owner { root } | BackRef::TreeBlock { root } => out.extend_from_slice(&root.0.to_le_bytes()),
            BackRef::SharedBlock { parent } => out.extend_from_slice(&parent.0.to_le_bytes()),
            BackRef::SharedData { parent, count } => {
                out.extend_from_slice(&parent.0.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
    }

    /// The reference at the start of `bytes`, and the rest.
    fn parse_inline(bytes: &[u8]) -> Result<(BackRef, &[u8]), Corruption> {
        let too_short = || Corruption::new("inline reference", "length", bytes.len(), "a whole reference");
        let (&kind, rest) = bytes.split_first().ok_or_else(too_short)?;
        let number = || {
            let (n, rest) = rest.split_first_chunk::<8>().ok_or_else(too_short)?;
            Ok::<_, Corruption>((U64::from_bytes(*n).get(), rest))
        };
        Ok(match ItemType(kind) {
            ItemType::EXTENT_OWNER_REF => (BackRef::Owner { root: TreeId(number()?.0) }, number()?.1),
            ItemType::TREE_BLOCK_REF => (BackRef::TreeBlock { root: TreeId(number()?.0) }, number()?.1),
            ItemType::SHARED_BLOCK_REF => (BackRef::SharedBlock { parent: Logical(number()?.0) }, number()?.1),
            ItemType::EXTENT_DATA_REF => {
                let (r, rest) = ExtentDataRef::parse_prefix(rest)?;
                (BackRef::from_data_ref(r), rest)
            }
            ItemType::SHARED_DATA_REF => {
                let (parent, rest) = number()?;
                let (count, rest) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
                (BackRef::SharedData { parent: Logical(parent), count: U32::from_bytes(*count).get() }, rest)
            }
            other => return Err(Corruption::new("inline reference", "type", format_args!("{other:?}"), "a reference")),
        })
    }
}

fn data_ref(root: TreeId, ino: Ino, offset: u64, count: u32) -> ExtentDataRef {
    ExtentDataRef { root: root.0.into(), objectid: ino.0.into(), offset: offset.into(), count: count.into() }
}

/// The contents of an EXTENT_ITEM or METADATA_ITEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentRecord {
    /// How many references there are, inline and keyed.
    pub refs: u64,
    /// The transaction that allocated the extent.
    pub generation: Generation,
    /// Data or tree block.
    pub flags: ExtentFlags,
    /// First key and level of a tree block; only in EXTENT_ITEMs, that is without skinny metadata.
    pub tree_block: Option<(Key, u8)>,
    /// The inline references, sorted by [`BackRef::order`].
    pub inline: Vec<BackRef>,
}

impl ExtentRecord {
    /// Parses an EXTENT_ITEM or METADATA_ITEM; its references are checked to be complete and of a known type.
    pub fn parse(key: &Key, item: &[u8]) -> Result<ExtentRecord, Corruption> {
        let (mut record, rest) = ExtentRecord::parse_head(key, item)?;
        for inline in InlineRefs(rest) {
            record.inline.push(inline?);
        }
        Ok(record)
    }

    /// The record without its inline references, and those as an iterator over [`InlineRefs`] could read them.
    pub fn parse_head<'a>(key: &Key, item: &'a [u8]) -> Result<(ExtentRecord, &'a [u8]), Corruption> {
        let (head, mut rest) = ExtentItem::parse_prefix(item)?;
        let flags = ExtentFlags::from_bits_retain(head.flags.get());
        let mut tree_block = None;
        if key.item_type == ItemType::EXTENT_ITEM && flags.contains(ExtentFlags::TREE_BLOCK) {
            let (info, after) = TreeBlockInfo::parse_prefix(rest)?;
            tree_block = Some((info.key.into(), info.level));
            rest = after;
        }
        let generation = Generation(head.generation.get());
        Ok((ExtentRecord { refs: head.refs.get(), generation, flags, tree_block, inline: Vec::new() }, rest))
    }

    /// The item. Inline references are sorted if they are not.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        let head = ExtentItem {
            refs: self.refs.into(),
            generation: self.generation.0.into(),
            flags: self.flags.bits().into(),
        };
        out.extend_from_slice(head.as_bytes());
        if let Some((key, level)) = self.tree_block {
            out.extend_from_slice(TreeBlockInfo { key: key.into(), level }.as_bytes());
        }
        if self.inline.is_sorted_by_key(BackRef::order) {
            self.inline.iter().for_each(|r| r.encode_inline(&mut out));
        } else {
            let mut sorted = self.inline.clone();
            sorted.sort_by_key(BackRef::order);
            sorted.iter().for_each(|r| r.encode_inline(&mut out));
        }
        out
    }

    /// The bytes of the item.
    pub fn encoded_len(&self) -> usize {
        let info = if self.tree_block.is_some() { size_of::<TreeBlockInfo>() } else { 0 };
        size_of::<ExtentItem>() + info + self.inline.iter().map(BackRef::inline_len).sum::<usize>()
    }
}

/// Reads inline references one by one, without a record. Ends after the first error.
#[derive(Clone, Debug)]
pub struct InlineRefs<'a>(pub &'a [u8]);

impl Iterator for InlineRefs<'_> {
    type Item = Result<BackRef, Corruption>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        match BackRef::parse_inline(self.0) {
            Ok((r, rest)) => {
                self.0 = rest;
                Some(Ok(r))
            }
            Err(e) => {
                self.0 = &[];
                Some(Err(e))
            }
        }
    }
}
