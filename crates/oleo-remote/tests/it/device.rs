//! A volume compared with a vector of bytes, opened again and again, on stores that work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::kit::Still;
use oleo_device::{Device, DeviceError, ExtentKind, Op, ReadReq, WriteReq, Zeroing};
use oleo_remote::store::{Deadline, FileStore, MemoryStore, Op as StoreOp, Store, StoreTime, Ticket};
use oleo_remote::{Host, RemoteDevice, RemoteError, StoreError, StoreOptions, SystemHost, create};
use oleo_sim::rng::Rng;

const LEN: usize = 900_000;

fn small() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.bounds.segment_aim = 300_000;
    options.bounds.inline_max = 20_000;
    options.bounds.dirty_bytes_max = 1 << 20;
    options.bounds.replay_count_max = 5;
    options.bounds.cache_bytes_max = 200_000;
    options.claim = Duration::ZERO;
    options
}

fn range(rng: &mut Rng, len: usize, max: u64) -> (usize, usize) {
    let at = rng.below(len as u64 + 1) as usize;
    let at = if rng.one_in(3) { at / 4096 * 4096 } else { at };
    let count = (rng.below(max) as usize).min(len - at);
    (at, if rng.one_in(3) { count / 4096 * 4096 } else { count })
}

fn read_all(dev: &dyn Device) -> Vec<u8> {
    let mut all = vec![9; dev.len() as usize];
    dev.read_at(0, &mut all).expect("read");
    all
}

/// One random change or question, on the device and on the vector.
fn step(dev: &dyn Device, want: &mut Vec<u8>, rng: &mut Rng) {
    match rng.below(9) {
        0 | 1 => {
            let (at, len) = range(rng, want.len(), 300_000);
            let data = rng.bytes(len);
            let (a, b) = data.split_at(len / 3);
            let reqs = [WriteReq { offset: at as u64, parts: &[a, b] }];
            if rng.one_in(4) { dev.write_durable(&reqs) } else { dev.write_batch(&reqs) }.expect("write");
            want[at..at + len].copy_from_slice(&data);
        }
        2 => {
            // Disjoint pieces in random order, many of which touch.
            let unit = 1000 + rng.below(9000) as usize;
            let starts = (0..want.len() / unit).filter(|_| rng.one_in(9)).map(|i| i * unit).collect::<Vec<_>>();
            let data: Vec<Vec<u8>> = starts.iter().map(|_| rng.bytes(unit)).collect();
            let parts: Vec<[&[u8]; 2]> = data.iter().map(|d| [&d[..100], &d[100..]]).collect();
            let reqs: Vec<_> =
                starts.iter().zip(&parts).rev().map(|(&s, p)| WriteReq { offset: s as u64, parts: p }).collect();
            dev.write_batch(&reqs).expect("batch");
            for (s, d) in starts.iter().zip(&data) {
                want[*s..*s + unit].copy_from_slice(d);
            }
        }
        3 => {
            let (at, len) = range(rng, want.len(), 400_000);
            let how = Zeroing { only_fast: rng.one_in(2), keep_allocated: rng.one_in(2) };
            if rng.one_in(2) {
                dev.discard(at as u64, len as u64)
            } else {
                dev.write_zeroes(at as u64, len as u64, how)
            }
            .expect("zeros");
            want[at..at + len].fill(0);
        }
        4 => {
            let (at, len) = range(rng, want.len(), LEN as u64);
            let count_max = rng.below(5) as usize;
            let found = dev.extents(at as u64, len as u64, count_max).expect("extents");
            assert_eq!(found.is_empty(), len == 0 || count_max == 0);
            assert!(found.len() <= count_max && found.iter().map(|e| e.len).sum::<u64>() <= len as u64);
            let mut from = at;
            for extent in found {
                let run = &want[from..from + extent.len as usize];
                assert!(!run.is_empty() && (extent.kind == ExtentKind::Data || run.iter().all(|&b| b == 0)));
                from += run.len();
            }
        }
        5 if rng.one_in(3) => {
            let len = rng.below(LEN as u64);
            dev.set_len(len).expect("length");
            want.resize(len as usize, 0);
            dev.set_len(LEN as u64).expect("length");
            want.resize(LEN, 0);
        }
        6 => dev.flush().expect("flush"),
        _ => {
            let places: Vec<_> = (0..5).map(|_| range(rng, want.len(), 60_000)).collect();
            let mut bufs: Vec<Vec<u8>> = places.iter().map(|(_, len)| vec![0xaa; *len]).collect();
            let mut reqs: Vec<_> =
                places.iter().zip(&mut bufs).map(|((at, _), b)| ReadReq::new(*at as u64, b)).collect();
            dev.read_batch(&mut reqs);
            for (req, (at, len)) in reqs.iter().zip(&places) {
                req.result.as_ref().expect("read");
                assert!(*req.buf == want[*at..at + len]);
            }
        }
    }
}

/// Goal: a volume's bytes are those of a vector, while it is written and whenever it is opened again: closed before or not,
/// after checkpoints, by a reader too. What was not flushed before a writer was overtaken is gone, as with power.
fn model(store: &dyn Fn() -> Arc<dyn Store>, seed: u64) {
    let mut rng = Rng::new(seed);
    create(store(), LEN as u64, false, &small()).expect("create");
    assert!(matches!(create(store(), 1, false, &small()), Err(RemoteError::Exists { .. })));
    let mut want = vec![0u8; LEN];
    let mut dev = RemoteDevice::open_writable(store(), &small()).expect("open");
    let mut checkpoints = 0;
    for round in 0..12 {
        for _ in 0..40 {
            step(&dev, &mut want, &mut rng);
        }
        checkpoints +=
            dev.stats().expect("counts").extra.iter().find(|(name, _)| *name == "checkpoints").map_or(0, |c| c.1);
        match round % 3 {
            0 => dev.close().expect("closed"),
            1 => {
                dev.flush().expect("flush");
                let reader = RemoteDevice::open(store(), None, &small()).expect("reader");
                assert!(read_all(&reader) == want, "seed {seed}");
                assert!(matches!(reader.write_at(0, b"x"), Err(DeviceError::ReadOnly { .. })));
                let held = RemoteDevice::open_writable(store(), &small()).err();
                assert!(matches!(held, Some(RemoteError::Held { .. })), "{held:?}");
                let mut options = small();
                options.take_over = true;
                let next = RemoteDevice::open_writable(store(), &options).expect("taken over");
                dev.write_at(0, b"late").expect("in memory");
                assert!(dev.flush().is_err() && dev.read_only() && dev.write_at(0, b"later").is_err());
                assert!(matches!(*dev.failure().expect("why"), RemoteError::Overtaken { .. }));
                assert!(read_all(&reader) == want, "a reader's moment stays");
                drop(dev);
                drop(next);
            }
            _ => drop(dev),
        }
        dev = RemoteDevice::open_writable(store(), &small()).expect("open again");
        assert!(read_all(&dev) == want, "seed {seed}, round {round}");
    }
    assert!(checkpoints > 5, "{checkpoints}");
    assert!(matches!(dev.write_at(LEN as u64 - 1, &[1, 2]), Err(DeviceError::OutOfRange { op: Op::Write, .. })));
    assert!(matches!(dev.read_at(u64::MAX, &mut [0; 4]), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(dev.discard(LEN as u64, 1), Err(DeviceError::OutOfRange { .. })));
    dev.barrier().expect("barrier");
    dev.will_read(u64::MAX, u64::MAX);
}

#[test]
fn memory_is_as_a_vector() {
    for seed in 0..4 {
        let store = MemoryStore::new();
        model(&|| Arc::new(store.copy()), seed);
    }
}

#[test]
fn a_directory_is_as_a_vector() {
    let dir = tempfile::tempdir().expect("dir");
    let host = Arc::new(SystemHost::new());
    model(&|| Arc::new(FileStore::new(&dir.path().join("a/volume"), host.clone())), 9);
}

/// Goal: what costs what: a small flush is one request, none if there is nothing to flush; a large one adds its segments.
#[test]
fn requests_of_a_flush() {
    let store = MemoryStore::new();
    create(Arc::new(store.copy()), 1 << 40, false, &StoreOptions::default()).expect("create");
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &StoreOptions::default()).expect("open");
    let puts = || {
        let extra = dev.stats().expect("counts").extra;
        let of = |name: &str| extra.iter().find(|(n, _)| *n == name).expect("a count").1;
        (of("segments stored"), of("heads stored"), of("parts read from the store"))
    };
    dev.flush().expect("nothing");
    assert_eq!(puts(), (0, 0, 0));
    for n in 1..=3 {
        dev.write_at(n << 30, &[1; 8192]).expect("write");
        dev.barrier().expect("free");
        dev.flush().expect("flush");
        dev.flush().expect("again");
        assert_eq!(puts(), (0, n, 0));
    }
    dev.write_at(7 << 30, &vec![1; 40 << 20]).expect("write");
    dev.flush().expect("flush");
    assert_eq!(puts(), (3, 4, 0));
    let mut back = vec![0; 1 << 20];
    dev.read_at(7 << 30, &mut back).expect("read");
    assert_eq!(puts().2, 1, "neighbours come together");
    assert!(back.iter().all(|&b| b == 1));
    dev.read_at(7 << 30, &mut back[..4096]).expect("read");
    assert_eq!(puts().2, 1, "from the cache");
}

/// Goal: many threads that write and flush share publishes, and nothing of what any was promised is lost.
#[test]
fn many_threads() {
    let store = MemoryStore::new();
    create(Arc::new(store.copy()), 64 << 20, false, &small()).expect("create");
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &small()).expect("open");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let dev = &dev;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for n in 0..100u64 {
                    // Each has its own half KiB of every block, so edges meet all the time.
                    let at = rng.below(64) * 4096 + thread * 512;
                    dev.write_at(at, &[n as u8; 512]).expect("write");
                    dev.write_at((1 << 20) * (1 + thread) + n * 4096, &[n as u8 + 1; 4096]).expect("write");
                    if n % 7 == 0 {
                        dev.flush().expect("flush");
                    }
                    let mut back = [0; 512];
                    dev.read_at(at, &mut back).expect("read");
                    assert_eq!(back, [n as u8; 512]);
                }
                dev.flush().expect("flush");
            });
        }
    });
    let want = read_all(&dev);
    let reader = RemoteDevice::open(Arc::new(store.copy()), None, &small()).expect("reader");
    assert!(read_all(&reader) == want);
    for (thread, n) in (0..4).flat_map(|t| (0..100).map(move |n| (t, n))) {
        assert_eq!(want[(1 << 20) * (1 + thread) + n * 4096], n as u8 + 1);
    }
}

/// A store that has too much to do when the first segments come.
struct Busy(MemoryStore, AtomicU32);

impl Store for Busy {
    fn submit(&self, op: StoreOp, deadline: Deadline) -> Ticket {
        let is_segment = matches!(&op, StoreOp::Put { key, .. } if key.starts_with("seg/"));
        if is_segment && self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Ticket::new(|| Err(StoreError::Throttled));
        }
        self.0.submit(op, deadline)
    }
    fn describe(&self) -> String {
        "busy".into()
    }
    fn now(&self) -> Option<StoreTime> {
        None
    }
}

/// Goal: a segment that could not be stored when it was sealed is stored when it is flushed, however long after; and a store
/// that does not recover fails the flush within its time, and ends writing. Method: a clock of the test's own.
#[test]
fn flushed_long_after() {
    for failures in [1, u32::MAX] {
        let host = Arc::new(Still::default());
        let mut options = small();
        options.host = host.clone();
        let store = Arc::new(Busy(MemoryStore::new(), failures.into()));
        create(store.clone(), LEN as u64, false, &options).expect("create");
        let dev = RemoteDevice::open_writable(store, &options).expect("open");
        dev.write_at(0, &vec![7; 700_000]).expect("write");
        host.sleep(Duration::from_secs(1000));
        let flushed = dev.flush();
        assert_eq!(flushed.is_ok(), failures == 1, "{flushed:?}");
        assert!(host.now() < Duration::from_secs(1000) + options.bounds.flush_max * 2, "{:?}", host.now());
        assert_eq!(dev.write_at(0, b"more").is_ok(), failures == 1);
        let mut back = [0; 9];
        dev.read_at(600_000, &mut back).expect("read");
        assert_eq!(back, [7; 9]);
    }
}

/// Goal: a claim holds others off while its owner shows life, and no longer; without one only a word helps.
#[test]
fn claims() {
    let store = MemoryStore::new();
    create(Arc::new(store.copy()), 1 << 20, false, &small()).expect("create");
    let mut options = small();
    options.claim = Duration::from_secs(1);
    options.owner = "first".into();
    options.keeper = false;
    let first = RemoteDevice::open_writable(Arc::new(store.copy()), &options).expect("open");
    first.write_at(0, b"first").expect("write");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| RemoteDevice::open_writable(Arc::new(store.copy()), &options).err());
        std::thread::sleep(Duration::from_millis(400));
        first.flush().expect("a sign of life");
        let held = second.join().expect("second");
        assert!(matches!(&held, Some(RemoteError::Held { owner }) if owner == "first"), "{held:?}");
    });
    let begin = Instant::now();
    let second = RemoteDevice::open_writable(Arc::new(store.copy()), &options).expect("it ran out");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    first.write_at(0, b"again").expect("in memory");
    first.flush().expect_err("overtaken");
    let mut back = [0; 5];
    second.read_at(0, &mut back).expect("read");
    assert_eq!(&back, b"first");
}

/// Goal: a volume made over another is not touched by that one's writer, and uses none of its names.
#[test]
fn made_anew() {
    let store = MemoryStore::new();
    create(Arc::new(store.copy()), 1 << 20, false, &small()).expect("create");
    let old = RemoteDevice::open_writable(Arc::new(store.copy()), &small()).expect("open");
    old.write_at(0, &vec![1; 400_000]).expect("write");
    old.flush().expect("flush");
    create(Arc::new(store.copy()), 1 << 20, true, &small()).expect("made anew");
    old.write_at(0, &[2; 9]).expect("in memory");
    old.flush().expect_err("replaced");
    assert!(matches!(*old.failure().expect("why"), RemoteError::Replaced { .. }));
    let new = RemoteDevice::open_writable(Arc::new(store.copy()), &small()).expect("open");
    assert!(new.epoch() > old.epoch());
    assert!(read_all(&new).iter().all(|&b| b == 0));
}
