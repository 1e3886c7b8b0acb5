//! The agreement with the kernel at the start.

use rustix::mount::MountFlags;

use super::Server;
use crate::transport::IO_LEN_MAX;
use crate::wire::abi::{self, InitFlags};

/// EPROTO of Linux.
const EPROTO: i32 = 71;
/// Requests that the kernel has under way in the background (read-ahead, direct I/O) at a time.
const BACKGROUND_MAX: u16 = 64;
/// Of these, how many make it hold back read-ahead.
const CONGESTION: u16 = 48;
/// Bytes of a page of the protocol's page counts; the kernel rounds by its own page size.
const PAGE: usize = 4096;

/// Features that are used if the kernel has them.
///
/// Listings always return the inodes, too (no READDIRPLUS_AUTO): loading an inode beside its neighbours takes about a
/// microsecond, and the look-up that it saves the kernel some twenty. With AUTO only the first part of a listing would,
/// since programs like find list a whole directory before they look up its first file. While the kernel knows nearly
/// too many inodes, listings return names only (`prune`).
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::IOCTL_DIR)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::NO_OPEN_SUPPORT)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT);

/// What cannot be done without.
const NEEDED: InitFlags = InitFlags::DONT_MASK
    .union(InitFlags::NO_OPEN_SUPPORT)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::SETXATTR_EXT);

impl Server {
    /// The reply to INIT, or an errno if the kernel is too old. `uring`: requests may come through io_uring.
    ///
    /// # Errors
    /// EPROTO.
    pub fn agree(&self, init: &abi::InitIn, uring: bool) -> Result<abi::InitOut, i32> {
        let offered = InitFlags::from_bits_retain(u64::from(init.flags) | u64::from(init.flags2) << 32);
        if init.minor < abi::MINOR_MIN || !offered.contains(NEEDED) {
            (self.log)(&format!("this kernel's FUSE (protocol {}.{}) lacks what is needed", init.major, init.minor));
            return Err(EPROTO);
        }
        let mut agreed = offered & WANTED;
        if self.options.follow.is_some() {
            // Files are opened and closed, so that it is known whose moment is in use; listings bring no inodes.
            agreed -= InitFlags::NO_OPEN_SUPPORT | InitFlags::NO_OPENDIR_SUPPORT | InitFlags::DO_READDIRPLUS;
        }
        if uring {
            agreed |= offered & InitFlags::OVER_IO_URING;
        }
        let write_back = self.options.writeback_cache
            && !self.options.read_only
            && !self.options.flags.contains(MountFlags::SYNCHRONOUS)
            && offered.contains(InitFlags::WRITEBACK_CACHE);
        if write_back {
            agreed |= offered & (InitFlags::WRITEBACK_CACHE | InitFlags::DIRECT_IO_ALLOW_MMAP);
        }
        let _ = self.write_back.set(write_back);
        Ok(abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR.min(init.minor),
            max_readahead: init.max_readahead.max(IO_LEN_MAX as u32),
            flags: agreed.bits() as u32,
            flags2: (agreed.bits() >> 32) as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTION,
            max_write: IO_LEN_MAX as u32,
            time_gran: 1,
            max_pages: (IO_LEN_MAX / PAGE) as u16,
            ..Default::default()
        })
    }
}
