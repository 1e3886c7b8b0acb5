//! Devices that are missing, fail, come back, and lie about who they are.

use oleo_sim::faulty::{Faulty, Trouble};

use super::*;

const DEGRADED_WRITE: OpenOptions =
    OpenOptions { write: true, degraded: true, backup: None, super_copy: None, ignore_block_csums: false };

/// The sample's devices, which fail when asked.
fn faulty(sample: &Sample) -> (Vec<Arc<Faulty>>, Vec<Arc<MemDevice>>) {
    let copies: Vec<_> = sample.devices.iter().map(|d| Arc::new(d.copy())).collect();
    (copies.iter().map(|d| Arc::new(Faulty::new(d.clone()))).collect(), copies)
}

fn open_all(devices: &[Arc<Faulty>], opts: &OpenOptions) -> Result<Volume, VolumeError> {
    Volume::open(devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect(), opts)
}

fn commit(volume: &Volume) {
    let mut sb = volume.super_block();
    sb.generation = (sb.generation.get() + 1).into();
    volume.write_supers(&sb).expect("supers");
}

fn generation(device: &dyn Device) -> u64 {
    read_super(device).expect("super").generation.get()
}

/// Whether the volume of a sample can do without any one of its devices.
fn bears_one(profile: Profile, count: usize) -> bool {
    profile.losses_max() > 0 && count > 1
}

/// Goal: a write or a flush that fails on one device is done without it where all chunks can do without; where one cannot, nothing is
/// written any more, least of all superblocks. What was written is read, also by the next to open, and the device is told from the others
/// two commits later. Method: each device of each profile fails once, in each way.
#[test]
fn a_device_that_fails() {
    for (profile, count, sample) in samples() {
        for (victim, trouble) in
            (0..count).flat_map(|v| [Trouble::Writes, Trouble::Flushes, Trouble::All].map(|t| (v, t)))
        {
            let what = format!("{profile} on {count}, {trouble:?} of {victim}");
            let (devices, copies) = faulty(sample);
            let volume = open_all(&devices, &WRITE).expect("open");
            devices[victim].fail(trouble);
            let fresh = noise(NOISE_LEN, 77);
            let done = volume.write(&[(sample.data.start, &fresh)]).and_then(|()| volume.flush());
            let is_hit = devices[victim].struck() > 0;
            if !is_hit {
                done.unwrap_or_else(|e| panic!("{what}: nothing is there: {e}"));
                continue;
            }
            if !bears_one(profile, count) {
                // Where the system chunk alone is there, it can do without; the data chunk cannot, or nobody else is there.
                let is_needed = count == 1 || sample.data.stripes.iter().any(|s| s.devid.0 as usize == victim + 1);
                assert_eq!((done.is_err(), volume.read_only()), (is_needed, is_needed), "{what}: {done:?}");
                let lost: Vec<usize> = volume.take_lost().iter().map(|l| l.devid.0 as usize - 1).collect();
                assert_eq!(lost, if is_needed { vec![] } else { vec![victim] }, "{what}");
                if is_needed {
                    let mut sb = volume.super_block();
                    sb.generation = 6.into();
                    assert!(volume.write_supers(&sb).is_err(), "{what}");
                    assert!(copies.iter().all(|d| generation(&**d) == 5), "{what}");
                }
                continue;
            }
            done.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(!volume.read_only(), "{what}");
            assert_eq!(
                volume.take_lost().iter().map(|l| l.devid.0 as usize).collect::<Vec<_>>(),
                [victim + 1],
                "{what}"
            );
            assert!(volume.devices()[victim].failed, "{what}");
            for left in [true, true, false] {
                assert_eq!(volume.owes_commit(), left, "{what}");
                commit(&volume);
            }
            let mut buf = vec![0; NOISE_LEN];
            volume.read_data(sample.data.start, &mut buf, None).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(buf == fresh, "{what}");
            drop(volume);
            // It is back, and not believed.
            devices[victim].fail(Trouble::None);
            assert!(generation(&*copies[victim]) < generation(&*copies[(victim + 1) % count]) - 1, "{what}");
            let volume = open_all(&devices, &WRITE).expect("open");
            let info = &volume.devices()[victim];
            assert!(info.stale && !info.missing && info.behind > 1, "{what}");
            buf.fill(0);
            volume.read_data(sample.data.start, &mut buf, None).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(buf == fresh, "{what}: old bytes are read");
            // It gets writes, but no superblock.
            volume.write(&[(sample.data.start, &fresh)]).expect("write");
            let before = generation(&*copies[victim]);
            commit(&volume);
            assert_eq!(generation(&*copies[victim]), before, "{what}");
        }
    }
}

/// Goal: a volume that can do without its missing devices is written to without them, and no other is. What is written can be read, also
/// after the device has come back with old bytes. Method: each device of each profile is missing once; then each pair.
#[test]
fn missing_devices_are_written_around() {
    for (profile, count, sample) in samples() {
        let pairs = (0..count).flat_map(|a| (a..count).map(move |b| vec![a, b]));
        for mut without in pairs {
            without.dedup();
            if without.len() == count {
                continue;
            }
            let what = format!("{profile} on {count} without {without:?}");
            let lost = |stripe: usize| without.contains(&(sample.data.stripes[stripe].devid.0 as usize - 1));
            let opened = sample.open(&without, DEGRADED_WRITE);
            // The chunk tree's chunk is raid1 on two of the devices.
            if let Err(VolumeError::NoGoodCopy { .. } | VolumeError::NotBorne { .. }) = &opened
                && without.len() > 1
            {
                continue;
            }
            if !losses::bears(&sample.data, lost) {
                assert!(matches!(opened, Err(VolumeError::NotBorne { .. })), "{what}: {:?}", opened.err());
                continue;
            }
            let (volume, devices) = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(volume.owes_commit() && volume.is_degraded(), "{what}");
            sample.read_all(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
            // Whole rows, and parts of rows.
            let fresh = noise(NOISE_LEN, 5);
            volume.write(&[(sample.data.start, &fresh)]).unwrap_or_else(|e| panic!("{what}: {e}"));
            let piece = noise(3 * 4096, 6);
            let at = ByteLen(9 * 4096);
            volume.write(&[(sample.data.start + at, &piece)]).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut want = fresh;
            want[9 * 4096..12 * 4096].copy_from_slice(&piece);
            commit(&volume);
            commit(&volume);
            assert!(!volume.owes_commit(), "{what}");
            let verify = |volume: &Volume, who: &str| {
                let mut buf = vec![0; NOISE_LEN];
                volume.read_data(sample.data.start, &mut buf, None).unwrap_or_else(|e| panic!("{what}, {who}: {e}"));
                assert!(buf == want, "{what}, {who}");
            };
            verify(&volume, "without it");
            drop(volume);
            let all: Vec<_> = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
            let volume = Volume::open(all, &WRITE).unwrap_or_else(|e| panic!("{what}: {e}"));
            verify(&volume, "with old bytes");
        }
    }
}

/// Goal: where only an old copy is there, data without checksums is not read from it; with checksums it is.
#[test]
fn old_copies_are_not_believed() {
    let sample = Sample::new(Profile::Raid1, 2);
    let (volume, devices) = sample.open(&[1], DEGRADED_WRITE).expect("open");
    for _ in 0..3 {
        commit(&volume);
    }
    drop(volume);
    let all: Vec<_> = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let faulty = Arc::new(Faulty::new(all[0].clone()));
    let volume = Volume::open(vec![faulty.clone(), all[1].clone()], &WRITE).expect("open");
    faulty.fail(Trouble::Reads);
    sample.read_all(&volume).expect("checksums tell");
    let error = volume.read_data(sample.data.start, &mut [0; 4096], None).expect_err("nobody can tell");
    assert!(matches!(error, VolumeError::NoGoodCopy { .. }), "{error}");
    assert!(volume.devices()[0].errors.read > 0);
}

/// Goal: data without checksums that is on one device alone is read from it even if it missed transactions: nobody could write to what is on it. Method: DUP and
/// single, on a device that others have left behind.
#[test]
fn what_is_on_one_device_is_read_from_it() {
    for profile in [Profile::Single, Profile::Dup] {
        let sample = Sample::new(profile, 2);
        let nth = sample.data.stripes[0].devid.0 as usize - 1;
        assert!(sample.data.stripes.iter().all(|s| s.devid.0 as usize == nth + 1));
        let (volume, devices) = sample.open(&[], WRITE).expect("open");
        for _ in 0..3 {
            commit(&volume);
        }
        drop(volume);
        let all = devices.iter().enumerate().map(|(n, now)| if n == nth { &sample.devices[n] } else { now });
        let volume = Volume::open(all.map(|d| d.clone() as Arc<dyn Device>).collect(), &READ).expect("open");
        assert!(volume.devices()[nth].stale);
        let mut buf = vec![0; NOISE_LEN];
        volume.read_data(sample.data.start, &mut buf, None).unwrap_or_else(|e| panic!("{profile}: {e}"));
        assert!(buf == sample.noise, "{profile}");
    }
}

/// Goal: no room below one device is no loss: the caller gets the error, and the write is done when there is room again.
#[test]
fn no_room_on_one_device() {
    for profile in [Profile::Raid1, Profile::Raid10, Profile::Raid5] {
        let sample = Sample::new(profile, 4);
        let (devices, _) = faulty(&sample);
        let volume = open_all(&devices, &WRITE).expect("open");
        let victim = sample.data.stripes[0].devid.0 as usize - 1;
        devices[victim].fail(Trouble::Full);
        let fresh = noise(NOISE_LEN, 3);
        let error = volume.write(&[(sample.data.start, &fresh)]).expect_err("no room");
        assert!(error.is_full() && !volume.read_only() && volume.take_lost().is_empty(), "{profile}: {error}");
        devices[victim].fail(Trouble::None);
        volume.write(&[(sample.data.start, &fresh)]).expect("again");
        volume.flush().expect("flush");
        let mut buf = vec![0; NOISE_LEN];
        volume.read_data(sample.data.start, &mut buf, None).expect("read");
        assert!(buf == fresh, "{profile}");
        assert_eq!(volume.devices()[victim].errors, ErrorCounters::default(), "{profile}");
    }
}

/// Goal: of two devices with one number the newer is taken, and the other is named; equal ones are refused.
#[test]
fn an_old_twin() {
    let sample = Sample::new(Profile::Raid1, 2);
    let (volume, devices) = sample.open(&[], WRITE).expect("open");
    commit(&volume);
    drop(volume);
    let open = |devices: &[&Arc<MemDevice>]| {
        Volume::open(devices.iter().map(|d| (*d).clone() as Arc<dyn Device>).collect(), &WRITE)
    };
    let volume = open(&[&sample.devices[1], &devices[0], &devices[1]]).expect("the older is left out");
    assert_eq!(
        volume.left_out().iter().map(|l| (l.devid, l.why)).collect::<Vec<_>>(),
        [(DevId(2), WhyLeftOut::Outdated)]
    );
    assert!(!volume.is_degraded());
    drop(volume);
    let copy = Arc::new(devices[1].copy());
    assert!(matches!(open(&[&copy, &devices[0], &devices[1]]), Err(VolumeError::Twins { .. })));
}

/// Goal: new chunks are placed on sound devices alone, with the next best profile where too few are left.
#[test]
fn chunks_on_what_is_left() {
    let sample = Sample::new(Profile::Raid1c3, 3);
    let (volume, _) = sample.open(&[2], DEGRADED_WRITE).expect("open");
    let wanted = BlockGroupFlags::DATA | BlockGroupFlags::RAID1C3;
    assert!(matches!(volume.propose_chunk(&ChunkWant::new(wanted)), Err(VolumeError::NoRoom { .. })));
    let instead = volume.attainable(wanted);
    assert_eq!(instead, BlockGroupFlags::DATA | BlockGroupFlags::RAID1);
    let plan = volume.propose_chunk(&ChunkWant::new(instead)).expect("two are there");
    assert!(plan.map.stripes.iter().all(|s| s.devid != DevId(3)));
    let (volume, _) = sample.open(&[], WRITE).expect("open");
    assert_eq!(volume.attainable(wanted), wanted);
}
