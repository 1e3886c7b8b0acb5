//! Attributes: lookup, getattr, statx, setattr.

use oleo::fs::{Attr, FileKind, SetAttr, Time};
use oleo_format::InodeFlags;
use oleo_fs::InodeRef;

use super::{Answer, Errno, Server};
use crate::nodes::Nodes;
use crate::options::Atime;
use crate::wire::Reply;
use crate::wire::abi::{self, Fattr};

/// Seconds that names and attributes stay valid: practically for ever. A number of years that the kernel can still add
/// to its clock.
pub(crate) const VALID_SECONDS: u64 = 1 << 28;
/// The unit of `st_blocks`.
const BLOCK: u64 = 512;
/// `STATX_*` of `linux/stat.h`: everything in `struct stat`, and the time of birth.
const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;
/// `STATX_ATTR_*`.
const STATX_COMPRESSED: u64 = 0x4;
const STATX_IMMUTABLE: u64 = 0x10;
const STATX_APPEND: u64 = 0x20;
const STATX_NODUMP: u64 = 0x40;

/// Whether all times that are set are the present: that needs only write permission.
fn touches(valid: Fattr) -> bool {
    valid.contains(Fattr::ATIME) == valid.contains(Fattr::ATIME_NOW)
        && valid.contains(Fattr::MTIME) == valid.contains(Fattr::MTIME_NOW)
}

impl Server {
    fn block_size(&self) -> u32 {
        self.fs.engine().sectorsize()
    }

    /// `st_blocks`: whole sectors, as btrfs shows them, also for a file whose data is inline.
    fn blocks(&self, a: &Attr) -> u64 {
        a.nbytes.next_multiple_of(u64::from(self.block_size())) / BLOCK
    }

    /// An inode's attributes as the protocol has them.
    pub(super) fn wire_attr(&self, a: &Attr) -> abi::Attr {
        abi::Attr {
            ino: self.nodes.number(a.subvol, a.ino),
            size: a.size,
            blocks: self.blocks(a),
            atime: a.atime.sec as u64,
            mtime: a.mtime.sec as u64,
            ctime: a.ctime.sec as u64,
            atimensec: a.atime.nsec,
            mtimensec: a.mtime.nsec,
            ctimensec: a.ctime.nsec,
            mode: a.mode,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev.to_stat(),
            blksize: self.block_size(),
            flags: 0,
        }
    }

    /// Tells the kernel an inode, and counts that.
    pub(super) fn entry(&self, inode: InodeRef) -> abi::EntryOut {
        let known = self.fs.attr(&inode);
        self.entry_with(inode, &known)
    }

    /// The same for a caller that has its attributes.
    pub(super) fn entry_with(&self, inode: InodeRef, known: &Attr) -> abi::EntryOut {
        let attr = self.wire_attr(known);
        let nodeid = self.nodes.enter(inode);
        abi::EntryOut {
            nodeid,
            // Distinguishes, for file handles, inodes that had the same number one after the other. The kernel made the
            // root itself.
            generation: if nodeid == abi::ROOT_ID { 0 } else { known.generation },
            entry_valid: VALID_SECONDS,
            attr_valid: VALID_SECONDS,
            entry_valid_nsec: 0,
            attr_valid_nsec: 0,
            attr,
        }
    }

    /// Looks up what a file handle names: the inode of a number, known to the kernel or not, or its parent directory.
    fn lookup_by_number(&self, node: u64, name: &[u8], reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode_of_number(node)?;
        let found = match name {
            // Nothing is above the root of the mount.
            b".." if node != abi::ROOT_ID => self.fs.parent(&inode).map_err(|e| self.errno("lookup", &e))?,
            _ => Some(inode),
        };
        reply.put(&self.entry(found.ok_or(Errno::ESTALE)?));
        Ok(())
    }

    fn inode_of_number(&self, node: u64) -> Result<InodeRef, Errno> {
        if let Ok(known) = self.inode(node) {
            return Ok(known);
        }
        let (tree, ino) = Nodes::named(node).ok_or(Errno::ESTALE)?;
        let found = self.fs.subvol(tree).and_then(|subvol| self.fs.inode(&subvol, ino)).map_err(|_| Errno::ESTALE)?;
        // It has no name and nobody has it open: it is about to be erased.
        if self.fs.attr(&found).nlink == 0 { Err(Errno::ESTALE) } else { Ok(found) }
    }

    pub(super) fn lookup(&self, dir: u64, name: &[u8], reply: &mut Reply<'_>) -> Answer {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_number(dir, name, reply);
        }
        let dir = self.inode(dir)?;
        match self.fs.lookup_with_attr(&dir, name).map_err(|e| self.errno("lookup", &e))? {
            Some((inode, attr)) => reply.put(&self.entry_with(inode, &attr)),
            // The kernel may cache that the name does not exist.
            None => reply.put(&abi::EntryOut { entry_valid: VALID_SECONDS, ..Default::default() }),
        }
        Ok(())
    }

    fn attr_out(&self, attr: &Attr) -> abi::AttrOut {
        abi::AttrOut { attr_valid: VALID_SECONDS, attr_valid_nsec: 0, dummy: 0, attr: self.wire_attr(attr) }
    }

    pub(super) fn getattr(&self, node: u64, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        reply.put(&self.attr_out(&self.fs.attr(&inode)));
        Ok(())
    }

    pub(super) fn statx(&self, node: u64, args: &abi::StatxIn, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        let a = self.fs.attr(&inode);
        let time = |t: Time| abi::SxTime { tv_sec: t.sec, tv_nsec: t.nsec, reserved: 0 };
        let known = [
            (InodeFlags::COMPRESS, STATX_COMPRESSED),
            (InodeFlags::IMMUTABLE, STATX_IMMUTABLE),
            (InodeFlags::APPEND, STATX_APPEND),
            (InodeFlags::NODUMP, STATX_NODUMP),
        ];
        let attributes = known.iter().filter(|(flag, _)| a.flags.contains(*flag)).map(|(_, bit)| bit).sum();
        let stat = abi::Statx {
            mask: (STATX_BASIC_STATS | STATX_BTIME) & (args.sx_mask | STATX_BASIC_STATS),
            blksize: self.block_size(),
            attributes,
            attributes_mask: known.iter().map(|(_, bit)| bit).sum(),
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            mode: a.mode as u16,
            ino: self.nodes.number(a.subvol, a.ino),
            size: a.size,
            blocks: self.blocks(&a),
            atime: time(a.atime),
            btime: time(a.otime),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: a.rdev.major,
            rdev_minor: a.rdev.minor,
            ..Default::default()
        };
        reply.put(&abi::StatxOut { attr_valid: VALID_SECONDS, attr_valid_nsec: 0, flags: 0, spare: [0; 2], stat });
        Ok(())
    }

    pub(super) fn setattr(&self, node: u64, args: &abi::SetattrIn, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        let valid = Fattr::from_bits_retain(args.valid);
        let has = |flag: Fattr| valid.contains(flag);
        let now = || self.fs.options().clock.now();
        let time = |flag, now_flag, sec: u64, nsec| {
            if has(now_flag) { Some(now()) } else { has(flag).then_some(Time { sec: sec as i64, nsec }) }
        };
        let set = SetAttr::default()
            .mode(has(Fattr::MODE).then_some(args.mode))
            .uid(has(Fattr::UID).then_some(args.uid))
            .gid(has(Fattr::GID).then_some(args.gid))
            .size(has(Fattr::SIZE).then_some(args.size))
            .atime(time(Fattr::ATIME, Fattr::ATIME_NOW, args.atime, args.atimensec))
            .mtime(time(Fattr::MTIME, Fattr::MTIME_NOW, args.mtime, args.mtimensec))
            .ctime(has(Fattr::CTIME).then_some(Time { sec: args.ctime as i64, nsec: args.ctimensec }))
            .otime(None)
            .flags(None)
            .touch(touches(valid))
            .opened(self.keeps_times(valid) && self.writers.may_write(node));
        let mut attr = self.fs.set_attr(&inode, &set).map_err(|e| self.errno("setattr", &e))?;
        if self.strip_after_setattr(&inode, valid, attr.kind).map_err(|e| self.errno("setattr", &e))? {
            attr = self.fs.attr(&inode);
        }
        reply.put(&self.attr_out(&attr));
        Ok(())
    }

    /// Whether the kernel sets nothing but the times of a file that it has kept.
    fn keeps_times(&self, valid: Fattr) -> bool {
        self.writes_back() && valid - Fattr::FH == Fattr::MTIME | Fattr::CTIME
    }

    /// Removes the privileges that a change of owner or size takes from a file; whether it looked.
    fn strip_after_setattr(&self, inode: &InodeRef, valid: Fattr, kind: FileKind) -> Result<bool, oleo_fs::FsError> {
        use oleo_fs::Strip;
        let owner = valid.intersects(Fattr::UID | Fattr::GID) && kind != FileKind::Dir;
        let strip = if owner {
            Strip::Owner
        } else if valid.contains(Fattr::KILL_SUIDGID) {
            Strip::Content
        } else if valid.contains(Fattr::SIZE) {
            Strip::CapabilityOnly
        } else {
            return Ok(false);
        };
        self.fs.strip_privileges(inode, strip)?;
        Ok(true)
    }

    /// Notes that something was read.
    pub(super) fn touch(&self, inode: &InodeRef, kind: FileKind) {
        use oleo_fs::AtimePolicy;
        let policy = match self.atime {
            Atime::Never => return,
            _ if kind == FileKind::Dir && self.options.no_dir_atime => return,
            Atime::Relative => AtimePolicy::Relatime,
            Atime::Strict => AtimePolicy::Strict,
        };
        self.fs.touch_atime(inode, policy);
    }
}

#[cfg(test)]
mod tests {
    /// Goal: device numbers survive the way to the kernel and back.
    #[test]
    fn device_numbers() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (259, 300), (0xfff, 0xf_ffff)] {
            let rdev = oleo::fs::Rdev { major, minor };
            assert_eq!(oleo::fs::Rdev::of_stat(rdev.to_stat()), rdev);
        }
    }
}
