//! Groups that move while a shared tree is half deleted or half moved.

use super::*;

/// How a deletion continues while groups move.
#[derive(Clone, Copy, Debug)]
struct HalfWay {
    quota: bool,
    /// The volume is reopened after each step.
    reopened: bool,
}

/// Goal: groups move while a deletion passes through blocks with full backrefs, and only what those still reference
/// moves along; the deletion continues in the moved blocks, and so does the kernel's. Method: a subvolume is
/// snapshotted twice and then rewritten throughout, so that the snapshots alone have its old blocks, as full
/// references; they are deleted in small steps, and after each all groups move. Now and then a copy is given to the
/// kernel, which deletes the rest.
fn half_way(oracle: Oracle, how: HalfWay) -> anyhow::Result<()> {
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 1 << 30)?;
    oracle.mkfs(&["-n", "4096"], &[&image])?;
    let mut fs = open(&image)?;
    if how.quota {
        quota_enable(&fs)?;
    }
    const FILES: u64 = 1500;
    let top = fs.root(TreeId::FS)?;
    let source = fs.subvol_create(&top, b"v", &NewSubvol::default())?;
    let root = fs.root(source)?;
    let mut rng = Rng::new(5);
    let name = |n| format!("file{n}");
    let len = |n: u64| if n.is_multiple_of(9) { 9000 } else { 500 };
    for n in 0..FILES {
        let file = fs.create(&root, name(n).as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        fs.write(&file, 0, &rng.bytes(len(n)))?;
    }
    fs.sync()?;
    let snapshots = [&b"w"[..], b"x"].map(|name| fs.snapshot(source, &top, name, SnapshotOptions::default()));
    let mut last = BTreeMap::new();
    for n in 0..FILES {
        let file = fs.lookup(&root, name(n).as_bytes())?.unwrap();
        let bytes = rng.bytes(len(n));
        fs.write(&file, 0, &bytes)?;
        last.insert(n, bytes);
    }
    fs.sync()?;
    drop((root, top));
    for snapshot in snapshots {
        fs.subvol_delete(snapshot?)?;
    }
    let (mut steps, mut moved) = (0, 0);
    while fs.clean(40)? {
        steps += 1;
        fs.sync()?;
        fs.engine().blocks().forget_all();
        moved += move_all(&fs, BlockGroupFlags::METADATA | BlockGroupFlags::DATA)?.blocks;
        if how.quota {
            must_be_exact(&fs, &format!("{how:?}, step {steps}"))?;
        }
        if how.reopened || steps % 6 == 1 {
            drop(fs);
            if steps % 6 == 1 {
                must_be_clean(&image, &format!("{how:?}, step {steps}"))?;
                let copy = scratch.path().join("copy");
                std::fs::copy(&image, &copy)?;
                let found = oracle.check(&[&copy])?;
                // With quota it reads what is gone, complains that it cannot, and finds no error.
                assert!(how.quota || found.is_clean(), "{how:?}, step {steps}: btrfs check: {found}");
                // Its cleaner sleeps from one of its commits to the next.
                let mounted = oracle.mount(&[&copy], "commit=1")?;
                run("btrfs", ["subvolume", "sync", &mounted.path().display().to_string()])?;
                mounted.unmount()?;
                oracle.must_be_sound(&[&copy], &format!("{how:?}, step {steps}: the kernel went on"))?;
                std::fs::remove_file(&copy)?;
            }
            fs = open(&image)?;
        }
    }
    assert!(steps >= 8 && moved > 1000, "{how:?}: {steps} steps, {moved} blocks");
    fs.sync()?;
    if how.quota {
        must_be_exact(&fs, &format!("{how:?}, in the end"))?;
    }
    drop(fs);
    must_be_clean(&image, &format!("{how:?}: in the end"))?;
    oracle.must_be_sound(&[&image], &format!("{how:?}: in the end"))?;
    let fs = open(&image)?;
    let root = fs.root(source)?;
    for (n, bytes) in last {
        let file = fs.lookup(&root, name(n).as_bytes())?.unwrap();
        let mut out = vec![0; bytes.len()];
        fs.read(&file, 0, &mut out)?;
        assert!(out == bytes, "{how:?}: {}", name(n));
    }
    Ok(())
}

#[test]
fn deletion_half_way() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    half_way(oracle, HalfWay { quota: false, reopened: false })
}

#[test]
fn deletion_half_way_with_quota() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    half_way(oracle, HalfWay { quota: true, reopened: true })
}

/// Goal: a shared tree of which some blocks were moved and others were not is sound, for our check, too, and can be
/// changed. Method: a subvolume with a snapshot in several metadata groups; one of them moves; then the subvolume is
/// rewritten in part, and then it is deleted, and all groups move.
#[test]
fn one_group_of_a_shared_tree() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let image = scratch.image("relocate", 512 << 20)?;
    oracle.mkfs(&["-n", "4096", "-m", "single"], &[&image])?;
    let fs = open(&image)?;
    let top = fs.root(TreeId::FS)?;
    let source = fs.subvol_create(&top, b"v", &NewSubvol::default())?;
    let root = fs.root(source)?;
    let mut rng = Rng::new(8);
    for n in 0..9000 {
        let file = fs.create(&root, format!("file{n}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
        fs.write(&file, 0, &rng.bytes(1500))?;
    }
    fs.sync()?;
    let there = groups(&fs, BlockGroupFlags::METADATA);
    assert!(there.len() > 1, "{there:?}");
    fs.snapshot(source, &top, b"w", SnapshotOptions::default())?;
    fs.sync()?;
    for (nth, start) in there.into_iter().enumerate() {
        fs.engine().relocate_group(start, &|_| true)?.expect("nobody stops it");
        must_be_clean_at(&image, &fs, &format!("{nth} moved"))?;
        for n in (0..9000).step_by(70) {
            let file = fs.lookup(&root, format!("file{n}").as_bytes())?.unwrap();
            fs.write(&file, 0, &rng.bytes(1000))?;
        }
        fs.sync()?;
        must_be_clean_at(&image, &fs, &format!("{nth} moved, and written to"))?;
    }
    drop(root);
    fs.subvol_delete(source)?;
    while fs.clean(50)? {}
    fs.sync()?;
    must_be_clean_at(&image, &fs, "deleted")?;
    move_all(&fs, BlockGroupFlags::METADATA)?;
    drop((top, fs));
    must_be_clean(&image, "in the end")?;
    oracle.must_be_sound(&[&image], "in the end")?;
    Ok(())
}

/// The same of an image that is open here, at a moment at which nothing is written.
fn must_be_clean_at(image: &Path, _quiet: &Fs, what: &str) -> anyhow::Result<()> {
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy)?;
    must_be_clean(&copy, what)
}
