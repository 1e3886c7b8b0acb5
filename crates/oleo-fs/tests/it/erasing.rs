//! Inodes without names are erased by many threads in parallel: those who clean, those who remove names, each perhaps more than once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, DeviceError, FileDevice, FileOptions, Op};
use oleo_format::{Ino, InodeItem, ItemType, TreeId};
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_mkfs::MkfsOptions;
use oleo_sim::oracle::oracle;
use oleo_tree::{TreeError, Walk};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

/// Files of a round, and how often each is used once more after its last name went: it is queued as often.
const FILES: usize = 400;
const USES: usize = 3;
const ROUNDS: usize = 30;
const CLEANERS: usize = 4;

/// The inode items of a subvolume that say that no name is left.
fn nameless_in(fs: &Fs, subvol: TreeId) -> Result<Vec<Ino>> {
    let tree = fs.engine().root(subvol)?.context("the subvolume's tree")?;
    let mut cursor = fs.engine().blocks().cursor(&tree);
    let mut found = Vec::new();
    while cursor.next()? {
        let (key, item) = cursor.current().context("an item")?;
        if key.item_type == ItemType::INODE_ITEM && InodeItem::parse(item)?.nlink.get() == 0 {
            found.push(Ino(key.objectid));
        }
    }
    Ok(found)
}

/// Those of the top.
fn nameless(fs: &Fs) -> Result<Vec<Ino>> {
    nameless_in(fs, TreeId::FS)
}

/// Goal: a file that is in use and has no name any more is not in snapshots, read-only or not: nothing there could remove it. Method: such a
/// file among many others, so that its items are in other leaves than the item of its orphan; two snapshots of each kind.
#[test]
fn snapshots_have_no_nameless_files() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("snapshots", 512 << 20)?;
    let device = || FileDevice::open(&image, &FileOptions::default().write(true));
    oleo_mkfs::make(&[Arc::new(device()?)], &MkfsOptions::default())?;
    let volume = Volume::open(vec![Arc::new(device()?)], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let fs = Fs::open(Engine::open(Arc::new(volume), &EngineOptions::default())?, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let make = |name: String| fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o600));
    (0..300).try_for_each(|n| make(format!("before{n}")).map(drop))?;
    let held = make("held".into())?;
    fs.write(&held, 0, &[7; 1 << 20])?;
    (0..300).try_for_each(|n| make(format!("after{n}")).map(drop))?;
    fs.unlink(&root, b"held")?;
    for read_only in [true, true, false, false] {
        let name = format!("snapshot{}", fs.subvol_list()?.len());
        let snapshot =
            fs.snapshot(TreeId::FS, &root, name.as_bytes(), SnapshotOptions::default().read_only(read_only))?;
        fs.sync()?;
        ensure!(nameless_in(&fs, snapshot)?.is_empty(), "{name}");
    }
    let mut read = [0; 9];
    ensure!(fs.read(&held, 0, &mut read)? == 9 && read == [7; 9], "the file is still in use");
    drop((held, root));
    fs.sync()?;
    drop(fs);
    oracle.must_be_sound(&[&image], "snapshots of a file in use")
}

/// Goal: an inode that is queued for erasing more than once is erased once, and stays erased, whatever commits come in between.
/// Method: files lose their names while somebody holds them and are used some more times, so that each is in the queue as often;
/// several threads erase them while another commits over and over. Then no inode item is left that has no name, and
/// `btrfs check` finds nothing.
#[test]
fn inodes_are_erased_once() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("erasing", 1 << 30)?;
    let device = FileDevice::open(&image, &FileOptions::default().write(true))?;
    oleo_mkfs::make(&[Arc::new(device)], &MkfsOptions::default())?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, &FileOptions::default().write(true))?);
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let fs = Fs::open(Engine::open(Arc::new(volume), &EngineOptions::default())?, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let subvol = fs.subvol(TreeId::FS)?;
    for round in 0..ROUNDS {
        let mut held = Vec::new();
        for n in 0..FILES {
            let name = format!("file{n}");
            let file = fs.create(&root, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
            fs.write(&file, 0, b"a few bytes")?;
            held.push((file, name));
        }
        fs.sync()?;
        let mut inos = Vec::new();
        for (file, name) in &held {
            fs.unlink(&root, name.as_bytes())?;
            inos.push(file.ino());
        }
        fs.sync()?;
        ensure!(nameless(&fs)?.len() == FILES, "they are held");
        drop(held);
        for ino in &inos {
            for _ in 0..USES {
                drop(fs.inode(&subvol, *ino)?);
            }
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let commits = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::Acquire) {
                    fs.commit()?;
                }
                Ok(())
            });
            let cleaners: Vec<_> = (0..CLEANERS)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        while fs.clean(16)? {}
                        Ok(())
                    })
                })
                .collect();
            let cleaned: Vec<_> = cleaners.into_iter().map(|c| c.join().expect("no panic")).collect();
            over.store(true, Ordering::Release);
            commits.join().expect("no panic")?;
            cleaned.into_iter().collect::<Result<()>>()
        })?;
        fs.sync()?;
        let left = nameless(&fs)?;
        ensure!(left.is_empty(), "round {round}: {left:?} are there without names");
    }
    drop((root, subvol, fs));
    oracle.must_be_sound(&[&image], "after all were erased")
}

/// A device on which reading can be made to fail.
struct Unreadable {
    inner: FileDevice,
    fails: AtomicBool,
}

impl Device for Unreadable {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(DeviceError::Unsupported { name: "unreadable".into(), op: Op::Read });
        }
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        "unreadable".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Small files of the batch; extents of the large file, more than one step erases, and of the one that cannot be read, which fill several
/// blocks of their own.
const SMALL: usize = 40;
const LARGE_EXTENTS: u64 = 700;
const HURT_EXTENTS: u64 = 120;
const SECTOR: u64 = 4096;
/// More than erasing the large file and the subvolume takes.
const STEPS: usize = 100;

fn open_volume(device: &Arc<Unreadable>) -> Result<Fs> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    Ok(Fs::open(Engine::open(Arc::new(volume), &EngineOptions::default())?, &FsOptions::default())?)
}

/// A file of so many extents: every second sector is a hole.
fn scattered(fs: &Fs, dir: &InodeRef, name: &str, extents: u64) -> Result<Ino> {
    let file = fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
    for n in 0..extents {
        fs.write(&file, 2 * n * SECTOR, &vec![n as u8; SECTOR as usize])?;
    }
    Ok(file.ino())
}

/// Goal: what is wrong with one inode of a batch concerns that one only: the others are erased with their batch, a large one step by step, one
/// that is in use again not at all, and a deleted subvolume is taken apart; the error is reported, and what failed is erased as soon as it can be.
/// Method: small files, a large one, one that is opened again when it waits to be erased, and one whose extents cannot be read, since their blocks
/// are in no cache and the device refuses; a subvolume whose blocks are in the cache. The inode items on disk are looked at after each commit, and
/// `btrfs check` at the end.
#[test]
fn one_of_a_batch_fails() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("batch", 1 << 30)?;
    let inner = FileDevice::open(&image, &FileOptions::default().write(true))?;
    let device = Arc::new(Unreadable { inner, fails: AtomicBool::new(false) });
    oleo_mkfs::make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default().nodesize(Some(4096)))?;
    let fs = open_volume(&device)?;
    let dir = fs.create(&fs.root(TreeId::FS)?, b"dir", &NewInode::new(NewKind::Dir, 0o700))?;
    let mut names: Vec<String> = (0..SMALL).map(|n| format!("small{n}")).collect();
    for name in &names {
        let file = fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
        fs.write(&file, 0, b"a few bytes")?;
    }
    scattered(&fs, &dir, "large", LARGE_EXTENTS)?;
    let hurt = scattered(&fs, &dir, "hurt", HURT_EXTENTS)?;
    let used = scattered(&fs, &dir, "used", 2)?;
    let doomed = fs.subvol_create(&dir, b"doomed", &NewSubvol::default())?;
    scattered(&fs, &fs.root(doomed)?, "file", LARGE_EXTENTS)?;
    fs.sync()?;
    drop((dir, fs));

    let fs = open_volume(&device)?;
    let dir = fs.lookup(&fs.root(TreeId::FS)?, b"dir")?.context("the directory")?;
    names.extend(["large", "hurt", "used"].map(String::from));
    let look = |name: &String| fs.lookup(&dir, name.as_bytes())?.with_context(|| name.clone());
    let held: Vec<InodeRef> = names.iter().map(look).collect::<Result<_>>()?;
    for name in &names {
        fs.unlink(&dir, name.as_bytes())?;
    }
    // So all blocks of the large file are in the cache.
    fs.read(&held[SMALL], 0, &mut vec![0; (2 * LARGE_EXTENTS * SECTOR) as usize])?;
    fs.subvol_delete(doomed)?;
    fs.commit()?;
    drop(held);
    let again = fs.inode(&fs.subvol(TreeId::FS)?, used)?;
    for tree in [doomed, TreeId::ROOT, TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE] {
        let root = fs.engine().root(tree)?.context("a tree")?;
        fs.engine().blocks().walk(&root, |_, _| Ok::<_, TreeError>(Walk::Into))?;
    }
    device.fails.store(true, Ordering::SeqCst);
    let mut steps = 0;
    while fs.clean(16).unwrap_or(false) {
        steps += 1;
        ensure!(steps < STEPS, "it does not end");
    }
    ensure!(fs.clean(16).is_err(), "nothing was said of the one that cannot be read");
    ensure!(fs.engine().dead_trees()?.is_empty(), "the subvolume was not taken apart");
    device.fails.store(false, Ordering::SeqCst);
    fs.commit()?;
    ensure!(nameless(&fs)? == [hurt, used], "left: {:?}", nameless(&fs)?);
    while fs.clean(16)? {}
    fs.commit()?;
    ensure!(nameless(&fs)? == [used], "left: {:?}", nameless(&fs)?);
    drop(again);
    fs.sync()?;
    ensure!(nameless(&fs)?.is_empty(), "left: {:?}", nameless(&fs)?);
    drop((dir, fs, device));
    oracle.must_be_sound(&[&image], "after all were erased")
}
