//! Keys: every item of every tree has one, and trees are sorted by them.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, byteorder::little_endian::U64};

/// The type of an item (`BTRFS_*_KEY` in the UAPI header `linux/btrfs_tree.h`). Unknown values are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemType(pub u8);

macro_rules! item_types {
    ($($name:ident = $value:literal,)*) => {
        #[allow(missing_docs, reason = "the names are those of the UAPI header, which documents them")]
        impl ItemType {
            $(pub const $name: ItemType = ItemType($value);)*

            /// The name in the UAPI header without prefix and suffix, or `None` for an undefined number.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

item_types! {
    INODE_ITEM = 1,
    INODE_REF = 12,
    INODE_EXTREF = 13,
    XATTR_ITEM = 24,
    VERITY_DESC_ITEM = 36,
    VERITY_MERKLE_ITEM = 37,
    ORPHAN_ITEM = 48,
    DIR_LOG_ITEM = 60,
    DIR_LOG_INDEX = 72,
    DIR_ITEM = 84,
    DIR_INDEX = 96,
    EXTENT_DATA = 108,
    EXTENT_CSUM = 128,
    ROOT_ITEM = 132,
    ROOT_BACKREF = 144,
    ROOT_REF = 156,
    EXTENT_ITEM = 168,
    METADATA_ITEM = 169,
    EXTENT_OWNER_REF = 172,
    TREE_BLOCK_REF = 176,
    EXTENT_DATA_REF = 178,
    EXTENT_REF_V0 = 180,
    SHARED_BLOCK_REF = 182,
    SHARED_DATA_REF = 184,
    BLOCK_GROUP_ITEM = 192,
    FREE_SPACE_INFO = 198,
    FREE_SPACE_EXTENT = 199,
    FREE_SPACE_BITMAP = 200,
    DEV_EXTENT = 204,
    DEV_ITEM = 216,
    CHUNK_ITEM = 228,
    RAID_STRIPE = 230,
    IDENTITY_REMAP = 234,
    REMAP = 235,
    REMAP_BACKREF = 236,
    QGROUP_STATUS = 240,
    QGROUP_INFO = 242,
    QGROUP_LIMIT = 244,
    QGROUP_RELATION = 246,
    TEMPORARY_ITEM = 248,
    PERSISTENT_ITEM = 249,
    DEV_REPLACE = 250,
    UUID_SUBVOL = 251,
    UUID_RECEIVED_SUBVOL = 252,
    STRING_ITEM = 253,
}

impl fmt::Debug for ItemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

/// The key of an item: trees are sorted by object, then type, then offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The object that the item belongs to: an inode, a tree, an extent's address …
    pub objectid: u64,
    /// What the item is.
    pub item_type: ItemType,
    /// Its meaning depends on the type.
    pub offset: u64,
}

impl Key {
    /// The lowest key there is.
    pub const MIN: Key = Key { objectid: 0, item_type: ItemType(0), offset: 0 };
    /// The highest key there is.
    pub const MAX: Key = Key { objectid: u64::MAX, item_type: ItemType(u8::MAX), offset: u64::MAX };

    /// A key of its three parts.
    pub const fn new(objectid: u64, item_type: ItemType, offset: u64) -> Key {
        Key { objectid, item_type, offset }
    }

    /// The key that follows directly, or `None` after the highest.
    pub fn next(self) -> Option<Key> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Key { offset, ..self });
        }
        if let Some(item_type) = self.item_type.0.checked_add(1) {
            return Some(Key { objectid: self.objectid, item_type: ItemType(item_type), offset: 0 });
        }
        Some(Key { objectid: self.objectid.checked_add(1)?, item_type: ItemType(0), offset: 0 })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {:?} {})", self.objectid, self.item_type, self.offset)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A key on disk (`struct btrfs_disk_key`, 17 bytes).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskKey {
    /// Object.
    pub objectid: U64,
    /// Type.
    pub item_type: u8,
    /// Offset.
    pub offset: U64,
}

const _: () = assert!(size_of::<DiskKey>() == 17);

impl From<DiskKey> for Key {
    fn from(k: DiskKey) -> Key {
        Key::new(k.objectid.get(), ItemType(k.item_type), k.offset.get())
    }
}

impl From<Key> for DiskKey {
    fn from(k: Key) -> DiskKey {
        DiskKey { objectid: k.objectid.into(), item_type: k.item_type.0, offset: k.offset.into() }
    }
}
