//! Writes to a block device that bypass the system's cache.
//!
//! What a commit writes is in this library's own cache already. Through the system's cache each byte would be copied into memory that
//! has to be found first, and be written from there with the flush; so large writes go past it. Their bytes are gathered in an
//! aligned buffer, since pieces in memory are aligned as they happen to be, and drivers want more than that.
//!
//! The kernel keeps both ways coherent on a block device: it writes out what its cache holds of the range before, and drops it after.
//! A device that refuses is written as all else from then on. Durable by the same flush.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use oleo_lock::{Mutex, rank};
use rustix::fs::OFlags;

/// Bytes of a buffer: one write each. Large enough for a disk's largest request, small enough for a processor's cache.
const BUFFER_LEN: usize = 1 << 20;
/// Where buffers begin: no driver asks for more than a page.
const ALIGN: usize = 4096;
/// Runs of fewer bytes go through the system's cache: a device is asked once for each.
pub(crate) const RUN_LEN_MIN: u64 = 32 << 10;

/// A block device opened once more, for such writes.
#[derive(Debug)]
pub(crate) struct Direct {
    file: File,
    /// Bytes of the device's sector: places and lengths are multiples.
    sector: u64,
    refused: AtomicBool,
    /// Not in use: as many as threads wrote at the same time.
    spare: Mutex<rank::DirectBuffers, Vec<Buffer>>,
}

impl Direct {
    /// `device` once more; `None` if the system does not let us.
    pub(crate) fn of(device: &File) -> Option<Direct> {
        let sector = u64::from(rustix::fs::ioctl_blksszget(device).ok()?);
        if !sector.is_power_of_two() || sector > ALIGN as u64 {
            return None;
        }
        let flags = OFlags::DIRECT.bits() as i32;
        let again = format!("/proc/self/fd/{}", device.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(flags).open(again).ok()?;
        Some(Direct { file, sector, refused: AtomicBool::new(false), spare: Mutex::default() })
    }

    /// Whether a run may go this way.
    pub(crate) fn takes(&self, at: u64, len: u64) -> bool {
        len >= RUN_LEN_MIN && (at | len).is_multiple_of(self.sector) && !self.refused.load(Ordering::Relaxed)
    }

    /// Writes parts one after the other from `at` on, of which [`takes`](Self::takes) was true. `Ok(false)`: the device does not do
    /// that; any part may be written.
    pub(crate) fn write<'p>(&self, at: u64, parts: impl Iterator<Item = &'p [u8]>) -> io::Result<bool> {
        let spare = self.spare.lock().pop();
        let mut buffer = spare.unwrap_or_default();
        let done = self.write_through(&mut buffer, at, parts);
        buffer.filled = 0;
        self.spare.lock().push(buffer);
        match done {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                self.refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn write_through<'p>(
        &self,
        buffer: &mut Buffer,
        mut at: u64,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> io::Result<()> {
        for part in parts {
            let mut rest = part;
            while !rest.is_empty() {
                rest = &rest[buffer.fill(rest)..];
                if buffer.is_full() {
                    at += self.write_out(buffer, at)?;
                }
            }
        }
        self.write_out(buffer, at).map(drop)
    }

    fn write_out(&self, buffer: &mut Buffer, at: u64) -> io::Result<u64> {
        let bytes = buffer.take();
        self.file.write_all_at(bytes, at)?;
        Ok(bytes.len() as u64)
    }
}

/// Aligned memory.
#[derive(Debug)]
struct Buffer {
    memory: Vec<u8>,
    /// Where the aligned part begins.
    start: usize,
    filled: usize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        let memory = vec![0; BUFFER_LEN + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Buffer { memory, start, filled: 0 }
    }
}

impl Buffer {
    /// Takes as much as there is room for, and returns how much.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.memory[self.start + self.filled..self.start + BUFFER_LEN];
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        self.filled += len;
        len
    }

    fn is_full(&self) -> bool {
        self.filled == BUFFER_LEN
    }

    /// What is in it; it is empty afterwards.
    fn take(&mut self) -> &[u8] {
        let len = std::mem::take(&mut self.filled);
        &self.memory[self.start..self.start + len]
    }
}

#[cfg(test)]
mod tests {
    use oleo_sim::oracle::{self, Loop, ReadOnly};
    use oleo_sim::rng::Rng;

    use super::*;
    use crate::{Device, FileDevice, FileOptions, WriteReq};

    /// Goal: what is written past the system's cache is read through it, whatever the cache held of the range before, and the other way
    /// round; and it is on the device.
    /// Method: seeded writes of both kinds to a block device, next to and over each other, of sectors and of odd lengths, compared with a
    /// vector of bytes by reads in between and by the file below at the end.
    #[test]
    fn both_ways_of_writing_agree() {
        let Some(oracle) = oracle::oracle() else { return };
        const LEN: usize = 8 << 20;
        let scratch = oracle.scratch().unwrap();
        let file = scratch.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(LEN as u64).unwrap();
        let attached = Loop::attach(&file, ReadOnly::No).unwrap();
        let device = FileDevice::open(attached.path(), &FileOptions::default().write(true)).unwrap();
        let direct = Direct::of(&OpenOptions::new().read(true).open(attached.path()).unwrap()).unwrap();
        assert!(direct.takes(0, RUN_LEN_MIN) && !direct.takes(1, RUN_LEN_MIN) && !direct.takes(0, RUN_LEN_MIN + 1));
        let mut rng = Rng::new(17);
        let mut want = vec![0; LEN];
        for _ in 0..300 {
            let unit = [512, 4096, 1000][rng.below(3) as usize];
            let len = (rng.below(1 << 21) as usize / unit + 1) * unit;
            let at = rng.below((LEN - len) as u64) as usize / unit * unit;
            let data = rng.bytes(len);
            let (head, tail) = data.split_at(rng.below(len as u64) as usize);
            let parts = [head, tail];
            let req = [WriteReq { offset: at as u64, parts: &parts }];
            if rng.below(2) == 0 { device.write_uncached(&req) } else { device.write_batch(&req) }.unwrap();
            want[at..at + len].copy_from_slice(&data);
            let from = rng.below((LEN - 70_000) as u64) as usize;
            let mut found = vec![0; 70_000];
            device.read_at(from as u64, &mut found).unwrap();
            assert!(found == want[from..from + found.len()], "after {at}+{len}");
        }
        device.flush().unwrap();
        drop((device, direct, attached));
        assert!(std::fs::read(&file).unwrap() == want, "the file below");
    }

    /// Goal: a device that takes no such writes is written through the cache, and only one that fails reports it.
    /// Method: a place that is no multiple of a sector is handed over, against the rule; then a file that is not open for writing.
    #[test]
    fn refusals_and_failures_differ() {
        let Some(oracle) = oracle::oracle() else { return };
        let scratch = oracle.scratch().unwrap();
        let file = scratch.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let attached = Loop::attach(&file, ReadOnly::No).unwrap();
        let mut direct = Direct::of(&std::fs::File::open(attached.path()).unwrap()).unwrap();
        let bytes = vec![7; RUN_LEN_MIN as usize];
        assert!(direct.write(4096, [&bytes[..]].into_iter()).unwrap());
        direct.file = std::fs::File::open(attached.path()).unwrap();
        assert!(direct.write(4096, [&bytes[..]].into_iter()).is_err());
        assert!(direct.takes(0, RUN_LEN_MIN));
        direct = Direct::of(&direct.file).unwrap();
        assert!(!direct.write(100, [&bytes[..]].into_iter()).unwrap());
        assert!(!direct.takes(0, RUN_LEN_MIN));
    }
}
