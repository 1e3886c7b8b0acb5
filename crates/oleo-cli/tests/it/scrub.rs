//! Scrub beside the kernel: what the kernel wrote and somebody damaged, Oleo heals, and the kernel finds nothing; what cannot be healed is
//! named as the kernel names it; state is shown and resumed by either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{self, Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;

use crate::common::{fails_with, json, ok, run};

const SECTOR: u64 = 4096;
const SUPERS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];

/// A volume in images.
struct Made {
    oracle: Oracle,
    scratch: Scratch,
    images: Vec<PathBuf>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Made {
    /// Made and filled by the kernel.
    fn by_kernel(data: &str, metadata: &str, devices: usize) -> Option<Made> {
        let oracle = oracle()?;
        let scratch = oracle.scratch().unwrap();
        let images = scratch.images("d", devices, 512 << 20).unwrap();
        let args =
            if data == "mixed" { vec!["-M", "-d", "dup", "-m", "dup"] } else { vec!["-d", data, "-m", metadata] };
        oracle.mkfs(&args, &images).unwrap();
        let mut made = Made { oracle, scratch, images, files: BTreeMap::new() };
        let mounted = made.oracle.mount(&made.images, "").unwrap();
        made.fill(mounted.path());
        oracle::run(
            "btrfs",
            ["subvolume", "snapshot", "-r", &text(mounted.path()), &text(&mounted.path().join("snap"))],
        )
        .unwrap();
        mounted.unmount().unwrap();
        Some(made)
    }

    fn fill(&mut self, dir: &Path) {
        let mut rng = Rng::new(7);
        std::fs::create_dir(dir.join("many")).unwrap();
        let sizes = [20 << 20, 3 << 20, 1 << 20, 200_000, 70_000, 5_000, 100];
        let few = sizes.iter().enumerate().map(|(nth, len)| (format!("f{nth}"), *len));
        let many = (0..300).map(|nth| (format!("many/{nth}"), 1_000 + nth * 37));
        for (name, len) in few.chain(many) {
            let bytes = rng.bytes(len);
            std::fs::write(dir.join(&name), &bytes).unwrap();
            self.files.insert(name, bytes);
        }
        let bytes = b"the same again and again, ".repeat(40_000);
        std::fs::write(dir.join("packed"), b"").unwrap();
        oracle::run("btrfs", ["property", "set", &text(&dir.join("packed")), "compression", "zstd"]).unwrap();
        std::fs::write(dir.join("packed"), &bytes).unwrap();
        self.files.insert("packed".into(), bytes);
        // Extents of many sectors.
        for kind in ["zlib", "lzo", "zstd"] {
            let name = format!("{kind}-packed");
            let bytes = rng.text(1 << 20);
            std::fs::write(dir.join(&name), b"").unwrap();
            oracle::run("btrfs", ["property", "set", &text(&dir.join(&name)), "compression", kind]).unwrap();
            std::fs::write(dir.join(&name), &bytes).unwrap();
            self.files.insert(name, bytes);
        }
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// The arguments of a command on it.
    fn on(&self, command: &[&str]) -> Vec<String> {
        let mut args: Vec<String> = command.iter().map(|arg| (*arg).to_owned()).collect();
        args.push(text(&self.images[0]));
        for other in &self.images[1..] {
            args.extend(["--device".to_owned(), text(other)]);
        }
        args
    }

    fn ok(&self, command: &[&str]) -> String {
        let args = self.on(command);
        ok(self.dir(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn json(&self, command: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(command)).unwrap()
    }

    /// Stripes of all chunks: of which chunk (start, type, profile), which of it, on which device, where, and how long.
    fn stripes(&self) -> Vec<Stripe> {
        let options = oleo::OpenOptions::default().devices(self.images[1..].to_vec());
        let image = oleo::Image::open(&self.images[0], &options).unwrap();
        let mut stripes = Vec::new();
        for chunk in image.volume().chunks() {
            for (nth, stripe) in chunk.stripes.iter().enumerate() {
                stripes.push(Stripe {
                    is_data: chunk.flags.contains(oleo::format::BlockGroupFlags::DATA),
                    profile: chunk.profile.to_string(),
                    nth,
                    devid: stripe.devid.0,
                    offset: stripe.offset.0,
                    len: chunk.stripe_bytes().0,
                });
            }
        }
        stripes
    }

    /// Sectors of stripes, of which images and where; where files are sparse there are none.
    fn places(&self, rng: &mut Rng, one_in: u64, takes: impl Fn(&Stripe) -> bool) -> Vec<(PathBuf, u64)> {
        let mut places = Vec::new();
        for stripe in self.stripes().iter().filter(|stripe| takes(stripe)) {
            let image = &self.images[stripe.devid as usize - 1];
            let file = File::open(image).unwrap();
            for at in (stripe.offset..stripe.offset + stripe.len).step_by(SECTOR as usize) {
                let mut there = [0; SECTOR as usize];
                file.read_exact_at(&mut there, at).unwrap();
                if there != [0; SECTOR as usize] && !SUPERS.contains(&at) && rng.one_in(one_in) {
                    places.push((image.clone(), at));
                }
            }
        }
        places
    }

    /// Overwrites them; returns how many.
    fn damage(&self, rng: &mut Rng, one_in: u64, takes: impl Fn(&Stripe) -> bool) -> u64 {
        let places = self.places(rng, one_in, takes);
        rot(rng, &places);
        places.len() as u64
    }

    /// The kernel finds nothing, and all files are as they were.
    fn must_be_whole(&self, what: &str) {
        let mounted = self.oracle.mount(&self.images, "").unwrap();
        let before = mounted.device_errors().unwrap();
        let found = mounted.scrub().unwrap();
        assert!(found.is_clean(), "{what}: the kernel's scrub: {found}");
        for (name, bytes) in &self.files {
            assert!(std::fs::read(mounted.path().join(name)).unwrap() == *bytes, "{what}: {name}");
            assert!(
                std::fs::read(mounted.path().join("snap").join(name)).unwrap() == *bytes,
                "{what}: {name} in the snapshot"
            );
        }
        assert_eq!(mounted.device_errors().unwrap(), before, "{what}");
        mounted.unmount().unwrap();
        let found = self.oracle.check(&self.images).unwrap().but_for_mkfs_6_2();
        assert!(found.is_clean(), "{what}: {found}");
    }

    fn fsid(&self) -> String {
        self.json(&["scrub", "status", "--json"])["uuid"].as_str().unwrap().to_owned()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // What the commands keep of scrubs.
        if let Ok(image) = File::open(&self.images[0]) {
            let mut fsid = [0; 16];
            if image.read_exact_at(&mut fsid, (64 << 10) + 32).is_ok() {
                let hex: String = fsid.iter().map(|byte| format!("{byte:02x}")).collect();
                let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
                let _ = std::fs::remove_file(format!("/var/lib/btrfs/scrub.status.{uuid}"));
            }
        }
    }
}

#[derive(Debug)]
struct Stripe {
    is_data: bool,
    profile: String,
    nth: usize,
    devid: u64,
    offset: u64,
    len: u64,
}

impl Stripe {
    /// Whether it may be lost, if all others for which this is said are lost too: `side` chooses which.
    fn may_be_lost(&self, side: usize) -> bool {
        match self.profile.as_str() {
            "dup" | "raid1" => self.nth == side % 2,
            "raid10" => self.nth % 2 == side % 2,
            "raid1c3" => self.nth != side % 3,
            "raid1c4" => self.nth != side % 4,
            "raid5" => self.nth == side % 2,
            "raid6" => self.nth == side % 3 || self.nth == side % 3 + 1,
            _ => false,
        }
    }
}

/// Overwrites sectors, whoever has them.
fn rot(rng: &mut Rng, places: &[(PathBuf, u64)]) {
    for (image, at) in places {
        let file = OpenOptions::new().write(true).open(image).unwrap();
        file.write_all_at(&rng.bytes(SECTOR as usize), *at).unwrap();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Goal: whatever the profile, what is damaged within its tolerance is healed, on every copy: afterwards the kernel finds nothing, and all files have
/// their bytes. Method: kernel-written volumes; a third of the sectors of as many stripes as may be lost, of all chunks; once for each side.
fn heals(data: &str, metadata: &str, devices: usize) {
    for side in 0..2 {
        let Some(made) = Made::by_kernel(data, metadata, devices) else { return };
        let what = format!("{data}, {metadata}, side {side}");
        let count = made.damage(&mut Rng::new(side as u64 + 1), 3, |stripe| stripe.may_be_lost(side));
        assert!(count > 10, "{what}: {count} sectors damaged");
        let found = made.json(&["scrub", "start", "--json"]);
        let total = &found["total"];
        assert_eq!((&total["uncorrectable_errors"], &found["end"]), (&0.into(), &"done".into()), "{what}: {found}");
        assert!(total["corrected_errors"].as_u64().unwrap() > 0, "{what}: {found}");
        let names = |place: &serde_json::Value| {
            place["files"].as_array().unwrap().iter().any(|file| file["paths"][0].is_string())
        };
        let is_named = ["single", "raid0"].contains(&data) || found["healed"].as_array().unwrap().iter().any(names);
        assert!(is_named, "{what}: no file is named: {found}");
        made.must_be_whole(&what);
        let again = made.json(&["scrub", "start", "--json"]);
        for errors in ["read_errors", "csum_errors", "verify_errors", "super_errors", "parity_errors"] {
            assert_eq!(again["total"][errors], 0, "{what}: {again}");
        }
    }
}

#[test]
fn heals_dup() {
    heals("dup", "dup", 1);
    heals("mixed", "dup", 1);
}

#[test]
fn heals_raid1() {
    heals("raid1", "raid1", 2);
    heals("single", "raid1", 3);
    heals("raid0", "raid1", 2);
}

#[test]
fn heals_raid1c34() {
    heals("raid1c3", "raid1c3", 3);
    heals("raid1c4", "raid1c4", 4);
}

#[test]
fn heals_raid10() {
    heals("raid10", "raid10", 4);
}

#[test]
fn heals_raid5() {
    heals("raid5", "raid5", 3);
    heals("raid5", "raid1", 2);
}

#[test]
fn heals_raid6() {
    heals("raid6", "raid6", 4);
    heals("raid6", "raid1c3", 5);
}

/// Goal: parity is looked at, all of it. Method: sectors of one parity after the other damaged only, of rows that hold data; the kernel's scrub
/// does not report parity, so each data stripe is then lost, and the kernel has to rebuild from it.
#[test]
fn parity_is_healed() {
    for (data, devices) in [("raid5", 3), ("raid6", 4)] {
        let Some(made) = Made::by_kernel(data, "raid1", devices) else { return };
        // All of one stripe: data and both parities take turns there.
        made.damage(&mut Rng::new(3), 1, |stripe| stripe.is_data && stripe.nth == 0);
        let found = made.json(&["scrub", "start", "--json"]);
        assert_eq!(found["total"]["uncorrectable_errors"], 0, "{found}");
        assert!(found["total"]["parity_errors"].as_u64().unwrap() > 0, "{found}");
        // As much as can be lost is lost elsewhere.
        let lost = if data == "raid5" { 1..2 } else { 1..3 };
        made.damage(&mut Rng::new(4), 1, |stripe| stripe.is_data && lost.contains(&stripe.nth));
        let mounted = made.oracle.mount(&made.images, "").unwrap();
        for (name, bytes) in &made.files {
            assert!(std::fs::read(mounted.path().join(name)).unwrap() == *bytes, "{data}: {name}");
        }
        mounted.unmount().unwrap();
    }
}

/// Goal: a sound volume of the kernel's has no errors, and nothing is written to it.
#[test]
fn sound_volumes_are_left_alone() {
    for (data, metadata, devices) in [
        ("single", "dup", 1),
        ("raid0", "raid1", 2),
        ("raid10", "raid10", 4),
        ("raid5", "raid1", 3),
        ("raid6", "raid6", 4),
    ] {
        let Some(made) = Made::by_kernel(data, metadata, devices) else { return };
        let copy_of = |image: &PathBuf| image.with_extension("before");
        for image in &made.images {
            oracle::run("cp", ["--sparse=always".as_ref(), image.as_os_str(), copy_of(image).as_os_str()]).unwrap();
        }
        for readonly in [true, false] {
            let args: &[&str] =
                if readonly { &["scrub", "start", "-r", "--json"] } else { &["scrub", "start", "--json"] };
            let found = made.json(args);
            for (name, value) in found["total"].as_object().unwrap() {
                assert!(!name.ends_with("_errors") || *value == 0, "{data}: {found}");
            }
            let scrubbed = found["total"]["data_bytes_scrubbed"].as_u64().unwrap();
            assert!(scrubbed > 20 << 20, "{data}: {found}");
            for image in &made.images {
                oracle::run("cmp", [image, &copy_of(image)]).unwrap_or_else(|e| panic!("{data}: written to: {e:#}"));
            }
        }
        made.must_be_whole(data);
    }
}

/// Goal: with -r nothing is healed, and errors are counted.
#[test]
fn readonly_heals_nothing() {
    let Some(made) = Made::by_kernel("raid1", "raid1", 2) else { return };
    let count = made.damage(&mut Rng::new(5), 5, |stripe| stripe.is_data && stripe.nth == 1);
    let found = made.json(&["scrub", "start", "-r", "--json"]);
    let total = &found["total"];
    let errors = total["csum_errors"].as_u64().unwrap();
    assert!(errors > 0 && errors <= count, "{found}");
    assert_eq!((&total["corrected_errors"], &total["uncorrectable_errors"]), (&0.into(), &0.into()), "{found}");
    let found = made.json(&["scrub", "start", "--json"]);
    assert_eq!(found["total"]["corrected_errors"].as_u64().unwrap(), errors, "{found}");
    made.must_be_whole("after -r");
    // The counters of devices are on disk, those of each device.
    let stats = made.json(&["device", "stats", "--json"]);
    for nth in 0..2 {
        assert_eq!(stats[nth]["corruption_errs"], found["devices"][nth]["csum_errors"], "{stats}");
    }
}

/// One place that could not be healed: address, place on the device, tree, inode, offset in the file, path.
type Named = (u64, u64, u64, u64, u64, String);

/// Goal: what cannot be healed is named as the kernel names it: address, device, place, inode, offset and path; in snapshots, too; and
/// the exit code says so. Method: single and raid0 data with bad sectors; lines of the kernel's log about the same.
#[test]
fn what_is_lost_is_named() {
    for (data, devices) in [("single", 1), ("raid0", 2)] {
        let Some(made) = Made::by_kernel(data, if devices == 1 { "dup" } else { "raid1" }, devices) else { return };
        let count = made.damage(&mut Rng::new(6), 1500, |stripe| stripe.is_data);
        assert!((1..60).contains(&count), "{count}");
        let args = made.on(&["scrub", "start", "--json"]);
        let output = run(made.dir(), &args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let total = &found["total"];
        assert_eq!((&total["uncorrectable_errors"], &total["csum_errors"]), (&count.into(), &count.into()), "{found}");
        let mut ours: BTreeSet<Named> = BTreeSet::new();
        for place in found["unhealed"].as_array().unwrap() {
            let number = |value: &serde_json::Value, name: &str| value[name].as_u64().unwrap();
            for file in place["files"].as_array().unwrap() {
                for sector in 0..number(place, "len") / SECTOR {
                    let path = file["paths"][0].as_str().unwrap().to_owned();
                    let by = sector * SECTOR;
                    let offset = number(file, "offset") + by;
                    ours.insert((
                        number(place, "at") + by,
                        number(place, "offset") + by,
                        number(file, "root"),
                        number(file, "inode"),
                        offset,
                        path,
                    ));
                }
            }
        }
        assert!(ours.iter().any(|named| named.5.starts_with("snap/")), "{ours:?}");
        let mounted = made.oracle.mount(&made.images, "").unwrap();
        // No other run has this file system.
        let marker = wait_for_fsid(&made);
        std::fs::write("/dev/kmsg", format!("scrub test {marker}\n")).unwrap();
        assert!(!mounted.scrub().unwrap().is_clean());
        let log = oracle::run("dmesg", ["--notime"]).unwrap();
        mounted.unmount().unwrap();
        let said = log.split(&format!("scrub test {marker}")).nth(1).unwrap();
        let theirs: Vec<Named> = said.lines().filter_map(named_by_kernel).collect();
        assert!(!theirs.is_empty(), "{said}");
        for named in theirs {
            // The kernel gives the path inside of the subvolume, and the beginning of the 64 KiB that it read for the place.
            let read = |at: u64| at >> 16;
            let is_same = |mine: &&Named| {
                let path = mine.5.strip_prefix("snap/").unwrap_or(&mine.5);
                let place = (read(mine.0), read(mine.1)) == (read(named.0), read(named.1));
                place && (mine.2, mine.3, path) == (named.2, named.3, &*named.5) && mine.4 - named.4 < 64 << 10
            };
            assert!(ours.iter().any(|mine| is_same(&mine)), "{named:?} is not among {ours:?}");
        }
    }
}

/// `checksum error at logical A on dev D, physical P, root R, inode I, offset O, length 4096, links 1 (path: X)`
fn named_by_kernel(line: &str) -> Option<Named> {
    let rest = line.split_once("at logical ")?.1;
    let number = |name: &str| -> Option<u64> {
        let digits = rest.split_once(&format!("{name} "))?.1;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let at = rest.split_whitespace().next()?.trim_end_matches(',').parse().ok()?;
    let path = rest.split_once("(path: ")?.1.trim_end().strip_suffix(')')?.to_owned();
    Some((at, number("physical")?, number("root")?, number("inode")?, number("offset")?, path))
}

/// Goal: what no copy has comes from elsewhere, if it fits: from a directory with the files, or another image; also compressed extents; and what is
/// there under the same name but is something else is not taken. A sound copy of the image heals everything, all sectors of compressed extents included;
/// so does a mount of it by the kernel.
#[test]
fn taken_from_elsewhere() {
    let Some(made) = Made::by_kernel("single", "dup", 1) else { return };
    let copy = made.scratch.dir("copy").unwrap();
    std::fs::create_dir(copy.join("many")).unwrap();
    for (name, bytes) in &made.files {
        std::fs::write(copy.join(name), bytes).unwrap();
    }
    let image = made.dir().join("whole.img");
    oracle::run("cp", ["--sparse=always", &text(&made.images[0]), &text(&image)]).unwrap();
    // One file in the copy is not what it was.
    let mut other = made.files["f0"].clone();
    other.iter_mut().for_each(|byte| *byte ^= 0x20);
    std::fs::write(copy.join("f0"), &other).unwrap();
    made.damage(&mut Rng::new(8), 20, |stripe| stripe.is_data);
    let args = made.on(&["scrub", "start", "--json", "--from", &text(&copy)]);
    let output = run(made.dir(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(3), "f0 cannot be had");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["total"]["corrected_errors"].as_u64().unwrap() > 0, "{found}");
    let left: BTreeSet<&str> = found["unhealed"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|place| place["files"].as_array().unwrap())
        .flat_map(|file| file["paths"].as_array().unwrap())
        .map(|path| path.as_str().unwrap())
        .collect();
    // Of what is compressed, much of what the kernel packed differs from ours.
    assert!(
        left.contains("f0") && left.iter().all(|path| path.ends_with("f0") || path.ends_with("packed")),
        "{left:?}"
    );
    let damaged = made.damage(&mut Rng::new(9), 1, |stripe| stripe.is_data);
    let found = made.json(&["scrub", "start", "--json", "--from", &text(&image)]);
    let corrected = found["total"]["corrected_errors"].as_u64().unwrap();
    // Some sectors are of no file any more.
    assert!(corrected > damaged * 9 / 10 && found["total"]["uncorrectable_errors"] == 0, "{damaged}: {found}");
    made.must_be_whole("taken from another image");
    made.damage(&mut Rng::new(10), 2, |stripe| stripe.is_data);
    let mounted = made.oracle.mount(&[&image], "").unwrap();
    made.ok(&["scrub", "start", "--from", &text(mounted.path())]);
    mounted.unmount().unwrap();
    made.must_be_whole("taken from a mount of the kernel's");
}

/// All regular files below a directory.
fn tree(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut files, mut left) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => drop(files.insert(path.strip_prefix(top).unwrap().to_owned(), std::fs::read(&path).unwrap())),
            }
        }
    }
    files
}

/// Goal: what no copy has comes from streams of snapshots: of a whole one and of a difference, in any order, with renamed files and parts that were
/// overwritten since; what is compressed comes from streams that have it compressed; on an image, and on a mount. Without what a stream is built on it is
/// refused, and so is a damaged one. Method: streams of the kernel; every tenth sector of data damaged; the kernel finds nothing afterwards.
#[test]
fn taken_from_streams() {
    let Some(made) = Made::by_kernel("single", "dup", 1) else { return };
    let dir = made.dir();
    let mounted = made.oracle.mount(&made.images, "").unwrap();
    let top = mounted.path();
    let mut rng = Rng::new(16);
    let file = OpenOptions::new().write(true).open(top.join("f1")).unwrap();
    file.write_all_at(&rng.bytes(300_000), 1 << 20).unwrap();
    drop(file);
    std::fs::rename(top.join("f2"), top.join("many/renamed")).unwrap();
    let file = OpenOptions::new().append(true).open(top.join("packed")).unwrap();
    file.write_all_at(&b"and something else, ".repeat(30_000), 1 << 20).unwrap();
    drop(file);
    let (snap, later) = (text(&top.join("snap")), text(&top.join("later")));
    oracle::run("btrfs", ["subvolume", "snapshot", "-r", &text(top), &later]).unwrap();
    let send = |name: &str, args: &[&str]| {
        let to = text(&dir.join(name));
        oracle::run("btrfs", ["send", "-q", "-f", &to].iter().chain(args)).unwrap();
    };
    send("plain", &[&snap]);
    send("packed", &["--proto", "2", "--compressed-data", &snap]);
    send("next", &["--proto", "2", "--compressed-data", "-p", &snap, &later]);
    let want = tree(top);
    mounted.unmount().unwrap();
    let whole = |what: &str| {
        let mounted = made.oracle.mount(&made.images, "").unwrap();
        let found = mounted.scrub().unwrap();
        assert!(found.is_clean(), "{what}: the kernel's scrub: {found}");
        assert!(tree(mounted.path()) == want, "{what}");
        mounted.unmount().unwrap();
    };

    let count = made.damage(&mut rng, 10, |stripe| stripe.is_data);
    assert!(count > 500, "{count}");
    let start = |from: &[&str]| {
        let from = from.iter().flat_map(|from| ["--from", from]);
        made.on(&["scrub", "start", "--json"].into_iter().chain(from).collect::<Vec<_>>())
    };
    let fails = |code: i32, from: &[&str]| {
        let args = start(from);
        fails_with(dir, code, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert!(fails(1, &["next"]).contains("which another is built on"));
    let mut cut = std::fs::read(dir.join("plain")).unwrap();
    cut.truncate(cut.len() / 2);
    std::fs::write(dir.join("cut"), cut).unwrap();
    assert!(fails(1, &["cut"]).contains("the stream ends at byte"));

    let args = start(&["next", "plain"]);
    let output = run(dir, &args.iter().map(String::as_str).collect::<Vec<_>>());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["total"]["corrected_errors"].as_u64().unwrap() > count / 2, "{found}");
    let left = found["unhealed"].as_array().unwrap().iter();
    let files = left.flat_map(|place| place["files"].as_array().unwrap());
    let paths = files.flat_map(|file| file["paths"].as_array().unwrap()).map(|path| path.as_str().unwrap());
    // The kernel compresses otherwise than we do, and the stream of what it compressed first is not compressed.
    assert!(paths.clone().all(|path| path.ends_with("packed")), "{:?}", paths.collect::<BTreeSet<_>>());
    made.ok(&["scrub", "start", "--from", "packed"]);
    whole("on an image");

    made.damage(&mut rng, 10, |stripe| stripe.is_data);
    made.scratch.dir("m").unwrap();
    ok(dir, &["mount", &text(&made.images[0]), "m"]);
    let unmount = Unmount(dir);
    assert!(fails_with(dir, 1, &["scrub", "start", "--from", "next", "m"]).contains("which another is built on"));
    ok(dir, &["scrub", "start", "-B", "--from", "next", "--from", "packed", "m"]);
    drop(unmount);
    whole("on a mount");
}

/// Goal: btrfs-progs show what Oleo found, and Oleo shows what they found.
#[test]
fn each_shows_what_the_other_found() {
    let Some(made) = Made::by_kernel("raid1", "raid1", 2) else { return };
    made.damage(&mut Rng::new(9), 5, |stripe| stripe.is_data && stripe.nth == 1);
    let found = made.json(&["scrub", "start", "--json"]);
    let mounted = made.oracle.mount(&made.images, "").unwrap();
    let status =
        |args: &[&str]| oracle::run("btrfs", [&["scrub", "status"], args, &[&text(mounted.path())]].concat()).unwrap();
    let theirs = status(&[]);
    let (errors, corrected) = (&found["total"]["csum_errors"], &found["total"]["corrected_errors"]);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = theirs.lines().map(words).collect();
    for want in [format!("Error summary: csum={errors}"), format!("Corrected: {corrected}"), "Status: finished".into()]
    {
        assert!(lines.contains(&want), "{want} is not in {theirs}");
    }
    let raw = status(&["-R"]);
    for name in ["data_bytes_scrubbed", "tree_bytes_scrubbed", "csum_errors", "corrected_errors", "last_physical"] {
        assert!(raw.contains(&format!("\t{name}: {}\n", found["total"][name])), "{name}: {raw} beside {found}");
    }
    let _ = mounted.scrub().unwrap();
    let theirs = status(&["-R"]);
    mounted.unmount().unwrap();
    let ours = made.ok(&["scrub", "status", "-R"]);
    for line in theirs.lines().filter(|line| line.starts_with('\t')) {
        assert!(ours.lines().any(|mine| mine == line), "{line} is not in {ours}");
    }
    let started = |text: &str| text.lines().find(|line| line.starts_with("Scrub started")).map(str::to_owned);
    assert_eq!(started(&ours), started(&theirs));
}

/// Goal: a scrub that is killed goes on where it was, and what was found before counts; without one there is nothing to resume, which has its exit
/// code. Method: a slow scrub, killed when its state was kept; then the rest.
#[test]
fn killed_and_resumed() {
    killed("raid1", 2);
    killed("raid5", 3);
}

fn killed(data: &str, devices: usize) {
    let Some(made) = Made::by_kernel(data, "raid1", devices) else { return };
    let args = made.on(&["scrub", "resume"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert!(fails_with(made.dir(), 2, &args).contains("no scrub to resume"));
    let damaged = made.damage(&mut Rng::new(10), 5, |stripe| stripe.is_data && stripe.nth == 1);
    let slow = made.on(&["scrub", "start", "--limit", "6M"]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_oleo")).args(&slow).stdout(Stdio::null()).spawn().unwrap();
    let state = PathBuf::from(format!("/var/lib/btrfs/scrub.status.{}", wait_for_fsid(&made)));
    let began = Instant::now();
    while !std::fs::read_to_string(&state)
        .is_ok_and(|text| text.contains("data_bytes_scrubbed:") && !text.contains("data_bytes_scrubbed:0|"))
    {
        assert!(began.elapsed() < Duration::from_secs(60), "the state is kept");
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = made.json(&["scrub", "status", "--json"]);
    let before = kept["total"]["data_bytes_scrubbed"].as_u64().unwrap();
    assert!(kept["total"]["finished"] == false && before > 0, "{kept}");
    let found = made.json(&["scrub", "resume", "--json"]);
    assert!(found["total"]["data_bytes_scrubbed"].as_u64().unwrap() > before, "{found}");
    assert!(
        found["devices"].as_array().unwrap().iter().all(|device| device["t_resumed"].as_u64().unwrap() > 0),
        "{found}"
    );
    let corrected = found["total"]["corrected_errors"].as_u64().unwrap();
    assert!(corrected > 0 && corrected <= damaged, "{corrected} of {damaged}");
    made.must_be_whole("killed and resumed");
    assert!(fails_with(made.dir(), 2, &args).contains("no scrub to resume"));
}

/// The file system of a volume that is in use.
fn wait_for_fsid(made: &Made) -> String {
    let image = File::open(&made.images[0]).unwrap();
    let mut fsid = [0; 16];
    image.read_exact_at(&mut fsid, (64 << 10) + 32).unwrap();
    let hex: String = fsid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Goal: a scrub of a mount runs beside its users, heals what they do not happen to read, and takes nothing back that they write: what is rotten is healed
/// while it is rewritten. It is slowed, cancelled, resumed. Method: raid1 and raid5; a writer that replaces files; rot of one copy meanwhile.
#[test]
fn beside_users() {
    for (data, devices) in [("raid1", 2), ("raid5", 3)] {
        let Some(mut made) = Made::by_kernel(data, "raid1", devices) else { return };
        let dir = made.dir().to_owned();
        made.scratch.dir("m").unwrap();
        let mut mount = vec!["mount".to_owned()];
        mount.extend(made.images.iter().map(|image| text(image)));
        mount.push("m".into());
        made.damage(&mut Rng::new(11), 4, |stripe| stripe.is_data && stripe.nth == 1);
        // What the snapshot has stays where it is.
        let later = made.places(&mut Rng::new(14), 9, |stripe| stripe.is_data && stripe.nth == 1);
        ok(&dir, &mount.iter().map(String::as_str).collect::<Vec<_>>());
        let mounted = Unmount(&dir);
        ok(&dir, &["scrub", "limit", "-l", "4M", "m"]);
        assert!(ok(&dir, &["scrub", "start", "m"]).contains("scrub started on m, fsid"));
        assert!(fails_with(&dir, 1, &["scrub", "start", "m"]).contains("under way"));
        std::thread::sleep(Duration::from_millis(500));
        let status = json(&dir, &["scrub", "status", "--json", "m"]);
        assert!(status["running"] == true && status["limit"] == 4 << 20, "{status}");
        let done = status["total"]["data_bytes_scrubbed"].as_u64().unwrap();
        assert!(done < 20 << 20, "the limit holds: {status}");
        ok(&dir, &["scrub", "cancel", "m"]);
        assert!(fails_with(&dir, 2, &["scrub", "cancel", "m"]).contains("no scrub"));
        assert_eq!(json(&dir, &["scrub", "status", "--json", "m"])["total"]["canceled"], true);
        ok(&dir, &["scrub", "limit", "-l", "0", "m"]);
        ok(&dir, &["scrub", "resume", "m"]);
        let mut rng = Rng::new(12);
        let began = Instant::now();
        let mut rounds = 0;
        // Files are replaced, and what they lie on is given to others, while it is healed.
        while began.elapsed() < Duration::from_secs(6) {
            for nth in 0..20 {
                let name = format!("many/{nth}");
                let bytes = rng.bytes(60_000);
                std::fs::write(dir.join("m").join(&name), &bytes).unwrap();
                made.files.insert(name, bytes);
            }
            rustix::fs::syncfs(File::open(dir.join("m")).unwrap()).unwrap();
            rounds += 1;
            if rounds == 3 {
                rot(&mut rng, &later);
            }
            if json(&dir, &["scrub", "status", "--json", "m"])["running"] == false {
                ok(&dir, &["scrub", "start", "m"]);
            }
        }
        assert!(rounds > 3);
        while json(&dir, &["scrub", "status", "--json", "m"])["running"] == true {
            std::thread::sleep(Duration::from_millis(50));
        }
        ok(&dir, &["scrub", "start", "-B", "m"]);
        let end = json(&dir, &["scrub", "status", "--json", "m"]);
        assert_eq!((&end["end"], &end["total"]["uncorrectable_errors"]), (&"done".into(), &0.into()), "{end}");
        for (name, bytes) in &made.files {
            assert!(std::fs::read(dir.join("m").join(name)).unwrap() == *bytes, "{data}: {name}");
        }
        drop(mounted);
        let seen = made.oracle.mount(&made.images, "").unwrap();
        let found = seen.scrub().unwrap();
        assert!(found.is_clean(), "{data}: {found}");
        for (name, bytes) in &made.files {
            assert!(std::fs::read(seen.path().join(name)).unwrap() == *bytes, "{data}: {name}, as the kernel sees it");
        }
        seen.unmount().unwrap();
    }
}

/// Goal: on a mount that is read-only everything is looked at, nothing is healed, and the status is shown; healing is refused.
#[test]
fn on_a_read_only_mount() {
    let Some(made) = Made::by_kernel("raid1", "raid1", 2) else { return };
    let dir = made.dir();
    made.scratch.dir("m").unwrap();
    let count = made.damage(&mut Rng::new(15), 5, |stripe| stripe.is_data && stripe.nth == 1);
    let images: Vec<String> = made.images.iter().map(|image| text(image)).collect();
    ok(dir, &["mount", "-o", "ro", &images[0], &images[1], "m"]);
    let mounted = Unmount(dir);
    assert!(fails_with(dir, 1, &["scrub", "start", "m"]).contains("read-only"));
    assert!(ok(dir, &["scrub", "status", "m"]).contains("no stats available"));
    let found = json(dir, &["scrub", "start", "-r", "-B", "--json", "m"]);
    let errors = found["total"]["csum_errors"].as_u64().unwrap();
    assert!(errors > 0 && errors <= count && found["end"] == "done", "{found}");
    assert_eq!(found["total"]["corrected_errors"], 0, "{found}");
    let status = json(dir, &["scrub", "status", "--json", "m"]);
    assert_eq!((&status["total"], &status["end"]), (&found["total"], &found["end"]));
    // It goes on in the background, too, and can be slowed and cancelled.
    ok(dir, &["scrub", "limit", "-l", "1M", "m"]);
    ok(dir, &["scrub", "start", "-r", "m"]);
    ok(dir, &["scrub", "cancel", "m"]);
    assert_eq!(json(dir, &["scrub", "status", "--json", "m"])["total"]["canceled"], true);
    interrupted_at_a_terminal(dir);
    drop(mounted);
    let found = made.json(&["scrub", "start", "--json"]);
    assert_eq!(found["total"]["corrected_errors"].as_u64().unwrap(), errors, "{found}");
    made.must_be_whole("after a read-only mount");
}

/// At a terminal a command shows the progress of a mount's job. Ctrl-C ends the command alone, which says so and how to end the job.
fn interrupted_at_a_terminal(dir: &Path) {
    let command = concat!(env!("CARGO_BIN_EXE_oleo"), " scrub start -r -B m");
    let mut terminal = Command::new("script")
        .args(["-qec", command, "/dev/null"])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let (mut shown, mut part) = (String::new(), [0; 4096]);
    let mut is_pressed = false;
    loop {
        let len = screen.read(&mut part).unwrap();
        if len == 0 {
            break;
        }
        shown.push_str(&String::from_utf8_lossy(&part[..len]));
        if !is_pressed && shown.contains("of about") {
            keys.write_all(b"\x03").unwrap();
            is_pressed = true;
        }
    }
    terminal.wait().unwrap();
    assert!(is_pressed && shown.contains("continues the scrub: `oleo scrub cancel m` ends it"), "{shown}");
    assert_eq!(json(dir, &["scrub", "status", "--json", "m"])["running"], true, "{shown}");
    ok(dir, &["scrub", "cancel", "m"]);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        if !run(self.0, &["unmount", "m"]).status.success() {
            let _gone = Command::new("umount").arg("-l").arg(self.0.join("m")).status();
        }
    }
}

/// Goal: on an image a scrub is slowed by a limit of each device and of one, which are shown. Method: the clock; what has a limit of its own takes as long.
#[test]
fn limited_on_an_image() {
    let Some(made) = Made::by_kernel("raid1", "raid1", 2) else { return };
    let timed = |limits: &[&str]| {
        let began = Instant::now();
        let limits = limits.iter().flat_map(|limit| ["--limit", limit]);
        let found = made.json(&["scrub", "start", "-r", "--json"].into_iter().chain(limits).collect::<Vec<_>>());
        assert_eq!((&found["end"], &found["total"]["read_errors"]), (&"done".into(), &0.into()), "{found}");
        (began.elapsed(), found)
    };
    let (free, found) = timed(&[]);
    assert_eq!((&found["limit"], &found["limits"]), (&0.into(), &serde_json::json!({})), "{found}");
    let bytes = found["devices"][1]["data_bytes_scrubbed"].as_u64().unwrap();
    let (each, found) = timed(&["each:16M"]);
    assert_eq!(found["limits"], serde_json::json!({ "1": 16 << 20, "2": 16 << 20 }));
    let (one, found) = timed(&["1G", "2:16M"]);
    assert_eq!((&found["limit"], &found["limits"]), (&(1 << 30).into(), &serde_json::json!({ "2": 16 << 20 })));
    // The last megabyte is not waited for.
    let least = Duration::from_secs_f64((bytes as f64 / f64::from(1 << 20) - 2.0) / 16.0);
    assert!(
        least > Duration::from_secs(1) && each >= least && one >= least,
        "{least:?}: {each:?}, {one:?}, {free:?} without"
    );
}

/// Goal: bad superblocks are found, and written anew.
#[test]
fn superblocks() {
    let Some(made) = Made::by_kernel("single", "dup", 1) else { return };
    let file = OpenOptions::new().write(true).open(&made.images[0]).unwrap();
    file.write_all_at(&[0x55; 512], SUPERS[1] + 100).unwrap();
    drop(file);
    let found = made.json(&["scrub", "start", "--json"]);
    assert_eq!(found["total"]["super_errors"], 1, "{found}");
    assert_eq!(made.json(&["scrub", "start", "--json"])["total"]["super_errors"], 0);
    made.must_be_whole("superblocks");
}

/// Goal: `fsid` is what btrfs shows. (And wrong arguments have their exit code.)
#[test]
fn arguments() {
    let Some(made) = Made::by_kernel("single", "dup", 1) else { return };
    assert_eq!(made.fsid(), wait_for_fsid(&made));
    let image = text(&made.images[0]);
    assert!(fails_with(made.dir(), 1, &["scrub", "start", "--devid", "7", &image]).contains("no device 7"));
    assert!(
        fails_with(made.dir(), 2, &["scrub", "limit", "-l", "1M", &image]).contains("limits are changed on a mount")
    );
    assert!(fails_with(made.dir(), 2, &["scrub", "cancel", &image]).contains("no scrub is under way"));
    assert!(made.ok(&["scrub", "status"]).contains("no stats available"));
    assert_eq!(run(made.dir(), &["scrub", "start", "--limit", "much", &image]).status.code(), Some(2));
}

/// Goal: a device that missed writes is brought up to date by a scrub, what has no checksum, too: afterwards it is as good as the others. Method: a device put
/// back to what it was before files were replaced; scrubbed; then the kernel reads everything without another one.
#[test]
fn a_device_that_missed_writes() {
    for (data, devices) in [("raid1", 2), ("raid5", 3), ("raid6", 4)] {
        let metadata = if data == "raid6" { "raid1c3" } else { "raid1" };
        let Some(mut made) = Made::by_kernel(data, metadata, devices) else { return };
        let old = made.dir().join("old");
        oracle::run("cp", ["--sparse=always", &text(&made.images[1]), &text(&old)]).unwrap();
        let mut rng = Rng::new(13);
        for options in ["", "nodatasum"] {
            let mounted = made.oracle.mount(&made.images, options).unwrap();
            for nth in 0..40 {
                let name = format!("new-{options}-{nth}");
                let bytes = rng.bytes(50_000 + nth * 3_000);
                std::fs::write(mounted.path().join(&name), &bytes).unwrap();
                made.files.insert(name, bytes);
                mounted.sync().unwrap();
            }
            mounted.unmount().unwrap();
        }
        oracle::run("cp", ["--sparse=always", &text(&old), &text(&made.images[1])]).unwrap();
        let output =
            run(made.dir(), &made.on(&["scrub", "start", "--json"]).iter().map(String::as_str).collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("missed") && !said.contains("scrub start"), "advice to do what is being done: {said}");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&found["end"], &found["total"]["uncorrectable_errors"]),
            (&"done".into(), &0.into()),
            "{data}: {found}"
        );
        assert!(found["total"]["corrected_errors"].as_u64().unwrap() > 0, "{data}: {found}");
        let read = |images: &[PathBuf], options: &str| {
            let mounted = made.oracle.mount(images, options).unwrap();
            for (name, bytes) in &made.files {
                assert!(std::fs::read(mounted.path().join(name)).unwrap() == *bytes, "{data}, {options}: {name}");
            }
            let clean = options.contains("degraded") || mounted.scrub().unwrap().is_clean();
            mounted.unmount().unwrap();
            assert!(clean, "{data}: the kernel's scrub");
        };
        read(&made.images, "");
        read(&made.images[1..], "degraded,ro");
    }
}
