//! Devices that come, go and take each other's place, on images in memory: what is refused, what fails, and in which state that leaves a volume.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo::balance::{BalanceArgs, BalanceEnd, BalanceState};
use oleo::devices::ReplaceState;
use oleo::layers::jobs;
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::scrub::{ScrubEnd, ScrubWant};
use oleo::{Image, OpenOptions};
use oleo_device::{Device, DeviceError, MemDevice, WriteReq};
use oleo_format::DevId;
use oleo_sim::faulty::{Faulty, Trouble};
use oleo_sim::gate::{Gate, Writes};
use oleo_sim::rng::Rng;
use oleo_volume::{Candidate, read_super};
use uuid::Uuid;

const MIB: u64 = 1 << 20;
const FILE_LEN: usize = 24 << 20;

fn made(count: usize, data: Profile, metadata: Profile) -> Vec<Arc<dyn Device>> {
    let device = |nth| Arc::new(MemDevice::named(&format!("disk{nth}"), 512 * MIB)) as Arc<dyn Device>;
    let devices: Vec<_> = (0..count).map(device).collect();
    let mkfs = MkfsOptions::default().data(Some(data)).metadata(Some(metadata)).seed([1; 32]);
    oleo::mkfs::make(&devices, &mkfs).unwrap();
    devices
}

fn open(devices: &[Arc<dyn Device>]) -> Image {
    Image::from_devices(devices.to_vec(), &OpenOptions::writing()).unwrap()
}

fn bytes(name: &str) -> Vec<u8> {
    Rng::new(name.bytes().map(u64::from).sum()).bytes(FILE_LEN)
}

fn put(image: &Image, name: &str) {
    image.write(name, &bytes(name)).unwrap();
    image.sync().unwrap();
}

fn candidate(device: &Arc<dyn Device>) -> Candidate {
    Candidate::new(device.clone(), Uuid::from_u128(7), true).unwrap()
}

/// These files are there, of a volume that is sound.
fn must_hold(devices: &[Arc<dyn Device>], names: &[&str], what: &str) {
    let image =
        Image::from_devices(devices.to_vec(), &OpenOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    for name in names {
        assert!(image.read(name).unwrap_or_else(|e| panic!("{what}: {name}: {e}")) == bytes(name), "{what}: {name}");
    }
    let report = oleo_check::check(image.volume(), &oleo_check::CheckOptions::default().data(true)).unwrap();
    assert!(!report.has_errors(), "{what}: {:#?}", report.findings);
}

/// Runs a replacement until something of it is written down, and stops it.
fn run_a_part(image: &Image) {
    std::thread::scope(|threads| {
        let run = threads.spawn(|| image.replacer().run());
        while image.replacer().status().on_disk == 0 && !run.is_finished() {
            std::hint::spin_loop();
        }
        image.replacer().interrupt();
        run.join().unwrap().unwrap();
    });
    assert_eq!(image.replacer().status().state, ReplaceState::Suspended, "it was over too soon");
    let item = image.fs().engine().replace_item().unwrap().unwrap();
    assert!(item.cursor_left.get() > 0, "nothing was written down");
}

/// What a piece of a file is full of that the target does not take yet.
const MARK: u8 = 0x5a;

/// Opens the gate in any case, so that nobody waits for ever when an assertion fails.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open(Writes::Of(MARK));
    }
}

/// Goal: progress is told piece by piece, and apart from it what a crash does not cost: what the cursor on disk has passed, which is written down as soon as
/// the first part of a chunk is copied. What is lost by stopping is taken off. Method: the target holds a piece back that is behind others of its
/// part; it is stopped there, opened again, and run to its end.
#[test]
fn progress_and_the_cursor_on_disk() {
    let devices = made(1, Profile::Single, Profile::Single);
    let image = open(&devices);
    put(&image, "one");
    image.write("marked", &vec![MARK; 1 << 20]).unwrap();
    put(&image, "two");
    let mut parts: Vec<_> =
        image.volume().chunks().iter().map(|chunk| (chunk.stripes[0].offset, chunk.stripe_bytes().0)).collect();
    parts.sort_unstable();
    // How far it is behind each part: the cursor, and bytes.
    let marks: Vec<(u64, u64)> = parts
        .iter()
        .scan(0, |sum, (offset, len)| {
            *sum += len;
            Some((offset.0 + len, *sum))
        })
        .collect();
    let all = marks.last().unwrap().1;
    let cursor = |image: &Image| image.fs().engine().replace_item().unwrap().unwrap().cursor_left.get();
    let bytes_of = |cursor: u64| marks.iter().find(|mark| mark.0 == cursor).map(|mark| mark.1);

    let gate = Arc::new(Gate::new(512 * MIB));
    gate.shut(Writes::Of(MARK));
    let target = gate.clone() as Arc<dyn Device>;
    let replacer = image.replacer();
    replacer.start(DevId(1), candidate(&target), false).unwrap();
    let before = replacer.status();
    assert_eq!((before.done, before.all, before.on_disk, cursor(&image)), (0, all, 0, 0));
    let at_stop = std::thread::scope(|threads| {
        let _opens = Opens(&gate);
        let run = threads.spawn(|| replacer.run());
        gate.await_held(Writes::Of(MARK));
        // Others of the part are copied meanwhile.
        let late = Instant::now() + Duration::from_secs(60);
        let status = loop {
            let status = replacer.status();
            if !marks.iter().any(|mark| mark.1 == status.done) {
                break status;
            }
            assert!(Instant::now() < late, "only whole parts: {status:?} {marks:?}");
            std::thread::yield_now();
        };
        assert!(status.done < status.all && status.all == all, "{status:?}");
        assert_eq!(bytes_of(cursor(&image)), Some(status.on_disk), "{status:?}");
        assert!(status.on_disk > 0 && status.on_disk < status.done, "{status:?}");
        replacer.interrupt();
        gate.open(Writes::Of(MARK));
        run.join().unwrap().unwrap();
        status
    });
    let stopped = replacer.status();
    let whole = marks.iter().map(|mark| mark.1).filter(|mark| *mark <= at_stop.done).max();
    assert_eq!(stopped.state, ReplaceState::Suspended);
    assert_eq!((Some(stopped.done), Some(stopped.on_disk)), (whole, whole));
    assert_eq!(bytes_of(cursor(&image)), whole);
    drop(image);
    let image = open(&[devices, vec![target]].concat());
    let found = image.replacer().status();
    assert_eq!((found.done, found.all, found.on_disk), (stopped.done, all, stopped.on_disk));
    image.replacer().resume().unwrap();
    image.replacer().run().unwrap();
    let status = image.replacer().status();
    assert_eq!((status.state, status.done, status.on_disk), (ReplaceState::Finished, all, all));
}

/// Goal: a target that failed is not believed when it is back: what it missed is copied again, though the cursor on disk is behind it. Method: it is
/// stopped in the middle; the target fails while files are written below the cursor; both are opened again, whether there was a commit since or nothing but an fsync.
#[test]
fn a_target_that_missed_writes() {
    for with_commit in [true, false] {
        let what = format!("with a commit: {with_commit}");
        let mut devices = made(1, Profile::Single, Profile::Dup);
        let image = open(&devices);
        ["one", "two", "three", "four"].iter().for_each(|name| put(&image, name));
        let memory = Arc::new(MemDevice::named("new", 512 * MIB)) as Arc<dyn Device>;
        let faulty = Arc::new(Faulty::new(memory.clone()));
        let target = faulty.clone() as Arc<dyn Device>;
        image.replacer().start(DevId(1), candidate(&target), false).unwrap();
        run_a_part(&image);
        faulty.fail(Trouble::Writes);
        image.write("missed", &bytes("missed")).unwrap();
        if with_commit {
            image.sync().unwrap();
        } else {
            image.fs().fsync(&image.find("missed").unwrap()).unwrap();
        }
        assert!(faulty.struck() > 0, "{what}: nothing was missed");
        drop(image);
        faulty.fail(Trouble::None);
        devices.push(target.clone());
        // Cut short after the first commits: they say that all is to be copied again.
        let image = open(&devices);
        let item = image.fs().engine().replace_item().unwrap().unwrap();
        assert_eq!(item.cursor_left.get(), 0, "{what}");
        drop(image);
        let image = open(&devices);
        image.replacer().resume().unwrap();
        image.replacer().run().unwrap();
        assert_eq!(image.replacer().status().state, ReplaceState::Finished, "{what}");
        drop(image);
        assert!(read_super(&*devices[0]).is_err(), "{what}: the old one is wiped");
        must_hold(&[memory], &["one", "two", "three", "four", "missed"], &what);
    }
}

/// Goal: an fsync is confirmed while a mirror fails at any moment of it, by what the other one has, and so are the next; with the other one
/// alone, and with both again, everything is there. Method: the second of two devices fails at each of some writes and flushes, or altogether.
#[test]
fn an_fsync_while_a_mirror_fails() {
    let mut struck = 0;
    let troubles = [Trouble::Writes, Trouble::Flushes, Trouble::All];
    for (trouble, spared) in troubles.into_iter().flat_map(|trouble| (0..6).map(move |spared| (trouble, spared))) {
        let what = format!("{trouble:?} after {spared}");
        let devices = made(2, Profile::Raid1, Profile::Raid1);
        let faulty = Arc::new(Faulty::new(devices[1].clone()));
        let image = open(&[devices[0].clone(), faulty.clone() as Arc<dyn Device>]);
        image.write("before", b"before").unwrap();
        image.sync().unwrap();
        faulty.fail_after(trouble, spared);
        let names = ["first", "second", "third"];
        for name in names {
            image.write(name, name.as_bytes()).unwrap();
            image.fs().fsync(&image.find(name).unwrap()).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        }
        let failed: Vec<bool> = image.volume().devices().iter().map(|device| device.failed).collect();
        assert_eq!(failed, [false, faulty.struck() > 0], "{what}");
        struck += u64::from(faulty.struck() > 0);
        drop(image);
        let alone = OpenOptions::writing().degraded(true);
        for devices in [&devices[..1], &devices[..]] {
            let image = Image::from_devices(devices.to_vec(), &alone).unwrap_or_else(|e| panic!("{what}: {e}"));
            for name in names {
                let found = image.read(name).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
                assert!(found == name.as_bytes(), "{what}: {name}");
            }
        }
    }
    assert!(struck > 10, "{struck}");
}

/// Goal: a target that fails while it is filled is the end of it: the device stays, the status says so, and so does the item on disk; with the target back, all
/// is copied. Method: it fails at each of some writes, and at the last commit.
#[test]
fn a_target_that_fails() {
    let mut devices = made(1, Profile::Single, Profile::Dup);
    let image = open(&devices);
    put(&image, "one");
    let faulty = Arc::new(Faulty::new(Arc::new(MemDevice::named("new", 512 * MIB))));
    let target = faulty.clone() as Arc<dyn Device>;
    image.replacer().start(DevId(1), candidate(&target), false).unwrap();
    drop(image);
    devices.push(target.clone());
    let mut errors = 0;
    for spared in [0, 1, 5, 20, 30] {
        let what = format!("after {spared} writes");
        let image = open(&devices);
        image.replacer().resume().unwrap();
        faulty.fail_after(Trouble::Writes, spared);
        let error = image.replacer().run().expect_err(&what);
        errors += 1;
        let status = image.replacer().status();
        assert_eq!((status.state, status.write_errors), (ReplaceState::Suspended, errors), "{what}: {error}");
        assert!(status.failure.is_some() && status.target.is_none(), "{what}");
        let item = image.fs().engine().replace_item().unwrap().unwrap();
        assert_eq!((item.cursor_left.get(), item.num_write_errors.get()), (0, errors), "{what}");
        put(&image, "one");
        drop(image);
        must_hold(&devices[..1], &["one"], &what);
        faulty.fail(Trouble::None);
    }
    // The last: the superblock that makes it the device. Flushes of the commits before pass. One that fails then is not the volume's any more, so each time there is another.
    let mut failed_at_the_end = false;
    for spared in 0..20 {
        let devices = made(1, Profile::Single, Profile::Dup);
        let image = open(&devices);
        put(&image, "one");
        let faulty = Arc::new(Faulty::new(Arc::new(MemDevice::named("new", 512 * MIB))));
        let target = faulty.clone() as Arc<dyn Device>;
        image.replacer().start(DevId(1), candidate(&target), false).unwrap();
        faulty.fail_after(Trouble::Flushes, spared);
        let ran = image.replacer().run();
        let status = image.replacer().status();
        let is_device = image.volume().devices()[0].name == "new";
        drop(image);
        faulty.fail(Trouble::None);
        let what = format!("after {spared} flushes: {ran:?}, {status:?}");
        match (is_device, ran.is_ok()) {
            (true, true) => {
                must_hold(std::slice::from_ref(&target), &["one"], &what);
                assert!(failed_at_the_end);
                return;
            }
            (true, false) => must_hold(&devices[..1], &["one"], &what),
            (false, _) => {
                assert!(ran.is_err() && status.state == ReplaceState::Suspended, "{what}");
                must_hold(&devices[..1], &["one"], &what);
            }
        }
        failed_at_the_end |= ran.is_err();
    }
    panic!("it never became the device");
}

/// Goal: nothing is done to a device before it is sure that it is wanted. Method: what is refused, with a device full of other bytes.
#[test]
fn what_is_refused_leaves_the_device_alone() {
    let devices = made(2, Profile::Raid1, Profile::Raid1);
    let image = open(&devices);
    let new = |mib: u64| {
        let device = Arc::new(MemDevice::named("new", mib * MIB)) as Arc<dyn Device>;
        for at in [0, 64 << 10, 64 << 20] {
            device.write_at(at, &[0x5a; 4096]).unwrap();
        }
        device
    };
    let must_be_untouched = |device: &Arc<dyn Device>, what: &str| {
        for at in [0, 64 << 10, 64 << 20] {
            let mut found = [0; 4096];
            device.read_at(at, &mut found).unwrap();
            assert!(found == [0x5a; 4096], "{what}: at {at}");
        }
    };
    let short = new(256);
    image.replacer().start(DevId(1), candidate(&short), false).expect_err("too short");
    must_be_untouched(&short, "too short");
    let device = new(512);
    image.replacer().start(DevId(9), candidate(&device), false).expect_err("no such device");
    must_be_untouched(&device, "no such device");
    image.balancer().start(BalanceArgs::full()).unwrap();
    image.replacer().start(DevId(1), candidate(&device), false).expect_err("a balance is under way");
    must_be_untouched(&device, "replaced beside a balance");
    image.members().add(candidate(&device)).expect_err("a balance is under way");
    must_be_untouched(&device, "added beside a balance");
    image.balancer().cancel().unwrap();
    image.replacer().start(DevId(1), candidate(&device), false).unwrap();
    let other = new(512);
    image.replacer().start(DevId(2), candidate(&other), false).expect_err("another is being replaced");
    must_be_untouched(&other, "another is being replaced");
}

/// Goal: a device that is being replaced stays until that has ended; without it the volume could not be opened for changes. Method: suspended, then cancelled.
#[test]
fn what_is_being_replaced_is_not_removed() {
    let devices = made(2, Profile::Single, Profile::Single);
    let image = open(&devices);
    let new = Arc::new(MemDevice::named("new", 512 * MIB)) as Arc<dyn Device>;
    image.replacer().start(DevId(2), candidate(&new), false).unwrap();
    let error = image.members().remove(DevId(2), false).expect_err("it is being replaced");
    assert_eq!(error.errno(), oleo_fs::errno::EBUSY, "{error}");
    image.replacer().cancel().unwrap();
    image.members().remove(DevId(2), false).unwrap();
    drop(image);
    drop(open(&devices[..1]));
}

/// Goal: while a device is replaced nobody scrubs, and while somebody scrubs no replacement begins; either is refused by name, as by the kernel, and nothing is done to the new
/// device. Method: each of them asked for, under way, suspended and ended.
#[test]
fn scrubs_and_replacements_exclude_each_other() {
    let devices = made(2, Profile::Raid1, Profile::Raid1);
    let image = open(&devices);
    put(&image, "one");
    let new = Arc::new(MemDevice::named("new", 512 * MIB)) as Arc<dyn Device>;
    new.write_at(64 << 10, &[0x5a; 4096]).unwrap();
    image.scrubber().start(ScrubWant::new()).unwrap();
    let error = image.replacer().start(DevId(1), candidate(&new), false).expect_err("a scrub is asked for");
    assert_eq!(error.errno(), oleo_fs::errno::EINPROGRESS, "{error}");
    assert!(error.to_string().contains("scrub"), "{error}");
    let mut found = [0; 4096];
    new.read_at(64 << 10, &mut found).unwrap();
    assert!(found == [0x5a; 4096], "it is as it was");
    assert_eq!(image.replacer().status().state, ReplaceState::Never);
    assert_eq!(image.scrubber().run(), Some(ScrubEnd::Done));
    image.replacer().start(DevId(1), candidate(&new), false).unwrap();
    let must_be_refused = |image: &Image, what: &str| {
        for want in [ScrubWant::new(), ScrubWant::new().repair(false)] {
            let error = image.scrubber().start(want).expect_err(what);
            assert_eq!(error.errno(), oleo_fs::errno::EINPROGRESS, "{what}: {error}");
            assert!(error.to_string().contains("device 1 is being replaced"), "{what}: {error}");
        }
        assert_eq!(image.scrubber().run(), None, "{what}");
    };
    must_be_refused(&image, "begun");
    drop(image);
    let all = [&devices[..], std::slice::from_ref(&new)].concat();
    let image = open(&all);
    must_be_refused(&image, "suspended");
    image.replacer().resume().unwrap();
    image.replacer().run().unwrap();
    image.scrubber().start(ScrubWant::new()).unwrap();
    assert_eq!(image.scrubber().run(), Some(ScrubEnd::Done));
    assert!(image.scrubber().unhealed().is_empty());
}

/// Goal: a device does not grow beyond what is about to take its place; up to there it does. Method: a target that is a little longer than the device.
#[test]
fn a_device_grows_no_further_than_its_target() {
    let devices = made(2, Profile::Raid1, Profile::Raid1);
    let image = open(&devices);
    let resize = |image: &Image, devid, mib: u64| {
        jobs::resize(image.fs(), image.balancer(), Some(DevId(devid)), jobs::NewSize::To(mib * MIB))
    };
    put(&image, "one");
    let new = Arc::new(MemDevice::named("new", 600 * MIB)) as Arc<dyn Device>;
    image.replacer().start(DevId(1), candidate(&new), false).unwrap();
    let error = resize(&image, 1, 601).expect_err("it is longer than the target");
    assert!(error.to_string().contains("takes its place"), "{error}");
    assert_eq!(devices[0].len(), 512 * MIB, "nothing was done to it");
    resize(&image, 1, 600).unwrap();
    resize(&image, 2, 700).unwrap();
    image.replacer().run().unwrap();
    drop(image);
    must_hold(&[new, devices[1].clone()], &["one"], "replaced");
}

/// Goal: what is written while a device is filled, by several threads, is on the new one. Method: files are written again and again, synced or not, until it is done.
#[test]
fn filled_beside_writers() {
    for profile in [Profile::Single, Profile::Raid1, Profile::Raid5] {
        let what = profile.to_string();
        let mut devices = made(if profile == Profile::Single { 1 } else { 3 }, profile, profile);
        let image = open(&devices);
        let names: Vec<String> = (0..6).map(|nth| format!("file{nth}")).collect();
        names.iter().for_each(|name| put(&image, name));
        let new = Arc::new(MemDevice::named("new", 512 * MIB)) as Arc<dyn Device>;
        image.replacer().start(DevId(1), candidate(&new), false).unwrap();
        let mut rounds = 0;
        std::thread::scope(|threads| {
            let run = threads.spawn(|| image.replacer().run());
            while !run.is_finished() {
                for (nth, name) in names.iter().enumerate() {
                    image.write(name, &bytes(name)).unwrap();
                    if nth % 3 == 0 {
                        image.fs().fsync(&image.find(name).unwrap()).unwrap();
                    }
                }
                rounds += 1;
            }
            run.join().unwrap().unwrap();
        });
        image.sync().unwrap();
        drop(image);
        assert!(rounds > 0, "{what}");
        devices[0] = new;
        must_hold(&devices, &names.iter().map(String::as_str).collect::<Vec<_>>(), &what);
    }
}

/// A device whose writes panic when it is told.
struct Panics {
    inner: MemDevice,
    now: AtomicBool,
}

impl Device for Panics {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, buf)
    }
    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        assert!(!self.now.load(Ordering::SeqCst), "as a test asked for");
        self.inner.write_batch(reqs)
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
        "panics".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: after a panic in its thread a replacement is suspended, and whoever cancels it does not wait for ever.
#[test]
fn a_replacement_that_panics() {
    let devices = made(1, Profile::Single, Profile::Dup);
    let image = open(&devices);
    put(&image, "one");
    let panics = Arc::new(Panics { inner: MemDevice::new(512 * MIB), now: AtomicBool::new(false) });
    image.replacer().start(DevId(1), candidate(&(panics.clone() as Arc<dyn Device>)), false).unwrap();
    panics.now.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| image.replacer().run())).is_err());
    panics.now.store(false, Ordering::SeqCst);
    assert_eq!(image.replacer().status().state, ReplaceState::Suspended);
    image.replacer().cancel().unwrap();
    drop(image);
    must_hold(&devices, &["one"], "cancelled");
}

/// Goal: whoever cancels a replacement and whoever runs it do not get into each other's way: it is cancelled or done, and the volume knows of no target any more. Method: both
/// at a time, many times.
#[test]
fn cancelled_and_run_at_a_time() {
    let devices = made(1, Profile::Single, Profile::Dup);
    let image = open(&devices);
    image.write("small", b"some bytes").unwrap();
    image.sync().unwrap();
    for nth in 0..40 {
        let new = Arc::new(MemDevice::named(&format!("new{nth}"), 512 * MIB)) as Arc<dyn Device>;
        image.replacer().start(DevId(1), candidate(&new), false).unwrap();
        let cancelled = std::thread::scope(|threads| {
            let runs = threads.spawn(|| image.replacer().run().unwrap());
            let cancels = threads.spawn(|| image.replacer().cancel());
            runs.join().unwrap();
            cancels.join().unwrap().is_ok()
        });
        let status = image.replacer().status();
        let want = if cancelled { ReplaceState::Cancelled } else { ReplaceState::Finished };
        assert_eq!((status.state, status.target), (want, None), "time {nth}");
        assert!(!image.volume().has_target(DevId(1)), "time {nth}");
        assert_eq!(read_super(&*new).is_ok(), !cancelled, "time {nth}");
    }
    assert_eq!(image.read("small").unwrap(), b"some bytes");
}

/// Goal: after a panic in its thread a balance is paused, and whoever waits for its end goes on.
#[test]
fn a_balance_that_panics() {
    let panics = Arc::new(Panics { inner: MemDevice::new(512 * MIB), now: AtomicBool::new(false) });
    let devices = [panics.clone() as Arc<dyn Device>];
    oleo::mkfs::make(&devices, &MkfsOptions::default().seed([1; 32])).unwrap();
    let image = open(&devices);
    put(&image, "one");
    let number = image.balancer().start(BalanceArgs::full()).unwrap();
    panics.now.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| image.balancer().run())).is_err());
    let status = image.balancer().wait_end(number);
    assert_eq!(status.state, BalanceState::Paused);
    assert!(matches!(status.end, Some(BalanceEnd::Failed { .. })), "{status:?}");
}
