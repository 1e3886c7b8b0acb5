//! Metadata that is promised before there are groups for it: buffered files by the ten thousand. And writes that are accepted on full
//! volumes because the file has space for them.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::{BlockGroupFlags, TreeId};
use oleo_fs::data::{CloneRange, KeepSize};
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, SnapshotOptions};
use oleo_mkfs::{MkfsOptions, Profile, make};
use oleo_sim::disk;
use oleo_sim::oracle::oracle;
use oleo_space::Kind;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// So many small files are promised more metadata than the first group has.
const FILES: usize = 12_000;
const FILE_LEN: usize = 1024;

fn open(devices: &[Arc<dyn Device>]) -> Result<Fs> {
    let volume = Volume::open(devices.to_vec(), &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn metadata_groups(fs: &Fs) -> usize {
    let groups = fs.engine().space().groups();
    groups.iter().filter(|group| group.flags.contains(BlockGroupFlags::METADATA)).count()
}

fn contents(n: usize) -> Vec<u8> {
    format!("{n} ").into_bytes().into_iter().cycle().take(FILE_LEN).collect()
}

fn new_file(fs: &Fs, dir: &InodeRef, name: &str) -> Result<InodeRef, FsError> {
    fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))
}

/// Makes small files that stay buffered, as many as are accepted.
fn buffer(fs: &Fs) -> Result<usize> {
    let top = fs.root(TreeId::FS)?;
    for n in 0..FILES {
        let file = match new_file(fs, &top, &format!("file-{n}")) {
            Err(FsError::NoSpace) => return Ok(n),
            file => file?,
        };
        match fs.write(&file, 0, &contents(n)) {
            Ok(()) => {}
            Err(FsError::NoSpace) => return Ok(n),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(FILES)
}

/// Goal: a burst of promises makes no groups that nothing comes into. Method: so many small files that what they are promised is
/// more than there are groups for; they are removed before they are written out, or written out and take little; both times there is one
/// group of metadata in the end, and all of the device is there for data.
#[test]
fn bursts_make_no_groups() -> Result<()> {
    for removed in [true, false] {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 30));
        make(std::slice::from_ref(&device), &MkfsOptions::default())?;
        let fs = open(std::slice::from_ref(&device))?;
        let first = metadata_groups(&fs);
        ensure!(buffer(&fs)? == FILES, "all of them fit");
        let totals = fs.engine().space().totals(Kind::Metadata);
        ensure!(totals.reserved > totals.free, "{totals:?}: it is no burst");
        if removed {
            let top = fs.root(TreeId::FS)?;
            for n in 0..FILES {
                fs.unlink(&top, format!("file-{n}").as_bytes())?;
            }
        }
        fs.sync()?;
        ensure!(metadata_groups(&fs) == first, "{} groups of metadata, {first} before", metadata_groups(&fs));
        drop(fs);
        let fs = open(std::slice::from_ref(&device))?;
        let top = fs.root(TreeId::FS)?;
        for n in (0..FILES).step_by(97) {
            let file = fs.lookup(&top, format!("file-{n}").as_bytes())?;
            ensure!(file.is_some() != removed, "file {n}");
        }
    }
    Ok(())
}

/// Buffers small files, takes all that is left for data, writes all of it out, and finds it again.
fn keeps_what_was_promised(sizes: &[u64], opts: &MkfsOptions) -> Result<()> {
    let devices: Vec<Arc<dyn Device>> =
        sizes.iter().map(|&len| Arc::new(MemDevice::new(len)) as Arc<dyn Device>).collect();
    make(&devices, opts)?;
    let fs = open(&devices)?;
    let first = metadata_groups(&fs);
    let files = buffer(&fs)?;
    let totals = fs.engine().space().totals(Kind::Metadata);
    ensure!(totals.reserved > totals.free, "{totals:?}: nothing is promised beyond the groups");
    let top = fs.root(TreeId::FS)?;
    let big = new_file(&fs, &top, "big")?;
    let mut at = 0;
    for step in [16 * MIB, MIB, 64 * KIB] {
        while fs.preallocate(&big, at, step, KeepSize::No).is_ok() {
            at += step;
        }
    }
    let taken = at;
    // What is preallocated takes what is written, though all metadata is promised to the small files.
    let pages: Vec<u8> = contents(0).into_iter().cycle().take(64 << 10).collect();
    let written = taken.min(16 * MIB);
    for at in (0..written).step_by(pages.len()) {
        fs.write(&big, at, &pages).with_context(|| format!("writing to what is preallocated, at {at} of {taken}"))?;
    }
    // And metadata until nothing is accepted any more.
    let mut names = 0;
    while names < 200_000 && new_file(&fs, &top, &format!("{names}-{}", "n".repeat(200))).is_ok() {
        names += 1;
    }
    drop(big);
    fs.sync().context("everything was accepted")?;
    ensure!(fs.poisoned_by().is_none());
    eprintln!(
        "{sizes:?}: {files} files, {} MiB of data, {names} names, {} groups of metadata, {first} at first",
        taken / MIB,
        metadata_groups(&fs)
    );
    drop((top, fs));
    let fs = open(&devices)?;
    let top = fs.root(TreeId::FS)?;
    let big = fs.lookup(&top, b"big")?.context("the large file is gone")?;
    let mut data = vec![0; pages.len()];
    for at in (0..written).step_by(pages.len()) {
        ensure!(fs.read(&big, at, &mut data)? == pages.len() && data == pages, "{at} is another");
    }
    drop(big);
    let mut data = vec![0; FILE_LEN + 1];
    for n in 0..files {
        let file = fs.lookup(&top, format!("file-{n}").as_bytes())?.with_context(|| format!("file {n} is gone"))?;
        ensure!(fs.read(&file, 0, &mut data)? == FILE_LEN && data[..FILE_LEN] == contents(n), "file {n} is another");
    }
    drop((top, fs));
    if let Some(oracle) = oracle() {
        let scratch = oracle.scratch()?;
        let mut images = Vec::new();
        for (n, device) in devices.iter().enumerate() {
            let image = scratch.image(&format!("promises-{n}"), device.len())?;
            disk::store(&**device, &image)?;
            images.push(image);
        }
        let paths: Vec<_> = images.iter().map(|path| path.as_path()).collect();
        oracle.must_be_sound(&paths, "filled beside promises")?;
    }
    Ok(())
}

/// Goal: what is promised to metadata is never given to data. Method: small files are buffered until they are promised more than there
/// are groups for; then data takes what it gets, in pieces of falling length, some of it is written over, and names take what is
/// left; all is synced and looked at.
#[test]
fn data_beside_promises_on_one_device() -> Result<()> {
    keeps_what_was_promised(&[512 * MIB], &MkfsOptions::default())
}

/// The same with one copy of metadata.
#[test]
fn data_beside_promises_once() -> Result<()> {
    keeps_what_was_promised(&[512 * MIB], &MkfsOptions::default().metadata(Some(Profile::Single)))
}

/// The same with copies on devices of uneven length, where not all of the larger one can become metadata.
#[test]
fn data_beside_promises_on_uneven_devices() -> Result<()> {
    let opts = MkfsOptions::default().metadata(Some(Profile::Raid1)).data(Some(Profile::Single));
    keeps_what_was_promised(&[600 * MIB, 260 * MIB, 150 * MIB], &opts)
}

/// A volume that `file` and another file, both preallocated, have filled with data; `file` goes from `at` on.
fn full_but_for(fs: &Fs, file: &InodeRef, at: u64, len: u64) -> Result<()> {
    fs.preallocate(file, at, len, KeepSize::Yes).context("preallocating")?;
    let top = fs.root(TreeId::FS)?;
    let big = new_file(fs, &top, "big")?;
    let mut at = 0;
    for step in [16 * MIB, MIB, 64 * KIB, 4 * KIB] {
        while fs.preallocate(&big, at, step, KeepSize::No).is_ok() {
            at += step;
        }
    }
    fs.sync()?;
    Ok(())
}

/// Goal: what is accepted for a preallocated place is written, and so are the zeros that it takes behind the old end, which have no place.
/// Method: a file that ends within a sector, more of it preallocated some way behind, and a full volume; a write there is accepted and synced,
/// or refused.
#[test]
fn the_old_end_needs_a_place_too() -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(192 * MIB));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let fs = open(std::slice::from_ref(&device))?;
    let file = new_file(&fs, &fs.root(TreeId::FS)?, "file")?;
    fs.write(&file, 0, &[7; 5000])?;
    full_but_for(&fs, &file, 64 * KIB, 64 * KIB)?;
    match fs.write(&file, 64 * KIB, &[8; 4096]) {
        Ok(()) | Err(FsError::NoSpace) => {}
        Err(e) => return Err(e.into()),
    }
    fs.sync().context("what was accepted")?;
    Ok(())
}

/// What happens to a file while it is written to.
type Disturb = fn(&Fs, &InodeRef, usize) -> Result<()>;

/// Goal: a write that is accepted for a preallocated place on a full volume is written, whatever is done to the file meanwhile.
/// Method: in each of many rounds two threads write to a file's preallocated parts until they are refused or through, while it is disturbed;
/// then a sync, which must not fail, and what was accepted is compared where it was not cut off.
fn accepted_beside(disturb: Disturb, cuts: bool) -> Result<()> {
    const PLACES: u64 = 256;
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(192 * MIB));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let fs = open(std::slice::from_ref(&device))?;
    let top = fs.root(TreeId::FS)?;
    let first = new_file(&fs, &top, "file")?;
    full_but_for(&fs, &first, 0, PLACES * 8 * KIB)?;
    drop(first);
    let mut accepted = 0;
    for round in 0..40 {
        fs.unlink(&top, b"file")?;
        fs.sync()?;
        let file = new_file(&fs, &top, "file")?;
        fs.preallocate(&file, 0, PLACES * 8 * KIB, KeepSize::No).with_context(|| format!("round {round}"))?;
        fs.sync()?;
        let write = |half: u64| -> Result<Vec<u64>> {
            let mut done = Vec::new();
            for n in (0..PLACES).rev() {
                let at = (2 * n + half) * 4 * KIB;
                match fs.write(&file, at, &[(n % 251) as u8 + 1; 4096]) {
                    Ok(()) => done.push(at),
                    Err(FsError::NoSpace) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(done)
        };
        let done = std::thread::scope(|scope| -> Result<Vec<u64>> {
            let threads: Vec<_> = (0..2).map(|half| scope.spawn(move || write(half))).collect();
            std::thread::sleep(std::time::Duration::from_micros(300 * (round % 20)));
            let disturbed = disturb(&fs, &file, round as usize);
            let mut all = Vec::new();
            for thread in threads {
                all.extend(thread.join().expect("no panic")?);
            }
            disturbed.map(|()| all)
        })?;
        fs.sync().with_context(|| format!("{} writes were accepted, round {round}", done.len()))?;
        accepted += done.len();
        let mut data = [0; 4096];
        for at in done.into_iter().filter(|_| !cuts) {
            let want = [((at / (8 * KIB)) % 251) as u8 + 1; 4096];
            ensure!(fs.read(&file, at, &mut data)? == data.len() && data == want, "{at} has changed, round {round}");
        }
        drop(file);
        if fs.lookup(&top, b"other")?.is_some() {
            fs.unlink(&top, b"other")?;
        }
        while fs.clean(64)? {}
        fs.sync()?;
    }
    ensure!(accepted > 1000, "only {accepted} writes were accepted");
    Ok(())
}

#[test]
fn accepted_beside_snapshots() -> Result<()> {
    let snapshot: Disturb = |fs, _, round| {
        let top = fs.root(TreeId::FS)?;
        let name = format!("snapshot-{round}");
        let id = fs.snapshot(TreeId::FS, &top, name.as_bytes(), SnapshotOptions::default()).context("a snapshot")?;
        std::thread::sleep(std::time::Duration::from_millis(1));
        fs.subvol_delete(id).context("its deletion")
    };
    accepted_beside(snapshot, false)
}

#[test]
fn accepted_beside_clones() -> Result<()> {
    let clone: Disturb = |fs, file, _| {
        let other = new_file(fs, &fs.root(TreeId::FS)?, "other")?;
        fs.clone_range(file, &other, &CloneRange { from: 0, len: 0, to: 0 }).context("a clone")?;
        Ok(())
    };
    accepted_beside(clone, false)
}

#[test]
fn accepted_beside_cuts() -> Result<()> {
    let cut: Disturb = |fs, file, round| match round % 2 {
        0 => Ok(fs.truncate(file, 64 * KIB)?),
        _ => Ok(fs.punch_hole(file, 0, MIB)?),
    };
    accepted_beside(cut, true)
}
