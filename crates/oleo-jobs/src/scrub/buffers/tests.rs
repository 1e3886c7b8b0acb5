//! Scrubs of volumes of many devices in memory, and what they hold.

use std::time::Duration;

use oleo_device::{Device, DeviceError, MemDevice};
use oleo_format::TreeId;
use oleo_fs::data::KeepSize;
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_mkfs::MkfsOptions;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Profile, Volume};

use super::super::run::Orders;
use super::super::threads;
use super::super::{ScrubWant, Shared};
use super::*;

/// Bytes of a device: none of them is in memory before it is written to.
const DEVICE_LEN: u64 = 256 << 20;
/// How long a unit takes to be read: so long that all that may be under way together is.
const READ_TIME: Duration = Duration::from_millis(2);

/// A device in memory that takes its time.
struct Slow(MemDevice);

impl Device for Slow {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if buf.len() as u64 == STRIPE_LEN {
            std::thread::sleep(READ_TIME);
        }
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
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

fn open(devices: &[Arc<dyn Device>], write: bool) -> Fs {
    let options = OpenOptions { write, degraded: true, ..OpenOptions::default() };
    let volume = Volume::open(devices.to_vec(), &options).unwrap();
    let engine = Engine::open(Arc::new(volume), &EngineOptions { read_only: !write, ..EngineOptions::default() });
    Fs::open(engine.unwrap(), &FsOptions::default().read_only(!write)).unwrap()
}

/// A volume over so many devices, with a file of so many rows that takes space and was never written.
fn volume_of(devices: usize, rows: u64) -> Vec<Arc<dyn Device>> {
    let slow = |_| Arc::new(Slow(MemDevice::new(DEVICE_LEN))) as Arc<dyn Device>;
    let all: Vec<Arc<dyn Device>> = (0..devices).map(slow).collect();
    let options = MkfsOptions::default().data(Some(Profile::Raid5)).metadata(Some(Profile::Raid1)).seed([5; 32]);
    oleo_mkfs::make(&all, &options).unwrap();
    let fs = open(&all, true);
    let root = fs.root(TreeId::FS).unwrap();
    let file = fs.create(&root, b"file", &NewInode::new(NewKind::File, 0o644)).unwrap();
    fs.preallocate(&file, 0, rows * (devices as u64 - 1) * STRIPE_LEN, KeepSize::No).unwrap();
    fs.sync().unwrap();
    all
}

/// Scrubs without healing. Returns the most bytes that were held, bytes of parity that were looked at, and all errors.
fn scrubbed(devices: &[Arc<dyn Device>]) -> (u64, u64, u64) {
    let fs = open(devices, false);
    let (shared, want) = (Shared::default(), ScrubWant::new().repair(false));
    let there = fs.engine().volume().devices().into_iter().filter(|device| !device.missing);
    let all = there.map(|device| (device.devid, 0)).collect();
    threads::run(&fs, &shared, &Orders { want: &want, devices: all, alone: true, offers: None }, &|| ()).unwrap();
    assert_eq!(shared.buffers.held.load(SeqCst), 0, "all is given back");
    let progress = shared.progress.lock();
    let sum = |of: fn(&super::super::DeviceScrub) -> u64| progress.devices.values().map(of).sum::<u64>();
    (shared.buffers.held_most(), sum(|device| device.parity_bytes_scrubbed), sum(|device| device.errors()))
}

/// Goal: rows of 60 devices are all together in as much memory as is said, also where each has to be settled since a device is missing; and as many are under way as fit into
/// that. Method: a volume in memory whose devices take their time, so that all that may be read in parallel is; the memory that is really there is counted as it comes and goes.
#[test]
fn rows_of_many_devices_are_bounded() {
    const DEVICES: usize = 60;
    const ROWS: u64 = 48;
    let devices = volume_of(DEVICES, ROWS);
    let row = DEVICES as u64 * STRIPE_LEN;
    for (what, missing) in [("all there", 0), ("one is missing", 1)] {
        let (most, parity, errors) = scrubbed(&devices[missing..]);
        // Besides, each thread has a megabyte for what is not in rows.
        let bound = WIDE_ROWS_LEN_MAX + 2 * DEVICES as u64 * READ_LEN.min(1 << 16);
        assert!(most <= bound, "{what}: {} MiB together", most >> 20);
        assert!(most > 8 * row, "{what}: {} MiB together are so few that this shows nothing", most >> 20);
        assert_eq!((parity > (ROWS - 4) * STRIPE_LEN, errors), (true, 0), "{what}");
    }
}

/// Goal: up to 16 devices nothing waits for memory. Method: what is wide; a volume of 16, of which each part has what its thread has.
#[test]
fn rows_of_sixteen_devices_wait_for_nothing() {
    let devices = volume_of(16, 64);
    let fs = open(&devices, false);
    let chunks = fs.engine().volume().chunks();
    let widest = chunks.iter().map(|map| map.stripes.len()).max();
    assert_eq!((widest, chunks.iter().any(|map| is_wide(map))), (Some(16), false));
    let threads = std::thread::available_parallelism().unwrap().get().div_ceil(16) + 1;
    let (most, parity, errors) = scrubbed(&devices);
    assert!(most <= (threads * 16) as u64 * READ_LEN, "{} MiB together", most >> 20);
    assert!(most >= 8 * READ_LEN, "{} MiB together", most >> 20);
    assert_eq!((parity > 62 * STRIPE_LEN, errors), (true, 0));
    // One more device.
    let devices = volume_of(17, 1);
    assert!(open(&devices, false).engine().volume().chunks().iter().any(|map| is_wide(map)));
}
