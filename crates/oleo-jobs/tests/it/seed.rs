//! A volume that grew out of a seed is written only outside of the seed.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use oleo_check::CheckOptions;
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{BlockGroupFlags, TreeId};
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_jobs::{TrimRange, trim};
use oleo_sim::oracle::{Loop, ReadOnly, oracle, run};
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

use crate::common::open;

fn open_all(files: &[PathBuf], write: bool) -> Result<Volume> {
    let options = FileOptions::default().write(write);
    let devices: Result<Vec<Arc<dyn Device>>, _> =
        files.iter().map(|file| FileDevice::open(file, &options).map(|d| Arc::new(d) as Arc<dyn Device>)).collect();
    Ok(Volume::open(devices?, &OpenOptions { write, ..OpenOptions::default() })?)
}

fn open_fs(files: &[PathBuf]) -> Result<Fs> {
    let engine = Engine::open(Arc::new(open_all(files, true)?), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

/// Goal: nothing is written to a seed, whatever is written to the volume that grew out of it: files, deletions, trim,
/// and block groups that are moved. Method: a seed and a sprout by the kernel; each change by us; our check, `btrfs
/// check` and the kernel on the result; the seed's bytes before and after.
#[test]
fn sprouts_are_written() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let files = scratch.images("dev", 2, 512 << 20)?;
    oracle.mkfs(&["-d", "single", "-m", "single", "-n", "4096"], &files[..1])?;
    let mut rng = Rng::new(1);
    let (old, new) = (rng.bytes(20 << 20), rng.bytes(6 << 20));
    let mounted = oracle.mount(&files[..1], "")?;
    for name in ["old", "gone"] {
        std::fs::write(mounted.path().join(name), &old)?;
    }
    for n in 0..300 {
        std::fs::write(mounted.path().join(format!("small{n}")), rng.bytes(1000))?;
    }
    mounted.unmount()?;
    run("btrfstune", ["-S".as_ref(), "1".as_ref(), files[0].as_os_str()])?;
    let refused = format!("{:#}", open(&files[0]).err().expect("a seed alone is not written"));
    assert!(refused.contains("a seed device"), "{refused}");
    let mounted = oracle.mount(&files[..1], "")?;
    let second = Loop::attach(&files[1], ReadOnly::No)?;
    run("btrfs", ["device".as_ref(), "add".as_ref(), second.path().as_os_str(), mounted.path().as_os_str()])?;
    run("mount", ["-o".as_ref(), "remount,rw".as_ref(), mounted.path().as_os_str()])?;
    mounted.unmount()?;
    drop(second);
    let seed = std::fs::read(&files[0])?;

    let verify = |what: &str| -> Result<()> {
        let report = oleo_check::check(&open_all(&files, false)?, &CheckOptions::default().data(true))?;
        assert!(!report.has_errors(), "{what}: {:#?}", report.findings);
        assert!(std::fs::read(&files[0])? == seed, "{what}: the seed is another");
        let found = oracle.check(&files)?;
        assert!(found.is_clean(), "{what}: btrfs check: {found}");
        let mounted = oracle.mount(&[&files[1], &files[0]], "")?;
        assert!(std::fs::read(mounted.path().join("old"))? == old, "{what}: old");
        assert!(std::fs::read(mounted.path().join("new"))? == new, "{what}: new");
        assert!(!mounted.path().join("gone").exists(), "{what}: gone");
        mounted.unmount()?;
        assert!(std::fs::read(&files[0])? == seed, "{what}: the kernel changed the seed");
        Ok(())
    };

    let fs = open_fs(&files)?;
    let root = fs.root(TreeId::FS)?;
    let file = fs.create(&root, b"new", &NewInode::new(NewKind::File, 0o644))?;
    fs.write(&file, 0, &new)?;
    fs.unlink(&root, b"gone")?;
    for n in (0..300).step_by(3) {
        fs.unlink(&root, format!("small{n}").as_bytes())?;
    }
    fs.sync()?;
    assert!(trim(&fs, &TrimRange::default())?.0 > 0);
    drop((file, root, fs));
    verify("written")?;

    let fs = open_fs(&files)?;
    let all = fs.engine().space().groups();
    for group in all.iter().filter(|group| group.read_only && group.flags.contains(BlockGroupFlags::DATA)) {
        fs.engine().relocate_group(group.start, &|_| true)?.expect("nobody stops it");
    }
    drop(fs);
    verify("moved")
}
