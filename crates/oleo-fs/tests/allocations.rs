//! How much is allocated for an operation: library users keep their own allocator, so each piece counts.
//!
//! One program with one test, whose allocator counts what the calling thread asks for and passes it on to the system's.

#![allow(unsafe_code, reason = "an allocator has no safe form; it only counts and passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_mkfs::{MkfsOptions, make};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

struct Counting;

thread_local! {
    static MINE: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}
/// Of all threads.
static ALL: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    ALL.fetch_add(1, Ordering::Relaxed);
    // A thread that ends is not counted.
    let _ = MINE.try_with(|mine| {
        let [pieces, sum] = mine.get();
        mine.set([pieces + 1, sum + bytes as u64]);
    });
}

// SAFETY: every call is passed on as it is to the system's allocator, which keeps the contract; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, len) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Pieces and bytes that `work` asks for on this thread, for each of `n` operations.
fn asked_for(n: u64, work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let [pieces, bytes] = MINE.get();
    work()?;
    let [pieces_then, bytes_then] = MINE.get();
    Ok(((pieces_then - pieces) as f64 / n as f64, (bytes_then - bytes) as f64 / n as f64))
}

/// Goal: an operation does not come to allocate more than it does now. Method: some thousand creates, look-ups, writes, reads and unlinks after as
/// many that warm up; pieces for each, growing tables included, and those of a commit by all threads for each new file. The limits are
/// what was counted, and a little more: whoever exceeds one finds out why, or lowers it.
#[test]
fn operations_allocate_little() -> Result<()> {
    const FILES: u64 = 20_000;
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(2 << 30));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    let fs = Fs::open(engine, &FsOptions::default())?;
    let dir = fs.create(&fs.root(TreeId::FS)?, b"dir", &NewInode::new(NewKind::Dir, 0o755))?;
    let names: Vec<String> = (0..2 * FILES).map(|n| format!("{n:08x}~~~~~~~~KQSAZCJ4UUJ1BCSHB3UP7VKV")).collect();
    let create = |names: &[String]| -> Result<()> {
        for name in names {
            fs.create(&dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
        }
        Ok(())
    };
    create(&names[..FILES as usize])?;
    fs.commit()?;
    let mut over = Vec::new();
    let mut check = |what: &str, (pieces, bytes): (f64, f64), most: f64| {
        println!("{what}: {pieces:.2} pieces, {bytes:.0} bytes");
        if pieces > most {
            over.push(format!("{what}: {pieces:.2}, {most} allowed"));
        }
    };
    let new = &names[FILES as usize..];
    check("create", asked_for(FILES, || create(new))?, 2.4);
    let before = ALL.load(Ordering::Relaxed);
    fs.commit()?;
    let commit = (ALL.load(Ordering::Relaxed) - before) as f64 / FILES as f64;
    check("commit of a new file", (commit, 0.0), 0.6);
    let look = || -> Result<()> {
        for name in &names[..1000] {
            let file = fs.lookup(&dir, name.as_bytes())?.expect("it was made");
            std::hint::black_box(fs.attr(&file));
        }
        Ok(())
    };
    look()?;
    check("look-up", asked_for(1000, look)?, 0.1);
    let files = names[..1000].iter().map(|name| Ok(fs.lookup(&dir, name.as_bytes())?.expect("it was made")));
    let files = files.collect::<Result<Vec<_>>>()?;
    let write = |at: u64| files.iter().try_for_each(|file| fs.write(file, at, &[7; 8192]));
    write(0)?;
    check("8 KiB written behind others", asked_for(1000, || Ok(write(8192)?))?, 1.2);
    for file in &files {
        fs.flush(file)?;
    }
    check("8 KiB written, the first of a file", asked_for(1000, || Ok(write(0)?))?, 5.6);
    let unlink = |names: &[String]| names.iter().try_for_each(|name| fs.unlink(&dir, name.as_bytes()));
    unlink(&names[2000..3000])?;
    check("unlink", asked_for(1000, || Ok(unlink(&names[3000..4000])?))?, 2.4);
    ensure!(over.is_empty(), "{}", over.join("; "));
    Ok(())
}
