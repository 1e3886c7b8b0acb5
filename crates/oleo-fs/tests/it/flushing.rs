//! Flushing where something is in the way: sectors that cannot be read, and snapshots at the same moment.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::{InodeFlags, TreeId};
use oleo_fs::data::KeepSize;
use oleo_fs::{
    Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, RenameMode, SetAttr, SnapshotOptions, errno, replay,
};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::disk::{Power, SimDisk};
use oleo_sim::gate::{Gate, Writes};
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 4096;

fn open(device: Arc<dyn Device>, opts: &FsOptions) -> Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, opts)?)
}

fn file(fs: &Fs, name: &str) -> Result<InodeRef> {
    Ok(fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

fn find(fs: &Fs, name: &str) -> Result<InodeRef> {
    fs.lookup(&fs.root(TreeId::FS)?, name.as_bytes())?.with_context(|| name.to_owned())
}

fn read_at(fs: &Fs, file: &InodeRef, at: u64, len: u64) -> Result<Vec<u8>, FsError> {
    let mut out = vec![0; len as usize];
    let got = fs.read(file, at, &mut out)?;
    out.truncate(got);
    Ok(out)
}

/// A sector that no other is like.
fn sector(n: u64) -> Vec<u8> {
    (0..SECTOR / 8).flat_map(|i| (n * 1_000_003 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Destroys the one place where the device has this sector.
fn destroy(device: &dyn Device, content: &[u8]) -> Result<()> {
    let mut found = 0;
    let mut piece = vec![0; MIB as usize];
    for at in (0..device.len()).step_by(piece.len()) {
        device.read_at(at, &mut piece)?;
        for (n, _) in piece.chunks(content.len()).enumerate().filter(|(_, c)| *c == content) {
            device.write_at(at + n as u64 * SECTOR, &vec![0xee; content.len()])?;
            found += 1;
        }
    }
    ensure!(found == 1, "{found} places");
    Ok(())
}

fn is_eio<T: std::fmt::Debug>(done: Result<T, FsError>) -> Result<()> {
    match done {
        Err(e) if e.errno() == errno::EIO => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}

/// A file of 2048 sectors on disk.
fn on_disk(opts: &FsOptions) -> Result<(Arc<MemDevice>, Fs, InodeRef)> {
    let device = Arc::new(MemDevice::new(256 * MIB));
    make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default())?;
    let fs = open(device.clone(), opts)?;
    let bad = file(&fs, "bad")?;
    let content: Vec<u8> = (0..2048).flat_map(sector).collect();
    fs.write(&bad, 0, &content)?;
    fs.sync()?;
    Ok((device, fs, bad))
}

/// Goal: what could not be written out, since a sector of which it is a part cannot be read, is refused by the call that brings it, and
/// leaves nothing that would be in a later one's way; what replaces such sectors as a whole is taken.
/// Method: sectors that do not match their checksums; writes that begin and end in one, cutting short and making longer, holes, a part of
/// a sector that was written as a whole before; then a sync, and the file as it is found afterwards.
#[test]
fn what_lies_beside_damage_is_refused() -> Result<()> {
    let (device, fs, bad) = on_disk(&FsOptions::default())?;
    fs.wait_write_back(Duration::ZERO);
    fs.truncate(&bad, 2000 * SECTOR + 100)?;
    fs.sync()?;
    // Cutting does not write the last sector anew.
    for n in [1, 600, 2000] {
        destroy(&*device, &sector(n))?;
    }
    let before = fs.attr(&bad);
    is_eio(fs.write(&bad, SECTOR + 100, b"z"))?;
    is_eio(fs.write(&bad, SECTOR, &[1; 100]))?;
    is_eio(fs.write(&bad, 601 * SECTOR - 1, &[2; 10]))?;
    is_eio(fs.write(&bad, 590 * SECTOR, &vec![3; 10 * SECTOR as usize + 1]))?;
    is_eio(fs.punch_hole(&bad, SECTOR + 5, 17))?;
    is_eio(fs.zero_range(&bad, 600 * SECTOR + 5, SECTOR, KeepSize::No))?;
    // What is behind the end of the file in its last sector has to become zeros.
    is_eio(fs.write(&bad, 2000 * SECTOR + 100, b"more"))?;
    is_eio(fs.write(&bad, 3000 * SECTOR, b"far"))?;
    is_eio(fs.truncate(&bad, 4000 * SECTOR))?;
    ensure!(fs.attr(&bad).size == before.size && fs.attr(&bad).mtime == before.mtime);
    fs.fsync(&bad)?;
    fs.sync()?;
    ensure!(!fs.has_changes());
    // Whole sectors, and what is beside others.
    fs.write(&bad, SECTOR, &vec![7; SECTOR as usize])?;
    fs.write(&bad, SECTOR + 9, b"nine")?;
    fs.write(&bad, 602 * SECTOR + 1, b"one")?;
    fs.sync()?;
    fs.write(&bad, 2000 * SECTOR, &[8; 100])?;
    fs.write(&bad, 2000 * SECTOR + 100, b"more")?;
    fs.sync()?;
    let seen = open(device, &FsOptions::default())?;
    let bad = find(&seen, "bad")?;
    ensure!(read_at(&seen, &bad, SECTOR + 8, 6)? == b"\x07nine\x07");
    ensure!(read_at(&seen, &bad, 2000 * SECTOR + 99, 9)? == b"\x08more");
    is_eio(read_at(&seen, &bad, 600 * SECTOR, 1))
}

/// Goal: a file that cannot be flushed costs nobody else anything: other files and names are on disk after a sync, which tells of
/// it all the same; its own fsync fails as long as the bytes are there; they can be read; all its other bytes are on disk, too;
/// and once they can be written they are.
/// Method: parts of sectors are written whose rest does not match its checksum from then on, alone and at the beginning of a long run;
/// the volume is opened a second time.
#[test]
fn one_file_holds_up_no_other() -> Result<()> {
    let (device, fs, bad) = on_disk(&FsOptions::default())?;
    // Whoever flushes is told to be others: nothing goes to disk before it is asked for.
    fs.wait_write_back(Duration::ZERO);
    fs.write(&bad, SECTOR + 100, b"z")?;
    fs.write(&bad, 5 * SECTOR + 100, b"five")?;
    // A run of some megabytes that begins within a bad sector.
    let run = vec![0x77; (1200 * SECTOR) as usize];
    fs.write(&bad, 600 * SECTOR + 9, &run)?;
    for n in [1, 600] {
        destroy(&*device, &sector(n))?;
    }
    let other = file(&fs, "other")?;
    fs.write(&other, 0, b"hello")?;
    let dir = fs.create(&fs.root(TreeId::FS)?, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    is_eio(fs.sync())?;
    is_eio(fs.fsync(&bad))?;
    is_eio(fs.fsync(&bad))?;
    fs.fsync(&other)?;
    fs.write(&other, 5, b" again")?;
    drop(dir);
    is_eio(fs.sync())?;
    ensure!(read_at(&fs, &bad, SECTOR + 100, 1)? == b"z");
    ensure!(read_at(&fs, &bad, 600 * SECTOR + 9, run.len() as u64)? == run);
    {
        let seen = open(device.clone(), &FsOptions::default())?;
        let other = find(&seen, "other")?;
        ensure!(read_at(&seen, &other, 0, 100)? == b"hello again");
        find(&seen, "dir")?;
        let bad = find(&seen, "bad")?;
        ensure!(read_at(&seen, &bad, 5 * SECTOR + 100, 4)? == b"five");
        let rest = read_at(&seen, &bad, 601 * SECTOR, 1199 * SECTOR + 9)?;
        ensure!(rest.len() as u64 == 1199 * SECTOR + 9 && rest.iter().all(|b| *b == 0x77));
        is_eio(read_at(&seen, &bad, SECTOR, 1))?;
    }
    // The rest of the sectors is written: now nothing is missing.
    fs.write(&bad, SECTOR, &[1; 100])?;
    fs.write(&bad, SECTOR + 101, &[2; SECTOR as usize - 101])?;
    fs.write(&bad, 600 * SECTOR, &[3; 9])?;
    fs.fsync(&bad)?;
    fs.sync()?;
    let seen = open(device, &FsOptions::default())?;
    let bad = find(&seen, "bad")?;
    ensure!(read_at(&seen, &bad, SECTOR + 99, 3)? == b"\x01z\x02");
    Ok(())
}

/// Goal: what cannot be flushed is not tried time and again, holds up no writer of another file, and has a bound in memory.
/// Method: room for few bytes; a file whose bytes stay; then another is written that needs the room many times over, and write-back
/// is asked whether it has work.
#[test]
fn what_stays_has_a_bound() -> Result<()> {
    let mut opts = FsOptions::default();
    opts.data.dirty_bytes_max = 64 << 10;
    opts.data.dirty_background_max = Some(0);
    let (device, fs, bad) = on_disk(&opts)?;
    fs.wait_write_back(Duration::ZERO);
    fs.write(&bad, SECTOR + 100, b"z")?;
    destroy(&*device, &sector(1))?;
    is_eio(fs.write_back())?;
    ensure!(!fs.wait_write_back(Duration::ZERO), "there is work");
    ensure!(!fs.write_back()?, "something was written");
    let (said, heard) = channel();
    let writer = {
        let fs = fs.clone();
        std::thread::spawn(move || {
            let done = (|| -> Result<()> {
                let other = file(&fs, "other")?;
                for n in 0..64 {
                    fs.write(&other, n * (16 << 10), &[n as u8; 16 << 10])?;
                }
                Ok(())
            })();
            let _ = said.send(done);
        })
    };
    heard.recv_timeout(Duration::from_secs(60)).context("the writer waits for ever")??;
    writer.join().map_err(|_| anyhow::anyhow!("a panic"))?;
    // Parts of many sectors, all of which cannot be read from then on.
    let mut refused = false;
    for n in (1000..1200).step_by(4) {
        for m in n..n + 4 {
            refused |= fs.write(&bad, m * SECTOR, &[7; 3000]).is_err();
        }
        for m in n..n + 4 {
            let _ = destroy(&*device, &sector(m));
        }
    }
    ensure!(refused, "all of it was taken");
    // Gone with the file's content.
    fs.truncate(&bad, 0)?;
    fs.fsync(&bad)?;
    fs.sync()?;
    Ok(())
}

/// Goal: a snapshot never changes, though data of its source is being written in place while it is taken.
/// Method: a file that is not copied on write is flushed while the snapshot has flushed it and waits for another file; its
/// bytes reach the device only when the snapshot has had time to be there.
#[test]
fn snapshots_beside_writing_in_place() -> Result<()> {
    const NEW: u8 = 0xa1;
    const OTHER: u8 = 0xb1;
    const LEN: u64 = 16 * SECTOR;
    let device = Arc::new(Gate::new(256 * MIB));
    make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default())?;
    let fs = open(device.clone(), &FsOptions::default())?;
    fs.wait_write_back(Duration::ZERO);
    let kept = file(&fs, "kept")?;
    let flags = Some(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
    fs.set_attr(&kept, &SetAttr::default().flags(flags))?;
    fs.write(&kept, 0, &[0xa0; LEN as usize])?;
    let other = file(&fs, "other")?;
    fs.sync()?;
    fs.write(&other, 0, &[OTHER; LEN as usize])?;
    device.shut(Writes::Of(NEW));
    device.shut(Writes::Of(OTHER));
    std::thread::scope(|scope| -> Result<()> {
        let (fs, device, kept) = (&fs, &device, &kept);
        let (said, heard) = channel();
        let snapshot = scope.spawn(move || -> Result<TreeId, FsError> {
            let options = SnapshotOptions::default().read_only(true);
            let done = fs.snapshot(TreeId::FS, &fs.root(TreeId::FS)?, b"snap", options);
            let _ = said.send(());
            done
        });
        // It has been past the first file, which has nothing to flush.
        device.await_held(Writes::Of(OTHER));
        fs.write(kept, 0, &[NEW; LEN as usize])?;
        let flusher = scope.spawn(move || fs.flush(kept));
        device.await_held(Writes::Of(NEW));
        device.open(Writes::Of(OTHER));
        // There is no sign of its having to wait: so it gets a moment.
        let done = heard.recv_timeout(Duration::from_millis(500)).is_ok();
        let look = |id| read_at(fs, &fs.lookup(&fs.root(id)?, b"kept")?.ok_or(FsError::NotFound)?, 0, LEN);
        let (id, before) = if done {
            let id = snapshot.join().map_err(|_| anyhow::anyhow!("a panic"))??;
            let before = look(id)?;
            device.open(Writes::Of(NEW));
            (id, before)
        } else {
            device.open(Writes::Of(NEW));
            let id = snapshot.join().map_err(|_| anyhow::anyhow!("a panic"))??;
            (id, look(id)?)
        };
        flusher.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        fs.sync()?;
        let after = look(id)?;
        ensure!(before == after, "was {:x}, is {:x}", before[0], after[0]);
        ensure!(read_at(fs, kept, 0, LEN)? == [NEW; LEN as usize]);
        Ok(())
    })
}

/// Goal: what is written to a file with the flag SYNC is durable when the call returns, and so are names in a directory with DIRSYNC
/// or SYNC; without them nothing is.
/// Method: a disk that loses what was not flushed, after each kind of change.
#[test]
fn flags_that_ask_for_durability() -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 * MIB));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let first = MemDevice::new(256 * MIB);
    let mut part = vec![0; MIB as usize];
    for at in (0..256 * MIB).step_by(part.len()) {
        device.read_at(at, &mut part)?;
        first.write_at(at, &part)?;
    }
    let disk = Arc::new(SimDisk::new("disk", first, &Power::steady()));
    let fs = open(disk.clone(), &FsOptions::default())?;
    let crashed = |seed: u64| -> Result<Fs> {
        let fs = open(Arc::new(disk.after_crash(&mut Rng::new(seed))), &FsOptions::default())?;
        replay(&fs)?;
        Ok(fs)
    };
    let flagged = |name: &str, kind: NewKind<'static>, flags: InodeFlags| -> Result<InodeRef> {
        let made = fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(kind, 0o755))?;
        fs.set_attr(&made, &SetAttr::default().flags(Some(flags)))?;
        Ok(made)
    };
    let plain = file(&fs, "plain")?;
    let kept = flagged("kept", NewKind::File, InodeFlags::SYNC)?;
    let dirs = [flagged("d", NewKind::Dir, InodeFlags::DIRSYNC)?, flagged("s", NewKind::Dir, InodeFlags::SYNC)?];
    fs.sync()?;
    fs.write(&plain, 0, b"lost")?;
    fs.write(&kept, 0, b"written")?;
    for seed in 0..8 {
        let seen = crashed(seed)?;
        ensure!(read_at(&seen, &find(&seen, "kept")?, 0, 100)? == b"written");
        ensure!(seen.attr(&find(&seen, "plain")?).size == 0, "the disk loses nothing");
    }
    fs.truncate(&kept, 3)?;
    fs.preallocate(&kept, 0, 9000, oleo_fs::data::KeepSize::No)?;
    let seen = crashed(9)?;
    ensure!(seen.attr(&find(&seen, "kept")?).size == 9000);
    fs.set_attr(&kept, &SetAttr::default().size(Some(2)))?;
    let seen = crashed(10)?;
    ensure!(read_at(&seen, &find(&seen, "kept")?, 0, 100)? == b"wr");
    for (n, dir) in dirs.iter().enumerate() {
        let path = ["d", "s"][n];
        let has =
            |seen: &Fs, name: &str| -> Result<bool> { Ok(seen.lookup(&find(seen, path)?, name.as_bytes())?.is_some()) };
        fs.create(dir, b"file", &NewInode::new(NewKind::File, 0o644))?;
        ensure!(has(&crashed(11)?, "file")?);
        fs.link(&fs.lookup(dir, b"file")?.context("file")?, dir, b"link")?;
        ensure!(has(&crashed(12)?, "link")?);
        fs.rename(dir, b"link", dir, b"moved", RenameMode::Replace)?;
        let seen = crashed(13)?;
        ensure!(has(&seen, "moved")? && !has(&seen, "link")?);
        fs.unlink(dir, b"moved")?;
        ensure!(!has(&crashed(14)?, "moved")?);
    }
    Ok(())
}

/// Goal: a writer that finds too much buffered makes as much room as it takes, and is not kept by others.
/// Method: the flush of a file far above the limit is held back; a writer of a few bytes returns meanwhile, and has written them out.
#[test]
fn a_writer_is_not_kept_by_others() -> Result<()> {
    const HELD: u8 = 0xa1;
    let device = Arc::new(Gate::new(256 * MIB));
    make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default())?;
    let mut opts = FsOptions::default();
    opts.data.dirty_bytes_max = 64 << 10;
    let fs = open(device.clone(), &opts)?;
    let (large, small) = (file(&fs, "large")?, file(&fs, "small")?);
    device.shut(Writes::Of(HELD));
    std::thread::scope(|scope| -> Result<()> {
        let (fs, large, small) = (&fs, &large, &small);
        let first = scope.spawn(move || fs.write(large, 0, &[HELD; MIB as usize]));
        device.await_held(Writes::Of(HELD));
        let (said, heard) = channel();
        let second = scope.spawn(move || {
            let done = fs.write(small, 0, &[2; 8192]);
            let _ = said.send(());
            done
        });
        let waited = heard.recv_timeout(Duration::from_secs(60)).is_err();
        let delayed = fs.extents(small, 0, u64::MAX)?.iter().any(|e| e.kind == oleo_fs::data::ExtentKind::Delayed);
        device.open(Writes::Of(HELD));
        first.join().expect("the first writer panicked")?;
        second.join().expect("the second writer panicked")?;
        ensure!(!waited, "it waited for somebody else's flush");
        ensure!(!delayed, "what it wrote is still buffered");
        Ok(())
    })
}
