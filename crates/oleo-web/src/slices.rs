//! A file of the reader's machine as a device: read in slices, pages of which are kept.
//!
//! Whoever lists a directory reads tree blocks near each other, and each slice costs about as much as a hundred KiB of it. So small reads take whole pages.
//! The bytes of a request that takes pages of its own are not kept: they are read once.

use std::io;
use std::sync::Arc;

use oleo::device::{Device, DeviceError, Op};
use oleo_lock::{Mutex, rank};

/// Bytes of a page.
const PAGE_BYTES: u64 = 128 << 10;
/// Pages that are kept: 32 MiB of all files together.
const PAGES: u64 = 256;
/// Pages that are kept of a file, however many there are.
const PAGES_MIN: u64 = 8;

/// The number of a page, and its bytes.
type Page = (u64, Box<[u8]>);

/// Reads a slice of a file into a buffer, whole.
pub trait ReadSlice: Send + Sync {
    /// From this byte on.
    ///
    /// # Errors
    /// The file has changed or is gone.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// A file as a device that is only read.
pub struct Slices<R> {
    name: Arc<str>,
    len: u64,
    file: R,
    /// A page stands at its number, modulo their count.
    pages: Mutex<rank::SlicePages, Vec<Option<Page>>>,
}

impl<R: ReadSlice> Slices<R> {
    /// A file of a name and length, one of so many.
    pub fn new(name: &str, len: u64, file: R, count: usize) -> Slices<R> {
        let kept = (PAGES / count.max(1) as u64).max(PAGES_MIN);
        let pages = Mutex::new((0..kept).map(|_| None).collect());
        Slices { name: name.into(), len, file, pages }
    }

    fn failed(&self, offset: u64, len: usize, source: io::Error) -> DeviceError {
        DeviceError::Io { name: self.name.clone(), op: Op::Read, offset, len: len as u64, source: Arc::new(source) }
    }

    fn refused(&self, op: Op) -> DeviceError {
        DeviceError::ReadOnly { name: self.name.clone(), op }
    }

    /// The part of a request that lies in one page.
    fn read_in_page(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let number = offset / PAGE_BYTES;
        let start = number * PAGE_BYTES;
        let mut pages = self.pages.lock();
        let kept = pages.len() as u64;
        let slot = &mut pages[(number % kept) as usize];
        let kept = match slot {
            Some((of, bytes)) if *of == number => bytes,
            _ => {
                let len = PAGE_BYTES.min(self.len - start) as usize;
                let mut bytes = vec![0; len].into_boxed_slice();
                self.file.read(start, &mut bytes).map_err(|error| self.failed(start, len, error))?;
                &mut slot.insert((number, bytes)).1
            }
        };
        let at = (offset - start) as usize;
        buf.copy_from_slice(&kept[at..at + buf.len()]);
        Ok(())
    }
}

impl<R: ReadSlice> Device for Slices<R> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(DeviceError::OutOfRange { name: self.name.clone(), op: Op::Read, offset, len, size: self.len });
        }
        if len >= PAGE_BYTES {
            let count = buf.len();
            return self.file.read(offset, buf).map_err(|error| self.failed(offset, count, error));
        }
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let here = (PAGE_BYTES - at % PAGE_BYTES).min(rest.len() as u64);
            let (part, after) = rest.split_at_mut(here as usize);
            self.read_in_page(at, part)?;
            (at, rest) = (at + here, after);
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _buf: &[u8]) -> Result<(), DeviceError> {
        Err(self.refused(Op::Write))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Err(self.refused(Op::Discard))
    }

    fn set_len(&self, _len: u64) -> Result<(), DeviceError> {
        Err(self.refused(Op::Resize))
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Counts the slices that are read.
    struct Counted(Vec<u8>, AtomicU64);

    impl ReadSlice for Counted {
        fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let at = offset as usize;
            buf.copy_from_slice(self.0.get(at..at + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }

    /// Goal: any part is what the file has, at any offset and beyond pages, small ones near each other are one slice, and nothing beyond the end is read.
    #[test]
    fn parts() {
        let bytes: Vec<u8> = (0..40_000_001u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let device = Slices::new("a", bytes.len() as u64, Counted(bytes.clone(), AtomicU64::new(0)), 1);
        let mut seed = 1u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = (seed >> 44) as usize % 300_000;
            let at = (seed >> 20) as usize % (bytes.len() - len);
            let mut buf = vec![0; len];
            device.read_at(at as u64, &mut buf).unwrap();
            assert!(buf == bytes[at..at + len], "{at} {len}");
        }
        let before = device.file.1.load(Ordering::Relaxed);
        for n in 0..8 {
            device.read_at(39_845_888 + n * 16_384, &mut [0; 16_384]).unwrap();
        }
        assert!(device.file.1.load(Ordering::Relaxed) - before <= 1);
        assert!(matches!(device.read_at(bytes.len() as u64, &mut [0]), Err(DeviceError::OutOfRange { .. })));
        assert!(device.read_at(u64::MAX, &mut [0; 2]).is_err() && device.write_at(0, &[1]).is_err());
    }
}
