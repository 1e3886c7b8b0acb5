//! Items that grow with each change until a leaf has no room for them: the change is refused, or recorded elsewhere, and the file
//! system stays writable and sound. Such items are those of names with one hash, of attributes with one hash, of an inode's names
//! in one directory, and of subvolumes with one UUID.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::{Ino, TreeId, dir_hash, extref_hash};
use oleo_fs::{
    Fs, FsError, FsOptions, NewInode, NewKind, NewSubvol, Received, RenameMode, SnapshotOptions, UuidKind, XattrMode,
};
use oleo_mkfs::{FeatureSet, MkfsOptions, make};
use oleo_sim::disk;
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};
use uuid::Uuid;

/// The smallest tree blocks that there are.
const NODESIZE: u32 = 4096;
/// Subvolumes that the item of one UUID has room for.
const UUID_ROOM: usize = 496;

fn open(device: &Arc<MemDevice>) -> Result<Fs> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn fresh(features: FeatureSet) -> Result<(Arc<MemDevice>, Fs)> {
    let device = Arc::new(MemDevice::new(512 << 20));
    let shared: Arc<dyn Device> = device.clone();
    make(&[shared], &MkfsOptions::default().nodesize(Some(NODESIZE)).features(features))?;
    let fs = open(&device)?;
    Ok((device, fs))
}

/// Commits, and has the kernel and `btrfs check` look at the result.
fn sound(fs: Fs, device: &MemDevice, what: &str) -> Result<()> {
    fs.sync().with_context(|| format!("{what}: the commit"))?;
    drop(fs);
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let path = scratch.image("overflow", device.len())?;
    disk::store(device, &path)?;
    oracle.must_be_sound(&[&path], what)
}

/// Bytes of the usual name: a leaf has space for fewer than 20.
const LEN: usize = 200;

/// `count` names of `len` bytes that begin with `prefix` and have one hash. A CRC is linear: each bit of the last four bytes flips
/// a fixed set of bits of the hash, so these bytes are the solution of 32 equations.
fn one_hash(prefix: &str, len: usize, count: usize, hash: impl Fn(&[u8]) -> u32) -> Vec<Vec<u8>> {
    let name = |n: u64, last: u32| {
        let mut name = format!("{prefix}{n}-").into_bytes();
        name.resize(len - 4, b'n');
        name.extend(last.to_le_bytes());
        name
    };
    let zero = hash(&name(0, 0));
    // By the highest bit of the change of the hash: the change, and the bits that make it.
    let mut solved: [Option<(u32, u32)>; 32] = [None; 32];
    let reduce = |solved: &[Option<(u32, u32)>; 32], mut change: u32, mut bits: u32| {
        while change != 0
            && let Some((other, its)) = solved[31 - change.leading_zeros() as usize]
        {
            (change, bits) = (change ^ other, bits ^ its);
        }
        (change, bits)
    };
    for bit in 0..32 {
        let (change, bits) = reduce(&solved, hash(&name(0, 1 << bit)) ^ zero, 1 << bit);
        solved[31 - change.leading_zeros() as usize] = Some((change, bits));
    }
    let names = (1..).map(|n| {
        let (left, bits) = reduce(&solved, hash(&name(n, 0)) ^ 0x1234_5678, 0);
        assert_eq!(left, 0);
        name(n, bits)
    });
    let names: Vec<_> = names.filter(|name| name.iter().all(|&b| b != 0 && b != b'/')).take(count).collect();
    assert!(names.iter().all(|name| hash(name) == 0x1234_5678));
    names
}

fn overflows<T: std::fmt::Debug>(result: Result<T, FsError>, what: &str) -> Result<()> {
    match result {
        Err(FsError::Overflow(_)) => Ok(()),
        other => bail!("{what}: {other:?}"),
    }
}

/// Goal: a subvolume that was received may have any number of snapshots, which all have its UUID; those beyond the room of the
/// UUID item are found by their root items, and deleting works in any order. Method: more snapshots, and more subvolumes that are
/// marked as received from the same one, than the item has room for; then some of each kind are deleted.
#[test]
fn subvolumes_of_one_uuid() -> Result<()> {
    let (device, fs) = fresh(FeatureSet::default())?;
    let top = fs.root(TreeId::FS)?;
    let received = Received { uuid: Uuid::from_bytes([7; 16]), stransid: 9, ..Received::default() };
    let mut ids = vec![fs.subvol_create(&top, b"source", &NewSubvol::default())?];
    fs.set_received(ids[0], &received)?;
    for n in 0..UUID_ROOM + 20 {
        let options = SnapshotOptions::default().read_only(true);
        ids.push(fs.snapshot(ids[0], &top, format!("s{n}").as_bytes(), options).with_context(|| format!("{n}"))?);
        if n % 100 == 0 || n >= UUID_ROOM {
            fs.sync().with_context(|| format!("after snapshot {n}"))?;
        }
    }
    for n in 0..3 {
        let id = fs.subvol_create(&top, format!("r{n}").as_bytes(), &NewSubvol::default())?;
        fs.set_received(id, &received)?;
        fs.sync()?;
        ids.push(id);
    }
    ensure!(fs.find_uuid(received.uuid, UuidKind::Received)? == ids[..UUID_ROOM], "the item is full");
    ensure!(fs.find_uuid_in_roots(received.uuid, UuidKind::Received)? == ids);
    // Of those that the item has, and of the others.
    for at in [ids.len() - 1, UUID_ROOM + 5, UUID_ROOM, UUID_ROOM - 1, 100, 1] {
        fs.subvol_delete(ids.remove(at))?;
        fs.sync()?;
    }
    ensure!(fs.find_uuid(received.uuid, UuidKind::Received)? == ids[..UUID_ROOM - 3]);
    ensure!(fs.find_uuid_in_roots(received.uuid, UuidKind::Received)? == ids);
    let own = fs.subvol_info(ids[5])?.uuid;
    ensure!(fs.find_uuid_in_roots(own, UuidKind::Own)? == [ids[5]] && fs.find_uuid(own, UuidKind::Own)? == [ids[5]]);
    ensure!(fs.find_uuid_in_roots(Uuid::nil(), UuidKind::Received)?.is_empty());
    drop(top);
    sound(fs, &device, "subvolumes of one UUID")
}

/// Goal: if the item of a hash has no room for an entry, every operation that would add it is refused, and nothing has changed; with
/// room it is made. Method: a directory full of names of one hash; each operation; a commit after each.
#[test]
fn names_of_one_hash() -> Result<()> {
    let (device, fs) = fresh(FeatureSet::default())?;
    let top = fs.root(TreeId::FS)?;
    let names = one_hash("", LEN, 40, dir_hash);
    let new = NewInode::new(NewKind::File, 0o644);
    let full = names.iter().position(|name| fs.create(&top, name, &new).is_err()).context("it is never full")?;
    ensure!((15..20).contains(&full), "{full}");
    let more = &names[full];
    let other = fs.create(&top, b"other", &new)?;
    let subvol = fs.subvol_create(&top, b"subvol", &NewSubvol::default())?;
    let dir = fs.create(&top, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    fs.sync()?;
    let whiteout = RenameMode::Whiteout { uid: 0, gid: 0, no_replace: false };
    for (what, result) in [
        ("create", fs.create(&top, more, &new).map(drop)),
        ("mkdir", fs.create(&top, more, &NewInode::new(NewKind::Dir, 0o755)).map(drop)),
        ("symlink", fs.create(&top, more, &NewInode::new(NewKind::Symlink(b"x"), 0o777)).map(drop)),
        ("mknod", fs.create(&top, more, &NewInode::new(NewKind::Fifo, 0o644)).map(drop)),
        ("link", fs.link(&other, &top, more)),
        ("rename", fs.rename(&top, b"other", &top, more, RenameMode::NoReplace)),
        ("rename a directory", fs.rename(&top, b"dir", &top, more, RenameMode::NoReplace)),
        ("rename a subvolume", fs.rename(&top, b"subvol", &top, more, RenameMode::NoReplace)),
        ("rename, whiteout", fs.rename(&top, b"other", &top, more, whiteout)),
        ("subvolume", fs.subvol_create(&top, more, &NewSubvol::default()).map(drop)),
        ("snapshot", fs.snapshot(subvol, &top, more, SnapshotOptions::default()).map(drop)),
    ] {
        overflows(result, what)?;
        ensure!(fs.lookup(&top, more)?.is_none(), "{what}: it is there");
        fs.sync().with_context(|| format!("after {what}"))?;
    }
    ensure!(fs.lookup(&top, b"other")?.is_some() && fs.lookup(&top, b"dir")?.is_some());
    // One of them under another of their names needs no more room, nor does an exchange.
    fs.rename(&top, &names[0], &top, more, RenameMode::NoReplace)?;
    fs.rename(&top, b"other", &top, &names[1], RenameMode::Exchange)?;
    fs.sync()?;
    fs.unlink(&top, &names[2])?;
    fs.snapshot(subvol, &top, &names[0], SnapshotOptions::default())?;
    overflows(fs.create(&top, &names[2], &new), "full again")?;
    drop((top, other, dir));
    sound(fs, &device, "names of one hash")
}

/// Goal: if the item of a hash has no room for an attribute, or for a longer value, setting it is refused.
#[test]
fn attributes_of_one_hash() -> Result<()> {
    let (device, fs) = fresh(FeatureSet::default())?;
    let top = fs.root(TreeId::FS)?;
    let file = fs.create(&top, b"file", &NewInode::new(NewKind::File, 0o644))?;
    let names = one_hash("user.", LEN, 40, dir_hash);
    let set = |name: &[u8], value: &[u8]| fs.xattr_set(&file, name, value, XattrMode::Any);
    let full = names.iter().position(|name| set(name, b"value").is_err()).context("it is never full")?;
    for (name, value) in [(&names[full], &b""[..]), (&names[0], &[b'v'; 300])] {
        let refused = set(name, value);
        ensure!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        fs.sync()?;
    }
    ensure!(fs.xattr_get(&file, &names[0])?.as_deref() == Some(&b"value"[..]));
    fs.xattr_remove(&file, &names[1])?;
    set(&names[full], b"value")?;
    drop((top, file));
    sound(fs, &device, "attributes of one hash")
}

/// Goal: a name is refused if none of the inode's items has space for it. Method: without extended references, any names in one
/// directory; with them, names that fill the plain item first, then names whose extended references have one hash. Those have two
/// lengths: names of one length that have one of the two hashes also have the other, and would fill the directory's item before.
#[test]
fn names_of_one_inode() -> Result<()> {
    for extref in [true, false] {
        let (device, fs) = fresh(FeatureSet::default().extref(extref))?;
        let top = fs.root(TreeId::FS)?;
        let file = fs.create(&top, b"file", &NewInode::new(NewKind::File, 0o644))?;
        let plain: Vec<Vec<u8>> = (0..20).map(|n| format!("{n:0>LEN$}").into_bytes()).collect();
        let names = if extref {
            for name in &plain {
                fs.link(&file, &top, name)?;
            }
            let of = |len| one_hash("", len, 15, |name| extref_hash(Ino::ROOT_DIR, name) as u32);
            of(LEN).into_iter().zip(of(LEN - 10)).flat_map(|(long, short)| [long, short]).collect()
        } else {
            plain
        };
        let before = fs.attr(&file).nlink as usize;
        let full = names.iter().position(|name| fs.link(&file, &top, name).is_err()).context("it is never full")?;
        ensure!((15..20).contains(&full), "{full}");
        let elsewhere = fs.create(&top, b"elsewhere", &NewInode::new(NewKind::Dir, 0o755))?;
        fs.link(&file, &elsewhere, b"other")?;
        for (what, result) in [
            ("link", fs.link(&file, &top, &names[full])),
            ("rename", fs.rename(&elsewhere, b"other", &top, &names[full], RenameMode::NoReplace)),
        ] {
            ensure!(matches!(result, Err(FsError::TooManyLinks)), "{what}: {result:?}");
            fs.sync().with_context(|| format!("after {what}"))?;
        }
        ensure!(fs.attr(&file).nlink as usize == before + full + 1);
        // One of the same length.
        fs.unlink(&top, &names[full - 2])?;
        fs.rename(&elsewhere, b"other", &top, &names[full], RenameMode::NoReplace)?;
        drop((top, file, elsewhere));
        sound(fs, &device, "names of one inode")?;
    }
    Ok(())
}
