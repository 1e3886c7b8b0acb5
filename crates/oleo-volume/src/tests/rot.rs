//! Sectors that rot, and parity that a crash left stale, beside sectors that are written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use oleo_device::Device;
use oleo_sim::crash::pages::Contents;
use oleo_sim::crash::record::{Event, Journal};
use oleo_sim::rng::Rng;

use super::crash::{InUse, SECTOR, SECTORS, losses, lost};
use super::*;

/// Knows what every sector of the sample is that is in use, but for some.
struct Knows {
    start: Logical,
    sectors: BTreeMap<usize, Vec<u8>>,
}

impl Witness for Knows {
    fn verdicts(&self, at: Logical, bytes: &[u8]) -> Vec<Verdict> {
        let first = (at - self.start).0 as usize / SECTOR;
        let one = |(nth, bytes): (usize, &[u8])| match self.sectors.get(&(first + nth)) {
            Some(right) if right == bytes => Verdict::Good,
            Some(_) => Verdict::Bad,
            None => Verdict::Unknown,
        };
        bytes.chunks(SECTOR).enumerate().map(one).collect()
    }
}

/// A column of the sample, in the middle of a row that is full of noise.
struct Column {
    sample: Sample,
    devices: Vec<Arc<MemDevice>>,
    volume: Volume,
    in_use: Arc<InUse>,
    _knows: Option<Arc<Knows>>,
    /// Its sectors by data unit; the first is free.
    sectors: Vec<usize>,
    sets: Vec<Vec<usize>>,
}

impl Column {
    fn new(profile: Profile, count: usize, knows: impl Fn(usize) -> bool, with_witness: bool) -> Column {
        let sample = Sample::new(profile, count);
        let sets = losses(&sample, profile, count);
        let (volume, devices) = sample.open(&[], WRITE).expect("open");
        let unit = STRIPE_LEN as usize / SECTOR;
        let sectors: Vec<usize> = (0..sample.data.data_stripes() as usize).map(|n| n * unit + 5).collect();
        let live: BTreeSet<usize> = (0..SECTORS).filter(|sector| *sector != sectors[0]).collect();
        let of = |sector: usize| (sector, sample.noise[sector * SECTOR..(sector + 1) * SECTOR].to_vec());
        let known = live.iter().copied().filter(|sector| knows(*sector)).map(of).collect();
        let in_use = Arc::new(InUse {
            start: sample.data.start,
            sectors: Mutex::new(live),
            lately: Mutex::default(),
            lies: false,
        });
        let weak: Weak<InUse> = Arc::downgrade(&in_use);
        volume.set_occupancy(weak);
        let knows = with_witness.then(|| Arc::new(Knows { start: sample.data.start, sectors: known }));
        if let Some(knows) = &knows {
            let weak: Weak<Knows> = Arc::downgrade(knows);
            volume.set_witness(weak);
        }
        Column { sample, devices, volume, in_use, _knows: knows, sectors, sets }
    }

    /// Device and place of a unit of the column.
    fn place(&self, unit: usize) -> (usize, u64) {
        let map = &self.sample.data;
        let stripe = &map.stripes[map.rotated(0, unit)];
        (stripe.devid.0 as usize - 1, stripe.offset.0 + 5 * SECTOR as u64)
    }

    fn rot(&self, unit: usize) {
        let (nth, at) = self.place(unit);
        let mut bytes = vec![0; SECTOR];
        self.devices[nth].read_at(at, &mut bytes).expect("read");
        // Not the same everywhere: it would cancel out in the sum.
        bytes.iter_mut().step_by(3).for_each(|byte| *byte ^= 0x5a + unit as u8);
        self.devices[nth].write_at(at, &bytes).expect("write");
    }

    /// Writes the free sector, and commits, so that it is promised and the record done with.
    fn write(&self) -> Vec<u8> {
        let bytes = Rng::new(7).bytes(SECTOR);
        let at = self.sample.data.start + ByteLen((self.sectors[0] * SECTOR) as u64);
        self.in_use.sectors.lock().expect("lock").insert(self.sectors[0]);
        self.volume.write(&[(at, &bytes)]).expect("write");
        let mut sb = self.volume.super_block();
        sb.generation = (sb.generation.get() + 1).into();
        self.volume.write_supers(&sb).expect("supers");
        bytes
    }

    fn noise(&self, sector: usize) -> Vec<u8> {
        self.sample.noise[sector * SECTOR..(sector + 1) * SECTOR].to_vec()
    }

    /// Sectors of the column that cannot be read, with all devices and without each set that the profile allows.
    fn lost(&self, new: &[u8]) -> usize {
        let contents: Vec<Contents> =
            self.devices.iter().map(|device| Contents::of(&**device).expect("contents")).collect();
        let mut want: BTreeMap<usize, Vec<u8>> = self.sectors[1..].iter().map(|&s| (s, self.noise(s))).collect();
        want.insert(self.sectors[0], new.to_vec());
        let all = [Vec::new()].into_iter().chain(self.sets.iter().cloned());
        all.map(|set| lost(&self.sample, &want, &contents, &set)).sum()
    }

    fn corruptions(&self) -> u64 {
        self.volume.error_counters().iter().map(|(_, errors)| errors.corruption).sum()
    }
}

const SHAPES: [(Profile, usize); 3] = [(Profile::Raid5, 3), (Profile::Raid5, 4), (Profile::Raid6, 5)];

/// Goal: a sector that rotted is not made the truth by a write beside it, but rebuilt, and counted; without a witness it is lost, so this is the witness's
/// doing. Method: each live sector of a column (and each pair, if there are two parities) is changed on the device; the free one is written; all of the column is read from any
/// set of devices.
#[test]
fn what_rotted_is_healed() {
    for (profile, count) in SHAPES {
        let data = profile.data_stripes(count as u64) as usize;
        let two = profile.shape().parities > 1;
        let pairs = (1..data).flat_map(|a| (a..data).map(move |b| (a, b))).filter(|(a, b)| a == b || two);
        for (a, b) in pairs {
            let what = format!("{profile} on {count}, units {a} and {b}");
            let rotten = BTreeSet::from([a, b]);
            let column = Column::new(profile, count, |_| true, true);
            rotten.iter().for_each(|&unit| column.rot(unit));
            let new = column.write();
            let stats = column.volume.row_stats();
            assert_eq!((stats.misfits, stats.healed, stats.lost), (1, rotten.len() as u64, 0), "{what}");
            assert_eq!(column.corruptions(), rotten.len() as u64, "{what}");
            assert_eq!(column.lost(&new), 0, "{what}");

            let blind = Column::new(profile, count, |_| true, false);
            rotten.iter().for_each(|&unit| blind.rot(unit));
            assert!(blind.lost(&blind.write()) > 0, "{what}: nothing is lost without a witness");
        }
    }
}

/// Goal: stale parity is right after a write, and nothing is taken for rotten; also where nobody knows what the live sectors should be. Method: parity is changed on the device, P, Q, or both;
/// with a witness that knows all, and with one that knows nothing.
#[test]
fn stale_parity_is_computed_anew() {
    for (profile, count) in SHAPES {
        let (data, parities) = (profile.data_stripes(count as u64) as usize, usize::from(profile.shape().parities));
        for stale in 1..1usize << parities {
            for knows in [true, false] {
                let column = Column::new(profile, count, |_| knows, true);
                (0..parities).filter(|nth| stale >> nth & 1 == 1).for_each(|nth| column.rot(data + nth));
                let new = column.write();
                let stats = column.volume.row_stats();
                let want = (u64::from(data > 1), 0, 0);
                assert_eq!((stats.misfits, stats.healed, stats.lost), want, "{profile} on {count}, {stale}");
                assert_eq!((column.lost(&new), column.corruptions()), (0, 0), "{profile} on {count}, {stale}");
            }
        }
    }
}

/// Goal: with RAID6, what rotted is rebuilt although one of the parities is stale too, or another sector rotted that nobody can tell. Method: one live sector
/// and one other unit are changed on the devices, the other known or not.
#[test]
fn two_wrongs_are_told_apart() {
    for count in [5, 6] {
        let data = count - 2;
        for other in 2..count {
            let unit = STRIPE_LEN as usize / SECTOR;
            let unknown = (other < data).then_some(other * unit + 5);
            let column = Column::new(Profile::Raid6, count, |sector| Some(sector) != unknown, true);
            [1, other].iter().for_each(|&unit| column.rot(unit));
            column.write();
            let (nth, at) = column.place(1);
            let mut found = vec![0; SECTOR];
            column.devices[nth].read_at(at, &mut found).expect("read");
            assert!(found == column.noise(column.sectors[1]), "on {count}, beside unit {other}");
            assert_eq!(column.volume.row_stats().healed, 1, "on {count}, beside unit {other}");
        }
    }
}

/// Goal: where more rotted than parity can rebuild, a write beside it leaves the way open: with one of the sectors had from elsewhere, the others are rebuilt
/// as before. Method: one more than there are parities; then one is put right by hand.
#[test]
fn what_is_lost_gets_no_worse() {
    for (profile, count) in [(Profile::Raid5, 4), (Profile::Raid6, 6)] {
        let rotten = 1..=usize::from(profile.shape().parities) + 1;
        let column = Column::new(profile, count, |_| true, true);
        rotten.clone().for_each(|unit| column.rot(unit));
        let new = column.write();
        let stats = column.volume.row_stats();
        assert_eq!((stats.healed, stats.lost), (0, rotten.clone().count() as u64), "{profile}");
        column.rot(1); // which is its own inverse
        let contents: Vec<Contents> =
            column.devices.iter().map(|device| Contents::of(&**device).expect("contents")).collect();
        let mut want: BTreeMap<usize, Vec<u8>> =
            rotten.map(|n| (column.sectors[n], column.noise(column.sectors[n]))).collect();
        want.insert(column.sectors[0], new);
        assert_eq!(lost(&column.sample, &want, &contents, &[]), 0, "{profile}");
    }
}

/// Finds no room, once it is told so.
struct Full {
    inner: Arc<MemDevice>,
    /// Writes that still find some; `u64::MAX`: all.
    left: std::sync::atomic::AtomicU64,
}

impl Device for Full {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), oleo_device::DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), oleo_device::DeviceError> {
        use std::sync::atomic::Ordering::SeqCst;
        let less = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(1));
        // Parity that was there before takes no room.
        if self.left.fetch_update(SeqCst, SeqCst, less) == Ok(0) && offset >= MIB {
            self.left.store(u64::MAX, SeqCst);
            let source = Arc::new(std::io::Error::from_raw_os_error(28));
            let (op, len) = (oleo_device::Op::Write, buf.len() as u64);
            return Err(oleo_device::DeviceError::Io { name: "full".into(), op, offset, len, source });
        }
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), oleo_device::DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), oleo_device::DeviceError> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), oleo_device::DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        "full".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: a write that finds no room below a device leaves parity that fits, and the volume can be written to: the same write succeeds later. Method: each
/// device in turn has no room for its part of one write beside live sectors; then every column fits what is there, and the write is done again.
#[test]
fn no_room_below_leaves_parity_right() {
    let mut refused = 0;
    for full in 0..4 {
        let sample = Sample::new(Profile::Raid5, 4);
        let sets = losses(&sample, Profile::Raid5, 4);
        let disks: Vec<Arc<MemDevice>> = sample.devices.iter().map(|device| Arc::new(device.copy())).collect();
        let devices: Vec<Arc<Full>> = disks
            .iter()
            .map(|inner| Arc::new(Full { inner: inner.clone(), left: std::sync::atomic::AtomicU64::new(u64::MAX) }))
            .collect();
        let volume =
            Volume::open(devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect(), &WRITE).expect("open");
        let live: BTreeSet<usize> = (1..SECTORS).collect();
        let in_use = Arc::new(InUse {
            start: sample.data.start,
            sectors: Mutex::new(live.clone()),
            lately: Mutex::default(),
            lies: false,
        });
        let weak: Weak<InUse> = Arc::downgrade(&in_use);
        volume.set_occupancy(weak);
        devices[full].left.store(0, std::sync::atomic::Ordering::SeqCst);
        let new = Rng::new(3).bytes(SECTOR);
        let written = volume.write(&[(sample.data.start, &new)]);
        devices[full].left.store(u64::MAX, std::sync::atomic::Ordering::SeqCst);
        let noise = |sector: usize| sample.noise[sector * SECTOR..(sector + 1) * SECTOR].to_vec();
        let unit = STRIPE_LEN as usize / SECTOR;
        let mut want: BTreeMap<usize, Vec<u8>> = [unit, 2 * unit].into_iter().map(|s| (s, noise(s))).collect();
        let lost_of = |want: &BTreeMap<usize, Vec<u8>>| -> usize {
            let contents: Vec<Contents> =
                disks.iter().map(|device| Contents::of(&**device).expect("contents")).collect();
            sets.iter().map(|set| lost(&sample, want, &contents, set)).sum()
        };
        if let Err(e) = written {
            assert!(e.is_full(), "{e}");
            refused += 1;
            assert_eq!(lost_of(&want), 0, "device {full} full");
            // With what is there now in place of the record.
            let mut sb = volume.super_block();
            sb.generation = (sb.generation.get() + 1).into();
            volume.write_supers(&sb).expect("the volume goes on");
            assert_eq!(lost_of(&want), 0, "device {full} full, the record done with");
        }
        volume.write(&[(sample.data.start, &new)]).expect("there is room again");
        let mut sb = volume.super_block();
        sb.generation = (sb.generation.get() + 1).into();
        volume.write_supers(&sb).expect("supers");
        want.insert(0, new);
        assert_eq!(lost_of(&want), 0, "device {full}, written again");
    }
    assert_eq!(refused, 2, "the data's device, and that of its parity");
}

/// Goal: what was healed is durable with the next flush, though healing goes past the latch. Method: a copy rots, is healed by a
/// read after a flush, and the device gets another flush behind the write.
#[test]
fn what_was_healed_is_flushed() {
    let sample = Sample::new(Profile::Raid1, 2);
    let journal = Journal::new();
    let mut base: Vec<Contents> = sample.devices.iter().map(|d| Contents::of(&**d).expect("contents")).collect();
    let stripe = &sample.data.stripes[0];
    let rotten = stripe.devid.0 as usize - 1;
    base[rotten].write(stripe.offset.0, &noise(NOISE_LEN, 9));
    let disks = base.iter().enumerate().map(|(nth, c)| Arc::new(journal.disk(nth, c.clone())) as Arc<dyn Device>);
    let volume = Volume::open(disks.collect(), &WRITE).expect("open");
    volume.flush().expect("flush");
    journal.take();
    sample.read_all(&volume).expect("the other has it");
    volume.flush().expect("flush");
    let events = journal.take();
    let written = events.iter().rposition(|e| matches!(e, Event::Write { disk, .. } if *disk == rotten));
    let flushed = events.iter().rposition(|e| matches!(e, Event::Flush { disk } if *disk == rotten));
    assert!(written.is_some(), "nothing was healed");
    assert!(flushed > written, "{written:?} is not before {flushed:?}");
}
