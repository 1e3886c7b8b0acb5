//! Mounts that follow what another mount writes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use oleo_sim::oracle::Scratch;
use oleo_sim::proxy::Faults;
use oleo_sim::rng::Rng;
use rustix::io::Errno;

use crate::remote::harness::Store;
use crate::remote::mounted::{can_mount, counters};

/// What these mounts promise, and what a busy machine takes besides.
const FOLLOW: Duration = Duration::from_secs(1);
const BUSY: Duration = Duration::from_secs(60);

/// Waits until it is so; how long that took.
fn until(what: &str, is_so: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < FOLLOW + BUSY, "not within its time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

fn errno(error: &std::io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn sync(path: &Path) {
    crate::common::ok(path, &["filesystem", "sync", path.to_str().unwrap()]);
}

/// Goal: what is synced on one mount is seen on another that follows, within its time and without being opened anew; what is open
/// there stays as it was, what has not changed keeps its inode, and a directory that somebody stands in goes on. Method: two
/// mounts over S3; files changed, removed, renamed and added; a handle, its pages not read before, across all of it.
#[test]
fn two_mounts() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(None);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "2G", &url]);
    let writer = store.mount(&url, "");
    let at = writer.path().to_path_buf();
    let (first, second) = (Rng::new(1).bytes(2 << 20), Rng::new(2).bytes(3 << 20));
    fs::create_dir(at.join("d")).unwrap();
    fs::write(at.join("d/changes"), &first).unwrap();
    fs::write(at.join("d/stays"), "stays").unwrap();
    fs::write(at.join("goes"), "goes").unwrap();
    sync(&at);
    let reader = store.mount(&url, "ro,follow=1");
    let seen = reader.path().to_path_buf();
    let (open, inside) = (File::open(seen.join("d/changes")).unwrap(), File::open(seen.join("d")).unwrap());
    let mut begin = [0; 100];
    open.read_exact_at(&mut begin, 0).unwrap();
    let stays = fs::metadata(seen.join("d/stays")).unwrap().ino();
    let goes = File::open(seen.join("goes")).unwrap();
    // By fsync alone, and by commits.
    fs::write(at.join("d/synced"), "synced").unwrap();
    File::open(at.join("d/synced")).unwrap().sync_all().unwrap();
    until("a file that was synced", || fs::read(seen.join("d/synced")).is_ok_and(|b| b == b"synced"));
    fs::write(at.join("d/changes"), &second).unwrap();
    fs::remove_file(at.join("goes")).unwrap();
    fs::rename(at.join("d/synced"), at.join("d/renamed")).unwrap();
    sync(&at);
    let took = until("a file that was changed", || fs::read(seen.join("d/changes")).is_ok_and(|b| b == second));
    println!("seen after {took:?}");
    until("a name that is gone", || fs::metadata(seen.join("goes")).is_err_and(|e| errno(&e) == Some(Errno::NOENT)));
    let mut names: Vec<_> = fs::read_dir(seen.join("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["changes", "renamed", "stays"]);
    // By a directory that was opened before.
    let by = format!("/proc/self/fd/{}/renamed", std::os::fd::AsRawFd::as_raw_fd(&inside));
    until("a name in an open directory", || fs::read(&by).is_ok_and(|b| b == b"synced"));
    // One state from the beginning to the end.
    let mut whole = vec![0; first.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == first && open.metadata().unwrap().len() == first.len() as u64, "an open file has changed");
    let mut was = [0; 4];
    goes.read_exact_at(&mut was, 0).unwrap();
    assert_eq!(&was, b"goes");
    assert_eq!(fs::metadata(seen.join("d/stays")).unwrap().ino(), stays);
    assert!(fs::write(seen.join("x"), "").is_err_and(|e| errno(&e) == Some(Errno::ROFS)));
    // Moments are kept for what is open, and let go of when it is closed.
    let kept =
        || counters(&store, &seen).into_iter().find(|(n, _)| n == "older moments kept for open files").unwrap().1;
    assert!(kept() >= 1, "{:?}", counters(&store, &seen));
    drop((open, goes));
    until("moments that nobody needs", || kept() == 0);
    // Subvolumes, and the commands of a mount.
    store.ok(dir, &["subvolume", "create", at.join("sub").to_str().unwrap()]);
    fs::write(at.join("sub/inside"), "inside").unwrap();
    sync(&at);
    until("a subvolume", || fs::read(seen.join("sub/inside")).is_ok_and(|b| b == b"inside"));
    assert!(store.ok(dir, &["subvolume", "list", seen.to_str().unwrap()]).contains("sub"));
    let refused = crate::common::fails_with(dir, 1, &["scrub", "start", "-r", seen.to_str().unwrap()]);
    assert!(refused.contains("a mount that follows cannot be scrubbed"), "{refused}");
    inside.sync_all().unwrap();
    drop(inside);
    reader.unmount().unwrap();
    writer.unmount().unwrap();
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
}

/// Goal: nothing is collected below an open file of a mount that follows, however far the writer goes. Method: a writer without
/// any time of grace, that replaces the file and collects; the reader has a lease, reads nothing before, and everything after.
#[test]
fn nothing_is_collected_below() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(None);
    let url = store.url("volume");
    let contents = Rng::new(3).bytes(12 << 20);
    store.ok(dir, &["mkfs", "--size", "2G", &url]);
    let put = |bytes: &[u8]| {
        let writer = store.mount(&url, "grace=0,segment=1M");
        fs::write(writer.path().join("large"), bytes).unwrap();
        writer.unmount().unwrap();
    };
    put(&contents);
    let reader = store.mount(&url, "ro,follow=1,lease");
    let open = File::open(reader.path().join("large")).unwrap();
    for round in 0..2 {
        put(&Rng::new(4 + round).bytes(12 << 20));
        let said = store.ok(dir, &["remote", "gc", "--grace", "0", &url]);
        let kept =
            said.split_once(" are kept by pins").and_then(|(before, _)| before.rsplit_once(' ')?.1.parse::<u64>().ok());
        assert!(kept.is_some_and(|n| n > 0), "collected without the lease's objects in mind: {said}");
    }
    let newest = Rng::new(5).bytes(12 << 20);
    until("the new contents", || fs::read(reader.path().join("large")).is_ok_and(|b| b == newest));
    let mut whole = vec![0; contents.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == contents, "what is open has changed");
    drop(open);
    reader.unmount().unwrap();
}

/// Goal: when the store cannot be asked, names fail after their time instead of showing what is old, and what is open goes on;
/// afterwards all is well again. Method: a proxy that goes away.
#[test]
fn the_store_is_away() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(Some(Faults::default()));
    let proxy = store.proxy.as_ref().unwrap();
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", &url]);
    let writer = store.mount(&url, "");
    fs::write(writer.path().join("file"), "contents").unwrap();
    writer.unmount().unwrap();
    let reader = store.mount(&url, "ro,follow=1,read_max=2,attach_max=2");
    let file = reader.path().join("file");
    let open = File::open(&file).unwrap();
    let mut bytes = [0; 8];
    open.read_exact_at(&mut bytes, 0).unwrap();
    proxy.away(true);
    std::thread::sleep(FOLLOW / 2);
    assert_eq!(fs::read(&file).unwrap(), b"contents", "a short absence is no failure");
    until("an error", || fs::metadata(&file).is_err_and(|e| errno(&e) == Some(Errno::TIMEDOUT)));
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"contents");
    proxy.away(false);
    until("the end of it", || fs::read(&file).is_ok_and(|b| b == b"contents"));
    drop(open);
    let log = reader.log();
    assert!(log.contains("cannot be read") && log.contains("can be read again"), "{log}");
    reader.unmount().unwrap();
}

/// Goal: older moments are bounded: files that are open in the oldest are ESTALE, those of newer ones are not, nor is one that has
/// not changed. Method: one file that is changed and opened again and again, more often than moments are kept.
#[test]
fn too_many_moments() {
    if !can_mount() {
        return;
    }
    const KEPT: usize = 16;
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", &url]);
    let writer = store.mount(&url, "");
    let contents = |n: u8| vec![n; 300_000];
    fs::write(writer.path().join("stays"), contents(200)).unwrap();
    fs::write(writer.path().join("file"), contents(0)).unwrap();
    sync(writer.path());
    let reader = store.mount(&url, "ro,follow=1");
    let (stays, path) = (File::open(reader.path().join("stays")).unwrap(), reader.path().join("file"));
    let mut open = vec![File::open(&path).unwrap()];
    for n in 1..KEPT as u8 + 4 {
        fs::write(writer.path().join("file"), contents(n)).unwrap();
        sync(writer.path());
        let begun = Instant::now();
        let file = loop {
            let file = File::open(&path).unwrap();
            let mut last = [0];
            file.read_exact_at(&mut last, 299_999).unwrap();
            if last == [n] {
                break file;
            }
            assert!(begun.elapsed() < FOLLOW + BUSY, "{n} is not seen");
            std::thread::sleep(Duration::from_millis(20));
        };
        open.push(file);
    }
    let read = |file: &File| {
        let mut all = vec![0; 200_000];
        file.read_exact_at(&mut all, 0).map(|()| all)
    };
    let gone = open.iter().filter(|file| read(file).is_err_and(|e| errno(&e) == Some(Errno::STALE))).count();
    let whole = open.iter().enumerate().filter(|(n, file)| read(file).is_ok_and(|b| b == vec![*n as u8; 200_000]));
    assert!((2..=4).contains(&gone), "{gone} of {} are gone", open.len());
    assert_eq!(whole.count() + gone, open.len(), "each is whole, or gone");
    assert_eq!(read(&stays).unwrap(), vec![200; 200_000]);
    drop((open, stays));
    reader.unmount().unwrap();
    writer.unmount().unwrap();
}

/// Goal: what cannot be followed is refused.
#[test]
fn refused() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", &url]);
    store.ok(dir, &["remote", "pin", &url, "kept"]);
    store.ok(dir, &["mkfs", "disk.img", "--size", "200M"]);
    fs::create_dir(dir.join("m")).unwrap();
    let pin = format!("{url}?pin=kept");
    for (name, options, said) in [
        (&url[..], "follow=1", "ro"),
        (&url, "ro,follow=0", "seconds"),
        ("disk.img", "ro,follow=1", "object stores"),
        (&pin, "ro,follow=1", "pin"),
    ] {
        let output = store.run(dir, &["mount", name, "m", "-o", options]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(said), "{options}: {text}");
    }
}
