//! A member of the volume: a device, what the file system knows about it, and its errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_device::{Device, DeviceError, DeviceStats, Latched};
use oleo_format::{ByteLen, Corruption, DevId, DevItem, Physical};
use oleo_lock::{Mutex, rank};
use uuid::Uuid;

use crate::error::VolumeError;

/// Error counts of a device, in the order of the DEV_STATS item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ErrorCounters {
    /// Writes that failed.
    pub write: u64,
    /// Reads that failed.
    pub read: u64,
    /// Flushes that failed.
    pub flush: u64,
    /// Bad checksums, and blocks with wrong contents.
    pub corruption: u64,
    /// Blocks of another generation than their parent has: lost writes.
    pub generation: u64,
}

impl ErrorCounters {
    /// The values of a DEV_STATS item.
    pub fn to_values(self) -> [u64; 5] {
        [self.write, self.read, self.flush, self.corruption, self.generation]
    }

    /// From the values of a DEV_STATS item.
    pub fn from_values(v: [u64; 5]) -> ErrorCounters {
        ErrorCounters { write: v[0], read: v[1], flush: v[2], corruption: v[3], generation: v[4] }
    }
}

/// Which of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    Write = 0,
    Read = 1,
    Flush = 2,
    Corruption = 3,
    Generation = 4,
}

/// A device as the volume shows it to others.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its number in the volume.
    pub devid: DevId,
    /// Its own uuid.
    pub uuid: Uuid,
    /// The path or name that it was opened by; empty when missing.
    pub name: String,
    /// Bytes that the file system may use.
    pub total: ByteLen,
    /// Bytes in chunks.
    pub used: ByteLen,
    /// Whether no device was given for it.
    pub missing: bool,
    /// Whether it belongs to a seed: read, never written.
    pub seed: bool,
    /// Whether its superblock is older than that of others: it missed writes.
    pub stale: bool,
    /// Its errors.
    pub errors: ErrorCounters,
    /// Its item in the chunk tree.
    pub item: DevItem,
    /// What it has been asked to do, if it counts.
    pub stats: Option<DeviceStats>,
}

/// While it lives, new chunks keep away from the end of a device.
#[must_use]
pub struct KeptFree(Arc<Member>);

impl KeptFree {
    pub(crate) fn new(member: Arc<Member>, end: ByteLen) -> KeptFree {
        member.room_end.store(end.0, Ordering::SeqCst);
        KeptFree(member)
    }
}

impl Drop for KeptFree {
    fn drop(&mut self) {
        self.0.room_end.store(u64::MAX, Ordering::SeqCst);
    }
}

/// A device's item in two transactions.
#[derive(Clone, Copy)]
pub(crate) struct Settled {
    /// The one on disk.
    pub written: DevItem,
    /// The one that is to be written.
    pub next: DevItem,
}

pub(crate) struct Member {
    pub devid: DevId,
    pub uuid: Uuid,
    pub item: Mutex<rank::DeviceItem, DevItem>,
    /// The item as the trees of superblocks have it: those of the last one written, and of the next one. Later changes
    /// are in no tree yet.
    pub settled: Mutex<rank::WrittenItem, Settled>,
    /// `None`: missing.
    pub device: Option<Arc<Latched>>,
    /// The same without the latch, for healing: the volume continues if a bad copy stays bad.
    pub plain: Option<Arc<dyn Device>>,
    pub seed: bool,
    /// Transactions that its superblock lacks.
    pub behind: u64,
    /// New chunks keep away from the space behind this offset in bytes; usually there is no limit.
    room_end: AtomicU64,
    counts: [AtomicU64; 5],
}

impl Member {
    pub fn new(item: DevItem, device: Option<Arc<dyn Device>>, seed: bool, behind: u64) -> Member {
        Member {
            devid: DevId(item.devid.get()),
            uuid: Uuid::from_bytes(item.uuid),
            item: Mutex::new(item),
            settled: Mutex::new(Settled { written: item, next: item }),
            device: device.clone().map(|d| Arc::new(Latched::new(d))),
            plain: device,
            seed,
            behind,
            room_end: AtomicU64::new(u64::MAX),
            counts: Default::default(),
        }
    }

    /// A device of which nothing is known but that a chunk names it.
    pub fn unknown(devid: DevId, uuid: Uuid) -> Member {
        let item = DevItem { devid: devid.0.into(), uuid: uuid.into_bytes(), ..DevItem::default() };
        Member::new(item, None, false, 0)
    }

    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn counters(&self) -> ErrorCounters {
        ErrorCounters::from_values(std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)))
    }

    pub fn take_counters(&self) -> ErrorCounters {
        ErrorCounters::from_values(std::array::from_fn(|i| self.counts[i].swap(0, Ordering::Relaxed)))
    }

    pub fn add_counters(&self, more: ErrorCounters) {
        for (count, value) in self.counts.iter().zip(more.to_values()) {
            count.fetch_add(value, Ordering::Relaxed);
        }
    }

    pub fn set_counters(&self, to: ErrorCounters) {
        for (count, value) in self.counts.iter().zip(to.to_values()) {
            count.store(value, Ordering::Relaxed);
        }
    }

    /// Counts a block that turned out bad.
    pub fn count_corruption(&self, why: &Corruption) {
        self.count(if why.what == "generation" { Count::Generation } else { Count::Corruption });
    }

    pub fn read(&self, at: Physical, buf: &mut [u8]) -> Result<(), VolumeError> {
        let device = self.device.as_ref().ok_or(VolumeError::OnMissing { devid: self.devid })?;
        device.read_at(at.0, buf).map_err(|e| self.read_failed(e))
    }

    pub fn read_failed(&self, e: DeviceError) -> VolumeError {
        self.count(Count::Read);
        e.into()
    }

    /// The device, if this member may be written.
    pub fn to_write(&self) -> Result<&Arc<Latched>, VolumeError> {
        match &self.device {
            None => Err(VolumeError::MissingForWriting { devid: self.devid, uuid: self.uuid }),
            Some(_) if self.seed => Err(VolumeError::ReadOnly),
            Some(device) => Ok(device),
        }
    }

    /// Bytes that the file system may use: the number in the item, as far as the device is long enough.
    pub fn total(&self) -> u64 {
        let total = self.item.lock().total_bytes.get();
        self.device.as_ref().map_or(total, |d| total.min(d.len()))
    }

    /// The offset up to which new chunks may be placed.
    pub fn room_end(&self) -> u64 {
        self.total().min(self.room_end.load(Ordering::SeqCst))
    }

    pub fn info(&self) -> DeviceInfo {
        let item = *self.item.lock();
        DeviceInfo {
            devid: self.devid,
            uuid: self.uuid,
            name: self.device.as_ref().map(|d| d.name()).unwrap_or_default(),
            total: ByteLen(item.total_bytes.get()),
            used: ByteLen(item.bytes_used.get()),
            missing: self.device.is_none(),
            seed: self.seed,
            stale: self.behind > 0,
            errors: self.counters(),
            item,
            stats: self.device.as_ref().and_then(|d| d.stats()),
        }
    }
}
