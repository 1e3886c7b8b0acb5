//! System calls that have no safe wrapper: mappings, ioctls with a structure, a thread's own umask. And threads that act
//! as another user.
//!
//! Nothing here could be safe elsewhere: a mapping is memory that others change, an ioctl trusts the type it is given.

#![allow(unsafe_code, reason = "mmap, ioctl and unshare have no safe form; nothing else in these tests is unsafe")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Result;
use rustix::ioctl::{Getter, Setter, Updater, opcode};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A file mapped for reading and writing.
pub struct Map {
    at: *mut std::ffi::c_void,
    len: usize,
}

impl Map {
    /// Maps `len` bytes from `offset`; `MapFlags::SHARED` or `PRIVATE`.
    pub fn new(file: impl AsFd, offset: u64, len: usize, flags: MapFlags) -> Result<Map> {
        Map::with(file, offset, len, flags, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same with other rights.
    pub fn with(file: impl AsFd, offset: u64, len: usize, flags: MapFlags, rights: ProtFlags) -> Result<Map> {
        // SAFETY: the kernel chooses an address that nothing else uses.
        let at = unsafe { mmap(ptr::null_mut(), len, rights, flags, file, offset) }?;
        Ok(Map { at, len })
    }

    fn check(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "outside of the mapping");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.at.cast::<u8>().add(at) }
    }

    /// A copy of a part.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let from = self.check(at, len);
        let mut out = vec![0; len];
        // SAFETY: `from` is the start of `len` mapped bytes, `out` is as long; tests map nothing that is beyond the file's
        // last page, so that reading does not fault.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) };
        out
    }

    /// Changes a part.
    pub fn write(&self, at: usize, data: &[u8]) {
        let to = self.check(at, data.len());
        // SAFETY: as in `read`; no Rust reference to the mapped bytes exists.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }

    /// Writes changed pages to the file and waits.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: exactly the mapping.
        unsafe { msync(self.at, self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; it is not used afterwards.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FsXattr {
    pub xflags: u32,
    pub extsize: u32,
    pub nextents: u32,
    pub projid: u32,
    pub cowextsize: u32,
    pub pad: [u8; 8],
}

const FSGETXATTR: u32 = opcode::read::<FsXattr>(b'X', 31);
const FSSETXATTR: u32 = opcode::write::<FsXattr>(b'X', 32);

/// FS_IOC_FSGETXATTR.
pub fn fsgetxattr(file: impl AsFd) -> Result<FsXattr> {
    // SAFETY: the number and the structure belong together.
    unsafe { rustix::ioctl::ioctl(file, Getter::<FSGETXATTR, FsXattr>::new()) }
}

/// FS_IOC_FSSETXATTR.
pub fn fssetxattr(file: impl AsFd, value: FsXattr) -> Result<()> {
    // SAFETY: the number and the structure belong together.
    unsafe { rustix::ioctl::ioctl(file, Setter::<FSSETXATTR, FsXattr>::new(value)) }
}

/// `struct file_dedupe_range` of linux/fs.h with one target.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DedupeRange {
    from: u64,
    len: u64,
    targets: u16,
    reserved: [u16; 3],
    target: i64,
    to: u64,
    done: u64,
    status: i32,
    reserved2: u32,
}

/// The number is made with the length of the part before the targets.
const FIDEDUPERANGE: u32 = opcode::read_write::<[u64; 3]>(0x94, 54);

/// FIDEDUPERANGE: how many bytes at the start of both files have been made one.
pub fn dedupe(from: impl AsFd, to: impl AsFd, len: u64) -> Result<u64> {
    let mut range = DedupeRange {
        from: 0,
        len,
        targets: 1,
        reserved: [0; 3],
        target: to.as_fd().as_raw_fd().into(),
        to: 0,
        done: 0,
        status: 0,
        reserved2: 0,
    };
    // SAFETY: the number and the structure belong together, and the structure has room for the one target it names.
    unsafe { rustix::ioctl::ioctl(from, Updater::<FIDEDUPERANGE, DedupeRange>::new(&mut range)) }?;
    if range.status < 0 { Err(rustix::io::Errno::from_raw_os_error(-range.status)) } else { Ok(range.done) }
}

/// Who acts: user, group, further groups.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
}

/// Some user that is not root.
pub const ALICE: Who<'static> = Who { uid: 60_001, gid: 60_001, groups: &[] };
/// Another one.
pub const BOB: Who<'static> = Who { uid: 60_002, gid: 60_002, groups: &[] };

/// Runs something as another user, in a thread of its own: to the kernel, credentials belong to threads. Gone from
/// root, the thread has no capability left.
pub fn act_as<R: Send>(who: Who<'_>, act: impl FnOnce() -> R + Send) -> R {
    let run = || {
        let gid = Gid::from_raw(who.gid);
        let groups: Vec<Gid> = who.groups.iter().map(|g| Gid::from_raw(*g)).collect();
        rustix::thread::set_thread_groups(&groups).expect("root may set groups");
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may set its group");
        let uid = Uid::from_raw(who.uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may become anyone");
        act()
    };
    std::thread::scope(|s| s.spawn(run).join()).unwrap_or_else(|e| std::panic::resume_unwind(e))
}

/// Runs something with another umask, in a thread that does not share it.
pub fn with_umask<R: Send>(mask: u32, act: impl FnOnce() -> R + Send) -> R {
    let run = || {
        // SAFETY: CLONE_FS takes nothing from other threads but the umask and the working directory.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.expect("a thread may have its own umask");
        rustix::process::umask(Mode::from_raw_mode(mask));
        act()
    };
    std::thread::scope(|s| s.spawn(run).join()).unwrap_or_else(|e| std::panic::resume_unwind(e))
}
