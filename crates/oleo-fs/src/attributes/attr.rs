//! What a file is and what is known of it: kinds, device numbers, attributes, and what a new inode starts with.

use oleo_format::{FileType, Ino, InodeFlags, TreeId};

use crate::FsError;
use crate::options::Time;

/// The set-group-id bit.
pub const MODE_SETGID: u32 = 0o2000;

/// What kind of file an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum FileKind {
    File,
    Dir,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
    /// A type that no file has, as only a broken image can say.
    Unknown,
}

impl FileKind {
    /// The kind that the type bits of a mode say.
    pub fn of_mode(mode: u32) -> FileKind {
        FileKind::of_type(FileType::of_mode(mode))
    }

    fn of_type(t: FileType) -> FileKind {
        match t {
            FileType::RegFile => FileKind::File,
            FileType::Dir => FileKind::Dir,
            FileType::Symlink => FileKind::Symlink,
            FileType::ChrDev => FileKind::CharDevice,
            FileType::BlkDev => FileKind::BlockDevice,
            FileType::Fifo => FileKind::Fifo,
            FileType::Sock => FileKind::Socket,
            FileType::Unknown | FileType::Xattr => FileKind::Unknown,
        }
    }

    pub(crate) fn of_disk(value: u8) -> Result<FileKind, FsError> {
        let t = FileType::from_disk(value)
            .ok_or_else(|| FsError::corrupt("directory entry", "", "type", value, "a file type, 0 to 8"))?;
        Ok(FileKind::of_type(t))
    }

    pub(crate) fn to_disk(self) -> FileType {
        match self {
            FileKind::File => FileType::RegFile,
            FileKind::Dir => FileType::Dir,
            FileKind::Symlink => FileType::Symlink,
            FileKind::CharDevice => FileType::ChrDev,
            FileKind::BlockDevice => FileType::BlkDev,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Sock,
            FileKind::Unknown => FileType::Unknown,
        }
    }

    /// The type bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => 0o100_000,
            FileKind::Dir => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::Unknown => 0,
        }
    }
}

/// A device number. The format stores it as the kernel holds it: 20 bits of minor below the major.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rdev {
    /// Which driver.
    pub major: u32,
    /// Which of its devices; below 2²⁰.
    pub minor: u32,
}

impl Rdev {
    const MINOR_BITS: u32 = 20;

    /// The number in an inode item.
    pub fn to_disk(self) -> u64 {
        u64::from(self.major) << Self::MINOR_BITS | u64::from(self.minor)
    }

    /// From the number in an inode item.
    pub fn of_disk(rdev: u64) -> Rdev {
        let minor = rdev & ((1 << Self::MINOR_BITS) - 1);
        Rdev { major: (rdev >> Self::MINOR_BITS) as u32, minor: minor as u32 }
    }

    /// The number in 32 bits, as the kernel returns it to programs, and as streams have it: 12 bits of major, 20 of minor; what
    /// does not fit is cut off.
    pub fn to_stat(self) -> u32 {
        (self.minor & 0xff) | (self.major & 0xfff) << 8 | (self.minor & 0xf_ff00) << 12
    }

    /// From those 32 bits.
    pub fn of_stat(dev: u32) -> Rdev {
        Rdev { major: (dev >> 8) & 0xfff, minor: (dev & 0xff) | ((dev >> 12) & 0xf_ff00) }
    }
}

/// Everything that `stat` returns, and what the format has beyond it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// The subvolume.
    pub subvol: TreeId,
    /// The number within it.
    pub ino: Ino,
    /// What kind of file.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; 1 for a directory.
    pub nlink: u32,
    /// Bytes of content.
    pub size: u64,
    /// Bytes that the extents stand for, holes excluded, before compression.
    pub nbytes: u64,
    /// Of a device.
    pub rdev: Rdev,
    /// `BTRFS_INODE_*`.
    pub flags: InodeFlags,
    /// Counts changes.
    pub sequence: u64,
    /// The transaction that made it.
    pub generation: u64,
    /// The transaction that last changed it.
    pub transid: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub otime: Time,
}

/// What to change of an inode; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Cuts or extends a file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<Time>,
    /// Last change of the inode; the clock's time when any other thing changes and this is not given.
    pub ctime: Option<Time>,
    /// Creation.
    pub otime: Option<Time>,
    /// Inode flags that users may set (see [`InodeFlags`]).
    pub flags: Option<InodeFlags>,
    /// The times given are the present, not chosen by the user: allowed for append-only files.
    pub touch: bool,
    /// The times given are those of changes through a handle that was opened when the flags allowed them, so the flags are not asked.
    pub opened: bool,
}

oleo_format::setters!(SetAttr {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<Time>,
    mtime: Option<Time>,
    ctime: Option<Time>,
    otime: Option<Time>,
    flags: Option<InodeFlags>,
    touch: bool,
    opened: bool,
});

impl SetAttr {
    /// Sets all four times.
    pub fn all_times(self, times: Times) -> SetAttr {
        let Times { atime, mtime, ctime, otime } = times;
        SetAttr { atime: Some(atime), mtime: Some(mtime), ctime: Some(ctime), otime: Some(otime), ..self }
    }
}

/// The four times of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub otime: Time,
}

impl Times {
    /// All four the same.
    pub fn all(t: Time) -> Times {
        Times { atime: t, mtime: t, ctime: t, otime: t }
    }
}

/// What a new inode is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewKind<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A character device.
    CharDevice(Rdev),
    /// A block device.
    BlockDevice(Rdev),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl NewKind<'_> {
    /// What kind of file that is.
    pub fn kind(&self) -> FileKind {
        match self {
            NewKind::File => FileKind::File,
            NewKind::Dir => FileKind::Dir,
            NewKind::Symlink(_) => FileKind::Symlink,
            NewKind::CharDevice(_) => FileKind::CharDevice,
            NewKind::BlockDevice(_) => FileKind::BlockDevice,
            NewKind::Fifo => FileKind::Fifo,
            NewKind::Socket => FileKind::Socket,
        }
    }
}

/// What a new inode starts with. The parent's inherited things (set-group-id, flags, compression, default ACL) come
/// on top, unless `plain` says otherwise.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewInode<'a> {
    /// What it is.
    pub kind: NewKind<'a>,
    /// Permission bits.
    pub mode: u32,
    /// Permission bits that the caller wants taken away, unless the directory has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands down its own.
    pub gid: u32,
    /// Times, or the clock's.
    pub times: Option<Times>,
    /// A number from `reserve_inos`, or the next.
    pub ino: Option<Ino>,
    /// Takes owner, group and mode as they are, without the directory's set-group-id bit and default ACL: for copies
    /// of files that were somewhere else before.
    pub plain: bool,
    /// Takes over nothing at all from the directory, not even compression and copy-on-write flags: for copies of which everything
    /// is given.
    pub bare: bool,
}

oleo_format::setters!(NewInode<'a> {
    umask: u32,
    uid: u32,
    gid: u32,
    times: Option<Times>,
    ino: Option<Ino>,
    plain: bool,
    bare: bool,
});

impl<'a> NewInode<'a> {
    /// An inode of this kind and mode that belongs to root.
    pub fn new(kind: NewKind<'a>, mode: u32) -> NewInode<'a> {
        NewInode { kind, mode, umask: 0, uid: 0, gid: 0, times: None, ino: None, plain: false, bare: false }
    }
}
