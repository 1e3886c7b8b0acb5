//! A volume on a device of one's own: here one that counts what it is asked to do. In its place may stand anything that keeps bytes at
//! offsets: a network, a database, another image.
//!
//! `cargo run --release -p oleo --example custom_device`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use oleo::device::MemDevice;
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions};
use oleo_device::DeviceError;

/// Keeps its bytes in memory, and counts.
pub struct Counting {
    inner: MemDevice,
    reads: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

impl Counting {
    /// A device of `len` zero bytes.
    pub fn new(len: u64) -> Counting {
        let zero = AtomicU64::default;
        Counting { inner: MemDevice::new(len), reads: zero(), written_bytes: zero(), flushes: zero() }
    }
}

/// The batches (`read_batch`, `write_batch`) call these one by one unless a device does better.
impl Device for Counting {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Relaxed);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.written_bytes.fetch_add(buf.len() as u64, Relaxed);
        self.inner.write_at(offset, buf)
    }
    /// What was written before must survive a crash when this returns: all promises of a volume rest on it.
    fn flush(&self) -> Result<(), DeviceError> {
        self.flushes.fetch_add(1, Relaxed);
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        "counting device".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let device = Arc::new(Counting::new(256 << 20));
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let image = Image::create_on(devices.clone(), &MkfsOptions::unique(), &OpenOptions::writing())?;
    image.write("file", &[1; 1 << 20])?;
    let (bytes, flushes) = (device.written_bytes.load(Relaxed), device.flushes.load(Relaxed));
    image.sync()?;
    let (bytes, flushes) = (device.written_bytes.load(Relaxed) - bytes, device.flushes.load(Relaxed) - flushes);
    println!("a commit of a file of 1 MiB: {bytes} bytes written, {flushes} flushes");
    image.close()?;

    let image = Image::from_devices(devices, &OpenOptions::default())?;
    if image.read("file")? != [1; 1 << 20] || bytes < 1 << 20 || flushes < 2 || device.reads.load(Relaxed) == 0 {
        return Err("the device was not asked for what a commit needs".into());
    }
    Ok(())
}
