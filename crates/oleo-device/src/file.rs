//! Files and block devices.
//!
//! Normal path: (1) `open` finds out what the path is and who else uses it (`in_use`), takes an advisory lock (shared
//! for reading, exclusive for writing) and, for a block device that is to be written, asks the kernel for exclusive
//! use; (2) reads and writes go to `pread`/`pwrite` and their vectored forms; adjacent requests of a batch are merged
//! into one call; (3) `flush` is `fdatasync`, or `fsync` after a change of length; `write_durable` is one call with
//! `RWF_DSYNC`, unless the length has changed; `write_uncached` goes past the system's cache on block devices (`direct`).
//! Zeros and holes are the file system's (`fallocate`, `SEEK_DATA`).
//!
//! Invariants: the image is `base..base + len` of the file; nothing outside it is read or written. The length is kept
//! in memory and changes only by `set_len`.
//! Locks: none; offsets are explicit. The file cursor is moved by `SEEK_DATA` alone, and nothing depends on it.
//! Crash: `flush` returns after the system has reported data and length to be on stable storage.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use crate::direct::Direct;
use crate::extent::push_extent;
use crate::in_use::users_of;
use crate::options::{ENDING_PATIENCE, FileOptions};
use crate::user::User;
use crate::{
    Device, DeviceError, Extent, ExtentKind, Op, ReadReq, WriteReq, Zeroing, check_range, check_range_in_file,
    write_zero_bytes,
};

/// The most pieces of memory that one system call takes (`IOV_MAX` of Linux).
const IOV_COUNT_MAX: usize = 1024;

/// How long an opening waits for a process that uses the file: starting a program takes a hundredth of that.
const IN_USE_PATIENCE: Duration = Duration::from_millis(200);
/// What this program is called among processes.
const OWN_NAME: &str = "oleo";

/// A file or a block device, or a window into one.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    name: Arc<str>,
    /// First byte of the image in the file.
    base: u64,
    /// Bytes from `base` on.
    len: AtomicU64,
    /// Block device, or a window with an end of its own.
    fixed_len: bool,
    /// Block device.
    block: bool,
    write: bool,
    /// The length changed since the last flush that succeeded.
    len_dirty: AtomicBool,
    /// A block device that is written, and that takes such writes.
    direct: Option<Direct>,
}

/// How a batch is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Through the system's cache.
    Cached,
    /// Past it, where that is possible and worth it.
    Uncached,
    /// On stable storage with each call.
    Durable,
}

/// How long to wait for a user to release the file.
fn patience(by: &User) -> Duration {
    match by {
        // A process that is ending shows no open files any more, and still holds their locks for a while.
        User::Lock => ENDING_PATIENCE,
        // It is not mounted, or that would be the reason: the kernel releases a mount's device some time after
        // unmounting.
        User::Kernel => ENDING_PATIENCE,
        User::Writer { command, .. } if command == OWN_NAME => ENDING_PATIENCE,
        User::Writer { .. } => IN_USE_PATIENCE,
        User::Mounted { .. } | User::Served { .. } => Duration::ZERO,
    }
}

impl FileDevice {
    /// Opens `path`. Opening for writing is refused if another process or the kernel has it mounted or open for
    /// writing; so is opening for reading, unless `read_in_use` is set.
    ///
    /// A process that has just been started holds its parent's open files until it has executed its program, so a user
    /// may be gone in a moment; therefore opening is retried for `IN_USE_PATIENCE`. A server whose mount is gone, and
    /// the kernel's hold on an unmounted device, may take longer: `ENDING_PATIENCE`.
    pub fn open(path: &Path, opts: &FileOptions) -> Result<FileDevice, DeviceError> {
        let start = Instant::now();
        loop {
            match FileDevice::open_now(path, opts) {
                Err(DeviceError::InUse { ref by, .. }) if start.elapsed() < patience(by) => {
                    std::thread::sleep(IN_USE_PATIENCE / 20);
                }
                result => return result,
            }
        }
    }

    fn open_now(path: &Path, opts: &FileOptions) -> Result<FileDevice, DeviceError> {
        let name: Arc<str> = path.display().to_string().into();
        let open_error = |e: io::Error| DeviceError::Open { path: path.to_path_buf(), source: Arc::new(e) };
        let create = opts.write && opts.create;
        let mut block = false;
        match std::fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => block = true,
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return Err(DeviceError::Kind { path: path.to_path_buf() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound && create => {}
            Err(e) => return Err(open_error(e)),
        }
        // Before the open, because the name of the user is worth more than the kernel's "device or resource busy".
        let claimed = |by: &User| opts.claimed && matches!(by, User::Kernel | User::Mounted { .. });
        if (opts.write || !opts.read_in_use)
            && let Some(by) = users_of(path).into_iter().find(|by| !claimed(by))
        {
            return Err(DeviceError::InUse { name, by });
        }
        let mut flags = OFlags::empty();
        if block && opts.write && !opts.claimed {
            flags |= OFlags::EXCL; // on a block device: nobody else holds or will hold it exclusively, mounts included
        }
        let file = OpenOptions::new()
            .read(true)
            .write(opts.write)
            // A block device is there, and O_CREAT with O_EXCL means that it must not be.
            .create(create && !block)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|e| match (block, e.kind()) {
                (true, io::ErrorKind::ResourceBusy) => DeviceError::InUse { name: name.clone(), by: User::Kernel },
                _ => open_error(e),
            })?;
        lock(&file, &name, opts)?;
        let size = file_size(&file, block).map_err(open_error)?;
        let rest = size.saturating_sub(opts.offset);
        let len = opts.len.map_or(rest, |len| len.min(rest));
        let direct = if block && opts.write { Direct::of(&file) } else { None };
        Ok(FileDevice {
            direct,
            file,
            name,
            base: opts.offset,
            len: AtomicU64::new(len),
            fixed_len: block || opts.len.is_some(),
            block,
            write: opts.write,
            len_dirty: AtomicBool::new(false),
        })
    }

    fn size(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn io(&self, op: Op, offset: u64, len: u64, e: io::Error) -> DeviceError {
        DeviceError::Io { name: self.name.clone(), op, offset, len, source: Arc::new(e) }
    }

    fn writable(&self, op: Op) -> Result<(), DeviceError> {
        if self.write { Ok(()) } else { Err(DeviceError::ReadOnly { name: self.name.clone(), op }) }
    }

    fn in_range(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range_in_file(&self.name, op, (self.base, self.size()), offset, len)
    }

    /// Writes all slices from `offset` on, as few calls as the system allows. With `durable` each call returns when its
    /// bytes are on stable storage; an error then counts as one of a flush, because the system may have taken the write
    /// and failed to store it.
    fn write_slices(&self, offset: u64, mut slices: &mut [IoSlice<'_>], durable: bool) -> Result<(), DeviceError> {
        let op = if durable { Op::Flush } else { Op::Write };
        let mut at = offset;
        while !slices.is_empty() {
            let some = &slices[..slices.len().min(IOV_COUNT_MAX)];
            let done = match durable {
                true => rustix::io::pwritev2(&self.file, some, self.base + at, ReadWriteFlags::DSYNC),
                false => rustix::io::pwritev(&self.file, some, self.base + at),
            };
            match done {
                Ok(0) => {
                    let rest = slices.iter().map(|s| s.len() as u64).sum();
                    if rest == 0 {
                        return Ok(());
                    }
                    return Err(self.io(op, at, rest, io::ErrorKind::WriteZero.into()));
                }
                Ok(done) => {
                    at += done as u64;
                    IoSlice::advance_slices(&mut slices, done);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.io(op, at, slices.iter().map(|s| s.len() as u64).sum(), e.into())),
            }
        }
        Ok(())
    }

    /// Writes adjacent requests with one call, in this way; see `write_slices`.
    fn write_runs(&self, reqs: &[WriteReq<'_>], way: Way) -> Result<(), DeviceError> {
        self.writable(Op::Write)?;
        for req in reqs {
            self.in_range(Op::Write, req.offset, req.len())?;
        }
        let mut sorted: Vec<&WriteReq<'_>> = reqs.iter().filter(|r| !r.is_empty()).collect();
        sorted.sort_by_key(|r| r.offset);
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        for run in sorted.chunk_by(|a, b| a.offset + a.len() == b.offset) {
            let parts = || run.iter().flat_map(|r| r.parts).copied().filter(|p| !p.is_empty());
            if way == Way::Uncached && self.write_direct(run[0].offset, parts())? {
                continue;
            }
            slices.clear();
            slices.extend(parts().map(IoSlice::new));
            self.write_slices(run[0].offset, &mut slices, way == Way::Durable)?;
        }
        Ok(())
    }

    /// Writes parts from `offset` on past the system's cache; `false`: they have to go through it.
    fn write_direct<'p>(
        &self,
        offset: u64,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<bool, DeviceError> {
        let Some(direct) = &self.direct else { return Ok(false) };
        let len = parts.clone().map(|p| p.len() as u64).sum();
        if !direct.takes(self.base + offset, len) {
            return Ok(false);
        }
        direct.write(self.base + offset, parts).map_err(|e| self.io(Op::Write, offset, len, e))
    }

    /// Where the next data or hole begins from the file's byte `at` on, or `end` if none does before it.
    fn seek(&self, to: SeekFrom, end: u64) -> io::Result<u64> {
        match rustix::fs::seek(&self.file, to) {
            Ok(found) => Ok(found.min(end)),
            // There is no data up to the file's end.
            Err(Errno::NXIO) => Ok(end),
            Err(e) => Err(e.into()),
        }
    }

    /// Fills all slices from `offset` on.
    fn read_slices(&self, offset: u64, mut slices: &mut [IoSliceMut<'_>]) -> Result<(), DeviceError> {
        let mut at = offset;
        while !slices.is_empty() {
            let take = slices.len().min(IOV_COUNT_MAX);
            match rustix::io::preadv(&self.file, &mut slices[..take], self.base + at) {
                Ok(0) => {
                    let rest = slices.iter().map(|s| s.len() as u64).sum();
                    if rest == 0 {
                        return Ok(());
                    }
                    return Err(self.io(Op::Read, at, rest, io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(done) => {
                    at += done as u64;
                    IoSliceMut::advance_slices(&mut slices, done);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.io(Op::Read, at, slices.iter().map(|s| s.len() as u64).sum(), e.into())),
            }
        }
        Ok(())
    }

    /// Reads adjacent requests in one call; if that fails, each alone, so that each gets its own result.
    fn read_run(&self, run: &mut [&mut ReadReq<'_>]) {
        if let [only] = run {
            only.result = self.read_at(only.offset, only.buf);
            return;
        }
        let Some(offset) = run.first().map(|r| r.offset) else { return };
        let len = run.iter().map(|r| r.buf.len() as u64).sum();
        let whole = self.in_range(Op::Read, offset, len).and_then(|()| {
            let mut slices: Vec<_> = run.iter_mut().map(|r| IoSliceMut::new(r.buf)).collect();
            self.read_slices(offset, &mut slices)
        });
        for req in run.iter_mut() {
            req.result = match whole {
                Ok(()) => Ok(()),
                Err(_) => self.read_at(req.offset, req.buf),
            };
        }
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        self.in_range(Op::Read, offset, len)?;
        self.file.read_exact_at(buf, self.base + offset).map_err(|e| self.io(Op::Read, offset, len, e))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        self.writable(Op::Write)?;
        self.in_range(Op::Write, offset, len)?;
        self.file.write_all_at(buf, self.base + offset).map_err(|e| self.io(Op::Write, offset, len, e))
    }

    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        let mut sorted: Vec<&mut ReadReq<'_>> = reqs.iter_mut().collect();
        sorted.sort_by_key(|r| r.offset);
        for run in sorted.chunk_by_mut(|a, b| a.offset.checked_add(a.buf.len() as u64) == Some(b.offset)) {
            self.read_run(run);
        }
    }

    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.write_runs(reqs, Way::Cached)
    }

    fn write_uncached(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.write_runs(reqs, Way::Uncached)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if !self.write {
            return Ok(());
        }
        let resized = self.len_dirty.swap(false, Ordering::AcqRel);
        let done = if resized { self.file.sync_all() } else { self.file.sync_data() };
        done.map_err(|e| {
            self.len_dirty.fetch_or(resized, Ordering::AcqRel);
            self.io(Op::Flush, 0, self.size(), e)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.writable(Op::Discard)?;
        self.in_range(Op::Discard, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // On a block device this unmaps, if the device can do so and still read zeros.
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, mode, self.base + offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Discard })
            }
            Err(e) => Err(self.io(Op::Discard, offset, len, e.into())),
        }
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.writable(Op::Resize)?;
        if len == self.size() {
            return Ok(());
        }
        if self.fixed_len {
            return Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Resize });
        }
        let end = check_range(&self.name, Op::Resize, self.base, len, i64::MAX as u64)?;
        self.len_dirty.store(true, Ordering::Release);
        self.file.set_len(end).map_err(|e| self.io(Op::Resize, 0, len, e))?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        !self.write
    }

    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        if !self.len_dirty.load(Ordering::Acquire) {
            match self.write_runs(reqs, Way::Durable) {
                Err(e) if lacks_dsync(&e) => {}
                result => return result,
            }
        }
        self.write_batch(reqs)?;
        self.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), DeviceError> {
        self.writable(Op::Zero)?;
        self.in_range(Op::Zero, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let mode = match how.keep_allocated {
            true => FallocateFlags::ZERO_RANGE,
            false => FallocateFlags::PUNCH_HOLE,
        };
        match rustix::fs::fallocate(&self.file, mode | FallocateFlags::KEEP_SIZE, self.base + offset, len) {
            Ok(()) => Ok(()),
            Err(e) if lacks_zeroing(e, self.block) && how.only_fast => {
                Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Zero })
            }
            Err(e) if lacks_zeroing(e, self.block) => write_zero_bytes(self, offset, len),
            Err(e) => Err(self.io(Op::Zero, offset, len, e.into())),
        }
    }

    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.in_range(Op::Status, offset, len)?;
        let mut out = Vec::new();
        let (mut at, end) = (self.base + offset, self.base + offset + len);
        while at < end && out.len() < count_max {
            // A file system that cannot tell says that all is data; so does this for a block device.
            let data = if self.block { Ok(at) } else { self.seek(SeekFrom::Data(at), end) };
            let (to, kind) = match data.map_err(|e| self.io(Op::Status, offset, len, e))? {
                data if data > at => (data, ExtentKind::Hole),
                _ if self.block => (end, ExtentKind::Data),
                _ => {
                    let hole = self.seek(SeekFrom::Hole(at), end);
                    (hole.map_err(|e| self.io(Op::Status, offset, len, e))?, ExtentKind::Data)
                }
            };
            // Somebody writes meanwhile: then nothing is known of the rest.
            let (to, kind) = if to > at { (to, kind) } else { (end, ExtentKind::Data) };
            push_extent(&mut out, to - at, kind);
            at = to;
        }
        Ok(out)
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let (Ok(()), Some(len)) = (self.in_range(Op::Status, offset, len), std::num::NonZeroU64::new(len)) {
            let _ = rustix::fs::fadvise(&self.file, self.base + offset, Some(len), Advice::WillNeed);
        }
    }
}

/// Whether a durable write failed because the system or the file system knows no such thing.
pub(crate) fn lacks_dsync(e: &DeviceError) -> bool {
    const UNKNOWN: [Errno; 2] = [Errno::OPNOTSUPP, Errno::NOSYS];
    matches!(e, DeviceError::Io { source, .. }
        if source.raw_os_error().is_some_and(|n| UNKNOWN.contains(&Errno::from_raw_os_error(n))))
}

/// Whether zeros have to be written as bytes. A block device refuses parts of its blocks as invalid.
pub(crate) fn lacks_zeroing(e: Errno, block: bool) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::NOSYS) || (block && e == Errno::INVAL)
}

/// Oleo against Oleo: many readers or one writer, for as long as the file is open.
fn lock(file: &File, name: &Arc<str>, opts: &FileOptions) -> Result<(), DeviceError> {
    let how = match opts.write {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match rustix::fs::flock(file, how) {
        Err(Errno::WOULDBLOCK) if opts.write || !opts.read_in_use => {
            Err(DeviceError::InUse { name: name.clone(), by: User::Lock })
        }
        // Some file systems have no locks; the other checks still apply.
        _ => Ok(()),
    }
}

/// Length of the whole file or block device in bytes.
fn file_size(file: &File, block: bool) -> io::Result<u64> {
    if !block {
        return Ok(file.metadata()?.len());
    }
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}
