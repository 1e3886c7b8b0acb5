//! The device: an open volume as [`Device`].
//!
//! A flush publishes, and takes one request to the store if little was written; with a local log it writes that. A barrier does nothing: the log is an order
//! of its own. After a failure nothing is written any more; reads go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use oleo_device::{Device, DeviceError, DeviceStats, Extent, ExtentKind, Limits, Op, ReadReq, WriteReq, Zeroing};

use crate::attach::{attach_reading, attach_writing};
use crate::disk_cache::DiskCache;
use crate::error::RemoteError;
use crate::flush::{flush, publish};
use crate::format::pins::Pin;
use crate::format::{BLOCK_LEN, DEVICE_LEN_MAX, REGION_BLOCKS};
use crate::keeper::Keeper;
use crate::options::StoreOptions;
use crate::pin::withdraw;
use crate::read::{Reading, look_up, read};
use crate::shared::{Core, add};
use crate::state::Source;
use crate::store::{REPEATED, Store};
use crate::{append, error};

/// How many regions one question for extents looks at.
const STATUS_REGIONS_MAX: u64 = 1024;

/// A volume on an object store; see the module's text.
pub struct RemoteDevice {
    pub(crate) core: Arc<Core>,
    keeper: Option<Keeper>,
}

impl RemoteDevice {
    /// Opens for reading: the newest head, or that of a pin. What is read is of that moment for as long as it is open.
    pub fn open(store: Arc<dyn Store>, pin: Option<&str>, options: &StoreOptions) -> Result<RemoteDevice, RemoteError> {
        RemoteDevice::of(attach_reading(store, pin, options)?)
    }

    /// Opens for writing, which ends the writing of everybody else.
    pub fn open_writable(store: Arc<dyn Store>, options: &StoreOptions) -> Result<RemoteDevice, RemoteError> {
        RemoteDevice::of(attach_writing(store, options)?)
    }

    pub(crate) fn of(core: Core) -> Result<RemoteDevice, RemoteError> {
        let core = Arc::new(core);
        let keeper = match core.options.keeper && !core.pinned {
            true => Some(Keeper::start(core.clone())?),
            false => None,
        };
        Ok(RemoteDevice { core, keeper })
    }

    /// Publishes what is written and says that nobody writes any more. Dropping it does the same and tells nobody whether it
    /// worked.
    pub fn close(mut self) -> Result<(), RemoteError> {
        self.keeper = None;
        self.release()
    }

    fn release(&self) -> Result<(), RemoteError> {
        if !self.core.write {
            return self.end_lease();
        }
        if let Some(log) = &self.core.log {
            log.stop();
        }
        let position = self.core.state.lock().position();
        publish(&self.core, position, true)?;
        if let Some(log) = &self.core.log {
            log.end();
        }
        Ok(())
    }

    fn end_lease(&self) -> Result<(), RemoteError> {
        if self.core.given_up.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let Some(lease) = self.core.lease.get() else { return Ok(()) };
        let deadline = self.core.deadline(self.core.options.bounds.publish_try);
        withdraw(&*self.core.store, lease, &self.core.options, deadline)
    }

    /// The uuid of the volume, which is not that of the file system on it.
    pub fn uuid(&self) -> [u8; 16] {
        self.core.uuid
    }

    /// The epoch of this writer; of a reader, that of the head it reads.
    pub fn epoch(&self) -> u32 {
        self.core.epoch
    }

    /// The lease that keeps what this reader sees.
    pub fn lease(&self) -> Option<&Pin> {
        self.core.lease.get()
    }

    /// How many frames the volume has had, those included that are not published.
    pub fn position(&self) -> u64 {
        self.core.state.lock().position()
    }

    /// The failure that ended writing.
    pub fn failure(&self) -> Option<Arc<RemoteError>> {
        self.core.latch.get().cloned()
    }

    /// Bytes in memory that are not published.
    pub fn dirty_bytes(&self) -> u64 {
        self.core.state.lock().dirty_bytes()
    }

    /// Memory of the map, bytes.
    pub fn map_bytes(&self) -> u64 {
        self.core.state.lock().regions.bytes()
    }

    fn name_arc(&self) -> Arc<str> {
        self.core.name.clone()
    }

    fn check(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        let size = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DeviceError::OutOfRange { name: self.name_arc(), op, offset, len, size }),
        }
    }

    fn check_change(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        if !self.core.write {
            return Err(DeviceError::ReadOnly { name: self.name_arc(), op });
        }
        self.check(op, offset, len)
    }

    fn failed(&self, op: Op, offset: u64, len: u64) -> impl Fn(RemoteError) -> DeviceError + '_ {
        move |e| error::of_device(self.name_arc(), op, offset, len, e)
    }

    fn zero(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check_change(op, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        append::zero(&self.core, offset, len).map_err(self.failed(op, offset, len))
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.keeper = None;
        if self.core.latch.get().is_none() {
            // Whoever wanted to know has flushed.
            let _unknown = self.release();
        }
    }
}

impl Device for RemoteDevice {
    fn len(&self) -> u64 {
        self.core.state.lock().device_len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let mut reqs = [ReadReq::new(offset, buf)];
        self.read_batch(&mut reqs);
        let [req] = reqs;
        req.result
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.write_batch(&[WriteReq { offset, parts: &[buf] }])
    }

    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        add(&self.core.counts.reads, reqs.len() as u64);
        let mut reads = Vec::with_capacity(reqs.len());
        let mut of = Vec::with_capacity(reqs.len());
        for req in reqs.iter_mut() {
            let len = req.buf.len() as u64;
            req.result = self.check(Op::Read, req.offset, len);
            if req.result.is_ok() {
                add(&self.core.counts.read_bytes, len);
                reads.push(Reading { offset: req.offset, buf: &mut *req.buf, result: Ok(()) });
                of.push(&mut req.result);
            }
        }
        read(&self.core, &mut reads);
        for (read, result) in reads.into_iter().zip(of) {
            let (offset, len) = (read.offset, read.buf.len() as u64);
            *result = read.result.map_err(self.failed(Op::Read, offset, len));
        }
    }

    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        for req in reqs {
            self.check_change(Op::Write, req.offset, req.len())?;
        }
        add(&self.core.counts.writes, reqs.len() as u64);
        for req in reqs {
            add(&self.core.counts.write_bytes, req.len());
            append::write(&self.core, req.offset, req.parts).map_err(self.failed(Op::Write, req.offset, req.len()))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if !self.core.write {
            return Ok(());
        }
        add(&self.core.counts.flushes, 1);
        let position = self.core.state.lock().position();
        flush(&self.core, position).map_err(self.failed(Op::Flush, 0, 0))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        add(&self.core.counts.discards, 1);
        self.zero(Op::Discard, offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.check_change(Op::Resize, 0, 0)?;
        if len > DEVICE_LEN_MAX {
            let what = format!("a device of {len} bytes; {DEVICE_LEN_MAX} are the most");
            return Err(self.failed(Op::Resize, 0, len)(RemoteError::Limit { what }));
        }
        append::set_len(&self.core, len).map_err(self.failed(Op::Resize, 0, len))
    }

    fn name(&self) -> String {
        self.core.name.to_string()
    }

    fn read_only(&self) -> bool {
        !self.core.write || self.core.latch.get().is_some()
    }

    fn release(&self) -> Result<(), DeviceError> {
        RemoteDevice::release(self).map_err(self.failed(Op::Flush, 0, 0))
    }

    fn limits(&self) -> Limits {
        let limits = Limits::default().block_len(BLOCK_LEN as u32).preferred_len(256 << 10);
        limits.depth(128).wants_discard(true)
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        if !self.core.write {
            return Ok(());
        }
        self.core.check_latch().map_err(self.failed(Op::Flush, 0, 0))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _how: Zeroing) -> Result<(), DeviceError> {
        self.zero(Op::Zero, offset, len)
    }

    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.check(Op::Status, offset, len)?;
        let mut out: Vec<Extent> = Vec::new();
        if count_max == 0 || len == 0 {
            return Ok(out);
        }
        let (block, end) = (BLOCK_LEN as u64, offset + len);
        let deadline = self.core.deadline(self.core.options.bounds.read_max);
        let mut at = offset;
        for _ in 0..STATUS_REGIONS_MAX {
            let stop = end.min((at / block / REGION_BLOCKS + 1) * REGION_BLOCKS * block);
            let first = at / block;
            let found = look_up(&self.core, first, stop.div_ceil(block) - first, deadline);
            for found in found.map_err(self.failed(Op::Status, offset, len))? {
                let to = ((found.first + found.blocks) * block).min(stop);
                let kind = if matches!(found.source, Source::Zeros) { ExtentKind::Hole } else { ExtentKind::Data };
                let is_full = out.len() == count_max;
                match out.last_mut() {
                    Some(last) if last.kind == kind => last.len += to - at,
                    _ if is_full => return Ok(out),
                    _ => out.push(Extent { len: to - at, kind }),
                }
                at = to;
            }
            if at >= end {
                break;
            }
        }
        Ok(out)
    }

    fn stats(&self) -> Option<DeviceStats> {
        let counts = &self.core.counts;
        let get = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let mut stats = DeviceStats::default();
        stats.reads = get(&counts.reads);
        stats.read_bytes = get(&counts.read_bytes);
        stats.writes = get(&counts.writes);
        stats.write_bytes = get(&counts.write_bytes);
        stats.flushes = get(&counts.flushes);
        stats.discards = get(&counts.discards);
        stats.extra = vec![
            ("parts read from the store", get(&counts.gets)),
            ("segments stored", get(&counts.segment_puts)),
            ("heads stored", get(&counts.head_puts)),
            ("checkpoints", get(&counts.checkpoints)),
            ("objects deleted", get(&counts.deletes)),
            ("bytes moved", get(&counts.moved_bytes)),
            ("frames from the cache", get(&counts.cache_hits)),
            ("frames from the disk", get(&counts.disk_hits)),
            ("bytes not published", self.dirty_bytes()),
        ];
        let away = &self.core.away;
        stats.extra.extend([
            ("away now", u64::from(away.is_away())),
            ("times it went away", get(&away.times)),
            ("reads not sent because it was away", get(&away.refused)),
        ]);
        for (name, count) in self.core.store.counts() {
            match name {
                REPEATED => stats.retries = count,
                _ => stats.extra.push((name, count)),
            }
        }
        if let Some(log) = &self.core.log {
            stats.extra.extend(log.stats());
        }
        if self.core.disk.is_some() {
            stats.extra.push(("bytes of the disk cache", self.core.disks().map(DiskCache::bytes).sum()));
            stats.extra.push(("failures of the disk cache", self.core.disks().map(DiskCache::failures).sum()));
        }
        Some(stats)
    }
}
