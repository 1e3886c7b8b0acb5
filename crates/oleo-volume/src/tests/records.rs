//! Which records count when a volume is opened, and when: each test is of one rule of decision 0032, section 12, and fails without it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use oleo_device::Device;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::record::{Event, Journal};
use oleo_sim::rng::Rng;

use super::crash::{InUse, SECTOR, SECTORS, losses, lost};
use super::*;

/// Sectors of a unit.
const UNIT: usize = STRIPE_LEN as usize / SECTOR;

/// A volume of RAID5 on four devices, and what is on them: made once.
fn of_four() -> &'static (Sample, Vec<Contents>) {
    static MADE: OnceLock<(Sample, Vec<Contents>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let sample = Sample::new(Profile::Raid5, 4);
        let contents = contents_of(&sample);
        (sample, contents)
    })
}

/// What is on the devices of a sample: the second superblocks, and what lies before the end of the last chunk.
fn contents_of(sample: &Sample) -> Vec<Contents> {
    let chunk_end = |volume: &Volume| {
        let chunks = volume.chunks();
        let ends = chunks.iter().flat_map(|map| map.stripes.iter().map(|s| s.offset.0 + map.stripe_bytes().0));
        ends.max().expect("there are chunks")
    };
    let end = chunk_end(&sample.open(&[], READ).expect("open").0);
    let one = |device: &Arc<MemDevice>| {
        let mut contents = Contents::zeros(device.len());
        for at in (0..end).step_by(SECTOR).chain([64 * MIB]) {
            let mut bytes = [0; SECTOR];
            device.read_at(at, &mut bytes).expect("read");
            if bytes != [0; SECTOR] {
                contents.write(at, &bytes);
            }
        }
        contents.settle();
        contents
    };
    sample.devices.iter().map(one).collect()
}

/// A volume of RAID5 on four devices, full but for the first sectors of some units of the first row, and what is promised of that column.
struct Column {
    sample: &'static Sample,
    disks: Vec<Arc<Overlay>>,
    volume: Volume,
    in_use: Arc<InUse>,
    promised: BTreeMap<usize, Vec<u8>>,
}

impl Column {
    fn with_free(free: &[usize]) -> Column {
        let (sample, base) = of_four();
        let disks: Vec<Arc<Overlay>> = base.iter().map(|c| Arc::new(Overlay::new("disk", c.clone()))).collect();
        let devices = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
        let volume = Volume::open(devices, &WRITE).expect("open");
        let is_free = |sector: &usize| free.iter().any(|unit| unit * UNIT == *sector);
        let in_use = Arc::new(InUse {
            start: sample.data.start,
            sectors: Mutex::new((0..SECTORS).filter(|sector| !is_free(sector)).collect()),
            lately: Mutex::default(),
            lies: false,
        });
        let weak: Weak<InUse> = Arc::downgrade(&in_use);
        volume.set_occupancy(weak);
        let live = (0..3).map(|unit| unit * UNIT).filter(|sector| !is_free(sector));
        let promised = live.map(|sector| (sector, sample.noise[sector * SECTOR..][..SECTOR].to_vec())).collect();
        Column { sample, disks, volume, in_use, promised }
    }

    /// Writes the sector of a unit that is free. It is promised from here on: the caller sees to it that a superblock names it.
    fn write(&mut self, unit: usize) {
        let bytes = Rng::new(unit as u64).bytes(SECTOR);
        let at = self.sample.data.start + ByteLen(unit as u64 * STRIPE_LEN);
        self.in_use.sectors.lock().expect("lock").insert(unit * UNIT);
        self.volume.write(&[(at, &bytes)]).expect("write");
        self.promised.insert(unit * UNIT, bytes);
    }

    /// The superblock with a log: the address of its root, and its number.
    fn log(&self, root: u64, number: u64) {
        let mut sb = self.volume.super_block();
        (sb.log_root, sb.__unused_log_root_transid) = (root.into(), number.into());
        self.volume.write_log_super(&sb).expect("superblocks");
    }

    fn nothing_is_lost(&self) {
        let contents: Vec<Contents> = self.disks.iter().map(|disk| disk.contents()).collect();
        for set in losses(self.sample, Profile::Raid5, 4) {
            assert_eq!(lost(self.sample, &self.promised, &contents, &set), 0, "without {set:?}");
        }
    }
}

/// Goal: a log in the superblock ends the records of before (D25): it may name what was written beside the live sectors, and a record has nothing of that. Method: a sector is written
/// with a record; a superblock that differs in its log alone names it; each device is lost.
#[test]
fn a_log_ends_the_records_of_before() {
    let mut column = Column::with_free(&[0]);
    column.write(0);
    assert_eq!(column.volume.row_stats().recorded, 1);
    column.log(1 << 20, 1);
    column.nothing_is_lost();
}

/// Goal: a log at an address where another was before is another (D26). Method: a sector is written with a record while a log is at an address; two logs later, at the same address
/// again, the superblock names the sector; each device is lost.
#[test]
fn a_log_where_another_was_ends_its_records() {
    let mut column = Column::with_free(&[0]);
    column.log(1 << 20, 1);
    column.write(0);
    assert_eq!(column.volume.row_stats().recorded, 1);
    column.log(2 << 20, 2);
    column.log(1 << 20, 3);
    column.nothing_is_lost();
}

/// Goal: whoever finds the name of a superblock that is on its way is told that what was stamped before is live (D27): that superblock may name it, and his record counts with it. Method: a sector
/// is written; a superblock is named; another sector of the column is written, with a record because of the third; the superblock is written; each device is lost.
#[test]
fn what_was_stamped_before_a_name_is_live_with_it() {
    let mut column = Column::with_free(&[0, 2]);
    column.write(0);
    let mut sb = column.volume.super_block();
    sb.generation = (sb.generation.get() + 1).into();
    assert!(column.volume.rows.is_to_be_newest(&sb));
    let before = column.volume.row_stats().recorded;
    column.write(2);
    assert_eq!(column.volume.row_stats().recorded, before + 1);
    // It was begun before he wrote that.
    column.promised.remove(&(2 * UNIT));
    // He is done before the barrier, so the name that he found becomes the newest superblock with his record there.
    column.volume.write_supers(&sb).expect("superblocks");
    column.nothing_is_lost();
}

/// Whose bytes are free: those of a range.
struct Free(Logical, ByteLen);

impl Occupancy for Free {
    fn is_free(&self, at: Logical, len: ByteLen) -> bool {
        at >= self.0 && at + len <= self.0 + self.1
    }
}

/// Goal: records count when the chunk tree is read (D19), which may lie beside what was being written when the crash came, on the device that is lost. Method: a system chunk of RAID5 with the
/// tree in its first unit; a block is written into the second, and the crash leaves any choice of that and of parity; without each device the volume is opened for reading and for writing.
#[test]
fn the_chunk_tree_is_rebuilt_by_records() {
    let sample = Sample::with_system(Profile::Raid5, 3, BlockGroupFlags::RAID5);
    let journal = Journal::new();
    let base = contents_of(&sample);
    let disks = base.iter().enumerate().map(|(nth, c)| Arc::new(journal.disk(nth, c.clone())) as Arc<dyn Device>);
    let volume = Volume::open(disks.collect(), &WRITE).expect("open");
    let at = sample.root.logical + ByteLen(STRIPE_LEN);
    let free = Arc::new(Free(at, ByteLen(NODESIZE.into())));
    volume.set_occupancy(Arc::downgrade(&free) as Weak<dyn Occupancy>);
    journal.take();
    volume.write(&[(at, &Rng::new(1).bytes(NODESIZE as usize))]).expect("write");
    assert_eq!(volume.row_stats().recorded, 1);
    let of_row = |event: &&Event| matches!(event, Event::Write { offset, .. } if *offset >= MIB);
    let events = journal.take();
    let apply = |contents: &mut [Contents], event: &Event| {
        if let Event::Write { disk, offset, data } = event {
            contents[*disk].write(*offset, data);
        }
    };
    let (row, before): (Vec<&Event>, Vec<&Event>) = events.iter().partition(of_row);
    assert_eq!(row.len(), 2, "the block and parity");
    for choice in 0..1 << row.len() {
        let mut contents = base.clone();
        before.iter().for_each(|event| apply(&mut contents, event));
        let done = row.iter().enumerate().filter(|(nth, _)| choice >> nth & 1 == 1);
        done.for_each(|(_, event)| apply(&mut contents, event));
        for without in 0..3 {
            for write in [false, true] {
                let there = contents.iter().enumerate().filter(|(nth, _)| *nth != without);
                let devices = there.map(|(_, c)| Arc::new(Overlay::new("disk", c.clone())) as Arc<dyn Device>);
                let what = format!("choice {choice:#b}, without {without}, for writing: {write}");
                let opened = Volume::open(devices.collect(), &OpenOptions { write, ..DEGRADED });
                let volume = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
                sample.read_all(&volume).unwrap_or_else(|e| panic!("{what}: {e}"));
            }
        }
    }
}
