//! What the kernel has made and aged: found as the kernel shows it, then taken apart to the last name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::TreeId;
use oleo_fs::{FileKind, Fs, FsError, FsOptions, InodeRef, ReadOnly};
use oleo_sim::manifest::{Kind, Manifest};
use oleo_sim::oracle::oracle;
use oleo_sim::specimen::aged;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

fn open(images: &[PathBuf]) -> Result<Fs> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for image in images {
        devices.push(Arc::new(FileDevice::open(image, &FileOptions { write: true, ..FileOptions::default() })?));
    }
    let volume = Volume::open(devices, &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn kind_of(kind: FileKind) -> Option<Kind> {
    Some(match kind {
        FileKind::File => Kind::File,
        FileKind::Dir => Kind::Dir,
        FileKind::Symlink => Kind::Symlink,
        FileKind::CharDevice => Kind::Char,
        FileKind::BlockDevice => Kind::Block,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
        FileKind::Unknown => return None,
    })
}

/// Compares everything below a directory with what the kernel showed; returns how many names there are.
fn compare(fs: &Fs, want: &Manifest, dir: &InodeRef, path: &[u8]) -> Result<usize> {
    let mut names = 0;
    let mut after = 0;
    loop {
        let entries = fs.readdir(dir, after, 50)?;
        let Some(last) = entries.last() else { return Ok(names) };
        after = last.index;
        for entry in entries {
            let path = if path.is_empty() { entry.name.clone() } else { [path, b"/", &entry.name].concat() };
            let here = || path.escape_ascii().to_string();
            let child = fs.lookup(dir, &entry.name)?.with_context(here)?;
            let attr = fs.attr(&child);
            let have = want.entries.get(&path).with_context(|| format!("{} is not there for the kernel", here()))?;
            ensure!(kind_of(attr.kind) == Some(have.kind), "kind of {}", here());
            ensure!(child.is_stub() || attr.mode & 0o7777 == have.mode & 0o7777, "mode of {}", here());
            ensure!((attr.uid, attr.gid) == (have.uid, have.gid), "owner of {}", here());
            if attr.kind != FileKind::Dir {
                ensure!(u64::from(attr.nlink) == have.nlink, "links of {}", here());
                ensure!(attr.size == have.size, "size of {}", here());
            }
            ensure!((attr.rdev.major, attr.rdev.minor) == have.rdev, "device number of {}", here());
            if let Some(target) = &have.target {
                ensure!(&fs.read_link(&child)? == target, "target of {}", here());
            }
            let xattrs: BTreeMap<_, _> = fs.xattrs(&child)?.into_iter().collect();
            // The kernel does not show what only root's tools may see; what it shows must be there.
            for (name, value) in &have.xattrs {
                ensure!(xattrs.get(name) == Some(value), "attribute {} of {}", name.escape_ascii(), here());
            }
            names += 1;
            if attr.kind == FileKind::Dir {
                names += compare(fs, want, &child, &path)?;
            }
        }
    }
}

/// Removes everything below a directory, subvolumes included.
fn clear(fs: &Fs, dir: &InodeRef) -> Result<()> {
    for entry in fs.readdir(dir, 0, usize::MAX)? {
        let here = || format!("{} in {dir:?}: {:?}", entry.name.escape_ascii(), entry);
        let child = fs.lookup(dir, &entry.name)?.with_context(|| format!("{} is listed only", here()))?;
        if child.tree() != dir.tree() {
            let id = child.tree();
            fs.set_read_only(id, ReadOnly::No)?;
            clear(fs, &child).with_context(here)?;
            drop(child);
            fs.subvol_delete(id).with_context(here)?;
        } else if entry.kind == FileKind::Dir {
            if !child.is_stub() {
                clear(fs, &child).with_context(here)?;
            }
            drop(child);
            fs.rmdir(dir, &entry.name).with_context(here)?;
        } else {
            drop(child);
            fs.unlink(dir, &entry.name).with_context(here)?;
        }
    }
    let left = fs.readdir(dir, 0, 9)?;
    ensure!(left.is_empty(), "left in {dir:?}: {left:?}");
    Ok(())
}

/// Goal: all names, links, attributes and subvolumes that the kernel has made are found, and can be removed.
/// Method: file systems aged by the kernel; compared name by name; then everything is removed, subvolumes too, with
/// commits in between; the kernel and `btrfs check` judge the rest.
#[test]
fn the_kernels_names_are_found_and_removed() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for recipe in aged::recipes().into_iter().filter(|r| ["plain", "zstd-xxhash-4k", "mixed"].contains(&r.name)) {
        let scratch = oracle.scratch()?;
        let aged = aged::make(oracle, &scratch, &recipe)?;
        let fs = open(&aged.devices)?;
        let root = fs.root(TreeId::FS)?;
        let names = compare(&fs, &aged.manifest, &root, b"").with_context(|| recipe.name.to_owned())?;
        let want = aged.manifest.entries.keys().filter(|path| !path.is_empty()).count();
        ensure!(names == want, "{}: found {names} names of {want}", recipe.name);
        ensure!(fs.default_subvol()?.0 == aged.default_subvol);
        let listed: Vec<_> = fs.subvol_list()?.into_iter().filter(|s| s.parent.is_some()).collect();
        for (have, want) in listed.iter().zip(&aged.subvols) {
            ensure!(have.id.0 == want.id && have.path == want.path.as_bytes() && have.read_only == want.read_only);
        }
        ensure!(listed.len() == aged.subvols.len(), "{}: {} subvolumes", recipe.name, listed.len());
        fs.set_default(TreeId::FS)?;
        clear(&fs, &root).with_context(|| recipe.name.to_owned())?;
        ensure!(fs.readdir(&root, 0, 1)?.is_empty());
        fs.sync()?;
        oracle.check(&aged.devices)?;
        for _ in 0..100_000 {
            if !fs.clean(100)? {
                break;
            }
        }
        fs.sync()?;
        ensure!(matches!(fs.root(TreeId(aged.default_subvol)), Err(FsError::NotFound)) || aged.default_subvol == 5);
        drop(root);
        drop(fs);
        oracle.must_be_sound(&aged.devices, recipe.name)?;
    }
    Ok(())
}
