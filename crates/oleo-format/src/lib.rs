//! What the bytes of a btrfs volume mean: keys, items, nodes, superblocks, checksums, compression.

mod ids;
mod key;

pub use ids::{ByteLen, DevId, FileOffset, Generation, Ino, Logical, Physical, TreeId};
pub use key::{DiskKey, ItemType, Key};
