//! Files: contents and extents.

use std::ffi::{c_char, c_int};

use oleo::Error;
use oleo::fs::{Compression, ExtentKind, NewInode, NewKind};

use crate::error::{Failure, call, status};
use crate::names::Stat;
use crate::pointers::{bytes, check, must_be_there, put, put_at, room, text};
use crate::table::{self, FileHandle, Image, Open};

/// Flag of an extent: something else refers to it, too.
pub const OLEO_EXTENT_SHARED: u32 = 1;
/// Flag of an extent: it has space, and reads as zeros.
pub const OLEO_EXTENT_UNWRITTEN: u32 = 2;
/// Flag of an extent: its bytes are in a tree block; it has no address of its own.
pub const OLEO_EXTENT_INLINE: u32 = 4;
/// Flag of an extent: it is not on disk yet.
pub const OLEO_EXTENT_DELAYED: u32 = 8;

/// A part of a file that is no hole.
#[repr(C)]
pub struct Extent {
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Bytes of the file that it stands for.
    pub length: u64,
    /// Its logical address; of a compressed extent that of the whole extent. 0 if it has none.
    pub logical: u64,
    /// OLEO_EXTENT_…
    pub flags: u32,
    /// 0: none, 1: zlib, 2: lzo, 3: zstd.
    pub compression: u32,
}

/// Opens a regular file; for changes, if the image is.
///
/// # Safety
/// `path` ends in a zero byte; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_file_open(image: Image, path: *const c_char, out: *mut FileHandle) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        must_be_there(out, "out")?;
        let file = table::image(image)?.open_file(path)?;
        // SAFETY: as the caller says.
        unsafe { put(out, table::keep(image, Open::File(file))?, "out") }
    })
}

/// Makes an empty regular file where there is nothing yet, with these permission bits, and opens it.
///
/// # Safety
/// `path` ends in a zero byte; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_file_create(image: Image, path: *const c_char, mode: u32, out: *mut FileHandle) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?;
        must_be_there(out, "out")?;
        let open = table::image(image)?;
        let (dir, name) = open.find_parent(&open.top()?, path)?;
        let made = open.fs().create(&dir, name, &NewInode::new(NewKind::File, mode & 0o7777));
        made.map_err(|error| Error::from(error).at(path.escape_ascii()))?;
        let file = open.open_file_at(&dir, name)?;
        // SAFETY: as the caller says.
        unsafe { put(out, table::keep(image, Open::File(file))?, "out") }
    })
}

/// Gives a file up.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_file_close(file: FileHandle) -> c_int {
    status(|| table::take(file, "file", |open| matches!(open, Open::File(_))))
}

/// What is known of the file.
///
/// # Safety
/// `out` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_file_stat(file: FileHandle, out: *mut Stat) -> c_int {
    status(|| {
        let attr = table::file(file)?.attr();
        // SAFETY: as the caller says.
        unsafe { put(out, Stat::of(&attr), "out") }
    })
}

/// Reads `len` bytes at `offset`, or as many as there are up to the end; how many, or a negative errno. Many threads may read in
/// parallel.
///
/// # Safety
/// `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_file_read(file: FileHandle, buffer: *mut u8, len: usize, offset: u64) -> i64 {
    call(|| {
        let file = table::file(file)?;
        // SAFETY: as the caller says.
        let buffer = unsafe { room(buffer, len, "buffer") }?;
        let count = file.read_at(buffer, offset)?;
        i64::try_from(count).map_err(|_| Failure::invalid("more bytes than can be counted".into()))
    })
}

/// Writes `len` bytes at `offset`, all of them or none; the file grows where it must.
///
/// # Safety
/// `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_file_write(file: FileHandle, data: *const u8, len: usize, offset: u64) -> c_int {
    status(|| {
        let file = table::file(file)?;
        // SAFETY: as the caller says.
        let data = unsafe { bytes(data, len, "data") }?;
        Ok(file.write_at(data, offset)?)
    })
}

/// Makes the file this many bytes long: shorter, or longer by a hole.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_file_truncate(file: FileHandle, len: u64) -> c_int {
    status(|| Ok(table::file(file)?.set_len(len)?))
}

/// Makes the file durable, as fsync does.
#[unsafe(no_mangle)]
pub extern "C" fn oleo_file_sync(file: FileHandle) -> c_int {
    status(|| {
        let (file, image) = table::file_and_image(file)?;
        Ok(image.fs().fsync(file.inode())?)
    })
}

/// The extents from `offset` on, at most `count`; how many were put into `out`, or a negative errno. To go on, ask from the end of the last
/// one; 0 means that there are no more. What is between extents is a hole.
///
/// # Safety
/// `out` has room for `count` extents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oleo_file_extents(file: FileHandle, offset: u64, out: *mut Extent, count: usize) -> i64 {
    /// Bytes of a file that are looked at a time: 2048 extents of 128 KiB, as the longest compressed ones are.
    const STEP_BYTES: u64 = 256 << 20;
    call(|| {
        let (file, image) = table::file_and_image(file)?;
        if count == 0 {
            return Ok(0);
        }
        check(out, count, "out")?;
        let (mut from, mut done) = (offset, 0);
        // Holes are passed over, so that there are steps only where there is data.
        while done < count
            && let Some(data) = image.fs().seek_data(file.inode(), from)?
        {
            let end = data.saturating_add(STEP_BYTES);
            for extent in image.fs().extents(file.inode(), data, STEP_BYTES)? {
                from = extent.at.saturating_add(extent.len);
                if done == count {
                    break;
                }
                // SAFETY: as the caller says.
                unsafe { put_at(out, done, count, Extent::of(&extent), "out") }?;
                done += 1;
            }
            if from <= data {
                from = end;
            }
        }
        i64::try_from(done).map_err(|_| Failure::invalid("more extents than can be counted".into()))
    })
}

impl Extent {
    fn of(extent: &oleo::fs::ExtentInfo) -> Extent {
        let kind = match extent.kind {
            ExtentKind::Delayed => OLEO_EXTENT_DELAYED,
            ExtentKind::Inline => OLEO_EXTENT_INLINE,
            ExtentKind::Data => 0,
            ExtentKind::Unwritten => OLEO_EXTENT_UNWRITTEN,
        };
        Extent {
            offset: extent.at,
            length: extent.len,
            logical: extent.disk.map_or(0, |at| at.0),
            flags: kind | if extent.shared { OLEO_EXTENT_SHARED } else { 0 },
            compression: match extent.compression {
                Compression::None => 0,
                Compression::Zlib => 1,
                Compression::Lzo => 2,
                Compression::Zstd => 3,
            },
        }
    }
}
