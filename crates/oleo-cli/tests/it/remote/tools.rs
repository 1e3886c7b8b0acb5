//! Encrypted and compressed volumes, and the commands that look at a volume or a store as such.

use std::path::Path;

use oleo_sim::oracle::Scratch;

use crate::remote::harness::{Store, source};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// Goal: an encrypted volume is made, filled, checked and read with its key, and by no command without it; keys are added and
/// taken away; options in the environment and the arguments mean the same.
#[test]
fn encrypted() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    std::fs::write(dir.join("key"), [7; 32]).unwrap();
    std::fs::write(dir.join("other"), "0d".repeat(32) + "\n").unwrap();
    std::fs::write(dir.join("phrase"), "correct horse\n").unwrap();
    let store = Store::directory(dir);
    let url = store.url("stores/volume");
    let with = |key: &str, args: &[&str]| -> Vec<String> {
        let mut all: Vec<String> = args.iter().map(|arg| (*arg).into()).collect();
        all.extend(["--remote".into(), key.into()]);
        all
    };
    let ok = |key: &str, args: &[&str]| {
        let args = with(key, args);
        store.ok(dir, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let fails = |key: &str, args: &[&str]| {
        let args = with(key, args);
        store.fails_with(dir, 1, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let key = "key-file=key,cache=cached";
    ok("key-file=key,compress", &["mkfs", "--rootdir", "src", "--label", "secret", &url]);
    assert_eq!(ok(key, &["cat", &url, "small"]), "small");
    ok(key, &["put", &url, "src/sub", "again"]);
    assert!(ok(key, &["check", "--data", &url]).contains("clean"));
    assert!(dir.join("cached").read_dir().unwrap().next().is_some());
    assert!(store.fails_with(dir, 1, &["cat", &url, "small"]).contains("encrypted"));
    assert!(fails("key-file=other", &["cat", &url, "small"]).contains("opens none"));
    assert!(store.fails_with(dir, 2, &["cat", &url, "small", "--remote", "key-file=missing"]).contains("key-file"));

    ok(key, &["remote", "key", "add", &url, "--new-passphrase-file", "phrase"]);
    assert_eq!(ok("passphrase-file=phrase", &["cat", &url, "small"]), "small");
    let keys = json(&ok(key, &["remote", "key", "list", "--json", &url]));
    assert_eq!((&keys[0]["kind"], &keys[1]["kind"]), (&"key file".into(), &"passphrase".into()));
    let first = keys[0]["key"].as_str().unwrap()[..8].to_owned();
    ok("passphrase-file=phrase", &["remote", "key", "remove", &url, &first]);
    assert!(fails(key, &["cat", &url, "small"]).contains("opens none"));
    let verified = json(&ok("passphrase-file=phrase", &["remote", "verify", "--json", &url]));
    assert_eq!(verified["sound"], true);
}

/// Goal: damage is found by `verify`, named, and told by the exit code; what is sound is said to be.
#[test]
fn verified() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    source(dir);
    let store = Store::directory(dir);
    let url = store.url("volume");
    store.ok(dir, &["mkfs", "--rootdir", "src", &url]);
    assert!(store.ok(dir, &["remote", "verify", &url]).ends_with("sound\n"));
    assert!(store.ok(dir, &["remote", "verify", "--heads", &url]).contains("as far as"));
    let longest = longest(&dir.join("volume/seg"));
    let mut bytes = std::fs::read(&longest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&longest, bytes).unwrap();
    let damaged = store.run(dir, &["remote", "verify", &url]);
    let said = String::from_utf8(damaged.stdout).unwrap();
    assert_eq!(damaged.status.code(), Some(3), "{said}");
    assert!(said.ends_with("DAMAGED\n") && said.contains("checksum"), "{said}");
}

/// The longest file below a directory.
fn longest(dir: &Path) -> std::path::PathBuf {
    let below = dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let files = below.map(|path| if path.is_dir() { longest(&path) } else { path });
    files.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

/// Goal: a store that keeps conditions is accepted, and measured; nothing is left on it. Method: a directory, and S3.
#[test]
fn probed_and_measured() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    for store in [Store::directory(dir), Store::s3(None)] {
        let url = store.url("volume");
        assert!(store.ok(dir, &["remote", "probe", &url]).ends_with("keeps what volumes need\n"));
        assert_eq!(json(&store.ok(dir, &["remote", "probe", "--json", "--racers", "8", &url]))["accepted"], true);
        let rows = json(&store.ok(dir, &["remote", "bench", "--json", &url]));
        let row = |what: &str| rows.as_array().unwrap().iter().find(|row| row["what"] == what).unwrap().clone();
        assert_eq!(row("flush of 4 KiB")["requests"], 1.0);
        assert!(store.ok(dir, &["remote", "bench", &url]).contains("p99"));
        assert!(store.fails_with(dir, 1, &["remote", "show", &url]).contains("no volume"));
    }
}
