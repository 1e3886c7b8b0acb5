//! What an item references. References are derived from items, never counted by hand: code that rewrites a leaf
//! compares those of the old and the new one.

use zerocopy::FromBytes;

use crate::structs::FileExtentItem;
use crate::{ByteLen, Ino, ItemType, Key, Logical};

/// A data extent that a file-extent item references.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataUse {
    /// Start of the extent on disk.
    pub extent: Logical,
    /// Its length on disk.
    pub len: ByteLen,
    /// The file.
    pub ino: Ino,
    /// File offset less offset in the extent: the same for all parts that a split leaves. Wraps below zero.
    pub offset: u64,
}

/// The data extent that this item references: regular and preallocated file extents do, inline ones and holes do not.
pub fn data_use(key: &Key, item: &[u8]) -> Option<DataUse> {
    if key.item_type != ItemType::EXTENT_DATA {
        return None;
    }
    let extent = FileExtentItem::ref_from_bytes(item).ok()?;
    let is_extent = matches!(extent.r#type, FileExtentItem::REG | FileExtentItem::PREALLOC);
    if !is_extent || extent.disk_bytenr == 0 {
        return None;
    }
    Some(DataUse {
        extent: Logical(extent.disk_bytenr.get()),
        len: ByteLen(extent.disk_num_bytes.get()),
        ino: Ino(key.objectid),
        offset: key.offset.wrapping_sub(extent.offset.get()),
    })
}

impl FileExtentItem {
    /// `type` of a file extent whose data is in the item.
    pub const INLINE: u8 = 0;
    /// `type` of a file extent on disk, or a hole.
    pub const REG: u8 = 1;
    /// `type` of a file extent that is reserved on disk but reads as zeros.
    pub const PREALLOC: u8 = 2;
}
