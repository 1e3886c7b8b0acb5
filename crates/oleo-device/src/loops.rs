//! Loop devices (loop(4)) that serve as the source of a mount of an image file.
//!
//! The kernel treats a FUSE mount whose source is a block device as it treats other file systems on block devices: it passes
//! sync(2) and syncfs(2) on to the server, and umount(2) waits for the server. An image file has no block device, so
//! [`LoopDevice::attach`] makes one. (1) It takes the number of a free loop device; (2) it attaches the file to it, which
//! fails if another process was faster, and then it starts again; (3) it opens the device for reading, because a kernel
//! that protects mounted devices refuses to mount one that a process has open for writing.
//!
//! Invariants: nothing is read or written through the device. It shows the first [`LEN`] bytes of the file, so programs that
//! search block devices for file systems find none on it, and a file that grows makes no difference.
//! Locks: none. Crash: the kernel detaches the file when the last opening of the device is closed, that of a mount included.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};

const CONTROL: &str = "/dev/loop-control";
/// `LOOP_CTL_GET_FREE` of linux/loop.h.
const GET_FREE: Opcode = 0x4c82;
/// `LOOP_CONFIGURE` of linux/loop.h.
const CONFIGURE: Opcode = 0x4c0a;
/// `LO_FLAGS_AUTOCLEAR` of linux/loop.h.
const AUTOCLEAR: u32 = 4;
/// Bytes of the file that the device shows: one block, the least that can be mounted.
pub const LEN: u64 = 4096;
/// How often another process may take the free device first.
const TRIES_MAX: usize = 100;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// A request without argument whose result is the number that the call returns.
struct GetFree;

// SAFETY: LOOP_CTL_GET_FREE takes no argument and changes no memory; its result is the return value of the call.
#[allow(unsafe_code, reason = "rustix has no pattern for an ioctl that returns a number")]
unsafe impl Ioctl for GetFree {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// A loop device with a file attached, which the kernel detaches when the device is neither open nor mounted any more.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a free loop device to a file that this process may read and write.
    ///
    /// # Errors
    /// Those of the system: no loop devices, no permission, none free, or a file system that does not support them.
    pub fn attach(file: &Path) -> io::Result<LoopDevice> {
        let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        let backing = OpenOptions::new().read(true).write(true).open(file)?;
        let mut tries = 1;
        loop {
            match attach_free(&control, &backing, file) {
                Err(e) if is_taken(&e) && tries < TRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    /// The device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether another process attached a file to that device first, or removed the device.
fn is_taken(error: &io::Error) -> bool {
    let taken = [Errno::BUSY, Errno::NXIO, Errno::NODEV];
    error.raw_os_error().is_some_and(|number| taken.contains(&Errno::from_raw_os_error(number)))
}

fn attach_free(control: &File, backing: &File, name: &Path) -> io::Result<LoopDevice> {
    // SAFETY: the argument of the implementation of `Ioctl`. Another driver in the place of loop-control takes no argument
    // of this request, either.
    #[allow(unsafe_code, reason = "rustix has no wrapper for it")]
    let number = unsafe { ioctl::ioctl(control, GetFree) }?;
    let path = PathBuf::from(format!("/dev/loop{number}"));
    let writable = OpenOptions::new().read(true).write(true).open(&path)?;
    let config = ioctl_config(backing, name);
    // SAFETY: LOOP_CONFIGURE reads a `struct loop_config` from the address that `Setter` passes; the setter holds one for the
    // duration of the call.
    #[allow(unsafe_code, reason = "rustix has no wrapper for it")]
    unsafe {
        ioctl::ioctl(&writable, ioctl::Setter::<CONFIGURE, LoopConfig>::new(config))?;
    }
    let open = File::open(&path)?;
    Ok(LoopDevice { path, _open: open })
}

fn ioctl_config(backing: &File, name: &Path) -> LoopConfig {
    let mut file_name = [0; 64];
    // The kernel expects a zero at the end.
    for (to, from) in file_name[..63].iter_mut().zip(name.as_os_str().as_bytes()) {
        *to = *from;
    }
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: LEN,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: AUTOCLEAR,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    LoopConfig { fd: backing.as_raw_fd() as u32, block_size: 0, info, reserved: [0; 8] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device's backing file and size in sectors, as sysfs shows them; `None` if it has none.
    fn shown(device: &Path) -> Option<(PathBuf, u64)> {
        let dir = Path::new("/sys/block").join(device.file_name()?);
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
        let backing = read("loop/backing_file")?.trim_end().into();
        Some((backing, read("size")?.trim().parse().ok()?))
    }

    /// Goal: callers that attach concurrently get devices of their own, and a file is detached with its guard. Method: threads
    /// that attach files of their own; what sysfs shows while they hold the devices.
    #[test]
    fn each_caller_gets_a_device() {
        let scratch = tempfile::tempdir().unwrap();
        if !rustix::process::geteuid().is_root() || !Path::new(CONTROL).exists() {
            eprintln!("skipped: no loop devices");
            return;
        }
        let together = std::sync::Barrier::new(4);
        std::thread::scope(|threads| {
            for n in 0..4 {
                let file = std::fs::canonicalize(scratch.path()).unwrap().join(format!("file-{n}"));
                std::fs::write(&file, [7; 100_000]).unwrap();
                let together = &together;
                threads.spawn(move || {
                    together.wait();
                    let device = LoopDevice::attach(&file).unwrap();
                    assert_eq!(shown(device.path()), Some((file.clone(), LEN / 512)));
                    let path = device.path().to_owned();
                    together.wait();
                    drop(device);
                    // Another process may have attached its file meanwhile, or search the device for a moment.
                    let begun = std::time::Instant::now();
                    while shown(&path).is_some_and(|(backing, _)| backing == file) {
                        assert!(begun.elapsed().as_secs() < 60, "{} stays attached", path.display());
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert!(LoopDevice::attach(&scratch.path().join("none")).is_err());
        assert!(LoopDevice::attach(scratch.path()).is_err());
    }
}
