//! Files where there is no Linux below: Windows, macOS, other systems of the Unix kind.
//!
//! Normal path: (1) `open` opens the file so that others have to leave it alone: on Windows it shares it with readers only, or with nobody if it is to be
//! written; elsewhere it takes an advisory lock, shared for reading, exclusive for writing; (2) reads and writes are the system's at offsets; (3) `flush`
//! asks for everything to be on stable storage.
//!
//! What `file` does on Linux and nobody does here: block devices, finding out who else has the file open, holes (what is discarded stays, zeros are written),
//! writes past the system's cache. On Windows programs that open the file in another way are kept out, too; elsewhere only those that look for the lock.
//!
//! Invariants: the image is `base..base + len` of the file; nothing outside it is read or written. The length is kept in memory and changes only by `set_len`.
//! Locks: none; offsets are explicit. Crash: `flush` returns after the system has reported data and length to be on stable storage.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::options::{ENDING_PATIENCE, FileOptions};
use crate::positioned::{read_exact_at, write_all_at};
use crate::user::User;
use crate::{Device, DeviceError, Op, check_range, check_range_in_file};

/// Between two attempts to open what another process has.
const RETRY: Duration = Duration::from_millis(10);

/// A file, or a window into one.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    name: Arc<str>,
    /// First byte of the image in the file.
    base: u64,
    /// Bytes from `base` on.
    len: AtomicU64,
    /// A window with an end of its own.
    fixed_len: bool,
    write: bool,
}

impl FileDevice {
    /// Opens `path`. Opening for writing is refused if another process has it open, opening for reading if one has it open for writing. On Windows
    /// `read_in_use` does not help where the other process lets nobody read.
    ///
    /// # Errors
    /// As said; it is no regular file; or the system cannot open it.
    pub fn open(path: &Path, opts: &FileOptions) -> Result<FileDevice, DeviceError> {
        let start = Instant::now();
        loop {
            match FileDevice::open_now(path, opts) {
                Err(DeviceError::InUse { .. }) if start.elapsed() < ENDING_PATIENCE => std::thread::sleep(RETRY),
                result => return result,
            }
        }
    }

    fn open_now(path: &Path, opts: &FileOptions) -> Result<FileDevice, DeviceError> {
        let name: Arc<str> = path.display().to_string().into();
        let open_error = |e: io::Error| DeviceError::Open { path: path.to_path_buf(), source: Arc::new(e) };
        let create = opts.write && opts.create;
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return Err(DeviceError::Kind { path: path.to_path_buf() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound && create => {}
            Err(e) => return Err(open_error(e)),
        }
        let in_use = || DeviceError::InUse { name: name.clone(), by: User::Lock };
        let mut how = OpenOptions::new();
        how.read(true).write(opts.write).create(create);
        let file = alone::open(&mut how, path, opts).map_err(open_error)?.ok_or_else(in_use)?;
        let rest = file.metadata().map_err(open_error)?.len().saturating_sub(opts.offset);
        let len = opts.len.map_or(rest, |len| len.min(rest));
        let (fixed_len, write) = (opts.len.is_some(), opts.write);
        Ok(FileDevice { file, name, base: opts.offset, len: AtomicU64::new(len), fixed_len, write })
    }

    fn io(&self, op: Op, offset: u64, len: u64, e: io::Error) -> DeviceError {
        DeviceError::Io { name: self.name.clone(), op, offset, len, source: Arc::new(e) }
    }

    fn writable(&self, op: Op) -> Result<(), DeviceError> {
        if self.write { Ok(()) } else { Err(DeviceError::ReadOnly { name: self.name.clone(), op }) }
    }

    fn in_range(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range_in_file(&self.name, op, (self.base, self.len()), offset, len)
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        self.in_range(Op::Read, offset, len)?;
        read_exact_at(&self.file, buf, self.base + offset).map_err(|e| self.io(Op::Read, offset, len, e))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        self.writable(Op::Write)?;
        self.in_range(Op::Write, offset, len)?;
        write_all_at(&self.file, buf, self.base + offset).map_err(|e| self.io(Op::Write, offset, len, e))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if !self.write {
            return Ok(());
        }
        self.file.sync_all().map_err(|e| self.io(Op::Flush, 0, self.len(), e))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.writable(Op::Discard)?;
        self.in_range(Op::Discard, offset, len)?;
        Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Discard })
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.writable(Op::Resize)?;
        if len == self.len() {
            return Ok(());
        }
        if self.fixed_len {
            return Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Resize });
        }
        let end = check_range(&self.name, Op::Resize, self.base, len, i64::MAX as u64)?;
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
}

/// Opening so that two writers exclude each other, and a writer and readers.
#[cfg(not(windows))]
mod alone {
    use std::fs::{File, OpenOptions, TryLockError};
    use std::io;
    use std::path::Path;

    use crate::options::FileOptions;

    /// `None`: another process has it, or another handle of this one.
    pub(super) fn open(how: &mut OpenOptions, path: &Path, opts: &FileOptions) -> io::Result<Option<File>> {
        let file = how.open(path)?;
        let locked = if opts.write { file.try_lock() } else { file.try_lock_shared() };
        Ok(match locked {
            Err(TryLockError::WouldBlock) if opts.write || !opts.read_in_use => None,
            // Some file systems have no locks.
            _ => Some(file),
        })
    }
}

#[cfg(windows)]
mod alone {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;

    use crate::options::FileOptions;

    /// What others may do with the file meanwhile (`FILE_SHARE_READ` and so on of CreateFileW), and what the system says of a file that another has.
    const SHARE_READ: u32 = 1;
    const SHARE_WRITE: u32 = 2;
    const SHARE_DELETE: u32 = 4;
    const ERROR_SHARING_VIOLATION: i32 = 32;

    /// `None`: another process has it, or another handle of this one.
    pub(super) fn open(how: &mut OpenOptions, path: &Path, opts: &FileOptions) -> io::Result<Option<File>> {
        how.share_mode(match (opts.write, opts.read_in_use) {
            (true, _) => 0,
            (false, true) => SHARE_READ | SHARE_WRITE | SHARE_DELETE,
            (false, false) => SHARE_READ,
        });
        match how.open(path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_sim::rng::Rng;

    use super::*;
    use crate::{ReadReq, WriteReq, Zeroing};

    /// Goal: the files of other systems do what Linux's do: bytes, ends, windows, refusals. Method: seeded reads, writes, zeros and changes of length on two
    /// files, one by each; results, errors and what is in the files in the end are the same.
    #[test]
    fn the_same_as_on_linux() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let opts = FileOptions::default().write(true).create(true).offset(4096);
        let (linux, plain) = (crate::FileDevice::open(&one, &opts).unwrap(), FileDevice::open(&two, &opts).unwrap());
        let same = |a: Result<(), DeviceError>, b: Result<(), DeviceError>, what: &str| {
            let text = |r: Result<(), DeviceError>, name: &Path| {
                r.map_err(|e| e.to_string().replace(&name.display().to_string(), "NAME"))
            };
            assert_eq!(text(a, &one), text(b, &two), "{what}");
        };
        let mut rng = Rng::new(41);
        for step in 0..400 {
            let (at, len) = (rng.below(200_000), rng.below(30_000));
            match rng.below(6) {
                0 => same(linux.set_len(at), plain.set_len(at), "set_len"),
                1 => {
                    let how = Zeroing::default();
                    same(linux.write_zeroes(at, len, how), plain.write_zeroes(at, len, how), "zeros");
                }
                2 | 3 => {
                    let bytes = rng.bytes(len as usize);
                    let parts = [&bytes[..bytes.len() / 3], &bytes[bytes.len() / 3..]];
                    let small = WriteReq { offset: at, parts: &parts };
                    let fits = at + len <= linux.len();
                    let (a, b) = match rng.below(2) {
                        // A batch that does not fit is refused as a whole there, and from its first part that does not here.
                        0 if fits => (linux.write_batch(&[small]), plain.write_batch(&[small])),
                        _ => (linux.write_at(at, &bytes), plain.write_at(at, &bytes)),
                    };
                    same(a, b, "write");
                }
                _ => {
                    let (mut a, mut b) = (vec![1; len as usize], vec![1; len as usize]);
                    let mut reads = [ReadReq::new(at, &mut b)];
                    plain.read_batch(&mut reads);
                    let [ReadReq { result, .. }] = reads;
                    same(linux.read_at(at, &mut a), result, "read");
                    assert!(a == b, "step {step}: {at}+{len}");
                }
            }
            assert_eq!(linux.len(), plain.len(), "step {step}");
        }
        plain.flush().unwrap();
        assert!(matches!(plain.discard(0, 0), Err(DeviceError::Unsupported { .. })));
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
    }

    /// Goal: many readers or one writer; what is no file is refused; readers do not write; a window has its end.
    #[test]
    fn one_writer_or_many_readers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let (read, write) = (FileOptions::default(), FileOptions::default().write(true));
        assert!(matches!(FileDevice::open(&path, &write), Err(DeviceError::Open { .. })), "it is not made unasked");
        let writer = FileDevice::open(&path, &write.clone().create(true)).unwrap();
        writer.set_len(8192).unwrap();
        for opts in [&read, &write] {
            let refused = FileDevice::open(&path, opts).unwrap_err();
            assert!(matches!(refused, DeviceError::InUse { by: User::Lock, .. }), "{refused}");
        }
        assert!(FileDevice::open(&path, &read.clone().read_in_use(true)).is_ok());
        drop(writer);
        let reader = FileDevice::open(&path, &read.clone().offset(4096)).unwrap();
        let window = FileDevice::open(&path, &read.clone().len(Some(100))).unwrap();
        assert_eq!((reader.len(), window.len()), (4096, 100));
        assert!(matches!(FileDevice::open(&path, &write), Err(DeviceError::InUse { .. })));
        assert!(matches!(reader.write_at(0, &[1]), Err(DeviceError::ReadOnly { .. })));
        assert!(matches!(window.read_at(100, &mut [0]), Err(DeviceError::OutOfRange { .. })));
        assert!(reader.flush().is_ok());
        drop((reader, window));
        let window = FileDevice::open(&path, &write.len(Some(100))).unwrap();
        assert!(matches!(window.set_len(200), Err(DeviceError::Unsupported { op: Op::Resize, .. })));
        assert!(matches!(FileDevice::open(dir.path(), &read), Err(DeviceError::Kind { .. })));
    }
}
