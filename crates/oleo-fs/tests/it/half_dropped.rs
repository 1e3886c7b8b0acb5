//! Deleted subvolumes that are half gone: what one side has begun the other finishes.

use std::path::Path;
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::TreeId;
use oleo_fs::{Fs, FsOptions};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, oracle, run};
use oleo_txn::{Dropped, Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const FILES: usize = 2500;

fn open(image: &Path) -> anyhow::Result<Fs> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?);
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

/// Subvolume `a`, its snapshot `b`, changed since, and `c`, a snapshot of that, changed too. Small blocks make high trees.
fn aged(oracle: Oracle, image: &Path) -> anyhow::Result<[u64; 3]> {
    oracle.mkfs(&["-n", "4096"], &[image])?;
    let mounted = oracle.mount(&[image], "")?;
    let top = mounted.path();
    let at = |name: &str| top.join(name).display().to_string();
    let fill = |dir: &str, step: usize, len: usize| -> anyhow::Result<()> {
        for n in (0..FILES).step_by(step) {
            // Inline, on disk, inline …
            let len = if n % 3 == 0 { 5000 + len } else { len };
            std::fs::write(top.join(dir).join(format!("file{n}")), vec![n as u8; len])?;
        }
        Ok(())
    };
    run("btrfs", ["subvolume", "create", &at("a")])?;
    fill("a", 1, 100)?;
    mounted.sync()?;
    run("btrfs", ["subvolume", "snapshot", &at("a"), &at("b")])?;
    fill("a", 50, 200)?;
    fill("b", 70, 300)?;
    mounted.sync()?;
    run("btrfs", ["subvolume", "snapshot", &at("b"), &at("c")])?;
    fill("c", 90, 400)?;
    fill("b", 400, 500)?;
    let mut ids = [0; 3];
    for (id, name) in ids.iter_mut().zip(["a", "b", "c"]) {
        *id = run("btrfs", ["inspect-internal", "rootid", &at(name)])?.trim().parse()?;
    }
    mounted.unmount()?;
    Ok(ids)
}

/// Goal: after any number of our steps of dropping a subvolume the volume is sound, and the kernel goes on where we were.
/// Method: a kernel-made volume of snapshots; delete each of them in turn here, take some steps with a commit each, `btrfs
/// check`; mount, let the kernel finish, check again; what is left has its contents.
#[test]
fn the_kernel_finishes_what_we_began() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    for (round, (victim, steps)) in [(0, 1), (0, 7), (1, 12), (2, 3), (0, 25)].into_iter().enumerate() {
        let image = scratch.image(&format!("dropped{round}"), 256 << 20)?;
        let ids = aged(oracle, &image)?;
        let survivor = ["b", "c", "a"][victim];
        let mounted = oracle.mount(&[&image], "")?;
        let before = Manifest::of_dir(&mounted.path().join(survivor), Detail::default())?;
        mounted.unmount()?;
        let fs = open(&image)?;
        let tree = TreeId(ids[victim]);
        fs.subvol_delete(tree)?;
        fs.sync()?;
        for step in 0..steps {
            assert_eq!(fs.engine().drop_step(tree, 15)?, Dropped::Partly, "round {round} step {step}");
            fs.engine().commit()?;
        }
        drop(fs);
        oracle.must_be_sound(&[&image], &format!("round {round}, {steps} steps into tree {tree}"))?;
        let mounted = oracle.mount(&[&image], "commit=1")?;
        run("btrfs", ["subvolume", "sync", &mounted.path().display().to_string()])?;
        let after = Manifest::of_dir(&mounted.path().join(survivor), Detail::default())?;
        before.must_equal(&after, &Ignore::default(), &format!("round {round}, {survivor}"));
        mounted.unmount()?;
        oracle.must_be_sound(&[&image], &format!("round {round}, finished by the kernel"))?;
        assert!(open(&image)?.engine().dead_trees()?.is_empty(), "round {round}: the tree is gone");
    }
    Ok(())
}

/// Goal: we finish what the kernel began to drop. Method: delete on a kernel mount and unmount immediately; clean here; check.
#[test]
fn we_finish_what_the_kernel_began() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("begun", 256 << 20)?;
    aged(oracle, &image)?;
    for name in ["b", "a", "c"] {
        let mounted = oracle.mount(&[&image], "")?;
        run("btrfs", ["subvolume", "delete", &mounted.path().join(name).display().to_string()])?;
        mounted.unmount()?;
        let fs = open(&image)?;
        while fs.clean(40)? {
            fs.engine().commit()?;
        }
        fs.sync()?;
        assert!(fs.engine().dead_trees()?.is_empty());
        drop(fs);
        oracle.must_be_sound(&[&image], &format!("without {name}"))?;
    }
    oracle.mount(&[&image], "")?.unmount()
}
