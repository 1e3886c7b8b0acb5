//! Where the data of files comes to lie.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_mkfs::{MkfsOptions, make};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const MIB: u64 = 1 << 20;

/// Goal: the small files of a directory lie near each other, though another directory is written to at the same time.
/// Method: files of 8 to 64 KiB in two directories in turns, each flushed as it is written; nearly each lies right behind the one
/// before it of its directory.
#[test]
fn files_of_a_directory_lie_together() -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(1024 * MIB));
    make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let fs = Fs::open(Engine::open(Arc::new(volume), &EngineOptions::default())?, &FsOptions::default())?;
    let root = fs.root(TreeId::FS)?;
    let new_dir = |name: &[u8]| fs.create(&root, name, &NewInode::new(NewKind::Dir, 0o755));
    let dirs = [new_dir(b"a")?, new_dir(b"b")?];
    let mut ends = [None; 2];
    let mut breaks = 0;
    for n in 0..200 {
        for (dir, end) in dirs.iter().zip(&mut ends) {
            let f = fs.create(dir, format!("{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
            // Not a length that would be put inline.
            fs.write(&f, 0, &vec![n as u8; 8192 * (1 + n % 8)])?;
            fs.flush(&f)?;
            let extents = fs.extents(&f, 0, u64::MAX)?;
            let first = extents.first().and_then(|e| e.disk).context("no extent")?;
            breaks += usize::from(end.is_some_and(|end| end != first.0));
            *end = Some(first.0 + extents.iter().map(|e| e.len).sum::<u64>());
        }
    }
    ensure!(breaks <= 20, "{breaks} of 400 files lie apart from their directory");
    Ok(())
}
