//! A volume of 1 TiB, all of it written in pieces of 16 KiB: 67 million runs. Its map is made up as it is asked for.

use std::sync::Arc;
use std::time::Duration;

use oleo_device::{Device, ExtentKind};
use oleo_remote::format::head::Head;
use oleo_remote::format::map::{MapObject, Root, Row, Run, TABLE_ROWS, encode_index, encode_region, encode_table};
use oleo_remote::format::{ObjectId, ObjectRef, xxh64};
use oleo_remote::store::{Answer, Cond, Deadline, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::{RemoteDevice, StoreOptions};

const REGIONS: u32 = 1024;
/// Parts of the map that opening may read: its index and tables, none of its 1024 regions.
const PARTS_TO_OPEN_MAX: u64 = 32;
/// Runs of a region, and of a segment.
const RUNS: u32 = 65_536;
const SEGMENT_RUNS: u32 = 1024;
/// Map objects from this number on are pages of regions.
const FIRST: u64 = 1000;

fn region_page(region: u32) -> Vec<u8> {
    let run = |n: u32| Run {
        start: n * 4,
        blocks: 4,
        skip: 0,
        row: region * (RUNS / SEGMENT_RUNS) + n / SEGMENT_RUNS,
        off: n % SEGMENT_RUNS * (48 + 16384),
        stored: 16384,
    };
    let mut out = Vec::new();
    encode_region(&mut out, region, 7, (0..RUNS).map(run));
    out
}

/// The objects that are small are in memory.
struct Large(MemoryStore);

impl Store for Large {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let region = match &op {
            Op::Get { key, .. } => ObjectId::of_key(key).filter(|id| id.map && id.n >= FIRST).map(|id| id.n - FIRST),
            _ => None,
        };
        match region {
            Some(region) => Ticket::new(move || Ok(Answer::Object { body: region_page(region as u32), version: None })),
            None => self.0.submit(op, deadline),
        }
    }
    fn describe(&self) -> String {
        "large".into()
    }
    fn now(&self) -> Option<StoreTime> {
        None
    }
}

/// Stores everything but the pages of regions.
fn make() -> MemoryStore {
    let store = MemoryStore::new();
    let put = |key: &str, bytes: Vec<u8>| {
        let op = Op::Put { key: key.into(), body: bytes.into(), cond: Cond::None };
        store.submit(op, Duration::MAX).wait().expect("stored");
    };
    let id = ObjectId::map(1, 1);
    let mut bytes = Vec::new();
    let place = |bytes: &Vec<u8>, off: usize| {
        let page = &bytes[off..];
        ObjectRef { id, off: off as u32, len: page.len() as u32, xxh: xxh64(page) }
    };
    let mut root = Root { device_len: 1 << 40, position: 7, ..Root::default() };
    let regions: Vec<(u32, ObjectRef)> = (0..REGIONS)
        .map(|region| {
            let page = region_page(region);
            let id = ObjectId::map(1, FIRST + u64::from(region));
            root.objects.push(MapObject { id, len: page.len() as u32, live: page.len() as u32, born: 1 });
            (region, ObjectRef { id, off: 0, len: page.len() as u32, xxh: xxh64(&page) })
        })
        .collect();
    encode_index(&mut bytes, 0, 7, &regions);
    root.index.push((0, place(&bytes, 0)));
    let rows = REGIONS * RUNS / SEGMENT_RUNS;
    for page in 0..rows / TABLE_ROWS {
        let row = |n: u32| {
            let id = ObjectId::segment(1, u64::from(page * TABLE_ROWS + n));
            Some(Row { id, len: 17 << 20, live: SEGMENT_RUNS * 4, total: SEGMENT_RUNS * 4, born: 1 })
        };
        let rows: Vec<Option<Row>> = (0..TABLE_ROWS).map(row).collect();
        let off = bytes.len();
        encode_table(&mut bytes, page, 7, &rows);
        root.table.push((page, place(&bytes, off)));
    }
    let off = bytes.len();
    root.encode(&mut bytes);
    let head = Head {
        uuid: [1; 16],
        commit: [1; 16],
        epoch: 1,
        sequence: 5,
        released: true,
        device_len: 1 << 40,
        position: 7,
        next_n: 1 << 20,
        root: Some(place(&bytes, off)),
        tail_id: ObjectId::segment(1, 1 << 20),
        ..Head::default()
    };
    put(&id.key(), bytes);
    put("head", head.encode());
    store
}

/// The most memory that this process has had, bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Goal: opening reads a small part of the map, and memory stays below 512 MiB, however much of the map is looked at; a write
/// needs nothing of it.
#[test]
fn a_map_of_a_terabyte() {
    let store = make();
    let dev = RemoteDevice::open_writable(Arc::new(Large(store.copy())), &StoreOptions::default()).expect("open");
    println!("opened: map {} KiB, peak {} MiB", dev.map_bytes() >> 10, peak_bytes() >> 20);
    let gets =
        || dev.stats().expect("counts").extra.iter().find(|(name, _)| name.starts_with("parts")).expect("a count").1;
    let before = gets();
    println!("{before} parts read to open");
    assert!(before < PARTS_TO_OPEN_MAX, "{before} parts were read to open");
    for region in 0..600 {
        dev.write_at(region << 30, &[1; 4096]).expect("write");
    }
    dev.flush().expect("flush");
    assert_eq!(gets(), before, "nothing is read to be written");
    for region in 0..1024u64 {
        let found = dev.extents(region << 30, 1 << 30, 9).expect("extents");
        assert!(found.len() == 1 && found[0].kind == ExtentKind::Data && found[0].len == 1 << 30);
        assert!(dev.map_bytes() < 300 << 20, "{}", dev.map_bytes());
    }
    println!("all looked at: map {} MiB, peak {} MiB", dev.map_bytes() >> 20, peak_bytes() >> 20);
    assert!(peak_bytes() < 512 << 20, "{}", peak_bytes());
}
