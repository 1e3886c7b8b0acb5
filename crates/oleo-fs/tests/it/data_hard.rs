//! File data where it is hard: many threads, snapshots, no space, rotten sectors.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_format::{Compression, CsumType, InodeFlags, TreeId};
use oleo_fs::data::{CloneRange, Compress, ExtentKind, KeepSize, Prepared, Stamp, Whole};
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, SetAttr, SnapshotOptions};
use oleo_mkfs::{MkfsOptions, Profile, make};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const MIB: u64 = 1 << 20;

fn open(device: Arc<dyn Device>, opts: &FsOptions) -> anyhow::Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, opts)?)
}

fn file_device(image: &Path) -> anyhow::Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?))
}

fn mkfs(device: &Arc<dyn Device>, seed: u8) -> anyhow::Result<()> {
    make(std::slice::from_ref(device), &MkfsOptions::default().seed([seed; 32]))?;
    Ok(())
}

fn new_file(fs: &Fs, name: &str) -> anyhow::Result<InodeRef> {
    Ok(fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

fn read_all(fs: &Fs, file: &InodeRef) -> anyhow::Result<Vec<u8>> {
    let mut out = vec![0; fs.attr(file).size as usize];
    assert_eq!(fs.read(file, 0, &mut out)?, out.len());
    Ok(out)
}

/// Goal: a thread always reads what it wrote, whoever flushes and commits meanwhile, and the kernel agrees in the end.
/// Method: four threads, each with its own stripes of one shared file and with a file of its own; one that syncs.
#[test]
fn many_threads() -> anyhow::Result<()> {
    const THREADS: u64 = 4;
    const STRIPE: u64 = 50_000;
    const STRIPES: u64 = 12;
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", 600 * MIB)?;
    let device = file_device(&image)?;
    mkfs(&device, 11)?;
    let mut opts = FsOptions::default();
    opts.data.dirty_bytes_max = MIB;
    opts.data.compress = Some(Compress { algorithm: Compression::Zstd, level: 1, force: false });
    let fs = open(device, &opts)?;
    let shared = new_file(&fs, "shared")?;
    fs.write(&shared, 0, &vec![0; (THREADS * STRIPE * STRIPES) as usize])?;
    let done = AtomicBool::new(false);
    let model = std::thread::scope(|scope| -> anyhow::Result<Vec<u8>> {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (fs, shared) = (&fs, &shared);
                scope.spawn(move || -> anyhow::Result<Vec<(u64, Vec<u8>)>> {
                    let mut rng = Rng::new(t + 77);
                    let own = new_file(fs, &format!("own{t}"))?;
                    let mut own_model: Vec<u8> = Vec::new();
                    let mut stripes: Vec<(u64, Vec<u8>)> =
                        (0..STRIPES).map(|s| ((s * THREADS + t) * STRIPE, vec![0; STRIPE as usize])).collect();
                    for _ in 0..150 {
                        let pick = rng.below(STRIPES) as usize;
                        let (base, model) = &mut stripes[pick];
                        let at = rng.below(STRIPE);
                        let len = (rng.length(20_000) + 1).min(STRIPE - at);
                        let span = at as usize..(at + len) as usize;
                        match rng.below(5) {
                            0 => {
                                fs.punch_hole(shared, *base + at, len)?;
                                model[span].fill(0);
                            }
                            1 => {
                                let mut out = vec![1; len as usize];
                                assert_eq!(fs.read(shared, *base + at, &mut out)?, out.len());
                                assert!(out == model[span], "thread {t} reads what it wrote");
                            }
                            2 => {
                                let more = rng.text(len as usize);
                                fs.write(&own, own_model.len() as u64, &more)?;
                                own_model.extend_from_slice(&more);
                                if rng.one_in(10) {
                                    own_model.truncate(own_model.len() / 2);
                                    fs.truncate(&own, own_model.len() as u64)?;
                                }
                                assert!(read_all(fs, &own)? == own_model);
                            }
                            _ => {
                                let data = rng.bytes(len as usize);
                                fs.write(shared, *base + at, &data)?;
                                model[span].copy_from_slice(&data);
                            }
                        }
                    }
                    Ok(stripes)
                })
            })
            .collect();
        let syncer = scope.spawn(|| -> anyhow::Result<()> {
            while !done.load(Ordering::Relaxed) {
                fs.sync()?;
            }
            Ok(())
        });
        let mut model = vec![0; (THREADS * STRIPE * STRIPES) as usize];
        let mut outcome = Ok(());
        for worker in workers {
            match worker.join() {
                Ok(Ok(stripes)) => {
                    for (base, bytes) in stripes {
                        model[base as usize..base as usize + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                Ok(Err(e)) => outcome = Err(e),
                Err(_) => outcome = Err(anyhow::anyhow!("a worker panicked")),
            }
        }
        done.store(true, Ordering::Relaxed);
        match syncer.join() {
            Ok(synced) => synced?,
            Err(_) => anyhow::bail!("the syncer panicked"),
        }
        outcome.map(|()| model)
    })?;
    assert!(read_all(&fs, &shared)? == model);
    fs.sync()?;
    drop(shared);
    drop(fs);
    oracle.must_be_sound(&[&image], "after many threads")?;
    let mounted = oracle.mount(&[&image], "ro")?;
    assert!(std::fs::read(mounted.path().join("shared"))? == model);
    mounted.unmount()?;
    Ok(())
}

/// Goal: writing in place never changes what a snapshot or a clone shows. Method: preallocated and nodatacow files, written
/// before and after snapshots and clones; every copy is compared with what it was.
#[test]
fn snapshots_keep_their_bytes() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", 600 * MIB)?;
    let device = file_device(&image)?;
    mkfs(&device, 12)?;
    let fs = open(device, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let no_cow = new_file(&fs, "nodatacow")?;
    let flags = Some(InodeFlags::NODATASUM | InodeFlags::NODATACOW);
    fs.set_attr(&no_cow, &SetAttr::default().flags(flags))?;
    let prealloc = new_file(&fs, "prealloc")?;
    fs.preallocate(&prealloc, 0, MIB, KeepSize::No)?;
    let mut rng = Rng::new(5);
    let mut models = [vec![0u8; MIB as usize], vec![0u8; MIB as usize]];
    fs.truncate(&no_cow, MIB)?;
    let mut kept: Vec<(String, [Vec<u8>; 2])> = Vec::new();
    let mut in_place = 0;
    for round in 0..12 {
        for _ in 0..8 {
            for (file, model) in [&no_cow, &prealloc].into_iter().zip(&mut models) {
                let at = rng.below(MIB - 70_000);
                let len = rng.length_of(60_000);
                let data = rng.bytes(len);
                let before = disk_at(&fs, file, at)?;
                fs.write(file, at, &data)?;
                fs.flush(file)?;
                in_place += usize::from(before.is_some() && before == disk_at(&fs, file, at)?);
                model[at as usize..at as usize + data.len()].copy_from_slice(&data);
            }
        }
        if round % 3 == 1 {
            let name = format!("snapshot{round}");
            fs.snapshot(TreeId::FS, &root, name.as_bytes(), SnapshotOptions::default())?;
            kept.push((name, models.clone()));
        }
        if round % 3 == 2 {
            // Clones within the file and to another one make extents shared too.
            fs.clone_range(&no_cow, &no_cow, &CloneRange { from: 0, len: 65536, to: 655_360 })?;
            models[0].copy_within(0..65536, 655_360);
            let copy = fs.create(&root, format!("copy{round}").as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
            fs.clone_range(&prealloc, &copy, &CloneRange { from: 0, len: 0, to: 0 })?;
        }
    }
    assert!(in_place > 10, "{in_place}");
    assert!(read_all(&fs, &no_cow)? == models[0] && read_all(&fs, &prealloc)? == models[1]);
    fs.sync()?;
    drop((no_cow, prealloc, root, fs));
    oracle.must_be_sound(&[&image], "after writes in place")?;
    let mounted = oracle.mount(&[&image], "ro")?;
    kept.push((".".into(), models));
    for (dir, want) in &kept {
        for (name, bytes) in ["nodatacow", "prealloc"].into_iter().zip(want) {
            let have = std::fs::read(mounted.path().join(dir).join(name))?;
            assert!(have == *bytes, "{dir}/{name}");
        }
    }
    mounted.unmount()?;
    Ok(())
}

/// Where the byte at `at` is on disk, if it is written.
fn disk_at(fs: &Fs, file: &InodeRef, at: u64) -> anyhow::Result<Option<u64>> {
    let extents = fs.extents(file, at, 1)?;
    Ok(extents.first().and_then(|e| e.disk).map(|disk| disk.0))
}

trait LengthOf {
    fn length_of(&mut self, max: u64) -> usize;
}
impl LengthOf for Rng {
    fn length_of(&mut self, max: u64) -> usize {
        self.length(max) as usize + 1
    }
}

/// Goal: a full file system says so in the call that fills it, and loses nothing that it took. Method: fill, compare, delete,
/// fill again; small and large files, buffered and whole.
#[test]
fn full() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", 140 * MIB)?;
    let device = file_device(&image)?;
    mkfs(&device, 13)?;
    let fs = open(device, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let mut sizes = Vec::new();
    for round in 0..3u64 {
        let mut rng = Rng::new(round + 1);
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        let mut refused = 0;
        while refused < 3 {
            let name = format!("r{round}f{}", files.len() + refused);
            let max = if rng.one_in(3) { 6 * MIB } else { 20_000 };
            let len = rng.length_of(max);
            let data = rng.bytes(len);
            let step = || -> Result<(), FsError> {
                let file = fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
                if data.len().is_multiple_of(2) {
                    fs.write(&file, 0, &data)?;
                    fs.flush(&file)
                } else {
                    fs.write_all(&file, &data, Stamp::Now)
                }
            };
            match step() {
                Ok(()) => files.push((name, data)),
                Err(FsError::NoSpace) => {
                    refused += 1;
                    match fs.unlink(&root, name.as_bytes()) {
                        Ok(()) | Err(FsError::NotFound) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        fs.sync()?;
        sizes.push(files.iter().map(|(_, d)| d.len() as u64).sum::<u64>());
        for (name, data) in &files {
            let file = fs.lookup(&root, name.as_bytes())?.ok_or(FsError::NotFound)?;
            assert!(read_all(&fs, &file)? == *data, "round {round}, {name}");
        }
        oracle.must_be_sound(&[&image], &format!("full, round {round}"))?;
        for (name, _) in &files {
            fs.unlink(&root, name.as_bytes())?;
        }
        while fs.clean(1000)? {}
        fs.sync()?;
    }
    assert!(sizes.iter().all(|s| *s > 60 * MIB), "{sizes:?}");
    Ok(())
}

/// Goal: rotten data is an error that says where, never wrong bytes; the rest of the file can be read. Method: flip a byte on a
/// device without copies.
#[test]
fn rot_is_noticed() -> anyhow::Result<()> {
    let memory = Arc::new(MemDevice::new(300 * MIB));
    let device: Arc<dyn Device> = memory.clone();
    let options = MkfsOptions::default().metadata(Some(Profile::Single));
    make(std::slice::from_ref(&device), &options)?;
    let fs = open(device, &FsOptions::default())?;
    let file = new_file(&fs, "file")?;
    let data = Rng::new(9).bytes(3 * MIB as usize);
    fs.write_all(&file, &data, Stamp::Now)?;
    fs.sync()?;
    let extents = fs.extents(&file, 0, 3 * MIB)?;
    assert!(extents.iter().all(|e| e.kind == ExtentKind::Data));
    let logical = extents[0].disk.ok_or(FsError::NotFound)?;
    // The first data chunk of a single device: find the bytes where they are.
    let sample = &data[..64];
    let mut block = vec![0; MIB as usize];
    let mut at = None;
    for pos in (0..300).map(|n| n * MIB) {
        memory.read_at(pos, &mut block)?;
        if let Some(n) = block.chunks(4096).position(|sector| sector.starts_with(sample)) {
            at = Some(pos + n as u64 * 4096);
        }
    }
    let at = at.ok_or_else(|| anyhow::anyhow!("no trace of {logical}"))?;
    memory.write_at(at + 5 * 4096 + 17, &[data[5 * 4096 + 17] ^ 1])?;
    let mut out = vec![0; data.len()];
    match fs.read(&file, 0, &mut out) {
        Err(FsError::Data { ino, .. }) => assert_eq!(ino, file.ino()),
        other => panic!("{other:?}"),
    }
    assert_eq!(FsError::errno(&fs.read(&file, 5 * 4096, &mut out[..100]).unwrap_err()), 5);
    assert_eq!(fs.read(&file, 6 * 4096, &mut out[..100_000])?, 100_000);
    assert!(out[..100_000] == data[6 * 4096..6 * 4096 + 100_000]);
    Ok(())
}

/// Goal: the number of threads changes no address and no byte. Method: the same batches prepared with and without threads.
#[test]
fn threads_change_nothing() -> anyhow::Result<()> {
    let mut images = Vec::new();
    for threads in [false, true] {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(300 * MIB));
        mkfs(&device, 3)?;
        let mut opts = FsOptions::default();
        opts.data.threads = threads;
        opts.data.compress = Some(Compress { algorithm: Compression::Zstd, level: 3, force: false });
        let fs = open(device, &opts)?;
        let mut rng = Rng::new(4);
        let mut batch = Vec::new();
        for n in 0..40 {
            let len = if n % 9 == 0 { 3_000_000 } else { rng.length_of(40_000) };
            let data = if n % 2 == 0 { rng.text(len) } else { rng.bytes(len) };
            let file = new_file(&fs, &format!("f{n}"))?;
            let policy = fs.policy(&file)?;
            batch.push((file, Prepared::new(data, 0, Whole::File, &policy)));
        }
        fs.install_many(&batch, Stamp::Keep)?;
        let mut all = Vec::new();
        for (file, _) in &batch {
            all.push((fs.extents(file, 0, u64::MAX)?, CsumType::Sha256.csum(&read_all(&fs, file)?)));
        }
        images.push(all);
    }
    assert!(images[0] == images[1]);
    Ok(())
}

/// Goal: what is buffered looks as it will on disk: data begins and ends with a sector, and bytes that replace others are counted
/// once.
/// Method: the same questions before a sync and after it.
#[test]
fn buffered_as_on_disk() -> anyhow::Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 * MIB));
    mkfs(&device, 3)?;
    let fs = open(device, &FsOptions::default())?;
    let sparse = new_file(&fs, "sparse")?;
    for at in [2, 20_000, 70_000] {
        fs.write(&sparse, at, b"x")?;
    }
    let seek = || -> anyhow::Result<Vec<_>> {
        let places = [0, 1, 2, 3, 100, 4095, 4096, 5000, 16_384, 20_001, 30_000, 69_999, 70_000];
        places.iter().map(|at| Ok((fs.seek_data(&sparse, *at)?, fs.seek_hole(&sparse, *at)?))).collect()
    };
    let before = seek()?;
    fs.sync()?;
    assert_eq!(before, seek()?);
    assert_eq!(before[0], (Some(0), Some(4096)));
    let full = new_file(&fs, "full")?;
    fs.write(&full, 0, &vec![1; 4 * MIB as usize])?;
    fs.sync()?;
    let settled = fs.attr(&full).nbytes;
    assert_eq!(settled, 4 * MIB);
    fs.write(&full, 0, &vec![2; 4 * MIB as usize])?;
    assert_eq!(fs.attr(&full).nbytes, settled);
    // A megabyte more, and one that is there.
    fs.write(&full, 3 * MIB, &vec![3; 2 * MIB as usize])?;
    let shown = fs.attr(&full).nbytes;
    fs.sync()?;
    assert_eq!((shown, fs.attr(&full).nbytes), (5 * MIB, 5 * MIB));
    // Over space that is promised, across the edge of a sector.
    let edge = new_file(&fs, "edge")?;
    fs.preallocate(&edge, 4095, 2, KeepSize::No)?;
    assert_eq!(fs.attr(&edge).nbytes, 8192);
    fs.write(&edge, 4095, b"xy")?;
    assert_eq!(fs.attr(&edge).nbytes, 8192);
    fs.sync()?;
    assert_eq!(fs.attr(&edge).nbytes, 8192);
    Ok(())
}
