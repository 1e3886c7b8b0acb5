//! What writing costs on RAID5: rows that are written whole, parts that share columns with what must not be lost, records, flushes.
//!
//! `cargo test --release -p oleo --test it -- --ignored --nocapture rows::` prints the table of decision 0032.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use oleo::control::RowCounts;
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::{Device, Image, OpenOptions};
use oleo_device::{DeviceError, MemDevice, WriteReq};
use oleo_format::{BlockGroupFlags, ByteLen};
use oleo_sim::rng::Rng;
use oleo_space::Run;

const MIB: u64 = 1 << 20;
/// Data bytes of a row on four devices.
const ROW_LEN: u64 = 3 * (64 << 10);

/// A device that counts flushes, and notes what is done to it while somebody wants that.
struct Counted {
    inner: MemDevice,
    flushes: Arc<AtomicU64>,
    notes: Arc<Mutex<Option<Vec<Note>>>>,
    look: Arc<Mutex<Option<Look>>>,
}

/// Something that is looked at whenever a device is written to or flushed.
type Look = Box<dyn Fn() -> u64 + Send>;

/// What is done to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Read,
    Write,
    Flush,
}

/// Something that was done to a device: where, and how many bytes.
#[derive(Clone, Copy, Debug)]
struct Note {
    deed: Deed,
    at: u64,
    len: u64,
    /// What was seen just before it was done.
    seen: u64,
}

impl Counted {
    fn note(&self, deed: Deed, at: u64, len: usize) {
        let seen = match deed {
            Deed::Read => 0,
            Deed::Write | Deed::Flush => self.look.lock().unwrap().as_ref().map_or(0, |look| look()),
        };
        if let Some(notes) = &mut *self.notes.lock().unwrap() {
            notes.push(Note { deed, at, len: len as u64, seen });
        }
    }
}

impl Device for Counted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.note(Deed::Read, offset, buf.len());
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.note(Deed::Write, offset, buf.len());
        self.inner.write_at(offset, buf)
    }
    /// One request, however many pieces of memory it is made of.
    fn write_batch(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        for req in reqs {
            self.note(Deed::Write, req.offset, req.len() as usize);
        }
        self.inner.write_batch(reqs)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.note(Deed::Flush, 0, 0);
        self.flushes.fetch_add(1, Relaxed);
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

/// A volume on four devices in memory.
struct Volume {
    image: Image,
    flushes: Arc<AtomicU64>,
    notes: Arc<Mutex<Option<Vec<Note>>>>,
    look: Arc<Mutex<Option<Look>>>,
    devices: Vec<Arc<dyn Device>>,
}

impl Volume {
    /// The allocator ignores rows if `by_rows` is not set.
    fn new(mib_each: u64, by_rows: bool) -> Volume {
        Volume::of(mib_each, by_rows, [Profile::Raid5; 2])
    }

    fn of(mib_each: u64, by_rows: bool, [data, metadata]: [Profile; 2]) -> Volume {
        let flushes = Arc::new(AtomicU64::new(0));
        let (notes, look) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
        let device = |_| {
            let inner = MemDevice::new(mib_each * MIB);
            let (flushes, notes, look) = (flushes.clone(), notes.clone(), look.clone());
            Arc::new(Counted { inner, flushes, notes, look }) as Arc<dyn Device>
        };
        let devices: Vec<Arc<dyn Device>> = (0..4).map(device).collect();
        let mkfs = MkfsOptions::default().data(Some(data)).metadata(Some(metadata)).seed([1; 32]);
        oleo::mkfs::make(&devices, &mkfs).unwrap();
        let image = Image::from_devices(devices.clone(), &OpenOptions::writing()).unwrap();
        if !by_rows {
            image.fs().engine().space().ignore_rows();
        }
        Volume { image, flushes, notes, look, devices }
    }

    fn counts(&self) -> RowCounts {
        self.image.volume().row_stats().into()
    }

    fn fsync(&self, path: &str) {
        self.image.fs().fsync(&self.image.find(path).unwrap()).unwrap();
    }
}

/// Goal: a large file is written in whole rows, next to nothing is recorded, and little is read. Method: one file in pieces of a megabyte, with commits in between.
#[test]
fn sequential_writing_records_little() {
    const LEN: u64 = 192 * MIB;
    let volume = Volume::new(256, true);
    let file = volume.image.create_file("large").unwrap();
    drop(file);
    let file = volume.image.find("large").unwrap();
    let piece = Rng::new(1).bytes(MIB as usize);
    for at in (0..LEN).step_by(MIB as usize) {
        volume.image.fs().write(&file, at, &piece).unwrap();
        if at % (64 * MIB) == 0 {
            volume.image.sync().unwrap();
        }
    }
    volume.image.sync().unwrap();
    let counts = volume.counts();
    println!("{counts:?}");
    // Where one thread writes the end of a row and another its beginning, what was committed in between is live.
    assert!(counts.records * MIB < LEN && counts.unrecorded == 0, "{counts:?}");
    assert!(counts.whole * ROW_LEN > LEN * 9 / 10, "{counts:?}");
    assert!(counts.read_bytes < LEN / 5, "{counts:?}");
}

/// Goal: an fsync of a small file costs no more flushes than without parity, as long as there are rows that are free: two turns of four devices. Method: new files, one after the other.
#[test]
fn fsync_of_small_files_seldom_records() {
    let volume = Volume::new(256, true);
    let counts = fsyncs(&volume, 300);
    let flushes = volume.flushes.load(Relaxed);
    println!("{counts:?}, {flushes} flushes");
    assert!(counts.records <= 30, "{counts:?}");
    assert!(flushes <= (2 * 300 + 30) * 4 + 100, "{flushes}: {counts:?}");
}

/// Goal: devices full of noise are as good as empty ones: nothing is counted as rot, and parity fits what is written beside the noise, so that everything is there without any one device. Method: data
/// and metadata of RAID5; files and fsyncs while another thread commits, so that the log goes beside what commits have granted and not written yet.
#[test]
fn blocks_beside_noise() {
    let devices: Vec<Arc<MemDevice>> = (0..4).map(|_| Arc::new(MemDevice::new(128 * MIB))).collect();
    for (nth, device) in devices.iter().enumerate() {
        let noise = Rng::new(nth as u64 + 1).bytes(MIB as usize);
        (0..128).for_each(|at| device.write_at(at * MIB, &noise).unwrap());
    }
    let all = |without: Option<usize>| -> Vec<Arc<dyn Device>> {
        let there = devices.iter().enumerate().filter(|(nth, _)| Some(*nth) != without);
        there.map(|(_, device)| Arc::new(device.copy()) as Arc<dyn Device>).collect()
    };
    let own: Vec<_> = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let mkfs = MkfsOptions::default().data(Some(Profile::Raid5)).metadata(Some(Profile::Raid5)).seed([1; 32]);
    oleo::mkfs::make(&own, &mkfs).unwrap();
    let image = Image::from_devices(own, &OpenOptions::writing()).unwrap();
    // Commits have granted what they have not written yet while the log of an fsync goes beside it.
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Relaxed) {
                image.sync().unwrap();
            }
        });
        for nth in 0..2000 {
            let name = format!("{nth:04}");
            image.write(&name, &Rng::new(nth).bytes(1000)).unwrap();
            if nth % 3 == 0 {
                image.fs().fsync(&image.find(&name).unwrap()).unwrap();
            }
        }
        done.store(true, Relaxed);
    });
    image.sync().unwrap();
    let stats = image.volume().row_stats();
    assert!(stats.parts > 0, "no row was written in parts: {stats:?}");
    assert_eq!((stats.lost, stats.healed), (0, 0), "{stats:?}");
    assert!(image.volume().devices().iter().all(|device| device.errors.corruption == 0));
    drop(image);
    for without in 0..4 {
        let image = Image::from_devices(all(Some(without)), &OpenOptions::default().degraded(true)).unwrap();
        for nth in 0..2000 {
            let read = image.read(format!("{nth:04}")).unwrap_or_else(|e| panic!("{nth} without {without}: {e}"));
            assert!(read == Rng::new(nth).bytes(1000), "{nth} without {without}");
        }
    }
}

/// Goal: what a superblock names was given out in an earlier turn of the allocator, whose next one begins before the superblock's barrier (D28): behind the barrier, which waits for who has a row,
/// nobody is told any more that nothing names it. Method: at each write and flush of a commit's and an fsync's superblock it is asked how much counts as given out in this turn; nothing may
/// from the last flush before the superblock on. (Nobody else is there who would be given something.)
#[test]
fn superblocks_name_nothing_of_the_present_turn() {
    let volume = Volume::new(256, true);
    let engine = volume.image.fs().engine().clone();
    let sectors = |chunk: &Arc<oleo_volume::ChunkMap>| {
        let start = chunk.start;
        (0..1024).map(move |nth| Run::new(start + ByteLen(nth * 4096), ByteLen(4096))).collect::<Vec<_>>()
    };
    let with_rows = volume.image.volume().chunks().into_iter().filter(|chunk| chunk.profile.has_parity());
    let runs: Vec<Run> = with_rows.flat_map(|chunk| sectors(&chunk)).collect();
    *volume.look.lock().unwrap() = Some(Box::new(move || {
        let space = engine.space();
        runs.iter().filter(|run| space.is_unnamed(**run) && !space.is_free(**run)).count() as u64
    }));
    for round in 0..3 {
        for fsync in [true, false] {
            volume.image.write(format!("{round} {fsync}"), &Rng::new(round).bytes(20_000)).unwrap();
            *volume.notes.lock().unwrap() = Some(Vec::new());
            match fsync {
                true => volume.fsync(&format!("{round} {fsync}")),
                false => volume.image.sync().map(drop).unwrap(),
            }
            let notes = volume.notes.lock().unwrap().take().unwrap();
            let is_super = |note: &Note| note.deed == Deed::Write && note.at == 65536;
            let first = notes.iter().position(is_super).expect("a superblock is written");
            let is_of_a_row = |note: &Note| note.deed == Deed::Write && note.at >= MIB;
            let barrier = notes[..first].iter().rposition(is_of_a_row).expect("something is named by it") + 1;
            assert!(notes[..barrier].iter().any(|note| note.seen > 0), "nothing was given out: {notes:?}");
            assert!(notes[barrier..first].iter().any(|note| note.deed == Deed::Flush), "no barrier: {notes:?}");
            let lately = notes[barrier..].iter().find(|note| note.seen > 0);
            assert!(lately.is_none(), "round {round}, fsync {fsync}: {lately:?} behind {barrier} of {notes:?}");
        }
    }
    // It holds the engine, which holds the devices.
    *volume.look.lock().unwrap() = None;
}

/// Goal: no two logs of a transaction have one number (D26), whatever address their roots have: what is recorded of rows tells them by it. Method: fsyncs one after the other; what the superblock says after each.
#[test]
fn logs_are_numbered() {
    let volume = Volume::new(256, true);
    let mut seen = BTreeMap::new();
    let mut roots = BTreeSet::new();
    let fsync = |image: &Image, n: u64| {
        image.write(format!("f{n}"), &Rng::new(n).bytes(4096)).unwrap();
        image.fs().fsync(&image.find(format!("f{n}")).unwrap()).unwrap();
    };
    for n in 0..12 {
        fsync(&volume.image, n);
        let sb = oleo_volume::read_super(&*volume.devices[0]).unwrap();
        if sb.log_root.get() == 0 {
            continue;
        }
        let twin = seen.insert((sb.generation.get(), sb.__unused_log_root_transid.get()), n);
        assert_eq!(twin, None, "{n} has the number of another log of its transaction");
        roots.insert((sb.generation.get(), sb.log_root.get()));
    }
    assert!(seen.len() > 6, "few of them made a log: {seen:?}");
    assert!(roots.len() < seen.len(), "no address was used again, so this shows nothing: {roots:?}");
}

fn fsyncs(volume: &Volume, count: u64) -> RowCounts {
    let bytes = Rng::new(2).bytes(4096);
    for n in 0..count {
        volume.image.write(format!("f{n}"), &bytes).unwrap();
        volume.fsync(&format!("f{n}"));
    }
    volume.counts()
}

fn say(what: &str, counts: &RowCounts, more: &str) {
    let parts = counts.parts.max(1);
    println!(
        "{what}: whole rows {}, parts {}, recorded {} ({:.1} %), records {}, read {:.1} MiB, parity {:.1} MiB{more}",
        counts.whole,
        counts.parts,
        counts.recorded,
        100.0 * counts.recorded as f64 / parts as f64,
        counts.records,
        counts.read_bytes as f64 / MIB as f64,
        counts.parity_bytes as f64 / MIB as f64,
    );
}

/// The loads of decision 0032, section 2.
#[test]
#[ignore = "measures"]
fn table() {
    for by_rows in [false, true] {
        println!("{}", if by_rows { "by rows:" } else { "rows ignored:" });
        loads(by_rows);
    }
}

fn loads(by_rows: bool) {
    // As an archive of sources is unpacked: a commit for each 32 MiB.
    let volume = Volume::new(512, by_rows);
    let mut rng = Rng::new(3);
    let mut since = 0;
    for dir in 0..120 {
        volume.image.create_dir(format!("d{dir}")).unwrap();
        for n in 0..60 {
            let len: usize = 200 << rng.below(10);
            volume.image.write(format!("d{dir}/f{n}"), &rng.bytes(len)).unwrap();
            since += len as u64;
            if since > 32 * MIB {
                volume.image.sync().unwrap();
                since = 0;
            }
        }
    }
    volume.image.sync().unwrap();
    say("untar", &volume.counts(), "");

    let volume = Volume::new(512, by_rows);
    let counts = fsyncs(&volume, 3000);
    let flushes = volume.flushes.load(Relaxed) as f64 / 4.0 / 3000.0;
    say("fsync of 3000 files of 4 KiB", &counts, &format!(", {flushes:.2} flushes of each device per fsync"));

    let volume = Volume::new(256, by_rows);
    let mut rng = Rng::new(4);
    const FILES: u64 = 290;
    for n in 0..FILES {
        volume.image.write(format!("f{n}"), &rng.bytes(2 << 20)).unwrap();
    }
    volume.image.sync().unwrap();
    let before = volume.counts();
    for n in 0..6000 {
        let file = volume.image.find(format!("f{}", rng.below(FILES))).unwrap();
        let at = rng.below(500) * 4096;
        let len = 4096 << rng.below(4);
        volume.image.fs().write(&file, at, &rng.bytes(len)).unwrap();
        if n % 100 == 99 {
            volume.image.sync().unwrap();
        }
    }
    let after = volume.counts();
    let counts = RowCounts {
        whole: after.whole - before.whole,
        parts: after.parts - before.parts,
        recorded: after.recorded - before.recorded,
        records: after.records - before.records,
        read_bytes: after.read_bytes - before.read_bytes,
        parity_bytes: after.parity_bytes - before.parity_bytes,
        ..after
    };
    say("6000 writes of 4 to 32 KiB, a commit for each 100, on a volume 80 % full", &counts, "");
}

/// Goal: an fsync of a new file of 4 KiB on four devices has no more reads, writes and flushes than the table of decision 0032 says: of parity, two reads of 4 KiB
/// for the data, and one of each other unit for the log's blocks. Method: what the devices are asked for is noted; prints the table.
#[test]
fn one_fsync() {
    const COUNT: u64 = 400;
    let bytes = Rng::new(2).bytes(4096);
    let profiles = [Profile::Raid5, Profile::Raid1, Profile::Single];
    for (data, metadata) in profiles.into_iter().flat_map(|data| [(data, Profile::Raid5), (data, Profile::Raid1)]) {
        let volume = Volume::of(512, true, [data, metadata]);
        fsyncs(&volume, 20);
        let of_data =
            volume.image.volume().chunks().into_iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
        let places: Vec<(u64, u64)> = of_data
            .flat_map(|chunk| {
                chunk.stripes.iter().map(|s| (s.offset.0, s.offset.0 + chunk.stripe_bytes().0)).collect::<Vec<_>>()
            })
            .collect();
        let before = volume.counts();
        let mut sums: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
        let mut order = Vec::new();
        for n in 0..COUNT {
            volume.image.write(format!("g{n}"), &bytes).unwrap();
            *volume.notes.lock().unwrap() = Some(Vec::new());
            volume.fsync(&format!("g{n}"));
            let notes = volume.notes.lock().unwrap().take().unwrap();
            order.clear();
            for note in notes {
                let place = match note.at {
                    _ if note.deed == Deed::Flush => "all",
                    at if places.iter().any(|(from, to)| (*from..*to).contains(&at)) => "data",
                    at if at >= 1 << 20 => "metadata",
                    at if at < 512 << 10 => "superblock",
                    _ => "record",
                };
                let deed = match note.deed {
                    Deed::Read => "read",
                    Deed::Write => "write",
                    Deed::Flush => "flush",
                };
                let sum = sums.entry((deed, place)).or_default();
                *sum = (sum.0 + 1, sum.1 + note.len);
                order.push(format!("{deed} {place} {}", note.len));
            }
        }
        let after = volume.counts();
        println!("data {data}, metadata {metadata}; for each fsync:");
        let times = |deed, place| sums.get(&(deed, place)).map_or(0, |sum| sum.0);
        let few = |count: u64| count <= COUNT + COUNT / 10;
        let parity = |profile: Profile| u64::from(profile.has_parity());
        let places = if data == Profile::Single { 1 } else { 2 };
        assert_eq!((times("flush", "all"), times("write", "superblock")), (8 * COUNT, 4 * COUNT));
        assert_eq!(times("write", "data"), places * COUNT);
        assert_eq!(times("read", "data"), 2 * parity(data) * COUNT);
        assert!(few(times("write", "metadata") / 2), "{sums:?}");
        assert!(few(times("read", "metadata") / 2) && parity(metadata) >= times("read", "metadata").min(1), "{sums:?}");
        assert_eq!(times("write", "record") + times("read", "superblock") + times("read", "record"), 0);
        for ((deed, place), (times, bytes)) in sums {
            let (times, bytes) = (times as f64 / COUNT as f64, bytes as f64 / COUNT as f64 / 1024.0);
            println!("  {deed} {place}: {times:.2} times, {bytes:.1} KiB");
        }
        let [records, parts] = [after.records - before.records, after.parts - before.parts];
        println!("  parts {:.2}, records {:.2}", parts as f64 / COUNT as f64, records as f64 / COUNT as f64);
        println!("  the last: {}", order.join(", "));
    }
}
