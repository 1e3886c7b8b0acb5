//! Reads and writes of files at offsets, by one name on every system. The position that a file has besides is of no use to anybody: Windows moves it.

use std::fs::File;
use std::io::{self, ErrorKind};

#[cfg(unix)]
use std::os::unix::fs::FileExt;
#[cfg(windows)]
use std::os::windows::fs::FileExt;

/// In WebAssembly nothing can be opened.
#[cfg(not(any(unix, windows)))]
fn no_files<T>(_: T) -> io::Result<usize> {
    Err(ErrorKind::Unsupported.into())
}

/// Reads some bytes; none at the end of the file.
///
/// # Errors
/// The system's.
pub fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    #[cfg(unix)]
    return file.read_at(buf, at);
    #[cfg(windows)]
    return file.seek_read(buf, at);
    #[cfg(not(any(unix, windows)))]
    no_files((file, buf, at))
}

/// Fills `buf`.
///
/// # Errors
/// The system's, or the file ends before.
pub fn read_exact_at(file: &File, mut buf: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match read_at(file, buf, at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(done) => {
                buf = &mut buf[done..];
                at += done as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes some bytes.
///
/// # Errors
/// The system's.
pub fn write_at(file: &File, buf: &[u8], at: u64) -> io::Result<usize> {
    #[cfg(unix)]
    return file.write_at(buf, at);
    #[cfg(windows)]
    return file.seek_write(buf, at);
    #[cfg(not(any(unix, windows)))]
    no_files((file, buf, at))
}

/// Writes all of `buf`.
///
/// # Errors
/// The system's.
pub fn write_all_at(file: &File, mut buf: &[u8], mut at: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match write_at(file, buf, at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(done) => {
                buf = &buf[done..];
                at += done as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
