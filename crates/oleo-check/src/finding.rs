//! Findings: how bad, what kind, where, what is there and what should be there.

use std::fmt;

use oleo_format::{Key, Logical, TreeId};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Allowed, or without consequence, but not as it should be.
    Warning,
    /// The volume contradicts itself: data or space is lost, or will be.
    Error,
}

/// Where something was found, as far as known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The tree.
    pub tree: Option<TreeId>,
    /// The tree block, or the extent.
    pub block: Option<Logical>,
    /// The item's key.
    pub key: Option<Key>,
    /// A device's number, for findings outside of trees.
    pub device: Option<u64>,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What kind.
    pub kind: Kind,
    /// Where.
    pub at: Place,
    /// What is there.
    pub have: String,
    /// What should be there.
    pub want: String,
}

/// Every kind of finding, grouped by the structure it is about.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What kind of finding; [`name`](Kind::name) is stable.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];

            /// The name that scripts see.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    // superblocks

    /// A field of a superblock with an impossible value.
    SuperBlock = "superblock",
    /// A mirror of the superblock that is damaged, or differs from the others.
    SuperMirror = "superblock-mirror",
    /// A mirror of the superblock of an earlier transaction.
    SuperStale = "superblock-stale",
    /// The superblock's array of system chunks differs from the chunk tree.
    SuperSystemChunks = "superblock-system-chunks",
    /// The superblock's number of devices.
    SuperDevices = "superblock-devices",
    /// The superblock's size of all devices.
    SuperTotalBytes = "superblock-total-bytes",
    /// The superblock's copy of its device's item.
    SuperDevItem = "superblock-device-item",
    /// The superblock's number of bytes in extents.
    SuperBytesUsed = "superblock-bytes-used",

    // tree blocks

    /// A copy of a tree block that is bad while another is good.
    BlockMirror = "block-mirror",
    /// A tree block outside of all chunks.
    BlockUnmapped = "block-unmapped",
    /// A tree block that no device can read.
    BlockUnreadable = "block-unreadable",
    /// A tree block's checksum is wrong.
    BlockChecksum = "block-checksum",
    /// A tree block's own address or file system id is wrong.
    BlockHeader = "block-header",
    /// The generation of a tree block is not the one its parent has.
    BlockGeneration = "block-generation",
    /// A tree block from a transaction that has not happened.
    BlockFuture = "block-future",
    /// The level of a tree block is not one less than its parent's.
    BlockLevel = "block-level",
    /// A tree block that belongs to another tree.
    BlockOwner = "block-owner",
    /// The first key of a tree block is not the one its parent has.
    BlockFirstKey = "block-first-key",
    /// Keys inside a tree block do not rise.
    BlockKeyOrder = "block-key-order",
    /// A tree block has keys that belong to its right neighbour.
    BlockKeyRange = "block-key-range",
    /// The layout of a tree block is wrong: counts, sizes, places of items.
    BlockLayout = "block-layout",
    /// An item with impossible contents.
    BlockItem = "block-item",
    /// A tree is missing that every volume has, or that its features require.
    RootMissing = "root-missing",
    /// A root item that contradicts itself.
    RootItem = "root-item",

    // chunks and devices

    /// A chunk lies on a device that has no item.
    ChunkDevice = "chunk-device",
    /// A stripe of a chunk without its device extent.
    ChunkStripe = "chunk-stripe",
    /// A chunk without block group.
    ChunkWithoutGroup = "chunk-without-group",
    /// A device extent without its stripe.
    DevExtent = "device-extent",
    /// Device extents that overlap.
    DevExtentOverlap = "device-extent-overlap",
    /// A device extent beyond the end of its device.
    DevExtentBeyond = "device-extent-beyond",
    /// A device item's number of bytes in chunks.
    DevItemUsed = "device-bytes-used",
    /// A device that is smaller than its item says.
    DeviceSize = "device-size",

    // block groups and free space

    /// A block group without chunk.
    GroupWithoutChunk = "group-without-chunk",
    /// A block group that is not as long as its chunk.
    GroupLength = "group-length",
    /// A block group of another type or profile than its chunk.
    GroupFlags = "group-flags",
    /// A block group's item in the wrong tree.
    GroupTree = "group-tree",
    /// Block groups that overlap.
    GroupOverlap = "group-overlap",
    /// A block group's number of used bytes.
    GroupUsed = "group-used",
    /// Free space recorded outside of block groups, or beyond their end.
    FreeSpaceStray = "free-space-stray",
    /// Free space recorded for the first groups of `mkfs.btrfs`, which are gone: without consequence.
    FreeSpaceLeftover = "free-space-leftover",
    /// A block group's summary of free space: missing, its count, its flags.
    FreeSpaceInfo = "free-space-info",
    /// Recorded as free, but in use: it would be overwritten.
    FreeSpaceUsed = "free-space-used",
    /// Free, but not recorded: it would never be used.
    FreeSpaceMissing = "free-space-missing",

    // extents

    /// Extents that overlap.
    ExtentOverlap = "extent-overlap",
    /// An extent outside of all block groups, or in one of another type.
    ExtentGroup = "extent-group",
    /// An extent over a superblock mirror (one overwrites the other), or at address 0, which means none.
    ExtentOverSuper = "extent-over-super",
    /// The record and the users of an extent disagree whether it is data or a tree block.
    ExtentFlags = "extent-flags",
    /// The level in the record of a tree block.
    ExtentLevel = "extent-level",
    /// The generation in the record of an extent.
    ExtentGeneration = "extent-generation",
    /// A file extent and the record disagree about the length of the extent.
    ExtentSize = "extent-size",
    /// A tree uses an extent that has no record.
    ExtentMissing = "extent-missing",
    /// A record of an extent that nothing uses.
    ExtentUnused = "extent-unused",
    /// A record's number of references is not the sum of those it lists.
    ExtentRefsSum = "extent-refs-sum",
    /// A record lists the same reference twice.
    ExtentRefTwice = "extent-ref-twice",
    /// A data reference whose key is not its hash.
    ExtentRefKey = "extent-ref-key",
    /// A reference to an extent that has no record.
    ExtentRefWithoutExtent = "extent-ref-without-extent",
    /// A tree has a reference that the record does not list.
    ExtentRefMissing = "extent-ref-missing",
    /// The record lists a reference that no tree has.
    ExtentRefStale = "extent-ref-stale",
    /// A reference's count.
    ExtentRefCount = "extent-ref-count",
    /// A log tree overlaps extents that have a record.
    LogSpace = "log-space",
    /// References of an extent do not add up; there are too many such extents to report more of each.
    ExtentRefs = "extent-refs",

    // checksums of data

    /// The same data has checksums twice.
    CsumOverlap = "csum-overlap",
    /// Data that should have checksums has none.
    CsumMissing = "csum-missing",
    /// Data that a log names has checksums neither in the log nor in the checksum tree.
    LogCsum = "log-checksum",
    /// Checksums of data that should have none.
    CsumOdd = "csum-odd",
    /// Checksums of addresses without data.
    CsumWithoutExtent = "csum-without-extent",
    /// No copy of the data matches its checksum.
    DataChecksum = "data-checksum",
    /// No copy of the data can be read: devices failed, or are missing.
    DataUnreadable = "data-unreadable",
    /// A copy of data cannot be read or does not match its checksum, while another does.
    DataMirror = "data-mirror",

    // Inside trees of files (`files`).
    /// A tree of files without its root directory.
    RootDir = "root-dir",
    /// The cache of free inode numbers that old kernels kept.
    InodeCache = "inode-cache",
    /// An item of a type that nobody has defined, in a tree of files.
    ItemUnknown = "item-unknown",
    /// Items of an inode without its inode item.
    InodeMissing = "inode-missing",
    /// `nlink` is not the number of names.
    InodeLinks = "inode-links",
    /// An inode or file extent from a transaction that has not happened yet.
    ItemGeneration = "item-generation",
    /// The size of a directory is not that of its names, counted twice.
    DirSize = "dir-size",
    /// A directory with more than one name.
    DirLinks = "dir-links",
    /// Directory entries in an inode that is not a directory.
    DirEntryOdd = "dir-entry-odd",
    /// A name twice in one directory.
    DirEntryTwice = "dir-entry-twice",
    /// An attribute twice.
    XattrTwice = "xattr-twice",
    /// An entry by index without one by name.
    DirItem = "dir-item",
    /// An entry by name without one by index.
    DirIndex = "dir-index",
    /// An entry without the inode's reference to it, or a reference that is wrong by itself.
    InodeRef = "inode-ref",
    /// An inode's reference to an entry that is not there.
    DirEntry = "dir-entry",
    /// An entry that leads to no inode.
    DirEntryDangling = "dir-entry-dangling",
    /// An entry of another type than its inode, or with a type that says that its name is encrypted.
    DirEntryType = "dir-entry-type",
    /// Directories that lie in each other and not below the root directory.
    DirRing = "dir-ring",
    /// An inode without names that is no orphan.
    OrphanMissing = "orphan-missing",
    /// An orphan item of an inode that has names, or does not exist.
    OrphanStale = "orphan-stale",
    /// Two file extents overlap.
    FileExtentOverlap = "file-extent-overlap",
    /// A file extent of an inode that has no contents.
    FileExtentOdd = "file-extent-odd",
    /// An inline extent that is empty or too long, or `ram_bytes` that is less than what is used of an extent.
    FileExtentLength = "file-extent-length",
    /// Compressed extents in a file without checksums.
    FileCompressed = "file-compressed",
    /// Flags that this type of file cannot have.
    InodeFlags = "inode-flags",
    /// `nbytes` is not the sum of the file extents.
    FileBytes = "file-bytes",
    /// A part of a file without file extent, on a volume whose holes need one.
    FileHole = "file-hole",
    /// The size of a symbolic link is not that of its target.
    SymlinkSize = "symlink-size",
    /// A file with verity without its descriptor, or verity items on an inode that cannot have verity.
    Verity = "verity",

    // Between trees: root, UUID, quota and log trees (`files`).
    /// A ROOT_BACKREF without its ROOT_REF.
    RootRef = "root-ref",
    /// A ROOT_REF without its ROOT_BACKREF, or with another one.
    RootBackref = "root-backref",
    /// A reference between subvolumes of which one does not exist.
    RootRefDangling = "root-ref-dangling",
    /// A ROOT_REF without the directory entry that it names.
    RootEntry = "root-entry",
    /// A subvolume that is in no other, or a top level that is deleted.
    RootUnreachable = "root-unreachable",
    /// Subvolumes that lie in each other and not below the top level.
    RootRing = "root-ring",
    /// A subvolume whose root directory should be another inode.
    RootDirid = "root-dirid",
    /// A deleted subvolume that will not be cleaned up.
    RootOrphanMissing = "root-orphan-missing",
    /// An orphan item of the root tree for a subvolume that does not exist.
    RootOrphanStale = "root-orphan-stale",
    /// The default subvolume is not there.
    DefaultSubvol = "default-subvol",
    /// A version-1 cache of free space without its file.
    SpaceCache = "space-cache",
    /// A subvolume that is not found by its uuid.
    UuidMissing = "uuid-missing",
    /// A uuid that leads to a subvolume with another uuid, or to none.
    UuidStale = "uuid-stale",
    /// The status item of quota is missing, of another version or transaction, or lacks what simple quota needs.
    QgroupStatus = "qgroup-status",
    /// A subvolume without quota group, or a group with one of its two items only.
    QgroupItem = "qgroup-item",
    /// A relation of quota groups that is recorded from one side only, leads to a missing group, or does not lead
    /// upwards.
    QgroupRelation = "qgroup-relation",
    /// The numbers of a quota group are not what its subvolumes use.
    QgroupNumbers = "qgroup-numbers",
    /// A log of a subvolume that does not exist.
    LogRoot = "log-root",
    /// A logged range of a directory that ends before it begins.
    LogRange = "log-range",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
