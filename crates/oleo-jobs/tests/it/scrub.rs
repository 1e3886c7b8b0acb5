//! What a scrub says of what it could not do: what was not looked at is not done, what could not be healed is not sound, and whoever waits is told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use oleo_device::{Device, DeviceError, MemDevice, Op};
use oleo_format::{BlockGroupFlags, DevId, InodeFlags, Logical, TreeId};
use oleo_fs::data::DataOptions;
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_jobs::{Candidates, JobError, ScrubEnd, ScrubStatus, ScrubWant, Scrubber, Wanted};
use oleo_mkfs::MkfsOptions;
use oleo_sim::oracle::Scratch;
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{ChunkMap, OpenOptions, Profile, STRIPE_LEN, Volume};

const MIB: usize = 1 << 20;
const SECTOR: usize = 4096;
/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The smallest blocks, so that a few megabytes have several leaves of checksums.
const NODE: usize = 4096;

/// A device in memory with a sector that cannot be read.
struct Disk {
    inner: MemDevice,
    /// Where it is; `u64::MAX`: nowhere.
    bad_at: AtomicU64,
    /// Whether reads of data wait.
    holds: AtomicBool,
    /// How many wait, and the most that did.
    waiting: AtomicUsize,
    waiting_most: AtomicUsize,
}

impl Disk {
    fn new(inner: MemDevice) -> Arc<Disk> {
        let (holds, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Disk { inner, bad_at: AtomicU64::new(u64::MAX), holds, waiting, waiting_most: AtomicUsize::new(0) })
    }

    /// Where a sector with these bytes lies, in what is in use of the device.
    fn find(&self, bytes: &[u8]) -> Option<u64> {
        let mut there = [0; SECTOR];
        (0..self.inner.len()).step_by(SECTOR).find(|at| {
            self.inner.read_at(*at, &mut there).unwrap();
            there == bytes[..SECTOR]
        })
    }

    fn rot(&self, at: u64) {
        self.inner.write_at(at, &[0xa5; SECTOR]).unwrap();
    }
}

impl Device for Disk {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let (bad, len) = (self.bad_at.load(Ordering::SeqCst), buf.len() as u64);
        if bad < offset.saturating_add(len) && offset < bad.saturating_add(SECTOR as u64) {
            let source = Arc::new(std::io::Error::other("a fault that a test asked for"));
            return Err(DeviceError::Io { name: self.name().into(), op: Op::Read, offset, len, source });
        }
        // Tree blocks are shorter.
        if len >= STRIPE_LEN && self.holds.load(Ordering::SeqCst) {
            let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
            self.waiting_most.fetch_max(waiting, Ordering::SeqCst);
            while self.holds.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// An empty volume.
fn made(data: Profile, metadata: Profile, devices: usize) -> Vec<Arc<Disk>> {
    let disks: Vec<Arc<Disk>> = (0..devices).map(|_| Disk::new(MemDevice::new(256 << 20))).collect();
    let options = MkfsOptions::default().data(Some(data)).metadata(Some(metadata)).nodesize(Some(NODE as u32));
    oleo_mkfs::make(&as_devices(&disks), &options.seed([5; 32])).unwrap();
    disks
}

fn as_devices(disks: &[Arc<Disk>]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()
}

fn open(disks: &[Arc<Disk>], new_file_flags: InodeFlags) -> Fs {
    let volume = Volume::open(as_devices(disks), &OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default()).unwrap();
    let data = DataOptions::default().new_file_flags(new_file_flags);
    Fs::open(engine, &FsOptions::default().data(data)).unwrap()
}

fn open_to_read(disks: &[Arc<Disk>], degraded: bool) -> Fs {
    let volume = Volume::open(as_devices(disks), &OpenOptions { degraded, ..OpenOptions::default() }).unwrap();
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = Engine::open(Arc::new(volume), &options).unwrap();
    Fs::open(engine, &FsOptions::default().read_only(true)).unwrap()
}

fn write(fs: &Fs, name: &str, bytes: &[u8]) {
    let root = fs.root(TreeId::FS).unwrap();
    let file = fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o644)).unwrap();
    fs.write(&file, 0, bytes).unwrap();
    fs.sync().unwrap();
}

/// Scrubs with nobody else there.
fn scrubbed(scrubber: &Scrubber, want: ScrubWant) -> (ScrubEnd, ScrubStatus) {
    scrubber.start(want).unwrap();
    (scrubber.run_alone().unwrap(), scrubber.status())
}

fn is_stale(fs: &Fs, devid: u64) -> bool {
    fs.engine().volume().devices().iter().any(|info| info.devid == DevId(devid) && info.stale)
}

/// A volume of which one device is as it was before a second file without checksums was written; the device's number, and that file's bytes.
fn outdated(data: Profile, flags: InodeFlags, devices: usize, nth: usize) -> (Vec<Arc<Disk>>, Vec<u8>) {
    let mut disks = made(data, Profile::Raid1, devices);
    let mut rng = Rng::new(3);
    let fs = open(&disks, flags);
    write(&fs, "before", &rng.bytes(MIB));
    let old = disks[nth].inner.copy();
    let bytes = rng.bytes(3 * MIB);
    write(&fs, "after", &bytes);
    // More than a crash leaves it behind.
    (0..3).for_each(|nth| write(&fs, &format!("later {nth}"), b"more"));
    drop(fs);
    let now = std::mem::replace(&mut disks[nth], Disk::new(old));
    // Where the data of this device was, it is not.
    assert!(now.find(&bytes).is_none() || disks[nth].find(&bytes).is_none());
    (disks, bytes)
}

/// Goal: a device that does not answer keeps nobody from reading the others, and only so much of it is under way as memory is meant for. Method: reads of data of one of two
/// devices wait until all of the other has been looked at; then they go on.
#[test]
fn a_device_that_does_not_answer_is_waited_for_alone() {
    let disks = made(Profile::Raid1, Profile::Raid1, 2);
    let fs = open(&disks, InodeFlags::empty());
    let len = 24 * MIB as u64;
    write(&fs, "file", &Rng::new(8).bytes(len as usize));
    let scrubber = Scrubber::new(&fs);
    let looked_at = |devid: u64| scrubber.status().devices.get(&DevId(devid)).map_or(0, |d| d.data_bytes_scrubbed);
    disks[0].holds.store(true, Ordering::SeqCst);
    let (others, held) = std::thread::scope(|threads| {
        let scrubs = threads.spawn(|| scrubbed(&scrubber, ScrubWant::new()));
        let began = Instant::now();
        while looked_at(2) < len && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let seen = (looked_at(2), looked_at(1));
        disks[0].holds.store(false, Ordering::SeqCst);
        assert_eq!(scrubs.join().unwrap().0, ScrubEnd::Done);
        seen
    });
    assert_eq!((others, held), (len, 0));
    assert_eq!(looked_at(1), len);
    let cores = std::thread::available_parallelism().unwrap().get();
    let most = disks[0].waiting_most.load(Ordering::SeqCst);
    assert!((1..=cores.div_ceil(2) + 1).contains(&most), "{most} were under way with {cores} cores");
}

/// Goal: a device that missed a single transaction is known to have missed it, and stays so however often the volume is used with it, until a scrub. Method: one sync without it, of data without checksums;
/// then it is back as it was, and more is written. It must not be read for what it missed, whichever copy is asked for.
#[test]
fn one_transaction_is_missed() {
    let disks = made(Profile::Raid1, Profile::Raid1, 2);
    let mut rng = Rng::new(4);
    let fs = open(&disks, InodeFlags::NODATASUM);
    let file = fs.create(&fs.root(TreeId::FS).unwrap(), b"file", &NewInode::new(NewKind::File, 0o644)).unwrap();
    fs.write(&file, 0, &rng.bytes(MIB)).unwrap();
    fs.sync().unwrap();
    drop((file, fs));
    let missing = OpenOptions { write: true, degraded: true, ..OpenOptions::default() };
    let volume = Volume::open(as_devices(&disks[..1]), &missing).unwrap();
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default()).unwrap();
    let data = DataOptions::default().new_file_flags(InodeFlags::NODATASUM);
    let fs = Fs::open(engine, &FsOptions::default().data(data)).unwrap();
    let missed = rng.bytes(MIB);
    write(&fs, "missed", &missed);
    drop(fs);
    for round in 0..3 {
        let fs = open(&disks, InodeFlags::NODATASUM);
        assert!(is_stale(&fs, 2) && !is_stale(&fs, 1), "round {round}");
        let file = fs.lookup(&fs.root(TreeId::FS).unwrap(), b"missed").unwrap().unwrap();
        let mut read = vec![0; MIB];
        for at in (0..MIB).step_by(SECTOR) {
            fs.read(&file, at as u64, &mut read[at..at + SECTOR]).unwrap();
        }
        assert!(read == missed, "round {round}");
        write(&fs, &format!("later {round}"), &rng.bytes(SECTOR * 3));
    }
    let fs = open(&disks, InodeFlags::empty());
    let (end, status) = scrubbed(&Scrubber::new(&fs), ScrubWant::new());
    assert_eq!((end, status.total().uncorrectable_errors), (ScrubEnd::Done, 0), "{status:?}");
    drop(fs);
    assert!(!is_stale(&open(&disks, InodeFlags::empty()), 2));
    assert!(disks[1].find(&missed).is_some(), "it has it now");
}

/// Goal: data without checksums on a device that missed writes, which no other device has, is not called sound: it is named and counted. (With such data the
/// volume is open for reading only.)
#[test]
fn outdated_data_that_nobody_has_is_named() {
    let mut found = 0;
    for nth in 0..2 {
        let (disks, bytes) = outdated(Profile::Single, InodeFlags::NODATASUM, 2, nth);
        let fs = open_to_read(&disks, false);
        let devid = DevId(nth as u64 + 1);
        let chunks = fs.engine().volume().chunks();
        let is_there =
            |chunk: &Arc<ChunkMap>| chunk.flags.contains(BlockGroupFlags::DATA) && chunk.stripes[0].devid == devid;
        if !chunks.iter().any(is_there) {
            continue;
        }
        found += 1;
        assert!(is_stale(&fs, devid.0));
        let scrubber = Scrubber::new(&fs);
        let (end, status) = scrubbed(&scrubber, ScrubWant::new().repair(false));
        assert_eq!(end, ScrubEnd::Done);
        let lost = status.devices[&devid].uncorrectable_errors * SECTOR as u64;
        assert!(lost >= bytes.len() as u64, "{status:?}");
        let unhealed = scrubber.unhealed();
        assert!(unhealed.iter().all(|place| place.devid == devid && place.why.contains("missed writes")));
        assert_eq!(unhealed.iter().map(|place| place.len).sum::<u64>(), lost, "{unhealed:?}");
    }
    assert!(found > 0);
}

/// Goal: the same where the device that has it cannot be read there; once it can, all is brought up to date.
#[test]
fn outdated_data_that_cannot_be_had_is_not_sound() {
    let (disks, bytes) = outdated(Profile::Raid1, InodeFlags::NODATASUM, 2, 1);
    let bad_at = disks[0].find(&bytes[MIB..]).unwrap();
    let fs = open(&disks, InodeFlags::empty());
    assert!(is_stale(&fs, 2));
    let scrubber = Scrubber::new(&fs);
    disks[0].bad_at.store(bad_at, Ordering::SeqCst);
    let (end, status) = scrubbed(&scrubber, ScrubWant::new());
    assert_eq!(end, ScrubEnd::Done);
    assert_eq!(status.devices[&DevId(2)].uncorrectable_errors, 1, "{status:?}");
    assert!(is_stale(&fs, 2), "{status:?}");
    disks[0].bad_at.store(u64::MAX, Ordering::SeqCst);
    let (_, status) = scrubbed(&scrubber, ScrubWant::new());
    assert_eq!(status.total().uncorrectable_errors, 0, "{status:?}");
    assert!(!is_stale(&fs, 2), "{status:?}");
    assert!(disks[1].find(&bytes[MIB..]).is_some(), "it has it now");
}

/// Goal: a device whose parity could not be computed, since other data of the row is lost, is not declared sound. Method: a device that missed writes; in a
/// row that has its parity there, a sector of data that was written meanwhile is rotten.
#[test]
fn outdated_parity_is_not_sound() {
    let (disks, bytes) = outdated(Profile::Raid5, InodeFlags::empty(), 3, 2);
    let fs = open(&disks, InodeFlags::empty());
    let chunks = fs.engine().volume().chunks();
    let map = chunks.iter().find(|chunk| chunk.profile == Profile::Raid5).unwrap();
    let new: Vec<&[u8]> = bytes.chunks(SECTOR).collect();
    let mut there = [0; SECTOR];
    let place = (0..map.stripe_bytes().0 / STRIPE_LEN).find_map(|row| {
        let stripe = map.rotated(row, 0);
        let at = map.physical(stripe, row * STRIPE_LEN).0;
        let disk = &disks[map.stripes[stripe].devid.0 as usize - 1];
        disk.read_at(at, &mut there).unwrap();
        let is_there = map.stripes[map.rotated(row, 2)].devid == DevId(3) && new.contains(&&there[..]);
        is_there.then_some((disk, map.stripes[stripe].devid, at))
    });
    let (disk, devid, at) = place.expect("a row of the new file with its parity there");
    disk.rot(at);
    let scrubber = Scrubber::new(&fs);
    let (end, status) = scrubbed(&scrubber, ScrubWant::new());
    assert_eq!(end, ScrubEnd::Done);
    let lost = |devid: DevId| status.devices[&devid].uncorrectable_errors;
    assert_eq!((lost(devid), lost(DevId(3))), (1, 0), "{status:?}");
    assert!(is_stale(&fs, 3), "{status:?}");
}

/// Where the leaves of checksums of data from an address on are on the device, those that are no longer in use, too.
fn leaves_of_checksums(disk: &Disk, from: u64) -> Vec<u64> {
    const OWNER: std::ops::Range<usize> = 88..96;
    const LEVEL: usize = 100;
    /// Of the first key.
    const TYPE: usize = 101 + 8;
    const OFFSET: std::ops::Range<usize> = 110..118;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut block = [0; NODE];
    let is_wanted = |at: &u64| {
        disk.inner.read_at(*at, &mut block).unwrap();
        let is_leaf = number(&block[OWNER]) == TreeId::CSUM.0 && block[LEVEL] == 0 && block[TYPE] == 128;
        is_leaf && number(&block[OFFSET]) >= from
    };
    (0..disk.len()).step_by(NODE).filter(is_wanted).collect()
}

/// Goal: what could not be looked at, because the trees that say what is there cannot be read, is not done: the state says so, and a scrub that is resumed comes back
/// to it. Method: leaves of checksums that are damaged, and rot in the data that they are for; then the leaves are mended, and the scrub is resumed.
#[test]
fn what_was_not_looked_at_is_resumed() {
    for (data, metadata, devices) in [(Profile::Single, Profile::Single, 1), (Profile::Raid5, Profile::Single, 3)] {
        let disks = made(data, metadata, devices);
        let bytes = Rng::new(1).bytes(24 * MIB);
        let fs = open(&disks, InodeFlags::empty());
        write(&fs, "file", &bytes);
        let (disk, at) = disks.iter().find_map(|disk| Some((disk, disk.find(&bytes[20 * MIB..])?))).unwrap();
        let chunks = fs.engine().volume().chunks();
        let chunk = chunks.iter().rfind(|chunk| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap();
        let from = chunk.start.0 + 12 * MIB as u64;
        drop((chunks, fs));
        let mut damaged: Vec<(&Arc<Disk>, u64, [u8; NODE])> = Vec::new();
        for disk in &disks {
            for at in leaves_of_checksums(disk, from) {
                let mut block = [0; NODE];
                disk.read_at(at, &mut block).unwrap();
                damaged.push((disk, at, block));
                disk.rot(at);
            }
        }
        assert!(damaged.len() > 1, "{}", damaged.len());
        disk.rot(at);
        let scratch = Scratch::new().unwrap();
        let fs = open(&disks, InodeFlags::empty());
        let scrubber = Scrubber::new(&fs);
        scrubber.keep_in(scratch.path());
        let (end, status) = scrubbed(&scrubber, ScrubWant::new().repair(false));
        assert!(matches!(end, ScrubEnd::Failed { .. }), "{end:?}");
        let total = status.total();
        assert!(!total.finished && total.csum_errors == 0, "{data}: {total:?}");
        drop((scrubber, fs));
        damaged.iter().for_each(|(disk, at, block)| disk.write_at(*at, block).unwrap());
        let fs = open(&disks, InodeFlags::empty());
        let scrubber = Scrubber::new(&fs);
        scrubber.keep_in(scratch.path());
        scrubber.resume(ScrubWant::new().repair(false)).unwrap();
        assert_eq!(scrubber.run_alone(), Some(ScrubEnd::Done));
        let total = scrubber.status().total();
        assert!(total.finished && total.csum_errors == 1, "{data}: {total:?}");
        let again = scrubber.resume(ScrubWant::new());
        assert!(matches!(again, Err(JobError::NothingToResume)), "{again:?}");
    }
}

/// Goal: a scrub of one device tells of that one only, although rows are read whole: no other is invented, what is kept of others stays, and what was found on them
/// counts. Method: raid5; all are scrubbed; then one, with rot on another; then with another one missing.
#[test]
fn no_devices_are_invented() {
    let disks = made(Profile::Raid5, Profile::Raid1, 3);
    let bytes = Rng::new(2).bytes(6 * MIB);
    let fs = open(&disks, InodeFlags::empty());
    write(&fs, "file", &bytes);
    let scratch = Scratch::new().unwrap();
    let kept = || {
        let file = std::fs::read_dir(scratch.path()).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let scrubber = Scrubber::new(&fs);
    scrubber.keep_in(scratch.path());
    let (_, whole) = scrubbed(&scrubber, ScrubWant::new());
    let before = kept();
    assert_eq!((whole.devices.len(), before.len()), (3, 3));
    let (with, at) = (0..3).find_map(|nth| Some((nth, disks[nth].find(&bytes)?))).unwrap();
    disks[with].rot(at);
    let devid = DevId((with as u64 + 1) % 3 + 1);
    let (end, status) = scrubbed(&scrubber, ScrubWant::new().devices(vec![devid]));
    assert_eq!(end, ScrubEnd::Done);
    assert_eq!(status.devices.keys().copied().collect::<Vec<_>>(), [devid], "{status:?}");
    let total = status.total();
    assert!(total.finished && (total.csum_errors, total.corrected_errors) == (1, 1), "{status:?}");
    let healed = scrubber.healed();
    assert!(matches!(&healed[..], [place] if place.len == 4096 && place.devid == DevId(with as u64 + 1)), "{healed:?}");
    assert_eq!(total.bytes(), whole.devices[&devid].bytes(), "only its own bytes count");
    let after = kept();
    let others = (0..3).filter(|nth| *nth as u64 + 1 != devid.0);
    assert!(after.len() == 3 && others.into_iter().all(|nth| after[nth] == before[nth]), "{before:?} and {after:?}");
    drop((scrubber, fs));

    let fs = open_to_read(&disks[1..], true);
    let scrubber = Scrubber::new(&fs);
    let (end, status) = scrubbed(&scrubber, ScrubWant::new().repair(false));
    assert_eq!(end, ScrubEnd::Done);
    assert_eq!(status.devices.keys().copied().collect::<Vec<_>>(), [DevId(2), DevId(3)], "{status:?}");
    assert!(status.total().finished, "{status:?}");
}

/// Goal: whoever waits for a scrub that is cancelled before it runs is told, and it can be resumed.
#[test]
fn cancelled_before_it_runs() {
    let disks = made(Profile::Single, Profile::Dup, 1);
    let fs = open(&disks, InodeFlags::empty());
    let scratch = Scratch::new().unwrap();
    let scrubber = Arc::new(Scrubber::new(&fs));
    scrubber.keep_in(scratch.path());
    let number = scrubber.start(ScrubWant::new()).unwrap();
    let (told, tells) = channel();
    let waits = scrubber.clone();
    let waiter = std::thread::spawn(move || {
        told.send(None).unwrap();
        told.send(Some(waits.wait_end(number))).unwrap();
    });
    assert_eq!(tells.recv_timeout(PATIENCE).unwrap(), None);
    std::thread::sleep(Duration::from_millis(100));
    scrubber.cancel().unwrap();
    let status = tells.recv_timeout(PATIENCE).expect("whoever waits is told").unwrap();
    waiter.join().unwrap();
    assert_eq!((status.running, status.end.as_ref()), (false, Some(&ScrubEnd::Cancelled)));
    assert!(status.total().canceled && scrubber.run().is_none(), "{status:?}");
    scrubber.resume(ScrubWant::new()).unwrap();
    assert_eq!(scrubber.run_alone(), Some(ScrubEnd::Done));
}

/// Somebody with a defect.
struct Panics;

impl Candidates for Panics {
    fn offer(&self, _: &Fs, wanted: &Wanted, _: &mut dyn FnMut(&[u8]) -> bool) {
        assert!(wanted.at == Logical(0), "a defect that a test asked for");
    }
}

/// Goal: a scrub that panics is over: nobody waits for it, and another one may begin.
#[test]
fn a_panic_ends_it() {
    let disks = made(Profile::Single, Profile::Dup, 1);
    let bytes = Rng::new(4).bytes(MIB);
    let fs = open(&disks, InodeFlags::empty());
    write(&fs, "file", &bytes);
    disks[0].rot(disks[0].find(&bytes).unwrap());
    let scrubber = Scrubber::new(&fs);
    let number = scrubber.start_from(ScrubWant::new(), Some(Arc::new(Panics))).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| scrubber.run_alone())).is_err());
    let status = scrubber.status();
    assert!(!status.running && matches!(status.end, Some(ScrubEnd::Failed { .. })), "{status:?}");
    assert_eq!(scrubber.wait_end(number).end, status.end);
    let (end, status) = scrubbed(&scrubber, ScrubWant::new());
    assert_eq!((end, status.total().uncorrectable_errors), (ScrubEnd::Done, 1));
}
