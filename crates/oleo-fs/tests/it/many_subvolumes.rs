//! More subvolumes than are kept in memory: those that nobody uses are let go, and come back as they were. (Builds for tests
//! keep sixteen.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions, NewInode, NewKind, NewSubvol, ReadOnly, RenameMode, SnapshotOptions};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::disk;
use oleo_sim::oracle::oracle;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const THREADS: u64 = 3;
/// States that may be in memory, of trees and of subvolumes: twice what is kept, and what is in use.
const KNOWN_MAX: usize = 64;

fn open(device: &Arc<MemDevice>) -> Result<Fs> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    // Inodes in memory hold their subvolumes.
    Ok(Fs::open(engine, &FsOptions::default().inodes_max(1))?)
}

fn fresh() -> Result<(Arc<MemDevice>, Fs)> {
    let device = Arc::new(MemDevice::new(2 << 30));
    let shared: Arc<dyn Device> = device.clone();
    make(std::slice::from_ref(&shared), &MkfsOptions::default())?;
    let fs = open(&device)?;
    Ok((device, fs))
}

fn put(fs: &Fs, subvol: TreeId, name: &str, contents: &[u8]) -> Result<u64> {
    let dir = fs.root(subvol)?;
    let file = match fs.lookup(&dir, name.as_bytes())? {
        Some(file) => file,
        None => fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?,
    };
    fs.write(&file, 0, contents)?;
    Ok(file.ino().0)
}

fn get(fs: &Fs, subvol: TreeId, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(file) = fs.lookup(&fs.root(subvol)?, name.as_bytes())? else { return Ok(None) };
    let mut out = vec![0; fs.attr(&file).size as usize];
    fs.read(&file, 0, &mut out)?;
    Ok(Some(out))
}

fn check(device: &MemDevice, what: &str) -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let path = scratch.image("subvolumes", device.len())?;
    disk::store(device, &path)?;
    oracle.must_be_sound(&[&path], what)
}

/// Goal: memory does not grow with the subvolumes that were ever used, and what is let go is not forgotten: contents, flags,
/// the numbers that inodes get. Method: two hundred of them, each used three times with commits in between.
#[test]
fn unused_subvolumes_leave_memory() -> Result<()> {
    let (device, fs) = fresh()?;
    let top = fs.root(TreeId::FS)?;
    let mut ids = Vec::new();
    for n in 0..200u32 {
        let id = fs.subvol_create(&top, format!("s{n}").as_bytes(), &NewSubvol::default())?;
        put(&fs, id, "first", &n.to_le_bytes())?;
        if n % 3 == 0 {
            fs.sync()?;
            fs.set_read_only(id, if n % 2 == 0 { ReadOnly::Yes } else { ReadOnly::No })?;
        }
        ids.push(id);
    }
    fs.sync()?;
    for round in 0..2 {
        for (n, id) in (0u32..).zip(&ids) {
            ensure!(get(&fs, *id, "first")? == Some(n.to_le_bytes().to_vec()), "round {round}, subvolume {n}");
            let read_only = n % 6 == 0;
            ensure!(fs.subvol(*id)?.is_read_only() == read_only, "round {round}, subvolume {n} and its flag");
            let put = put(&fs, *id, &format!("round {round}"), &[7; 5000]);
            match put {
                Ok(ino) => ensure!(!read_only && ino == 258 + round, "round {round}, subvolume {n}: {ino}"),
                Err(e) => ensure!(read_only, "round {round}, subvolume {n}: {e}"),
            }
            if n % 20 == 0 {
                fs.sync()?;
            }
        }
        fs.sync()?;
        let known = (fs.engine().trees_known(), fs.subvols_known());
        ensure!(known.0 <= KNOWN_MAX && known.1 <= KNOWN_MAX, "trees and subvolumes in memory: {known:?}");
    }
    ensure!(fs.subvol_list()?.len() == ids.len() + 1, "the list");
    drop((top, fs));
    check(&device, "many subvolumes")
}

/// Goal: whoever looks a subvolume up while others are let go finds its newest state.
/// Method: threads write, read, snapshot, delete, and commit in sixty subvolumes that are all theirs, each with files of its
/// own whose contents it knows; all is compared in the end, and once more after opening again.
#[test]
fn subvolumes_come_and_go_under_threads() -> Result<()> {
    let (device, fs) = fresh()?;
    let mut ids = Vec::new();
    for n in 0..60 {
        ids.push(fs.subvol_create(&fs.root(TreeId::FS)?, format!("s{n}").as_bytes(), &NewSubvol::default())?);
    }
    let models: Vec<BTreeMap<(TreeId, String), Vec<u8>>> = std::thread::scope(|scope| {
        let (fs, ids) = (&fs, &ids);
        let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || work(fs, ids, t))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_>>()
    })?;
    let compare = |fs: &Fs, when: &str| -> Result<()> {
        let names: BTreeSet<&String> = models.iter().flatten().map(|((_, name), _)| name).collect();
        ensure!(names.len() > 6, "{} names", names.len());
        for (at, want) in models.iter().flatten() {
            ensure!(get(fs, at.0, &at.1)?.as_ref() == Some(want), "{when}: {at:?}");
        }
        Ok(())
    };
    compare(&fs, "at the end")?;
    fs.sync()?;
    drop(fs);
    let fs = open(&device)?;
    compare(&fs, "after opening")?;
    drop(fs);
    check(&device, "subvolumes under threads")
}

fn work(fs: &Fs, ids: &[TreeId], thread: u64) -> Result<BTreeMap<(TreeId, String), Vec<u8>>> {
    let mut state = 77 + thread;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut model: BTreeMap<(TreeId, String), Vec<u8>> = BTreeMap::new();
    let mut ids = ids.to_vec();
    let mut snapshots = Vec::new();
    for step in 0..400u32 {
        let at = ids[random(ids.len() as u64) as usize];
        let name = format!("t{thread}-{}", random(3));
        match random(16) {
            0 => drop(fs.sync()?),
            1 if snapshots.len() < 8 => {
                let name = format!("snap-{thread}-{step}");
                let id = fs.snapshot(at, &fs.root(TreeId::FS)?, name.as_bytes(), SnapshotOptions::default())?;
                let copied: Vec<_> = model.range((at, String::new())..).take_while(|(key, _)| key.0 == at).collect();
                let copied: Vec<_> = copied.into_iter().map(|(key, v)| ((id, key.1.clone()), v.clone())).collect();
                model.extend(copied);
                snapshots.push(id);
                ids.push(id);
            }
            2 if !snapshots.is_empty() => {
                let id = snapshots.swap_remove(random(snapshots.len() as u64) as usize);
                fs.subvol_delete(id)?;
                ids.retain(|known| *known != id);
                model.retain(|key, _| key.0 != id);
                fs.clean(100)?;
            }
            3..8 => {
                let found = get(fs, at, &name)?;
                ensure!(
                    found.as_ref() == model.get(&(at, name.clone())),
                    "thread {thread}, step {step}: {name} in {at:?}"
                );
            }
            8 if model.contains_key(&(at, name.clone())) => {
                fs.unlink(&fs.root(at)?, name.as_bytes())?;
                model.remove(&(at, name));
            }
            _ => {
                let contents = vec![random(255) as u8 + 1; 3000];
                put(fs, at, &name, &contents).with_context(|| format!("thread {thread}, step {step}"))?;
                model.insert((at, name), contents);
            }
        }
    }
    Ok(model)
}

/// Goal: while the files of a deleted subvolume are in use, no other subvolume gets its number, whatever was done first since opening.
/// Method: open again, hold the root directory of the subvolume with the highest number, delete the subvolume and take it apart to the end;
/// make another one and a snapshot of it; both can be used, and the held directory refuses.
#[test]
fn a_held_number_is_not_given_again() -> Result<()> {
    let (device, fs) = fresh()?;
    let old = fs.subvol_create(&fs.root(TreeId::FS)?, b"old", &NewSubvol::default())?;
    put(&fs, old, "file", b"old")?;
    fs.sync()?;
    drop(fs);
    let fs = open(&device)?;
    let top = fs.root(TreeId::FS)?;
    let held = fs.root(old)?;
    // Leftovers of a crash are looked for once.
    while fs.clean(100)? {}
    fs.subvol_delete(old)?;
    fs.sync()?;
    while fs.clean(100)? {}
    fs.sync()?;
    ensure!(fs.engine().root_item(old)?.is_none(), "it is gone");
    let new = fs.subvol_create(&top, b"new", &NewSubvol::default())?;
    put(&fs, new, "file", b"new")?;
    let snapshot = fs.snapshot(new, &top, b"snapshot", SnapshotOptions::default())?;
    ensure!(old.0 < new.0 && new.0 < snapshot.0, "{old:?}, {new:?}, {snapshot:?}");
    for tree in [new, snapshot] {
        ensure!(get(&fs, tree, "file")? == Some(b"new".to_vec()), "{tree:?}");
    }
    ensure!(fs.create(&held, b"late", &NewInode::new(NewKind::File, 0o600)).is_err());
    fs.sync()?;
    drop((top, held, fs));
    check(&device, "a held number")
}

/// Goal: a subvolume that moves over the empty directory in its place takes its place. Method: move the nested subvolume of one subvolume into a
/// snapshot of that, then there to its old name.
#[test]
fn a_subvolume_over_its_empty_directory() -> Result<()> {
    let (device, fs) = fresh()?;
    let top = fs.root(TreeId::FS)?;
    let outer = fs.subvol_create(&top, b"outer", &NewSubvol::default())?;
    let inner = fs.subvol_create(&fs.root(outer)?, b"inner", &NewSubvol::default())?;
    put(&fs, inner, "file", b"inside")?;
    let snapshot = fs.snapshot(outer, &top, b"snapshot", SnapshotOptions::default())?;
    let (from, to) = (fs.root(outer)?, fs.root(snapshot)?);
    fs.rename(&from, b"inner", &to, b"moved", RenameMode::Replace)?;
    fs.rename(&to, b"moved", &to, b"inner", RenameMode::Replace)?;
    ensure!(fs.lookup(&to, b"moved")?.is_none());
    let found = fs.lookup(&to, b"inner")?.context("the subvolume")?;
    ensure!(found.tree() == inner && !found.is_empty_subvol_dir());
    fs.rename(&to, b"inner", &to, b"inner", RenameMode::Replace)?;
    fs.sync()?;
    drop((found, from, to, top, fs));
    check(&device, "moved over its empty directory")
}
