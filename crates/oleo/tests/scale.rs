//! A volume of ten thousand block groups, nearly full: what it costs must follow from what is done, not from its size.
//!
//! The full million is measured by the benchmark `volume-scale`. This is a test program of its own, so that nothing else
//! moves its memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo::{Device, Image, InodeRef, KeepSize, MemDevice, MkfsOptions, NewInode, NewKind, OpenOptions, Profile};

const GIB: u64 = 1 << 30;
/// Groups that are left for metadata and for what the test allocates.
const LEFT: u64 = 40;
/// The shortest of so many looks counts: the machine has other things to do.
const LOOKS: u64 = 12;
/// Allocations of one look.
const PER_LOOK: u64 = 300;
/// What ten times as many groups may cost. Deeper trees and colder caches make some of it; a look at every group would
/// make ten.
const RATIO_MAX: f64 = 3.0;
/// Bytes that one group may take in memory while nobody looks into it, its chunk included.
const GROUP_BYTES_MAX: u64 = 1024;

fn file(image: &Image, name: &str) -> InodeRef {
    image.fs().create(&image.top().unwrap(), name.as_bytes(), &NewInode::new(NewKind::File, 0o600)).unwrap()
}

fn open(device: &Arc<MemDevice>) -> Image {
    Image::from_devices(vec![device.clone()], &OpenOptions { discard: true, ..OpenOptions::writing() }).unwrap()
}

/// A volume whose first groups are all full: space is taken, nothing is written.
fn nearly_full(groups: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new((groups + LEFT) * GIB));
    let single = Some(Profile::Single);
    let devices: [Arc<dyn Device>; 1] = [device.clone()];
    oleo::make(&devices, &MkfsOptions { data: single, metadata: single, ..MkfsOptions::default() }).unwrap();
    let image = open(&device);
    let full = file(&image, "full");
    for n in 0..groups {
        image.fs().preallocate(&full, n * GIB, GIB, KeepSize::No).unwrap();
    }
    drop(full);
    image.close().unwrap();
    device
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

struct Costs {
    open_bytes: u64,
    open: Duration,
    allocation: Duration,
    chunk: Duration,
    commit: Duration,
}

fn shortest(mut look: impl FnMut(u64)) -> Duration {
    let one = |n| {
        let start = Instant::now();
        look(n);
        start.elapsed()
    };
    (0..LOOKS).map(one).min().unwrap()
}

fn costs(device: &Arc<MemDevice>) -> Costs {
    let before = resident();
    let start = Instant::now();
    let image = open(device);
    let open = start.elapsed();
    let open_bytes = resident().saturating_sub(before);
    let (small, grown, fs) = (file(&image, "small"), file(&image, "grown"), image.fs());
    fs.preallocate(&small, 0, 8192, KeepSize::No).unwrap();
    let allocation = shortest(|look| {
        for n in 1..=PER_LOOK {
            fs.preallocate(&small, (look * PER_LOOK + n) * 16384, 8192, KeepSize::No).unwrap();
        }
    });
    let chunk = shortest(|n| fs.preallocate(&grown, n * GIB, GIB, KeepSize::No).unwrap());
    image.sync().unwrap();
    let commit = shortest(|n| {
        fs.preallocate(&small, (1 + n) << 40, 4096, KeepSize::No).unwrap();
        image.sync().unwrap();
    });
    drop((small, grown));
    image.close().unwrap();
    Costs { open_bytes, open, allocation, chunk, commit }
}

/// Goal: with ten times as many block groups, all full, neither an allocation nor a new chunk nor a commit costs more, a
/// group that is not used takes little memory, and the volume is sound.
/// Method: volumes filled by preallocation on a device in memory, which then has no data; the shortest of several looks; a
/// ratio with a bound; the check.
#[test]
fn ten_times_the_groups_cost_the_same() {
    let (few, many) = (nearly_full(1000), nearly_full(10_000));
    let (a, b) = (costs(&few), costs(&many));
    for (what, few, many) in
        [("an allocation", a.allocation, b.allocation), ("a chunk", a.chunk, b.chunk), ("a commit", a.commit, b.commit)]
    {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("{what}: {few:?} with 1000 groups, {many:?} with 10 000: {ratio:.2}x");
        assert!(ratio < RATIO_MAX, "{what} costs {ratio:.1} times as much: {few:?}, {many:?}");
    }
    println!("opening: {:?} and {:?}; {} bytes per group", a.open, b.open, b.open_bytes / 10_000);
    assert!(b.open_bytes < 10_000 * GROUP_BYTES_MAX, "{} bytes for 10 000 groups", b.open_bytes);
    assert!(b.open < Duration::from_secs(5), "opening took {:?}", b.open);
    let volume = oleo_volume::Volume::open(vec![many], &oleo_volume::OpenOptions::default()).unwrap();
    let report = oleo::check::volume(&volume, &Default::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}
