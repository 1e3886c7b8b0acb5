//! Snapshots that are kept as streams: sent, received, listed, verified, pruned, looked into; by several senders, and by one that is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Scratch, oracle, run};
use oleo_sim::rng::Rng;

use crate::remote::harness::Store;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

fn ok(dir: &Path, store: &Store, args: &[&str]) -> String {
    store.ok(dir, args)
}

/// An image with the snapshots `s0` to `s4`, of files that are written, renamed, linked, cloned and deleted between them.
fn image_with_history(dir: &Path, store: &Store) {
    let ok = |args: &[&str]| ok(dir, store, args);
    ok(&["mkfs", "--size", "400M", "img"]);
    ok(&["subvolume", "create", "img", "work"]);
    let large = Rng::new(3).bytes(3 << 20);
    std::fs::write(dir.join("large"), &large).unwrap();
    std::fs::write(dir.join("small"), "small").unwrap();
    ok(&["mkdir", "img", "work/d"]);
    ok(&["put", "img", "large", "work/d/large"]);
    ok(&["put", "img", "small", "work/d/small"]);
    snapshot(dir, store, "s0");
    ok(&["mv", "img", "work/d", "work/e"]);
    ok(&["ln", "img", "work/e/small", "work/name"]);
    snapshot(dir, store, "s1");
    ok(&["cp", "--reflink", "img", "work/e/large", "work/copy"]);
    std::fs::write(dir.join("small"), "another text").unwrap();
    ok(&["put", "img", "small", "work/new"]);
    snapshot(dir, store, "s2");
    ok(&["rm", "img", "work/e/large"]);
    ok(&["mv", "img", "work/new", "work/e/newer"]);
    snapshot(dir, store, "s3");
    ok(&["rm", "img", "work/name"]);
    ok(&["mkdir", "img", "work/f"]);
    ok(&["mv", "img", "work/copy", "work/f/copy"]);
    snapshot(dir, store, "s4");
}

fn snapshot(dir: &Path, store: &Store, name: &str) {
    ok(dir, store, &["subvolume", "snapshot", "-r", "img", "work", name]);
}

/// Everything that is done with streams on a store.
fn use_them(dir: &Path, store: &Store, url: &str) {
    let ok = |args: &[&str]| ok(dir, store, args);
    image_with_history(dir, store);
    for n in 0..5 {
        let name = format!("s{n}");
        let said = ok(&["send", "img", "--subvol", &name, "--incremental", "-f", url]);
        assert_eq!(said.contains("whole"), n == 0, "{said}");
        // As the kernel and everybody else gets it.
        ok(&["send", "img", "--subvol", &name, "-f", "direct"].iter().copied().chain(parent(n)).collect::<Vec<_>>());
        ok(&["remote", "streams", "get", &format!("{url}?snapshot={name}"), "-f", "stored"]);
        assert!(std::fs::read(dir.join("direct")).unwrap() == std::fs::read(dir.join("stored")).unwrap(), "{name}");
    }
    let line = store.fails_with(dir, 1, &["send", "img", "--subvol", "s4", "--incremental", "-f", url]);
    assert!(line.contains("already"), "{line}");
    let listed = json(&ok(&["remote", "streams", "list", "--json", url]));
    let streams = listed["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 5);
    assert_eq!(streams[4]["needs"][0], streams[3]["id"]);
    assert!(ok(&["remote", "streams", "list", url]).lines().last().unwrap().ends_with("s3"));
    assert!(ok(&["remote", "streams", "verify", url]).ends_with("sound\n"));

    // Received by another image, all of it, and then only what is new.
    ok(&["mkfs", "--size", "400M", "other"]);
    let said = ok(&["receive", "other", "-f", &format!("{url}?snapshot=s2")]);
    assert_eq!(said.lines().count(), 3, "{said}");
    let said = ok(&["receive", "other", "-f", url]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(ok(&["receive", "other", "-f", url]).contains("there already"));
    assert!(ok(&["check", "--data", "other"]).contains("clean"));
    std::fs::create_dir(dir.join("plain")).unwrap();
    ok(&["receive", "--to-dir", "plain", "-f", url]);
    for n in 0..5 {
        for image in ["img", "other"] {
            let _ = std::fs::remove_dir_all(dir.join(image.to_owned() + "-out"));
            ok(&["restore", image, &(image.to_owned() + "-out"), "--path", &format!("s{n}")]);
        }
        let out = dir.join("looked-up");
        let _ = std::fs::remove_dir_all(&out);
        ok(&["remote", "streams", "restore", &format!("{url}?snapshot=s{n}"), "/", "looked-up"]);
        for other in ["other-out", "looked-up", &format!("plain/s{n}")] {
            run("diff", ["-r", dir.join("img-out").to_str().unwrap(), dir.join(other).to_str().unwrap()]).unwrap();
        }
    }
    // Single files, through renames, links and clones.
    let cat =
        |snapshot: &str, path: &str| ok(&["remote", "streams", "cat", &format!("{url}?snapshot={snapshot}"), path]);
    assert_eq!(cat("s0", "d/small"), "small");
    assert_eq!(cat("s4", "/e/small"), "small");
    assert_eq!(cat("s3", "name"), "small");
    assert_eq!(cat("s3", "e/newer"), "another text");
    ok(&["remote", "streams", "restore", url, "f/copy", "single"]);
    assert!(std::fs::read(dir.join("single/copy")).unwrap() == std::fs::read(dir.join("large")).unwrap());
    assert_eq!(ok(&["remote", "streams", "ls", url]), "e\nf\n");
    assert!(ok(&["remote", "streams", "ls", "--long", url, "f"]).contains("3145728"));
    for (path, part) in [("d/small", "not there"), ("../x", ".."), ("e", "no file")] {
        let run = store.run(dir, &["remote", "streams", "cat", url, path]);
        let line = String::from_utf8(run.stderr).unwrap();
        assert!(!run.status.success() && line.contains(part), "{path}: {line}");
    }
    store.fails_with(dir, 1, &["remote", "streams", "restore", url, "f", "single"]);
    store.fails_with(dir, 1, &["remote", "streams", "cat", &format!("{url}?snapshot=s9"), "x"]);

    // A new chain; then the old one goes, in the end.
    ok(&["send", "img", "--subvol", "s4", "-f", url]);
    let prune = |args: &[&str]| ok(&[&["remote", "streams", "prune", url], args].concat());
    let said = prune(&["--keep-last", "2", "--dry-run"]);
    // The newer of the two that make s4 is kept by itself.
    assert!(said.contains("needed by s3") && said.contains("1 streams with"), "{said}");
    assert_eq!(json(&ok(&["remote", "streams", "list", "--json", url]))["streams"].as_array().unwrap().len(), 6);
    let said = prune(&["--keep-last", "1"]);
    assert!(said.contains("removed 5 streams"), "{said}");
    store.fails_with(dir, 2, &["remote", "streams", "prune", url]);
    let found = json(&ok(&["remote", "streams", "verify", "--json", url]));
    assert_eq!((&found["sound"], &found["streams"], &found["orphans"]), (&true.into(), &1.into(), &0.into()));
    assert_eq!(cat("s4", "e/small"), "small");
}

/// What `oleo send` is given for the same stream.
fn parent(n: usize) -> Vec<&'static str> {
    match n {
        0 => vec![],
        n => vec!["--parent", ["s0", "s1", "s2", "s3"][n - 1]],
    }
}

/// Goal: a session of commands on streams in a directory.
#[test]
fn in_a_directory() {
    let scratch = Scratch::new().unwrap();
    let store = Store::directory(scratch.path());
    use_them(scratch.path(), &store, &store.url("stores/backups"));
}

/// Goal: the same over S3, and the kernel receives what comes out.
#[test]
fn over_s3() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(None);
    let url = store.url("some/backups");
    use_them(dir, &store, &url);
    let Some(oracle) = oracle() else { return };
    let again = store.url("some/others");
    for n in 0..5 {
        ok(dir, &store, &["send", "img", "--subvol", &format!("s{n}"), "--incremental", "-f", &again]);
    }
    ok(dir, &store, &["remote", "streams", "get", "--chain", &again, "-f", "chain"]);
    let image = scratch.image("kernel", 1 << 30).unwrap();
    oracle.mkfs(&["-q"], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    let chain = dir.join("chain");
    run("btrfs", ["receive", "-f", chain.to_str().unwrap(), mounted.path().to_str().unwrap()]).unwrap();
    for n in 0..5 {
        let received = mounted.path().join(format!("s{n}"));
        run("diff", ["-r", dir.join(format!("plain/s{n}")).to_str().unwrap(), received.to_str().unwrap()]).unwrap();
    }
    mounted.unmount().unwrap();
    // What the kernel has received is the parent of what oleo receives next.
    ok(dir, &store, &["send", "img", "--subvol", "s4", "-f", "direct"]);
    assert!(ok(dir, &store, &["receive", "kernel", "-f", &again]).contains("there already"));
}

/// Goal: over a connection that loses requests and answers nothing fails, and nothing is there twice or half.
#[test]
fn over_a_bad_connection() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::far();
    let url = store.url("backups");
    image_with_history(dir, &store);
    let mut rounds = 0;
    while rounds < 1 || store.proxy.as_ref().unwrap().lost() < 10 {
        let url = format!("{url}{rounds}");
        for n in 0..5 {
            let args = ["send", "img", "--subvol", &format!("s{n}"), "--incremental", "-f", &url];
            store.ok(dir, &[&args[..], &["--remote", "segment=256K"]].concat());
        }
        let found = json(&store.ok(dir, &["remote", "streams", "verify", "--json", &url]));
        assert_eq!((&found["sound"], &found["streams"], &found["orphans"]), (&true.into(), &5.into(), &0.into()));
        rounds += 1;
        assert!(rounds < 50);
    }
}

/// Goal: streams are encrypted with a key file, and nothing is had without it, names included; keys are added as for volumes.
#[test]
fn encrypted() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("backups");
    image_with_history(dir, &store);
    std::fs::write(dir.join("key"), [7; 32]).unwrap();
    std::fs::write(dir.join("phrase"), "correct horse\n").unwrap();
    let key = ["--remote", "key-file=key,compress"];
    for n in 0..5 {
        let name = format!("s{n}");
        ok(dir, &store, &[&["send", "img", "--subvol", &name, "--incremental", "-f", &url], &key[..]].concat());
    }
    for args in [
        &["remote", "streams", "list", &url][..],
        &["receive", "img", "-f", &url],
        &["remote", "streams", "cat", &url, "e/small"],
    ] {
        assert!(store.fails_with(dir, 1, args).contains("encrypted"), "{args:?}");
    }
    assert_eq!(ok(dir, &store, &[&["remote", "streams", "cat", &url, "e/small"], &key[..]].concat()), "small");
    ok(dir, &store, &[&["remote", "key", "add", &url, "--new-passphrase-file", "phrase"], &key[..]].concat());
    ok(dir, &store, &["mkfs", "--size", "400M", "other"]);
    ok(dir, &store, &["receive", "other", "-f", &url, "--remote", "passphrase-file=phrase"]);
    assert!(ok(dir, &store, &["check", "--data", "other"]).contains("clean"));
    for entry in walk(&dir.join("backups")) {
        let bytes = std::fs::read(&entry).unwrap();
        assert!(!bytes.windows(5).any(|five| five == b"small"), "{}", entry.display());
    }
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let below = dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
    below.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Goal: an upload that is killed in the middle is seen by nobody, is told of, can be repeated, and is collected. Method: kill after some parts are there.
#[test]
fn killed() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("backups");
    ok(dir, &store, &["mkfs", "--size", "400M", "img"]);
    ok(dir, &store, &["subvolume", "create", "img", "work"]);
    std::fs::write(dir.join("large"), Rng::new(3).bytes(64 << 20)).unwrap();
    ok(dir, &store, &["put", "img", "large", "work/large"]);
    snapshot(dir, &store, "s0");
    let args = ["send", "img", "--subvol", "s0", "-f", &url, "--remote", "segment=64K"];
    let mut sender = store.spawn(dir, &args);
    let begun = Instant::now();
    let parts = || dir.join("backups/stream").is_dir() && walk(&dir.join("backups/stream")).len() > 20;
    while !parts() && sender.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(sender.try_wait().unwrap().is_none(), "it was faster than this test");
    sender.kill().unwrap();
    sender.wait().unwrap();
    let listed = json(&ok(dir, &store, &["remote", "streams", "list", "--json", &url]));
    assert_eq!((listed["streams"].as_array().unwrap().len(), listed["uploads"].as_array().unwrap().len()), (0, 1));
    assert!(ok(dir, &store, &["remote", "streams", "gc", &url]).contains("1 are under way"));
    store.fails_with(dir, 1, &["receive", "img", "-f", &url]);
    ok(dir, &store, &args);
    assert!(ok(dir, &store, &["remote", "streams", "gc", "--upload-age", "0", &url]).contains("gave up 1 uploads"));
    let found = json(&ok(dir, &store, &["remote", "streams", "verify", "--json", &url]));
    assert_eq!((&found["sound"], &found["streams"], &found["orphans"]), (&true.into(), &1.into(), &0.into()));
    assert_eq!(ok(dir, &store, &["remote", "streams", "ls", &url]), "large\n");
}

/// Goal: damage is told by the exit code: by `verify`, by `receive`, by looking up; what the target has of it does not look whole.
#[test]
fn damaged() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("backups");
    image_with_history(dir, &store);
    for n in 0..2 {
        ok(dir, &store, &["send", "img", "--subvol", &format!("s{n}"), "-i", "-f", &url, "--remote", "segment=64K"]);
    }
    let listed = json(&ok(dir, &store, &["remote", "streams", "list", "--json", &url]));
    let first = dir.join("backups/stream").join(listed["streams"][0]["id"].as_str().unwrap());
    let part = first.join("part-000010");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let verified = store.run(dir, &["remote", "streams", "verify", &url]);
    assert_eq!(verified.status.code(), Some(3));
    assert!(String::from_utf8(verified.stdout).unwrap().ends_with("DAMAGED\n"));
    ok(dir, &store, &["mkfs", "--size", "400M", "other"]);
    let received = store.run(dir, &["receive", "other", "-f", &url]);
    let said = String::from_utf8(received.stderr).unwrap();
    assert_eq!(received.status.code(), Some(3), "{said}");
    assert!(said.contains("part-000010") && said.contains("incomplete"), "{said}");
    let shown = ok(dir, &store, &["subvolume", "list", "-R", "other"]);
    assert!(shown.contains("received_uuid -"), "{shown}");
    store.fails_with(dir, 3, &["remote", "streams", "cat", &url, "e/large"]);
    // What is elsewhere in the stream is had all the same.
    assert_eq!(ok(dir, &store, &["remote", "streams", "cat", &url, "e/small"]), "small");
    std::fs::remove_dir_all(&first).unwrap();
    ok(dir, &store, &["mkfs", "--force", "--size", "400M", "other"]);
    assert!(store.fails_with(dir, 3, &["receive", "other", "-f", &url]).contains("missing"));
    assert_eq!(ok(dir, &store, &["subvolume", "list", "other"]), "", "nothing was begun");
}

/// Goal: a mount sends and receives, too.
#[test]
fn of_a_mount() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("backups");
    image_with_history(dir, &store);
    let image = dir.join("img");
    let mounted = store.mount(image.to_str().unwrap(), "");
    let path = |name: &str| mounted.path().join(name).to_str().unwrap().to_owned();
    for n in 0..3 {
        let said = ok(dir, &store, &["send", &path(&format!("s{n}")), "--incremental", "-f", &url]);
        assert_eq!(said.contains("whole"), n == 0, "{said}");
    }
    let line = store.fails_with(dir, 1, &["send", &path("s2"), "-i", "-f", &url]);
    assert!(line.contains("already"), "{line}");
    let line = store.fails_with(dir, 1, &["send", &path("s4"), "-p", &path("s3"), "-f", &url]);
    assert!(line.contains("s3 is not among"), "{line}");
    ok(dir, &store, &["send", &path("s3"), &path("s4"), "-i", "-f", &url]);
    assert!(ok(dir, &store, &["remote", "streams", "verify", &url]).ends_with("sound\n"));
    assert!(ok(dir, &store, &["receive", &path(""), "-f", &url]).contains("there already"));
    ok(dir, &store, &["mkfs", "--size", "400M", "other"]);
    let other = store.mount(dir.join("other").to_str().unwrap(), "");
    let said = ok(dir, &store, &["receive", other.path().to_str().unwrap(), "-f", &url]);
    assert_eq!(said.lines().count(), 5, "{said}");
    run("diff", ["-r", &path("s4"), other.path().join("s4").to_str().unwrap()]).unwrap();
}

/// Goal: a chain is made shorter: its newest snapshot is stored as one whole stream, known as before, so that the old ones go, and what is
/// sent later is built on it. Method: five snapshots; repacked, received, pruned, and the next one sent.
#[test]
fn repacked() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("stores/backups");
    let ok = |args: &[&str]| ok(dir, &store, args);
    image_with_history(dir, &store);
    let send = |name: &str| ok(&["send", "img", "--subvol", name, "--incremental", "-f", &url]);
    for n in 0..5 {
        send(&format!("s{n}"));
    }
    assert!(ok(&["remote", "streams", "repack", &format!("{url}?snapshot=s0")]).contains("whole already"));
    let said = ok(&["remote", "streams", "repack", &url, "--scratch", "room.img"]);
    assert!(said.contains("s4 of 5 streams"), "{said}");
    assert!(!dir.join("room.img").exists(), "nothing of it stays");
    // An older one is no newer by that.
    ok(&["remote", "streams", "repack", &format!("{url}?snapshot=s2")]);
    ok(&["mkfs", "--size", "400M", "other"]);
    let said = ok(&["receive", "other", "-f", &url]);
    assert_eq!(said.lines().count(), 1, "one stream is enough: {said}");
    assert!(ok(&["receive", "other", "-f", &url]).contains("there already"));
    ok(&["put", "img", "large", "work/later"]);
    snapshot(dir, &store, "s5");
    let said = send("s5");
    assert!(!said.contains("whole"), "{said}");
    let listed = json(&ok(&["remote", "streams", "list", "--json", &url]));
    let streams = listed["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 8);
    assert_eq!((&streams[7]["needs"][0], &streams[5]["name"]), (&streams[5]["id"], &"s4".into()));
    assert_eq!(streams[5]["uuid"], streams[4]["uuid"]);
    let said = ok(&["remote", "streams", "prune", &url, "--keep-last", "1"]);
    assert!(said.contains("removed 6 streams"), "{said}");
    assert!(ok(&["remote", "streams", "verify", &url]).ends_with("sound\n"));
    assert_eq!(ok(&["receive", "other", "-f", &url]).lines().count(), 1);
    assert!(ok(&["check", "--data", "other"]).contains("clean"));
    for name in ["s4", "s5"] {
        for image in ["img", "other"] {
            ok(&["restore", image, &format!("{image}-{name}"), "--path", name]);
        }
        let of = |image: &str| dir.join(format!("{image}-{name}")).display().to_string();
        run("diff", ["-r", &of("img"), &of("other")]).unwrap();
    }
    assert_eq!(ok(&["remote", "streams", "cat", &url, "e/small"]), "small");
    // Where its room is taken, nothing is overwritten.
    std::fs::write(dir.join("room.img"), "mine").unwrap();
    let line = store.fails_with(dir, 1, &["remote", "streams", "repack", &url, "--scratch", "room.img"]);
    assert!(line.contains("room.img"), "{line}");
    assert_eq!(std::fs::read(dir.join("room.img")).unwrap(), b"mine");
}

/// Goal: a store that shows an older list of streams than this machine has seen is refused, and nothing is sent or removed on the
/// strength of it, unless that is accepted. Method: the list is put back by hand.
#[test]
fn put_back() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("stores/backups");
    image_with_history(dir, &store);
    let cached = ["--remote", "cache=seen"];
    let send =
        |name: &str| [&["send", "img", "--subvol", name, "--incremental", "-f", &url][..], &cached].concat().join("|");
    let words = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
    let run = |line: &str| store.run(dir, &words(line).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(run(&send("s0")).status.success());
    let old = std::fs::read(dir.join("stores/backups/streams")).unwrap();
    assert!(run(&send("s1")).status.success());
    std::fs::write(dir.join("stores/backups/streams"), &old).unwrap();
    for line in [send("s2"), format!("remote|streams|list|{url}|--remote|cache=seen")] {
        let output = run(&line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("older state"), "{line}: {said}");
    }
    // Whoever has seen nothing cannot know.
    assert!(store.ok(dir, &["remote", "streams", "list", &url]).contains("s0"));
    let line = store.ok(dir, &["remote", "streams", "list", &url, "--remote", "cache=seen,accept-older"]);
    assert!(line.contains("s0") && !line.contains("s1"), "{line}");
    assert!(run(&send("s1")).status.success(), "what was accepted counts from then on");
}
