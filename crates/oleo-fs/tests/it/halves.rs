//! Half entries, which damage leaves: they can be removed and renamed, and their neighbours stay.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_format::{FileType, ItemType, Key, TreeId, dir_hash};
use oleo_fs::{FileKind, Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, RenameMode};
use oleo_mkfs::MkfsOptions;
use oleo_sim::faulty::{Faulty, Trouble};
use oleo_sim::oracle::oracle;
use oleo_tree::Change;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const NAME: &[u8] = b"halved";
const OTHER_NAME: &[u8] = b"halve?";
const OTHERS: [&[u8]; 2] = [b"before", b"after"];

/// The missing part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Missing {
    DirItem,
    DirIndex,
    /// The DIR_INDEX, and the inode has that of its neighbour.
    OthersIndex,
    /// Nothing, but the inode has the neighbour's.
    WrongIndex,
    InodeRef,
    Inode,
    /// Nothing, but the DIR_INDEX has [`OTHER_NAME`].
    IndexSpelling,
    /// Nothing, but the inode has it.
    RefSpelling,
    /// Both have it.
    Spelling,
}

/// All that have one name.
const MISSING: [Missing; 8] = [
    Missing::DirItem,
    Missing::DirIndex,
    Missing::OthersIndex,
    Missing::WrongIndex,
    Missing::InodeRef,
    Missing::Inode,
    Missing::IndexSpelling,
    Missing::RefSpelling,
];

/// The operation on the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Remove,
    /// To a name that is free.
    Rename,
    /// Another file takes the name over.
    Replace,
}

fn engine(device: Arc<dyn Device>) -> Result<Engine> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    Ok(Engine::open(Arc::new(volume), &EngineOptions::default())?)
}

fn device(image: &Path) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?))
}

fn open(image: &Path) -> Result<Fs> {
    Ok(Fs::open(engine(device(image)?)?, &FsOptions::default())?)
}

fn dir(fs: &Fs) -> Result<InodeRef> {
    fs.lookup(&fs.root(TreeId::FS)?, b"dir")?.context("dir")
}

/// The names that a directory lists, in order of the alphabet.
fn listed(fs: &Fs, dir: &InodeRef) -> Result<Vec<Vec<u8>>> {
    let mut names: Vec<_> = fs.readdir(dir, 0, usize::MAX)?.into_iter().map(|entry| entry.name).collect();
    names.sort();
    Ok(names)
}

/// A volume with three entries in `dir`, one of them halved.
fn halved(image: &Path, kind: NewKind<'_>, missing: Missing) -> Result<()> {
    oleo_mkfs::make(&[device(image)?], &MkfsOptions::default())?;
    let fs = open(image)?;
    let dir = fs.create(&fs.root(TreeId::FS)?, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    for (name, kind) in [(OTHERS[0], NewKind::File), (NAME, kind), (OTHERS[1], NewKind::File)] {
        fs.create(&dir, name, &NewInode::new(kind, 0o755))?;
    }
    let entries = fs.readdir(&dir, 0, usize::MAX)?;
    let [_, halved, after] = entries.as_slice() else { anyhow::bail!("{entries:?}") };
    let oleo_fs::Target::Inode(ino) = halved.target else { anyhow::bail!("{halved:?}") };
    let (dir_ino, index, after) = (dir.ino().0, halved.index, after.index);
    fs.sync()?;
    drop((dir, fs));
    let of_index = Key::new(dir_ino, ItemType::DIR_INDEX, index);
    let own = Key::new(ino.0, ItemType::INODE_REF, dir_ino);
    let changes = match missing {
        Missing::DirItem => {
            vec![Change::delete(Key::new(dir_ino, ItemType::DIR_ITEM, u64::from(dir_hash(NAME))))]
        }
        Missing::DirIndex => vec![Change::delete(of_index)],
        Missing::OthersIndex | Missing::WrongIndex => {
            let head = oleo_format::InodeRef { index: after.into(), name_len: (NAME.len() as u16).into() };
            let bytes = [zerocopy::IntoBytes::as_bytes(&head), NAME].concat();
            let put = Change { key: own, op: oleo_tree::Op::Put(bytes.into()) };
            if missing == Missing::WrongIndex { vec![put] } else { vec![Change::delete(of_index), put] }
        }
        Missing::IndexSpelling | Missing::RefSpelling | Missing::Spelling => {
            let head = oleo_format::InodeRef { index: index.into(), name_len: (NAME.len() as u16).into() };
            let bytes = [zerocopy::IntoBytes::as_bytes(&head), OTHER_NAME].concat();
            let location = Key::new(ino.0, ItemType::INODE_ITEM, 0);
            let file_type = if kind.kind() == FileKind::Dir { FileType::Dir } else { FileType::RegFile };
            let entry = oleo_format::DirItem {
                location: location.into(),
                transid: 1.into(),
                data_len: 0.into(),
                name_len: (NAME.len() as u16).into(),
                r#type: file_type.to_disk(),
            };
            let entry = [zerocopy::IntoBytes::as_bytes(&entry), OTHER_NAME].concat();
            let put = |key, bytes: Vec<u8>| Change { key, op: oleo_tree::Op::Put(bytes.into()) };
            match missing {
                Missing::IndexSpelling => vec![put(of_index, entry)],
                Missing::RefSpelling => vec![put(own, bytes)],
                _ => vec![put(of_index, entry), put(own, bytes)],
            }
        }
        Missing::InodeRef => vec![Change::delete(own)],
        Missing::Inode => vec![Change::delete(Key::new(ino.0, ItemType::INODE_ITEM, 0)), Change::delete(own)],
    };
    let mut changes = changes;
    changes.sort_by_key(|change| change.key);
    let engine = engine(device(image)?)?;
    engine.stage(|s| s.put(TreeId::FS, &changes))?;
    engine.commit()?;
    Ok(())
}

/// Goal: whatever part of an entry is missing, it can be removed and, if it is found at all, renamed and replaced; its neighbours stay, a power cut
/// after fsync undoes nothing, and `btrfs check` finds nothing afterwards.
/// Method: for each part, a file and a directory without it; the deed, fsync, a copy of the image as it is; both are listed and checked.
#[test]
fn entries_with_a_part_missing() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    for (n, missing) in MISSING.into_iter().enumerate() {
        for (kind, deed) in [
            (NewKind::File, Deed::Remove),
            (NewKind::Dir, Deed::Remove),
            (NewKind::File, Deed::Rename),
            (NewKind::Dir, Deed::Rename),
            (NewKind::File, Deed::Replace),
        ] {
            let is_found = !matches!(missing, Missing::DirItem | Missing::Inode);
            if deed != Deed::Remove && !is_found {
                continue;
            }
            let what = format!("{missing:?}, {:?}, {deed:?}", kind.kind());
            let image = scratch.image(&format!("{n}-{:?}-{deed:?}", kind.kind()), 128 << 20)?;
            halved(&image, kind, missing)?;
            let fs = open(&image)?;
            let dir = dir(&fs)?;
            let mut want: Vec<Vec<u8>> = OTHERS.map(<[u8]>::to_vec).to_vec();
            match deed {
                Deed::Remove => fs.remove_entry(&dir, NAME, kind.kind() == FileKind::Dir).context(what.clone())?,
                Deed::Rename => {
                    fs.rename(&dir, NAME, &dir, b"renamed", RenameMode::Replace).context(what.clone())?;
                    want.push(b"renamed".to_vec());
                }
                Deed::Replace => {
                    fs.rename(&dir, OTHERS[0], &dir, NAME, RenameMode::Replace).context(what.clone())?;
                    want[0] = NAME.to_vec();
                }
            }
            want.sort();
            fs.fsync(&dir)?;
            let cut = scratch.path().join("cut");
            std::fs::copy(&image, &cut)?;
            ensure!(listed(&fs, &dir)? == want, "{what}");
            ensure!(matches!(fs.remove_entry(&dir, b"never", false), Err(FsError::NotFound)), "{what}");
            fs.sync()?;
            drop((dir, fs));
            oracle.must_be_sound(&[&image], &what)?;
            let fs = open(&cut)?;
            let dir = self::dir(&fs)?;
            ensure!(listed(&fs, &dir)? == want, "{what}, after a power cut");
            for name in &want {
                let inode = fs.lookup(&dir, name)?.with_context(|| format!("{what}: {}", name.escape_ascii()))?;
                let is_dir = fs.attr(&inode).kind == FileKind::Dir;
                drop(inode);
                if is_dir { fs.rmdir(&dir, name)? } else { fs.unlink(&dir, name)? }
            }
            drop(dir);
            fs.rmdir(&fs.root(TreeId::FS)?, b"dir")?;
            fs.sync()?;
            drop(fs);
            oracle.must_be_sound(&[&cut], &format!("{what}, after a power cut"))?;
        }
    }
    Ok(())
}

/// Goal: a name that another one took over from a lost entry is removed, and not the other's.
/// Method: the DIR_ITEM of a name is missing; the name is made anew, so that it is listed twice; it is removed twice.
#[test]
fn a_name_that_is_listed_twice() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("twice", 128 << 20)?;
    halved(&image, NewKind::File, Missing::DirItem)?;
    let fs = open(&image)?;
    let dir = dir(&fs)?;
    let new = fs.create(&dir, NAME, &NewInode::new(NewKind::File, 0o600))?.ino();
    ensure!(listed(&fs, &dir)?.len() == 4);
    fs.unlink(&dir, NAME)?;
    ensure!(listed(&fs, &dir)?.len() == 3);
    let left = fs.listed(&dir, NAME)?.context("the lost one")?;
    ensure!(left.target != oleo_fs::Target::Inode(new), "{left:?}");
    fs.remove_entry(&dir, NAME, false)?;
    ensure!(listed(&fs, &dir)? == [OTHERS[1], OTHERS[0]]);
    fs.sync()?;
    drop((dir, fs));
    oracle.must_be_sound(&[&image], "removed twice")
}

/// Goal: an entry that is found by one name and listed by another can be removed by both, in either order. Method: the items disagree on the name.
#[test]
fn a_name_of_two_spellings() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("spellings", 128 << 20)?;
    for names in [[NAME, OTHER_NAME], [OTHER_NAME, NAME]] {
        for kind in [NewKind::File, NewKind::Dir] {
            halved(&image, kind, Missing::Spelling)?;
            let fs = open(&image)?;
            let dir = dir(&fs)?;
            for name in names {
                let is_dir = kind.kind() == FileKind::Dir;
                fs.remove_entry(&dir, name, is_dir).with_context(|| format!("{} of {names:?}", name.escape_ascii()))?;
            }
            ensure!(listed(&fs, &dir)? == [OTHERS[1], OTHERS[0]]);
            fs.sync()?;
            drop((dir, fs));
            oracle.must_be_sound(&[&image], &format!("{names:?}, {:?}", kind.kind()))?;
            // The list alone is wrong: the first name removes all.
            halved(&image, kind, Missing::IndexSpelling)?;
            let fs = open(&image)?;
            let dir = self::dir(&fs)?;
            fs.remove_entry(&dir, names[0], kind.kind() == FileKind::Dir)?;
            ensure!(listed(&fs, &dir)? == [OTHERS[1], OTHERS[0]]);
            ensure!(fs.unlisted(&dir)?.is_some_and(|entry| OTHERS.contains(&&*entry.name)));
            fs.sync()?;
            drop((dir, fs));
            oracle.must_be_sound(&[&image], &format!("{names:?}, {:?}, listed wrongly", kind.kind()))?;
        }
    }
    Ok(())
}

/// Goal: a file or directory whose inode does not know its name loses nothing by fsync and a power cut: a replay counts the names in a log.
/// Method: a file is written and synced, in the directory one is made and synced; a copy of the image as it is.
#[test]
fn an_inode_without_a_name_is_synced() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let (image, cut) = (scratch.image("synced", 128 << 20)?, scratch.path().join("cut"));
    for kind in [NewKind::File, NewKind::Dir] {
        halved(&image, kind, Missing::InodeRef)?;
        let fs = open(&image)?;
        let found = fs.lookup(&dir(&fs)?, NAME)?.context("the entry")?;
        match kind.kind() {
            FileKind::Dir => {
                let inside = fs.create(&found, b"inside", &NewInode::new(NewKind::File, 0o600))?;
                fs.fsync(&inside)?;
            }
            _ => fs.write(&found, 0, b"acknowledged")?,
        }
        fs.fsync(&found)?;
        std::fs::copy(&image, &cut)?;
        drop((found, fs));
        let fs = open(&cut)?;
        let found = fs.lookup(&dir(&fs)?, NAME)?.with_context(|| format!("{:?}", kind.kind()))?;
        match kind.kind() {
            FileKind::Dir => ensure!(fs.lookup(&found, b"inside")?.is_some()),
            _ => {
                let mut read = [0; 12];
                ensure!(fs.read(&found, 0, &mut read)? == 12 && read == *b"acknowledged");
            }
        }
    }
    Ok(())
}

/// Goal: removing an entry whose inode does not know the name leaves the inode to the name that it knows, as does removing one of two names whose
/// inode counts one; renaming the entry first makes it known.
/// Method: an entry that leads to a neighbour's inode; a file with two names, in one directory or two, and a count of one.
#[test]
fn an_inode_keeps_its_other_name() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("other", 128 << 20)?;
    oleo_mkfs::make(&[device(&image)?], &MkfsOptions::default())?;
    let fs = open(&image)?;
    let root = fs.root(TreeId::FS)?;
    let dir = fs.create(&root, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    let file = fs.create(&dir, OTHERS[0], &NewInode::new(NewKind::File, 0o600))?;
    fs.link(&file, &dir, NAME)?;
    let apart = fs.create(&dir, OTHERS[1], &NewInode::new(NewKind::File, 0o600))?;
    fs.link(&apart, &root, NAME)?;
    let (inos, dir_ino) = ([file.ino().0, apart.ino().0], dir.ino().0);
    let index = fs.listed(&dir, OTHERS[0])?.context("listed")?.index;
    fs.sync()?;
    drop((file, apart, dir, root, fs));
    for (forget, rename) in [(false, false), (true, false), (true, true)] {
        let copy = scratch.path().join("copy");
        std::fs::copy(&image, &copy)?;
        let engine = engine(device(&copy)?)?;
        let tree = engine.root(TreeId::FS)?.context("the top's tree")?;
        let put = |key, bytes: Vec<u8>| Change { key, op: oleo_tree::Op::Put(bytes.into()) };
        let mut changes = Vec::new();
        for ino in inos {
            let key = Key::inode(oleo_format::Ino(ino));
            let item = engine.blocks().get(&tree, &key)?.context("an inode")?;
            let mut inode = *oleo_format::InodeItem::parse(&item)?;
            inode.nlink = 1.into();
            changes.push(put(key, zerocopy::IntoBytes::as_bytes(&inode).to_vec()));
        }
        if forget {
            let head = oleo_format::InodeRef { index: index.into(), name_len: (OTHERS[0].len() as u16).into() };
            let bytes = [zerocopy::IntoBytes::as_bytes(&head), OTHERS[0]].concat();
            changes.push(put(Key::new(inos[0], ItemType::INODE_REF, dir_ino), bytes));
            changes.sort_by_key(|change| change.key);
        }
        engine.stage(|s| s.put(TreeId::FS, &changes))?;
        engine.commit()?;
        drop(engine);
        let fs = open(&copy)?;
        let (dir, root) = (self::dir(&fs)?, fs.root(TreeId::FS)?);
        if rename {
            fs.rename(&dir, NAME, &root, b"moved", RenameMode::Replace)?;
            fs.unlink(&dir, OTHERS[0])?;
            ensure!(fs.lookup(&root, b"moved")?.is_some_and(|file| file.ino().0 == inos[0]));
        } else {
            fs.unlink(&dir, NAME)?;
            ensure!(fs.lookup(&dir, OTHERS[0])?.is_some_and(|file| file.ino().0 == inos[0]), "{forget}");
        }
        fs.unlink(&dir, OTHERS[1])?;
        ensure!(fs.lookup(&root, NAME)?.is_some_and(|file| file.ino().0 == inos[1]), "{forget}");
        fs.sync()?;
        drop((dir, root, fs));
        oracle.must_be_sound(&[&copy], &format!("one name left, {forget}, {rename}"))?;
    }
    Ok(())
}

/// Goal: a directory in which only half an entry is left is not removed with it: its file would have no name any more.
#[test]
fn a_directory_with_half_an_entry_is_not_empty() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("half", 128 << 20)?;
    for missing in [Missing::DirItem, Missing::DirIndex] {
        halved(&image, NewKind::File, missing)?;
        let fs = open(&image)?;
        let (root, dir) = (fs.root(TreeId::FS)?, dir(&fs)?);
        OTHERS.iter().try_for_each(|name| fs.unlink(&dir, name))?;
        ensure!(matches!(fs.rmdir(&root, b"dir"), Err(FsError::NotEmpty)), "{missing:?}");
        fs.remove_entry(&dir, NAME, false)?;
        drop(dir);
        fs.rmdir(&root, b"dir")?;
        fs.sync()?;
        drop((root, fs));
        oracle.must_be_sound(&[&image], &format!("{missing:?}"))?;
    }
    Ok(())
}

/// Goal: a name whose items cannot all be read is not removed, and everything else continues.
/// Method: a directory of many blocks; a name is looked up, so that a part of it is in memory; then the device fails to read.
#[test]
fn unreadable_items_refuse_and_poison_nothing() -> Result<()> {
    let memory: Arc<dyn Device> = Arc::new(MemDevice::new(512 << 20));
    oleo_mkfs::make(std::slice::from_ref(&memory), &MkfsOptions::default().nodesize(Some(4096)))?;
    let name = |n: usize| format!("a name of some length, so that there are many blocks: {n:05}").into_bytes();
    let fs = Fs::open(engine(memory.clone())?, &FsOptions::default())?;
    let dir = fs.create(&fs.root(TreeId::FS)?, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    for n in 0..3000 {
        fs.create(&dir, &name(n), &NewInode::new(NewKind::File, 0o600))?;
    }
    fs.sync()?;
    drop((dir, fs));
    let faulty = Arc::new(Faulty::new(memory));
    let fs = Fs::open(engine(faulty.clone())?, &FsOptions::default())?;
    let dir = self::dir(&fs)?;
    let mut refused = 0;
    let root = fs.root(TreeId::FS)?;
    let file = fs.lookup(&dir, &name(3))?.context("a file")?;
    faulty.fail(Trouble::Reads);
    ensure!(fs.link(&file, &dir, b"one name more").is_err(), "the directory's last entry was in memory");
    faulty.fail(Trouble::None);
    fs.sync().context("after a link")?;
    fs.link(&file, &root, b"at the top")?;
    for n in [1500, 700, 2200] {
        fs.lookup(&dir, &name(n))?.context("a file")?;
        faulty.fail(Trouble::Reads);
        for done in
            [fs.unlink(&dir, &name(n)), fs.rename(&dir, &name(n), &fs.root(TreeId::FS)?, b"moved", RenameMode::Replace)]
        {
            refused += usize::from(done.is_err());
        }
        faulty.fail(Trouble::None);
        fs.sync().context("the file system is not poisoned")?;
    }
    ensure!(refused > 0, "all was in memory");
    ensure!(fs.create(&dir, b"one more", &NewInode::new(NewKind::File, 0o600)).is_ok());
    fs.sync()?;
    Ok(())
}
