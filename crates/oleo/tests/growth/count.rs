//! The counts: of an allocator, of devices, of debug builds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use oleo::fs::KeepSize;
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions};
use oleo_device::{DeviceError, MemDevice, ReadReq, WriteReq};
use oleo_format::work;

struct Counting;

static PIECES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static REQUESTS: AtomicU64 = AtomicU64::new(0);
static MOVED: AtomicU64 = AtomicU64::new(0);

fn asked_for(bytes: usize) {
    PIECES.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed on as it is to the system's allocator, which keeps the contract; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked_for(layout.size());
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked_for(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        asked_for(len);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The names of the costs.
pub const COSTS: [&str; 7] = ["items", "locks", "pieces", "bytes", "requests", "bytes of requests", "processor us"];

/// How much of each.
pub type Cost = [u64; 7];

fn now() -> Cost {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (steps, taken) = (work::steps().unwrap_or(0), oleo_lock::taken().unwrap_or(0));
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let micros = time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000;
    [steps, taken, load(&PIECES), load(&BYTES), load(&REQUESTS), load(&MOVED), micros]
}

/// Returns the cost of an operation.
pub fn measure<T>(operation: impl FnOnce() -> Result<T>) -> Result<Cost> {
    work::count(true);
    let before = now();
    let done = operation();
    let after = now();
    work::count(false);
    done?;
    Ok(std::array::from_fn(|at| after[at] - before[at]))
}

/// Memory that counts its requests.
pub struct Memory(MemDevice);

impl Memory {
    pub fn new(len: u64) -> Arc<Memory> {
        Arc::new(Memory(MemDevice::new(len)))
    }

    /// A copy of the contents as of now, as after a crash.
    pub fn copy(&self) -> Arc<Memory> {
        Arc::new(Memory(self.0.copy()))
    }
}

fn request(bytes: u64) {
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    MOVED.fetch_add(bytes, Ordering::Relaxed);
}

impl Device for Memory {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        request(buf.len() as u64);
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        request(buf.len() as u64);
        self.0.write_at(offset, buf)
    }
    fn read_batch(&self, reqs: &mut [ReadReq<'_>]) {
        reqs.iter().for_each(|req| request(req.buf.len() as u64));
        self.0.read_batch(reqs);
    }
    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        reqs.iter().for_each(|req| request(req.len()));
        self.0.write_batch(reqs)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        request(0);
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        request(0);
        self.0.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.0.set_len(len)
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Small blocks: trees are high with few items.
const NODESIZE: u32 = 4096;
const DEVICE_LEN: u64 = 8 << 30;
/// More than the chunk that a new volume begins with.
const FIRST_CHUNKS_LEN: u64 = 64 << 20;

/// A new volume in memory, and its devices.
pub fn volume_on(devices: usize, mkfs: &MkfsOptions) -> Result<(Image, Vec<Arc<Memory>>)> {
    volume_of(devices, mkfs, DEVICE_LEN)
}

/// The same on devices of another size.
pub fn volume_of(devices: usize, mkfs: &MkfsOptions, len: u64) -> Result<(Image, Vec<Arc<Memory>>)> {
    let memory: Vec<Arc<Memory>> = (0..devices).map(|_| Memory::new(len)).collect();
    let mkfs = mkfs.clone().nodesize(Some(NODESIZE));
    let image = Image::create_on(as_devices(&memory), &mkfs, &options())?;
    // So that no case makes the second chunk of data, with all that comes with a chunk.
    image.write("room", b"")?;
    image.fs().preallocate(&image.find("room")?, 0, FIRST_CHUNKS_LEN, KeepSize::No)?;
    image.sync()?;
    Ok((image, memory))
}

fn as_devices(memory: &[Arc<Memory>]) -> Vec<Arc<dyn Device>> {
    memory.iter().map(|memory| memory.clone() as Arc<dyn Device>).collect()
}

fn options() -> OpenOptions {
    OpenOptions::writing()
}

/// A new volume on one device.
pub fn volume() -> Result<Image> {
    Ok(volume_on(1, &MkfsOptions::default())?.0)
}

/// Opens the volume on the devices anew, with nothing in memory.
pub fn open(memory: &[Arc<Memory>]) -> Result<Image> {
    Ok(Image::from_devices(as_devices(memory), &options())?)
}

/// Copies the devices as they are now, as after a crash.
pub fn after_crash(memory: &[Arc<Memory>]) -> Vec<Arc<Memory>> {
    memory.iter().map(|memory| memory.copy()).collect()
}

/// Checks a volume that is not open.
pub fn check(memory: &[Arc<Memory>], data: bool) -> Result<()> {
    let how = oleo::check::CheckOptions::default().data(data);
    let report = oleo::check::devices(as_devices(memory), false, Default::default(), &how)?;
    anyhow::ensure!(report.is_clean(), "{:?}", report.findings);
    Ok(())
}
