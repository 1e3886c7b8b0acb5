//! Compressed extents of files on a mount of the kernel's btrfs, as they are stored (`BTRFS_IOC_ENCODED_READ` of linux/btrfs.h).
//! The kernel gives them only to root.

// The call below is a system call without a safe wrapper.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::marker::PhantomData;

use oleo_format::compress::EXTENT_LEN_MAX;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// `f_type` of statfs(2) (`BTRFS_SUPER_MAGIC` of linux/magic.h).
const BTRFS_SUPER_MAGIC: u64 = 0x9123_683e;
/// The letter of btrfs's requests (`BTRFS_IOCTL_MAGIC`), and the number of this one.
const GROUP: u8 = 0x94;
const NUMBER: u8 = 64;

/// `struct iovec`.
#[repr(C)]
struct Place {
    base: *mut u8,
    len: usize,
}

/// `struct btrfs_ioctl_encoded_io_args`.
#[repr(C)]
struct Args {
    places: *const Place,
    places_len: u64,
    offset: i64,
    flags: u64,
    len: u64,
    unencoded_len: u64,
    unencoded_offset: u64,
    compression: u32,
    encryption: u32,
    reserved: [u8; 64],
}

/// The request. The buffer that `args` points to is borrowed.
struct EncodedRead<'b> {
    args: Args,
    buffer: PhantomData<&'b mut [u8]>,
}

// SAFETY: the request is `_IOR` with the size of `Args`, which the kernel reads and writes, with the bytes that `places` names.
unsafe impl Ioctl for EncodedRead<'_> {
    /// Bytes read, and the number of how they are compressed.
    type Output = (usize, u32);
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read::<Args>(GROUP, NUMBER)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.args).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, args: *mut c_void) -> rustix::io::Result<(usize, u32)> {
        // SAFETY: it is what `as_ptr` returned, and any bytes are an `Args`.
        let args = unsafe { &*args.cast::<Args>() };
        Ok((usize::try_from(out).unwrap_or(0), args.compression))
    }
}

/// Reads the extent that is at an offset in a file, as it is stored, and the number of how it is compressed. `None`: the file is not on a mount of the
/// kernel's btrfs, or cannot be read like this.
pub(super) fn read(file: &File, at: u64) -> Option<(u32, Vec<u8>)> {
    // The type's width and sign differ between architectures.
    if rustix::fs::fstatfs(file).ok()?.f_type as u64 & 0xffff_ffff != BTRFS_SUPER_MAGIC {
        return None;
    }
    let mut bytes = vec![0; EXTENT_LEN_MAX];
    let place = Place { base: bytes.as_mut_ptr(), len: bytes.len() };
    let args = Args {
        places: &raw const place,
        places_len: 1,
        offset: i64::try_from(at).ok()?,
        flags: 0,
        len: 0,
        unencoded_len: 0,
        unencoded_offset: 0,
        compression: 0,
        encryption: 0,
        reserved: [0; 64],
    };
    // SAFETY: the file is on btrfs, which knows the request by this number; `place` and `bytes` live as long as the call.
    let (len, compression) = unsafe { ioctl(file, EncodedRead { args, buffer: PhantomData }) }.ok()?;
    bytes.truncate(len);
    Some((compression, bytes))
}
