//! A volume of ten thousand block groups, nearly full: what it costs must follow from what is done, not from its size.
//!
//! The full million is measured by the benchmark `volume-scale`. Images are sparse files: space is taken, no data is written.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo::device::{FileDevice, FileOptions};
use oleo::fs::{InodeRef, KeepSize, NewInode, NewKind};
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::{Device, Image, OpenOptions};

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

fn open(image: &Path) -> Image {
    Image::open(image, &OpenOptions::writing().discard(true)).unwrap()
}

/// A volume whose first groups are all full: space is taken, nothing is written.
fn nearly_full(dir: &Path, groups: u64) -> PathBuf {
    let path = dir.join(format!("{groups}.img"));
    std::fs::File::create(&path).unwrap().set_len((groups + LEFT) * GIB).unwrap();
    let device = FileDevice::open(&path, &FileOptions::default().write(true)).unwrap();
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device)];
    let single = Some(Profile::Single);
    oleo::mkfs::make(&devices, &MkfsOptions::default().data(single).metadata(single)).unwrap();
    drop(devices);
    let image = open(&path);
    let full = file(&image, "full");
    for n in 0..groups {
        image.fs().preallocate(&full, n * GIB, GIB, KeepSize::No).unwrap();
    }
    drop(full);
    image.close().unwrap();
    path
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The image that `opened_by_a_process_of_its_own` is to open.
const IMAGE: &str = "OLEO_SCALE_IMAGE";
/// What comes before the bytes in its answer.
const ANSWER: &str = "memory of the open volume: ";

/// What opening takes, in a process that has not freed anything before.
#[test]
#[ignore = "no test: the body of a process that other tests start"]
fn opened_by_a_process_of_its_own() {
    let path = std::env::var_os(IMAGE).expect(IMAGE);
    let before = resident();
    let options = OpenOptions::writing().cache_bytes(1 << 20);
    let image = Image::open(Path::new(&path), &options).unwrap();
    println!("{ANSWER}{}", resident().saturating_sub(before));
    drop(image);
}

fn memory_when_open(image: &Path) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--ignored", "scale::opened_by_a_process_of_its_own"]).env(IMAGE, image);
    let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let answer = out.lines().find_map(|l| l.split_once(ANSWER)).unwrap_or_else(|| panic!("no answer: {out}"));
    answer.1.trim().parse().unwrap()
}

struct Costs {
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

fn costs(image: &Path) -> Costs {
    let start = Instant::now();
    let image = open(image);
    let open = start.elapsed();
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
    Costs { open, allocation, chunk, commit }
}

/// Goal: with ten times as many block groups, all full, neither an allocation nor a new chunk nor a commit costs more, a
/// group that is not used takes little memory, and the volume is sound.
/// Method: volumes filled by preallocation; the shortest of several looks, a ratio with a bound; memory that a fresh process
/// takes to open each; the check.
#[test]
fn ten_times_the_groups_cost_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (few, many) = (nearly_full(dir.path(), 1000), nearly_full(dir.path(), 10_000));
    let bytes = memory_when_open(&many).saturating_sub(memory_when_open(&few)) / 9000;
    let (a, b) = (costs(&few), costs(&many));
    for (what, few, many) in
        [("an allocation", a.allocation, b.allocation), ("a chunk", a.chunk, b.chunk), ("a commit", a.commit, b.commit)]
    {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("{what}: {few:?} with 1000 groups, {many:?} with 10 000: {ratio:.2}x");
        assert!(ratio < RATIO_MAX, "{what} costs {ratio:.1} times as much: {few:?}, {many:?}");
    }
    println!("opening: {:?} and {:?}; {bytes} bytes per group", a.open, b.open);
    assert!(bytes > 0 && bytes < GROUP_BYTES_MAX, "{bytes} bytes per group");
    assert!(b.open < Duration::from_secs(30), "opening took {:?}", b.open);
    let report = oleo::check::image(&many, &OpenOptions::default(), Default::default(), &Default::default()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}
