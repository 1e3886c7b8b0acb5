//! Chunks that are made while a commit writes.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions, InodeRef, NewInode, NewKind};
use oleo_mkfs::{MkfsOptions, make};
use oleo_sim::gate::{Gate, Writes};
use oleo_sim::oracle::{Oracle, oracle};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const MIB: u64 = 1 << 20;
const LEN: u64 = 512 * MIB;

fn open(device: Arc<dyn Device>) -> Result<Fs> {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn file(fs: &Fs, name: &str) -> Result<InodeRef> {
    Ok(fs.create(&fs.root(TreeId::FS)?, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?)
}

/// What a crash right now would leave, all writes having arrived.
fn copy_of(device: &Gate) -> Result<Vec<u8>> {
    let mut bytes = vec![0; LEN as usize];
    device.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Checked by others, and by opening it: the bytes of these files are these.
fn must_hold(oracle: Option<&Oracle>, what: &str, image: Vec<u8>, files: &[(&str, u8, u64)]) -> Result<()> {
    if let Some(oracle) = oracle {
        let scratch = oracle.scratch()?;
        let path = scratch.image("crashed", LEN)?;
        std::fs::write(&path, &image)?;
        oracle.must_be_sound(&[&path], what)?;
    }
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(LEN));
    device.write_at(0, &image)?;
    let fs = open(device)?;
    oleo_fs::replay(&fs)?;
    for (name, byte, len) in files {
        let file = fs.lookup(&fs.root(TreeId::FS)?, name.as_bytes())?.with_context(|| format!("{what}: {name}"))?;
        let mut read = vec![!byte; *len as usize];
        ensure!(fs.read(&file, 0, &mut read)? == read.len(), "{what}: {name} is shorter");
        ensure!(read.iter().all(|b| b == byte), "{what}: {name} has other bytes");
    }
    Ok(())
}

/// Goal: who needs a chunk gets it while a commit writes, and no superblock is ahead of its trees for that.
/// Method: the writes of a commit are held back; a writer needs more than there is in chunks, and must not wait; the commit goes on.
/// What is on disk then is sound without the chunk. An fsync of what was written into it, and a commit, are durable with it.
#[test]
fn a_chunk_is_made_while_a_commit_writes() -> Result<()> {
    const LONG: u64 = 30;
    let oracle = oracle();
    let device = Arc::new(Gate::new(LEN));
    make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default())?;
    let fs = open(device.clone())?;
    fs.wait_write_back(Duration::ZERO);
    let (first, second) = (file(&fs, "first")?, file(&fs, "second")?);
    fs.sync()?;
    fs.write(&first, 0, &[1; 8192])?;
    fs.flush(&first)?;
    device.shut(Writes::All);
    let room = fs.engine().data_free().0;
    // What is reserved ahead for a thread (2 MiB at the most) is no part of `room`, and is given back before a chunk is made.
    let wanted = (room / MIB + 4) * MIB;
    ensure!(wanted < LEN / 4, "{room} bytes are free, the device is too small to need another chunk");
    std::thread::scope(|scope| -> Result<()> {
        let committer = scope.spawn(|| fs.commit());
        device.await_held(Writes::All);
        let (said, heard) = channel();
        let (fs, second) = (&fs, &second);
        let writer = scope.spawn(move || {
            let done = fs.write(second, 0, &vec![2; wanted as usize]);
            let _ = said.send(());
            done
        });
        let waited = heard.recv_timeout(Duration::from_secs(LONG)).is_err();
        let committed = committer.is_finished();
        device.open(Writes::All);
        committer.join().expect("the committer panicked")?;
        writer.join().expect("the writer panicked")?;
        ensure!(!waited, "the writer waited for the commit");
        ensure!(!committed, "the commit was not held back: this shows nothing");
        Ok(())
    })?;
    must_hold(oracle.as_ref(), "after the commit", copy_of(&device)?, &[("first", 1, 8192)])?;
    fs.fsync(&second)?;
    let both = [("first", 1, 8192), ("second", 2, wanted)];
    must_hold(oracle.as_ref(), "after the fsync", copy_of(&device)?, &both)?;
    fs.sync()?;
    must_hold(oracle.as_ref(), "after the next commit", copy_of(&device)?, &both)
}
