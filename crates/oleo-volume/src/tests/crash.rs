//! Crashes while rows are written that others have live sectors in, and then the loss of devices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oleo_device::Device;
use oleo_sim::budget::budget;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::record::{Event, Journal};
use oleo_sim::crash::states::{Cut, Kinds, Maker, Rest, cuts, progress};
use oleo_sim::faulty::{Faulty, Trouble};
use oleo_sim::rng::Rng;

use super::*;

pub(super) const SECTOR: usize = 4096;
pub(super) const SECTORS: usize = NOISE_LEN / SECTOR;
const STEPS: usize = 14;

/// Which sectors of the sample are in use.
pub(super) struct InUse {
    pub start: Logical,
    pub sectors: Mutex<BTreeSet<usize>>,
    /// Those of them that were given out since the last superblock was begun.
    pub lately: Mutex<BTreeSet<usize>>,
    /// Says that all is free, to see that this is noticed.
    pub lies: bool,
}

impl InUse {
    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.sectors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    /// The sectors that have any of these bytes.
    fn of(&self, at: Logical, len: ByteLen) -> std::ops::Range<usize> {
        let from = (at - self.start).0 as usize;
        from / SECTOR..(from + len.0 as usize).div_ceil(SECTOR)
    }

    fn lately(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Occupancy for InUse {
    fn is_free(&self, at: Logical, len: ByteLen) -> bool {
        self.lies || self.locked().range(self.of(at, len)).next().is_none()
    }

    fn is_unnamed(&self, at: Logical, len: ByteLen) -> bool {
        self.is_free(at, len) || self.of(at, len).all(|sector| self.lately().contains(&sector))
    }
}

/// What happened, and what must be found after a crash.
struct Ran {
    base: Vec<Contents>,
    events: Vec<Event>,
    /// For each number of finished steps what is promised: sectors and their bytes.
    promised: Vec<BTreeMap<usize, Vec<u8>>>,
    stats: RowStats,
}

/// Writes to free sectors of rows that are half in use, with flushes and commits in between.
fn run(sample: &Sample, seed: u64, lies: bool) -> Ran {
    run_after(sample, seed, lies, |_| {})
}

/// The same, with something done to the volume first.
fn run_after(sample: &Sample, seed: u64, lies: bool, first: impl FnOnce(&Volume)) -> Ran {
    let mut rng = Rng::new(seed);
    let journal = Journal::new();
    let base: Vec<Contents> = sample.devices.iter().map(|d| Contents::of(&**d).expect("contents")).collect();
    let disks = base.iter().enumerate().map(|(nth, c)| Arc::new(journal.disk(nth, c.clone())) as Arc<dyn Device>);
    let volume = Volume::open(disks.collect(), &WRITE).expect("open");
    first(&volume);
    let live: BTreeSet<usize> = (0..SECTORS).filter(|_| rng.one_in(2)).collect();
    let bytes_of = |sector: usize| sample.noise[sector * SECTOR..(sector + 1) * SECTOR].to_vec();
    let mut promised = vec![live.iter().map(|&sector| (sector, bytes_of(sector))).collect::<BTreeMap<_, _>>()];
    let in_use =
        Arc::new(InUse { start: sample.data.start, sectors: Mutex::new(live), lately: Mutex::default(), lies });
    let weak: Weak<InUse> = Arc::downgrade(&in_use);
    volume.set_occupancy(weak);
    let mut written: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    // Given out, and not written yet.
    let mut granted: BTreeSet<usize> = BTreeSet::new();
    for step in 0..STEPS {
        journal.begin(step);
        let mut next = promised[step].clone();
        match rng.below(4) {
            0 => volume.flush().expect("flush"),
            1 => {
                let mut sb = volume.super_block();
                sb.generation = (sb.generation.get() + 1).into();
                in_use.lately().clear();
                volume.write_supers(&sb).expect("supers");
                next.append(&mut written);
            }
            _ => {
                let mut free: Vec<usize> = (0..SECTORS).filter(|sector| !in_use.locked().contains(sector)).collect();
                let count = 1 + rng.below(6);
                let mut some = BTreeSet::new();
                for _ in 0..count.min(free.len() as u64) {
                    some.insert(free.swap_remove(rng.below(free.len() as u64) as usize));
                }
                // Some are written immediately, some later, beside others that were given out meanwhile.
                in_use.locked().extend(&some);
                in_use.lately().extend(&some);
                granted.extend(&some);
                let now: BTreeSet<usize> = granted.iter().copied().filter(|_| rng.one_in(2)).collect();
                granted.retain(|sector| !now.contains(sector));
                let new: Vec<(usize, Vec<u8>)> = now.iter().map(|&sector| (sector, rng.bytes(SECTOR))).collect();
                let place = |sector: usize| sample.data.start + ByteLen((sector * SECTOR) as u64);
                let parts: Vec<(Logical, &[u8])> =
                    new.iter().map(|(sector, bytes)| (place(*sector), &bytes[..])).collect();
                volume.write(&parts).expect("write");
                written.extend(new);
            }
        }
        promised.push(next);
        journal.end(step);
    }
    Ran { base, events: journal.take(), promised, stats: volume.row_stats() }
}

pub(super) fn devices(contents: &[Contents], without: &[usize]) -> Vec<Arc<dyn Device>> {
    let some = contents.iter().enumerate().filter(|(nth, _)| !without.contains(nth));
    some.map(|(nth, c)| Arc::new(Overlay::new(&format!("disk {nth}"), c.clone())) as Arc<dyn Device>).collect()
}

/// How many promised sectors cannot be read without these devices.
pub(super) fn lost(
    sample: &Sample,
    promised: &BTreeMap<usize, Vec<u8>>,
    contents: &[Contents],
    without: &[usize],
) -> usize {
    let volume = Volume::open(devices(contents, without), &DEGRADED).expect("open");
    let csum = volume.rules().csum;
    let is_lost = |(sector, want): &(&usize, &Vec<u8>)| {
        let (mut sums, mut found) = (Vec::new(), vec![0; SECTOR]);
        csum.csum_sectors(want, SECTOR as u32, &mut sums);
        let at = sample.data.start + ByteLen((**sector * SECTOR) as u64);
        volume.read_data(at, &mut found, Some(&sums)).is_err() || found != **want
    };
    promised.iter().filter(is_lost).count()
}

/// The sets of devices that may be lost: not all that have the chunk tree.
pub(super) fn losses(sample: &Sample, profile: Profile, count: usize) -> Vec<Vec<usize>> {
    let (volume, _) = sample.open(&[], READ).expect("open");
    let system = volume.chunk_of(sample.root.logical).expect("chunk");
    let has_tree = |nth: &usize| system.stripes.iter().any(|s| s.devid.0 as usize == nth + 1);
    let two = profile.shape().parities > 1;
    let pairs = (0..count).flat_map(|a| (a..count).map(move |b| (a, b))).filter(|(a, b)| a == b || two);
    let sets = pairs.map(|(a, b)| if a == b { vec![a] } else { vec![a, b] });
    sets.filter(|set| set.iter().filter(|nth| has_tree(nth)).count() < system.stripes.len()).collect()
}

/// Promised sectors that are lost in all crash states of a run, without reopening for writing and after it.
fn losses_of(sample: &Sample, sets: &[Vec<usize>], ran: &Ran, seed: u64) -> Found {
    let kinds = Kinds { flushes: true, writes: false, steps: false, some: 1, torn: 1 };
    let mut maker = Maker::new(&ran.base, &ran.events);
    let mut found = Found::default();
    for cut in cuts(&ran.events, &kinds, &mut Rng::new(seed)) {
        let contents = maker.make(&cut);
        let promised = &ran.promised[progress(&ran.events, cut.at).done];
        // What a writer finds, and puts in order.
        let disks: Vec<Arc<Overlay>> = contents.iter().map(|c| Arc::new(Overlay::new("disk", c.clone()))).collect();
        let writer = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
        drop(Volume::open(writer, &WRITE).expect("open for writing"));
        let reopened: Vec<Contents> = disks.iter().map(|disk| disk.contents()).collect();
        for set in sets {
            for (what, contents) in [("as it was", &contents), ("opened for writing", &reopened)] {
                let lost = lost(sample, promised, contents, set);
                found.lost += lost;
                if lost > 0 {
                    found.first.get_or_insert_with(|| format!("{cut:?}, {what}, without {set:?}: {lost} sectors"));
                }
            }
        }
    }
    found
}

/// Promised sectors that are lost, and the first state in which some are.
#[derive(Default, PartialEq, Eq, Debug)]
struct Found {
    lost: usize,
    first: Option<String>,
}

/// Goal: after a crash at any moment and then the loss of as many devices as the profile allows, everything that a superblock on the
/// devices names is there; and it is the records that see to it. Method: sectors that are free are written in rows that are half in use, with
/// flushes and commits in between; states of the devices at every flush, with any choice of what came after it, whole and torn; each allowed set of devices
/// is taken away, from the state itself and from what opening it for writing has made of it. The same with a volume that is told that nothing is
/// live must lose something.
#[test]
fn a_crash_and_lost_devices() {
    let shapes = vec![(Profile::Raid5, 3), (Profile::Raid5, 4), (Profile::Raid6, 5)];
    for (profile, count) in budget().sample(shapes, 1) {
        let sample = Sample::new(profile, count);
        let sets = losses(&sample, profile, count);
        let mut found_without = 0;
        for seed in 0..2 {
            let ran = run(&sample, seed, false);
            assert!(ran.stats.recorded > 0 && ran.stats.unrecorded == 0, "{:?}", ran.stats);
            assert_eq!(losses_of(&sample, &sets, &ran, seed), Found::default(), "{profile} on {count}, seed {seed}");
            let without = run(&sample, seed, true);
            assert_eq!(without.stats.records, 0);
            found_without += losses_of(&sample, &sets, &without, seed).lost;
        }
        assert!(found_without > 0, "{profile} on {count}: nothing is lost without records, so this test shows nothing");
    }
}

/// Goal: what was written before a superblock was begun is live behind it, and what was written since is not. Method: three sectors of a column, a superblock before the last, and what was
/// recorded.
#[test]
fn a_superblock_makes_live_what_was_written_before() {
    let sample = Sample::new(Profile::Raid5, 4);
    let (volume, _) = sample.open(&[], WRITE).expect("open");
    let unit = STRIPE_LEN as usize / SECTOR;
    let start = sample.data.start;
    let in_use = Arc::new(InUse { start, sectors: Mutex::default(), lately: Mutex::default(), lies: false });
    let weak: Weak<InUse> = Arc::downgrade(&in_use);
    volume.set_occupancy(weak);
    let write = |sector: usize| {
        in_use.locked().insert(sector);
        volume.write(&[(start + ByteLen((sector * SECTOR) as u64), &[1; SECTOR])]).expect("write");
        volume.row_stats().recorded
    };
    assert_eq!([write(0), write(unit)], [0, 0], "nothing names them yet");
    let mut sb = volume.super_block();
    sb.generation = (sb.generation.get() + 1).into();
    volume.write_supers(&sb).expect("supers");
    assert_eq!(write(2 * unit), 1);
}

/// Goal: a record beside which something has rotted is not applied when the volume is opened: parity as it is rebuilds that, and computed anew it would say that the rot is right. Method: a
/// crash when the record is durable and nothing of its row is written; a live sector of the column rots; opened for writing, and read.
#[test]
fn a_record_beside_rot_is_left() {
    let sample = Sample::new(Profile::Raid5, 4);
    let journal = Journal::new();
    let base: Vec<Contents> = sample.devices.iter().map(|d| Contents::of(&**d).expect("contents")).collect();
    let disks = base.iter().enumerate().map(|(nth, c)| Arc::new(journal.disk(nth, c.clone())) as Arc<dyn Device>);
    let volume = Volume::open(disks.collect(), &WRITE).expect("open");
    let live: BTreeSet<usize> = (1..SECTORS).collect();
    let start = sample.data.start;
    let in_use = Arc::new(InUse { start, sectors: Mutex::new(live), lately: Mutex::default(), lies: false });
    let weak: Weak<InUse> = Arc::downgrade(&in_use);
    volume.set_occupancy(weak);
    volume.write(&[(start, &[9; SECTOR])]).expect("write");
    let events = journal.take();
    let is_of_a_row = |event: &Event| matches!(event, Event::Write { offset, .. } if *offset >= 1 << 20);
    let at = events.iter().position(is_of_a_row).expect("the row is written");
    let mut contents = Maker::new(&base, &events).make(&Cut { at, rest: Rest::All });
    let stripe = &sample.data.stripes[sample.data.rotated(0, 1)];
    contents[stripe.devid.0 as usize - 1].write(stripe.offset.0, &[0x5a; SECTOR]);
    let disks: Vec<Arc<Overlay>> = contents.iter().map(|c| Arc::new(Overlay::new("disk", c.clone()))).collect();
    let writer = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
    drop(Volume::open(writer, &WRITE).expect("open for writing"));
    let reopened: Vec<Contents> = disks.iter().map(|disk| disk.contents()).collect();
    let unit = STRIPE_LEN as usize / SECTOR;
    let promised = BTreeMap::from([(unit, sample.noise[unit * SECTOR..(unit + 1) * SECTOR].to_vec())]);
    for (what, contents) in [("as it was", &contents), ("opened for writing", &reopened)] {
        assert_eq!(lost(&sample, &promised, contents, &[]), 0, "{what}");
    }
}

/// Holds up who asks what is free at a place, once, until somebody else has come as far as the test wants.
struct HoldsUp {
    at: Logical,
    told: std::sync::mpsc::SyncSender<()>,
    goes_on: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

impl Occupancy for HoldsUp {
    fn is_free(&self, at: Logical, _: ByteLen) -> bool {
        let goes_on = (at == self.at).then(|| self.goes_on.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(goes_on) = goes_on.flatten() {
            self.told.send(()).expect("the test waits");
            goes_on.recv().expect("the test lets it go on");
        }
        false
    }
}

/// Goal: a record that is written when a superblock is already on its way, for a row that was begun before, is not applied under that superblock: it names what was no more than
/// stamped when the row was begun, and its device may be the one that is lost. Method: a sector is written; the writer of another of its column is held up while he asks what is
/// live; a superblock is begun, which names the first; both end, and devices are lost.
#[test]
fn records_name_the_superblocks_of_when_it_was_asked_what_is_live() {
    let sample = Sample::new(Profile::Raid5, 4);
    let (volume, copies) = sample.open(&[], WRITE).expect("open");
    let unit = STRIPE_LEN as usize / SECTOR;
    let place = |sector: usize| sample.data.start + ByteLen((sector * SECTOR) as u64);
    // Three sectors of a column: written, in use before, and of the writer who is held up.
    let [new, live, late] = [0, unit, 2 * unit];
    let (told, tells) = std::sync::mpsc::sync_channel(1);
    let (lets_go, goes_on) = std::sync::mpsc::channel();
    let holds_up = Arc::new(HoldsUp { at: place(live), told, goes_on: Mutex::new(None) });
    volume.set_occupancy(Arc::downgrade(&holds_up) as Weak<dyn Occupancy>);
    let bytes = Rng::new(3).bytes(SECTOR);
    volume.write(&[(place(new), &bytes)]).expect("write");
    *holds_up.goes_on.lock().expect("nobody panicked") = Some(goes_on);
    let volume = &volume;
    std::thread::scope(|threads| {
        let late = threads.spawn(|| volume.write(&[(place(late), &Rng::new(4).bytes(SECTOR))]));
        tells.recv().expect("he asks");
        let commit = threads.spawn(move || {
            let mut sb = volume.super_block();
            sb.generation = (sb.generation.get() + 1).into();
            volume.write_supers(&sb)
        });
        let began = std::time::Instant::now();
        while volume.rows.bases().others().next().is_none() {
            assert!(began.elapsed().as_secs() < 60 && !commit.is_finished(), "no superblock is under way");
            std::thread::yield_now();
        }
        lets_go.send(()).expect("he waits");
        late.join().expect("no panic").expect("write");
        commit.join().expect("no panic").expect("commit");
    });
    assert_eq!(volume.row_stats().recorded, 2, "both have something live beside them");
    let contents: Vec<Contents> = copies.iter().map(|d| Contents::of(&**d).expect("contents")).collect();
    let live_bytes = sample.noise[live * SECTOR..(live + 1) * SECTOR].to_vec();
    let promised = BTreeMap::from([(new, bytes), (live, live_bytes)]);
    for set in losses(&sample, Profile::Raid5, 4) {
        assert_eq!(lost(&sample, &promised, &contents, &set), 0, "without {set:?}");
    }
}

/// Goal: where somebody else has something in the place of records, it stays, and what is not recorded is counted; until it is said that it may go. Method: a boot loader on
/// one of the devices, at either end of the place.
#[test]
fn boot_loaders_are_left_alone() {
    let mut sample = Sample::new(Profile::Raid5, 3);
    for place in [600 << 10, (1 << 20) - 512] {
        sample.devices[1] = Arc::new(sample.devices[1].copy());
        sample.devices[1].write_at(place, b"boot").expect("write");
        let ran = run(&sample, 1, false);
        assert!(ran.stats.unrecorded > 0 && ran.stats.recorded > 0, "{:?}", ran.stats);
        let on_it = |event: &Event| matches!(event, Event::Write { disk: 1, offset, .. } if (512 << 10..1 << 20).contains(offset));
        assert!(!ran.events.iter().any(on_it), "written over at {place}");
        let taken = run_after(&sample, 1, false, |volume| {
            assert_eq!(volume.take_record_places().expect("taken"), 1);
            assert_eq!(volume.take_record_places().expect("ours now"), 0);
        });
        assert!(taken.stats.unrecorded == 0 && taken.stats.recorded > 0, "{:?}", taken.stats);
    }
}

/// Goal: a crash while superblocks are written leaves some of before; whoever opens the volume for writing makes them one before anything else, so that the loss of a device does
/// not lead back. The same for a log that only some superblocks name. Method: the superblock of one device is newer, or has a log; opened for writing and left; without that device.
#[test]
fn superblocks_of_two_moments_are_made_one() {
    let change: [fn(&mut oleo_format::SuperBlock); 2] =
        [|sb| sb.generation = (sb.generation.get() + 1).into(), |sb| sb.log_root = (1u64 << 20).into()];
    for (change, newest) in change.iter().flat_map(|change| (0..3).map(move |newest| (change, newest))) {
        let sample = Sample::new(Profile::Raid5, 3);
        let (volume, copies) = sample.open(&[], WRITE).expect("open");
        let mut sb = volume.super_block();
        change(&mut sb);
        volume.write_log_super(&sb).expect("superblocks");
        drop(volume);
        let disks: Vec<Arc<MemDevice>> = (0..3)
            .map(|nth| Arc::new(if nth == newest { copies[nth].copy() } else { sample.devices[nth].copy() }))
            .collect();
        let open = |without: Option<usize>, opts: &OpenOptions| {
            let some = disks.iter().enumerate().filter(|(nth, _)| Some(*nth) != without);
            Volume::open(some.map(|(_, disk)| disk.clone() as Arc<dyn Device>).collect(), opts).expect("open")
        };
        let opened = open(None, &WRITE).super_block();
        for without in 0..3 {
            let left = open(Some(without), &DEGRADED).super_block();
            assert_eq!(
                (left.generation, left.log_root),
                (opened.generation, opened.log_root),
                "device {newest} is newer, {without} is lost"
            );
        }
    }
}

/// Goal: a superblock that some devices took while another had no room may be the newest after a crash, also while a commit is being written after it:
/// what is recorded then counts with each of the three. Method: a log's superblock with one device full; then what
/// a commit does first, and a write beside live sectors; what an opening with each superblock would find.
#[test]
fn a_superblock_that_only_some_devices_took_is_named() {
    let sample = Sample::new(Profile::Raid5, 3);
    let faulty: Vec<Arc<Faulty>> =
        sample.devices.iter().map(|device| Arc::new(Faulty::new(Arc::new(device.copy())))).collect();
    let devices = faulty.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let volume = Volume::open(devices, &WRITE).expect("open");
    let in_use = Arc::new(InUse {
        start: sample.data.start,
        sectors: Mutex::new((1..SECTORS).collect()),
        lately: Mutex::default(),
        lies: false,
    });
    let weak: Weak<InUse> = Arc::downgrade(&in_use);
    volume.set_occupancy(weak);
    let committed = volume.super_block();
    let mut other = committed;
    other.generation = 77.into();
    let mut logged = committed;
    logged.log_root = (1u64 << 20).into();
    faulty[2].fail(Trouble::Full);
    let full = volume.write_log_super(&logged).expect_err("one device is full");
    assert!(full.is_full(), "{full}");
    faulty[2].fail(Trouble::None);
    let mut next = committed;
    next.generation = (next.generation.get() + 1).into();
    assert!(volume.rows.is_to_be_newest(&next), "a third one has room");
    assert!(volume.rows.is_to_be_newest(&next), "again");
    assert!(!volume.rows.is_to_be_newest(&other), "a fourth one has none");
    volume.write(&[(sample.data.start, &[9; SECTOR])]).expect("write");
    let found = |sb: &oleo_format::SuperBlock| {
        let members = volume.members.read().clone();
        crate::records::find(&members, volume.rules(), sb.into()).1.len()
    };
    assert_eq!([&committed, &logged, &next].map(found), [1, 1, 1]);
    assert_eq!(found(&other), 0);
    volume.write_supers(&next).expect("the commit");
    volume.write(&[(sample.data.start, &[8; SECTOR])]).expect("write");
    volume.write(&[(sample.data.start, &[7; SECTOR])]).expect("write");
    assert_eq!([&committed, &logged].map(found), [0, 0], "what is on disk is known again");
    assert!(found(&next) > 0);
}
