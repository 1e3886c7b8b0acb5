//! What a check finds: how bad, what kind, where, what there is and what there should be.

use std::fmt;

use oleo_format::{Key, Logical, TreeId};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Allowed, or of no consequence, but not as it should be.
    Warning,
    /// The volume contradicts itself: data or space is lost, or will be.
    Error,
}

/// Where something was found: as much as is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The tree.
    pub tree: Option<TreeId>,
    /// The tree block, or the extent.
    pub block: Option<Logical>,
    /// The item's key.
    pub key: Option<Key>,
    /// A device's number, for what lies outside of trees.
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
    /// A tree block that no copy gives whole: checksum, owner, level, order of keys, parent's key or generation.
    Block = "block",

    // Inside trees of files (`files`).
    /// A tree of files without its root directory.
    RootDir = "root-dir",
    /// Items of an inode without its inode item.
    InodeMissing = "inode-missing",
    /// `nlink` is not the number of names.
    InodeLinks = "inode-links",
    /// An inode or file extent from a transaction that has not been yet.
    ItemGeneration = "item-generation",
    /// The size of a directory is not that of its names, counted twice.
    DirSize = "dir-size",
    /// A directory with more than one name.
    DirLinks = "dir-links",
    /// Directory entries in what is no directory.
    DirEntryOdd = "dir-entry-odd",
    /// A name twice in one directory.
    DirEntryTwice = "dir-entry-twice",
    /// An attribute twice.
    XattrTwice = "xattr-twice",
    /// An entry by index without one by name.
    DirItem = "dir-item",
    /// An entry by name without one by index.
    DirIndex = "dir-index",
    /// An entry without the inode's reference to it, or a reference that is wrong in itself.
    InodeRef = "inode-ref",
    /// An inode's reference to an entry that is not there.
    DirEntry = "dir-entry",
    /// An entry that leads to no inode.
    DirEntryDangling = "dir-entry-dangling",
    /// An entry of another type than its inode.
    DirEntryType = "dir-entry-type",
    /// Directories that lie in each other and not below the root directory.
    DirRing = "dir-ring",
    /// An inode without names that is no orphan.
    OrphanMissing = "orphan-missing",
    /// An orphan that is none, or is not there.
    OrphanStale = "orphan-stale",
    /// Two file extents overlap.
    FileExtentOverlap = "file-extent-overlap",
    /// A file extent of what has no contents.
    FileExtentOdd = "file-extent-odd",
    /// `nbytes` is not the sum of the file extents.
    FileBytes = "file-bytes",
    /// A part of a file without file extent, on a volume where holes need them.
    FileHole = "file-hole",
    /// The size of a symbolic link is not that of its target.
    SymlinkSize = "symlink-size",
    /// A file with verity without its descriptor, or what cannot have verity.
    Verity = "verity",

    // Between trees: root, UUID, quota and log trees (`files`).
    /// A ROOT_BACKREF without its ROOT_REF.
    RootRef = "root-ref",
    /// A ROOT_REF without its ROOT_BACKREF, or with another one.
    RootBackref = "root-backref",
    /// A reference between subvolumes of which one is not there.
    RootRefDangling = "root-ref-dangling",
    /// A ROOT_REF without the directory entry that it names.
    RootEntry = "root-entry",
    /// A subvolume that is in no other, or a top level that is deleted.
    RootUnreachable = "root-unreachable",
    /// Subvolumes that lie in each other and not below the top level.
    RootRing = "root-ring",
    /// A subvolume whose root directory should be another inode.
    RootDirid = "root-dirid",
    /// A deleted subvolume that nobody will clean up.
    RootOrphanMissing = "root-orphan-missing",
    /// An orphan of the root tree that is not there.
    RootOrphanStale = "root-orphan-stale",
    /// The default subvolume is not there.
    DefaultSubvol = "default-subvol",
    /// A version-1 cache of free space without its file.
    SpaceCache = "space-cache",
    /// A subvolume that is not found by its uuid.
    UuidMissing = "uuid-missing",
    /// A uuid that leads to a subvolume that has another, or is not there.
    UuidStale = "uuid-stale",
    /// The status of quota is missing or of the wrong length.
    QgroupStatus = "qgroup-status",
    /// A subvolume without quota group, or a group with one of its two items only.
    QgroupItem = "qgroup-item",
    /// A relation of quota groups from one side only, to what is not there, or not upwards.
    QgroupRelation = "qgroup-relation",
    /// The numbers of a quota group are not what its subvolumes use.
    QgroupNumbers = "qgroup-numbers",
    /// A log of what is not there.
    LogRoot = "log-root",
    /// A logged range of a directory that ends before it begins, or overlaps with another.
    LogRange = "log-range",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
