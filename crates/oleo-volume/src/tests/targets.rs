//! Devices that take another's place: what they missed, and what becomes of them when they fail at the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use oleo_sim::faulty::{Faulty, Trouble};
use oleo_sim::gate::{Gate, Writes};
use oleo_sim::rng::Rng;

use super::*;
use crate::attach::Candidate;

/// Takes all bytes for good.
struct AllGood;

impl Verify for AllGood {
    fn grain(&self) -> usize {
        4096
    }
    fn is_good(&self, _: Logical, _: &[u8]) -> bool {
        true
    }
}

/// A volume whose last device is being replaced by one that fails when asked.
struct Replaced {
    volume: Volume,
    devices: Vec<Arc<MemDevice>>,
    new: Arc<MemDevice>,
    target: Arc<Faulty>,
    devid: DevId,
}

fn commit(volume: &Volume) -> Result<(), VolumeError> {
    let mut sb = volume.super_block();
    sb.generation = (sb.generation.get() + 1).into();
    volume.write_supers(&sb)
}

fn generation(device: &dyn Device) -> u64 {
    read_super(device).expect("super").generation.get()
}

/// Copies everything that is on a device to its target.
fn copy_all(volume: &Volume, devid: DevId) {
    for chunk in volume.chunks() {
        for stripe in (0..chunk.stripes.len()).filter(|&stripe| chunk.stripes[stripe].devid == devid) {
            let run = RefillRun { devid, chunk: chunk.start, stripe, from: 0, len: chunk.stripe_bytes().0 };
            assert_eq!(volume.refill(&run, &AllGood).expect("copied").bad, 0);
        }
    }
}

impl Replaced {
    fn new(sample: &Sample) -> Replaced {
        let (volume, devices) = sample.open(&[], WRITE).expect("open");
        let new = Arc::new(MemDevice::named("new", 300 * MIB));
        let target = Arc::new(Faulty::new(new.clone()));
        let devid = DevId(devices.len() as u64);
        let candidate = Candidate::new(target.clone(), Uuid::from_u128(5), true).expect("candidate");
        volume.set_target(devid, candidate.prepare().expect("prepared")).expect("target");
        commit(&volume).expect("begun");
        assert_eq!(read_super(&*new).expect("super").dev_item.devid.get(), 0);
        Replaced { volume, devices, new, target, devid }
    }

    /// Opens it again, with the target.
    fn again(self) -> Replaced {
        let Replaced { volume, devices, new, target, devid } = self;
        drop(volume);
        target.fail(Trouble::None);
        let all = devices.iter().map(|d| d.clone() as Arc<dyn Device>).chain([target.clone() as Arc<dyn Device>]);
        let volume = Volume::open(all.collect(), &WRITE).expect("open again");
        assert!(volume.resume_target(devid).expect("resumed"));
        Replaced { volume, devices, new, target, devid }
    }
}

/// Goal: a target that missed something is told when the volume is opened again: after a write or a flush that failed, with and without a commit since, if
/// something of a log is on disk. It gets no superblock until everything is to be copied again. One that missed nothing is believed.
#[test]
fn what_a_target_missed_is_told() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid5, 3)] {
        let sample = Sample::new(profile, count);
        for how in ["whole", "commit", "flush", "log", "refill"] {
            let what = format!("{profile}, {how}");
            let replaced = Replaced::new(&sample);
            let Replaced { volume, target, devid, .. } = &replaced;
            let trouble = if how == "flush" { Trouble::Flushes } else { Trouble::Writes };
            if how != "whole" {
                target.fail(trouble);
            }
            if how == "refill" {
                let stripe = sample.data.stripes.iter().position(|s| s.devid == *devid).expect("it has one");
                let run = RefillRun { devid: *devid, chunk: sample.data.start, stripe, from: 0, len: MIB };
                assert!(volume.refill(&run, &AllGood).is_err(), "{what}");
            } else {
                volume.write(&[(sample.data.start, &sample.noise)]).and_then(|()| volume.flush()).expect("borne");
            }
            assert_eq!(volume.has_target(*devid), how == "whole", "{what}");
            assert_eq!(volume.owes_commit(), how != "whole", "{what}: who was left out has to be seen to be behind");
            let mut sb = volume.super_block();
            match how {
                "log" => {
                    sb.log_root = (1u64 << 30).into();
                    volume.write_log_super(&sb).expect("log");
                }
                _ => commit(volume).expect("commit"),
            }
            let replaced = replaced.again();
            let Replaced { volume, new, devid, .. } = &replaced;
            assert_eq!(volume.target_is_behind(*devid), how != "whole", "{what}");
            let before = generation(&**new);
            commit(volume).expect("commit");
            assert_eq!(generation(&**new), before + u64::from(how == "whole"), "{what}: it says that it is behind");
            assert_eq!(volume.finish_target(*devid).is_ok(), how == "whole", "{what}");
            if how == "whole" {
                continue;
            }
            // The next to open finds the same.
            let replaced = replaced.again();
            let Replaced { volume, new, devid, .. } = &replaced;
            assert!(volume.target_is_behind(*devid), "{what}, once more");
            volume.trust_target(*devid).expect("trusted");
            copy_all(volume, *devid);
            volume.finish_target(*devid).expect("finished");
            commit(volume).expect("commit");
            assert_eq!(read_super(&**new).expect("super").dev_item.devid, devid.0, "{what}");
            assert!(volume.take_replaced()[0].is_done_without, "{what}");
            sample.read_all(volume).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

/// Goal: whichever write or flush of the commit that makes the target the device fails, nothing is lost: before its superblock is durable the device stays, and
/// after it the old one is not wiped. Method: each of them fails once, with a profile that can do without a device and one that cannot.
#[test]
fn targets_that_fail_at_the_end() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Raid1, 2)] {
        let sample = Sample::new(profile, count);
        for (trouble, nth, stays) in [
            (Trouble::Flushes, 0, true),  // what was written before
            (Trouble::Writes, 0, true),   // its superblock
            (Trouble::Flushes, 1, true),  // that
            (Trouble::Writes, 1, false),  // the same again, with the others
            (Trouble::Flushes, 2, false), // those
            (Trouble::Writes, 2, false),  // the other mirrors
        ] {
            let what = format!("{profile}, {trouble:?} {nth}");
            let Replaced { volume, devices, new, target, devid } = Replaced::new(&sample);
            copy_all(&volume, devid);
            let old = &devices[count - 1];
            volume.finish_target(devid).expect("finish");
            target.fail_after(trouble, nth);
            let done = commit(&volume);
            assert!(target.struck() > 0, "{what}: nothing failed");
            let replaced = volume.take_replaced();
            let bears = count > 1;
            if stays {
                done.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(replaced.is_empty() && !volume.has_target(devid) && !volume.read_only(), "{what}");
                assert_eq!(volume.take_lost().iter().map(|lost| lost.is_target).collect::<Vec<_>>(), [true], "{what}");
                assert_eq!(generation(&**old), volume.super_block().generation.get(), "{what}: it gets the superblock");
                assert!(!volume.devices()[count - 1].failed, "{what}");
                sample.read_all(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
            } else {
                assert_eq!(done.is_ok(), bears, "{what}");
                let [of] = &replaced[..] else { panic!("{what}: it has been exchanged") };
                assert!(!of.is_done_without, "{what}");
                of.wipe().expect("nothing to be done");
            }
            // Whatever came, with the old devices alone everything is there.
            drop(volume);
            target.fail(Trouble::None);
            let opts = OpenOptions { degraded: true, ..READ };
            let volume = Volume::open(devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect(), &opts);
            let volume = volume.unwrap_or_else(|e| panic!("{what}: {e}"));
            sample.read_all(&volume).unwrap_or_else(|e| panic!("{what}, the old devices: {e}"));
            // Nobody takes what failed for the device.
            if stays {
                let names = read_super(&*new).map_or(0, |sb| sb.dev_item.devid.get());
                assert_eq!(names, 0, "{what}");
            }
        }
    }
}

/// Goal: a bad copy on a device that took another's place and that cannot be healed stays bad, as on any device: the volume goes on with all of them. Method: it rots, and
/// refuses the write that would heal it.
#[test]
fn healing_is_no_write_of_the_volume() {
    let sample = Sample::new(Profile::Raid1, 2);
    let Replaced { volume, new, target, devid, .. } = Replaced::new(&sample);
    copy_all(&volume, devid);
    volume.finish_target(devid).expect("finish");
    commit(&volume).expect("commit");
    let stripe = sample.data.stripes.iter().find(|s| s.devid == devid).expect("it has a copy");
    new.write_at(stripe.offset.0, &noise(NOISE_LEN, 9)).expect("rots");
    target.fail(Trouble::Writes);
    sample.read_all(&volume).expect("the other has it");
    assert!(target.struck() > 0, "it was to be healed");
    target.fail(Trouble::None);
    commit(&volume).expect("commit");
    assert!(volume.take_lost().is_empty() && !volume.is_degraded());
    assert!(volume.devices()[1].errors.write > 0);
}

/// Goal: a device is copied once, though it has both copies of what is DUP. Method: bytes that are written, beside those of the chunks.
#[test]
fn dup_is_copied_once() {
    let sample = Sample::new(Profile::Dup, 1);
    let Replaced { volume, devid, .. } = Replaced::new(&sample);
    let chunk = volume.chunk_of(sample.data.start).expect("chunk");
    let len = chunk.stripe_bytes().0;
    let one = |stripe| {
        let run = RefillRun { devid, chunk: chunk.start, stripe, from: 0, len };
        volume.refill(&run, &AllGood).expect("copied").written
    };
    assert!(one(0) <= len && one(1) <= len);
    let nowhere = RefillRun { devid, chunk: chunk.start, stripe: 2, from: 0, len };
    assert!(matches!(volume.refill(&nowhere, &AllGood), Err(VolumeError::Unmapped { .. })));
}

/// Goal: numbers of devices have an end, and a volume that has reached it takes no more. Method: one whose device has the last number.
#[test]
fn the_last_number() {
    let device = Arc::new(MemDevice::new(300 * MIB)) as Arc<dyn Device>;
    let item = dev_item(u64::MAX, 300 * MIB);
    let volume = Volume::create(vec![(device, item)], &sample_super(), Uuid::nil()).expect("create");
    assert!(matches!(volume.can_attach(), Err(VolumeError::Unsupported { .. })));
    let new = Candidate::new(Arc::new(MemDevice::new(300 * MIB)), Uuid::nil(), true).expect("candidate");
    assert!(matches!(volume.attach(new.prepare().expect("prepared")), Err(VolumeError::Unsupported { .. })));
    assert_eq!(volume.devices().len(), 1);
}

/// Goal: a device that fails when it is told that whoever has it open is done is an error; one that the volume does without already is none.
#[test]
fn failures_at_the_release() {
    for lost_before in [false, true] {
        let sample = Sample::new(Profile::Raid1, 2);
        let copies: Vec<_> = sample.devices.iter().map(|d| Arc::new(Faulty::new(Arc::new(d.copy())))).collect();
        let all = copies.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let volume = Volume::open(all, &WRITE).expect("open");
        copies[0].fail(Trouble::Flushes);
        if lost_before {
            volume.flush().expect("borne");
        }
        assert_eq!(volume.release().is_ok(), lost_before);
        assert_eq!(volume.read_only(), !lost_before);
    }
}

/// Says what is free as a test has it.
struct Free(AtomicBool);

impl Occupancy for Free {
    fn is_free(&self, _: Logical, _: ByteLen) -> bool {
        self.0.load(SeqCst)
    }
}

/// Goal: parity that is written while a device is replaced fits what is on the new one, also in rows that were free when their place was passed, whatever lay there on the old one: so
/// what was written is there without any one device afterwards. Method: noise on all devices; everything is free while it is copied; then parts of rows are written, the
/// device is exchanged, and each of the others is taken away.
#[test]
fn parity_fits_what_is_on_the_new_device() {
    for (profile, count) in [(Profile::Raid5, 3), (Profile::Raid5, 4), (Profile::Raid6, 5)] {
        let sample = Sample::new(profile, count);
        for stripe in &sample.data.stripes {
            let bytes = noise(4 * NOISE_LEN, 100 + stripe.devid.0);
            sample.devices[stripe.devid.0 as usize - 1].write_at(stripe.offset.0, &bytes).expect("noise");
        }
        let what = format!("{profile} on {count}");
        let Replaced { volume, mut devices, new, devid, .. } = Replaced::new(&sample);
        let free = Arc::new(Free(true.into()));
        volume.set_occupancy(Arc::downgrade(&free) as std::sync::Weak<dyn Occupancy>);
        let piece = noise(4096, 33);
        let row_len = sample.data.data_stripes() * STRIPE_LEN;
        let places: Vec<Logical> =
            (0..9).map(|n| sample.data.start + ByteLen(n * row_len + n * STRIPE_LEN % row_len + n * 4096)).collect();
        copy_all(&volume, devid);
        places.iter().for_each(|at| volume.write(&[(*at, &piece)]).expect("write"));
        // The chunk tree was free, too.
        free.0.store(false, SeqCst);
        for chunk in volume.chunks().into_iter().filter(|chunk| chunk.is_system()) {
            for stripe in (0..chunk.stripes.len()).filter(|&stripe| chunk.stripes[stripe].devid == devid) {
                let run = RefillRun { devid, chunk: chunk.start, stripe, from: 0, len: chunk.stripe_bytes().0 };
                volume.refill(&run, &AllGood).expect("copied");
            }
        }
        volume.finish_target(devid).expect("finish");
        commit(&volume).expect("commit");
        drop(volume);
        devices[count - 1] = new;
        for without in 0..count {
            let left = devices.iter().enumerate().filter(|(nth, _)| *nth != without);
            let opts = OpenOptions { degraded: true, ..READ };
            let volume = Volume::open(left.map(|(_, d)| d.clone() as Arc<dyn Device>).collect(), &opts);
            let volume = volume.unwrap_or_else(|e| panic!("{what}, without {without}: {e}"));
            for at in &places {
                let mut found = vec![0; 4096];
                volume.read_data(*at, &mut found, None).unwrap_or_else(|e| panic!("{what}, without {without}: {e}"));
                assert!(found == piece, "{what}, without {without}: {at}");
            }
        }
    }
}

/// What a device and its target have of the data chunk is the same.
fn must_be_copied(sample: &Sample, old: &dyn Device, new: &dyn Device, devid: DevId, len: u64, what: &str) {
    for stripe in sample.data.stripes.iter().filter(|stripe| stripe.devid == devid) {
        let [mut was, mut is] = [vec![0; len as usize], vec![0; len as usize]];
        old.read_at(stripe.offset.0, &mut was).expect("read");
        new.read_at(stripe.offset.0, &mut is).expect("read");
        let differs = (0..len as usize).step_by(4096).find(|&at| was[at..at + 4096] != is[at..at + 4096]);
        assert_eq!(differs, None, "{what}: they differ there");
    }
}

/// Goal: while a piece is copied, only who writes there waits: not who writes elsewhere on the same device, but who writes another unit of a row that the piece has a part
/// of. What he wrote is on the target in the end. Method: the target holds up the piece's write.
#[test]
fn only_writers_of_what_is_copied_wait() {
    const MARK: u8 = 0x77;
    for (profile, count) in [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid5, 3), (Profile::Raid6, 4)] {
        let sample = Sample::new(profile, count);
        let (volume, devices) = sample.open(&[], WRITE).expect("open");
        let (devid, gate) = (DevId(count as u64), Arc::new(Gate::new(300 * MIB)));
        let map = &sample.data;
        let rows_len = if profile.has_parity() { map.data_stripes() * MIB } else { MIB };
        volume.write(&[(map.start, &vec![MARK; rows_len as usize])]).expect("write");
        let candidate = Candidate::new(gate.clone(), Uuid::from_u128(5), true).expect("candidate");
        volume.set_target(devid, candidate.prepare().expect("prepared")).expect("target");
        let stripe = map.stripes.iter().position(|s| s.devid == devid).expect("it has one");
        let run = RefillRun { devid, chunk: map.start, stripe, from: 0, len: MIB };
        // A sector of the first row that is not on the device, if there is one.
        let unit = (0..map.data_stripes()).find(|unit| map.logical_of(stripe, 0) != Some(unit * STRIPE_LEN));
        let there = map.start + ByteLen(unit.unwrap_or_default() * STRIPE_LEN);
        let elsewhere = map.start + ByteLen(rows_len);
        gate.shut(Writes::Of(MARK));
        let volume = &volume;
        std::thread::scope(|threads| {
            let copies = threads.spawn(move || volume.refill(&run, &AllGood));
            gate.await_held(Writes::Of(MARK));
            let (told, tells) = channel();
            threads.spawn(move || {
                volume.write(&[(elsewhere, &noise(4096, 8))]).expect("write");
                told.send(()).expect("the test waits");
            });
            let passed = tells.recv_timeout(Duration::from_secs(60));
            let waits = threads.spawn(move || volume.write(&[(there, &noise(4096, 9))]));
            std::thread::sleep(Duration::from_millis(100));
            let waited = !waits.is_finished();
            gate.open(Writes::Of(MARK));
            copies.join().expect("no panic").expect("copied");
            waits.join().expect("no panic").expect("write");
            assert!(passed.is_ok() && waited, "{profile}: {passed:?}, {waited}");
        });
        let old = &devices[count - 1];
        must_be_copied(&sample, &**old, &*gate, devid, MIB, &profile.to_string());
        let mut found = vec![0; 4096];
        volume.read_data(there, &mut found, None).expect("read");
        assert!(found == noise(4096, 9), "{profile}");
    }
}

/// Goal: a target that is filled by several threads beside those who write has what the device has. Method: each writer has sectors of his own, all over what is copied;
/// in the end both devices are compared.
#[test]
fn filled_by_several_beside_writers() {
    const WRITERS: u64 = 3;
    const SECTOR: u64 = 4096;
    // Of each stripe.
    const LEN: u64 = 4 * MIB;
    const PIECE: u64 = STRIPE_LEN;
    for (profile, count) in
        [(Profile::Single, 1), (Profile::Raid1, 2), (Profile::Raid10, 4), (Profile::Raid5, 3), (Profile::Raid6, 5)]
    {
        let sample = Sample::new(profile, count);
        for seed in 0..4 {
            let what = format!("{profile} on {count}, seed {seed}");
            let Replaced { volume, devices, new, devid, .. } = Replaced::new(&sample);
            let (map, ended, next) = (&sample.data, AtomicBool::new(false), AtomicU64::new(0));
            let sectors = (LEN * map.data_stripes()).min(map.len.0) / SECTOR;
            let written = AtomicU64::new(0);
            std::thread::scope(|threads| {
                for writer in 0..WRITERS {
                    let (volume, ended, written) = (&volume, &ended, &written);
                    threads.spawn(move || {
                        let mut rng = Rng::new(seed * WRITERS + writer);
                        while !ended.load(SeqCst) {
                            let own = |rng: &mut Rng| rng.below(sectors / WRITERS) * WRITERS + writer;
                            let (a, b) = (own(&mut rng), own(&mut rng));
                            let some: Vec<(Logical, Vec<u8>)> = [a, b][..1 + usize::from(a != b)]
                                .iter()
                                .map(|nth| (map.start + ByteLen(nth * SECTOR), rng.bytes(SECTOR as usize)))
                                .collect();
                            let parts: Vec<(Logical, &[u8])> = some.iter().map(|(at, b)| (*at, &b[..])).collect();
                            volume.write(&parts).expect("write");
                            written.fetch_add(1, SeqCst);
                        }
                    });
                }
                let copy = || {
                    while written.load(SeqCst) < WRITERS {
                        std::thread::yield_now();
                    }
                    for stripe in (0..map.stripes.len()).filter(|&stripe| map.stripes[stripe].devid == devid) {
                        loop {
                            let from = next.fetch_add(PIECE, SeqCst);
                            if from >= LEN.min(map.stripe_bytes().0) {
                                break;
                            }
                            let run = RefillRun { devid, chunk: map.start, stripe, from, len: PIECE };
                            volume.will_refill(&RefillRun { from: from + PIECE, ..run });
                            volume.refill(&run, &AllGood).expect("copied");
                        }
                    }
                };
                let other = threads.spawn(copy);
                copy();
                other.join().expect("no panic");
                ended.store(true, SeqCst);
            });
            let len = LEN.min(map.stripe_bytes().0);
            must_be_copied(&sample, &*devices[count - 1], &*new, devid, len, &what);
        }
    }
}
