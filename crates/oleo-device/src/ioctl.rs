//! Two ioctls that an Oleo mount answers about a file on it: where its control socket is, and which inode of which tree
//! the file is.
//!
//! They are Oleo's own, of fixed sizes, and the kernel passes them on to a FUSE server. They are used only on files of
//! FUSE file systems: there the kernel copies exactly the number of bytes encoded in the request's number, whatever the
//! server is, and no driver can take the number for something else.

// The two calls below are system calls without a safe wrapper.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// The letter of our requests: 'O'.
const GROUP: u8 = 0x4f;
/// Bytes of a socket's path, the closing zero included.
pub const SOCKET_PATH_LEN: usize = 256;

/// Asks a mount for the path of its control socket: `[u8; 256]`, ended by a zero.
pub const OLEO_IOC_CONTROL: Opcode = opcode::read::<[u8; SOCKET_PATH_LEN]>(GROUP, 1);
/// Asks a mount which inode a file is: `[u64; 2]`, its tree and its number, in the machine's byte order.
pub const OLEO_IOC_IDENT: Opcode = opcode::read::<[u64; 2]>(GROUP, 2);

/// The type of FUSE file systems in `statfs` (`FUSE_SUPER_MAGIC` of linux/magic.h).
const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;

/// Opens a file or directory to query it: nothing is read, and nothing blocks.
///
/// # Errors
/// Those of open(2).
pub fn open_to_ask(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Whether a file is on a FUSE file system.
///
/// # Errors
/// Those of statfs(2).
pub fn is_on_fuse(file: &File) -> io::Result<bool> {
    // The type's width and sign differ between architectures; the magic number has 31 bits.
    Ok(rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff == FUSE_SUPER_MAGIC)
}

/// The same, and it is a regular file or directory: an ioctl on a device node would go to its driver, whatever file
/// system the node is on.
fn is_plain_on_fuse(file: &File) -> io::Result<bool> {
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
    Ok((kind.is_file() || kind.is_dir()) && is_on_fuse(file)?)
}

/// The control socket of the mount that a regular file or directory is on; `None` if it is not on a mount of Oleo.
///
/// # Errors
/// The mount returns an invalid reply, or none.
pub fn control_socket(file: &File) -> io::Result<Option<PathBuf>> {
    let mut path = [0u8; SOCKET_PATH_LEN];
    if !is_plain_on_fuse(file)? || !ask::<OLEO_IOC_CONTROL, _>(file, &mut path)? {
        return Ok(None);
    }
    match path.iter().position(|&b| b == 0) {
        Some(0) | None => Err(io::Error::new(io::ErrorKind::InvalidData, "the mount names no control socket")),
        Some(end) => Ok(Some(PathBuf::from(OsString::from_vec(path[..end].to_vec())))),
    }
}

/// The tree and the inode number of a regular file or directory; `None` if it is not on a mount of Oleo.
///
/// # Errors
/// The mount does not reply.
pub fn ident(file: &File) -> io::Result<Option<[u64; 2]>> {
    let mut pair = [0u64; 2];
    let answered = is_plain_on_fuse(file)? && ask::<OLEO_IOC_IDENT, _>(file, &mut pair)?;
    Ok(answered.then_some(pair))
}

/// Any bits are a value of the type.
trait Plain: Copy {}
impl Plain for [u8; SOCKET_PATH_LEN] {}
impl Plain for [u64; 2] {}

/// Asks one question; `false` if the file system does not know it. The caller has made sure that it is a file or directory on FUSE.
fn ask<const OPCODE: Opcode, T: Plain>(file: &File, answer: &mut T) -> io::Result<bool> {
    // SAFETY: `OPCODE` is `_IOR` with the size of `T` (the two constants above), and for such a request to a FUSE file
    // system the kernel writes at most that many bytes; `T` is initialised, and any bytes are a `T`.
    let updater = unsafe { Updater::<OPCODE, T>::new(answer) };
    // SAFETY: as above; the pointer lives as long as the call.
    match unsafe { ioctl(file, updater) } {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOTTY | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the numbers are those of `_IOR('O', 1, [u8; 256])` and `_IOR('O', 2, [u64; 2])`, as the server knows them.
    #[test]
    fn request_numbers_are_those_of_the_server() {
        assert_eq!(OLEO_IOC_CONTROL, 0x8100_4f01);
        assert_eq!(OLEO_IOC_IDENT, 0x8010_4f02);
    }

    /// Goal: files elsewhere are distinguished without an ioctl. Method: a scratch file, and `/proc`.
    #[test]
    fn files_elsewhere_are_not_queried() {
        let scratch = tempfile::tempdir().unwrap();
        for path in [scratch.path(), Path::new("/proc")] {
            let file = open_to_ask(path).unwrap();
            assert_eq!(control_socket(&file).unwrap(), None);
            assert_eq!(ident(&file).unwrap(), None);
        }
    }
}
