//! The contents of files: read, write, fallocate, lseek, copies, fsync; and the targets of symbolic links.

use oleo::fs::{CloneRange, FileKind, KeepSize};
use oleo_fs::{FsError, InodeRef, Strip, WriteBy};
use rustix::fs::OFlags;
use rustix::mount::MountFlags;
use zerocopy::FromBytes;

use super::{Answer, Errno, Server};
use crate::wire::Reply;
use crate::wire::abi;

/// `FALLOC_FL_*` of `linux/falloc.h`.
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
/// `SEEK_*` of `linux/fs.h`.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Bytes that one step of a copy holds in memory if it cannot share.
const COPY_STEP: usize = 1 << 20;
/// Bytes that one request copies if it cannot share: the caller requests the rest again, and can be interrupted.
const COPY_MAX: u64 = 64 << 20;

/// Whether a file was opened for going past the kernel's cache.
fn is_direct(flags: u32) -> bool {
    flags & rustix::fs::OFlags::DIRECT.bits() != 0
}

impl Server {
    pub(super) fn readlink(&self, node: u64, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        let target = self.fs.read_link(&inode).map_err(|e| self.errno("readlink", &e))?;
        if !reply.bytes(&target) {
            return Err(Errno::EIO);
        }
        self.touch(&inode, FileKind::Symlink);
        Ok(())
    }

    /// Returns the inode, and notes if the kernel keeps the bytes in its cache. The kernel drops them before a direct
    /// write, but after an asynchronous one it does not drop those that were read meanwhile.
    fn inode_for_io(&self, node: u64, flags: u32) -> Result<InodeRef, Errno> {
        if is_direct(flags) { self.inode(node) } else { self.nodes.get_cached(node).ok_or(Errno::ESTALE) }
    }

    pub(super) fn read(&self, node: u64, args: &abi::ReadIn, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode_for_io(node, args.flags)?;
        reply
            .fill(args.size as usize, |out| self.fs.read(&inode, args.offset, out))
            .map_err(|e| self.errno_of("read", &inode, &e))?;
        self.touch(&inode, FileKind::File);
        Ok(())
    }

    /// Whether the kernel may have pages of a node that this write outdates. Notifying it waits for pages that are
    /// being read.
    fn outdates_pages(&self, node: u64, args: &abi::WriteIn) -> bool {
        is_direct(args.flags) && self.nodes.is_cached(node)
    }

    /// The same for a write request that was not parsed yet.
    pub(super) fn drops_pages(&self, node: u64, args: &[u8]) -> bool {
        abi::WriteIn::read_from_prefix(args).is_ok_and(|(args, _)| self.outdates_pages(node, &args))
    }

    pub(super) fn write(&self, node: u64, args: &abi::WriteIn, data: &[u8], reply: &mut Reply<'_>) -> Answer {
        if args.write_flags & abi::WRITE_CACHE != 0 && self.writes_back() {
            return self.write_cached(node, args, data, reply);
        }
        let inode = self.inode_for_io(node, args.flags)?;
        self.fs.write(&inode, args.offset, data).map_err(|e| self.errno_of("write", &inode, &e))?;
        if self.outdates_pages(node, args) {
            self.forget_pages(node, args.offset, data.len() as u64);
        }
        let strip =
            if args.write_flags & abi::WRITE_KILL_SUIDGID != 0 { Strip::Content } else { Strip::CapabilityOnly };
        self.strip(node, &inode, strip).map_err(|e| self.errno("write", &e))?;
        // After a write of O_SYNC or O_DSYNC through the page cache the kernel sends an fsync of its own, one for all its requests.
        let flags = OFlags::from_bits_retain(args.flags);
        let direct = flags.contains(OFlags::DIRECT);
        if self.options.flags.contains(MountFlags::SYNCHRONOUS) || direct && flags.contains(OFlags::SYNC) {
            self.fs.fsync(&inode).map_err(|e| self.errno("write", &e))?;
        } else if direct && flags.contains(OFlags::DSYNC) {
            self.fs.fdatasync(&inode).map_err(|e| self.errno("write", &e))?;
        }
        reply.put(&abi::WriteOut { size: data.len() as u32, padding: 0 });
        Ok(())
    }

    /// Takes what the kernel has cached. It has stripped privileges at the time of the write, and sets the times itself.
    fn write_cached(&self, node: u64, args: &abi::WriteIn, data: &[u8], reply: &mut Reply<'_>) -> Answer {
        let inode = self.nodes.get_cached(node).ok_or(Errno::ESTALE)?;
        let by = WriteBy::Cache { opened: self.writers.may_write(node) };
        self.fs.write_by(&inode, args.offset, data, by).map_err(|e| {
            let errno = self.errno_of("write", &inode, &e);
            self.unwritten.note(errno);
            errno
        })?;
        reply.put(&abi::WriteOut { size: data.len() as u32, padding: 0 });
        Ok(())
    }

    pub(super) fn fallocate(&self, node: u64, args: &abi::FallocateIn) -> Answer {
        let inode = self.inode(node)?;
        let keep = if args.mode & KEEP_SIZE != 0 { KeepSize::Yes } else { KeepSize::No };
        let (at, len) = (args.offset, args.length);
        let done = match args.mode & !KEEP_SIZE {
            0 => self.fs.preallocate(&inode, at, len, keep),
            PUNCH_HOLE if keep == KeepSize::Yes => self.fs.punch_hole(&inode, at, len),
            ZERO_RANGE => self.fs.zero_range(&inode, at, len, keep),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        done.and_then(|()| self.strip(node, &inode, Strip::Content)).map_err(|e| self.errno("fallocate", &e))
    }

    /// Removes privileges after a change of content. The kernel does not notice that, and would let everybody execute
    /// the file with them until it is notified. That needs no lock in the kernel, so it is done before the reply.
    fn strip(&self, node: u64, inode: &InodeRef, why: Strip) -> Result<(), FsError> {
        if self.fs.strip_privileges(inode, why)? {
            self.forget_attributes(node);
        }
        Ok(())
    }

    pub(super) fn lseek(&self, node: u64, args: &abi::LseekIn, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        // The kernel asks without having written. It holds the inode's lock, so nothing is added meanwhile but through mappings.
        self.write_out_node(node)?;
        let found = match args.whence {
            SEEK_DATA => self.fs.seek_data(&inode, args.offset),
            SEEK_HOLE => self.fs.seek_hole(&inode, args.offset),
            _ => return Err(Errno::EINVAL),
        };
        let offset = found.map_err(|e| self.errno("lseek", &e))?.ok_or(Errno::ENXIO)?;
        reply.put(&abi::LseekOut { offset });
        Ok(())
    }

    pub(super) fn copy_file_range(
        &self,
        node: u64,
        args: &abi::CopyFileRangeIn,
        wide: bool,
        reply: &mut Reply<'_>,
    ) -> Answer {
        if args.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let (src, dst) = (self.inode(node)?, self.inode(args.nodeid_out)?);
        // The narrow form counts in 32 bits.
        let max = if wide { u64::MAX } else { u64::from(u32::MAX) & !u64::from(self.fs.engine().sectorsize() - 1) };
        let range = CloneRange { from: args.off_in, len: args.len.min(max), to: args.off_out };
        let copied = self.copy(&src, &dst, range).map_err(|e| self.errno("copy_file_range", &e))?;
        self.strip(args.nodeid_out, &dst, Strip::Content).map_err(|e| self.errno("copy_file_range", &e))?;
        if wide {
            reply.put(&abi::CopyFileRangeOut { bytes_copied: copied });
        } else {
            reply.put(&abi::WriteOut { size: copied as u32, padding: 0 });
        }
        Ok(())
    }

    /// Shares what can be shared and copies the rest; returns how much of it was done.
    fn copy(&self, src: &InodeRef, dst: &InodeRef, range: CloneRange) -> Result<u64, FsError> {
        let size = self.fs.attr(src).size;
        let len = range.len.min(size.saturating_sub(range.from));
        if len == 0 {
            return Ok(0);
        }
        let sector = u64::from(self.fs.engine().sectorsize());
        let ends_source = range.from + len == size;
        let aligned = range.from.is_multiple_of(sector) && range.to.is_multiple_of(sector);
        if aligned {
            // The last, partial sector can be shared if it ends both files.
            let tail_too = ends_source && range.to + len >= self.fs.attr(dst).size;
            let shared = if tail_too { len } else { len / sector * sector };
            if shared > 0 {
                match self.fs.clone_range(src, dst, &CloneRange { len: shared, ..range }) {
                    Ok(()) => return Ok(shared),
                    // Files with different checksum settings, for example, cannot share.
                    Err(FsError::Invalid(_) | FsError::NotSupported(_)) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        self.copy_bytes(src, dst, CloneRange { len: len.min(COPY_MAX), ..range })
    }

    fn copy_bytes(&self, src: &InodeRef, dst: &InodeRef, range: CloneRange) -> Result<u64, FsError> {
        let mut buffer = vec![0; COPY_STEP.min(range.len as usize)];
        let mut done = 0;
        while done < range.len {
            let want = buffer.len().min((range.len - done) as usize);
            let got = match self.fs.read(src, range.from + done, &mut buffer[..want]) {
                Ok(got) => got,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            if got == 0 {
                break;
            }
            match self.fs.write(dst, range.to + done, &buffer[..got]) {
                Ok(()) => done += got as u64,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    pub(super) fn fsync(&self, node: u64, data_only: bool) -> Answer {
        let inode = self.inode(node)?;
        let done = if data_only { self.fs.fdatasync(&inode) } else { self.fs.fsync(&inode) };
        done.map_err(|e| self.errno("fsync", &e))
    }

    pub(super) fn sync_fs(&self) -> Answer {
        if self.options.read_only {
            return Ok(());
        }
        self.fs.sync().map(drop).map_err(|e| self.errno("syncfs", &e))
    }
}
