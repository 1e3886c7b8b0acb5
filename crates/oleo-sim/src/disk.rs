//! A disk that can lose power and fail: what was flushed survives; of what came after it any part may.
//!
//! Normal path: (1) [`SimDisk::new`] takes the initial contents; (2) the disk is used as any device; (3)
//! [`Power::cut_after`] lets a number of writes and flushes through, over all disks that share the switch, and fails
//! everything after them; or a test just stops; (4) [`SimDisk::after_crash`] returns what a machine finds when it comes
//! up again.
//!
//! Invariants: reads see every write immediately, as through a drive's cache. A crash keeps what the last successful
//! flush covered, and of later writes a random choice of sectors of [`SECTOR`] bytes: writes can be lost, torn, and
//! reordered. Two crashes with one seed are alike.
//! Locks: one, held for each write, so that "before the flush" has a meaning.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use oleo_device::{Device, DeviceError, MemDevice, Op};

use crate::rng::Rng;

/// Bytes that are written completely or not at all. A superblock has this size, and the kernel reads only the first of
/// its copies: it, too, assumes that a superblock is never torn.
pub const SECTOR: usize = 4096;

/// The switch that several disks hang on.
#[derive(Clone, Debug)]
pub struct Power(Arc<AtomicI64>);

impl Power {
    /// Never fails.
    pub fn steady() -> Power {
        Power(Arc::new(AtomicI64::new(i64::MAX)))
    }

    /// Fails after this many more writes and flushes.
    pub fn cut_after(&self, operations: u32) {
        self.0.store(operations.into(), Ordering::SeqCst);
    }

    /// Whether it has failed.
    pub fn is_cut(&self) -> bool {
        self.0.load(Ordering::SeqCst) < 0
    }

    fn take(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) > 0
    }
}

/// A disk in memory; see the module's text.
pub struct SimDisk {
    name: Arc<str>,
    /// With every write, flushed or not.
    seen: MemDevice,
    state: Mutex<State>,
    power: Power,
}

/// A change that the disk has accepted and may still lose.
enum Change {
    Write(u64, Vec<u8>),
    /// Offset, length in bytes, and whether zeros replace the data, not rubbish.
    Discard(u64, u64, bool),
    SetLen(u64),
}

impl Change {
    /// Applies it; of a change that consists of sectors only those that are `kept`.
    fn apply(&self, disk: &MemDevice, kept: &mut dyn FnMut() -> bool) -> Result<(), DeviceError> {
        match self {
            Change::Write(offset, data) => {
                for (i, sector) in data.chunks(SECTOR).enumerate().filter(|_| kept()) {
                    // Sectors beyond the present end are dropped.
                    let _gone = disk.write_at(offset + (i * SECTOR) as u64, sector);
                }
                Ok(())
            }
            Change::Discard(offset, len, zeros) => {
                for at in (0..*len).step_by(SECTOR).filter(|_| kept()) {
                    let (at, len) = (offset + at, (SECTOR as u64).min(len - at));
                    let _gone =
                        if *zeros { disk.discard(at, len) } else { disk.write_at(at, &[0xd5; SECTOR][..len as usize]) };
                }
                Ok(())
            }
            Change::SetLen(len) if kept() => disk.set_len(*len),
            Change::SetLen(_) => Ok(()),
        }
    }
}

struct State {
    /// As of the last flush.
    stable: MemDevice,
    /// Since then, in order.
    pending: Vec<Change>,
    writes: u64,
    flushes: u64,
    runs: u64,
    /// Where the last write ended, if it was not flushed yet.
    run_end: Option<u64>,
}

impl SimDisk {
    /// A disk with these contents.
    pub fn new(name: &str, contents: MemDevice, power: &Power) -> SimDisk {
        let state =
            State { stable: contents.copy(), pending: Vec::new(), writes: 0, flushes: 0, runs: 0, run_end: None };
        SimDisk { name: name.into(), seen: contents, state: Mutex::new(state), power: power.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half done in here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The contents found after a crash at this moment.
    pub fn after_crash(&self, rng: &mut Rng) -> MemDevice {
        let state = self.state();
        let disk = state.stable.copy();
        // Sometimes everything, sometimes nothing, mostly a part.
        let kept_of_eight = rng.below(9);
        for change in &state.pending {
            // Memory does not fail.
            let _done = change.apply(&disk, &mut || rng.below(8) < kept_of_eight);
        }
        disk
    }

    /// How many writes there were if those that go on where the one before ended are one, as a disk gets them.
    pub fn runs(&self) -> u64 {
        self.state().runs
    }

    /// How many writes and flushes there were.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.writes, state.flushes)
    }

    fn no_power(&self, op: Op, offset: u64, len: u64) -> DeviceError {
        let source = Arc::new(io::Error::other("the power is off"));
        DeviceError::Io { name: self.name.clone(), op, offset, len, source }
    }
}

impl Device for SimDisk {
    fn len(&self) -> u64 {
        self.seen.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if self.power.is_cut() {
            return Err(self.no_power(Op::Read, offset, buf.len() as u64));
        }
        self.seen.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.state();
        if !self.power.take() {
            return Err(self.no_power(Op::Write, offset, buf.len() as u64));
        }
        self.seen.write_at(offset, buf)?;
        state.pending.push(Change::Write(offset, buf.to_vec()));
        state.writes += 1;
        state.runs += u64::from(state.run_end != Some(offset));
        state.run_end = Some(offset + buf.len() as u64);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        if !self.power.take() {
            return Err(self.no_power(Op::Flush, 0, 0));
        }
        for change in std::mem::take(&mut state.pending) {
            change.apply(&state.stable, &mut || true)?;
        }
        state.flushes += 1;
        state.run_end = None;
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        if !self.power.take() {
            return Err(self.no_power(Op::Discard, offset, len));
        }
        self.seen.discard(offset, len)?;
        let zeros = state.pending.len().is_multiple_of(2);
        state.pending.push(Change::Discard(offset, len, zeros));
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        if !self.power.take() {
            return Err(self.no_power(Op::Resize, 0, len));
        }
        self.seen.set_len(len)?;
        state.pending.push(Change::SetLen(len));
        Ok(())
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        false
    }
}

/// Copies between a file and memory go in steps of this many bytes; steps of zeros are left out.
const COPY_LEN: usize = 64 << 10;

/// Reads a file into memory.
pub fn load(path: &Path) -> Result<MemDevice> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path)?;
    let len = file.metadata()?.len();
    let device = MemDevice::named(&path.display().to_string(), len);
    let (mut buf, zeros) = (vec![0; COPY_LEN], vec![0; COPY_LEN]);
    for at in (0..len).step_by(COPY_LEN) {
        let part = COPY_LEN.min(usize::try_from(len - at)?);
        file.read_exact_at(&mut buf[..part], at)?;
        if buf[..part] != zeros[..part] {
            device.write_at(at, &buf[..part])?;
        }
    }
    Ok(device)
}

/// Writes a disk to a new file, sparse.
pub fn store(device: &dyn Device, path: &Path) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path)?;
    file.set_len(device.len())?;
    let (mut buf, zeros) = (vec![0; COPY_LEN], vec![0; COPY_LEN]);
    for at in (0..device.len()).step_by(COPY_LEN) {
        let part = COPY_LEN.min(usize::try_from(device.len() - at)?);
        device.read_at(at, &mut buf[..part])?;
        if buf[..part] != zeros[..part] {
            file.write_all_at(&buf[..part], at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
