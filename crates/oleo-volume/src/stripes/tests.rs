//! Rows that were written, compared with the definition of their parity.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use oleo_device::{Device, MemDevice};
use oleo_format::{BlockGroupFlags, ByteLen, DevItem, Logical, new_super_block};
use oleo_sim::budget::budget;
use oleo_sim::gate::{Gate, Writes};
use oleo_sim::rng::Rng;
use uuid::Uuid;

use crate::{ChunkMap, ChunkWant, Profile, STRIPE_LEN, Volume};

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 4096;

/// A volume with one data chunk, and what its bytes should be.
struct Sample {
    devices: Vec<Arc<MemDevice>>,
    volume: Volume,
    map: ChunkMap,
    bytes: Vec<u8>,
}

/// A volume with one data chunk of a few rows.
fn volume_on(devices: Vec<Arc<dyn Device>>, profile: Profile) -> (Volume, ChunkMap) {
    let count = devices.len();
    let item = |(nth, device): (usize, Arc<dyn Device>)| {
        let mut item = DevItem { devid: (nth as u64 + 1).into(), ..DevItem::default() };
        item.total_bytes = (100 * MIB).into();
        item.uuid = [nth as u8 + 1; 16];
        (device, item)
    };
    let mut sb = new_super_block();
    (sb.sectorsize, sb.nodesize) = (4096.into(), 16384.into());
    let volume = Volume::create(devices.into_iter().enumerate().map(item).collect(), &sb, Uuid::nil()).expect("create");
    // Something before it, so that rows do not begin at round addresses.
    let before = ChunkWant::new(BlockGroupFlags::DATA);
    volume.add_chunk(
        &volume.propose_chunk(&ChunkWant { len_max: Some(ByteLen(5 * STRIPE_LEN)), ..before }).expect("room"),
    );
    let want = ChunkWant::new(BlockGroupFlags::DATA | profile.bits());
    let data = profile.data_stripes(count as u64);
    let len = ByteLen((count as u64 + 2) * data * STRIPE_LEN);
    let plan = volume.propose_chunk(&ChunkWant { len_max: Some(len), ..want }).expect("room");
    volume.add_chunk(&plan);
    assert_eq!((plan.map.len, plan.map.stripes.len()), (len, count));
    (volume, plan.map)
}

impl Sample {
    fn new(profile: Profile, count: usize) -> Sample {
        let devices: Vec<_> = (1..=count).map(|_| Arc::new(MemDevice::new(100 * MIB))).collect();
        let (volume, map) =
            volume_on(devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect(), profile);
        // What is there is not zeros.
        for (nth, device) in devices.iter().enumerate() {
            device.write_at(MIB, &Rng::new(nth as u64).bytes(40 << 20)).expect("write");
        }
        let mut sample = Sample { devices, volume, bytes: vec![0; map.len.0 as usize], map };
        sample.volume.read_data(sample.map.start, &mut sample.bytes, None).expect("read");
        sample
    }

    fn unit(&self, row: u64, unit: usize) -> Vec<u8> {
        let stripe = &self.map.stripes[self.map.rotated(row, unit)];
        let mut bytes = vec![0; STRIPE_LEN as usize];
        self.devices[stripe.devid.0 as usize - 1]
            .read_at(stripe.offset.0 + row * STRIPE_LEN, &mut bytes)
            .expect("read");
        bytes
    }

    /// Whether a run of a row has the parity of the definition.
    fn fits(&self, row: u64, run: std::ops::Range<usize>) -> bool {
        let data = self.map.data_stripes() as usize;
        let units: Vec<Vec<u8>> = (0..self.map.stripes.len()).map(|unit| self.unit(row, unit)).collect();
        let double = |b: u8| (b << 1) ^ if b & 0x80 != 0 { 0x1d } else { 0 };
        run.into_iter().all(|at| {
            let p = units[..data].iter().fold(0, |sum, unit| sum ^ unit[at]);
            let q = units[..data].iter().rev().fold(0, |sum, unit| double(sum) ^ unit[at]);
            units[data..].iter().zip([p, q]).all(|(unit, want)| unit[at] == want)
        })
    }

    fn rows(&self) -> u64 {
        self.map.stripe_bytes().0 / STRIPE_LEN
    }

    /// Writes some sectors of random places and lengths; returns their runs.
    fn write_some(&mut self, rng: &mut Rng) -> Vec<(u64, u64)> {
        let sectors = self.map.len.0 / SECTOR;
        let mut taken = vec![false; sectors as usize];
        let mut runs = Vec::new();
        for _ in 0..=rng.below(6) {
            let (from, most) = (rng.below(sectors), [1, 4, 20, 200][rng.below(4) as usize]);
            let to = (from + 1 + rng.below(most)).min(sectors);
            if !taken[from as usize..to as usize].contains(&true) {
                taken[from as usize..to as usize].fill(true);
                runs.push((from * SECTOR, (to - from) * SECTOR));
            }
        }
        for &(at, len) in &runs {
            self.bytes[at as usize..(at + len) as usize].copy_from_slice(&rng.bytes(len as usize));
        }
        let (all, start) = (&self.bytes, self.map.start);
        let part = |&(at, len): &(u64, u64)| {
            // In pieces, as tree blocks come.
            let pieces = all[at as usize..(at + len) as usize].chunks(4 * SECTOR as usize).enumerate();
            pieces.map(move |(nth, piece)| (start + ByteLen(at + nth as u64 * 4 * SECTOR), piece))
        };
        let parts: Vec<(Logical, &[u8])> = runs.iter().flat_map(part).collect();
        self.volume.write(&parts).expect("write");
        runs
    }
}

fn cases() -> impl Iterator<Item = (Profile, usize)> {
    let five = (2..=6).map(|count| (Profile::Raid5, count));
    five.chain((3..=7).map(|count| (Profile::Raid6, count)))
}

/// Goal: after every write the parity of what it touched fits, whatever it was before, and everything is read back from any set of devices
/// that the profile allows. Method: random runs of sectors over devices full of noise, where no parity fits in the beginning; parity
/// by its definition, of all columns that were touched; at the end each device, and each pair, is overwritten with rubbish, and all of what was
/// written is rebuilt by its checksums.
#[test]
fn parity_fits_what_was_written() {
    for (profile, count) in budget().sample(cases().collect(), 4) {
        let mut sample = Sample::new(profile, count);
        let mut rng = Rng::new(count as u64 * 2 + u64::from(profile == Profile::Raid6));
        let what = format!("{profile} on {count}");
        let unit = STRIPE_LEN as usize;
        let mut sound = vec![false; (sample.rows() * STRIPE_LEN / SECTOR) as usize];
        for step in 0..60 {
            let mut touched = vec![false; sound.len()];
            for (at, len) in sample.write_some(&mut rng) {
                for at in (at..at + len).step_by(SECTOR as usize) {
                    touched[(sample.map.piece(at, SECTOR).offset / SECTOR) as usize] = true;
                }
            }
            for column in (0..sound.len()).filter(|&column| touched[column]) {
                let (row, from) = (column * SECTOR as usize / unit, column * SECTOR as usize % unit);
                assert!(sample.fits(row as u64, from..from + SECTOR as usize), "{what}, step {step}, column {column}");
                sound[column] = true;
            }
        }
        let mut found = vec![0; sample.bytes.len()];
        sample.volume.read_data(sample.map.start, &mut found, None).expect("read");
        assert!(found == sample.bytes, "{what}: data is where it belongs");
        let stats = sample.volume.row_stats();
        assert!(stats.parts > 0 && (stats.whole > 0 || count == 7), "{what}: {stats:?}");
        let losses = usize::from(profile.shape().parities);
        for (a, b) in (0..count).flat_map(|a| (a..count).map(move |b| (a, b))).filter(|(a, b)| losses == 2 || a == b) {
            sample.lose(&[a, b], &sound, &what);
        }
    }
}

impl Sample {
    /// Overwrites devices, and reads all sectors of sound columns by their checksums.
    fn lose(&self, gone: &[usize], sound: &[bool], what: &str) {
        let csum = self.volume.rules().csum;
        let before: Vec<Vec<u8>> = gone.iter().map(|&nth| read_all(&self.devices[nth])).collect();
        for &nth in gone {
            self.devices[nth].write_at(MIB, &vec![0xa5; 40 << 20]).expect("write");
        }
        for at in (0..self.map.len.0).step_by(SECTOR as usize) {
            if !sound[(self.map.piece(at, SECTOR).offset / SECTOR) as usize] {
                continue;
            }
            let want = &self.bytes[at as usize..(at + SECTOR) as usize];
            let (mut sums, mut found) = (Vec::new(), vec![0; SECTOR as usize]);
            csum.csum_sectors(want, SECTOR as u32, &mut sums);
            let read = self.volume.read_data(self.map.start + ByteLen(at), &mut found, Some(&sums));
            read.unwrap_or_else(|e| panic!("{what} without {gone:?}: {e}"));
            assert!(found == want, "{what} without {gone:?}");
        }
        for (&nth, bytes) in gone.iter().zip(&before) {
            self.devices[nth].write_at(MIB, bytes).expect("write");
        }
    }
}

fn read_all(device: &MemDevice) -> Vec<u8> {
    let mut bytes = vec![0; 40 << 20];
    device.read_at(MIB, &mut bytes).expect("read");
    bytes
}

/// Goal: writers of different sectors of the same rows do not undo each other's parity. Method: four threads, each with sectors of its
/// own, all in the same columns; then every column fits.
#[test]
fn writers_share_rows() {
    let sample = Sample::new(Profile::Raid6, 6);
    std::thread::scope(|scope| {
        for unit in 0..4u64 {
            let (volume, map) = (&sample.volume, &sample.map);
            scope.spawn(move || {
                let mut rng = Rng::new(unit);
                for turn in 0..200u64 {
                    let (row, sector) = (turn % 3, turn * 7 % 16);
                    let at = (row * 4 + unit) * STRIPE_LEN + sector * SECTOR;
                    volume.write(&[(map.start + ByteLen(at), &rng.bytes(SECTOR as usize))]).expect("write");
                }
            });
        }
    });
    for row in 0..3 {
        assert!(sample.fits(row, 0..STRIPE_LEN as usize), "row {row}");
    }
}

/// Goal: a flush waits for whoever writes a part of a row. He was told that what is beside is in no superblock; behind the flush one may name it, and a
/// crash in the middle of his write would leave it without parity. Method: a write that a device holds up; a flush meanwhile, which no device holds up.
#[test]
fn a_flush_waits_for_parts_of_rows() {
    const MARK: u8 = 0x77;
    let gates: Vec<Arc<Gate>> = (0..3).map(|_| Arc::new(Gate::new(100 * MIB))).collect();
    let devices = gates.iter().map(|gate| gate.clone() as Arc<dyn Device>).collect();
    let (volume, map) = volume_on(devices, Profile::Raid5);
    let gate = &gates[map.stripes[map.rotated(0, 0)].devid.0 as usize - 1];
    gate.shut(Writes::Of(MARK));
    std::thread::scope(|threads| {
        threads.spawn(|| volume.write(&[(map.start, &[MARK; SECTOR as usize])]).expect("write"));
        gate.await_held(Writes::Of(MARK));
        let (told, tells) = channel();
        let volume = &volume;
        threads.spawn(move || {
            volume.flush().expect("flush");
            told.send(()).expect("the test waits");
        });
        let early = tells.recv_timeout(Duration::from_millis(200));
        gate.open(Writes::Of(MARK));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "it did not wait");
        tells.recv_timeout(Duration::from_secs(60)).expect("it ends when the row is written");
    });
}
