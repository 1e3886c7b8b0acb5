//! Volumes whose relocation by the kernel was cut short.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use oleo::{Image, OpenOptions, TreeId};
use oleo_format::{ItemType, Key};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, oracle, run};

/// How often the kernel is caught at it, at most, until it is found with a relocation tree.
const TRIES_MAX: u32 = 300;

/// How many relocation trees there are, and files that data is copied in.
fn left_over(path: &Path) -> Result<(u64, u64)> {
    let image = Image::open(path, &OpenOptions::default().no_log_replay(true))?;
    let engine = image.fs().engine();
    let count = |tree: TreeId, objectid: u64, kind: ItemType| -> Result<u64> {
        let Some(root) = engine.root(tree)? else { return Ok(0) };
        let mut cursor = engine.blocks().cursor(&root);
        let mut more = cursor.seek(&Key::new(objectid, kind, 0))?;
        let mut n = 0;
        while more && cursor.key().is_some_and(|key| key.objectid == objectid && key.item_type == kind) {
            n += 1;
            more = cursor.next()?;
        }
        Ok(n)
    };
    let trees = count(TreeId::ROOT, TreeId::TREE_RELOC.0, ItemType::ROOT_ITEM)?;
    let files = count(TreeId::DATA_RELOC, -5i64 as u64, ItemType::ORPHAN_ITEM)?;
    Ok((trees, files))
}

fn sh(top: &Path, script: &str) -> Result<()> {
    run("sh", ["-c", &format!("set -e; cd {} && {script}", top.display())]).map(drop)
}

fn stop(mut balance: Child, top: &Path) -> Result<()> {
    // Fails where it is over already.
    let _ = run("btrfs", ["balance", "cancel", &top.display().to_string()]);
    balance.wait()?;
    Ok(())
}

/// Catches a balance of the kernel's with something left over, and answers how many trees and files.
fn caught(oracle: Oracle, image: &Path, copy: &Path, kind: &str) -> Result<(u64, u64)> {
    oracle.mkfs(&["-n", "4096"], &[image])?;
    let mounted = oracle.mount(&[image], "")?;
    let top = mounted.path().to_path_buf();
    sh(
        &top,
        "btrfs -q subvolume create v; \
         for d in $(seq 40); do mkdir v/$d; for i in $(seq 100); do echo $d-$i > v/$d/$i; done; done; \
         head -c 60000000 /dev/urandom > v/data; sync; \
         for s in $(seq 6); do btrfs -q subvolume snapshot v s$s; \
         for d in $(seq $s 3 40); do touch s$s/$d/* v/$d/7; done; cp --reflink v/data s$s/clone; done; sync",
    )?;
    let at = top.display().to_string();
    for try_ in 0..TRIES_MAX {
        let balance = Command::new("btrfs")
            .args(["balance", "start", kind, &at])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // On a busy machine the kernel gets there later.
        let (nth, round) = (u64::from(try_ % 30), u64::from(1 + try_ / 30));
        std::thread::sleep(Duration::from_millis(5 + 7 * nth * round));
        // Nothing is written to the file between the first and the last of its extents.
        let (from, to) = (image.display().to_string(), copy.display().to_string());
        run("cp", ["--reflink=always", &from, &to])?;
        stop(balance, &top)?;
        let found = left_over(copy)?;
        if found.0 > 0 {
            mounted.unmount()?;
            return Ok(found);
        }
    }
    anyhow::bail!("the kernel was never caught with a relocation under way")
}

fn brought_to_order(kind: &str) -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let bed = scratch.image("bed", 3 << 30)?;
    oracle.mkfs(&[], &[&bed])?;
    let bed = oracle.mount(&[&bed], "")?;
    let (image, copy) = (bed.path().join("kernel"), bed.path().join("caught"));
    std::fs::File::create(&image)?.set_len(1 << 30)?;
    let (trees, files) = caught(oracle, &image, &copy, kind)?;
    eprintln!("{kind}: {trees} relocation trees, {files} files of moved data");
    let other = bed.path().join("as the kernel has it");
    run("cp", ["--sparse=always", &copy.display().to_string(), &other.display().to_string()])?;

    Image::open(&copy, &OpenOptions::writing())?.close()?;
    assert_eq!(left_over(&copy)?, (0, 0), "what the kernel left is gone");
    let found = oracle.check(&[&copy])?;
    assert!(found.is_clean(), "{kind}: btrfs check: {found}");
    let manifest = |path: &Path| -> Result<Manifest> {
        let mounted = oracle.mount(&[path], "skip_balance")?;
        let manifest = Manifest::of_dir(mounted.path(), Detail::default())?;
        let found = mounted.scrub()?;
        assert!(found.is_clean(), "{kind}: scrub: {found}");
        mounted.unmount()?;
        Ok(manifest)
    };
    let (have, want) = (manifest(&copy)?, manifest(&other)?);
    let differences: Vec<String> = want.differences(&have, &Ignore::default()).into_iter().take(20).collect();
    assert!(differences.is_empty(), "{kind}: {differences:#?}");
    let ours = Image::open(&copy, &OpenOptions::writing())?;
    drop(ours.create_file("made by us").context("life goes on")?);
    ours.close()?;
    oracle.must_be_sound(&[&copy], kind)?;
    bed.unmount()
}

/// Goal: a volume whose balance of metadata was cut short in the kernel opens for writing, holds all that it held, and is sound.
/// Method: the kernel's volume lies in a file of another volume, where it is cloned while it balances, until a clone shows relocation
/// trees.
#[test]
fn of_metadata() -> Result<()> {
    brought_to_order("-m")
}

/// Goal: the same for data.
#[test]
fn of_data() -> Result<()> {
    brought_to_order("-d")
}
