//! Images made by the kernel, damaged behind sound checksums: what `btrfs check` finds, we find.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use oleo_check::{CheckOptions, Finding, Kind, Severity, check};
use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{CheckedNode, Key, LeafBuilder};
use oleo_sim::budget::budget;
use oleo_sim::oracle::{Oracle, Scratch, oracle, run};
use oleo_sim::rng::Rng;
use oleo_sim::rot::{Damage, Rot};
use oleo_volume::{OpenOptions, Volume};

/// Our findings; `None` if the volume cannot be opened at all.
fn findings(image: &Path) -> Option<Vec<Finding>> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, &FileOptions::default()).unwrap());
    let volume = Volume::open(vec![device], &OpenOptions::default()).ok()?;
    let options = CheckOptions::default().threads(1).data(true);
    let mut findings = check(&volume, &options).ok()?.findings;
    // What mkfs.btrfs 6.2 leaves behind.
    findings.retain(|finding| finding.kind != Kind::FreeSpaceLeftover);
    Some(findings)
}

/// A small file system with a bit of everything.
fn make(oracle: Oracle, scratch: &Scratch, mkfs: &str) -> Result<PathBuf> {
    let image = scratch.image("image", 256 << 20)?;
    oracle.mkfs(&mkfs.split_whitespace().collect::<Vec<_>>(), &[&image])?;
    let mounted = oracle.mount(&[&image], "")?;
    let top = mounted.path();
    let btrfs = |args: &[&str], path: &Path| {
        run("btrfs", args.iter().map(std::ffi::OsString::from).chain([path.as_os_str().to_owned()]))
    };
    btrfs(&["quota", "enable"], top)?;
    let sub = top.join("sub");
    btrfs(&["subvolume", "create"], &sub)?;
    btrfs(&["subvolume", "create"], &sub.join("nested"))?;
    for base in [top, &sub, &sub.join("nested")] {
        fs::create_dir(base.join("dir"))?;
        for n in 0..40usize {
            let name = base.join("dir").join(format!("file-{n}"));
            fs::write(&name, vec![b'a' + n as u8; n * 700])?;
            if n % 5 == 0 {
                fs::hard_link(&name, base.join(format!("link-{n}")))?;
            }
        }
        symlink("somewhere/else", base.join("symlink"))?;
        fs::create_dir_all(base.join("a/b/c"))?;
    }
    mounted.sync()?;
    let snap = top.join("snap");
    run("btrfs", ["subvolume".as_ref(), "snapshot".as_ref(), sub.as_os_str(), snap.as_os_str()])?;
    fs::remove_file(snap.join("dir/file-7"))?;
    fs::write(snap.join("dir/new"), vec![1; 50_000])?;
    mounted.unmount()?;
    Ok(image)
}

/// Removes or changes one item of a leaf: damage that checksums and the layout of blocks do not show.
fn surgery(rot: &Rot, rng: &mut Rng) -> Option<(Key, &'static str, Damage)> {
    let index = usize::try_from(rng.below(rot.blocks() as u64)).ok()?;
    let bytes = rot.block(index).ok()?;
    if bytes[100] != 0 {
        return None;
    }
    let node = CheckedNode::trust(bytes.into_boxed_slice());
    // Not the first: its key is in the parent, too.
    if node.len() < 2 {
        return None;
    }
    let slot = 1 + usize::try_from(rng.below(node.len() as u64 - 1)).ok()?;
    let how = *rng.pick(&["remove", "flip", "add one", "key"])?;
    let mut items = BTreeMap::new();
    for (at, (mut key, item)) in node.iter().enumerate() {
        let mut item = item.to_vec();
        if at == slot {
            let byte = usize::try_from(rng.below(item.len().max(1) as u64)).ok()?;
            match how {
                "remove" => continue,
                "flip" if !item.is_empty() => item[byte] ^= 1 << rng.below(8),
                "add one" if !item.is_empty() => item[byte] = item[byte].wrapping_add(1),
                _ => key.offset ^= 1 << rng.below(16),
            }
        }
        items.insert(key, item);
    }
    let mut leaf = LeafBuilder::new(u32::try_from(node.bytes().len()).ok()?);
    for (key, item) in &items {
        assert!(leaf.push(key, item), "nothing has grown");
    }
    Some((node.key(slot), how, rot.replace(index, &leaf.finish(&node.head()))))
}

/// What `btrfs check` finds, we find. Method: random damage to blocks and items of an image that the kernel has made.
#[test]
fn what_btrfs_check_finds_we_find() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = make(oracle, &scratch, "-n 4096").unwrap();
    assert_eq!(findings(&image).unwrap(), []);
    let rot = Rot::survey(&image).unwrap();
    let (mut both, mut none, mut only_we) = (0, 0, 0);
    let mut missed = Vec::new();
    let seeds = budget().seeds(0, 60, 150);
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let (what, damage) = if rng.below(3) == 0 {
            ("random".to_owned(), rot.random(&mut rng).unwrap())
        } else {
            match surgery(&rot, &mut rng) {
                Some((key, how, damage)) => (format!("{how} {key}"), damage),
                None => continue,
            }
        };
        let _inflicted = rot.inflict(&damage).unwrap();
        let ours = findings(&image);
        let theirs = oracle.check(&[&image]).unwrap().but_for_mkfs_6_2();
        let noticed = ours.as_ref().is_none_or(|f| !f.is_empty());
        match (noticed, theirs.is_clean()) {
            (true, false) => both += 1,
            (false, true) => {
                none += 1;
                println!(
                    "NONE {seed}: {what} {}",
                    if what == "random" { format!("{damage:?}") } else { String::new() }
                );
            }
            (true, true) => {
                only_we += 1;
                let kinds: Vec<String> = ours
                    .iter()
                    .flatten()
                    .filter(|f| f.severity == Severity::Error)
                    .map(|f| format!("{} {:?}: {} / {}", f.kind, f.at.key, f.have, f.want))
                    .collect();
                println!("ONLY WE {seed}: {what}: {kinds:?}");
            }
            (false, false) => missed.push(format!("seed {seed}: {what}: {damage:?}\n    btrfs check: {theirs}")),
        }
    }
    println!("{both} found by both, {none} by nobody, {only_we} only by us");
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
}
