//! The format of a btrfs volume: keys, items, nodes, superblocks, checksums, compression; and the format of a send
//! stream.
//!
//! Nothing here does I/O or holds state (except for a count in debug builds, `work`). Facts come from the format's documentation and the UAPI headers
//! `linux/btrfs.h` and `linux/btrfs_tree.h`. `docs/format.md` shows the bytes.

mod chunk;
pub mod compress;
mod csum;
mod data_use;
mod error;
mod extent;
mod failure;
mod file_extent;
mod flags;
mod ids;
mod key;
mod layout;
mod names;
mod node;
pub mod print;
pub mod raid6;
mod records;
mod setters;
pub mod stream;
mod structs;
mod super_block;
mod verify;
#[doc(hidden)]
pub mod work;

pub use chunk::{Chunk, STRIPE_LEN};
pub use compress::{compress, compress_inline, decompress, decompress_inline, looks_compressible};
pub use csum::{CSUM_FIELD_LEN, CsumType, data_ref_hash, dir_hash, extref_hash};
pub use data_use::{DataUse, data_use};
pub use error::Corruption;
pub use extent::{BackRef, ExtentRecord, InlineRefs, extent_record_len_max};
pub use failure::{Class, Classified, ErrorKind, errno};
pub use file_extent::{Compression, DiskExtent, FileExtent};
pub use flags::{
    BalanceArgsFlags, BalanceFlags, BlockGroupFlags, CompatRo, ExtentFlags, Features, FileType, FreeSpaceFlags,
    HeaderFlags, Incompat, InodeFlags, QgroupLimitFlags, QgroupStatusFlags, RootFlags, SuperFlags,
};
pub use ids::{ByteLen, DevId, FileOffset, Generation, Ino, Logical, Physical, TreeId};
pub use key::{DiskKey, ItemType, Key};
pub use layout::{
    ChildPtr, HEADER_LEN, ITEM_LEN, KEY_PTR_LEN, LEVELS_MAX, NODESIZE_MAX, NODESIZE_MIN, NodeExpect, NodeRules,
    SYS_CHUNK_ARRAY_LEN, item_len_max, leaf_capacity, node_capacity,
};
pub use names::{
    DirEntries, DirEntry, DirEntryRef, InodeExtrefEntry, InodeExtrefEntryRef, InodeExtrefs, InodeRefEntry,
    InodeRefEntryRef, InodeRefs, NAME_LEN_MAX, RootRefEntry,
};
pub use node::{BlockHead, CheckedNode, LeafBuilder, encode_node, seal, set_child, set_data_extent};
pub use records::{FREE_SPACE_BITMAP_LEN, QgroupStatus, RaidStripe, UuidItem, bitmap_runs, bitmap_set};
pub use structs::*;
pub use super_block::{
    LABEL_LEN_MAX, ROOT_BACKUPS, SUPER_LEN, SUPER_MAGIC, SUPER_MAGIC_TEMPORARY, SUPER_OFFSETS, new_super_block,
    super_offsets,
};
