//! Inode flags as chattr and lsattr know them, beside the flags of the format.

use oleo::control::Invalidation;
use oleo::fs::{Compression, FileKind, SetAttr, XattrMode};
use oleo_format::InodeFlags;
use oleo_fs::{COMPRESSION, FsError, InodeRef};
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
/// `FS_COMPR_FL`, `FS_NOCOMP_FL`.
const COMPR: u32 = 0x0000_0004;
const NOCOMP: u32 = 0x0000_0400;
/// `FS_NOCOW_FL`, which means two flags of the format.
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
    pub(super) fn set_fs_flags(&self, inode: &InodeRef, want: u32, privileged: &dyn Fn() -> bool) -> Result<(), Errno> {
        let known = FLAGS.iter().map(|(bit, _)| bit).sum::<u32>() | NOCOW;
        let both = |a, b| want & a != 0 && want & b != 0;
        if want & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if both(COMPR, NOCOMP) || both(COMPR, NOCOW) {
            return Err(Errno::EINVAL);
        }
        let attr = self.fs.attr(inode);
        let old = attr.flags;
        let mut new = old;
        for (bit, flag) in FLAGS {
            new.set(flag, want & bit != 0);
        }
        let is_file = attr.kind == FileKind::File;
        // On a file that has bytes already the wish is passed over, as btrfs does.
        if !is_file || attr.size == 0 {
            new.set(InodeFlags::NODATACOW, want & NOCOW != 0);
            // A file that is overwritten in place cannot have checksums; a directory only hands the wish down.
            if is_file && (old ^ new).contains(InodeFlags::NODATACOW) {
                new.set(InodeFlags::NODATASUM, want & NOCOW != 0);
            }
        }
        if (old ^ new).intersects(PRIVILEGED) && !privileged() {
            return Err(Errno::EPERM);
        }
        let set = SetAttr::default().flags(Some(new));
        self.set_compression(inode, old, new)
            .and_then(|()| self.fs.set_attr(inode, &set))
            .map_err(|e| self.errno("setflags", &e))?;
        // The kernel does not look for changes that an ioctl made.
        self.invalidate(&[Invalidation::Inode { tree: inode.tree(), ino: inode.ino() }]);
        Ok(())
    }

    /// The property goes with the flag: it names what the flag would choose.
    fn set_compression(&self, inode: &InodeRef, old: InodeFlags, new: InodeFlags) -> Result<(), FsError> {
        if !(old ^ new).intersects(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS) {
            return Ok(());
        }
        if new.contains(InodeFlags::COMPRESS) {
            let algorithm = match self.options.compress.map(|c| c.algorithm) {
                Some(Compression::Lzo) => &b"lzo"[..],
                Some(Compression::Zstd) => b"zstd",
                _ => b"zlib",
            };
            return self.fs.xattr_set(inode, COMPRESSION, algorithm, XattrMode::Any);
        }
        match self.fs.xattr_remove(inode, COMPRESSION) {
            Err(FsError::NoData) => Ok(()),
            done => done,
        }
    }

    /// `FS_IOC_FSGETXATTR`.
    pub(super) fn fsxattr(&self, inode: &InodeRef) -> Fsxattr {
        let flags = self.fs_flags(inode);
        let xflags = XFLAGS.iter().filter(|(_, fl)| flags & fl != 0).map(|(x, _)| x).sum();
        Fsxattr { xflags, ..Default::default() }
    }

    /// `FS_IOC_FSSETXATTR`: flags for which it has no bits stay.
    pub(super) fn set_fsxattr(
        &self,
        inode: &InodeRef,
        want: &Fsxattr,
        privileged: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
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
