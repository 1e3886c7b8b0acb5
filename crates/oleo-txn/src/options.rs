//! What callers say: how an engine is opened, and what an operation, an allocation or a read needs.

use oleo_format::ByteLen;

/// How to open an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Open for reading only; nothing is ever written, not even a healed copy.
    pub read_only: bool,
    /// Bytes of tree blocks kept in memory.
    pub cache_bytes: usize,
    /// Bytes of new chunks at most, as long as there is not much else; `None` leaves it to the volume. For images that
    /// are cut to size in the end.
    pub chunk_len_max: Option<ByteLen>,
    /// For reading: go on without trees that cannot be read, as far as files can be read without them.
    pub ignore_bad_trees: bool,
    /// Discard on the devices what each commit frees.
    pub discard: bool,
    /// Make a free-space tree where there is an old cache of free space (version 1) instead, or a tree that is marked as not valid.
    /// Without it, such volumes are written as they are: the cache is marked as outdated.
    pub make_free_space_tree: bool,
    /// Threads that commits run on, and as many again for file data; 0: as many as there are cores.
    pub threads: usize,
    /// Records of changed references (48 bytes each) that stages may leave in memory: with more, the next stage begins with
    /// a commit. So taking a large subvolume apart, or making many snapshots, is a row of commits of bounded length, between
    /// which others get theirs.
    pub staged_ref_changes_max: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            read_only: false,
            cache_bytes: 128 << 20,
            chunk_len_max: None,
            ignore_bad_trees: false,
            discard: false,
            make_free_space_tree: false,
            threads: 0,
            staged_ref_changes_max: 128 * 1024,
        }
    }
}

/// Space that an operation may use for its metadata (see `metadata_reserve`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Claim {
    /// Space that nothing is reserved for: it adds something.
    #[default]
    Ordinary,
    /// Also what is kept for operations that release space (unlink, truncate). It may first copy blocks that snapshots share, which stay.
    Release,
    /// It records data that was promised room.
    Promised,
    /// The last free space: it deletes unshared items, or drops references, and adds nothing that stays.
    Reclaim,
}

/// What an operation may need from the metadata space until the next commit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Items that it may add, change or delete.
    pub items: u32,
    /// Those of them that lie behind others of them in a row and are deleted, or lie in trees that files have nothing to do with: no blocks are
    /// rewritten for their sake.
    pub row: u32,
    /// Bytes of item data that it may add.
    pub bytes: u32,
    /// Space that it may use.
    pub claim: Claim,
}

/// What a data allocation wants.
#[derive(Clone, Copy, Debug)]
pub struct DataWant {
    /// As many bytes as this, a multiple of the sector size.
    pub len: ByteLen,
    /// No fewer than this.
    pub min_len: ByteLen,
    /// Allocations of one stream (an inode, say) are kept together.
    pub stream: u64,
    /// A new stream begins near the last new one of the same directory; 0 for none.
    pub directory: u64,
}

/// Whether a read of data is compared with its checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CsumCheck {
    /// Every sector must have a checksum and match it.
    Verify,
    /// The file has none.
    Skip,
}
