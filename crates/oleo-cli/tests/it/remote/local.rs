//! Mounts with a log on the local disk.

use std::fs;

use oleo_sim::oracle::Scratch;
use oleo_sim::proxy::Faults;

use crate::common::{confirm, must_hold};
use crate::remote::harness::Store;
use crate::remote::mounted::{can_mount, counters};

/// Goal: with `durable=local` an fsync is confirmed while the store is away; after kill -9 of the mount the next one of this machine
/// needs nobody's leave and has everything. When another machine took over meanwhile, the log is kept and named, once.
/// Method: a proxy that goes away under a mount, which is then killed; twice.
#[test]
fn confirmed_here() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let store = Store::s3(Some(Faults::default()));
    let proxy = store.proxy.as_ref().unwrap();
    let (url, cache) = (store.url("volume"), dir.join("cache"));
    let how = format!("durable=local,cache={}", cache.display());
    store.ok(dir, &["mkfs", &url]);
    let mut names: Vec<String> = Vec::new();
    for round in 0..2 {
        let mut mounted = store.mount(&url, &how);
        must_hold(mounted.path(), &names);
        let count = |name: &str| {
            let counted = counters(&store, mounted.path());
            counted.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}: {counted:?}")).1
        };
        assert_eq!(count("frames replayed from the local log") > 0, round > 0);
        let before = names.len();
        for n in 0..20 {
            if n == 10 {
                proxy.away(true);
            }
            let name = format!("r{round}-{n}");
            confirm(mounted.path(), &name).unwrap();
            names.push(name);
        }
        assert!(count("flushes confirmed by the local log") >= (names.len() - before) as u64);
        assert_eq!(count("failures of the local log"), 0);
        mounted.kill().unwrap();
        proxy.away(false);
    }
    // Another machine has another cache, and needs the word.
    let line = store.fails_with(dir, 1, &["mkdir", &url, "elsewhere"]);
    assert!(line.contains("-o take_over"), "{line}");
    store.ok(dir, &["mkdir", "--take-over", &url, "elsewhere"]);
    let here = format!("durable=local,cache={}", cache.display());
    let line = store.run(dir, &["mkdir", "--remote", &here, &url, "here"]);
    let said = String::from_utf8(line.stderr).unwrap();
    assert!(!line.status.success() && said.contains("log.kept-"), "{said}");
    let kept = said.split_whitespace().find(|word| word.contains("log.kept-")).unwrap().trim_end_matches(':');
    assert!(fs::metadata(kept).is_ok(), "{kept}");
    let mounted = store.mount(&url, &how);
    assert!(mounted.path().join("elsewhere").exists());
    must_hold(mounted.path(), &names[..10]);
    mounted.unmount().unwrap();
    assert!(store.ok(dir, &["check", "--data", &url]).contains("clean"));
}
