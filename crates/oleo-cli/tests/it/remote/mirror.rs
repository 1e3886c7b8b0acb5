//! Raid1 over two stores, and over a store and a disk.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oleo_sim::oracle::Scratch;
use oleo_sim::proxy::Faults;

use crate::common::{confirm, must_hold};
use crate::remote::harness::{Store, same, source};
use crate::remote::mounted::{can_mount, counters};

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

/// The number of findings of a check.
fn findings(store: &Store, dir: &Path, a: &str, b: &str) -> u64 {
    let output = store.run(dir, &["check", "--data", a, "--device", b]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = said.lines().find_map(|line| line.strip_suffix(" findings")?.rsplit(' ').next()?.parse().ok());
    assert_eq!(count.is_none(), said.contains("clean"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    count.unwrap_or(0)
}

/// Goal: a volume mirrored over two stores, or a store and a disk, is read from either, and what one of them has that is wrong is
/// found and healed from the other; one that cannot be opened can be left out for reading.
/// Method: bits of all objects of one are changed and one is deleted; a mount reads everything, which heals what it finds; a balance
/// makes all of it anew; then each member is read alone.
#[test]
fn wrong_objects_are_healed() {
    for disk in [false, true] {
        let scratch = Scratch::new().unwrap();
        let dir = scratch.path();
        source(dir);
        let store = Store::directory(dir);
        let (a, b) = (store.url("a"), if disk { dir.join("b.img").display().to_string() } else { store.url("b") });
        let both = ["-d", "raid1", "-m", "raid1", "--size", "1G", "--rootdir", "src"];
        store.ok(dir, &[&["mkfs", "--remote", "segment=256K"][..], &both, &[&a, &b]].concat());
        // The map is stored, so that no segment is needed to open it.
        store.ok(dir, &["remote", "gc", &a]);
        assert_eq!(findings(&store, dir, &a, &b), 0);
        let mut found = segments(&dir.join("a/seg"));
        found.sort();
        assert!(found.len() > 5, "{found:?}");
        for path in &found {
            let mut bytes = fs::read(path).unwrap();
            let len = bytes.len();
            bytes[100..len / 2].iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
            fs::write(path, bytes).unwrap();
        }
        fs::remove_file(&found[2]).unwrap();
        assert!(!store.run(dir, &["remote", "verify", &a]).status.success());
        let before = findings(&store, dir, &a, &b);
        assert!(before > 100, "{before}");
        let large = store.run(dir, &["cat", &a, "sub/large", "--device", &b]);
        assert!(large.stdout == fs::read(dir.join("src/sub/large")).unwrap(), "reading heals nothing, and is right");
        assert_eq!(findings(&store, dir, &a, &b), before);
        if can_mount() {
            let mounted = store.mount(&a, &format!("device={b}"));
            for name in ["sub/large", "small", "sub/deep/7", "sub/deep/99"] {
                assert!(same(&mounted.path().join(name), &dir.join("src").join(name)), "{name}");
            }
            mounted.unmount().unwrap();
            let after = findings(&store, dir, &a, &b);
            assert!(after < before, "{before} {after}");
        }
        store.ok(dir, &["balance", "start", "--full-balance", &a, "--device", &b]);
        assert_eq!(findings(&store, dir, &a, &b), 0);
        for one in [&a, &b] {
            let alone = store.run(dir, &["cat", "--degraded", one, "sub/large"]);
            assert!(alone.stdout == large.stdout, "{one}: {}", String::from_utf8_lossy(&alone.stderr));
        }
        // One that is gone altogether.
        fs::remove_dir_all(dir.join("a")).unwrap();
        assert!(!store.run(dir, &["cat", &a, "small", "--device", &b]).status.success());
        assert_eq!(store.ok(dir, &["cat", "--degraded", &a, "small", "--device", &b]), "small");
    }
}

/// Goal: when one of two stores goes, reads go on from the other; the next fsync is confirmed by the other one alone, within the bound of
/// the one that is away, and the mount says so; nothing that was confirmed is lost; the one that was away is not relied on when it is back, until
/// a scrub has brought it up to date. Method: a mount over a directory and a server behind a proxy, which goes away.
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
    let mut names: Vec<String> = (0..5).map(|n| format!("n{n}")).collect();
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
    // Once that is known, nobody waits for it again and again: each of these had to, a second, before it was remembered.
    let begun = Instant::now();
    for n in 0..100 {
        let name = mounted.path().join(format!("sub/deep/{n}"));
        assert_eq!(fs::read(&name).unwrap(), vec![n as u8; 10 + n * 97], "{name:?}");
    }
    let far_away =
        |name: &str| counters(&store, mounted.path()).iter().filter(|(n, _)| n == name).map(|(_, c)| *c).sum::<u64>();
    println!("100 files in {:?}, {} reads not sent", begun.elapsed(), far_away("reads not sent because it was away"));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(far_away("times it went away") >= 1 && far_away("away now") == 1);
    let begun = Instant::now();
    names.push("away".into());
    confirm(mounted.path(), "away").unwrap_or_else(|e| panic!("one of them has it: {e}: {}", mounted.log()));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let told = || mounted.log().contains("is not used any more");
    while !told() {
        assert!(begun.elapsed() < Duration::from_secs(40), "{}", mounted.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let begun = Instant::now();
    names.push("without".into());
    confirm(mounted.path(), "without").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for it again: {:?}", begun.elapsed());
    must_hold(mounted.path(), &names);
    mounted.kill().unwrap();
    drop(mounted);
    // While one is away the volume is read without it if that is wanted, and not written otherwise.
    let away = ["--remote", "attach-max=2", &near, "--device", &far];
    assert!(!store.run(dir, &[&["ls"][..], &away].concat()).status.success());
    // What was synced since the last commit is in the log of the file system, which is not applied without all members.
    let degraded = [&["ls", "--degraded", "--no-log-replay"][..], &away].concat();
    assert!(store.ok(dir, &degraded).contains("small"));
    let refused = store.run(dir, &["mkdir", "--take-over", &near, "d"]);
    assert!(!refused.status.success(), "writing without a member is refused where nobody asks for it");
    proxy.away(false);
    let mounted = store.mount(&near, &format!("take_over,device={far}"));
    must_hold(mounted.path(), &names);
    confirm(mounted.path(), "after").unwrap();
    mounted.unmount().unwrap();
    // What it missed is not there yet.
    assert!(store.run(dir, &["check", "--data", &near, "--device", &far]).status.code() == Some(3));
    store.ok(dir, &["scrub", "start", &near, "--device", &far]);
    assert!(store.ok(dir, &["check", "--data", &near, "--device", &far]).contains("clean"));
    let far_alone = ["cat", "--degraded", &far, "away"];
    assert!(store.ok(dir, &far_alone).contains("away"));
}
