//! Preallocation that waits for addresses: what it promises, what it costs, and what it leaves behind.

use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_format::{ByteLen, InodeFlags, TreeId};
use oleo_fs::data::{ExtentKind, KeepSize};
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::oracle::oracle;
use oleo_space::{FaultSpec, Kind};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn open(device: Arc<dyn Device>) -> anyhow::Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn in_memory(len: u64, seed: u8) -> anyhow::Result<(Arc<dyn Device>, Fs)> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(len));
    make(std::slice::from_ref(&device), &MkfsOptions::default().seed([seed; 32]))?;
    Ok((device.clone(), open(device)?))
}

fn file(fs: &Fs, name: &str) -> anyhow::Result<InodeRef> {
    Ok(fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?)
}

fn free(fs: &Fs) -> u64 {
    fs.engine().space().totals(Kind::Data).free.0
}

/// Goal: nobody can say that addresses are put off: size, space taken, zeros, FIEMAP, before and after they come, and after
/// they are taken from the disk again; and the times of a file that was cut last to the disk. Method: one file with a hole
/// between two ranges, one of them beyond its end; one that was cut to nothing; looked at, synced, opened anew.
#[test]
fn looks_as_if_it_were_there() -> anyhow::Result<()> {
    let (device, fs) = in_memory(200 * MIB, 41)?;
    let f = file(&fs, "f")?;
    fs.preallocate(&f, 0, 10 * KIB, KeepSize::No)?;
    fs.preallocate(&f, 100 * KIB, 8 * KIB, KeepSize::Yes)?;
    fs.preallocate(&f, 4 * KIB, 4 * KIB, KeepSize::No)?;
    let cut = file(&fs, "cut")?;
    fs.sync()?;
    fs.preallocate(&cut, 0, 8 * KIB, KeepSize::No)?;
    fs.truncate(&cut, 0)?;
    let stamped = fs.attr(&cut);
    let look = |fs: &Fs, f: &InodeRef| -> anyhow::Result<_> {
        let attr = fs.attr(f);
        let mut bytes = vec![1; 20 * KIB as usize];
        let got = fs.read(f, 0, &mut bytes)?;
        let extents = fs.extents(f, 0, MIB)?.into_iter().map(|e| (e.at, e.len, e.kind)).collect::<Vec<_>>();
        Ok((attr.size, attr.nbytes, bytes[..got].iter().all(|b| *b == 0), got, extents, fs.seek_data(f, 0)?))
    };
    let unwritten = |at, len| (at, len, ExtentKind::Unwritten);
    let want = (
        10 * KIB,
        20 * KIB,
        true,
        10 * KIB as usize,
        vec![unwritten(0, 12 * KIB), unwritten(100 * KIB, 8 * KIB)],
        None,
    );
    assert_eq!(look(&fs, &f)?, want);
    fs.sync()?;
    assert!(!fs.has_changes(), "nothing is counted as buffered any more");
    assert_eq!(look(&fs, &f)?, want);
    assert!(fs.extents(&f, 0, MIB)?.iter().all(|e| e.disk.is_some()));
    drop((f, cut, fs));
    let fs = open(device)?;
    let root = fs.root(TreeId::FS)?;
    let f = fs.lookup(&root, b"f")?.ok_or(FsError::NotFound)?;
    assert_eq!(look(&fs, &f)?, want);
    assert!(fs.attr(&f).flags.contains(InodeFlags::PREALLOC));
    let cut = fs.lookup(&root, b"cut")?.ok_or(FsError::NotFound)?;
    let attr = fs.attr(&cut);
    assert_eq!((attr.size, attr.nbytes, attr.mtime, attr.ctime), (0, 0, stamped.mtime, stamped.ctime));
    Ok(())
}

/// Goal: preallocating and cutting in turns takes no addresses and reserves no more however often it is done. Method: the
/// allocator counts what is asked of it; the free bytes before and after, and what is promised meanwhile.
#[test]
fn in_turns_it_costs_nothing() -> anyhow::Result<()> {
    let (_device, fs) = in_memory(200 * MIB, 42)?;
    let f = file(&fs, "f")?;
    fs.sync()?;
    let before = free(&fs);
    let turn = |len| {
        fs.preallocate(&f, 0, len, KeepSize::No)?;
        fs.truncate(&f, 0)
    };
    turn(8 * KIB)?;
    let space = fs.engine().space();
    // With a commit, which needs a change, nothing is reserved ahead any more: what is left is the file's.
    let reserved = |name| -> anyhow::Result<ByteLen> {
        file(&fs, name)?;
        fs.commit()?;
        Ok(space.totals(Kind::Data).reserved)
    };
    let promised = reserved("first")?;
    assert!(promised > ByteLen(0), "a little is kept");
    space.fail_requests(FaultSpec { promises: true, extents: true, blocks: true, ..FaultSpec::default() });
    for _ in 0..1000 {
        turn(8 * KIB)?;
    }
    assert_eq!(space.requests_counted(), 0, "the promise of the first turn is the promise of all");
    assert_eq!(reserved("second")?, promised);
    turn(512 * KIB)?;
    assert_eq!(reserved("third")?, ByteLen(0), "what is large is not kept");
    fs.sync()?;
    assert_eq!(free(&fs), before);
    Ok(())
}

/// Goal: what the inode knows of where its extents end is enough to place a preallocation: no tree is looked into; and what comes of
/// it, of bytes behind others, and of a cut, is right. Method: files that are in the tree as they are, all blocks forgotten: a look would read
/// one. Sizes, space and extents of what was done, before and after it is on disk.
#[test]
fn trees_are_not_asked_for_what_is_known() -> anyhow::Result<()> {
    let (device, fs) = in_memory(200 * MIB, 45)?;
    let (f, longer, other) = (file(&fs, "f")?, file(&fs, "longer")?, file(&fs, "other")?);
    let write = |f: &InodeRef, at: u64| -> anyhow::Result<()> {
        fs.write(f, at, &[5; 8 << 10])?;
        Ok(fs.flush(f)?)
    };
    write(&longer, 0)?;
    fs.sync()?;
    // The allocator reads where there is room.
    write(&other, 0)?;
    fs.engine().blocks().forget_all();
    fs.preallocate(&f, 0, 8 * KIB, KeepSize::No)?;
    fs.flush(&f)?;
    assert_eq!(fs.engine().blocks().cached_bytes(), 0, "nothing was looked at");
    write(&longer, 8 * KIB)?;
    let spans = |fs: &Fs, f: &InodeRef| -> anyhow::Result<Vec<(u64, u64)>> {
        Ok(fs.extents(f, 0, MIB)?.into_iter().map(|e| (e.at, e.len)).collect())
    };
    assert_eq!((fs.attr(&f).size, fs.attr(&f).nbytes, spans(&fs, &f)?), (8 * KIB, 8 * KIB, vec![(0, 8 * KIB)]));
    fs.truncate(&f, 0)?;
    assert_eq!((fs.attr(&f).size, fs.attr(&f).nbytes, spans(&fs, &f)?), (0, 0, vec![]));
    fs.preallocate(&f, 4 * KIB, 8 * KIB, KeepSize::No)?;
    fs.sync()?;
    let look = |fs: &Fs| -> anyhow::Result<_> {
        let root = fs.root(TreeId::FS)?;
        let mut found = Vec::new();
        for name in [&b"f"[..], b"longer"] {
            let f = fs.lookup(&root, name)?.ok_or(FsError::NotFound)?;
            found.push((fs.attr(&f).size, fs.attr(&f).nbytes, spans(fs, &f)?.iter().map(|(_, len)| len).sum::<u64>()));
        }
        Ok(found)
    };
    let want = vec![(12 * KIB, 8 * KIB, 8 * KIB), (16 * KIB, 16 * KIB, 16 * KIB)];
    assert_eq!(look(&fs)?, want);
    drop((f, longer, other, fs));
    assert_eq!(look(&open(device)?)?, want);
    Ok(())
}

/// Goal: "no space" comes from the call: every byte that was preallocated can be written, even where nothing else is free, and
/// what files keep without needing it is given to whoever needs it. Method: files that were cut keep promises; others
/// preallocate until they are refused, which must not be before nearly all is taken; then all of it is written, synced, verified.
#[test]
fn what_is_promised_is_there() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", 160 * MIB)?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, &FileOptions::default().write(true))?);
    make(std::slice::from_ref(&device), &MkfsOptions::default().seed([43; 32]))?;
    let fs = open(device)?;
    for n in 0..100 {
        let f = file(&fs, &format!("idle{n}"))?;
        fs.preallocate(&f, 0, 64 * KIB, KeepSize::No)?;
        fs.truncate(&f, 0)?;
    }
    assert!(fs.engine().space().totals(Kind::Data).reserved.0 >= 100 * 64 * KIB);
    let mut files = Vec::new();
    let refused = loop {
        let f = file(&fs, &format!("f{}", files.len()))?;
        match fs.preallocate(&f, 0, 256 * KIB, KeepSize::No) {
            Ok(()) => files.push(f),
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, FsError::NoSpace), "{refused}");
    let totals = fs.engine().space().totals(Kind::Data);
    let left = totals.free.0.saturating_sub(totals.reserved.0) + totals.growth.0;
    assert!(left < 256 * KIB, "{left} bytes left, {totals:?}");
    let data = vec![7; 256 * KIB as usize];
    for f in &files {
        fs.write(f, 0, &data)?;
    }
    fs.sync()?;
    let mut out = data.clone();
    for f in &files {
        out.fill(0);
        assert_eq!(fs.read(f, 0, &mut out)?, out.len());
        assert!(out == data);
    }
    drop((files, fs));
    oracle.must_be_sound(&[&image], "preallocated to the last byte, and written")
}

/// Goal: one file can be given more than half of what is free. Method: three quarters of it in one call.
#[test]
fn most_of_what_is_free() -> anyhow::Result<()> {
    let (_device, fs) = in_memory(400 * MIB, 44)?;
    let f = file(&fs, "f")?;
    let totals = fs.engine().space().totals(Kind::Data);
    let len = (totals.free.0 + totals.growth.0) / 4 * 3 / (64 * KIB) * (64 * KIB);
    fs.preallocate(&f, 0, len, KeepSize::No)?;
    assert_eq!(fs.attr(&f).nbytes, len);
    fs.sync()?;
    Ok(())
}
