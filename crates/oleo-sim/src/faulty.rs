//! A device that fails as a test asks for, from a moment on and until it is told to stop.
//!
//! What is refused is not done. Requests that are not of the kind that fails pass.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use oleo_device::{Device, DeviceError, Op, WriteReq};

/// `ENOSPC` of the UAPI header `asm-generic/errno-base.h`.
const ENOSPC: i32 = 28;

/// What fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Writes.
    Writes,
    /// Flushes, and what is said to the device when whoever has it open is done.
    Flushes,
    /// Reads.
    Reads,
    /// Everything: it was pulled out.
    All,
    /// Writes, for want of room below.
    Full,
}

impl Trouble {
    const ALL: [Trouble; 6] =
        [Trouble::None, Trouble::Writes, Trouble::Flushes, Trouble::Reads, Trouble::All, Trouble::Full];
}

/// The device.
pub struct Faulty {
    inner: Arc<dyn Device>,
    trouble: AtomicU8,
    /// Requests that fail that pass before.
    spared: AtomicU64,
    struck: AtomicU64,
}

impl Faulty {
    /// One that does not fail yet.
    pub fn new(inner: Arc<dyn Device>) -> Faulty {
        Faulty { inner, trouble: AtomicU8::new(0), spared: AtomicU64::new(0), struck: AtomicU64::new(0) }
    }

    /// Fails like this from now on.
    pub fn fail(&self, trouble: Trouble) {
        self.fail_after(trouble, 0);
    }

    /// The same after so many requests of that kind.
    pub fn fail_after(&self, trouble: Trouble, spared: u64) {
        self.spared.store(spared, Ordering::SeqCst);
        self.trouble.store(trouble as u8, Ordering::SeqCst);
    }

    /// How many requests have failed.
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::SeqCst)
    }

    fn pass(&self, op: Op, offset: u64, len: u64) -> Result<(), DeviceError> {
        let trouble = Trouble::ALL[usize::from(self.trouble.load(Ordering::SeqCst))];
        let fails = match trouble {
            Trouble::None => false,
            Trouble::Writes | Trouble::Full => op == Op::Write,
            Trouble::Flushes => op == Op::Flush,
            Trouble::Reads => op == Op::Read,
            Trouble::All => true,
        };
        let spare = |left: u64| left.checked_sub(1);
        if !fails || self.spared.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spare).is_ok() {
            return Ok(());
        }
        self.struck.fetch_add(1, Ordering::SeqCst);
        let source = match trouble {
            Trouble::Full => io::Error::from_raw_os_error(ENOSPC),
            _ => io::Error::other("a fault that a test asked for"),
        };
        Err(DeviceError::Io { name: self.name().into(), op, offset, len, source: Arc::new(source) })
    }
}

impl Device for Faulty {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(Op::Read, offset, buf.len() as u64)?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.pass(Op::Write, offset, buf.len() as u64)?;
        self.inner.write_at(offset, buf)
    }

    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        reqs.iter().try_for_each(|req| self.pass(Op::Write, req.offset, req.len()))?;
        self.inner.write_batch(reqs)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.pass(Op::Flush, 0, 0)?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.pass(Op::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.pass(Op::Resize, 0, len)?;
        self.inner.set_len(len)
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn release(&self) -> Result<(), DeviceError> {
        self.pass(Op::Flush, 0, 0)?;
        self.inner.release()
    }
}
