//! Block stores: the files, devices and memory that hold a volume's members.
//!
//! A [`Device`] is a run of bytes with an end. Many threads read and write it in parallel at offsets, in batches if
//! they have several requests. [`FileDevice`] is a file or a block device, [`MemDevice`] sparse memory, [`Window`] a
//! part of another device, [`Latched`] a device that refuses writes after the first that failed, [`Overlay`] one whose
//! writes stay in memory.
//!
//! Normal path of a commit: (1) `write_batch` with everything that is dirty; (2) `flush`; (3) `write_batch` with the
//! superblocks; (4) `flush`. What was written before a flush that succeeded survives a crash; of later writes, any part
//! may.
//!
//! Invariants: a read or write is whole or an error, never short. Nothing outside `0..len()` is ever touched: such a
//! request fails with an error of its own, and never extends a file. The error of a failed request names device, offset
//! and length. Requests of one batch must not overlap; the device may reorder them.
//!
//! Some can do more than that, and say so: what they prefer ([`Device::limits`]), what they know to be zeros
//! ([`Device::extents`]), zeros without sending them ([`Device::write_zeroes`]), writes that are durable each by itself
//! ([`Device::write_durable`]), an order of writes without waiting ([`Device::barrier`]). For all others the defaults do
//! the same with more effort.
//! Where there is no Linux below, the system's calls are left out (`cfg`). Windows, macOS and other systems of the Unix kind have files (`plain`), but
//! no block devices; WebAssembly has none (`no_files`), but memory, and whatever else implements [`Device`].
//! Not here: anything btrfs; which device holds what.

pub mod affinity;
#[cfg(target_os = "linux")]
mod direct;
mod extent;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
pub mod fuse;
#[cfg(target_os = "linux")]
mod in_use;
#[cfg(target_os = "linux")]
pub mod ioctl;
#[cfg(target_os = "linux")]
pub mod loops;
mod mem;
#[cfg(target_os = "linux")]
pub mod mountinfo;
#[cfg(not(any(unix, windows)))]
mod no_files;
mod options;
mod overlay;
#[cfg(all(any(unix, windows), any(test, not(target_os = "linux"))))]
mod plain;
pub mod positioned;
#[cfg(target_os = "linux")]
pub mod process;
mod user;
mod wrap;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use oleo_format::{Class, Classified, errno};

pub use extent::{Extent, ExtentKind, Limits, Zeroing};
#[cfg(target_os = "linux")]
pub use file::FileDevice;
#[cfg(target_os = "linux")]
pub use in_use::users_of;
pub use mem::MemDevice;
#[cfg(not(any(unix, windows)))]
pub use no_files::FileDevice;
pub use options::FileOptions;
pub use overlay::Overlay;
#[cfg(all(any(unix, windows), not(target_os = "linux")))]
pub use plain::FileDevice;
pub use user::User;
pub use wrap::{Latched, Window};

/// A store of bytes with a fixed end; see the crate's text.
pub trait Device: Send + Sync {
    /// The length in bytes.
    fn len(&self) -> u64;
    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills `buf` from `offset`, whole or not at all.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes `buf` at `offset`; not durable until `flush`.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError>;
    /// Carries out many reads, each of which gets its own result.
    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        for req in reqs {
            req.result = self.read_at(req.offset, req.buf);
        }
    }
    /// Carries out many writes, in any order. After an error any part of them may have happened.
    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        for req in reqs {
            let mut offset = req.offset;
            for part in req.parts {
                self.write_at(offset, part)?;
                offset = offset.saturating_add(part.len() as u64);
            }
        }
        Ok(())
    }
    /// [`write_batch`](Self::write_batch) of what the caller keeps in memory itself, and will not read soon: the system below need not
    /// keep it.
    fn write_uncached(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.write_batch(reqs)
    }
    /// Makes all earlier writes durable.
    fn flush(&self) -> Result<(), DeviceError>;
    /// Discards bytes that are not needed. They read as zeros or as before until written again; devices that cannot
    /// discard return [`DeviceError::Unsupported`], which a caller may ignore.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError>;
    /// Extends it (with zeros, sparse if possible) or cuts it; devices of a fixed size refuse.
    fn set_len(&self, len: u64) -> Result<(), DeviceError>;
    /// Its name in messages: a path, for files.
    fn name(&self) -> String;
    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Whoever has it open is done: what was written is made durable, and what it holds elsewhere for its user is given up, so
    /// that others find it free. It can be used afterwards, and then holds it again. A device that is dropped does the same and
    /// tells nobody whether it worked; where nothing is held elsewhere there is nothing to do.
    fn release(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// What it prefers.
    fn limits(&self) -> Limits {
        Limits::default()
    }
    /// What was written before will not be lost while something that is written after it survives. On this device
    /// alone, and nothing is durable by it.
    fn barrier(&self) -> Result<(), DeviceError> {
        self.flush()
    }
    /// Writes, and makes *these* writes durable; says nothing of others. After an error any part may have happened.
    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.write_batch(reqs)?;
        self.flush()
    }
    /// The range reads as zeros afterwards; not durable until `flush`. `Unsupported` is returned only if
    /// [`Zeroing::only_fast`] was asked for, and then nothing has changed. After another error any part may have
    /// happened.
    fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), DeviceError> {
        if how.only_fast {
            return Err(DeviceError::Unsupported { name: self.name().into(), op: Op::Zero });
        }
        write_zero_bytes(self, offset, len)
    }
    /// What is known of the bytes from `offset` on: runs that follow one another, at least one if `len` and `count_max`
    /// are not zero, at most `count_max`, together at most `len` bytes; possibly less, if there is much to be said.
    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        check_range(&self.name().into(), Op::Status, offset, len, self.len())?;
        let all = Extent { len, kind: ExtentKind::Data };
        Ok(if len == 0 || count_max == 0 { Vec::new() } else { vec![all] })
    }
    /// These will be read soon. A hint: nothing comes back.
    fn will_read(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// What it has done so far, if it counts.
    fn stats(&self) -> Option<DeviceStats> {
        None
    }
}

/// Writes zeros as bytes, a few MiB with each call.
fn write_zero_bytes<D: Device + ?Sized>(dev: &D, offset: u64, len: u64) -> Result<(), DeviceError> {
    const PIECE_LEN: usize = 64 << 10;
    const PIECE_COUNT: usize = 64;
    static ZEROS: [u8; PIECE_LEN] = [0; PIECE_LEN];
    let end = check_range(&dev.name().into(), Op::Zero, offset, len, dev.len())?;
    let mut at = offset;
    while at < end {
        let take = (end - at).min((PIECE_LEN * PIECE_COUNT) as u64) as usize;
        let mut parts = [&ZEROS[..]; PIECE_COUNT];
        let whole = take / PIECE_LEN;
        let count = take.div_ceil(PIECE_LEN);
        if count > whole {
            parts[whole] = &ZEROS[..take % PIECE_LEN];
        }
        dev.write_batch(&[WriteReq { offset: at, parts: &parts[..count] }])?;
        at += take as u64;
    }
    Ok(())
}

/// What a device has done since it was opened.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Requests to read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Connections that were made again.
    pub reconnects: u64,
    /// What only this kind counts: a name, a number.
    pub extra: Vec<(&'static str, u64)>,
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadReq<'a> {
    /// The byte offset on the device.
    pub offset: u64,
    /// The buffer; its length is the length of the read.
    pub buf: &'a mut [u8],
    /// The result; `Ok` before the batch was carried out.
    pub result: Result<(), DeviceError>,
}

impl<'a> ReadReq<'a> {
    /// A read of `buf.len()` bytes at `offset`.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> ReadReq<'a> {
        ReadReq { offset, buf, result: Ok(()) }
    }
}

/// One write of a batch: several pieces of memory that follow one another on the device.
#[derive(Clone, Copy, Debug)]
pub struct WriteReq<'a> {
    /// The byte offset on the device of the first piece.
    pub offset: u64,
    /// The pieces.
    pub parts: &'a [&'a [u8]],
}

impl WriteReq<'_> {
    /// The sum of the pieces' lengths, in bytes.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|p| p.len() as u64).sum()
    }
    /// Whether it writes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The operation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Open or size up.
    Open,
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush to stable storage.
    Flush,
    /// Discard.
    Discard,
    /// Change of length.
    Resize,
    /// Write of zeros.
    Zero,
    /// A question what is where.
    Status,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::Resize => "resize",
            Op::Zero => "zeroing",
            Op::Status => "look-up",
        })
    }
}

/// What is said of places that are no devices.
const NO_DEVICE: &str = match cfg!(target_os = "linux") {
    true => "neither a regular file nor a block device",
    false => "not a regular file, and block devices are used on Linux only",
};

/// Why an operation on a device failed. Cheap to clone, so that a latch can repeat it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system could not open it.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// It is neither a regular file nor a block device; of the latter only Linux's count.
    #[error("{}: {NO_DEVICE}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
    },
    /// The operating system reported an error.
    #[error("{name}: {op} of {len} bytes at {offset} failed: {source}")]
    Io {
        /// The device.
        name: Arc<str>,
        /// The operation.
        op: Op,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The request reaches beyond the end.
    #[error("{name}: {op} of {len} bytes at {offset} is beyond the end at {size}")]
    OutOfRange {
        /// The device.
        name: Arc<str>,
        /// The operation.
        op: Op,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The device's length in bytes.
        size: u64,
    },
    /// A change of a device that was opened for reading.
    #[error("{name}: {op} refused, opened read-only")]
    ReadOnly {
        /// The device.
        name: Arc<str>,
        /// The operation.
        op: Op,
    },
    /// This kind of device does not support it.
    #[error("{name}: {op} is not supported by this device")]
    Unsupported {
        /// The device.
        name: Arc<str>,
        /// The operation.
        op: Op,
    },
    /// Another user makes the requested access unsafe.
    #[error("{name} is in use: {by}")]
    InUse {
        /// The device.
        name: Arc<str>,
        /// The user.
        by: User,
    },
    /// An earlier write or flush failed, and since then nothing is written.
    #[error("{name}: {op} refused after an earlier failure: {first}")]
    Latched {
        /// The device.
        name: Arc<str>,
        /// The operation.
        op: Op,
        /// The failure that closed it.
        first: Arc<DeviceError>,
    },
}

impl DeviceError {
    /// Whether a write found no space below the device (`ENOSPC`, or the quota of the image file). Such a write was
    /// certainly not taken, and may be repeated, as may a write of zeros; that is not so for a flush that fails.
    pub fn is_full(&self) -> bool {
        match self {
            DeviceError::Io { op: Op::Write | Op::Zero, source, .. } => {
                matches!(errno::of(source), errno::ENOSPC | errno::EDQUOT)
            }
            _ => false,
        }
    }
}

impl Classified for DeviceError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            DeviceError::Open { source, .. } => Class::of_io(source),
            DeviceError::Kind { .. } => Class::refusal(errno::EINVAL),
            // The store below has no space, whatever its error code.
            DeviceError::Io { .. } if self.is_full() => Class { errno: errno::ENOSPC, ..Class::DEVICE },
            DeviceError::Io { .. } => Class::DEVICE,
            // The image has been cut short.
            DeviceError::OutOfRange { .. } => Class::DATA,
            DeviceError::ReadOnly { .. } => Class::refusal(errno::EROFS),
            DeviceError::Unsupported { .. } => Class::refusal(errno::EOPNOTSUPP),
            DeviceError::InUse { .. } => Class::refusal(errno::EBUSY),
            DeviceError::Latched { first, .. } => first.class(),
        }
    }
}

/// The end of a request that lies wholly inside a device of `size` bytes, or `OutOfRange`.
fn check_range(name: &Arc<str>, op: Op, offset: u64, len: u64, size: u64) -> Result<u64, DeviceError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(end),
        _ => Err(DeviceError::OutOfRange { name: name.clone(), op, offset, len, size }),
    }
}

/// The same for an image of `size` bytes that begins at `base` of a file: its end must be a file offset as well, which only an absurd `base` could break.
#[cfg(any(unix, windows))]
fn check_range_in_file(
    name: &Arc<str>,
    op: Op,
    (base, size): (u64, u64),
    offset: u64,
    len: u64,
) -> Result<(), DeviceError> {
    let end = check_range(name, op, offset, len, size)?;
    check_range(name, op, base, end, i64::MAX as u64).map(|_| ())
}

#[cfg(test)]
mod tests;
