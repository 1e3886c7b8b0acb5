//! What all trees have in common: lengths, levels, child pointers, and the expectations a block is checked against.
//! Nothing here reads bytes.

use uuid::Uuid;

use crate::csum::CsumType;
use crate::flags::Features;
use crate::structs::{DiskItem, Header, KeyPtr};
use crate::{Generation, Key, Logical, TreeId};

/// The bytes of a block's header.
pub const HEADER_LEN: usize = size_of::<Header>();
/// The bytes that an item costs beside its data.
pub const ITEM_LEN: usize = size_of::<DiskItem>();
/// The bytes of a child pointer.
pub const KEY_PTR_LEN: usize = size_of::<KeyPtr>();
/// The smallest tree block in bytes.
pub const NODESIZE_MIN: u32 = 4096;
/// The largest tree block in bytes.
pub const NODESIZE_MAX: u32 = 65536;

/// Trees have levels 0 to 7.
pub const LEVELS_MAX: u8 = 8;
/// The bytes of the array that holds the system chunks.
pub const SYS_CHUNK_ARRAY_LEN: usize = 2048;

/// The bytes that a leaf has for items, [`ITEM_LEN`] each, and their data.
pub const fn leaf_capacity(nodesize: u32) -> usize {
    nodesize as usize - HEADER_LEN
}

/// How many children a node may have.
pub const fn node_capacity(nodesize: u32) -> usize {
    (nodesize as usize - HEADER_LEN) / KEY_PTR_LEN
}

/// The largest item data that one leaf can hold.
pub const fn item_len_max(nodesize: u32) -> usize {
    leaf_capacity(nodesize) - ITEM_LEN
}

/// A child of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChildPtr {
    /// The first key of the child, or a lower one.
    pub key: Key,
    /// The child's address.
    pub logical: Logical,
    /// The transaction that wrote it.
    pub generation: Generation,
}

impl From<&KeyPtr> for ChildPtr {
    fn from(p: &KeyPtr) -> ChildPtr {
        ChildPtr { key: p.key.into(), logical: Logical(p.blockptr.get()), generation: Generation(p.generation.get()) }
    }
}

impl From<&ChildPtr> for KeyPtr {
    fn from(p: &ChildPtr) -> KeyPtr {
        KeyPtr { key: p.key.into(), blockptr: p.logical.0.into(), generation: p.generation.0.into() }
    }
}

/// What the reader of a block knows about it beforehand. `None` is "whatever it is".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeExpect {
    /// The address it was read from.
    pub logical: Logical,
    /// The transaction that wrote it, according to its parent.
    pub generation: Option<Generation>,
    /// Its level.
    pub level: Option<u8>,
    /// The tree that owns it. Blocks of a snapshot may be owned by any subvolume: leave it open there.
    pub owner: Option<TreeId>,
    /// The key that its parent has for it.
    pub first_key: Option<Key>,
}

impl NodeExpect {
    /// Only the address is known.
    pub fn at(logical: Logical) -> NodeExpect {
        NodeExpect { logical, generation: None, level: None, owner: None, first_key: None }
    }

    /// The expectations of a child pointer in a node of `parent_level`.
    pub fn child(ptr: &ChildPtr, parent_level: u8) -> NodeExpect {
        NodeExpect {
            logical: ptr.logical,
            generation: Some(ptr.generation),
            level: parent_level.checked_sub(1),
            owner: None,
            first_key: Some(ptr.key),
        }
    }
}

/// What all tree blocks of a volume have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRules {
    /// The fsid that blocks carry: `metadata_uuid` of the superblock if that feature is set.
    pub fsid: Uuid,
    /// The bytes of a block.
    pub nodesize: u32,
    /// The smallest unit of data.
    pub sectorsize: u32,
    /// How checksums are computed.
    pub csum: CsumType,
    /// The features of the volume.
    pub features: Features,
}
