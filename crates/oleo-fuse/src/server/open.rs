//! Opening and closing, which happens with the kernel's write-back cache only.
//!
//! There write(2) returns before this server has seen the bytes. So what can be refused is refused when a file is opened for
//! writing: in a read-only subvolume, on a volume that has turned read-only (EROFS), on an immutable file and on an append-only
//! one without O_APPEND (EPERM), on one that the format marks as read-only (EACCES). Who has opened a file may write to it until he
//! closes it, as with every file system in the kernel.
//!
//! Files that promise more go past the cache: with the flag `S` every write is durable when it returns, and of an append-only file
//! each write is checked.
//!
//! Locks: `writers`, a leaf.

use oleo::fs::{FileKind, NewKind};
use oleo_format::InodeFlags;
use oleo_fs::InodeRef;
use rustix::fs::OFlags;

use super::{Answer, Errno, Server};
use crate::wire::Reply;
use crate::wire::abi;
use crate::writers::Opened;

impl Server {
    /// Whether the kernel keeps what was written and writes it later.
    pub(crate) fn writes_back(&self) -> bool {
        self.write_back.get().copied().unwrap_or(false)
    }

    pub(super) fn open(&self, node: u64, args: &abi::OpenIn, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        let flags = OFlags::from_bits_retain(args.flags);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        if writes {
            self.may_open_for_writing(&inode)?;
        }
        reply.put(&self.opened(node, &inode, flags)?);
        Ok(())
    }

    /// Refuses what every write would be refused for.
    fn may_open_for_writing(&self, inode: &InodeRef) -> Result<(), Errno> {
        if self.options.read_only || inode.subvol().is_read_only() || self.fs.poisoned_by().is_some() {
            return Err(Errno::EROFS);
        }
        Ok(())
    }

    /// Counts a handle of an inode, and says how the kernel is to use it.
    fn opened(&self, node: u64, inode: &InodeRef, flags: OFlags) -> Result<abi::OpenOut, Errno> {
        let keep = abi::FOPEN_KEEP_CACHE | abi::FOPEN_NOFLUSH;
        if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
            return Ok(abi::OpenOut { fh: Opened::Reads.handle(), open_flags: keep, backing_id: 0 });
        }
        let of = self.fs.attr(inode).flags;
        if of.contains(InodeFlags::READONLY) {
            return Err(Errno::EACCES);
        }
        let takes_away = flags.contains(OFlags::TRUNC) || !flags.contains(OFlags::APPEND);
        if of.contains(InodeFlags::IMMUTABLE) || of.contains(InodeFlags::APPEND) && takes_away {
            return Err(Errno::EPERM);
        }
        let through = of.intersects(InodeFlags::APPEND | InodeFlags::SYNC);
        let opened = if through { Opened::WritesThrough } else { Opened::Writes };
        self.writers.enter(node, opened);
        self.fs.leave_times(inode);
        let open_flags = match opened {
            Opened::WritesThrough => keep | abi::FOPEN_DIRECT_IO,
            Opened::Writes | Opened::Reads => keep,
        };
        Ok(abi::OpenOut { fh: opened.handle(), open_flags, backing_id: 0 })
    }

    pub(super) fn create(
        &self,
        head: &abi::InHeader,
        args: &abi::CreateIn,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answer {
        if FileKind::of_mode(args.mode) != FileKind::File {
            return Err(Errno::EINVAL);
        }
        let (made, _) = self.made(head, name, NewKind::File, args.mode, args.umask)?;
        self.put_created(made, args.flags, reply)
    }

    /// The reply about a file that was made and opened.
    pub(super) fn put_created(&self, made: InodeRef, flags: u32, reply: &mut Reply<'_>) -> Answer {
        let flags = OFlags::from_bits_retain(flags);
        let entry = self.entry(made.clone());
        let open = if self.writes_back() {
            // A new file may be written to whatever flags it has got from its directory.
            self.opened(entry.nodeid, &made, flags | OFlags::APPEND)
        } else {
            let open_flags = abi::FOPEN_KEEP_CACHE | abi::FOPEN_NOFLUSH;
            Ok(abi::OpenOut { fh: Opened::Reads.handle(), open_flags, backing_id: 0 })
        };
        match open {
            Ok(open) => reply.put(&abi::CreateOut { entry, open }),
            Err(errno) => {
                self.nodes.forget(entry.nodeid, 1);
                return Err(errno);
            }
        }
        Ok(())
    }

    pub(super) fn release(&self, node: u64, args: &abi::ReleaseIn) {
        self.writers.leave(node, Opened::of_handle(args.fh));
    }
}
