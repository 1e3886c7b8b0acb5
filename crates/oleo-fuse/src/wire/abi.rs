//! The structs of the FUSE protocol, as `linux/fuse.h` (UAPI, protocol 7.45) lays them out, in the machine's byte order.
//!
//! Names are those of the header in CamelCase without `fuse_`; fields keep theirs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FUSE_KERNEL_VERSION`.
pub const MAJOR: u32 = 7;
/// The newest minor version that this crate knows.
pub const MINOR: u32 = 45;
/// The oldest minor version that is served: 7.31 (Linux 5.4) has everything that the server relies on except copies of
/// large ranges and the second form of clearing privileges, which are negotiated by flag.
pub const MINOR_MIN: u32 = 31;
/// `FUSE_ROOT_ID`.
pub const ROOT_ID: u64 = 1;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident ($size:literal) { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "fields are those of linux/fuse.h")]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// In front of every request.
    InHeader (40) { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    /// In front of every reply and notification.
    OutHeader (16) { len: u32, error: i32, unique: u64 }
    /// The attributes of stat.
    Attr (88) { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32 }
    /// The reply to every request that looks up an inode.
    EntryOut (128) { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr }
    /// Reply of getattr and setattr.
    AttrOut (104) { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    /// Getattr.
    GetattrIn (16) { getattr_flags: u32, dummy: u32, fh: u64 }
    /// Setattr; `valid` says which fields count.
    SetattrIn (88) { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32 }
    /// Mknod.
    MknodIn (16) { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// Mkdir.
    MkdirIn (8) { mode: u32, umask: u32 }
    /// Rename without flags.
    RenameIn (8) { newdir: u64 }
    /// Rename with flags.
    Rename2In (16) { newdir: u64, flags: u32, padding: u32 }
    /// Link.
    LinkIn (8) { oldnodeid: u64 }
    /// Open and opendir.
    OpenIn (8) { flags: u32, open_flags: u32 }
    /// Their reply.
    OpenOut (16) { fh: u64, open_flags: u32, backing_id: i32 }
    /// Create and tmpfile.
    CreateIn (16) { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Their reply.
    CreateOut (144) { entry: EntryOut, open: OpenOut }
    /// Release of what was opened or created.
    ReleaseIn (24) { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// Read, readdir and readdirplus.
    ReadIn (40) { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// Write.
    WriteIn (40) { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    /// Its reply.
    WriteOut (8) { size: u32, padding: u32 }
    /// Reply of statfs.
    StatfsOut (80) { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6] }
    /// Fsync and fsyncdir.
    FsyncIn (16) { fh: u64, fsync_flags: u32, padding: u32 }
    /// Setxattr, the extended form.
    SetxattrIn (16) { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// Getxattr and listxattr.
    GetxattrIn (8) { size: u32, padding: u32 }
    /// Their reply if only the size is requested.
    GetxattrOut (8) { size: u32, padding: u32 }
    /// Init, as far as it is read.
    InitIn (64) { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    /// Its reply.
    InitOut (64) { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] }
    /// Ioctl.
    IoctlIn (32) { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Its reply.
    IoctlOut (16) { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// Fallocate.
    FallocateIn (32) { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// Lseek.
    LseekIn (24) { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Its reply.
    LseekOut (8) { offset: u64 }
    /// Copy of a range, both forms.
    CopyFileRangeIn (56) { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    /// Reply of the form with 64 bits.
    CopyFileRangeOut (8) { bytes_copied: u64 }
    /// In front of a directory entry's name, which is filled up to eight bytes.
    Dirent (24) { ino: u64, off: u64, namelen: u32, r#type: u32 }
    /// Forget.
    ForgetIn (8) { nlookup: u64 }
    /// One of a batch of forgets.
    ForgetOne (16) { nodeid: u64, nlookup: u64 }
    /// In front of them.
    BatchForgetIn (8) { count: u32, dummy: u32 }
    /// Statx.
    StatxIn (24) { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// A time of statx.
    SxTime (16) { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    /// The attributes of statx.
    Statx (256) { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64, size: u64,
        blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32,
        rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14] }
    /// Reply of statx.
    StatxOut (288) { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// Notification that an inode's attributes, and a range of its pages, are out of date.
    NotifyInvalInode (24) { ino: u64, off: i64, len: i64 }
    /// Notification that a name is out of date.
    NotifyInvalEntry (16) { parent: u64, namelen: u32, flags: u32 }
    /// Notification of nodes to forget, whose numbers follow.
    NotifyPrune (16) { count: u32, padding: u32, spare: u64 }
}

/// Numbers of requests (`enum fuse_opcode`).
#[allow(missing_docs, reason = "as in linux/fuse.h")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Codes of notifications (`enum fuse_notify_code`).
pub mod notify {
    /// `FUSE_NOTIFY_INVAL_INODE`.
    pub const INVAL_INODE: i32 = 2;
    /// `FUSE_NOTIFY_INVAL_ENTRY`.
    pub const INVAL_ENTRY: i32 = 3;
    /// `FUSE_NOTIFY_PRUNE`, of protocol 7.45 (Linux 6.18).
    pub const PRUNE: i32 = 9;
}

#[allow(missing_docs, reason = "as in linux/fuse.h")]
mod sets {
    bitflags::bitflags! {
        /// What kernel and server agree on in INIT; the upper half is `flags2`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct InitFlags: u64 {
            const ASYNC_READ = 1 << 0;
            const ATOMIC_O_TRUNC = 1 << 3;
            const EXPORT_SUPPORT = 1 << 4;
            const BIG_WRITES = 1 << 5;
            const DONT_MASK = 1 << 6;
            const IOCTL_DIR = 1 << 11;
            const AUTO_INVAL_DATA = 1 << 12;
            const DO_READDIRPLUS = 1 << 13;
            const READDIRPLUS_AUTO = 1 << 14;
            const ASYNC_DIO = 1 << 15;
            const WRITEBACK_CACHE = 1 << 16;
            const NO_OPEN_SUPPORT = 1 << 17;
            const PARALLEL_DIROPS = 1 << 18;
            const POSIX_ACL = 1 << 20;
            const ABORT_ERROR = 1 << 21;
            const MAX_PAGES = 1 << 22;
            const CACHE_SYMLINKS = 1 << 23;
            const NO_OPENDIR_SUPPORT = 1 << 24;
            const EXPLICIT_INVAL_DATA = 1 << 25;
            const HANDLE_KILLPRIV_V2 = 1 << 28;
            const SETXATTR_EXT = 1 << 29;
            const INIT_EXT = 1 << 30;
            const DIRECT_IO_ALLOW_MMAP = 1 << 36;
            const OVER_IO_URING = 1 << 41;
        }

        /// What of a [`SetattrIn`] counts (`FATTR_*`).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Fattr: u32 {
            const MODE = 1 << 0;
            const UID = 1 << 1;
            const GID = 1 << 2;
            const SIZE = 1 << 3;
            const ATIME = 1 << 4;
            const MTIME = 1 << 5;
            const FH = 1 << 6;
            const ATIME_NOW = 1 << 7;
            const MTIME_NOW = 1 << 8;
            const CTIME = 1 << 10;
            const KILL_SUIDGID = 1 << 11;
        }
    }
}
pub use sets::{Fattr, InitFlags};

/// `FUSE_WRITE_CACHE`: the kernel writes what it has cached; who wrote it, and when, the request does not say.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `FUSE_WRITE_KILL_SUIDGID`: the writer may not keep the set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FUSE_FSYNC_FDATASYNC`.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `FUSE_IOCTL_DIR`: the ioctl is on a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// `FOPEN_DIRECT_IO`: reads and writes through this handle go past the kernel's cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// `FOPEN_KEEP_CACHE`: cached pages of the file stay valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `FOPEN_NOFLUSH`: closing sends nothing.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
