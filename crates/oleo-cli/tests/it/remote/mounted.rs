//! Mounts of volumes on stores.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Scratch, skip};
use oleo_sim::proxy::Faults;

use crate::common::{confirm, must_hold};
use crate::remote::harness::{Store, source};

/// Whether mounts are possible here.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        skip("no mounts here");
    }
    can
}

/// The counters of a mount's device.
pub fn counters(store: &Store, dir: &Path) -> Vec<(String, u64)> {
    let stats = store.ok(dir, &["filesystem", "stats", dir.to_str().unwrap()]);
    let lines = stats.lines().filter_map(|line| line.strip_prefix("  ")?.rsplit_once(' '));
    lines.filter_map(|(name, count)| Some((name.trim().to_owned(), count.parse().ok()?))).collect()
}

/// Goal: a mount works over S3 with a connection that delays and breaks; readers elsewhere see what was synced; requests and bytes
/// are counted; afterwards nobody has it. Method: files written, synced and read through a proxy.
#[test]
fn a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::far();
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--rootdir", "src", &url]);
    let mounted = store.mount(&url, "");
    let shown = fs::read_to_string("/proc/mounts").unwrap();
    assert!(shown.lines().any(|l| l.starts_with(&url) && l.contains("fuse.oleo")), "{shown}");
    assert!(!shown.contains("SECRET"), "no keys in the list of mounts");
    assert_eq!(fs::read_to_string(mounted.path().join("small")).unwrap(), "small");
    let names: Vec<String> = (0..20).map(|i| format!("f{i}")).collect();
    names.iter().for_each(|name| confirm(mounted.path(), name).unwrap());
    fs::copy(dir.join("src/sub/large"), mounted.path().join("copy")).unwrap();
    crate::common::ok(dir, &["filesystem", "sync", mounted.path().to_str().unwrap()]);
    // Elsewhere, and beside the writer.
    assert_eq!(store.ok(dir, &["ls", &url]).lines().filter(|l| l.starts_with('f')).count(), 20);
    let counted = counters(&store, mounted.path());
    let of =
        |name: &str| counted.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}: {counted:?}")).1;
    assert!(of("requests: put under a condition") >= 20, "one of each fsync at least: {counted:?}");
    assert!(of("bytes sent to the store") > 3 << 20, "{counted:?}");
    assert!(of("requests: get") > 0 && of("bytes that came from it") > 0, "{counted:?}");
    mounted.unmount().unwrap();
    assert!(store.ok(dir, &["remote", "show", &url]).contains("nobody; it was closed"));
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
    let mounted = store.mount(&url, "ro");
    must_hold(mounted.path(), &names);
    assert!(fs::write(mounted.path().join("f"), "").is_err());
    assert!(store.ok(dir, &["remote", "show", &url]).contains("nobody; it was closed"), "readers take nothing");
    mounted.unmount().unwrap();
}

/// Goal: whatever fsync confirmed survives kill -9 of the mount; without a claim that runs out the volume is held until somebody is
/// told to take over. Method:
/// rounds of files that are confirmed, a large one that nobody confirms, the kill, and the next mount.
#[test]
fn the_mount_is_killed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(None);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", &url]);
    let mut all = Vec::new();
    for round in 0..3 {
        let mut mounted = store.mount(&url, "take_over,claim=0");
        must_hold(mounted.path(), &all);
        for i in 0..15 {
            let name = format!("r{round}-{i}");
            confirm(mounted.path(), &name).unwrap();
            all.push(name);
        }
        fs::write(mounted.path().join("loose"), vec![1; 3 << 20]).unwrap();
        mounted.kill().unwrap();
        drop(mounted);
        let line = store.fails_with(dir, 1, &["mkdir", &url, "d"]);
        assert!(line.contains("--take-over"), "{line}");
        // What is read needs nobody's leave, and the log is applied in memory.
        // Copies of the superblock that come after the last flush may be old, which is a warning.
        store.ok(dir, &["check", "--data", &url]);
    }
    let mounted = store.mount(&url, "take_over");
    must_hold(mounted.path(), &all);
    mounted.unmount().unwrap();
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
}

/// Goal: a volume whose writer was killed on this machine is free immediately, without a message. Method: a mount with a claim of an hour
/// that is killed with something written, and a command.
#[test]
fn a_killed_mount_is_not_waited_for() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", &url]);
    let mut mounted = store.mount(&url, "claim=3600");
    confirm(mounted.path(), "before").unwrap();
    mounted.kill().unwrap();
    drop(mounted);
    store.ok(dir, &["mkdir", &url, "d"]);
    assert!(store.ok(dir, &["ls", &url]).contains("before"));
}

/// Goal: requests that wait for a store that does not answer keep no others waiting. Method: look more cold names up than a mount has
/// threads while the store's answers are late; meanwhile change, make and list names in memory; then the answers come, and all names are found.
#[test]
fn a_silent_store_keeps_no_others_waiting() {
    /// Longer than the test waits for what is in memory.
    const LATE: Duration = Duration::from_secs(600);
    /// More than a mount has threads.
    const COLD_DIRS: usize = 12;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let mut rng = oleo_sim::rng::Rng::new(1);
    fs::create_dir_all(dir.join("src/a warm one")).unwrap();
    fs::write(dir.join("src/a warm one/file"), "warm").unwrap();
    for cold in 0..COLD_DIRS {
        let cold = dir.join(format!("src/cold{cold}"));
        fs::create_dir(&cold).unwrap();
        // Inline data that cannot be compressed: the trees are larger than what is read at a time.
        (0..500).for_each(|file| fs::write(cold.join(format!("{file}")), rng.bytes(1500)).unwrap());
    }
    let store = Store::s3(Some(Faults::default()));
    let proxy = store.proxy.as_ref().unwrap();
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--rootdir", "src", &url]);
    let mounted = store.mount(&url, "commit=300");
    let cold = |cold| mounted.path().join(format!("cold{cold}/250"));
    let cold: Vec<_> = (0..COLD_DIRS).map(cold).collect();
    let asked = std::cell::Cell::new(0);
    let silent = |silent: bool| {
        proxy.set(Faults { delay: if silent { LATE } else { Duration::ZERO }, ..Faults::default() });
        asked.set(proxy.requests());
    };
    let is_asked = || proxy.requests() > asked.get();
    let answered =
        oleo_sim::stall::others_are_answered(&mounted.path().join("a warm one"), (&cold, 1500), &silent, &is_asked);
    mounted.unmount().unwrap();
    answered.unwrap();
}

/// Goal: while the store is away for less than its time nothing fails; when it is away for longer, fsync fails within its bound,
/// what was confirmed is there afterwards, and the mount goes. Method: a proxy that goes
/// away in the middle of writing.
#[test]
fn the_store_goes() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(Some(Faults::default()));
    let proxy = store.proxy.as_ref().unwrap();
    let url = store.url("volume");
    store.ok(dir, &["mkfs", &url]);
    let mut mounted = store.mount(&url, "flush_max=6,read_max=6,attach_max=6");
    let stop = AtomicBool::new(false);
    let mut confirmed = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut names = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let name = format!("n{}", names.len());
                match confirm(mounted.path(), &name) {
                    Ok(()) => names.push(name),
                    Err(_) => break,
                }
            }
            names
        });
        std::thread::sleep(Duration::from_millis(500));
        proxy.away(true);
        std::thread::sleep(Duration::from_millis(1500));
        proxy.away(false);
        std::thread::sleep(Duration::from_secs(3));
        assert!(!writer.is_finished(), "a short absence is no failure: {}", mounted.log());
        proxy.away(true);
        let begun = Instant::now();
        while !writer.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(writer.is_finished(), "fsync fails within its bound");
        stop.store(true, Ordering::Relaxed);
        confirmed = writer.join().unwrap();
    });
    assert!(confirmed.len() > 2, "{}", confirmed.len());
    assert!(confirm(mounted.path(), "after").is_err(), "nothing is written after a failure");
    proxy.away(false);
    assert!(confirm(mounted.path(), "after").is_err(), "nor when the store is back: nobody knows what was lost");
    mounted.kill().unwrap();
    drop(mounted);
    let mounted = store.mount(&url, "take_over");
    must_hold(mounted.path(), &confirmed);
    confirm(mounted.path(), "afterwards").unwrap();
    mounted.unmount().unwrap();
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
}

/// Goal: a mount that was overtaken says so by failing, and does no harm. Method: a second mount that takes over while the first is
/// there; both write.
#[test]
fn overtaken() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", &url]);
    let mut first = store.mount(&url, "");
    confirm(first.path(), "first").unwrap();
    let second = store.mount(&url, "take_over");
    must_hold(second.path(), &["first".to_owned()]);
    assert!(confirm(first.path(), "too-late").is_err());
    confirm(second.path(), "second").unwrap();
    first.kill().unwrap();
    drop(first);
    confirm(second.path(), "third").unwrap();
    second.unmount().unwrap();
    let listed = store.ok(dir, &["ls", &url]);
    assert!(listed.contains("third") && !listed.contains("too-late"), "{listed}");
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
}
