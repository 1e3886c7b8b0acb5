//! How much memory a mount may use for caches, depending on the machine's memory.
//!
//! Tree blocks: a sixteenth. Inodes that the kernel knows are held here, too ([`nodes`](crate::nodes)): an eighth. Both
//! are bounded, and both can be set (`cache=`, `nodes=`), however many files there are: the file system's own cache of inodes holds at most as many again as the kernel knows, until a commit sweeps it, or until the kernel has forgotten half of
//! those that it knew.
//!
//! Measured on an x86-64 with 64 MiB of tree blocks cached: 1 001 000 inodes, looked at one time with `find -ls`, took
//! 660 MB less those 64 MiB and the 25 MB of the empty mount: about 600 bytes for a clean inode that the kernel knows.

use oleo::memory::memory;

/// Default bounds of the bytes of tree blocks: the trees of some hundred thousand files, and what a file server can
/// spare that is not alone on its machine.
const CACHE_BYTES: (u64, u64) = (64 << 20, 4 << 30);
/// Nodes at least and at most.
const NODES: (u64, u64) = (64 << 10, 64 << 20);
/// Bytes that a node takes, with its inode.
const NODE_LEN: u64 = 1024;

/// Bytes of tree blocks to keep.
pub(crate) fn cache_bytes() -> u64 {
    (memory() / 16).clamp(CACHE_BYTES.0, CACHE_BYTES.1)
}

/// The number of nodes above which the kernel is asked to forget some.
pub(crate) fn nodes_max() -> u64 {
    (memory() / 8 / NODE_LEN).clamp(NODES.0, NODES.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the defaults are within their bounds.
    #[test]
    fn by_the_machine() {
        assert!((CACHE_BYTES.0..=CACHE_BYTES.1).contains(&cache_bytes()));
        assert!((NODES.0..=NODES.1).contains(&nodes_max()));
    }
}
