//! Inode flags as chattr and lsattr know them, beside the flags of the format.

use oleo_format::InodeFlags;
use oleo_fs::InodeRef;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Errno, Server};

/// `FS_*_FL` of `linux/fs.h` beside the flag of the format.
const FLAGS: [(u32, InodeFlags); 8] = [
    (0x0000_0004, InodeFlags::COMPRESS),
    (0x0000_0008, InodeFlags::SYNC),
    (0x0000_0010, InodeFlags::IMMUTABLE),
    (0x0000_0020, InodeFlags::APPEND),
    (0x0000_0040, InodeFlags::NODUMP),
    (0x0000_0080, InodeFlags::NOATIME),
    (0x0000_0400, InodeFlags::NOCOMPRESS),
    (0x0001_0000, InodeFlags::DIRSYNC),
];
/// `FS_NOCOW_FL`, which stands for two flags of the format.
const NOCOW: u32 = 0x0080_0000;
/// `FS_XFLAG_*` of `linux/fs.h` beside `FS_*_FL`.
const XFLAGS: [(u32, u32); 5] = [
    (0x0000_0008, 0x0000_0010),
    (0x0000_0010, 0x0000_0020),
    (0x0000_0020, 0x0000_0008),
    (0x0000_0040, 0x0000_0080),
    (0x0000_0080, 0x0000_0040),
];
/// Flags that only a privileged user may change.
const PRIVILEGED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// `struct fsxattr` of `linux/fs.h`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Fsxattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

fn to_fs(flags: InodeFlags) -> u32 {
    let nocow = if flags.contains(InodeFlags::NODATACOW) { NOCOW } else { 0 };
    FLAGS.iter().filter(|(_, f)| flags.contains(*f)).map(|(bit, _)| bit).sum::<u32>() | nocow
}

impl Server {
    /// `FS_IOC_GETFLAGS`.
    pub(super) fn fs_flags(&self, inode: &InodeRef) -> u32 {
        to_fs(self.fs.attr(inode).flags)
    }

    /// `FS_IOC_SETFLAGS`. The kernel has checked that the caller owns the file.
    pub(super) fn set_fs_flags(&self, inode: &InodeRef, want: u32, privileged: bool) -> Result<(), Errno> {
        let known = FLAGS.iter().map(|(bit, _)| bit).sum::<u32>() | NOCOW;
        if want & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let old = self.fs.attr(inode).flags;
        let mut new = old;
        for (bit, flag) in FLAGS {
            new.set(flag, want & bit != 0);
        }
        if (want & NOCOW != 0) != old.contains(InodeFlags::NODATACOW) {
            let file = self.fs.attr(inode).kind == oleo::FileKind::File;
            new.set(InodeFlags::NODATACOW, want & NOCOW != 0);
            // A file that is overwritten in place cannot have checksums; a directory only hands the wish down.
            if file {
                new.set(InodeFlags::NODATASUM, want & NOCOW != 0);
            }
        }
        if (old ^ new).intersects(PRIVILEGED) && !privileged {
            return Err(Errno::EPERM);
        }
        if new == old {
            return Ok(());
        }
        self.set_format_flags(inode, new)
    }

    fn set_format_flags(&self, inode: &InodeRef, flags: InodeFlags) -> Result<(), Errno> {
        let set = oleo::SetAttr { flags: Some(flags), ..Default::default() };
        self.fs.set_attr(inode, &set).map(drop).map_err(|e| self.errno("setflags", &e))
    }

    /// `FS_IOC_FSGETXATTR`.
    pub(super) fn fsxattr(&self, inode: &InodeRef) -> Fsxattr {
        let flags = self.fs_flags(inode);
        let xflags = XFLAGS.iter().filter(|(_, fl)| flags & fl != 0).map(|(x, _)| x).sum();
        Fsxattr { xflags, ..Default::default() }
    }

    /// `FS_IOC_FSSETXATTR`: what it has no bits for stays.
    pub(super) fn set_fsxattr(&self, inode: &InodeRef, want: &Fsxattr, privileged: bool) -> Result<(), Errno> {
        let known: u32 = XFLAGS.iter().map(|(x, _)| x).sum();
        if want.xflags & !known != 0 || want.extsize != 0 || want.projid != 0 || want.cowextsize != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut flags = self.fs_flags(inode);
        for (x, fl) in XFLAGS {
            flags = if want.xflags & x != 0 { flags | fl } else { flags & !fl };
        }
        self.set_fs_flags(inode, flags, privileged)
    }
}
