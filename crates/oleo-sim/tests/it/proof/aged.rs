//! File systems that the kernel has made and aged: read equal, changed, and found clean by the kernel afterwards.

use oleo::mkfs::{BuildOptions, build};
use oleo::{Image, OpenOptions};
use oleo_format::TreeId;
use oleo_fs::{SnapshotOptions, SubvolInfo};
use oleo_sim::budget::budget;
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Mix, Op, Target, generate};
use oleo_sim::specimen::aged::{Aged, DETAIL, Recipe, look, make, recipes, use_it};

use crate::ours::{OleoTree, Ours, open_to_read};

fn recipe(name: &str) -> Recipe {
    recipes().into_iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no recipe {name}"))
}

/// Goal: what the kernel shows of its file system, we show too: every attribute, holes, sharing; every subvolume.
fn must_read_equal(aged: &Aged, what: &str) {
    let image = open_to_read(&aged.devices).unwrap();
    let have = Manifest::of(&OleoTree::new(&image).unwrap(), DETAIL).unwrap();
    aged.manifest.must_equal(&have, &Ignore::default(), what);
    let mut subvols: Vec<SubvolInfo> = image.fs().subvol_list().unwrap();
    subvols.retain(|s| s.id != TreeId::FS);
    subvols.sort_by_key(|s| s.id);
    let have: Vec<_> =
        subvols.iter().map(|s| (s.id.0, String::from_utf8_lossy(&s.path).into_owned(), s.read_only)).collect();
    let want: Vec<_> = aged.subvols.iter().map(|s| (s.id, s.path.clone(), s.read_only)).collect();
    assert_eq!(want, have, "{what}: subvolumes");
    assert_eq!(image.fs().default_subvol().unwrap().0, aged.default_subvol, "{what}: default subvolume");
    for subvol in &aged.subvols {
        let top = image.fs().root(TreeId(subvol.id)).unwrap();
        let have = Manifest::of(&OleoTree::below(&image, top), Detail::default()).unwrap();
        aged.manifest_of(subvol).must_equal(&have, &Ignore::default(), &format!("{what}: subvolume {}", subvol.path));
    }
}

/// Goal: we change volumes made by the kernel (files in old and new places, snapshots, deletes of snapshots), and the
/// kernel finds them clean, with the contents that we report.
fn must_change_soundly(oracle: Oracle, aged: Aged, recipe: &Recipe) {
    let what = recipe.name;
    let mut rng = Rng::new(recipe.seed + 1000);
    let mut ours = Ours::open(&aged.devices, OpenOptions::default(), "play").unwrap();
    for op in generate(rng.next_u64(), &Mix { steps: 600, compress: true, reopen: true, ..Mix::default() }) {
        let _ = ours.apply(&op);
    }
    change_old_files(&mut ours, &aged, &mut rng);
    snapshot_and_delete(ours.image());
    // Sharing is read from the disk.
    ours.image().sync().unwrap();
    let want = Manifest::of(&OleoTree::new(ours.image()).unwrap(), DETAIL).unwrap();
    ours.close().unwrap();

    let found = oracle.check(&aged.devices).unwrap().but_for_mkfs_6_2();
    assert!(found.is_clean(), "{what}: btrfs check: {found}");
    let now = look(oracle, aged.devices.clone()).unwrap();
    want.must_equal(&now.manifest, &Ignore::default(), &format!("{what}: as we left it | as the kernel sees it"));
    assert_eq!(now.dead, 0, "{what}: we cleaned up");
    let mounted = oracle.mount(&aged.devices, "").unwrap();
    let found = mounted.scrub().unwrap();
    assert!(found.is_clean(), "{what}: scrub: {found}");
    std::fs::write(mounted.path().join("the kernel was here"), b"and wrote").unwrap();
    mounted.unmount().unwrap();
    let found = oracle.check(&aged.devices).unwrap().but_for_mkfs_6_2();
    assert!(found.is_clean(), "{what}: btrfs check after the kernel wrote again: {found}");
    must_read_equal(&look(oracle, now.devices).unwrap(), what);
}

/// Takes snapshots of some subvolumes and deletes others.
fn snapshot_and_delete(image: &Image) {
    let fs = image.fs();
    let (top, info) = (image.top().unwrap(), fs.subvol_list().unwrap());
    for (i, subvol) in info.iter().filter(|s| s.id != TreeId::FS).enumerate() {
        match i % 4 {
            0 => {
                let options = SnapshotOptions::default().read_only(i % 8 == 0);
                fs.snapshot(subvol.id, &top, format!("again-{i}").as_bytes(), options).unwrap();
            }
            // Those with others nested in them, and the default one, are refused; that is as it should be.
            1 | 2 => drop(fs.subvol_delete(subvol.id)),
            _ => {}
        }
    }
}

/// Overwrites, cuts, links and deletes files that the kernel has made.
fn change_old_files(ours: &mut Ours, aged: &Aged, rng: &mut Rng) {
    let old: Vec<String> = aged
        .manifest
        .entries
        .iter()
        .filter(|(path, e)| e.kind == oleo_sim::manifest::Kind::File && !path.starts_with(b"play/"))
        .filter_map(|(path, _)| String::from_utf8(path.clone()).ok())
        .collect();
    for path in &old {
        if !rng.one_in(6) {
            continue;
        }
        // From the directory of scripts to the top.
        let image = ours.image();
        let (Ok(file), Ok((dir, name))) = (image.find(path), image.find_parent(&image.top().unwrap(), path.as_bytes()))
        else {
            continue;
        };
        if file.subvol().is_read_only() {
            continue;
        }
        let fs = image.fs();
        let len = fs.attr(&file).size;
        let result = match rng.below(5) {
            0 => fs.unlink(&dir, name),
            1 => fs.truncate(&file, rng.below(len + 10_000)),
            2 => fs.punch_hole(&file, rng.below(len + 1), 1 + rng.below(50_000)),
            _ => {
                let part = usize::try_from(1 + rng.length(40_000)).unwrap();
                fs.write(&file, rng.below(len + 1), &rng.bytes(part))
            }
        };
        result.unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    ours.apply(&Op::Sync).unwrap();
}

fn prove(name: &str) {
    let Some(oracle) = oracle() else { return };
    let recipe = recipe(name);
    let scratch = oracle.scratch().unwrap();
    let aged = make(oracle, &scratch, &recipe).unwrap();
    must_read_equal(&aged, name);
    must_change_soundly(oracle, aged, &recipe);
}

/// Volumes of the sample in CI; each takes half a minute.
const SAMPLE_CI: usize = 2;

/// Verifies every second volume of the sample: two tests side by side.
fn prove_half(from: usize) {
    let names = [
        "plain",
        "zstd-xxhash-4k",
        "lzo-sha256-64k",
        "zlib-blake2-raid1",
        "raid10-raid1c3",
        "raid0-raid1c4",
        "mixed",
        "old",
        "holes-items",
        "metadata-uuid",
        "raid5",
        "raid6",
    ];
    for name in budget().sample(names.to_vec(), SAMPLE_CI).into_iter().skip(from).step_by(2) {
        eprintln!("{name}");
        prove(name);
    }
}

#[test]
fn of_the_kernel_even() {
    prove_half(0);
}

#[test]
fn of_the_kernel_odd() {
    prove_half(1);
}

/// Goal: the kernel ages file systems that were made by us, too; among them some that its own mkfs of that age cannot
/// make.
fn prove_ours(name: &'static str, seed: u64, feature: &str) {
    let Some(oracle) = oracle() else { return };
    let recipe = Recipe { name, seed, devices: 2, default_subvol: true, ..Recipe::default() };
    let scratch = oracle.scratch().unwrap();
    let devices = scratch.images(recipe.name, recipe.devices, recipe.device_len).unwrap();
    let mut options = BuildOptions::default().size(Some(recipe.device_len));
    options.mkfs.fsid = Some(uuid::Uuid::new_v4());
    options.mkfs.features.apply(feature).unwrap();
    build(&devices, options).unwrap();
    let aged = use_it(oracle, devices, &recipe).unwrap();
    must_read_equal(&aged, recipe.name);
    must_change_soundly(oracle, aged, &recipe);
}

#[test]
fn of_ours() {
    let kinds = vec![
        ("block-group-tree", 20, "block-group-tree"),
        // The kernel keeps a cache of free space in files of the root tree here, which Oleo does not update and the kernel must not trust.
        ("without-free-space-tree", 21, "^free-space-tree"),
    ];
    for (name, seed, feature) in budget().sample(kinds, 1) {
        prove_ours(name, seed, feature);
    }
}
