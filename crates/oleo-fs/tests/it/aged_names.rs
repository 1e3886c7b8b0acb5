//! What the kernel has made and aged: found as the kernel shows it, then taken apart to the last name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::TreeId;
use oleo_fs::{FileKind, Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, NewSubvol, ReadOnly};
use oleo_sim::budget::budget;
use oleo_sim::manifest::{Kind, Manifest};
use oleo_sim::oracle::oracle;
use oleo_sim::specimen::aged;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

fn open(images: &[PathBuf]) -> Result<Fs> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for image in images {
        devices.push(Arc::new(FileDevice::open(image, &FileOptions::default().write(true))?));
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
            ensure!(child.is_empty_subvol_dir() || attr.mode & 0o7777 == have.mode & 0o7777, "mode of {}", here());
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
            if !child.is_empty_subvol_dir() {
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
/// commits in between; the kernel and `btrfs check` verify the rest.
#[test]
fn the_kernels_names_are_found_and_removed() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let recipes = aged::recipes().into_iter().filter(|r| ["plain", "zstd-xxhash-4k", "mixed"].contains(&r.name));
    for recipe in budget().sample(recipes.collect(), 1) {
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

/// A POSIX ACL in the kernel's form: tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// Goal: what a new file takes over from its directory is what the kernel would have given it.
/// Method: the kernel makes directories with a group, default ACLs, compression, no copy-on-write, and in each a file, a
/// directory, a link and a pipe; we make the same beside them; mode, group, flags and attributes are compared.
#[test]
fn new_files_inherit_like_the_kernels() -> Result<()> {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("inherit", 256 << 20)?;
    oracle.mkfs(&[], &[&image])?;
    let mounted = oracle.mount(&[&image], "")?;
    let top = mounted.path();
    let none = u32::MAX;
    let named = acl(&[(1, 7, none), (2, 6, 1000), (4, 5, none), (16, 7, none), (32, 1, none)]);
    let plain = acl(&[(1, 6, none), (4, 4, none), (32, 0, none)]);
    let dirs = ["bare", "group", "named-acl", "plain-acl", "zstd", "none", "nocow", "all"];
    for name in dirs {
        let dir = top.join(name);
        std::fs::create_dir(&dir)?;
        if ["group", "all"].contains(&name) {
            chown(&dir, None, Some(77))?;
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o2775))?;
        }
        if ["named-acl", "all"].contains(&name) {
            oleo_sim::manifest::set_xattr(&dir, b"system.posix_acl_default", &named)?;
        }
        if name == "plain-acl" {
            oleo_sim::manifest::set_xattr(&dir, b"system.posix_acl_default", &plain)?;
        }
        if ["zstd", "all"].contains(&name) {
            oleo_sim::manifest::set_xattr(&dir, b"btrfs.compression", b"zstd")?;
        }
        if name == "none" {
            oleo_sim::manifest::set_xattr(&dir, b"btrfs.compression", b"none")?;
        }
        if name == "nocow" {
            oleo_sim::oracle::run("chattr", ["+C".as_ref(), dir.as_os_str()])?;
        }
        // The mode of a new file is the caller's, less the umask, but not with a default ACL: so give all bits away.
        let old = rustix::process::umask(rustix::fs::Mode::empty());
        std::fs::write(dir.join("k-file"), b"")?;
        std::fs::create_dir(dir.join("k-dir"))?;
        symlink("target", dir.join("k-link"))?;
        oleo_sim::oracle::run("mkfifo", [dir.join("k-pipe").as_os_str()])?;
        oleo_sim::oracle::run("btrfs", ["subvolume".as_ref(), "create".as_ref(), dir.join("k-sub").as_os_str()])?;
        rustix::process::umask(old);
    }
    mounted.unmount()?;
    let fs = open(std::slice::from_ref(&image))?;
    let root = fs.root(TreeId::FS)?;
    for name in dirs {
        let dir = fs.lookup(&root, name.as_bytes())?.context("dir")?;
        let made = [
            ("file", NewKind::File, 0o666),
            ("dir", NewKind::Dir, 0o777),
            ("link", NewKind::Symlink(b"target"), 0o777),
            ("pipe", NewKind::Fifo, 0o666),
        ];
        for (kind, new, mode) in made {
            let ours = fs.create(&dir, format!("o-{kind}").as_bytes(), &NewInode::new(new, mode))?;
            same_inheritance(&fs, &dir, kind, &ours).with_context(|| format!("{name}/{kind}"))?;
        }
        let id = fs.subvol_create(&dir, b"o-sub", &NewSubvol::default().mode(0o777))?;
        same_inheritance(&fs, &dir, "sub", &fs.root(id)?).with_context(|| format!("{name}/subvolume"))?;
    }
    fs.sync()?;
    drop(root);
    drop(fs);
    oracle.must_be_sound(&[&image], "inheritance")
}

fn same_inheritance(fs: &Fs, dir: &InodeRef, kind: &str, ours: &InodeRef) -> Result<()> {
    let kernels = fs.lookup(dir, format!("k-{kind}").as_bytes())?.context("the kernel made it")?;
    let (have, want) = (fs.attr(ours), fs.attr(&kernels));
    ensure!(have.mode == want.mode, "mode: have {:o}, want {:o}", have.mode, want.mode);
    ensure!(have.gid == want.gid, "group: have {}, want {}", have.gid, want.gid);
    ensure!(have.flags == want.flags, "flags: have {:?}, want {:?}", have.flags, want.flags);
    ensure!((have.size, have.nbytes) == (want.size, want.nbytes), "size: have {have:?}, want {want:?}");
    let show = |inode| -> Result<Vec<String>> {
        let show = |x: &[u8]| x.escape_ascii().to_string();
        Ok(fs.xattrs(inode)?.iter().map(|(name, value)| format!("{} = {}", show(name), show(value))).collect())
    };
    let (have, want) = (show(ours)?, show(&kernels)?);
    ensure!(have == want, "attributes: have {have:?}, want {want:?}");
    Ok(())
}
