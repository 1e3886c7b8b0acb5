//! System calls that have no safe wrapper: ioctls with a structure, a thread's own umask. And threads that act
//! as another user.
//!
//! Nothing here could be safe elsewhere: an ioctl trusts the type it is given.

#![allow(
    unsafe_code,
    reason = "ioctl and unshare have no safe form; nothing else in these tests is unsafe but mappings"
)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Result;
use rustix::ioctl::{Getter, Setter, Updater, opcode};
use rustix::thread::{UnshareFlags, unshare_unsafe};

pub use crate::common::map::Map;

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
