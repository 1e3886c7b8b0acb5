//! Volumes without a free-space tree that is kept up get one when they are opened for changes.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use oleo::{Image, OpenOptions};
use oleo_device::MemDevice;
use oleo_format::{CompatRo, SUPER_OFFSETS};
use oleo_sim::disk::{Power, SimDisk, load, store};
use oleo_sim::oracle::{Oracle, oracle};
use oleo_sim::rng::Rng;

type Files = BTreeMap<String, Vec<u8>>;

/// A volume of the kernel's with caches of version 1 (of groups of 100 MiB and more there are some), or with a tree.
fn made(oracle: Oracle, image: &Path, old_cache: bool) -> Result<Files> {
    let (args, options): (&[&str], _) =
        if old_cache { (&["-R", "^free-space-tree"], "space_cache=v1") } else { (&[], "") };
    oracle.mkfs(args, &[image])?;
    let mounted = oracle.mount(&[image], options)?;
    let mut rng = Rng::new(1);
    let mut files: Files = (0..150).map(|n| (format!("f{n}"), rng.bytes(2_000 + n * 700))).collect();
    for (name, bytes) in &files {
        std::fs::write(mounted.path().join(name), bytes)?;
    }
    mounted.sync()?;
    for n in (0..150).step_by(3) {
        let name = format!("f{n}");
        std::fs::remove_file(mounted.path().join(&name))?;
        files.remove(&name);
    }
    mounted.unmount()?;
    Ok(files)
}

fn flags(image: &Path) -> Result<CompatRo> {
    Ok(Image::open(image, &OpenOptions::default())?.volume().super_block().features().compat_ro)
}

const BOTH: CompatRo = CompatRo::FREE_SPACE_TREE.union(CompatRo::FREE_SPACE_TREE_VALID);

/// The kernel and `btrfs check` find nothing, and the files are there; then the kernel writes, and it is sound still.
fn must_be_sound(oracle: Oracle, image: &Path, files: &Files, what: &str) -> Result<()> {
    oracle.must_be_sound(&[image], what)?;
    let mounted = oracle.mount(&[image], "")?;
    for (name, bytes) in files {
        ensure!(std::fs::read(mounted.path().join(name))? == *bytes, "{what}: {name}");
    }
    for n in 0..40 {
        std::fs::write(mounted.path().join(format!("kernel-{n}")), vec![n; 30_000])?;
    }
    mounted.unmount()?;
    oracle.must_be_sound(&[image], &format!("{what}, written by the kernel"))
}

/// Goal: an old cache becomes a tree, nothing of the cache stays, kernel and check agree; with `keep_space_cache` it stays as it is; one without old
/// cache that was made without a tree has none afterwards, either.
#[test]
fn an_old_cache_becomes_a_tree() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("i", 4 << 30)?;
    let mut files = made(oracle, &image, true)?;
    ensure!(!flags(&image)?.contains(CompatRo::FREE_SPACE_TREE), "the kernel made a tree");
    for keeps in [true, false] {
        let open = Image::open(&image, &OpenOptions::writing().keep_space_cache(keeps))?;
        open.write("mine", b"of ours")?;
        open.close()?;
        ensure!(flags(&image)?.contains(BOTH) != keeps, "kept: {keeps}");
    }
    files.insert("mine".into(), b"of ours".to_vec());
    must_be_sound(oracle, &image, &files, "from an old cache")?;
    let none = scratch.image("none", 512 << 20)?;
    oracle.mkfs(&["-R", "^free-space-tree"], &[&none])?;
    let open = Image::open(&none, &OpenOptions::writing())?;
    open.write("mine", b"of ours")?;
    open.close()?;
    ensure!(!flags(&none)?.contains(CompatRo::FREE_SPACE_TREE), "nobody asked for a tree");
    Ok(())
}

/// Goal: a tree that is marked as not valid is made anew, whatever is in it. Method: the mark taken away, and files written by the kernel without
/// keeping the tree up cannot be had; so what is there is right, and must come out the same.
#[test]
fn a_tree_that_is_not_valid_is_made_anew() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("i", 512 << 20)?;
    let mut files = made(oracle, &image, false)?;
    let mut sb = Image::open(&image, &OpenOptions::default())?.volume().super_block();
    sb.compat_ro_flags.set(CompatRo::FREE_SPACE_TREE.bits());
    let file = std::fs::OpenOptions::new().write(true).open(&image)?;
    for at in SUPER_OFFSETS.into_iter().filter(|at| *at < 512 << 20) {
        file.write_all_at(&sb.to_bytes(at), at)?;
    }
    drop(file);
    // Kept as it is, it is not kept up, and stays marked.
    let open = Image::open(&image, &OpenOptions::writing().keep_space_cache(true))?;
    open.write("first", b"not in the tree")?;
    open.close()?;
    ensure!(flags(&image)? & BOTH == CompatRo::FREE_SPACE_TREE, "the mark");
    let open = Image::open(&image, &OpenOptions::writing())?;
    open.write("second", b"in the tree")?;
    open.close()?;
    ensure!(flags(&image)?.contains(BOTH), "the mark");
    files.insert("first".into(), b"not in the tree".to_vec());
    files.insert("second".into(), b"in the tree".to_vec());
    must_be_sound(oracle, &image, &files, "not valid")
}

/// Goal: a crash while the tree is made leaves the old state or the new one, and the next opening does the rest. Method: power fails after each
/// number of writes and flushes of the opening; what is left is opened, read and checked; some states by the kernel's tools, too.
#[test]
fn a_crash_leaves_the_old_state_or_the_new() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("i", 1280 << 20)?;
    let files = made(oracle, &image, true)?;
    let before: MemDevice = load(&image)?;
    let (mut old, mut new) = (0, 0);
    for cut in 0.. {
        let power = Power::steady();
        let disk = Arc::new(SimDisk::new("disk", before.copy(), &power));
        power.cut_after(cut);
        let opened = Image::from_devices(vec![disk.clone()], &OpenOptions::writing());
        let whole = !power.is_cut();
        ensure!(opened.is_ok() || !whole, "it does not open: {:?}", opened.err());
        drop(opened);
        let left = disk.after_crash(&mut Rng::new(u64::from(cut)));
        drop(disk);
        let found = Image::from_devices(vec![Arc::new(left.copy())], &OpenOptions::default())?;
        match found.volume().super_block().features().compat_ro & BOTH {
            flags if flags == BOTH => new += 1,
            flags if flags.is_empty() => old += 1,
            flags => anyhow::bail!("after {cut}: {flags:?}"),
        }
        drop(found);
        let again = Image::from_devices(vec![Arc::new(left.copy())], &OpenOptions::writing())?;
        ensure!(again.volume().super_block().features().compat_ro.contains(BOTH), "after {cut}");
        for (name, bytes) in &files {
            ensure!(again.read(name.as_str())? == *bytes, "after {cut}: {name}");
        }
        again.close()?;
        if cut % 5 == 0 || whole {
            let out = scratch.path().join("left");
            store(&left, &out)?;
            let found = oracle.check(&[&out])?;
            ensure!(found.is_clean(), "after {cut}: {found}");
        }
        if whole {
            break;
        }
    }
    ensure!(old > 3 && new > 0, "{old} of before, {new} of after");
    Ok(())
}
