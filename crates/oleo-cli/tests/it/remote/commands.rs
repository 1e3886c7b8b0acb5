//! Commands on volumes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Scratch, oracle};

use crate::remote::harness::{OLEO, Store, same, source};

/// All kinds of commands on a volume; it is sound afterwards, also for the kernel.
fn use_it(dir: &Path, store: &Store, url: &str) {
    let ok = |args: &[&str]| store.ok(dir, args);
    let made = ok(&["mkfs", "--rootdir", "src", "--label", "far", url]);
    assert!(made.contains("1.00TiB"), "{made}");
    assert!(store.fails_with(dir, 1, &["mkfs", url]).contains("--force"), "it is overwritten only by force");
    assert_eq!(ok(&["cat", url, "small"]), "small");
    ok(&["put", url, "src/sub", "again"]);
    ok(&["subvolume", "create", url, "v"]);
    ok(&["cp", "--reflink", url, "again/large", "v"]);
    ok(&["subvolume", "snapshot", "-r", url, "v", "w"]);
    ok(&["rm", "-r", url, "again/deep"]);
    assert!(ok(&["filesystem", "show", url]).contains(url), "it names its device");
    assert!(ok(&["inspect", "dump-super", url]).contains("far"));
    ok(&["send", "--subvol", "w", "-f", "stream", url]);
    ok(&["mkdir", url, "received"]);
    ok(&["receive", "--into", "received", "-f", "stream", url]);
    ok(&["quota", "enable", url]);
    ok(&["qgroup", "show", url]);
    ok(&["balance", "start", "-dusage=50", url]);
    ok(&["filesystem", "trim", url]);
    assert!(ok(&["check", "--data", url]).contains("clean"));
    let _ = std::fs::remove_dir_all(dir.join("out"));
    ok(&["restore", url, "out"]);
    assert!(same(&dir.join("src/sub/large"), &dir.join("out/received/w/large")));
    let shown = ok(&["remote", "show", url]);
    assert!(shown.contains("nobody; it was closed"), "{shown}");
    ok(&["copy", "--force", url, "disk.img"]);
    assert!(std::fs::metadata(dir.join("disk.img")).unwrap().len() == 1 << 40);
    if let Some(oracle) = oracle() {
        let image = [dir.join("disk.img")];
        oracle.must_be_sound(&image, "a copy of a volume on a store").unwrap();
        let mounted = oracle.mount(&image, "").unwrap();
        assert!(same(&dir.join("src/sub/large"), &mounted.path().join("received/w/large")));
        std::fs::write(mounted.path().join("kernel"), "was here").unwrap();
        mounted.unmount().unwrap();
        let back = format!("{url}-back");
        ok(&["copy", "disk.img", &back]);
        assert_eq!(ok(&["cat", &back, "kernel"]), "was here");
    }
    std::fs::remove_file(dir.join("disk.img")).unwrap();
}

/// Goal: every command takes the name of a volume in a directory in place of an image, and the kernel agrees with what came of
/// it. Method: a session of commands, a copy that the kernel mounts and changes, and that copied back.
#[test]
fn in_a_directory() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::directory(dir);
    use_it(dir, &store, &store.url("stores/volume"));
}

/// Goal: the same over S3.
#[test]
fn over_s3() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::s3(None);
    use_it(dir, &store, &store.url("some/volume"));
}

/// Goal: a connection that delays and breaks costs time and nothing else: no command fails, and what was written is there. Method:
/// commands through a proxy that loses requests and answers.
#[test]
fn over_a_bad_connection() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::far();
    let url = store.url("volume");
    let mut rounds = 0;
    store.ok(dir, &["mkfs", "--rootdir", "src", &url]);
    // Until enough was lost to prove something.
    while store.proxy.as_ref().unwrap().lost() < 10 {
        store.ok(dir, &["put", &url, "src/sub/deep", &format!("round{rounds}")]);
        rounds += 1;
        assert!(rounds < 100);
    }
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
    for round in 0..rounds {
        let listed = store.ok(dir, &["ls", &url, &format!("round{round}")]);
        assert_eq!(listed.lines().count(), 100, "{listed}");
    }
}

/// Goal: a directory goes straight into a bucket, of a size that is asked for or as small as can be, and `--force` is needed a second
/// time, and does away with what was there.
#[test]
fn made_from_a_directory() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "2G", "--rootdir", "src", "--compress", "zstd", &url]);
    assert!(store.ok(dir, &["remote", "show", &url]).contains("2.00GiB"));
    store.fails_with(dir, 1, &["mkfs", "--rootdir", "src", &url]);
    let first: serde_json::Value = serde_json::from_str(&store.ok(dir, &["remote", "show", "--json", &url])).unwrap();
    store.ok(dir, &["mkfs", "--force", "--shrink", "--rootdir", "src", &url]);
    let second: serde_json::Value = serde_json::from_str(&store.ok(dir, &["remote", "show", "--json", &url])).unwrap();
    assert_ne!(first["uuid"], second["uuid"]);
    assert!(second["epoch"].as_u64() > first["epoch"].as_u64(), "names are never used again");
    assert!(second["device_bytes"].as_u64().unwrap() < 1 << 30, "{second}");
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
    for (more, part) in [(&["--offset", "1M"][..], "offset"), (&["--rootdir", "src", "--reflink"], "image file")] {
        let args = [&["mkfs", "--force"], more, &[&url]].concat();
        assert!(store.fails_with(dir, 2, &args).contains(part), "{args:?}");
    }
    // Raid1 over a volume and a file.
    let mirror = store.url("mirror");
    store.ok(dir, &["mkfs", "--size", "1G", "-d", "raid1", "-m", "raid1", &mirror, "mirror.img"]);
    store.ok(dir, &["put", &mirror, "--device", "mirror.img", "src/small", "/"]);
    assert_eq!(store.ok(dir, &["cat", "--device", &mirror, "mirror.img", "small"]), "small");
    std::fs::remove_dir_all(dir.join("mirror")).unwrap();
    assert_eq!(store.ok(dir, &["cat", "--degraded", "mirror.img", "small"]), "small", "the other copy");
}

/// Goal: names and options that make no sense are refused with the code for that, what is not there is said to be, and no secret is
/// said at all.
#[test]
fn mistakes() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("volume");
    for (code, args, part) in [
        (1, &["ls", &url][..], "no volume at file://"),
        (1, &["remote", "show", &url], "no volume at file://"),
        (2, &["ls", "s3://bucket"], "prefix"),
        (2, &["ls", "s3://"], "bucket"),
        (2, &["ls", "file://host/dir"], "three slashes"),
        (2, &["ls", "s4://bucket/a"], "unknown scheme"),
        (2, &["ls", "--remote", "clam=5", &url], "clam"),
        (2, &["ls", "--remote", "claim=x", &url], "seconds"),
        (2, &["remote", "show", "disk.img"], "scheme"),
        (2, &["ls", "--remote", "endpoint=http://example.com", "s3://bucket/a"], "not encrypted"),
        (2, &["ls", "--remote", "profile=none", "s3://bucket/a"], "no profile none"),
        (2, &["copy", &url, &url], "the same"),
    ] {
        let line = store.fails_with(dir, code, args);
        assert!(line.contains(part), "{args:?}: {line}");
    }
    store.ok(dir, &["mkfs", "--size", "300M", &url]);
    let line = store.fails_with(dir, 1, &["mkdir", &format!("{url}?pin=a"), "d"]);
    assert!(line.contains("reading only"), "{line}");
    // A store that is not there takes as long as it may, no longer.
    let gone = "endpoint=http://127.0.0.1:1,attach-max=1,AWS_ACCESS_KEY_ID=a,AWS_SECRET_ACCESS_KEY=hush";
    let begun = Instant::now();
    let line = store.fails_with(dir, 4, &["ls", "--remote", gone, "s3://bucket/a"]);
    assert!(line.contains("not reached") && !line.contains("hush"), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// Goal: a command whose store never answers says whom it waits for during the first request. Method: a listener that
/// accepts nothing; the first line of standard error, which without a report comes when the attempt has failed, after 20 s.
#[test]
fn a_silent_store_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let remote = format!("endpoint=http://{at},region=a,AWS_ACCESS_KEY_ID=a,AWS_SECRET_ACCESS_KEY=b");
    let mut command = Command::new(OLEO);
    command.args(["ls", "--remote", &remote, "s3://bucket/a"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line, "oleo: waiting for s3://bucket/a: no answer for 2 s\n");
}

/// Goal: a volume that somebody writes to whose claim does not run out is refused to others, who learn who it is; told to, they take over, and whoever had it
/// fails and says so. Method: an export that is written to by one process, and commands beside it.
#[test]
fn held_and_taken_over() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", "--rootdir", "src", &url]);
    let mut server = store.spawn(dir, &["serve", "nbd", "--remote", "claim=0", "--listen", "unix:socket", &url]);
    let begun = Instant::now();
    while !dir.join("socket").exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let line = store.fails_with(dir, 1, &["mkdir", &url, "d"]);
    assert!(line.contains(&format!("process {}", server.id())) && line.contains("--take-over"), "{line}");
    assert!(store.ok(dir, &["remote", "show", &url]).contains(&format!("process {}", server.id())));
    // Whoever only reads is not refused.
    assert_eq!(store.ok(dir, &["cat", &url, "small"]), "small");
    store.ok(dir, &["put", "--take-over", &url, "src/small", "mine"]);
    let export = "nbd+unix:///?socket=socket";
    let line = store.fails_with(dir, 4, &["put", export, "src/small", "too-late"]);
    assert!(!line.is_empty());
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(store.ok(dir, &["cat", &url, "mine"]), "small");
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
    assert!(!store.ok(dir, &["ls", &url]).contains("too-late"));
}

/// Goal: an idle writer keeps its volume, and a command beside it says for whom it waits. Method: an export that nothing is written
/// to, for longer than its claim; commands beside it.
#[test]
fn an_idle_writer_keeps_its_volume() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", &url]);
    let mut server = store.spawn(dir, &["serve", "nbd", "--remote", "claim=2", "--listen", "unix:socket", &url]);
    let begun = Instant::now();
    while !dir.join("socket").exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..3 {
        let refused = store.run(dir, &["mkdir", &url, "d"]);
        let lines = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{lines}");
        let process = format!("process {}", server.id());
        let lines: Vec<&str> = lines.lines().filter(|line| line.contains(&process)).collect();
        assert!(lines.len() == 2 && lines[0].contains("waiting up to 2 s"), "{lines:?}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
    store.ok(dir, &["mkdir", &url, "d"]);
}

/// Bytes of all files in a directory.
fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| if entry.path().is_dir() { bytes_in(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

/// Goal: a moment that is pinned is there while the volume goes on, a branch is written for itself and shares the rest until it is
/// detached, and what nobody needs any more goes. Method: a session of commands, and the length of what is stored.
#[test]
fn pins_and_branches() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::directory(dir);
    let (url, branch) = (store.url("volume"), store.url("branch"));
    let pin = format!("{url}?pin=first");
    let ok = |args: &[&str]| store.ok(dir, args);
    ok(&["mkfs", "--size", "1G", "--rootdir", "src", &url]);
    ok(&["remote", "pin", &url, "first"]);
    assert!(store.fails_with(dir, 1, &["remote", "pin", &url, "first"]).contains("already"));
    ok(&["rm", "-r", &url, "sub"]);
    ok(&["put", &url, "src/small", "late"]);
    let gc = || ok(&["remote", "gc", "--grace", "0", &url]);
    gc();
    assert!(bytes_in(&dir.join("volume")) > 3 << 20, "the pin keeps it");
    assert!(ok(&["check", "--data", &pin]).contains("clean"));
    assert!(!ok(&["ls", &pin]).contains("late"));
    assert!(store.fails_with(dir, 1, &["mkdir", &pin, "d"]).contains("reading only"));
    assert!(ok(&["remote", "show", &url]).contains("first"));
    ok(&["remote", "branch", &pin, &branch]);
    assert!(store.fails_with(dir, 1, &["remote", "branch", &url, &branch]).contains("already"));
    ok(&["remote", "unpin", &url, "first"]);
    assert!(store.fails_with(dir, 1, &["ls", &pin]).contains("no pin first"));
    ok(&["put", &branch, "src/small", "mine"]);
    gc();
    assert!(bytes_in(&dir.join("branch")) < 1 << 20, "it shares the rest");
    ok(&["restore", &branch, "out"]);
    assert!(same(&dir.join("src/sub/large"), &dir.join("out/sub/large")));
    assert!(!ok(&["ls", &url]).contains("mine"));
    ok(&["remote", "detach", &branch]);
    gc();
    let left = bytes_in(&dir.join("volume"));
    assert!(left < 1 << 20, "{left}");
    assert!(ok(&["check", "--data", &branch]).contains("clean") && ok(&["check", "--data", &url]).contains("clean"));
    assert!(ok(&["ls", &branch]).contains("mine") && ok(&["ls", &url]).contains("late"));
}

/// Goal: a volume on a store is a disk for programs of others. Method: nbdcopy reads it from our server, and the kernel's checker
/// looks at what it got.
#[test]
fn exported() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::s3(None);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--size", "1G", "--rootdir", "src", &url]);
    let mut server = store.spawn(dir, &["serve", "nbd", "--read-only", "--listen", "unix:socket", &url]);
    let begun = Instant::now();
    while !dir.join("socket").exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let uri = format!("nbd+unix:///?socket={}", dir.join("socket").display());
    let image = dir.join("disk.img");
    let copied = std::process::Command::new("nbdcopy").arg(&uri).arg(&image).status();
    assert!(copied.unwrap_or_else(|e| panic!("nbdcopy: {e} (scripts/test installs what tests need)")).success());
    server.kill().unwrap();
    server.wait().unwrap();
    if let Some(oracle) = oracle() {
        oracle.must_be_sound(std::slice::from_ref(&image), "read from a store by nbdcopy").unwrap();
    }
    assert_eq!(store.ok(dir, &["cat", "disk.img", "small"]), "small");
}
