//! What is left when a file system is closed.

use std::sync::Arc;

use anyhow::{Result, ensure};
use oleo_device::{Device, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions, NewInode, NewKind, RenameMode};
use oleo_mkfs::{MkfsOptions, make};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

/// Goal: closing lets the devices go, whatever the log remembers of the last transaction. Method: a file is synced and renamed, with and without a
/// commit afterwards; nobody but the test has the device then.
#[test]
fn devices_are_let_go() -> Result<()> {
    for commits in [0, 1, 2] {
        let device = Arc::new(MemDevice::new(256 << 20));
        make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default())?;
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let volume = Volume::open(vec![device.clone() as Arc<dyn Device>], &options)?;
        let fs = Fs::open(Engine::open(Arc::new(volume), &EngineOptions::default())?, &FsOptions::default())?;
        let top = fs.root(TreeId::FS)?;
        let file = fs.create(&top, b"file", &NewInode::new(NewKind::File, 0o644))?;
        fs.sync()?;
        fs.write(&file, 0, b"content")?;
        fs.fsync(&file)?;
        fs.rename(&top, b"file", &top, b"renamed", RenameMode::Replace)?;
        for _ in 0..commits {
            fs.sync()?;
        }
        drop((file, top, fs));
        ensure!(Arc::strong_count(&device) == 1, "held after {commits} commits");
    }
    Ok(())
}
