//! The on-disk structures, byte for byte: names in CamelCase, and fields, are those of the UAPI header
//! `linux/btrfs_tree.h`. All are unaligned and little-endian; every size is asserted here at compile time.
//!
//! What follows some of them (names, stripes, inline references) has no fixed length; the owned forms in the
//! neighbouring modules (`Chunk`, `DirEntry`, `ExtentRecord` …) read and write those.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DiskKey;
use crate::error::Corruption;

/// Declares on-disk structs with all the derives they need and their size, which is asserted.
macro_rules! on_disk {
    ($($(#[$doc:meta])* $size:literal $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        #[allow(missing_docs, reason = "fields carry the names of the UAPI header, which documents them")]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> $name { zerocopy::FromZeros::new_zeroed() }
        }

        impl $name {
            /// The structure that `bytes` are, all of them.
            pub fn parse(bytes: &[u8]) -> Result<&$name, Corruption> {
                <$name>::ref_from_bytes(bytes).map_err(|_| {
                    Corruption::new(stringify!($name), "length in bytes", bytes.len(), size_of::<$name>())
                })
            }

            /// The structure at the start of `bytes`: of items that readers do not require to end with it.
            pub fn parse_start(bytes: &[u8]) -> Result<&$name, Corruption> {
                $name::parse_prefix(bytes).map(|(structure, _)| structure)
            }

            /// The structure at the start of `bytes`, and the rest.
            pub fn parse_prefix(bytes: &[u8]) -> Result<(&$name, &[u8]), Corruption> {
                <$name>::ref_from_prefix(bytes).map_err(|_| {
                    Corruption::new(stringify!($name), "length in bytes", bytes.len(), concat!("at least ", $size))
                })
            }
        }
    )* };
}

/// A UUID on disk, in the order of its text form.
pub type DiskUuid = [u8; 16];

on_disk! {
    /// The head of every tree block.
    101 Header {
        csum: [u8; 32], fsid: DiskUuid, bytenr: U64, flags: U64, chunk_tree_uuid: DiskUuid, generation: U64, owner: U64,
        nritems: U32, level: u8,
    }
    /// One item of a leaf: its key, and the place of its data, counted from the end of the header (`struct
    /// btrfs_item`).
    25 DiskItem { key: DiskKey, offset: U32, size: U32, }
    /// One child of a node.
    33 KeyPtr { key: DiskKey, blockptr: U64, generation: U64, }

    /// A device of the volume.
    98 DevItem {
        devid: U64, total_bytes: U64, bytes_used: U64, io_align: U32, io_width: U32, sector_size: U32, r#type: U64,
        generation: U64, start_offset: U64, dev_group: U32, seek_speed: u8, bandwidth: u8, uuid: DiskUuid, fsid: DiskUuid,
    }
    /// One stripe of a chunk.
    32 Stripe { devid: U64, offset: U64, dev_uuid: DiskUuid, }
    /// A chunk, without its stripes, which follow (`struct btrfs_chunk` holds the first of them).
    48 ChunkItem {
        length: U64, owner: U64, stripe_len: U64, r#type: U64, io_align: U32, io_width: U32, sector_size: U32, num_stripes: U16,
        sub_stripes: U16,
    }
    /// A part of a device that belongs to a chunk.
    48 DevExtent { chunk_tree: U64, chunk_objectid: U64, chunk_offset: U64, length: U64, chunk_tree_uuid: DiskUuid, }
    /// A block group: its type and profile, and how much of it is used.
    24 BlockGroupItem { used: U64, chunk_objectid: U64, flags: U64, }
    /// The same on a volume with a remap tree.
    36 BlockGroupItemV2 {
        used: U64, chunk_objectid: U64, flags: U64,
        /// Bytes in it that belong to addresses of other groups, which were remapped to it.
        remap_bytes: U64,
        /// How many IDENTITY_REMAP items it has.
        identity_remap_count: U32,
    }
    /// Where the bytes of a REMAP's key are now; in a REMAP_BACKREF: what they were remapped from.
    8 RemapItem { address: U64, }

    /// The head of an extent's record; inline references follow.
    24 ExtentItem { refs: U64, generation: U64, flags: U64, }
    /// First key and level of a tree block, in extent items that are not skinny.
    18 TreeBlockInfo { key: DiskKey, level: u8, }
    /// A reference of a file extent to a data extent.
    28 ExtentDataRef { root: U64, objectid: U64, offset: U64, count: U32, }
    /// A reference to a data extent by a leaf that is shared.
    4 SharedDataRef { count: U32, }
    /// The head of an inline reference: the type determines what follows.
    9 ExtentInlineRef { r#type: u8, offset: U64, }
    /// The subvolume that a data extent is accounted to (simple quota).
    8 ExtentOwnerRef { root_id: U64, }

    /// A time.
    12 Timespec { sec: U64, nsec: U32, }
    /// An inode.
    160 InodeItem {
        generation: U64, transid: U64, size: U64, nbytes: U64, block_group: U64, nlink: U32, uid: U32, gid: U32, mode: U32,
        rdev: U64, flags: U64, sequence: U64, reserved: [U64; 4], atime: Timespec, ctime: Timespec, mtime: Timespec,
        otime: Timespec,
    }
    /// A name of an inode, in its parent's order; the name follows.
    10 InodeRef { index: U64, name_len: U16, }
    /// A name of an inode with many names; the name follows.
    18 InodeExtref { parent_objectid: U64, index: U64, name_len: U16, }
    /// A directory entry or an extended attribute; name and data follow.
    30 DirItem { location: DiskKey, transid: U64, data_len: U16, name_len: U16, r#type: u8, }
    /// A range of directory indexes that a log tree is complete for.
    8 DirLogItem { end: U64, }
    /// The head of a file extent; inline data follows, or what [`FileExtentItem`] has more.
    21 FileExtentHead { generation: U64, ram_bytes: U64, compression: u8, encryption: u8, other_encoding: U16, r#type: u8, }
    /// A file extent that is not inline.
    53 FileExtentItem {
        generation: U64, ram_bytes: U64, compression: u8, encryption: u8, other_encoding: U16, r#type: u8, disk_bytenr: U64,
        disk_num_bytes: U64, offset: U64, num_bytes: U64,
    }

    /// The root of a tree.
    439 RootItem {
        inode: InodeItem, generation: U64, root_dirid: U64, bytenr: U64, byte_limit: U64, bytes_used: U64, last_snapshot: U64,
        flags: U64, refs: U32, drop_progress: DiskKey, drop_level: u8, level: u8,
        /// Equal to `generation`, or else all that follows is stale.
        generation_v2: U64,
        uuid: DiskUuid, parent_uuid: DiskUuid, received_uuid: DiskUuid, ctransid: U64, otransid: U64, stransid: U64,
        rtransid: U64, ctime: Timespec, otime: Timespec, stime: Timespec, rtime: Timespec, reserved: [U64; 8],
    }
    /// A link between a subvolume and the directory that it is in; the name follows.
    18 RootRef { dirid: U64, sequence: U64, name_len: U16, }

    /// How a block group's free space is recorded.
    8 FreeSpaceInfo { extent_count: U32, flags: U32, }
    /// The head of a version-1 free-space cache.
    41 FreeSpaceHeader { location: DiskKey, generation: U64, num_entries: U64, num_bitmaps: U64, }

    /// The filters of a balance for one kind of block group.
    136 DiskBalanceArgs {
        profiles: U64,
        /// Either a maximum in 64 bits, or minimum and maximum in 32 each.
        usage: U64,
        devid: U64, pstart: U64, pend: U64, vstart: U64, vend: U64, target: U64, flags: U64,
        /// Either a maximum in 64 bits, or minimum and maximum in 32 each.
        limit: U64,
        stripes_min: U32, stripes_max: U32, unused: [U64; 6],
    }
    /// A balance under way.
    448 BalanceItem { flags: U64, data: DiskBalanceArgs, meta: DiskBalanceArgs, sys: DiskBalanceArgs, unused: [U64; 4], }
    /// Error counts of a device: write, read, flush, corruption, generation.
    40 DevStatsItem { values: [U64; 5], }
    /// A device replacement under way or done.
    72 DevReplaceItem {
        src_devid: U64, cursor_left: U64, cursor_right: U64, cont_reading_from_srcdev_mode: U64, replace_state: U64,
        time_started: U64, time_stopped: U64, num_write_errors: U64, num_uncorrectable_read_errors: U64,
    }

    /// The state of quota; `enable_gen` follows with simple quota.
    32 QgroupStatusItem { version: U64, generation: U64, flags: U64, rescan: U64, }
    /// What a quota group uses.
    40 QgroupInfoItem { generation: U64, rfer: U64, rfer_cmpr: U64, excl: U64, excl_cmpr: U64, }
    /// What a quota group may use.
    40 QgroupLimitItem { flags: U64, max_rfer: U64, max_excl: U64, rsv_rfer: U64, rsv_excl: U64, }

    /// The size of a file's verity descriptor.
    25 VerityDescriptorItem { size: U64, reserved: [U64; 2], encryption: u8, }
    /// What that descriptor begins with; the signature follows (`struct fsverity_descriptor` of the kernel's documentation of fs-verity).
    256 VerityDescriptor {
        version: u8, hash_algorithm: u8, log_blocksize: u8, salt_size: u8, sig_size: U32, data_size: U64, root_hash: [u8; 64],
        salt: [u8; 32], reserved: [[u8; 16]; 9],
    }
    /// One stripe of a raid-stripe-tree extent (`struct btrfs_raid_stride`).
    16 RaidStride { devid: U64, physical: U64, }

    /// The roots of an earlier transaction, kept in the superblock.
    168 RootBackup {
        tree_root: U64, tree_root_gen: U64, chunk_root: U64, chunk_root_gen: U64, extent_root: U64, extent_root_gen: U64,
        fs_root: U64, fs_root_gen: U64, dev_root: U64, dev_root_gen: U64, csum_root: U64, csum_root_gen: U64, total_bytes: U64,
        bytes_used: U64, num_devices: U64, unused_64: [U64; 4], tree_root_level: u8, chunk_root_level: u8,
        extent_root_level: u8, fs_root_level: u8, dev_root_level: u8, csum_root_level: u8, unused_8: [u8; 10],
    }
    /// The superblock: the root of everything. Mirrors are at [`SUPER_OFFSETS`](crate::SUPER_OFFSETS) of every device.
    4096 SuperBlock {
        csum: [u8; 32], fsid: DiskUuid, bytenr: U64, flags: U64, magic: [u8; 8], generation: U64, root: U64, chunk_root: U64,
        log_root: U64, __unused_log_root_transid: U64, total_bytes: U64, bytes_used: U64, root_dir_objectid: U64,
        num_devices: U64, sectorsize: U32, nodesize: U32, __unused_leafsize: U32, stripesize: U32, sys_chunk_array_size: U32,
        chunk_root_generation: U64, compat_flags: U64, compat_ro_flags: U64, incompat_flags: U64, csum_type: U16,
        root_level: u8, chunk_root_level: u8, log_root_level: u8, dev_item: DevItem, label: [u8; 256], cache_generation: U64,
        uuid_tree_generation: U64, metadata_uuid: DiskUuid, nr_global_roots: U64, remap_root: U64,
        remap_root_generation: U64, remap_root_level: u8, reserved: [u8; 199],
        sys_chunk_array: [u8; 2048], super_roots: [RootBackup; 4], padding: [u8; 565],
    }
}

/// The bytes of a root item in the form that ends before `generation_v2`, as very old kernels wrote it.
pub const ROOT_ITEM_SHORT_LEN: usize = 239;

const _: () = assert!(std::mem::offset_of!(RootItem, generation_v2) == ROOT_ITEM_SHORT_LEN);
const _: () = assert!(std::mem::offset_of!(SuperBlock, csum_type) == 0xc4);
const _: () = assert!(std::mem::offset_of!(SuperBlock, dev_item) == 0xc9);
const _: () = assert!(std::mem::offset_of!(SuperBlock, label) == 0x12b);
const _: () = assert!(std::mem::offset_of!(SuperBlock, sys_chunk_array) == 0x32b);
const _: () = assert!(std::mem::offset_of!(SuperBlock, super_roots) == 0xb2b);
const _: () = assert!(std::mem::offset_of!(FileExtentItem, disk_bytenr) == size_of::<FileExtentHead>());

impl Timespec {
    /// Seconds since 1970, negative before it.
    pub fn seconds(&self) -> i64 {
        self.sec.get().cast_signed()
    }

    /// A time from seconds since 1970 and nanoseconds (below 10⁹).
    pub fn new(sec: i64, nsec: u32) -> Timespec {
        Timespec { sec: sec.cast_unsigned().into(), nsec: nsec.into() }
    }
}
