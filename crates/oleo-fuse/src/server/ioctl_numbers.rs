//! Numbers and structs of the ioctls, facts of `linux/btrfs.h` and `linux/fs.h`, in the machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `_IOC` of `asm-generic/ioctl.h`.
const fn number(direction: u32, group: u8, number: u8, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (group as u32) << 8 | number as u32
}
const fn none(n: u8) -> u32 {
    number(0, BTRFS, n, 0)
}
const fn write<T>(n: u8) -> u32 {
    number(1, BTRFS, n, size_of::<T>())
}
const fn read<T>(n: u8) -> u32 {
    number(2, BTRFS, n, size_of::<T>())
}
const fn both<T>(n: u8) -> u32 {
    number(3, BTRFS, n, size_of::<T>())
}

/// `BTRFS_IOCTL_MAGIC`.
const BTRFS: u8 = 0x94;

/// Bytes of `struct btrfs_ioctl_vol_args` and its second form: a page.
pub(super) type VolArgs = [u8; 4096];
/// Offset of the name in the first form.
pub(super) const NAME_AT: usize = 8;
/// Offset of the name, or of the number of a subvolume, in the second form.
pub(super) const NAME_AT_V2: usize = 56;
/// Offset of the flags in the second form.
pub(super) const FLAGS_AT_V2: usize = 16;
/// Offset of the length of a list of quota groups in the second form; its address follows.
pub(super) const INHERIT_AT_V2: usize = 24;
/// Bytes of a label.
pub(super) const LABEL_LEN: usize = 256;
/// `BTRFS_VOL_NAME_MAX`.
pub(super) const NAME_MAX: usize = 255;
/// `BTRFS_SUBVOL_RDONLY`.
pub(super) const SUBVOL_RDONLY: u64 = 1 << 1;
/// `BTRFS_SUBVOL_QGROUP_INHERIT`.
pub(super) const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
/// `BTRFS_SUBVOL_SPEC_BY_ID`.
pub(super) const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
/// `BTRFS_MAX_ROOTREF_BUFFER_NUM`.
pub(super) const ROOTREFS_MAX: usize = 255;
/// `BTRFS_DEVICE_PATH_NAME_MAX`.
pub(super) const DEVICE_PATH_LEN: usize = 1024;
/// `BTRFS_INO_LOOKUP_PATH_MAX`.
pub(super) const LOOKUP_PATH_LEN: usize = 4080;
/// `BTRFS_INO_LOOKUP_USER_PATH_MAX`.
pub(super) const LOOKUP_USER_PATH_LEN: usize = 4080 - NAME_MAX - 1;
/// `BTRFS_DEFRAG_RANGE_COMPRESS`.
pub(super) const DEFRAG_COMPRESS: u64 = 1;
/// `BTRFS_BALANCE_STATE_RUNNING`.
pub(super) const BALANCE_RUNNING: u64 = 1;
/// `BTRFS_BALANCE_STATE_PAUSE_REQ`.
pub(super) const BALANCE_PAUSE_REQ: u64 = 1 << 1;
/// `BTRFS_BALANCE_STATE_CANCEL_REQ`.
pub(super) const BALANCE_CANCEL_REQ: u64 = 1 << 2;
/// `BTRFS_BALANCE_RESUME`.
pub(super) const BALANCE_RESUME: u64 = 1 << 4;
/// `BTRFS_IOCTL_DEV_REPLACE_CMD_*`.
pub(super) const REPLACE_START: u64 = 0;
pub(super) const REPLACE_STATUS: u64 = 1;
pub(super) const REPLACE_CANCEL: u64 = 2;
/// `BTRFS_IOCTL_DEV_REPLACE_STATE_*`.
pub(super) const REPLACE_IS_STARTED: u64 = 1;
pub(super) const REPLACE_IS_FINISHED: u64 = 2;
pub(super) const REPLACE_IS_CANCELED: u64 = 3;
pub(super) const REPLACE_IS_SUSPENDED: u64 = 4;
/// `BTRFS_IOCTL_DEV_REPLACE_RESULT_*`.
pub(super) const REPLACE_NOT_STARTED: u64 = 1;
pub(super) const REPLACE_ALREADY_STARTED: u64 = 2;
pub(super) const REPLACE_SCRUB_IN_PROGRESS: u64 = 3;
/// `BTRFS_IOCTL_DEV_REPLACE_CONT_READING_FROM_SRCDEV_MODE_AVOID`.
pub(super) const REPLACE_AVOID_READING: u64 = 1;
/// Offsets of the names in `struct btrfs_ioctl_dev_replace_args` with what a start is, behind command, result, number and mode.
pub(super) const REPLACE_SOURCE_AT: usize = 32;
pub(super) const REPLACE_TARGET_AT: usize = REPLACE_SOURCE_AT + DEVICE_PATH_LEN + 1;
/// `BTRFS_DEV_STATS_RESET`.
pub(super) const DEV_STATS_RESET: u64 = 1;
/// `BTRFS_DEVICE_SPEC_BY_ID`.
pub(super) const DEVICE_SPEC_BY_ID: u64 = 1 << 3;
/// `BTRFS_DEFRAG_RANGE_START_IO`.
pub(super) const DEFRAG_START_IO: u64 = 2;

pub(super) const SNAP_CREATE: u32 = write::<VolArgs>(1);
pub(super) const DEFRAG: u32 = write::<VolArgs>(2);
pub(super) const RESIZE: u32 = write::<VolArgs>(3);
pub(super) const SYNC: u32 = none(8);
pub(super) const ADD_DEV: u32 = write::<VolArgs>(10);
pub(super) const RM_DEV: u32 = write::<VolArgs>(11);
pub(super) const SUBVOL_CREATE: u32 = write::<VolArgs>(14);
pub(super) const SNAP_DESTROY: u32 = write::<VolArgs>(15);
pub(super) const DEFRAG_RANGE: u32 = write::<DefragRange>(16);
pub(super) const TREE_SEARCH: u32 = both::<VolArgs>(17);
pub(super) const INO_LOOKUP: u32 = both::<VolArgs>(18);
pub(super) const DEFAULT_SUBVOL: u32 = write::<u64>(19);
pub(super) const WAIT_SYNC: u32 = write::<u64>(22);
pub(super) const SNAP_CREATE_V2: u32 = write::<VolArgs>(23);
pub(super) const START_SYNC: u32 = read::<u64>(24);
pub(super) const SUBVOL_CREATE_V2: u32 = write::<VolArgs>(24);
pub(super) const SUBVOL_GETFLAGS: u32 = read::<u64>(25);
pub(super) const SUBVOL_SETFLAGS: u32 = write::<u64>(26);
pub(super) const SCRUB_CANCEL: u32 = none(28);
pub(super) const SCRUB_PROGRESS: u32 = both::<ScrubArgs>(29);
pub(super) const DEV_INFO: u32 = both::<VolArgs>(30);
pub(super) const FS_INFO: u32 = read::<FsInfo>(31);
pub(super) const BALANCE_V2: u32 = both::<Balance>(32);
pub(super) const BALANCE_PROGRESS: u32 = read::<Balance>(34);
pub(super) const SET_RECEIVED_SUBVOL: u32 = both::<Received>(37);
pub(super) const GET_DEV_STATS: u32 = both::<DevStats>(52);
pub(super) const DEV_REPLACE: u32 = both::<DevReplace>(53);
pub(super) const RM_DEV_V2: u32 = write::<VolArgs>(58);
pub(super) const GET_FEATURES: u32 = read::<[u64; 3]>(57);
pub(super) const GET_SUBVOL_INFO: u32 = read::<SubvolInfo>(60);
pub(super) const GET_SUBVOL_ROOTREF: u32 = both::<VolArgs>(61);
pub(super) const INO_LOOKUP_USER: u32 = both::<VolArgs>(62);
pub(super) const SNAP_DESTROY_V2: u32 = write::<VolArgs>(63);
pub(super) const GET_FSLABEL: u32 = read::<[u8; LABEL_LEN]>(49);
pub(super) const SET_FSLABEL: u32 = write::<[u8; LABEL_LEN]>(50);
/// `FS_IOC_GETVERSION`.
pub(super) const GETVERSION: u32 = number(2, b'v', 1, 8);
/// `FITRIM`, of a `struct fstrim_range`: start, length, least length.
pub(super) const FITRIM: u32 = number(3, b'X', 121, size_of::<[u64; 3]>());

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident ($size:literal) { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structs! {
    /// `struct btrfs_ioctl_timespec`, with what fills it up.
    Timespec (16) { sec: u64, nsec: u32, padding: u32 }
    /// `struct btrfs_ioctl_defrag_range_args`.
    DefragRange (48) { start: u64, len: u64, flags: u64, extent_thresh: u32, compress_type: u32, unused: [u32; 4] }
    /// `struct btrfs_ioctl_fs_info_args`.
    FsInfo (1024) { max_id: u64, num_devices: u64, fsid: [u8; 16], nodesize: u32, sectorsize: u32, clone_alignment: u32, csum_type: u16,
        csum_size: u16, flags: u64, generation: u64, metadata_uuid: [u8; 16], reserved: [u8; 944] }
    /// `struct btrfs_ioctl_dev_info_args` up to its path, which ends it.
    DevInfo (3072) { devid: u64, uuid: [u8; 16], bytes_used: u64, total_bytes: u64, fsid: [u8; 16], unused: [u64; 377] }
    /// `struct btrfs_ioctl_balance_args`; the filters of each type as on disk.
    Balance (1024) { flags: u64, state: u64, data: [u8; 136], meta: [u8; 136], sys: [u8; 136], expected: u64, considered: u64,
        completed: u64, unused: [u64; 72] }
    /// `struct btrfs_ioctl_received_subvol_args`.
    Received (200) { uuid: [u8; 16], stransid: u64, rtransid: u64, stime: Timespec, rtime: Timespec, flags: u64, reserved: [u64; 16] }
    /// `struct btrfs_ioctl_get_dev_stats`.
    DevStats (1032) { devid: u64, nr_items: u64, flags: u64, values: [u64; 5], unused: [u64; 121] }
    /// `struct btrfs_ioctl_dev_replace_args` with what a status is; the rest is that of a start, and spare.
    DevReplace (2600) { cmd: u64, result: u64, state: u64, progress_1000: u64, time_started: u64, time_stopped: u64,
        num_write_errors: u64, num_uncorrectable_read_errors: u64, rest: [u64; 317] }
    /// `struct btrfs_ioctl_scrub_args`, with `struct btrfs_scrub_progress` in it.
    ScrubArgs (1024) { devid: u64, start: u64, end: u64, flags: u64, data_extents: u64, tree_extents: u64, data_bytes: u64, tree_bytes: u64,
        read_errors: u64, csum_errors: u64, verify_errors: u64, no_csum: u64, csum_discards: u64, super_errors: u64, malloc_errors: u64,
        uncorrectable_errors: u64, corrected_errors: u64, last_physical: u64, unverified_errors: u64, unused: [u64; 109] }
    /// `struct btrfs_ioctl_get_subvol_info_args`.
    SubvolInfo (504) { treeid: u64, name: [u8; 256], parent_id: u64, dirid: u64, generation: u64, flags: u64, uuid: [u8; 16],
        parent_uuid: [u8; 16], received_uuid: [u8; 16], ctransid: u64, otransid: u64, stransid: u64, rtransid: u64, ctime: Timespec,
        otime: Timespec, stime: Timespec, rtime: Timespec, reserved: [u64; 8] }
    /// `struct btrfs_ioctl_search_key`.
    SearchKey (104) { tree_id: u64, min_objectid: u64, max_objectid: u64, min_offset: u64, max_offset: u64, min_transid: u64,
        max_transid: u64, min_type: u32, max_type: u32, nr_items: u32, unused: u32, unused_more: [u64; 4] }
    /// `struct btrfs_ioctl_search_header`.
    SearchHeader (32) { transid: u64, objectid: u64, offset: u64, item_type: u32, len: u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the numbers are those that programs use. Method: some that strace shows.
    #[test]
    fn as_programs_have_them() {
        assert_eq!(SNAP_CREATE_V2, 0x5000_9417);
        assert_eq!(SUBVOL_CREATE, 0x5000_940e);
        assert_eq!(SNAP_DESTROY, 0x5000_940f);
        assert_eq!(TREE_SEARCH, 0xd000_9411);
        assert_eq!(INO_LOOKUP, 0xd000_9412);
        assert_eq!(DEFAULT_SUBVOL, 0x4008_9413);
        assert_eq!(SUBVOL_GETFLAGS, 0x8008_9419);
        assert_eq!(FS_INFO, 0x8400_941f);
        assert_eq!(DEV_INFO, 0xd000_941e);
        assert_eq!(SET_RECEIVED_SUBVOL, 0xc0c8_9425);
        assert_eq!(GET_SUBVOL_INFO, 0x81f8_943c);
        assert_eq!(GET_FSLABEL, 0x8100_9431);
        assert_eq!(BALANCE_V2, 0xc400_9420);
        assert_eq!(BALANCE_PROGRESS, 0x8400_9422);
        assert_eq!(DEV_REPLACE, 0xca28_9435);
        assert_eq!(SCRUB_PROGRESS, 0xc400_941d);
        assert_eq!(ADD_DEV, 0x5000_940a);
        assert_eq!(RM_DEV_V2, 0x5000_943a);
        assert_eq!(GETVERSION, 0x8008_7601);
        assert_eq!(FITRIM, 0xc018_5879);
    }
}
