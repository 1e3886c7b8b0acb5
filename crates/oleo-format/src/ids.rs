//! The numbers that the format is made of, each its own type, so that a logical address cannot be passed for a
//! physical one, nor a length for an offset.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, concat!(stringify!($name), "({})"), self.0) }
        }
    };
}

number!(
    /// A byte address in the volume's logical space, which chunks map to devices.
    Logical
);
number!(
    /// A byte address on one device.
    Physical
);
number!(
    /// A byte position in a file.
    FileOffset
);
number!(
    /// A length in bytes.
    ByteLen
);
number!(
    /// A transaction number; it rises by one with every commit.
    Generation
);
number!(
    /// The number of a tree: one of the fixed trees, a subvolume or a snapshot (`objectid` of its root item).
    TreeId
);
number!(
    /// An inode number, unique within one subvolume.
    Ino
);
number!(
    /// A device number within one volume, from 1.
    DevId
);

macro_rules! position {
    ($name:ident) => {
        impl Add<ByteLen> for $name {
            type Output = $name;
            /// Wraps never: addresses read from an image are verified to leave room for their lengths.
            fn add(self, len: ByteLen) -> $name {
                $name(self.0 + len.0)
            }
        }
        impl AddAssign<ByteLen> for $name {
            fn add_assign(&mut self, len: ByteLen) {
                self.0 += len.0;
            }
        }
        impl Sub for $name {
            type Output = ByteLen;
            fn sub(self, from: $name) -> ByteLen {
                ByteLen(self.0 - from.0)
            }
        }
        impl $name {
            /// The position `len` bytes on, or `None` if that leaves 64 bits.
            pub fn checked_add(self, len: ByteLen) -> Option<$name> {
                self.0.checked_add(len.0).map($name)
            }
            /// The nearest multiple of `unit` (a power of two) at or below.
            pub fn align_down(self, unit: ByteLen) -> $name {
                $name(self.0 & !(unit.0 - 1))
            }
            /// Whether this is a multiple of `unit` (a power of two).
            pub fn is_aligned(self, unit: ByteLen) -> bool {
                self.0 & (unit.0 - 1) == 0
            }
        }
    };
}
position!(Logical);
position!(Physical);
position!(FileOffset);

impl Add for ByteLen {
    type Output = ByteLen;
    fn add(self, other: ByteLen) -> ByteLen {
        ByteLen(self.0 + other.0)
    }
}
impl AddAssign for ByteLen {
    fn add_assign(&mut self, other: ByteLen) {
        self.0 += other.0;
    }
}
impl Sub for ByteLen {
    type Output = ByteLen;
    fn sub(self, other: ByteLen) -> ByteLen {
        ByteLen(self.0 - other.0)
    }
}
impl ByteLen {
    /// The nearest multiple of `unit` (a power of two) at or above.
    pub fn align_up(self, unit: ByteLen) -> ByteLen {
        ByteLen((self.0 + unit.0 - 1) & !(unit.0 - 1))
    }
    /// Whether this is a multiple of `unit` (a power of two).
    pub fn is_aligned(self, unit: ByteLen) -> bool {
        self.0 & (unit.0 - 1) == 0
    }
}

/// Fixed tree numbers (UAPI header `linux/btrfs_tree.h`, `BTRFS_*_TREE_OBJECTID`).
impl TreeId {
    /// Holds the root item of every other tree.
    pub const ROOT: TreeId = TreeId(1);
    /// Extents, their references, and (without a block-group tree) block groups.
    pub const EXTENT: TreeId = TreeId(2);
    /// Chunks and devices.
    pub const CHUNK: TreeId = TreeId(3);
    /// Device extents, dev stats, dev replace.
    pub const DEV: TreeId = TreeId(4);
    /// The top-level subvolume.
    pub const FS: TreeId = TreeId(5);
    /// The directory object inside the root tree that names the default subvolume.
    pub const ROOT_DIR: TreeId = TreeId(6);
    /// Data checksums.
    pub const CSUM: TreeId = TreeId(7);
    /// Quota groups.
    pub const QUOTA: TreeId = TreeId(8);
    /// UUID to subvolume.
    pub const UUID: TreeId = TreeId(9);
    /// Free space by block group.
    pub const FREE_SPACE: TreeId = TreeId(10);
    /// Block groups, with the feature of that name.
    pub const BLOCK_GROUP: TreeId = TreeId(11);
    /// Stripes of RAID on zoned devices, with the feature of that name.
    pub const RAID_STRIPE: TreeId = TreeId(12);
    /// Remapped block groups (extent-remapping feature).
    pub const REMAP: TreeId = TreeId(13);
    /// Log trees (−6).
    pub const TREE_LOG: TreeId = TreeId(-6i64 as u64);
    /// Log trees being fixed up (−7).
    pub const TREE_LOG_FIXUP: TreeId = TreeId(-7i64 as u64);
    /// Relocation trees (−8).
    pub const TREE_RELOC: TreeId = TreeId(-8i64 as u64);
    /// The data relocation tree (−9).
    pub const DATA_RELOC: TreeId = TreeId(-9i64 as u64);
    /// The first number a subvolume may have.
    pub const FIRST_FREE: TreeId = TreeId(256);
    /// The last number a subvolume may have (−256).
    pub const LAST_FREE: TreeId = TreeId(-256i64 as u64);

    /// Whether this is a tree of files: the top level, a subvolume or a snapshot.
    pub fn is_subvol(self) -> bool {
        self == TreeId::FS || (self >= TreeId::FIRST_FREE && self <= TreeId::LAST_FREE)
    }

    /// Whether blocks of this tree may be shared with snapshots: subvolumes and the data relocation tree.
    pub fn is_shareable(self) -> bool {
        self.is_subvol() || self == TreeId::DATA_RELOC || self == TreeId::TREE_RELOC
    }
}

impl Ino {
    /// The root directory of every subvolume.
    pub const ROOT_DIR: Ino = Ino(256);
    /// The first number a file may have.
    pub const FIRST: Ino = Ino(256);
    /// The last number a file may have (−256).
    pub const LAST: Ino = Ino(-256i64 as u64);
    /// The fixed inode number of an entry's directory for empty subvolume stubs.
    pub const EMPTY_SUBVOL_DIR: Ino = Ino(2);
}
