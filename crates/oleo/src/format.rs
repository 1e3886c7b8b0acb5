//! Numbers and structures of the format on disk, as signatures of this library have them.

pub use oleo_format::{
    BlockGroupFlags, ByteLen, CheckedNode, Compression, CsumType, DevId, Generation, Ino, InodeFlags, Key, Logical,
    NodeExpect, QgroupStatusFlags, SuperBlock, TreeId,
};
