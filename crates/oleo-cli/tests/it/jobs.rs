//! Jobs on whole file systems, as the commands start them, verified by the kernel.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use oleo_sim::oracle::{self, Scratch, oracle};

use crate::common::{json, ok, run};

fn fails(dir: &Path, args: &[&str]) -> String {
    crate::common::fails_with(dir, 1, args)
}

/// The numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Goal: an image that grows and shrinks stays sound, and the kernel sees the new size; chunks that are in the way are moved, and
/// where there is no room for them, the refusal names the size that would do. Method: grow by 256 MiB, fill, ask for too little,
/// take the hint, and less.
#[test]
fn resize() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    std::fs::write(dir.join("f"), vec![7; 20 << 20]).unwrap();
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    ok(dir, &["filesystem", "resize", "+256M", "i"]);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 768 << 20);
    ok(dir, &["put", "i", "f", "f"]);
    oracle.must_be_sound(&[&image], "grown").unwrap();
    let mounted = oracle.mount(&[&image], "ro").unwrap();
    let seen = oracle::run("btrfs", ["filesystem", "usage", "-b", &mounted.path().display().to_string()]).unwrap();
    assert!(seen.contains(&(768u64 << 20).to_string()), "{seen}");
    mounted.unmount().unwrap();

    let refused = fails(dir, &["filesystem", "resize", "16M", "i"]);
    assert!(refused.contains("no room"), "{refused}");
    let least = *numbers(&refused).last().unwrap();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 768 << 20, "a refusal changes nothing");
    ok(dir, &["filesystem", "resize", &format!("1:{least}"), "i"]);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), least);
    oracle.must_be_sound(&[&image], "shrunk").unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    assert_eq!(std::fs::read(mounted.path().join("f")).unwrap(), vec![7; 20 << 20]);
    std::fs::write(mounted.path().join("g"), "written by the kernel").unwrap();
    mounted.unmount().unwrap();
    assert!(fails(dir, &["filesystem", "resize", "7:max", "i"]).contains("no device 7"));
    assert!(fails(dir, &["filesystem", "resize", &format!("-{least}"), "i"]).contains("out of range"));
}

/// Goal: a file in hundreds of pieces ends in a few, with the same bytes and times, shared or not, and can be compressed
/// on the way; the image is sound. Method: the kernel writes it sector by sector, backwards, with a sync each; a snapshot
/// keeps the old pieces.
#[test]
fn defragment() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    ok(dir, &["subvolume", "create", "i", "v"]);
    const SECTORS: u64 = 200;
    let mut want = Vec::new();
    let mounted = oracle.mount(&[&image], "").unwrap();
    std::fs::create_dir(mounted.path().join("v/d")).unwrap();
    let file = std::fs::File::create(mounted.path().join("v/d/f")).unwrap();
    for sector in 0..SECTORS {
        want.extend(std::iter::repeat_n(sector as u8, 4096));
    }
    want.extend_from_slice(b"tail");
    file.write_all_at(b"tail", SECTORS * 4096).unwrap();
    for sector in (0..SECTORS).rev() {
        file.write_all_at(&want[(sector * 4096) as usize..][..4096], sector * 4096).unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    let before = std::fs::metadata(mounted.path().join("v/d/f")).unwrap();
    mounted.unmount().unwrap();

    ok(dir, &["subvolume", "snapshot", "-r", "i", "v", "s"]);
    assert!(fails(dir, &["filesystem", "defragment", "i", "v"]).contains("-r"));
    assert!(fails(dir, &["filesystem", "defragment", "-r", "i", "s"]).contains("read-only"));
    let line = ok(dir, &["filesystem", "defragment", "-r", "i", "v"]);
    let [.., pieces, now] = numbers(&line)[..] else { panic!("{line}") };
    assert!(pieces >= SECTORS && now <= 3, "{line}");
    oracle.must_be_sound(&[&image], "defragmented").unwrap();

    let line = ok(dir, &["filesystem", "defragment", "-c", "zstd:3", "i", "v/d/f"]);
    let found = json(dir, &["subvolume", "find-new", "--json", "i", "v", "0"]);
    let flags: Vec<&str> = found["extents"].as_array().unwrap().iter().filter_map(|e| e["flags"].as_str()).collect();
    assert!(!flags.is_empty() && flags.iter().all(|f| *f == "COMPRESS"), "{line}: {found}");
    let again = ok(dir, &["filesystem", "defragment", "-c", "zstd:3", "i", "v/d/f"]);
    assert!(again.contains("0.00B rewritten"), "{again}");
    oracle.must_be_sound(&[&image], "compressed").unwrap();
    let mounted = oracle.mount(&[&image], "ro").unwrap();
    for path in ["v/d/f", "s/d/f"] {
        assert_eq!(std::fs::read(mounted.path().join(path)).unwrap(), want, "{path}");
    }
    let after = std::fs::metadata(mounted.path().join("v/d/f")).unwrap();
    assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
    assert_eq!(after.ctime(), before.ctime());
}

/// Goal: numbers lead to the names that the kernel finds. Method: a file with a hard link and a reflink, in a subvolume with
/// snapshots, whose trees have more than one level; each question to both.
#[test]
fn resolving() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    std::fs::write(dir.join("f"), (0..300_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    ok(dir, &["mkdir", "i", "d"]);
    ok(dir, &["subvolume", "create", "i", "d/v"]);
    ok(dir, &["put", "i", "f", "d/v/f"]);
    ok(dir, &["ln", "i", "d/v/f", "d/v/g"]);
    ok(dir, &["cp", "--reflink", "i", "d/v/f", "h"]);
    ok(dir, &["subvolume", "snapshot", "i", "d/v", "s"]);
    let mounted = oracle.mount(&[&image], "").unwrap();
    for n in 0..2000 {
        std::fs::write(mounted.path().join(format!("d/v/more{n}")), vec![1; 1000]).unwrap();
    }
    oracle::run("btrfs", ["subvolume", "snapshot", "-r", &shown(&mounted, "d/v"), &shown(&mounted, "t")]).unwrap();
    mounted.unmount().unwrap();

    let found = json(dir, &["subvolume", "find-new", "--json", "i", "d/v", "0"]);
    let part = found["extents"].as_array().unwrap().iter().find(|e| e["disk_start"] != 0).unwrap().clone();
    let (logical, inode) = (part["disk_start"].to_string(), part["inode"].to_string());
    let ours: BTreeSet<String> =
        ok(dir, &["inspect", "logical-resolve", &logical, "i"]).lines().map(Into::into).collect();
    let places = ok(dir, &["inspect", "logical-resolve", "-P", &logical, "i"]);
    let inner = (part["disk_start"].as_u64().unwrap() + 8192).to_string();
    let numbers_of = ok(dir, &["inspect", "logical-resolve", "-P", &inner, "i"]);
    assert!(numbers_of.lines().next().unwrap().contains("offset 8192 root"), "{numbers_of}");
    let names = ok(dir, &["inspect", "inode-resolve", "--subvol", "d/v", &inode, "i"]);
    let names: BTreeSet<&str> = names.lines().collect();
    assert_eq!(names, BTreeSet::from(["d/v/f", "d/v/g"]));
    let root = ok(dir, &["inspect", "rootid", "i", "d/v/f"]);
    assert_eq!(ok(dir, &["inspect", "subvolid-resolve", root.trim(), "i"]), "d/v\n");
    let since = ok(dir, &["subvolume", "find-new", "i", "d/v", "0"]);

    let mounted = oracle.mount(&[&image], "").unwrap();
    let at = mounted.path().display().to_string();
    let theirs = oracle::run("btrfs", ["inspect-internal", "logical-resolve", "-P", &logical, &at]).unwrap();
    let lines = |text: &str| text.lines().map(numbers).collect::<BTreeSet<_>>();
    assert_eq!(lines(&places), lines(&theirs));
    assert!(ours.contains("t/f") && ours.contains("s/g") && ours.contains("h"), "{ours:?}");
    let kernel_root = oracle::run("btrfs", ["inspect-internal", "rootid", &shown(&mounted, "d/v")]).unwrap();
    assert_eq!(kernel_root, root);
    let kernel_new = oracle::run("btrfs", ["subvolume", "find-new", &shown(&mounted, "d/v"), "0"]).unwrap();
    let of_f =
        |text: &str| text.lines().filter(|l| l.ends_with("/f") || l.ends_with(" f")).map(numbers).collect::<Vec<_>>();
    assert_eq!(of_f(&since), of_f(&kernel_new));
    mounted.unmount().unwrap();
    assert!(fails(dir, &["inspect", "logical-resolve", "1", "i"]).contains("there is no extent at"));
}

fn shown(mounted: &oracle::Mounted, path: &str) -> String {
    mounted.path().join(path).display().to_string()
}

/// Goal: the numbers of usage are the kernel's. Method: an image with data, both asked in bytes.
#[test]
fn usage() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    std::fs::write(dir.join("f"), vec![7; 5 << 20]).unwrap();
    ok(dir, &["mkfs", "--size", "1G", "i"]);
    ok(dir, &["put", "i", "f", "f"]);
    let ours = json(dir, &["filesystem", "usage", "--json", "i"]);
    let mounted = oracle.mount(&[&image], "ro").unwrap();
    let theirs = oracle::run("btrfs", ["filesystem", "usage", "-b", &mounted.path().display().to_string()]).unwrap();
    let their = |what: &str| {
        let line = theirs.lines().find(|l| l.trim_start().starts_with(what)).unwrap_or_else(|| panic!("{theirs}"));
        numbers(line)[0]
    };
    for (name, what) in [
        ("device_size", "Device size:"),
        ("device_allocated", "Device allocated:"),
        ("device_unallocated", "Device unallocated:"),
        ("device_missing", "Device missing:"),
        ("used", "Used:"),
    ] {
        assert_eq!(ours[name].as_u64(), Some(their(what)), "{name}: {theirs}");
    }
    mounted.unmount().unwrap();
    assert!(ok(dir, &["filesystem", "usage", "-b", "i"]).contains("Device size:"));
}

/// Goal: what was deleted takes no room in the image's file after a trim, and the image is sound. Method: 64 MiB in and
/// out again; the host's count of blocks.
#[test]
fn trim() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    std::fs::write(dir.join("f"), vec![7; 64 << 20]).unwrap();
    std::fs::write(dir.join("keep"), vec![9; 1 << 20]).unwrap();
    ok(dir, &["mkfs", "--size", "1G", "i"]);
    ok(dir, &["put", "i", "f", "f"]);
    ok(dir, &["put", "i", "keep", "keep"]);
    ok(dir, &["rm", "i", "f"]);
    let blocks = || std::fs::metadata(dir.join("i")).unwrap().blocks() * 512;
    let full = blocks();
    // Only the addresses below the first chunk: nothing.
    let none = json(dir, &["filesystem", "trim", "--json", "--length", "64K", "i"]);
    assert_eq!(none["trimmed"], 0);
    let done = json(dir, &["filesystem", "trim", "--json", "i"]);
    assert!(blocks() + (60 << 20) < full, "{full} before, {} after", blocks());
    assert!(done["trimmed"].as_u64().unwrap() > 900 << 20, "what no chunk has is trimmed, too: {done}");
    let output = run(dir, &["cat", "i", "keep"]);
    assert_eq!(output.stdout, vec![9; 1 << 20]);
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("i")], "trimmed").unwrap();
    }
}

/// Goal: what lies where no chunk is any more, or never was, goes with a trim of all, and stays with one of a range or of longer
/// runs; superblocks stay. Method: bytes written into an image behind its chunks, around the second superblock and at the end.
#[test]
fn trim_of_what_no_chunk_has() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "4G", "i"]);
    // Not kept open: the commands want the image for themselves.
    let image = || std::fs::OpenOptions::new().read(true).write(true).open(dir.join("i")).unwrap();
    let old = [0xAA; 1 << 20];
    let places = [3 << 30, (4 << 30) - (1 << 20)];
    places.iter().for_each(|at| image().write_all_at(&old, *at).unwrap());
    let reads = |at: u64| {
        let mut bytes = vec![1; 1 << 20];
        image().read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    ok(dir, &["filesystem", "trim", "--start", "1M", "i"]);
    ok(dir, &["filesystem", "trim", "--minimum", "8G", "i"]);
    assert!(places.iter().all(|at| reads(*at) == old));
    ok(dir, &["filesystem", "trim", "i"]);
    assert!(places.iter().all(|at| reads(*at).iter().all(|b| *b == 0)));
    let supers = ok(dir, &["inspect", "dump-super", "--all", "i"]);
    let sound = supers.lines().filter(|line| line.starts_with("csum\t") && line.ends_with("[match]"));
    assert_eq!(sound.count(), 2, "{supers}");
    oracle.must_be_sound(&[dir.join("i")], "trimmed where no chunk is").unwrap();
}

/// Goal: subvolumes go with what is inside them, by path and by number, and none is left over when `sync` returns.
#[test]
fn waiting_for_deleted_subvolumes() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    for name in ["a", "a/b", "c"] {
        ok(dir, &["subvolume", "create", "i", name]);
    }
    assert!(fails(dir, &["subvolume", "delete", "i", "a"]).contains("not empty"));
    ok(dir, &["subvolume", "delete", "-R", "i", "a"]);
    ok(dir, &["subvolume", "delete", "-i", "258", "i"]);
    ok(dir, &["subvolume", "sync", "i"]);
    assert_eq!(ok(dir, &["subvolume", "list", "-d", "i"]), "");
    assert_eq!(ok(dir, &["subvolume", "list", "i"]), "");
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("i")], "deleted").unwrap();
    }
}

/// Goal: a received subvolume is not made writable by mistake. Method: the kernel marks one as received (through a send
/// and a receive); ours refuses, then is forced.
#[test]
fn received_stays_read_only() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    ok(dir, &["subvolume", "create", "i", "v"]);
    ok(dir, &["subvolume", "snapshot", "-r", "i", "v", "s"]);
    ok(dir, &["mkdir", "i", "in"]);
    let mounted = oracle.mount(&[&image], "").unwrap();
    let stream = dir.join("stream").display().to_string();
    oracle::run("btrfs", ["send", "-q", "-f", &stream, &shown(&mounted, "s")]).unwrap();
    oracle::run("btrfs", ["receive", "-q", "-f", &stream, &shown(&mounted, "in")]).unwrap();
    mounted.unmount().unwrap();
    let refused = fails(dir, &["property", "set", "i", "in/s", "ro", "false"]);
    assert!(refused.contains("--force"), "{refused}");
    ok(dir, &["property", "set", "--force", "i", "in/s", "ro", "false"]);
    let shown = json(dir, &["subvolume", "show", "--json", "i", "in/s"]);
    assert_eq!((&shown["received_uuid"], &shown["read_only"]), (&"-".into(), &false.into()));
    oracle.must_be_sound(&[&image], "made writable").unwrap();
}
