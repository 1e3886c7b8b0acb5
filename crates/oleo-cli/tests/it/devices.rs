//! Devices of volumes, as the commands show them, beside the kernel and btrfs-progs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use oleo_sim::oracle::{self, Scratch, oracle};

use crate::common::{fails_with, json, ok};

/// The lines of `btrfs device stats` or of ours, without the names of devices.
fn counts(text: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, count) = line.split_once("].")?.1.split_once(' ')?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Goal: errors that the kernel counted are shown as its own command shows them, --check fails because of them, -z sets them to
/// zero for the kernel, too. Method: raid1, one copy of a file damaged, scrubbed by the kernel.
#[test]
fn errors_of_devices() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let images = [dir.join("a"), dir.join("b")];
    ok(dir, &["mkfs", "--size", "512M", "-d", "raid1", "-m", "raid1", "a", "b"]);
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n >> 11) as u8 ^ n as u8 ^ 0x55).collect();
    std::fs::write(dir.join("src"), &bytes).unwrap();
    ok(dir, &["put", "a", "--device", "b", "src", "/f"]);
    let image = std::fs::read(&images[1]).unwrap();
    let at = (1 << 20..image.len()).step_by(4096).find(|at| image[*at..].starts_with(&bytes[..4096])).unwrap();
    OpenOptions::new().write(true).open(&images[1]).unwrap().write_all_at(b"other bytes", at as u64).unwrap();
    let mounted = oracle.mount(&images, "").unwrap();
    let _ = mounted.scrub().unwrap();
    let theirs = oracle::run("btrfs", ["device", "stats", &mounted.path().display().to_string()]).unwrap();
    mounted.unmount().unwrap();
    let theirs = counts(&theirs);
    assert!(theirs.len() == 10 && theirs.iter().any(|(name, n)| name == "corruption_errs" && *n > 0), "{theirs:?}");

    let on = |args: &[&'static str]| [&["device", "stats"], args, &["a", "--device", "b"]].concat();
    assert_eq!(counts(&ok(dir, &on(&[]))), theirs);
    let shown = json(dir, &on(&["--json"]));
    assert!(shown[1]["corruption_errs"].as_u64().unwrap() > 0 && shown[0]["corruption_errs"] == 0, "{shown}");
    assert!(fails_with(dir, 4, &on(&["--check"])).contains("devices with errors: 1"));
    assert_eq!(counts(&ok(dir, &on(&["-z"]))), theirs, "what they were");
    assert!(counts(&ok(dir, &on(&["-c"]))).iter().all(|(_, n)| *n == 0));
    oracle.must_be_sound(&images, "counters set to zero").unwrap();
    let mounted = oracle.mount(&images, "").unwrap();
    assert_eq!(mounted.device_errors().unwrap(), 0);
    mounted.unmount().unwrap();
}

/// Goal: what devices are used for is what btrfs's command says of the same volume.
#[test]
fn usage_of_devices() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let images = [dir.join("a"), dir.join("b")];
    ok(dir, &["mkfs", "--size", "1G", "-d", "single", "-m", "raid1", "a", "b"]);
    let mounted = oracle.mount(&images, "").unwrap();
    std::fs::write(mounted.path().join("f"), vec![7; 50 << 20]).unwrap();
    mounted.sync().unwrap();
    let theirs = oracle::run("btrfs", ["device", "usage", "-b", &mounted.path().display().to_string()]).unwrap();
    mounted.unmount().unwrap();
    let ours = ok(dir, &["device", "usage", "-b", "a", "--device", "b"]);
    // Slack is not shown, and a device in a file has none.
    let lines = |text: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut lines: Vec<String> = text.lines().map(words).filter(|line| line.contains(": ")).collect();
        lines.retain(|line| !line.contains("ID:") && !line.contains("slack"));
        lines.sort();
        lines
    };
    assert_eq!(lines(&ours), lines(&theirs));
}

/// Goal: volumes are found in a directory, with what is missing of them; `ready` tells whether all is there.
#[test]
fn found_and_ready() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "512M", "-L", "pair", "-m", "raid1", "a", "b"]);
    std::fs::create_dir(dir.join("elsewhere")).unwrap();
    std::fs::write(dir.join("no-volume"), "nothing").unwrap();
    let found = json(dir, &["device", "scan", "--json", "."]);
    assert_eq!(
        (found.as_array().unwrap().len(), &found[0]["missing"], &found[0]["label"]),
        (1, &0.into(), &"pair".into())
    );
    assert_eq!(found[0]["devices"].as_array().unwrap().len(), 2);
    ok(dir, &["device", "ready", "a", "--device", "b"]);
    ok(dir, &["device", "ready", "a", "--scan", "."]);
    std::fs::rename(dir.join("b"), dir.join("elsewhere/b")).unwrap();
    assert!(ok(dir, &["device", "scan", "."]).contains("1 not found"));
    assert!(fails_with(dir, 1, &["device", "ready", "a"]).contains("missing devices: 2"));
    assert!(fails_with(dir, 1, &["device", "scan", "nowhere"]).contains("nowhere"));
}
