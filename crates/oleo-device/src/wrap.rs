//! Devices around devices.

use std::sync::{Arc, OnceLock};

use crate::{Device, DeviceError, DeviceStats, Extent, Limits, Op, ReadReq, WriteReq, Zeroing, check_range};

/// A part of another device, with an end of its own.
pub struct Window {
    inner: Arc<dyn Device>,
    name: Arc<str>,
    /// First byte, on the inner device.
    base: u64,
    len: u64,
}

impl Window {
    /// `len` bytes of `inner` from `base` on, or `OutOfRange` if it is too short.
    pub fn new(inner: Arc<dyn Device>, base: u64, len: u64) -> Result<Window, DeviceError> {
        let name: Arc<str> = inner.name().into();
        check_range(&name, Op::Open, base, len, inner.len())?;
        Ok(Window { inner, name, base, len })
    }

    fn shift(&self, op: Op, offset: u64, len: u64) -> Result<u64, DeviceError> {
        check_range(&self.name, op, offset, len, self.len)?;
        Ok(self.base + offset)
    }

    fn shifted<'a>(&self, reqs: &[WriteReq<'a>]) -> Result<Vec<WriteReq<'a>>, DeviceError> {
        reqs.iter()
            .map(|r| Ok(WriteReq { offset: self.shift(Op::Write, r.offset, r.len())?, parts: r.parts }))
            .collect()
    }
}

impl Device for Window {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(self.shift(Op::Read, offset, buf.len() as u64)?, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(self.shift(Op::Write, offset, buf.len() as u64)?, buf)
    }

    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        let mut inside = Vec::with_capacity(reqs.len());
        let mut slots = Vec::with_capacity(reqs.len());
        for req in reqs.iter_mut() {
            match self.shift(Op::Read, req.offset, req.buf.len() as u64) {
                Ok(offset) => {
                    inside.push(ReadReq::new(offset, req.buf));
                    slots.push(&mut req.result);
                }
                Err(e) => req.result = Err(e),
            }
        }
        self.inner.read_batch(&mut inside);
        for (slot, req) in slots.into_iter().zip(inside) {
            *slot = req.result;
        }
    }

    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.inner.write_batch(&self.shifted(reqs)?)
    }

    fn write_uncached(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.inner.write_uncached(&self.shifted(reqs)?)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(self.shift(Op::Discard, offset, len)?, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        if len == self.len {
            return Ok(());
        }
        Err(DeviceError::Unsupported { name: self.name.clone(), op: Op::Resize })
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn release(&self) -> Result<(), DeviceError> {
        self.inner.release()
    }

    fn limits(&self) -> Limits {
        let inner = self.inner.limits();
        // Blocks that do not begin where the inner ones do are no blocks.
        match self.base.is_multiple_of(u64::from(inner.block_len)) {
            true => inner,
            false => inner.block_len(1),
        }
    }

    fn barrier(&self) -> Result<(), DeviceError> {
        self.inner.barrier()
    }

    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.inner.write_durable(&self.shifted(reqs)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), DeviceError> {
        self.inner.write_zeroes(self.shift(Op::Zero, offset, len)?, len, how)
    }

    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.inner.extents(self.shift(Op::Status, offset, len)?, len, count_max)
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let Ok(offset) = self.shift(Op::Status, offset, len) {
            self.inner.will_read(offset, len);
        }
    }

    fn stats(&self) -> Option<DeviceStats> {
        self.inner.stats()
    }
}

/// A device that remembers its first failed write or flush: from then on it refuses every change with that failure.
///
/// After a failed flush it is unknown which of the earlier writes arrived, and the system may forget that they did not;
/// a second flush that succeeds would prove nothing. A write that found no space ([`DeviceError::is_full`]) does not
/// close it: such a write was certainly not taken, and the caller repeats it or reports the error. A barrier that fails
/// closes it as a flush does.
pub struct Latched {
    inner: Arc<dyn Device>,
    name: Arc<str>,
    first: OnceLock<Arc<DeviceError>>,
}

impl Latched {
    /// Puts a latch on `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Latched {
        let name = inner.name().into();
        Latched { inner, name, first: OnceLock::new() }
    }

    /// The failure that closed it, if one did.
    pub fn failure(&self) -> Option<&DeviceError> {
        self.first.get().map(|e| &**e)
    }

    fn guard(&self, op: Op, work: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        if let Some(first) = self.first.get() {
            return Err(DeviceError::Latched { name: self.name.clone(), op, first: first.clone() });
        }
        work().inspect_err(|e| {
            // Zeros that could not be written quickly have changed nothing.
            if e.is_full() || matches!(e, DeviceError::Unsupported { op: Op::Zero, .. }) {
                return;
            }
            // Two threads may fail concurrently; one of the two failures is the first.
            let _ = self.first.set(Arc::new(e.clone()));
        })
    }
}

impl Device for Latched {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        oleo_lock::before_io();
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.guard(Op::Write, || self.inner.write_at(offset, buf))
    }
    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        oleo_lock::before_io();
        self.inner.read_batch(reqs)
    }
    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.guard(Op::Write, || self.inner.write_batch(reqs))
    }
    fn write_uncached(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.guard(Op::Write, || self.inner.write_uncached(reqs))
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.guard(Op::Flush, || self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        oleo_lock::before_io();
        // A discard that fails loses nothing, so it does not close the latch; a closed latch still refuses it.
        if let Some(first) = self.first.get() {
            return Err(DeviceError::Latched { name: self.name.clone(), op: Op::Discard, first: first.clone() });
        }
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        oleo_lock::before_io();
        if let Some(first) = self.first.get() {
            return Err(DeviceError::Latched { name: self.name.clone(), op: Op::Resize, first: first.clone() });
        }
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn read_only(&self) -> bool {
        self.first.get().is_some() || self.inner.read_only()
    }
    fn release(&self) -> Result<(), DeviceError> {
        self.guard(Op::Flush, || self.inner.release())
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn barrier(&self) -> Result<(), DeviceError> {
        self.guard(Op::Flush, || self.inner.barrier())
    }
    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.guard(Op::Write, || self.inner.write_durable(reqs))
    }
    fn write_zeroes(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), DeviceError> {
        self.guard(Op::Zero, || self.inner.write_zeroes(offset, len, how))
    }
    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        oleo_lock::before_io();
        self.inner.extents(offset, len, count_max)
    }
    fn will_read(&self, offset: u64, len: u64) {
        self.inner.will_read(offset, len);
    }
    fn stats(&self) -> Option<DeviceStats> {
        self.inner.stats()
    }
}
