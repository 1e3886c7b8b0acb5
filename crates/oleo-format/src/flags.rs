//! The bit fields of the format. Undefined bits are kept as they are (`from_bits_retain`).

use bitflags::bitflags;

use crate::structs::SuperBlock;

bitflags! {
    /// What a chunk and its block group are for, and how the chunk is spread over devices.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    pub struct BlockGroupFlags: u64 {
        /// File contents.
        const DATA = 1 << 0;
        /// The chunk tree.
        const SYSTEM = 1 << 1;
        /// All other trees.
        const METADATA = 1 << 2;
        /// Striped, one copy.
        const RAID0 = 1 << 3;
        /// Two copies on two devices.
        const RAID1 = 1 << 4;
        /// Two copies that may share a device.
        const DUP = 1 << 5;
        /// Striped over pairs of devices.
        const RAID10 = 1 << 6;
        /// Striped, one parity.
        const RAID5 = 1 << 7;
        /// Striped, two parities.
        const RAID6 = 1 << 8;
        /// Three copies.
        const RAID1C3 = 1 << 9;
        /// Four copies.
        const RAID1C4 = 1 << 10;
        /// The remap tree says where its bytes are.
        const REMAPPED = 1 << 11;
        /// The remap tree itself.
        const METADATA_REMAP = 1 << 12;
        const _ = !0;
    }
}

impl BlockGroupFlags {
    /// The bits of the type of contents.
    pub const TYPE_MASK: BlockGroupFlags = BlockGroupFlags::DATA
        .union(BlockGroupFlags::SYSTEM)
        .union(BlockGroupFlags::METADATA)
        .union(BlockGroupFlags::METADATA_REMAP);
    /// The bits that only exist with the remap tree.
    pub const OF_REMAP_TREE: BlockGroupFlags = BlockGroupFlags::REMAPPED.union(BlockGroupFlags::METADATA_REMAP);
    /// The bits of the profile; none of them is `single`.
    pub const PROFILE_MASK: BlockGroupFlags = BlockGroupFlags::RAID0
        .union(BlockGroupFlags::RAID1)
        .union(BlockGroupFlags::DUP)
        .union(BlockGroupFlags::RAID10)
        .union(BlockGroupFlags::RAID56_MASK)
        .union(BlockGroupFlags::RAID1C3)
        .union(BlockGroupFlags::RAID1C4);
    /// The profiles with parity.
    pub const RAID56_MASK: BlockGroupFlags = BlockGroupFlags::RAID5.union(BlockGroupFlags::RAID6);
    /// The profiles of plain copies on different devices.
    pub const RAID1_MASK: BlockGroupFlags =
        BlockGroupFlags::RAID1.union(BlockGroupFlags::RAID1C3).union(BlockGroupFlags::RAID1C4);
    /// `single`, in balance filters only (`BTRFS_AVAIL_ALLOC_BIT_SINGLE`).
    pub const AVAIL_SINGLE: BlockGroupFlags = BlockGroupFlags::from_bits_retain(1 << 48);

    /// The bits of the type of contents.
    pub fn types(self) -> BlockGroupFlags {
        self & BlockGroupFlags::TYPE_MASK
    }

    /// The bits of the profile.
    pub fn profile(self) -> BlockGroupFlags {
        self & BlockGroupFlags::PROFILE_MASK
    }

    /// Whether the remap tree says where its bytes are.
    pub fn is_remapped(self) -> bool {
        self.contains(BlockGroupFlags::REMAPPED)
    }

    /// Whether data and metadata share the group.
    pub fn is_mixed(self) -> bool {
        self.contains(BlockGroupFlags::DATA | BlockGroupFlags::METADATA)
    }

    /// The name of the profile as commands show it: `single`, `RAID1` …
    pub fn profile_name(self) -> &'static str {
        match self.profile() {
            BlockGroupFlags::RAID0 => "RAID0",
            BlockGroupFlags::RAID1 => "RAID1",
            BlockGroupFlags::DUP => "DUP",
            BlockGroupFlags::RAID10 => "RAID10",
            BlockGroupFlags::RAID5 => "RAID5",
            BlockGroupFlags::RAID6 => "RAID6",
            BlockGroupFlags::RAID1C3 => "RAID1C3",
            BlockGroupFlags::RAID1C4 => "RAID1C4",
            p if p.is_empty() => "single",
            _ => "unknown",
        }
    }
}

bitflags! {
    /// Flags of a tree block's header.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct HeaderFlags: u64 {
        /// The block has been written out.
        const WRITTEN = 1 << 0;
        /// The block was rewritten by relocation: its generation alone does not show that it is unshared.
        const RELOC = 1 << 1;
        /// Backref revision 1, "mixed": the top byte of the flags. Every block since 2009 has it.
        const MIXED_BACKREF_REV = 1 << 56;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of the superblock.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SuperFlags: u64 {
        /// Written out.
        const WRITTEN = 1 << 0;
        /// Unused.
        const RELOC = 1 << 1;
        /// Errors were detected.
        const ERROR = 1 << 2;
        /// A seed: read only, other devices are written instead.
        const SEEDING = 1 << 32;
        /// A metadata dump.
        const METADUMP = 1 << 33;
        /// A metadata dump, second format.
        const METADUMP_V2 = 1 << 34;
        /// A change of the fsid was cut short.
        const CHANGING_FSID = 1 << 35;
        /// A change of the metadata uuid was cut short.
        const CHANGING_FSID_V2 = 1 << 36;
        /// A conversion to or from the block-group tree was cut short.
        const CHANGING_BG_TREE = 1 << 38;
        /// A change of the checksum type was cut short, in data.
        const CHANGING_DATA_CSUM = 1 << 39;
        /// A change of the checksum type was cut short, in metadata.
        const CHANGING_META_CSUM = 1 << 40;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of an extent item.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ExtentFlags: u64 {
        /// File contents.
        const DATA = 1 << 0;
        /// A tree block.
        const TREE_BLOCK = 1 << 1;
        /// A tree block whose references to others name it, not its tree.
        const FULL_BACKREF = 1 << 8;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of an inode.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InodeFlags: u64 {
        /// No checksums of data.
        const NODATASUM = 1 << 0;
        /// Data is overwritten in place.
        const NODATACOW = 1 << 1;
        /// Read only.
        const READONLY = 1 << 2;
        /// Never compress.
        const NOCOMPRESS = 1 << 3;
        /// Has extents beyond its size.
        const PREALLOC = 1 << 4;
        /// Written synchronously.
        const SYNC = 1 << 5;
        /// May not change.
        const IMMUTABLE = 1 << 6;
        /// May only grow.
        const APPEND = 1 << 7;
        /// Not to be dumped.
        const NODUMP = 1 << 8;
        /// Access time stays.
        const NOATIME = 1 << 9;
        /// Directory is written synchronously.
        const DIRSYNC = 1 << 10;
        /// Compress.
        const COMPRESS = 1 << 11;
        /// The inode inside a root item has been initialised.
        const ROOT_ITEM_INIT = 1 << 31;
        /// Protected by verity (a read-only compatible flag: the upper half of the field).
        const RO_VERITY = 1 << 32;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of a root item.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RootFlags: u64 {
        /// The subvolume is read only.
        const SUBVOL_RDONLY = 1 << 0;
        /// The subvolume is being deleted.
        const SUBVOL_DEAD = 1 << 48;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of a free-space info item.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct FreeSpaceFlags: u32 {
        /// The group's free space is in bitmaps, not extents.
        const USING_BITMAPS = 1 << 0;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of the quota status.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct QgroupStatusFlags: u64 {
        /// Quota is on.
        const ON = 1 << 0;
        /// A rescan runs.
        const RESCAN = 1 << 1;
        /// Numbers are known to be wrong.
        const INCONSISTENT = 1 << 2;
        /// Simple quota.
        const SIMPLE_MODE = 1 << 3;
        const _ = !0;
    }
}

bitflags! {
    /// Which limits of a quota group are set.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct QgroupLimitFlags: u64 {
        /// `max_rfer` counts.
        const MAX_RFER = 1 << 0;
        /// `max_excl` counts.
        const MAX_EXCL = 1 << 1;
        /// `rsv_rfer` counts.
        const RSV_RFER = 1 << 2;
        /// `rsv_excl` counts.
        const RSV_EXCL = 1 << 3;
        /// Referenced bytes, compressed.
        const RFER_CMPR = 1 << 4;
        /// Exclusive bytes, compressed.
        const EXCL_CMPR = 1 << 5;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of a balance.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct BalanceFlags: u64 {
        /// Data groups take part.
        const DATA = 1 << 0;
        /// System groups take part.
        const SYSTEM = 1 << 1;
        /// Metadata groups take part.
        const METADATA = 1 << 2;
        /// Less redundancy is allowed.
        const FORCE = 1 << 3;
        /// Was resumed.
        const RESUME = 1 << 4;
        const _ = !0;
    }
}

bitflags! {
    /// Which filters of a balance count.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct BalanceArgsFlags: u64 {
        /// `profiles`.
        const PROFILES = 1 << 0;
        /// `usage` as a maximum.
        const USAGE = 1 << 1;
        /// `devid`.
        const DEVID = 1 << 2;
        /// `pstart` and `pend`.
        const DRANGE = 1 << 3;
        /// `vstart` and `vend`.
        const VRANGE = 1 << 4;
        /// `limit` as a maximum.
        const LIMIT = 1 << 5;
        /// `limit` as a range.
        const LIMIT_RANGE = 1 << 6;
        /// `stripes_min` and `stripes_max`.
        const STRIPES_RANGE = 1 << 7;
        /// `target`.
        const CONVERT = 1 << 8;
        /// Skip groups that have the target profile already.
        const SOFT = 1 << 9;
        /// `usage` as a range.
        const USAGE_RANGE = 1 << 10;
        const _ = !0;
    }
}

bitflags! {
    /// Features without which a volume cannot even be read.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Incompat: u64 {
        /// Backrefs of both kinds.
        const MIXED_BACKREF = 1 << 0;
        /// The default subvolume is not the top level.
        const DEFAULT_SUBVOL = 1 << 1;
        /// Data and metadata share block groups.
        const MIXED_GROUPS = 1 << 2;
        /// Something is compressed with LZO.
        const COMPRESS_LZO = 1 << 3;
        /// Something is compressed with zstd.
        const COMPRESS_ZSTD = 1 << 4;
        /// Tree blocks larger than a page.
        const BIG_METADATA = 1 << 5;
        /// Extended inode references.
        const EXTENDED_IREF = 1 << 6;
        /// RAID5 or RAID6.
        const RAID56 = 1 << 7;
        /// Extent items of tree blocks have the level in their key.
        const SKINNY_METADATA = 1 << 8;
        /// Holes in files have no items.
        const NO_HOLES = 1 << 9;
        /// Tree blocks carry `metadata_uuid`, not `fsid`.
        const METADATA_UUID = 1 << 10;
        /// RAID1 of three or four copies.
        const RAID1C34 = 1 << 11;
        /// Zoned devices.
        const ZONED = 1 << 12;
        /// Several extent trees.
        const EXTENT_TREE_V2 = 1 << 13;
        /// The raid-stripe tree.
        const RAID_STRIPE_TREE = 1 << 14;
        /// Simple quota.
        const SIMPLE_QUOTA = 1 << 16;
        /// Block groups are remapped instead of moved.
        const REMAP_TREE = 1 << 17;
        const _ = !0;
    }
}

bitflags! {
    /// Features without which a volume may be read but not written.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct CompatRo: u64 {
        /// Free space is in a tree.
        const FREE_SPACE_TREE = 1 << 0;
        /// … and that tree is right.
        const FREE_SPACE_TREE_VALID = 1 << 1;
        /// Some file has verity.
        const VERITY = 1 << 2;
        /// Block groups are in a tree of their own.
        const BLOCK_GROUP_TREE = 1 << 3;
        const _ = !0;
    }
}

/// The feature sets of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Nobody has defined any of these yet.
    pub compat: u64,
    /// Needed for writing.
    pub compat_ro: CompatRo,
    /// Needed for reading.
    pub incompat: Incompat,
}

impl Features {
    /// The features of a superblock, unknown bits included.
    pub fn of(sb: &SuperBlock) -> Features {
        Features {
            compat: sb.compat_flags.get(),
            compat_ro: CompatRo::from_bits_retain(sb.compat_ro_flags.get()),
            incompat: Incompat::from_bits_retain(sb.incompat_flags.get()),
        }
    }

    /// Incompat features that are not supported, by name; empty if the volume can be read.
    pub fn unreadable(&self) -> Vec<String> {
        names_of(self.incompat.difference(Incompat::READABLE).iter_names(), self.incompat.bits() & !Incompat::NAMED)
    }

    /// Features that prevent writing, by name; empty if the volume can be written as far as features go.
    pub fn unwritable(&self) -> Vec<String> {
        let mut names = self.unreadable();
        names.extend(names_of(std::iter::empty::<(&str, CompatRo)>(), self.compat_ro.bits() & !CompatRo::NAMED));
        names
    }

    /// Whether extent items of tree blocks are METADATA_ITEMs.
    pub fn skinny_metadata(&self) -> bool {
        self.incompat.contains(Incompat::SKINNY_METADATA)
    }
    /// Whether holes in files have no items.
    pub fn no_holes(&self) -> bool {
        self.incompat.contains(Incompat::NO_HOLES)
    }
    /// Whether inodes may have extended references.
    pub fn extended_iref(&self) -> bool {
        self.incompat.contains(Incompat::EXTENDED_IREF)
    }
    /// Whether data and metadata share block groups.
    pub fn mixed_groups(&self) -> bool {
        self.incompat.contains(Incompat::MIXED_GROUPS)
    }
    /// Whether block groups are in a tree of their own.
    pub fn block_group_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
    }
    /// Whether block groups are remapped instead of moved.
    pub fn remap_tree(&self) -> bool {
        self.incompat.contains(Incompat::REMAP_TREE)
    }
    /// Whether free space is in a tree.
    pub fn free_space_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }
}

impl Incompat {
    /// All that have a name.
    const NAMED: u64 = 0x3_7fff;
    /// Those that reading and writing take care of.
    pub const READABLE: Incompat = Incompat::from_bits_retain(0xfff).union(Incompat::SIMPLE_QUOTA);
}

impl CompatRo {
    /// All that have a name, which writing takes care of.
    const NAMED: u64 = 0xf;
}

/// The lower-case names of features, then the numbers of bits without a name.
fn names_of<F>(named: impl Iterator<Item = (&'static str, F)>, unknown: u64) -> Vec<String> {
    let bits = (0..64).filter(|bit| unknown >> bit & 1 == 1).map(|bit| format!("unknown feature bit {bit}"));
    named.map(|(name, _)| name.to_lowercase().replace('_', "-")).chain(bits).collect()
}

/// What a directory entry points at (`BTRFS_FT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileType {
    /// Unknown.
    Unknown = 0,
    /// A regular file.
    RegFile = 1,
    /// A directory, or a subvolume.
    Dir = 2,
    /// A character device.
    ChrDev = 3,
    /// A block device.
    BlkDev = 4,
    /// A named pipe.
    Fifo = 5,
    /// A socket.
    Sock = 6,
    /// A symbolic link.
    Symlink = 7,
    /// Not a file: an extended attribute.
    Xattr = 8,
}

impl InodeFlags {
    /// All read-only compatible flags, known or not.
    pub const RO_COMPAT: InodeFlags = InodeFlags::from_bits_retain(0xffff_ffff << 32);
}

impl FileType {
    /// A bit beside the type: the name is encrypted (`BTRFS_FT_ENCRYPTED`), which a feature of the volume says, too.
    pub(crate) const ENCRYPTED: u8 = 0x80;

    /// The type with this number.
    pub fn from_disk(value: u8) -> Option<FileType> {
        Some(match value & !Self::ENCRYPTED {
            0 => FileType::Unknown,
            1 => FileType::RegFile,
            2 => FileType::Dir,
            3 => FileType::ChrDev,
            4 => FileType::BlkDev,
            5 => FileType::Fifo,
            6 => FileType::Sock,
            7 => FileType::Symlink,
            8 => FileType::Xattr,
            _ => return None,
        })
    }

    /// The type of a file with this `st_mode`.
    pub fn of_mode(mode: u32) -> FileType {
        match mode & 0o170_000 {
            0o100_000 => FileType::RegFile,
            0o040_000 => FileType::Dir,
            0o020_000 => FileType::ChrDev,
            0o060_000 => FileType::BlkDev,
            0o010_000 => FileType::Fifo,
            0o140_000 => FileType::Sock,
            0o120_000 => FileType::Symlink,
            _ => FileType::Unknown,
        }
    }

    /// Its number on disk.
    pub fn to_disk(self) -> u8 {
        self as u8
    }
}
