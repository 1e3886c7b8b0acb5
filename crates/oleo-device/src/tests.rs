//! Every device compared with a plain vector of bytes, and the refusals.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use oleo_sim::rng::Rng;

use super::*;

const LEN: usize = 300_000;

/// Goal: reads, writes, batches and discards of a device equal those of a vector.
/// Method: seeded random requests on both; every batch of reads compared, out-of-range ones expected to fail.
fn model(dev: &dyn Device, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut want = vec![0u8; LEN];
    for step in 0..400 {
        match rng.below(7) {
            0 => {
                let at = rng.below(LEN as u64) as usize;
                let len = (rng.below(40_000) as usize).min(LEN - at);
                let data = rng.bytes(len);
                dev.write_at(at as u64, &data).expect("write");
                want[at..at + data.len()].copy_from_slice(&data);
            }
            1 => {
                // Disjoint pieces in random order, many of which touch.
                let unit = 1000 + rng.below(5000) as usize;
                let mut starts: Vec<usize> = (0..LEN / unit).filter(|_| rng.below(3) > 0).map(|i| i * unit).collect();
                for i in (1..starts.len()).rev() {
                    starts.swap(i, rng.below(i as u64 + 1) as usize);
                }
                let data: Vec<Vec<u8>> = starts.iter().map(|_| rng.bytes(unit)).collect();
                let parts: Vec<[&[u8]; 3]> = data.iter().map(|d| [&d[..100], &d[100..100], &d[100..]]).collect();
                let reqs: Vec<_> =
                    starts.iter().zip(&parts).map(|(&s, p)| WriteReq { offset: s as u64, parts: p }).collect();
                dev.write_batch(&reqs).expect("batch");
                for (s, d) in starts.iter().zip(&data) {
                    want[*s..*s + unit].copy_from_slice(d);
                }
            }
            2 => {
                let at = rng.below(LEN as u64);
                let len = rng.below(LEN as u64 - at + 1);
                dev.discard(at, len).expect("discard");
                want[at as usize..(at + len) as usize].fill(0);
            }
            3 => {
                let at = rng.below(LEN as u64);
                let len = rng.below(LEN as u64 - at + 1);
                let how = Zeroing { keep_allocated: rng.below(2) == 0, only_fast: rng.below(2) == 0 };
                match dev.write_zeroes(at, len, how) {
                    Ok(()) => want[at as usize..(at + len) as usize].fill(0),
                    Err(e) => {
                        assert!(how.only_fast && matches!(e, DeviceError::Unsupported { op: Op::Zero, .. }), "{e}")
                    }
                }
            }
            4 => {
                let at = rng.below(LEN as u64) as usize;
                let len = (rng.below(9000) as usize).min(LEN - at);
                let data = rng.bytes(len);
                let (head, tail) = data.split_at(data.len() / 3);
                dev.write_durable(&[WriteReq { offset: at as u64, parts: &[head, tail] }]).expect("write");
                want[at..at + data.len()].copy_from_slice(&data);
            }
            5 => {
                let at = rng.below(LEN as u64);
                let len = rng.below(LEN as u64 - at + 1);
                let count_max = rng.below(4) as usize;
                let found = dev.extents(at, len, count_max).expect("extents");
                assert_eq!(found.is_empty(), len == 0 || count_max == 0, "seed {seed} step {step}");
                assert!(found.len() <= count_max && found.iter().map(|e| e.len).sum::<u64>() <= len);
                let mut from = at as usize;
                for extent in found {
                    let run = &want[from..from + extent.len as usize];
                    assert!(!run.is_empty());
                    assert!(extent.kind == ExtentKind::Data || run.iter().all(|&b| b == 0), "seed {seed} step {step}");
                    from += run.len();
                }
            }
            _ => {
                let mut places = Vec::new();
                let mut at = 0;
                while at < LEN + 5000 {
                    let len = 1 + rng.below(20_000) as usize;
                    places.push((at, vec![0xaa; len]));
                    at += len + if rng.below(2) == 0 { 0 } else { rng.below(9000) as usize };
                }
                places.reverse();
                let mut reqs: Vec<_> = places.iter_mut().map(|(at, b)| ReadReq::new(*at as u64, b)).collect();
                dev.read_batch(&mut reqs);
                for req in &reqs {
                    let (at, end) = (req.offset as usize, req.offset as usize + req.buf.len());
                    match &req.result {
                        Ok(()) => assert!(*req.buf == want[at..end], "seed {seed} step {step} at {at}"),
                        Err(e) => assert!(end > LEN && matches!(e, DeviceError::OutOfRange { .. }), "{e}"),
                    }
                }
            }
        }
    }
    dev.flush().expect("flush");
    assert!(matches!(dev.write_at(LEN as u64 - 1, &[1, 2]), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(dev.read_at(u64::MAX, &mut [0; 4]), Err(DeviceError::OutOfRange { .. })));
    let beyond = LEN as u64 - 1;
    assert!(matches!(dev.extents(beyond, 2, 1), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(dev.write_zeroes(beyond, 2, Zeroing::default()), Err(DeviceError::OutOfRange { .. })));
    let late = [WriteReq { offset: beyond, parts: &[b"ab"] }];
    assert!(matches!(dev.write_durable(&late), Err(DeviceError::OutOfRange { .. })));
    dev.will_read(u64::MAX, u64::MAX);
    dev.barrier().expect("barrier");
    let mut all = vec![0; LEN];
    dev.read_at(0, &mut all).expect("read");
    assert!(all == want);
}

#[test]
fn memory_is_as_a_vector() {
    let dev = MemDevice::new(LEN as u64);
    model(&dev, 1);
    dev.discard(0, LEN as u64).expect("discard");
    assert!(dev.resident_bytes() <= 16 << 10);
    dev.set_len(1 << 50).expect("grow");
    dev.write_at((1 << 50) - 3, b"end").expect("write");
    dev.set_len((1 << 50) - 1).expect("shrink");
    dev.set_len(1 << 50).expect("grow");
    let mut buf = [9; 3];
    dev.copy().read_at((1 << 50) - 3, &mut buf).expect("read");
    assert_eq!(&buf, b"en\0");
}

/// Goal: on a device of any length only nonzero bytes take memory, and discarding a little costs a little.
#[test]
fn zeros_take_no_memory() {
    let dev = MemDevice::new(1 << 50);
    dev.write_at(1 << 40, &vec![0; 1 << 20]).expect("write");
    assert_eq!(dev.resident_bytes(), 0);
    for n in 0..64 {
        dev.write_at((n << 44) + 100, b"some").expect("write");
    }
    let all = dev.resident_bytes();
    dev.write_at(100, &[0; 4]).expect("zeros over something are written");
    let mut buf = [9; 4];
    dev.read_at(100, &mut buf).expect("read");
    assert_eq!(buf, [0; 4]);
    dev.discard(5 << 44, 102).expect("a part of a page");
    dev.read_at((5 << 44) + 100, &mut buf).expect("read");
    assert_eq!(&buf, b"\0\0me");
    assert_eq!(dev.resident_bytes(), all);
    dev.discard(6 << 44, 1 << 16).expect("a few pages");
    assert_eq!(dev.resident_bytes(), all / 64 * 63);
    dev.discard(7 << 44, 50 << 44).expect("more pages than there are");
    assert_eq!(dev.resident_bytes(), all / 64 * 13);
}

#[test]
fn file_is_as_a_vector() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("img");
    std::fs::write(&path, vec![7; 4096]).expect("write");
    let opts = FileOptions { write: true, create: true, offset: 4096, ..Default::default() };
    let dev = FileDevice::open(&path, &opts).expect("open");
    assert_eq!(dev.len(), 0);
    dev.set_len(LEN as u64).expect("grow");
    model(&dev, 2);
    drop(dev);
    assert!(std::fs::read(&path).expect("read")[..4096].iter().all(|&b| b == 7), "before the window");
    let fixed = FileOptions { write: true, len: Some(100), ..Default::default() };
    let dev = FileDevice::open(&path, &fixed).expect("open");
    assert_eq!(dev.len(), 100);
    assert!(matches!(dev.set_len(200), Err(DeviceError::Unsupported { .. })));
    drop(dev);
    let dev = FileDevice::open(&path, &FileOptions::default()).expect("open");
    assert!(matches!(dev.write_at(0, b"x"), Err(DeviceError::ReadOnly { .. })));
}

#[test]
fn window_is_as_a_vector() {
    let inner = Arc::new(MemDevice::new(2 * LEN as u64));
    model(&Window::new(inner.clone(), 1234, LEN as u64).expect("window"), 3);
    assert!(Window::new(inner, LEN as u64 + 1, LEN as u64).is_err());
}

/// A device whose n-th write fails.
struct Failing(MemDevice, std::sync::atomic::AtomicU64);

impl Device for Failing {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        if self.1.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            return Err(DeviceError::Unsupported { name: "failing".into(), op: Op::Write });
        }
        self.0.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.discard(offset, len)
    }
    fn set_len(&self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn name(&self) -> String {
        "failing".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: what a device does not do by itself equals a vector too: the defaults of the trait.
/// Method: the model on one that has nothing but what is demanded.
#[test]
fn defaults_are_as_a_vector() {
    model(&Failing(MemDevice::new(LEN as u64), u64::MAX.into()), 4);
}

/// Goal: an overlay over a device with data equals a vector. Method: the model, over a base that is zeros.
#[test]
fn overlay_is_as_a_vector() {
    model(&NoDiscard(Overlay::new(Arc::new(MemDevice::new(LEN as u64)), 1 << 20)), 5);
}

/// An overlay forgets discards; this one zeros instead, as the model expects.
struct NoDiscard(Overlay);

impl Device for NoDiscard {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.0.write_zeroes(offset, len, Zeroing::default())
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.0.set_len(len)
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn read_only(&self) -> bool {
        self.0.read_only()
    }
    fn write_durable(&self, reqs: &[WriteReq<'_>]) -> Result<(), DeviceError> {
        self.0.write_durable(reqs)
    }
    fn extents(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.0.extents(offset, len, count_max)
    }
}

/// Goal: a file's holes are found where they are, and zeros make them. Method: data around a hole, on a file system with
/// holes (one without says that all is data, and the test says so).
#[test]
fn holes_of_a_file() {
    let dir = tempfile::tempdir().expect("dir");
    let opts = FileOptions { write: true, create: true, offset: 1 << 16, ..Default::default() };
    let dev = FileDevice::open(&dir.path().join("img"), &opts).expect("open");
    dev.set_len(4 << 20).expect("grow");
    dev.write_at(1 << 20, &vec![7; 1 << 20]).expect("write");
    let kinds = |from, count| {
        let found = dev.extents(from, dev.len() - from, count).expect("extents");
        found.iter().map(|e| (e.len, e.kind)).collect::<Vec<_>>()
    };
    use ExtentKind::{Data, Hole};
    if kinds(0, 9) == [(4 << 20, Data)] {
        eprintln!("skipped: the file system of temporary files knows no holes");
        return;
    }
    assert_eq!(kinds(0, 9), [(1 << 20, Hole), (1 << 20, Data), (2 << 20, Hole)]);
    assert_eq!(kinds(0, 1), [(1 << 20, Hole)]);
    assert_eq!(kinds((1 << 20) + 5, 9), [((1 << 20) - 5, Data), (2 << 20, Hole)]);
    dev.write_zeroes(1 << 20, 1 << 19, Zeroing { only_fast: true, ..Zeroing::default() }).expect("punch");
    assert_eq!(kinds(0, 9), [(3 << 19, Hole), (1 << 19, Data), (2 << 20, Hole)]);
    let mut buf = [9; 2];
    dev.read_at((3 << 19) - 1, &mut buf).expect("read");
    assert_eq!(buf, [0, 7]);
}

/// Goal: what a file system cannot do is told from what failed. Method: errors of the system, to the functions that
/// decide.
#[test]
fn fallbacks_are_for_what_is_missing() {
    use super::file::{lacks_dsync, lacks_zeroing};
    use rustix::io::Errno;
    let of =
        |e: Errno| DeviceError::Io { name: "d".into(), op: Op::Flush, offset: 0, len: 1, source: Arc::new(e.into()) };
    assert!(lacks_dsync(&of(Errno::OPNOTSUPP)) && lacks_dsync(&of(Errno::NOSYS)));
    assert!(!lacks_dsync(&of(Errno::IO)) && !lacks_dsync(&of(Errno::NOSPC)));
    assert!(lacks_zeroing(Errno::OPNOTSUPP, false) && lacks_zeroing(Errno::INVAL, true));
    assert!(!lacks_zeroing(Errno::INVAL, false) && !lacks_zeroing(Errno::NOSPC, true));
    let full = |op| DeviceError::Io { name: "d".into(), op, offset: 0, len: 1, source: Arc::new(Errno::NOSPC.into()) };
    assert!(full(Op::Write).is_full() && full(Op::Zero).is_full());
    assert!(!full(Op::Flush).is_full(), "a durable write may have been taken and lost");
}

/// Goal: the latch closes after a durable write, zeros or a barrier that failed, and not after zeros that are not quick.
#[test]
fn the_latch_closes_for_all_changes() {
    let fast = Zeroing { only_fast: true, ..Zeroing::default() };
    for change in 0..2 {
        let dev = Latched::new(Arc::new(Failing(MemDevice::new(100), 0.into())));
        assert!(matches!(dev.write_zeroes(0, 1, fast), Err(DeviceError::Unsupported { .. })));
        assert!(dev.failure().is_none(), "nothing has changed");
        let write = [WriteReq { offset: 0, parts: &[b"x"] }];
        match change {
            0 => dev.write_durable(&write).expect_err("fails"),
            _ => dev.write_zeroes(0, 1, Zeroing::default()).expect_err("fails"),
        };
        assert!(matches!(dev.barrier(), Err(DeviceError::Latched { .. })));
        assert!(matches!(dev.write_durable(&write), Err(DeviceError::Latched { .. })));
        assert!(matches!(dev.write_zeroes(0, 1, fast), Err(DeviceError::Latched { .. })));
    }
}

/// Goal: after one failed write nothing is written or flushed, though the device has recovered.
#[test]
fn the_latch_closes_for_ever() {
    let dev = Latched::new(Arc::new(Failing(MemDevice::new(100), 1.into())));
    dev.write_at(0, b"good").expect("first");
    assert!(dev.write_at(0, b"lost").is_err());
    assert!(matches!(dev.write_at(0, b"late"), Err(DeviceError::Latched { .. })));
    assert!(matches!(dev.flush(), Err(DeviceError::Latched { .. })));
    assert!(dev.read_only() && dev.failure().is_some());
    let mut buf = [0; 4];
    dev.read_at(0, &mut buf).expect("reads go on");
    assert_eq!(&buf, b"good");
}

fn open(path: &Path, write: bool) -> Result<FileDevice, DeviceError> {
    FileDevice::open(path, &FileOptions { write, ..Default::default() })
}

/// Goal: one writer or many readers. Method: second handles of this process, which the lock sees as strangers.
#[test]
fn two_handles_do_not_write_at_once() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("img");
    std::fs::write(&path, [0; 4096]).expect("write");
    let reader = open(&path, false).expect("reader");
    let second = open(&path, false).expect("second reader");
    assert!(matches!(open(&path, true), Err(DeviceError::InUse { by: User::Lock, .. })));
    drop((reader, second));
    let writer = open(&path, true).expect("writer");
    assert!(matches!(open(&path, true), Err(DeviceError::InUse { .. })));
    assert!(matches!(open(&path, false), Err(DeviceError::InUse { .. })));
    FileDevice::open(&path, &FileOptions { read_in_use: true, ..Default::default() }).expect("told to");
    drop(writer);
    assert!(matches!(open(dir.path(), false), Err(DeviceError::Kind { .. })));
    assert!(matches!(open(&dir.path().join("none"), true), Err(DeviceError::Open { .. })));
}

/// Goal: a file that another program writes to is refused, and the program is named.
#[test]
fn a_foreign_writer_is_seen() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("img");
    std::fs::write(&path, [0; 4096]).expect("write");
    let out = std::fs::OpenOptions::new().append(true).open(&path).expect("open");
    let mut child = Command::new("sleep").arg("60").stdout(Stdio::from(out)).spawn().expect("sleep");
    let refused = (open(&path, true), open(&path, false));
    child.kill().expect("kill");
    child.wait().expect("wait");
    for result in [refused.0, refused.1] {
        match result {
            Err(DeviceError::InUse { by: User::Writer { pid, .. }, .. }) => assert_eq!(pid, child.id()),
            other => panic!("{other:?}"),
        }
    }
    open(&path, true).expect("nobody is left");
}

/// Goal: every error is of its kind and has its errno.
#[test]
fn every_error_has_its_class() {
    let (name, op) = (|| std::sync::Arc::<str>::from("d"), Op::Write);
    let says = |errno| std::sync::Arc::new(std::io::Error::from_raw_os_error(errno));
    let of = |number| DeviceError::Io { name: name(), op, offset: 0, len: 1, source: says(number) };
    let failed = || of(errno::EIO);
    assert_eq!(of(errno::ENOSPC).class(), Class { errno: errno::ENOSPC, ..Class::DEVICE }, "no room below");
    oleo_format::assert_classes!(DeviceError {
        Open: DeviceError::Open { path: "d".into(), source: says(errno::ENOENT) } => Class::refusal(errno::ENOENT),
        Kind: DeviceError::Kind { path: "d".into() } => Class::refusal(errno::EINVAL),
        Io: failed() => Class::DEVICE,
        OutOfRange: DeviceError::OutOfRange { name: name(), op, offset: 0, len: 2, size: 1 } => Class::DATA,
        ReadOnly: DeviceError::ReadOnly { name: name(), op } => Class::refusal(errno::EROFS),
        Unsupported: DeviceError::Unsupported { name: name(), op } => Class::refusal(errno::EOPNOTSUPP),
        InUse: DeviceError::InUse { name: name(), by: User::Lock } => Class::refusal(errno::EBUSY),
        Latched: DeviceError::Latched { name: name(), op, first: failed().into() } => Class::DEVICE,
    });
}
