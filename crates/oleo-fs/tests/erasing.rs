//! Inodes without names are erased by many threads in parallel: those who clean, those who remove names, each perhaps more than once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{Ino, InodeItem, ItemType, TreeId};
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_mkfs::MkfsOptions;
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

/// Files of a round, and how often each is used once more after its last name went: it is queued as often.
const FILES: usize = 400;
const USES: usize = 3;
const ROUNDS: usize = 30;
const CLEANERS: usize = 4;

/// The inode items of the top that say that no name is left.
fn nameless(fs: &Fs) -> Result<Vec<Ino>> {
    let tree = fs.engine().root(TreeId::FS)?.context("the top's tree")?;
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
