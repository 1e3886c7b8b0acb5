//! The commands end to end: the wiring from arguments to output and exit codes. What they do is tested below.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use oleo_sim::oracle::{Loop, ReadOnly, Scratch, oracle};
use rustix::process::Signal;

use crate::common::{fails_with as fails, ok, run};

/// Goal: a session with every command that reads and writes does what it says, and the image is sound in the end.
#[test]
fn a_session() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    std::fs::create_dir_all(dir.join("src/sub")).unwrap();
    std::fs::write(dir.join("src/sub/file"), "contents").unwrap();
    std::fs::write(dir.join("more"), vec![7; 300_000]).unwrap();

    ok(dir, &["mkfs", "--rootdir", "src", "--size", "300M", "--label", "first", "i"]);
    assert_eq!(ok(dir, &["ls", "-R", "i"]), ".:\nsub\n\nsub:\nfile\n");
    assert_eq!(ok(dir, &["cat", "i", "sub/file"]), "contents");
    ok(dir, &["put", "i", "more", "sub"]);
    ok(dir, &["mkdir", "-p", "i", "a/b/c"]);
    ok(dir, &["cp", "--reflink", "i", "sub/more", "a/b"]);
    ok(dir, &["cp", "-r", "i", "sub", "a/b/c"]);
    ok(dir, &["mv", "i", "sub/file", "renamed"]);
    ok(dir, &["ln", "i", "renamed", "a/second"]);
    ok(dir, &["ln", "-s", "i", "renamed", "a/symbolic"]);
    assert_eq!(ok(dir, &["cat", "i", "a/second"]), "contents");
    assert_eq!(ok(dir, &["ls", "i", "a/b/c/sub"]), "file\nmore\n");
    let long = ok(dir, &["ls", "-l", "i", "a"]);
    assert!(long.contains("symbolic -> renamed"), "{long}");
    ok(dir, &["rm", "-r", "i", "a/b/c"]);

    ok(dir, &["subvolume", "create", "i", "v"]);
    ok(dir, &["put", "i", "more", "v/more"]);
    ok(dir, &["subvolume", "snapshot", "-r", "i", "v", "w"]);
    assert!(ok(dir, &["subvolume", "list", "i"]).lines().last().unwrap().ends_with("top level 5 path w"));
    assert!(ok(dir, &["subvolume", "show", "i", "w"]).contains("readonly"));
    assert_eq!(ok(dir, &["ls", "--subvol", "w", "i"]), "more\n");
    assert_eq!(ok(dir, &["property", "get", "i", "w", "ro"]), "ro=true\n");
    ok(dir, &["property", "set", "i", "w", "ro", "false"]);
    ok(dir, &["property", "set", "i", "a", "compression", "zstd"]);
    ok(dir, &["subvolume", "set-default", "i", "v"]);
    assert!(ok(dir, &["subvolume", "get-default", "i"]).ends_with("path v\n"));
    ok(dir, &["subvolume", "delete", "i", "w"]);
    ok(dir, &["filesystem", "label", "i", "second"]);
    assert_eq!(ok(dir, &["filesystem", "label", "i"]), "second\n");
    assert!(ok(dir, &["filesystem", "show", "i"]).starts_with("Label: 'second'  uuid: "));
    assert!(ok(dir, &["filesystem", "df", "i"]).contains("Metadata, DUP: total="));
    assert!(ok(dir, &["filesystem", "du", "-s", "i"]).contains("/"));
    assert!(ok(dir, &["inspect", "dump-super", "i"]).contains("second"));
    assert!(ok(dir, &["inspect", "dump-tree", "-t", "chunk", "i"]).contains("CHUNK_ITEM"));
    assert!(ok(dir, &["inspect", "tree-stats", "i"]).contains("Tree 5"));

    ok(dir, &["restore", "i", "out"]);
    assert_eq!(std::fs::read(dir.join("out/v/more")).unwrap(), vec![7; 300_000]);
    assert!(!run(dir, &["restore", "i", "-"]).stdout.is_empty());
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("i")], "after a session").unwrap();
    }
}

/// Goal: a log is seen, left aside or dropped, as asked for.
/// Method: a file is synced and the image dropped without a commit, as in a crash.
#[test]
fn a_log() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let image = oleo::Image::open(dir.join("i"), &oleo::OpenOptions::writing()).unwrap();
    image.write("synced", b"bytes").unwrap();
    image.fs().fsync(&image.find("synced").unwrap()).unwrap();
    drop(image);
    assert_eq!(ok(dir, &["cat", "i", "synced"]), "bytes");
    assert!(fails(dir, 1, &["cat", "--no-log-replay", "i", "synced"]).contains("not found"));
    assert!(ok(dir, &["inspect", "dump-tree", "-t", "log", "i"]).contains("INODE_ITEM"));
    assert!(ok(dir, &["rescue", "zero-log", "i"]).starts_with("Clearing log on i, previous log_root "));
    assert_eq!(ok(dir, &["rescue", "zero-log", "i"]), "i: there is no log\n");
    assert!(fails(dir, 1, &["cat", "i", "synced"]).contains("not found"));
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(&[dir.join("i")], "without its log").unwrap();
    }
}

/// Goal: a check says what it finds, and its exit code says whether the image is damaged.
/// Method: an image, its data and then its tree blocks damaged; a file that is no image.
#[test]
fn a_check() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "-m", "single", "i"]);
    std::fs::write(dir.join("data"), [0xa5; 70_000]).unwrap();
    ok(dir, &["put", "i", "data", "/"]);
    assert!(ok(dir, &["check", "i"]).contains("clean"));
    let clean = crate::common::json(dir, &["check", "--json", "--data", "--mode", "lowmem", "i"]);
    assert_eq!(clean["findings"], serde_json::json!([]));

    let image = std::fs::read(dir.join("i")).unwrap();
    let damage = |rank: &dyn Fn(&[u8]) -> Option<u64>| {
        let mut bytes = image.clone();
        let sector = bytes.chunks_mut(4096).max_by_key(|sector| rank(sector)).unwrap();
        sector[200] ^= 1;
        std::fs::write(dir.join("i"), bytes).unwrap();
    };
    damage(&|sector| sector.iter().all(|b| *b == 0xa5).then_some(0));
    ok(dir, &["check", "i"]);
    let output = run(dir, &["check", "--json", "--data", "i"]);
    assert_eq!(output.status.code(), Some(3));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["findings"][0]["kind"], "data-checksum");
    assert_eq!(found["findings"].as_array().map(Vec::len), Some(1));
    // That, and what a scrub found, are on the map, in the same place.
    std::fs::write(dir.join("check.json"), &output.stdout).unwrap();
    let output = run(dir, &["scrub", "start", "--json", "-r", "i"]);
    assert_eq!(output.status.code(), Some(3));
    std::fs::write(dir.join("scrub.json"), &output.stdout).unwrap();
    let map = crate::common::json(dir, &["map", "--json", "--findings", "check.json", "--findings", "scrub.json", "i"]);
    let map = &map["findings"];
    assert_eq!(
        (&map["of"], map["list"].as_array().unwrap().len()),
        (&serde_json::json!(["check", "scrub"]), 2),
        "{map}"
    );
    let (of_check, of_scrub) = (&map["list"][0], &map["list"][1]);
    assert_eq!((&of_check["kind"], &of_scrub["kind"]), (&"data-checksum".into(), &"unhealed data".into()));
    assert_eq!((&of_scrub["path"], &of_scrub["at"]), (&"data".into(), &of_check["at"]));
    assert!(of_scrub["cell"].is_u64() && of_scrub["cell"] == of_check["cell"], "{map}");

    // The newest block of the tree of files: in a header the address stands at 48, the generation at 80, the owner at 88.
    let number = |sector: &[u8], at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().unwrap());
    damage(&|sector| (number(sector, 88) == 5 && number(sector, 48) > 1 << 20).then(|| number(sector, 80)));
    let output = run(dir, &["check", "--progress", "i"]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().next().unwrap().starts_with("error: block-checksum: tree 5 at "), "{text}");

    assert!(fails(dir, 3, &["check", "data"]).contains("superblock"));
    assert!(fails(dir, 1, &["check", "missing"]).contains("missing"));
}

/// Goal: a check begins from the copy of the superblock that it is told to begin from.
/// Method: the second copy is put back as it was some transactions ago, which is a warning by default and a first copy that
/// differs when that one counts; then the first copy is broken, which the default gets over and its own number does not.
#[test]
fn a_check_from_a_copy_of_the_superblock() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let at = |nth: usize| [64 << 10, 64 << 20][nth]..[64 << 10, 64 << 20][nth] + 4096;
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let before = std::fs::read(dir.join("i")).unwrap();
    std::fs::write(dir.join("data"), b"bytes").unwrap();
    ok(dir, &["put", "i", "data", "/"]);
    for nth in ["0", "1"] {
        assert!(ok(dir, &["check", "-s", nth, "i"]).contains("clean"));
    }
    let found = |code: i32, args: &[&str]| {
        let output = run(dir, &[&["check", "--json"], args, &["i"]].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let kinds = found["findings"].as_array().unwrap().iter();
        kinds.map(|f| format!("{}: {}", f["kind"].as_str().unwrap(), f["have"].as_str().unwrap())).collect::<Vec<_>>()
    };
    let mut image = std::fs::read(dir.join("i")).unwrap();
    let now = image[at(1)].to_vec();
    image[at(1)].copy_from_slice(&before[at(1)]);
    std::fs::write(dir.join("i"), &image).unwrap();
    let stale = found(0, &[]);
    assert!(stale.len() == 1 && stale[0].starts_with("superblock-stale: mirror at 67108864"), "{stale:?}");
    assert_eq!(found(0, &["--super", "0"]), stale);
    let other = found(3, &["--super", "1"]);
    assert!(other.iter().any(|f| f.starts_with("superblock-mirror: mirror at 65536: root differs")), "{other:?}");

    image[at(1)].copy_from_slice(&now);
    image[at(0)][200] ^= 1;
    std::fs::write(dir.join("i"), &image).unwrap();
    assert!(found(3, &[])[0].starts_with("superblock-mirror: mirror at 65536"));
    assert!(fails(dir, 3, &["check", "-s", "0", "i"]).contains("superblock"));
    assert!(fails(dir, 3, &["check", "-s", "2", "i"]).contains("length"));
    assert_eq!(run(dir, &["check", "-s", "3", "i"]).status.code(), Some(2));
}

/// Goal: JSON is JSON wherever it is offered.
#[test]
fn json() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let made = ok(dir, &["mkfs", "--size", "300M", "--json", "i"]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["nodesize"], 16384);
    for args in [
        &["ls", "-lR", "--json", "i"][..],
        &["subvolume", "list", "--json", "i"],
        &["subvolume", "show", "--json", "i"],
        &["subvolume", "get-default", "--json", "i"],
        &["filesystem", "show", "--json", "i"],
        &["filesystem", "df", "--json", "i"],
        &["filesystem", "du", "--json", "i"],
        &["filesystem", "usage", "--json", "i"],
        &["subvolume", "find-new", "--json", "i", "5", "0"],
        &["subvolume", "list", "-d", "--json", "i"],
        &["inspect", "inode-resolve", "--json", "256", "i"],
        &["property", "get", "--json", "i", "/"],
        &["property", "list", "--json", "i", "/"],
        &["inspect", "dump-super", "--json", "i"],
        &["inspect", "dump-tree", "--json", "i"],
        &["inspect", "dump-tree", "--roots", "--json", "i"],
        &["inspect", "tree-stats", "--json", "i"],
    ] {
        let text = ok(dir, args);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{args:?}: {text}");
    }
}

/// Goal: what goes wrong is one line with the place and, where there is something, what to try; exit codes tell kinds.
#[test]
fn complaints() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    assert!(fails(dir, 2, &["mkfs", "i"]).contains("--size"));
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    assert!(fails(dir, 1, &["mkfs", "--size", "300M", "i"]).contains("--force"));
    ok(dir, &["mkfs", "--size", "300M", "--force", "i"]);
    assert!(fails(dir, 1, &["cat", "i", "nothing"]).starts_with("oleo: nothing: not found"));
    ok(dir, &["mkdir", "i", "d"]);
    assert!(fails(dir, 1, &["rm", "i", "d"]).contains("-r"));
    assert!(fails(dir, 1, &["mkdir", "i", "d"]).contains("exists"));
    assert!(fails(dir, 1, &["ls", "missing"]).contains("missing"));
    assert!(fails(dir, 2, &["mkfs", "--size", "300M", "-d", "raid1", "j"]).contains("2 devices"));
    assert!(!dir.join("j").exists(), "what was not completed is not left behind");
    std::fs::write(dir.join("junk"), vec![1; 1 << 20]).unwrap();
    assert!(fails(dir, 3, &["ls", "junk"]).contains("superblock"));
    assert!(fails(dir, 1, &["check", "--repair", "i"]).contains("not supported"));
    assert!(fails(dir, 2, &["mkfs", "--rootdir", "d", "--owner", "no-such-user", "n"]).contains("no-such-user"));
    for (owner, advice) in [(&[][..], "--owner"), (&["--owner", "0"], "devices")] {
        let mut faked = std::process::Command::new(env!("CARGO_BIN_EXE_oleo"));
        faked.args(["mkfs", "--rootdir", "d2", "n"]).args(owner).env("FAKEROOTKEY", "1").current_dir(dir);
        std::fs::create_dir_all(dir.join("d2")).unwrap();
        let faked = faked.output().unwrap();
        assert_eq!(faked.status.success(), !owner.is_empty(), "{owner:?}");
        assert!(String::from_utf8_lossy(&faked.stderr).contains(advice), "{owner:?}");
    }
    assert!(fails(dir, 1, &["cat", "i", "d"]).ends_with("is a directory\n"));
    assert!(fails(dir, 2, &["mkfs", "-O", "no-holes"]).contains("IMG"));
    assert!(ok(dir, &["mkfs", "-O", "list-all"]).contains("block-group-tree"));
    assert_eq!(run(dir, &["ls"]).status.code(), Some(2));
    assert_eq!(run(dir, &["mkfs", "--size", "many", "k"]).status.code(), Some(2));
}

/// Goal: the minimum of free space is never above the estimate, also where the devices differ so that space on one of them is of no use.
#[test]
fn the_minimum_is_no_estimate() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    for (name, mib) in [("a", 300), ("b", 1000)] {
        std::fs::File::create(dir.join(name)).unwrap().set_len(mib << 20).unwrap();
    }
    ok(dir, &["mkfs", "-d", "raid1", "-m", "raid1", "a", "b"]);
    let usage = crate::common::json(dir, &["filesystem", "usage", "--json", "--device", "b", "a"]);
    let bytes = |name: &str| usage[name].as_u64().unwrap();
    assert!(bytes("free_min") <= bytes("free_estimated") && bytes("free_min") > 0, "{usage}");
    let unpaired = bytes("device_unallocated") / 2;
    assert!(bytes("free_estimated") < unpaired, "a device has space that the other has no copy for: {usage}");
}

/// Goal: a check of data names the files of bad data. Method: bytes of one file changed in the image.
#[test]
fn files_of_bad_data_are_named() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let noise = oleo_sim::rng::Rng::new(5).bytes(1 << 20);
    std::fs::write(dir.join("f"), &noise).unwrap();
    std::fs::write(dir.join("g"), &noise[8..]).unwrap();
    ok(dir, &["mkfs", "--size", "128M", "i"]);
    ok(dir, &["mkdir", "i", "dir"]);
    ok(dir, &["put", "i", "f", "dir/spoiled"]);
    ok(dir, &["put", "i", "g", "dir/sound"]);
    let image = std::fs::OpenOptions::new().read(true).write(true).open(dir.join("i")).unwrap();
    let mut sector = [0; 4096];
    let at = (0..128 << 8).map(|nth: u64| nth << 12).find(|at| {
        image.read_exact_at(&mut sector, *at).unwrap();
        sector[..] == noise[..4096]
    });
    image.write_all_at(b"changed", at.unwrap()).unwrap();
    drop(image);
    let output = run(dir, &["check", "--data", "i"]);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("dir/spoiled") && !said.contains("dir/sound"), "{said}");
    // A restore names it, continues, and fails at the end.
    let output = run(dir, &["restore", "i", "out"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("dir/spoiled") && !said.contains("dir/sound"), "{said}");
    assert!(said.contains("1 entries were not restored"), "{said}");
    assert_eq!(std::fs::read(dir.join("out/dir/sound")).unwrap(), noise[8..]);
}

/// Goal: mkfs that a signal ends leaves no file system: no new file, and in one that was there nothing that a check calls clean.
/// Method: an archive on a pipe, the first part of a long file.
#[test]
fn an_interrupted_mkfs_leaves_none() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let mut header = tar::Header::new_gnu();
    header.set_path("large").unwrap();
    header.set_size(64 << 20);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    let begin = [header.as_bytes(), oleo_sim::rng::Rng::new(6).bytes(16 << 20).as_slice()].concat();
    for (name, signal) in
        [("new", Signal::TERM), ("new", Signal::INT), ("there", Signal::TERM), ("there", Signal::KILL)]
    {
        if name == "there" {
            ok(dir, &["mkfs", "--force", "--size", "300M", name]);
            assert!(run(dir, &["check", name]).status.success());
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
        command.args(["mkfs", "--force", "--size", "300M", "--tar", "-", name]).current_dir(dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // More than a pipe holds: when it is written, mkfs has read the most of it.
        let mut archive = child.stdin.take().unwrap();
        archive.write_all(&begin).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert!(!child.wait().unwrap().success(), "{name} {signal:?}");
        drop(archive);
        assert_eq!(dir.join(name).exists(), name == "there", "{signal:?}");
        assert!(!run(dir, &["check", name]).status.success(), "{name} {signal:?}");
    }
}

/// Goal: where `-h` of btrfs shows units, it does here, too, and prints no help. Method: each command whose help by btrfs says so.
#[test]
fn units_are_shown_where_btrfs_shows_them() {
    let Some(_) = oracle() else { return };
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let help = |args: &[&str]| {
        let output = std::process::Command::new("btrfs").args(args).arg("--help").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let is_word = |word: &&str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let all = help(&[]);
    let usages = all.lines().filter_map(|line| line.strip_prefix("    btrfs "));
    let mut commands: Vec<Vec<&str>> =
        usages.map(|usage| usage.split_whitespace().take(2).take_while(is_word).collect()).collect();
    commands.dedup();
    let shows_units =
        |command: &Vec<&str>| help(command).lines().any(|line| line.trim_start().starts_with("-h|--human-readable"));
    commands.retain(shows_units);
    assert!(commands.len() >= 4, "{commands:?}");
    for command in commands {
        let shown = ok(dir, &[&command[..], &["-h", "i"]].concat());
        assert!(!shown.contains("Usage:"), "{command:?}: {shown}");
    }
    assert!(ok(dir, &["subvolume", "show", "i"]).contains("n/a"));
    ok(dir, &["quota", "enable", "i"]);
    ok(dir, &["qgroup", "limit", "1G", "0/5", "i"]);
    let shown = ok(dir, &["subvolume", "show", "-h", "i"]);
    let lines = ["Quota group:", "0/5", "Limit referenced:", "1.00GiB", "Usage exclusive:", "16.00KiB"];
    assert!(lines.iter().all(|part| shown.contains(part)), "{shown}");
    assert!(ok(dir, &["subvolume", "show", "-b", "i"]).contains("16384"));
}

/// Goal: a file system is made on a block device as on an image, and what cannot be one is named as what it is.
#[test]
fn mkfs_on_a_block_device() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = scratch.image("i", 300 << 20).unwrap();
    let device = Loop::attach(&image, ReadOnly::No).unwrap();
    let name = device.path().to_str().unwrap();
    std::fs::write(dir.join("file"), "contents").unwrap();
    ok(dir, &["mkfs", name]);
    assert!(fails(dir, 1, &["mkfs", name]).contains("--force"));
    ok(dir, &["mkfs", "--force", "-L", "device", name]);
    ok(dir, &["put", name, "file", "/file"]);
    assert_eq!(ok(dir, &["cat", name, "file"]), "contents");
    drop(device);
    oracle.must_be_sound(&[&image], "made on a device").unwrap();

    assert!(fails(dir, 1, &["mkfs", "/dev/null"]).contains("neither a regular file nor a block device"));
    std::fs::write(dir.join("empty"), "").unwrap();
    assert!(fails(dir, 2, &["mkfs", "empty"]).contains("the file is empty"));
}
