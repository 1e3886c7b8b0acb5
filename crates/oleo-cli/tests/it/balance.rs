//! Balance by command, on images, verified by the kernel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oleo_sim::budget::budget;
use oleo_sim::oracle::{self, Mounted, Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;

use crate::common::{fails_with, json, ok};

const MIB: u64 = 1 << 20;

fn fails(dir: &Path, args: &[&str]) -> String {
    fails_with(dir, 1, args)
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Bytes that do not compress, the same for the same seed.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    Rng::new(seed).bytes(len as usize)
}

/// What is in a tree, by name.
fn contents(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => todo.push(entry.path()),
                false => {
                    drop(found.insert(
                        entry.path().strip_prefix(top).unwrap().to_owned(),
                        std::fs::read(entry.path()).unwrap(),
                    ))
                }
            }
        }
    }
    found
}

/// Files of a few MiB up to `mib` in all, small ones, a subvolume with a snapshot of it, a reflink.
fn fill(mounted: &Mounted, mib: u64) {
    let top = mounted.path();
    oracle::run("btrfs", ["subvolume", "create", &top.join("v").display().to_string()]).unwrap();
    for n in 0..mib / 4 {
        std::fs::write(top.join(format!("v/large{n}")), noise(n, 4 * MIB)).unwrap();
    }
    for n in 0..400 {
        std::fs::write(top.join(format!("v/small{n}")), noise(n, 64 + n * 16)).unwrap();
    }
    let of = |name: &str| top.join(name).display().to_string();
    oracle::run("btrfs", ["subvolume", "snapshot", &of("v"), &of("s")]).unwrap();
    oracle::run("cp", ["--reflink=always", &of("v/large0"), &of("s/again")]).unwrap();
    std::fs::write(top.join("v/small7"), b"changed").unwrap();
    mounted.sync().unwrap();
}

/// Profiles by type, as `df` tells them.
fn profiles(dir: &Path, devices: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut args = vec!["filesystem", "df", "--json", devices[0]];
    devices[1..].iter().for_each(|d| args.extend(["--device", d]));
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for group in json(dir, &args).as_array().unwrap() {
        let text = |name: &str| group[name].as_str().unwrap().to_owned();
        found.entry(text("type")).or_default().push(text("profile").to_lowercase());
    }
    found
}

/// Filters that CI tries.
const FILTERS_CI: usize = 7;

/// Goal: each filter takes the groups that the kernel takes. Method: a volume on two devices with many groups, more and less full;
/// the same filters given to the kernel and to Oleo on copies; the numbers of groups that each has moved and looked at.
#[test]
fn filters_as_the_kernel() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let devices = scratch.images("d", 2, 512 * MIB).unwrap();
    oracle.mkfs(&["-d", "single", "-m", "raid1"], &devices).unwrap();
    let mounted = oracle.mount(&devices, "").unwrap();
    for n in 0..60u64 {
        std::fs::write(mounted.path().join(format!("f{n}")), noise(n, 5 * MIB)).unwrap();
        mounted.sync().unwrap();
    }
    // Some groups become nearly empty, others half empty, some stay full.
    for n in (0..60).filter(|n| *n < 16 || (*n < 40 && n % 2 == 0)) {
        std::fs::remove_file(mounted.path().join(format!("f{n}"))).unwrap();
    }
    mounted.sync().unwrap();
    let want = contents(mounted.path());
    mounted.unmount().unwrap();

    let groups = json(dir, &["filesystem", "df", "--json", "d-0.img", "--device", "d-1.img"]);
    assert!(groups[0]["total"].as_u64().unwrap() > 200 * MIB, "{groups}: too few groups to tell");
    let copies = ["a-0.img", "a-1.img"].map(|name| dir.join(name));
    let copy = || (0..2).for_each(|n| drop(oracle::run("cp", [&devices[n], &copies[n]]).unwrap()));
    let filters = vec![
        &["-dusage=0"][..],
        &["-dusage=20"],
        &["-dusage=50"],
        &["-dusage=100"],
        &["-dusage=30..60"],
        &["-ddevid=1"],
        &["-ddevid=2,drange=0..150000000"],
        &["-dvrange=100000000..300000000"],
        &["-dlimit=2"],
        &["-dlimit=0"],
        &["-dlimit=3..4"],
        &["-dlimit=50..60"],
        &["-dstripes=1..1"],
        &["-dstripes=2..3"],
        &["-dprofiles=raid1"],
        &["-mprofiles=raid1"],
        &["-mstripes=2..2,usage=50"],
        &["-d", "-m"],
        &["-dconvert=raid1,usage=20"],
        &["-dconvert=single,soft"],
        &["-mconvert=single", "-f"],
    ];
    for filters in budget().sample(filters, FILTERS_CI) {
        copy();
        let mounted = oracle.mount(&copies, "").unwrap();
        let path = mounted.path().display().to_string();
        let reported = oracle::run("btrfs", [&["balance", "start"], filters, &[&path]].concat()).unwrap();
        let theirs = numbers(&reported);
        mounted.unmount().unwrap();
        copy();
        let reported = ok(dir, &[&["balance", "start"], filters, &["a-0.img", "--device", "a-1.img"]].concat());
        let ours = numbers(reported.split_once(':').unwrap().1);
        assert_eq!(ours, theirs, "{filters:?}: {reported}");
    }
    oracle.must_be_sound(&copies, "after the last").unwrap();
    let mounted = oracle.mount(&copies, "ro").unwrap();
    assert!(contents(mounted.path()) == want, "the contents are others");
}

/// Goal: data and metadata go from every profile to every other that there are devices for; all groups have it then, nothing else
/// has changed, and the kernel reads, scrubs and writes it. Method: a chain over four devices, filled by the kernel.
#[test]
fn conversions() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let devices = scratch.images("d", 4, 512 * MIB).unwrap();
    oracle.mkfs(&["-d", "single", "-m", "dup"], &devices).unwrap();
    let mounted = oracle.mount(&devices, "").unwrap();
    fill(&mounted, 100);
    let mut want = contents(mounted.path());
    mounted.unmount().unwrap();
    let names = ["d-0.img", "d-1.img", "d-2.img", "d-3.img"];
    fn start<'a>(filters: &[&'a str]) -> Vec<&'a str> {
        let others = ["d-0.img", "--device", "d-1.img", "--device", "d-2.img", "--device", "d-3.img"];
        [&["balance", "start"], filters, &others].concat()
    }
    for (step, [data, metadata]) in [
        ["raid1", "raid1"],
        ["raid0", "raid10"],
        ["raid10", "raid1c3"],
        ["raid1c3", "raid1c4"],
        ["raid1c4", "raid1"],
        ["raid5", "raid6"],
        ["raid6", "raid5"],
        ["raid6", "raid1"],
        ["dup", "dup"],
        ["single", "raid0"],
        ["single", "single"],
        ["raid0", "dup"],
    ]
    .into_iter()
    .enumerate()
    {
        let (d, m) = (format!("-dconvert={data}"), format!("-mconvert={metadata}"));
        if metadata == "raid0" {
            assert!(fails(dir, &start(&[&d, &m])).contains("--force"));
        }
        ok(dir, &start(&[&d, &m, "--force"]));
        let now = profiles(dir, &names);
        assert_eq!(now["Data"], [data], "step {step}: {now:?}");
        assert_eq!(now["Metadata"], [metadata], "step {step}: {now:?}");
        assert_eq!(now["System"], [metadata], "step {step}: {now:?}");
        // The feature goes with the last group that needs it, as with the kernel.
        let features = ok(dir, &["inspect", "dump-super", "d-0.img"]);
        let needed = [data, metadata].iter().any(|profile| profile.starts_with("raid1c"));
        assert_eq!(features.contains("RAID1C34"), needed, "step {step}: {features}");
        let parity = [data, metadata].iter().any(|profile| ["raid5", "raid6"].contains(profile));
        assert_eq!(features.contains("RAID56"), parity, "step {step}: {features}");
        oracle.must_be_sound(&devices, &format!("{data} and {metadata}")).unwrap();
        let mounted = oracle.mount(&devices, "").unwrap();
        assert!(contents(mounted.path()) == want, "{data} and {metadata}: the contents are others");
        std::fs::write(mounted.path().join(format!("v/step{step}")), noise(step as u64, MIB)).unwrap();
        mounted.sync().unwrap();
        want = contents(mounted.path());
        mounted.unmount().unwrap();
    }
    let done = ok(dir, &start(&["-dconvert=raid0,soft", "-mconvert=dup,soft"]));
    assert_eq!(numbers(done.split_once(':').unwrap().1)[0], 0, "{done}: all of them had it");
}

/// Goal: what cannot be is refused, and nothing stays behind. Method: one device.
#[test]
fn refusals() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    for (args, why) in [
        (&["start", "-dconvert=raid1", "i"][..], "needs 2 devices"),
        (&["start", "-dconvert=raid1c4", "i"], "needs 4 devices"),
        (&["start", "-dconvert=raid6", "i"], "needs 3 devices"),
        (&["start", "-mconvert=single", "i"], "--force"),
        (&["start", "-s", "i"], "--force"),
        (&["start", "-dusage=101", "i"], "percent"),
        (&["start", "--background", "-d", "i"], "an image"),
        (&["start", "--enqueue", "--background", "-d", "i"], "an image"),
        (&["pause", "i"], "no balance"),
        (&["cancel", "i"], "no balance"),
        (&["resume", "i"], "no balance"),
    ] {
        let wrong_usage = args.contains(&"-s") || args.contains(&"--background") || why == "percent";
        let code = if wrong_usage { 2 } else { 1 };
        let said = fails_with(dir, code, &[&["balance"], args].concat());
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert!(ok(dir, &["balance", "status", "i"]).contains("No balance found"));
    assert_eq!(json(dir, &["balance", "status", "--json", "i"])["state"], "idle");
    ok(dir, &["balance", "start", "-mconvert=single", "-f", "i"]);
    let now = profiles(dir, &["i"]);
    assert_eq!((&now["Metadata"][..], &now["System"][..]), (&["single".to_owned()][..], &["single".to_owned()][..]));
    oracle.must_be_sound(&[dir.join("i")], "without copies").unwrap();
}

/// A volume on one device that the kernel has filled, and what is in it.
fn filled(oracle: Oracle, scratch: &Scratch) -> (PathBuf, BTreeMap<PathBuf, Vec<u8>>) {
    let image = scratch.image("i", 1024 * MIB).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    fill(&mounted, 300);
    let want = contents(mounted.path());
    mounted.unmount().unwrap();
    (image, want)
}

/// Goal: what the kernel has interrupted, Oleo shows, resumes or cancels; a volume with a paused balance can be written to meanwhile.
/// Method: the kernel is told to pause as soon as it has moved a group; the image goes to Oleo.
#[test]
fn ours_after_the_kernels() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let (image, want) = filled(oracle, &scratch);
    let mounted = oracle.mount(&[&image], "").unwrap();
    let path = mounted.path().display().to_string();
    let run = std::thread::spawn({
        let path = path.clone();
        move || oracle::run("btrfs", ["balance", "start", "-d", "-mlimit=1..9", &path])
    });
    // The pause is refused as long as it has not begun.
    while oracle::run("btrfs", ["balance", "pause", &path]).is_err() {
        assert!(!run.is_finished(), "{:?}: it was too fast to be paused", run.join());
        std::thread::yield_now();
    }
    let _ended = run.join().unwrap();
    mounted.unmount().unwrap();
    let shown = ok(dir, &["balance", "status", "-v", "i"]);
    assert!(shown.contains("is paused") && shown.contains("metadata: limit=1..9"), "{shown}");
    assert!(fails(dir, &["balance", "start", "-d", "i"]).contains("paused"));
    ok(dir, &["mkdir", "i", "meanwhile"]);
    assert!(ok(dir, &["balance", "status", "i"]).contains("is paused"));
    let other = dir.join("j");
    std::fs::copy(&image, &other).unwrap();

    ok(dir, &["balance", "resume", "i"]);
    assert!(ok(dir, &["balance", "status", "i"]).contains("No balance"));
    ok(dir, &["balance", "cancel", "j"]);
    assert!(ok(dir, &["balance", "status", "j"]).contains("No balance"));
    for image in [&image, &other] {
        oracle.must_be_sound(&[image], "resumed or cancelled").unwrap();
        let mounted = oracle.mount(&[image], "").unwrap();
        assert!(contents(mounted.path()) == want, "the contents are others");
        assert!(oracle::run("btrfs", ["balance", "status", &mounted.path().display().to_string()]).is_ok());
        mounted.unmount().unwrap();
    }
}

/// Goal: what Oleo was interrupted in, the kernel resumes. Method: a signal while it runs, as Ctrl-C sends it; the kernel mounts the
/// image and goes on by itself, until it has ended.
#[test]
fn the_kernels_after_ours() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let (image, want) = filled(oracle, &scratch);
    let mut paused = false;
    let mut wait = std::time::Duration::from_millis(60);
    for _ in 0..20 {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_oleo"))
            .current_dir(dir)
            .args(["balance", "start", "--full-balance", "i"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(wait);
        oracle::run("kill", ["-INT", &child.id().to_string()]).unwrap();
        let ended = child.wait().unwrap();
        // A signal before it has begun ends it as any program.
        let shown = ok(dir, &["balance", "status", "-v", "i"]);
        paused = shown.contains("is paused");
        if paused && shown.contains("vrange=0..") {
            // It did not do what it was asked.
            assert_eq!(ended.code(), Some(1));
            break;
        }
        if paused {
            ok(dir, &["balance", "cancel", "i"]);
            paused = false;
        }
        // It had ended, or had not begun.
        wait = if ended.success() { wait / 2 } else { wait * 3 / 2 };
    }
    assert!(paused, "it was never met at work");
    let found = oracle.check(&[&image]).unwrap();
    assert!(found.is_clean(), "interrupted: {found}");
    let mounted = oracle.mount(&[&image], "").unwrap();
    let path = mounted.path().display().to_string();
    let begun = std::time::Instant::now();
    while oracle::run("btrfs", ["balance", "status", &path]).is_err() {
        assert!(begun.elapsed().as_secs() < 120, "the kernel does not come to an end");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(contents(mounted.path()) == want, "the contents are others");
    mounted.unmount().unwrap();
    assert!(ok(dir, &["balance", "status", "i"]).contains("No balance"));
    oracle.must_be_sound(&[&image], "resumed by the kernel").unwrap();
}

/// Goal: nearly empty groups are given back into the room of others, empty ones too, and nothing is made for that. Method: files that
/// fill groups, most of them deleted.
#[test]
fn reclaim() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = scratch.image("i", 1024 * MIB).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    for n in 0..100u64 {
        std::fs::write(mounted.path().join(format!("f{n}")), noise(n, 5 * MIB)).unwrap();
        mounted.sync().unwrap();
    }
    (0..100).filter(|n| n % 10 != 0).for_each(|n| std::fs::remove_file(mounted.path().join(format!("f{n}"))).unwrap());
    mounted.sync().unwrap();
    let want = contents(mounted.path());
    mounted.unmount().unwrap();
    let data = || {
        let groups = json(dir, &["filesystem", "df", "--json", "i"]);
        let of = |name: &str| groups.as_array().unwrap().iter().find(|g| g["type"] == "Data").unwrap()[name].as_u64();
        (of("total").unwrap(), of("used").unwrap())
    };
    let before = data();
    let none = json(dir, &["filesystem", "reclaim", "--usage", "0", "--json", "i"]);
    assert_eq!(none["moved"], 0, "{none}");
    let done = json(dir, &["filesystem", "reclaim", "--json", "i"]);
    let after = data();
    assert!(done["groups"].as_u64() >= Some(3), "{done}");
    assert_eq!(before.1, after.1, "no data is lost");
    assert!(after.0 < before.0 / 2, "{before:?} became {after:?}");
    let again = json(dir, &["filesystem", "reclaim", "--json", "i"]);
    assert_eq!(again["groups"], 0, "{again}");
    oracle.must_be_sound(&[&image], "reclaimed").unwrap();
    let mounted = oracle.mount(&[&image], "ro").unwrap();
    assert!(contents(mounted.path()) == want, "the contents are others");
}
