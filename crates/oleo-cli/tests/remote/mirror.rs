//! Raid1 over two stores, and over a store and a disk.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oleo_sim::oracle::Scratch;
use oleo_sim::proxy::Faults;

use crate::common::{confirm, must_hold};
use crate::harness::{Store, same, source};
use crate::mounted::can_mount;

/// The segments below a directory.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => out.extend(segments(&path)),
            path => out.push(path),
        }
    }
    out
}

/// Goal: a volume mirrored over two stores, or a store and a disk, is read from either, and what one of them has that is wrong is found
/// and healed from the other.
/// Method: objects that are changed, and one that is deleted, are found by a scrub, which heals them; then each member is read alone.
#[test]
fn wrong_objects_are_healed() {
    for disk in [false, true] {
        let scratch = Scratch::new().unwrap();
        let dir = scratch.path();
        source(dir);
        let store = Store::directory(dir);
        let (a, b) = (store.url("a"), if disk { "b.img".into() } else { store.url("b") });
        store.ok(dir, &["mkfs", "-d", "raid1", "-m", "raid1", "--size", "1G", "--rootdir", "src", &a, &b]);
        let mut found = segments(&dir.join("a/seg"));
        found.sort();
        assert!(found.len() > 1, "{found:?}");
        fs::remove_file(&found[0]).unwrap();
        for path in &found[1..] {
            let mut bytes = fs::read(path).unwrap();
            let len = bytes.len();
            // The directory at the end stays: it is read when the volume is opened.
            bytes[100..len / 2].iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
            fs::write(path, bytes).unwrap();
        }
        let verified = store.run(dir, &["remote", "verify", &a]);
        assert!(!verified.status.success());
        let both = ["--device", &b];
        store.ok(dir, &[&["cat", &a, "sub/large"][..], &both].concat());
        let scrubbed = store.run(dir, &[&["scrub", &a][..], &both].concat());
        let said = String::from_utf8_lossy(&scrubbed.stdout).into_owned();
        assert!(scrubbed.status.success(), "{said} {}", String::from_utf8_lossy(&scrubbed.stderr));
        assert!(store.ok(dir, &[&["scrub", &a][..], &both].concat()).contains("0 errors"), "{said}");
        for one in [&a, &b] {
            for name in ["sub/large", "small", "sub/deep/7"] {
                let out = store.run(dir, &["cat", "--degraded", one, name]);
                assert!(out.status.success(), "{one}: {}", String::from_utf8_lossy(&out.stderr));
                assert!(out.stdout == fs::read(dir.join("src").join(name)).unwrap(), "{one}: {name}");
            }
        }
        let _ = same;
    }
}

/// Goal: when one of two stores goes, reads go on from the other; what is written then fails as an error within its bound, and nothing
/// that was confirmed is lost; afterwards, with both, the volume is whole.
/// Method: a mount over a directory and a server behind a proxy, which goes away.
#[test]
fn one_is_away() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::s3(Some(Faults::default()));
    let proxy = store.proxy.as_ref().unwrap();
    let (near, far) = (Store::directory(dir).url("near"), store.url("far"));
    store.ok(dir, &["mkfs", "-d", "raid1", "-m", "raid1", "--size", "1G", "--rootdir", "src", &near, &far]);
    let bounds = "flush_max=4,read_max=1,attach_max=4";
    let mut mounted = store.mount(&near, &format!("{bounds},device={far}"));
    let names: Vec<String> = (0..5).map(|n| format!("n{n}")).collect();
    names.iter().for_each(|name| confirm(mounted.path(), name).unwrap());
    proxy.away(true);
    // Places of both members come first: what is looked for in the one that is away waits for its time.
    let (here, there) =
        (fs::File::open(mounted.path().join("sub/large")).unwrap(), fs::read(dir.join("src/sub/large")).unwrap());
    for at in [0, 1 << 20, 2 << 20] {
        let mut bytes = vec![0; 4096];
        here.read_exact_at(&mut bytes, at).expect("reads go on");
        assert!(bytes == there[at as usize..][..4096], "at {at}");
    }
    let begun = Instant::now();
    assert!(confirm(mounted.path(), "away").is_err(), "nothing is confirmed that one of them has not");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    must_hold(mounted.path(), &names);
    mounted.kill().unwrap();
    drop(mounted);
    // While one is away the volume is read without it, and not written.
    let line = store.fails_with(dir, 1, &["ls", "--degraded", "--remote", "attach-max=2", &far]);
    assert!(!line.is_empty());
    assert!(store.ok(dir, &["ls", "--degraded", &near]).contains("n4"));
    let refused = store.run(dir, &["mkdir", "--degraded", "--take-over", &near, "d"]);
    assert!(!refused.status.success(), "writing without a member is refused");
    proxy.away(false);
    let mounted = store.mount(&near, &format!("take_over,device={far}"));
    must_hold(mounted.path(), &names);
    confirm(mounted.path(), "after").unwrap();
    mounted.unmount().unwrap();
    assert!(store.ok(dir, &["check", "--data", &near, "--device", &far]).contains("clean"));
}
