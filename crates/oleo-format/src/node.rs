//! Tree blocks. Raw bytes become a [`CheckedNode`] only through [`CheckedNode::verify`], which checks everything:
//! checksum, place, generation, level, owner, order of keys, layout, and every item. After that the accessors check
//! nothing.
//!
//! A block is a header, then an array that grows upwards: items (key, offset, size) in a leaf, child pointers in a
//! node. In a leaf the data of the items fills the block from its end downwards in the order of the keys, without gaps.

use uuid::Uuid;
use zerocopy::FromBytes;

use crate::csum::{CSUM_FIELD_LEN, CsumType};
use crate::error::Corruption;
use crate::flags::HeaderFlags;
use crate::layout::{ChildPtr, HEADER_LEN, ITEM_LEN, KEY_PTR_LEN, NodeExpect, NodeRules, node_capacity};
use crate::structs::{DiskItem, FileExtentItem, Header, KeyPtr};
use crate::verify;
use crate::work;
use crate::{Generation, Key, Logical, TreeId};

/// A tree block whose every byte has been checked.
#[derive(Clone)]
pub struct CheckedNode {
    bytes: Box<[u8]>,
}

impl std::fmt::Debug for CheckedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (at, generation, owner) = (self.logical(), self.generation(), self.owner());
        write!(f, "block {at} generation {generation} tree {owner} level {} items {}", self.level(), self.len())
    }
}

impl CheckedNode {
    /// Checks everything about a block that can be checked without another: checksum, header, order and layout, every item.
    pub fn verify(bytes: Box<[u8]>, rules: &NodeRules, expect: &NodeExpect) -> Result<CheckedNode, Corruption> {
        verify::block(&bytes, rules, expect)?;
        Ok(CheckedNode { bytes })
    }

    /// Checks everything but the checksum: for reading a volume whose blocks have checksums of another type, or that is damaged.
    pub fn verify_without_csum(
        bytes: Box<[u8]>,
        rules: &NodeRules,
        expect: &NodeExpect,
    ) -> Result<CheckedNode, Corruption> {
        verify::block_without_csum(&bytes, rules, expect)?;
        Ok(CheckedNode { bytes })
    }

    /// Takes a block that this process has just built. Debug builds look at its structure all the same.
    pub fn trust(bytes: Box<[u8]>) -> CheckedNode {
        debug_assert_eq!(verify::structure(&bytes), Ok(()));
        CheckedNode { bytes }
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        Header::ref_from_prefix(&self.bytes).expect("a checked block is longer than its header").0
    }

    /// The block's address.
    #[inline]
    pub fn logical(&self) -> Logical {
        Logical(self.header().bytenr.get())
    }

    /// The transaction that wrote it.
    #[inline]
    pub fn generation(&self) -> Generation {
        Generation(self.header().generation.get())
    }

    /// The tree that it was written for.
    #[inline]
    pub fn owner(&self) -> TreeId {
        TreeId(self.header().owner.get())
    }

    /// 0 is a leaf.
    #[inline]
    pub fn level(&self) -> u8 {
        self.header().level
    }

    /// Whether it holds items rather than children.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    /// The flags.
    #[inline]
    pub fn flags(&self) -> HeaderFlags {
        HeaderFlags::from_bits_retain(self.header().flags.get())
    }

    /// How many items or children.
    #[inline]
    pub fn len(&self) -> usize {
        self.header().nritems.get() as usize
    }

    /// Whether there are no items.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole block.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the bytes back.
    pub fn into_bytes(self) -> Box<[u8]> {
        self.bytes
    }

    /// The head that a rewrite of this block would start from.
    pub fn head(&self) -> BlockHead {
        let h = self.header();
        BlockHead {
            logical: self.logical(),
            generation: self.generation(),
            owner: self.owner(),
            level: h.level,
            flags: self.flags(),
            fsid: Uuid::from_bytes(h.fsid),
            chunk_tree_uuid: Uuid::from_bytes(h.chunk_tree_uuid),
        }
    }

    /// The item table of a leaf.
    #[inline]
    pub fn items(&self) -> &[DiskItem] {
        debug_assert!(self.is_leaf());
        <[DiskItem]>::ref_from_prefix_with_elems(&self.bytes[HEADER_LEN..], self.len())
            .expect("checked: the table fits")
            .0
    }

    /// The child table of a node.
    #[inline]
    pub fn key_ptrs(&self) -> &[KeyPtr] {
        debug_assert!(!self.is_leaf());
        <[KeyPtr]>::ref_from_prefix_with_elems(&self.bytes[HEADER_LEN..], self.len())
            .expect("checked: the table fits")
            .0
    }

    /// The key of a slot (below [`len`](Self::len)).
    #[inline]
    pub fn key(&self, slot: usize) -> Key {
        work::step();
        if self.is_leaf() { self.items()[slot].key.into() } else { self.key_ptrs()[slot].key.into() }
    }

    /// The data of an item of a leaf.
    #[inline]
    pub fn item(&self, slot: usize) -> &[u8] {
        work::step();
        let item = &self.items()[slot];
        let start = HEADER_LEN + item.offset.get() as usize;
        &self.bytes[start..start + item.size.get() as usize]
    }

    /// All items of a leaf in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Key, &[u8])> + ExactSizeIterator {
        (0..self.len()).map(|slot| (self.key(slot), self.item(slot)))
    }

    /// A child of a node.
    #[inline]
    pub fn child(&self, slot: usize) -> ChildPtr {
        work::step();
        ChildPtr::from(&self.key_ptrs()[slot])
    }

    /// The slot of a key, or where it would be, like `slice::binary_search`.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        work::step();
        if self.is_leaf() {
            self.items().binary_search_by(|item| Key::from(item.key).cmp(key))
        } else {
            self.key_ptrs().binary_search_by(|ptr| Key::from(ptr.key).cmp(key))
        }
    }

    /// The slot of the child under which a key is: the last whose key is not above it, or the first.
    pub fn child_slot(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// The bytes of a leaf that neither items nor their data use.
    pub fn free_bytes(&self) -> usize {
        let data_start = self.items().last().map_or(self.bytes.len() - HEADER_LEN, |item| item.offset.get() as usize);
        data_start - self.len() * ITEM_LEN
    }
}

/// The header of a new block, apart from what is counted and computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHead {
    /// Its address.
    pub logical: Logical,
    /// The transaction that writes it.
    pub generation: Generation,
    /// The tree that it is for.
    pub owner: TreeId,
    /// 0 is a leaf.
    pub level: u8,
    /// Flags; `WRITTEN` and the backref revision are added.
    pub flags: HeaderFlags,
    /// The fsid that blocks carry.
    pub fsid: Uuid,
    /// The uuid of the chunk tree, the same in all blocks of a volume.
    pub chunk_tree_uuid: Uuid,
}

impl BlockHead {
    fn to_disk(self, nritems: usize) -> Header {
        let flags = self.flags | HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF_REV;
        Header {
            csum: [0; CSUM_FIELD_LEN],
            fsid: self.fsid.into_bytes(),
            bytenr: self.logical.0.into(),
            flags: flags.bits().into(),
            chunk_tree_uuid: self.chunk_tree_uuid.into_bytes(),
            generation: self.generation.0.into(),
            owner: self.owner.0.into(),
            nritems: u32::try_from(nritems).expect("no block has 2³² items").into(),
            level: self.level,
        }
    }

    /// Writes the header over that of a built block, keeping the count of items.
    pub fn stamp(&self, block: &mut [u8]) {
        let (header, _) = Header::mut_from_prefix(block).expect("a block is longer than its header");
        let nritems = header.nritems;
        *header = Header { nritems, ..self.to_disk(0) };
    }
}

/// Builds a leaf from items in rising order.
///
/// ```
/// # use oleo_format::*;
/// let mut leaf = LeafBuilder::new(4096);
/// assert!(leaf.push(&Key::new(256, ItemType::ORPHAN_ITEM, 0), b""));
/// assert!(!leaf.push(&Key::new(257, ItemType::STRING_ITEM, 0), &[0; 4096])); // does not fit
/// ```
#[derive(Clone, Debug)]
pub struct LeafBuilder {
    block: Box<[u8]>,
    count: usize,
    data_start: usize,
    last: Option<Key>,
}

impl LeafBuilder {
    /// An empty leaf of `nodesize` bytes.
    pub fn new(nodesize: u32) -> LeafBuilder {
        let len = nodesize as usize;
        LeafBuilder { block: vec![0; len].into_boxed_slice(), count: 0, data_start: len, last: None }
    }

    /// Adds an item, or returns `false` if it does not fit. Keys must rise.
    pub fn push(&mut self, key: &Key, data: &[u8]) -> bool {
        assert!(self.last.is_none_or(|last| last < *key), "keys rise: {:?} then {key:?}", self.last);
        if data.len() + ITEM_LEN > self.free_bytes() {
            return false;
        }
        let end = self.data_start;
        self.data_start -= data.len();
        self.block[self.data_start..end].copy_from_slice(data);
        let item = DiskItem {
            key: (*key).into(),
            offset: u32_of(self.data_start - HEADER_LEN).into(),
            size: u32_of(data.len()).into(),
        };
        let at = HEADER_LEN + self.count * ITEM_LEN;
        self.block[at..at + ITEM_LEN].copy_from_slice(zerocopy::IntoBytes::as_bytes(&item));
        self.count += 1;
        self.last = Some(*key);
        true
    }

    /// The bytes left for more items and their heads.
    pub fn free_bytes(&self) -> usize {
        self.data_start - HEADER_LEN - self.count * ITEM_LEN
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The block, its checksum left zero for [`seal`].
    pub fn finish(mut self, head: &BlockHead) -> Box<[u8]> {
        assert_eq!(head.level, 0, "a leaf has level 0");
        self.block[..HEADER_LEN].copy_from_slice(zerocopy::IntoBytes::as_bytes(&head.to_disk(self.count)));
        self.block
    }
}

/// Builds a node from its children in rising order (at most [`node_capacity`]). The checksum is left zero for [`seal`].
pub fn encode_node(nodesize: u32, head: &BlockHead, children: &[ChildPtr]) -> Box<[u8]> {
    assert!(head.level > 0, "a node has a level above 0");
    assert!(children.len() <= node_capacity(nodesize), "{} children do not fit", children.len());
    let mut block = vec![0; nodesize as usize].into_boxed_slice();
    block[..HEADER_LEN].copy_from_slice(zerocopy::IntoBytes::as_bytes(&head.to_disk(children.len())));
    for (slot, child) in block[HEADER_LEN..].chunks_exact_mut(KEY_PTR_LEN).zip(children) {
        slot.copy_from_slice(zerocopy::IntoBytes::as_bytes(&KeyPtr::from(child)));
    }
    block
}

/// Makes a slot of a built node point to a block at another address. The checksum has to be computed again.
pub fn set_child(block: &mut [u8], slot: usize, to: Logical, generation: Generation) {
    let at = HEADER_LEN + slot * KEY_PTR_LEN;
    let (ptr, _) = KeyPtr::mut_from_prefix(&mut block[at..]).expect("the slot is inside the block");
    ptr.blockptr = to.0.into();
    ptr.generation = generation.0.into();
}

/// Lets a file extent item, which is not inline, in a slot of a built leaf name data elsewhere. The checksum is to be made
/// anew.
pub fn set_data_extent(block: &mut [u8], slot: usize, to: Logical) {
    let at = HEADER_LEN + slot * ITEM_LEN;
    let (item, _) = DiskItem::ref_from_prefix(&block[at..]).expect("the slot is inside the block");
    let start = HEADER_LEN + item.offset.get() as usize;
    let (extent, _) = FileExtentItem::mut_from_prefix(&mut block[start..]).expect("the item is as long as its kind");
    extent.disk_bytenr = to.0.into();
}

/// Computes the checksum of a tree block or superblock and stores it.
pub fn seal(bytes: &mut [u8], csum: CsumType) {
    let (field, rest) = bytes.split_at_mut(CSUM_FIELD_LEN);
    field.copy_from_slice(&csum.csum(rest));
}

/// A position inside a block, which has at most [`NODESIZE_MAX`](crate::NODESIZE_MAX) bytes.
fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("positions inside a block fit 32 bits")
}
