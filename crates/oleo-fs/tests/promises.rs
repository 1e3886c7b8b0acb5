//! Metadata that is promised before there are groups for it: buffered files by the ten thousand.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::{BlockGroupFlags, TreeId};
use oleo_fs::data::KeepSize;
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind};
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
/// are groups for; then data takes what it gets, in pieces of falling length, and names what is left; all is synced and looked at.
#[test]
fn data_beside_promises_on_one_device() -> Result<()> {
    keeps_what_was_promised(&[512 * MIB], &MkfsOptions::default())
}

/// The same with one copy of metadata.
#[test]
fn data_beside_promises_once() -> Result<()> {
    keeps_what_was_promised(&[512 * MIB], &MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() })
}

/// The same with copies on devices of uneven length, where not all of the larger one can become metadata.
#[test]
fn data_beside_promises_on_uneven_devices() -> Result<()> {
    let opts = MkfsOptions { metadata: Some(Profile::Raid1), data: Some(Profile::Single), ..MkfsOptions::default() };
    keeps_what_was_promised(&[600 * MIB, 260 * MIB, 150 * MIB], &opts)
}
