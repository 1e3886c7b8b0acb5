//! What an fsync costs: writes, flushes and bytes; and what makes it a commit.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::disk::{Power, SimDisk};
use oleo_sim::oracle::Scratch;
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const IMAGE_LEN: u64 = 512 << 20;

fn open(device: Arc<dyn Device>) -> Fs {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default()).unwrap();
    Fs::open(engine, &FsOptions::default()).unwrap()
}

fn made() -> MemDevice {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(IMAGE_LEN));
    make(std::slice::from_ref(&device), &MkfsOptions::default()).unwrap();
    let copy = MemDevice::new(IMAGE_LEN);
    let mut part = vec![0; 1 << 20];
    for at in (0..IMAGE_LEN).step_by(part.len()) {
        device.read_at(at, &mut part).unwrap();
        if part.iter().any(|b| *b != 0) {
            copy.write_at(at, &part).unwrap();
        }
    }
    copy
}

fn file(fs: &Fs, name: &str) -> InodeRef {
    fs.create(&fs.root(TreeId::FS).unwrap(), name.as_bytes(), &NewInode::new(NewKind::File, 0o644)).unwrap()
}

/// Goal: an fsync of a file that grew writes its data, two blocks of the log, and a superblock, with two flushes; link, rename
/// and an fsync of what is synced write nothing; a long transaction of fsyncs takes no more room than a few of them.
#[test]
fn writes_and_flushes() {
    let disk = Arc::new(SimDisk::new("disk", made(), &Power::steady()));
    let fs = open(disk.clone());
    let (root, log) = (fs.root(TreeId::FS).unwrap(), file(&fs, "log"));
    fs.sync().unwrap();
    let nodesize = u64::from(fs.engine().nodesize());
    let cost = |f: &dyn Fn()| {
        let (before, bytes) = (disk.counts(), fs.log_stats().log_bytes);
        f();
        let after = disk.counts();
        (after.0 - before.0, after.1 - before.1, fs.log_stats().log_bytes - bytes)
    };
    let append = |n: u64| {
        fs.write(&log, n * 4096, &[n as u8; 4096]).unwrap();
        fs.fsync(&log).unwrap();
    };
    let mut worst = (0, 0, 0);
    for n in 0..50 {
        let (writes, flushes, bytes) = cost(&|| append(n));
        worst = (worst.0.max(writes), worst.1.max(flushes), worst.2.max(bytes));
    }
    // The data, two copies of a leaf of the log and of the leaf of its roots, the superblock.
    assert!(worst.0 <= 6 && worst.1 == 2 && worst.2 == 2 * nodesize, "writes, flushes, bytes: {worst:?}");
    let quiet = cost(&|| {
        fs.rename(&root, b"log", &root, b"renamed", oleo_fs::RenameMode::Replace).unwrap();
        fs.link(&log, &root, b"linked").unwrap();
        fs.rename(&root, b"renamed", &root, b"log", oleo_fs::RenameMode::Replace).unwrap();
    });
    assert_eq!(quiet, (0, 0, 0));
    fs.fsync(&log).unwrap();
    assert_eq!(cost(&|| fs.fsync(&log).unwrap()), (0, 0, 0), "nothing has changed");
    let free = |fs: &Fs| fs.engine().space().totals(oleo_space::Kind::Metadata).free;
    let before = free(&fs);
    (50..150).for_each(append);
    let taken = before.0 - free(&fs).0;
    assert!(taken <= 8 * nodesize, "{taken} bytes taken by 100 log commits");
    let stats = fs.log_stats();
    assert_eq!((stats.full_commits, stats.commits_by_link_rename), (0, 0), "{stats:?}");
    fs.sync().unwrap();
    let used = fs.engine().space().totals(oleo_space::Kind::Metadata);
    assert_eq!(fs.log_stats().log_commits, stats.log_commits);
    assert!(used.free.0 + 8 * nodesize >= before.0, "the log's blocks are free after the commit: {used:?}");
}

/// Goal: an fsync of a file that was written at a random place writes the log's blocks side by side, however many it has had, and what it takes
/// for that is bounded. Method: many of them, on a log of some height; writes are counted as a disk gets them.
#[test]
fn writes_of_random_places() {
    const SYNCS: u64 = 3000;
    let device = Arc::new(SimDisk::new("disk", made(), &Power::steady()));
    let fs = open(device.clone());
    let file = file(&fs, "file");
    fs.write(&file, 0, &vec![1; 64 << 20]).unwrap();
    fs.sync().unwrap();
    let free = || fs.engine().space().totals(oleo_space::Kind::Metadata).free.0;
    let (mut rng, before) = (Rng::new(5), free());
    let mut sync_some = |count: u64| {
        let from = device.runs();
        for n in 0..count {
            fs.write(&file, rng.below(16 << 10) * 4096, &[n as u8; 4096]).unwrap();
            fs.fsync(&file).unwrap();
        }
        (device.runs() - from) as f64 / count as f64
    };
    let (first, later) = (sync_some(SYNCS), sync_some(SYNCS));
    let taken = before - free();
    let each = fs.log_stats().log_bytes / fs.log_stats().log_commits;
    println!("{first:.2} and {later:.2} writes each, {each} bytes each, {taken} bytes taken");
    assert!(each > 4 * u64::from(fs.engine().nodesize()), "the log is high enough: {each}");
    // The data, two copies of the blocks, a superblock; now and then one more.
    assert!(first < 4.5 && later < 4.5, "{first:.2} and {later:.2} writes each");
    assert!(taken < 8 << 20, "{taken} bytes taken");
}

/// Goal: callers of one moment share a log commit, and each finds its file durable.
#[test]
fn many_callers() {
    const THREADS: u64 = 8;
    const CALLS: u64 = 60;
    let disk = Arc::new(SimDisk::new("disk", made(), &Power::steady()));
    let fs = open(disk.clone());
    thread::scope(|scope| {
        for t in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let mine = file(fs, &format!("{t}"));
                for n in 0..CALLS {
                    fs.write(&mine, n * 100, &[t as u8; 100]).unwrap();
                    fs.fsync(&mine).unwrap();
                    if n % 20 == 7 {
                        let root = fs.root(TreeId::FS).unwrap();
                        let (from, to) = (format!("{t}.{n}"), format!("{t}.{n}.renamed"));
                        fs.link(&mine, &root, from.as_bytes()).unwrap();
                        let mode = oleo_fs::RenameMode::Replace;
                        fs.rename(&root, from.as_bytes(), &root, to.as_bytes(), mode).unwrap();
                    }
                    if t == 0 && n % 25 == 24 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
    });
    let stats = fs.log_stats();
    assert_eq!(stats.fsyncs, THREADS * CALLS, "{stats:?}");
    assert!(stats.log_commits + stats.idle <= stats.fsyncs && stats.batches.iter().sum::<u64>() > 0, "{stats:?}");
    assert_eq!((stats.full_commits, stats.commits_by_link_rename), (0, 0), "{stats:?}");
}

/// Goal: each rule that makes an fsync commit is counted by its name, and the next one is logged again.
#[test]
fn refusals() {
    let fs = open(Arc::new(made()));
    let root = fs.root(TreeId::FS).unwrap();
    let by = |rule: &str| {
        let stats = fs.log_stats();
        stats.full_commits_by.iter().find(|(name, _)| *name == rule).map(|(_, n)| *n)
    };
    let log = file(&fs, "log");
    let sync_one = |n: u64| {
        fs.write(&log, n, &[1]).unwrap();
        fs.fsync(&log).unwrap();
    };
    sync_one(0);
    let sub = fs.subvol_create(&root, b"sub", &NewSubvol::default()).unwrap();
    sync_one(1);
    assert_eq!(by("subvolume"), Some(0), "the log has it whole");
    fs.fsync(&file(&fs, "other")).unwrap();
    assert_eq!(by("subvolume"), Some(1));
    sync_one(2);
    let inner = fs.create(&fs.root(sub).unwrap(), b"inner", &NewInode::new(NewKind::File, 0o644)).unwrap();
    fs.fsync(&inner).unwrap();
    assert_eq!(by("subvolume"), Some(1));
    fs.snapshot(sub, &root, b"snap", SnapshotOptions::default()).unwrap();
    fs.write(&inner, 0, b"1").unwrap();
    fs.fsync(&inner).unwrap();
    assert_eq!(by("subvolume"), Some(1), "the log has it whole");
    let second = fs.create(&fs.root(sub).unwrap(), b"second", &NewInode::new(NewKind::File, 0o644)).unwrap();
    fs.fsync(&second).unwrap();
    assert_eq!(by("subvolume"), Some(2));
    // Of a snapshot that is new, and of one that moved, though nothing in them has changed.
    let snap = fs.snapshot(sub, &root, b"snap2", SnapshotOptions::default()).unwrap();
    fs.fsync(&fs.root(snap).unwrap()).unwrap();
    assert_eq!(by("subvolume"), Some(3));
    fs.rename(&root, b"snap", &root, b"snap3", oleo_fs::RenameMode::Replace).unwrap();
    fs.fsync(&root).unwrap();
    assert_eq!(by("subvolume"), Some(4));
    // More data than the chunks on disk hold.
    let before = fs.log_stats().log_commits;
    fs.write(&log, 0, &vec![7; 100 << 20]).unwrap();
    fs.fsync(&log).unwrap();
    assert_eq!(by("new-chunk"), Some(1), "{:?}", fs.log_stats());
    sync_one(5);
    assert_eq!(fs.log_stats().log_commits, before + 1);
    let stats = fs.log_stats();
    assert_eq!(stats.full_commits, 5, "{stats:?}");
    assert!(stats.latency_p50 <= stats.latency_p99 && stats.latency_p99 <= stats.latency_max, "{stats:?}");
}

/// Prints how long calls take on a file in memory; it measures and asserts nothing about them.
#[test]
fn how_long() {
    let scratch = Scratch::new().unwrap();
    let image = scratch.image("time.img", IMAGE_LEN).unwrap();
    let options = FileOptions::default().write(true);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, &options).unwrap());
    make(std::slice::from_ref(&device), &MkfsOptions::default()).unwrap();
    let fs = open(device);
    let (root, log) = (fs.root(TreeId::FS).unwrap(), file(&fs, "log"));
    fs.sync().unwrap();
    let mut renames = Vec::new();
    for n in 0..1000u64 {
        fs.write(&log, n * 1000, &[1; 1000]).unwrap();
        fs.fsync(&log).unwrap();
        let begin = Instant::now();
        let (from, to): (&[u8], &[u8]) = if n % 2 == 0 { (b"log", b"other") } else { (b"other", b"log") };
        fs.rename(&root, from, &root, to, oleo_fs::RenameMode::Replace).unwrap();
        renames.push(begin.elapsed());
    }
    renames.sort();
    let stats = fs.log_stats();
    println!("fsync after rename: p50 {} µs, p99 {} µs, {stats:?}", stats.latency_p50 / 1000, stats.latency_p99 / 1000);
    println!("rename after fsync: p50 {:?}, p99 {:?}", renames[500], renames[990]);
    let before = Instant::now();
    for n in 1000..2000u64 {
        fs.write(&log, n * 1000, &[1; 1000]).unwrap();
        fs.fsync(&log).unwrap();
    }
    println!("append and fsync: {:?} on average", before.elapsed() / 1000);
    // The first chunk of data fills up.
    let stats = fs.log_stats();
    assert!(stats.full_commits <= 2 && stats.commits_by_link_rename == 0, "{stats:?}");
}

/// Goal: replaying a log of a file with very many names takes a time that grows with their number, not with its square.
/// Method: the kernel makes the log: of a file with thousands of committed names that is written to (it commits where one of so many
/// comes or goes); a copy of the image is replayed here, and compared.
#[test]
fn replay_of_very_many_names() {
    const NAMES: usize = 3000;
    let Some(oracle) = oleo_sim::oracle::oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("image", IMAGE_LEN).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "commit=300").unwrap();
    let at = |n: usize| mounted.path().join(format!("link_{n}"));
    std::fs::write(at(0), "hello").unwrap();
    (1..NAMES).for_each(|n| std::fs::hard_link(at(0), at(n)).unwrap());
    mounted.sync().unwrap();
    std::fs::write(at(0), "hello again").unwrap();
    std::fs::File::open(at(0)).unwrap().sync_all().unwrap();
    let crashed = scratch.path().join("crashed");
    std::fs::copy(&image, &crashed).unwrap();
    let mut want: Vec<_> = std::fs::read_dir(mounted.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    mounted.unmount().unwrap();
    want.sort();
    let device = FileDevice::open(&crashed, &FileOptions::default().write(true)).unwrap();
    let fs = open(Arc::new(device));
    assert!(fs.engine().unreplayed_log().is_some(), "the kernel has left no log");
    let begin = Instant::now();
    oleo_fs::replay(&fs).unwrap();
    let took = begin.elapsed();
    let root = fs.root(TreeId::FS).unwrap();
    let mut have: Vec<_> = fs.readdir(&root, 0, usize::MAX).unwrap().into_iter().map(|e| e.name).collect();
    have.sort();
    assert!(have.iter().map(Vec::as_slice).eq(want.iter().map(|name| name.as_encoded_bytes())), "the names differ");
    drop((root, fs));
    oracle.must_be_sound(&[&crashed], "replayed").unwrap();
    println!("{took:?} for {NAMES} names");
    assert!(took.as_secs() < 60, "{took:?} for {NAMES} names");
}

/// Goal: the superblock of a log says of the device what the trees say that it leads to.
/// Method: a chunk is made after the last commit, then a file that needs none of it is synced.
#[test]
fn the_superblock_of_a_log_is_of_the_last_commit() {
    const LEN: u64 = 2 << 30;
    let device = Arc::new(MemDevice::new(LEN));
    let options = MkfsOptions::default().metadata(Some(oleo_mkfs::Profile::Single));
    make(&[device.clone() as Arc<dyn Device>], &options).unwrap();
    let on_disk = || {
        let mut bytes = vec![0; 4096];
        device.read_at(65536, &mut bytes).unwrap();
        oleo_format::SuperBlock::read(&bytes).unwrap()
    };
    let fs = open(device.clone());
    let (large, small) = (file(&fs, "large"), file(&fs, "small"));
    fs.write(&small, 0, b"x").unwrap();
    fs.sync().unwrap();
    let committed = on_disk().dev_item.bytes_used.get();
    fs.preallocate(&large, 0, 900 << 20, oleo_fs::data::KeepSize::No).unwrap();
    fs.write(&small, 0, b"y").unwrap();
    fs.fsync(&small).unwrap();
    let stats = fs.log_stats();
    assert_eq!((stats.log_commits, stats.full_commits), (1, 0), "{stats:?}");
    let logged = on_disk();
    assert_ne!(logged.log_root.get(), 0);
    assert_eq!(logged.dev_item.bytes_used.get(), committed);
    fs.sync().unwrap();
    assert!(on_disk().dev_item.bytes_used.get() > committed, "no chunk was made");
}
