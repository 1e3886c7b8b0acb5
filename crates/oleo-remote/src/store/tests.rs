//! What every store must do, and what repeating does.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::host::{Host, SystemHost};

const SOON: Deadline = Duration::from_secs(3600);

fn put_text(store: &dyn Store, key: &str, text: &str, cond: Cond) -> Result<Version, StoreError> {
    let pieces = text.bytes().map(|b| Arc::new(vec![b])).collect();
    put(store, key, Body::of(pieces), cond, SOON)
}

fn text(store: &dyn Store, key: &str) -> Result<(String, Version), StoreError> {
    get(store, key, 100, SOON).map(|(body, version)| (String::from_utf8(body).expect("text"), version))
}

fn keys(store: &dyn Store, prefix: &str, after: &str, count_max: usize) -> Vec<String> {
    let op = Op::List { prefix: prefix.into(), after: after.into(), count_max };
    match store.submit(op, SOON).wait().expect("list") {
        Answer::Listed(listed) => listed.into_iter().map(|l| l.key).collect(),
        other => panic!("{other:?}"),
    }
}

/// Goal: what the rest of the crate relies on. Method: each operation and condition, met and not met, one after the other.
fn conforms(store: &dyn Store) {
    assert_eq!(text(store, "head"), Err(StoreError::Absent));
    let first = put_text(store, "head", "one", Cond::Absent).expect("created");
    assert_eq!(put_text(store, "head", "two", Cond::Absent), Err(StoreError::Condition));
    assert_eq!(text(store, "head"), Ok(("one".into(), first.clone())));
    let second = put_text(store, "head", "two", Cond::Match(first.clone())).expect("replaced");
    assert_ne!(first, second);
    assert_eq!(put_text(store, "head", "three", Cond::Match(first.clone())), Err(StoreError::Condition));
    assert_eq!(put_text(store, "none", "three", Cond::Match(first)), Err(StoreError::Condition));
    assert_eq!(text(store, "head"), Ok(("two".into(), second.clone())));
    let unchanged = Op::Get { key: "head".into(), range: None, len_max: 9, if_changed: Some(second.clone()) };
    assert_eq!(store.submit(unchanged, SOON).wait(), Ok(Answer::NotChanged));

    put_text(store, "seg/0a/1-1", "0123456789", Cond::None).expect("stored");
    put_text(store, "seg/0a/1-1", "0123456789", Cond::None).expect("again");
    let part = get_part(store, "seg/0a/1-1", 2..5, SOON).wait().expect("a part");
    assert_eq!(part_of(part, 3).expect("three bytes"), b"234");
    get_part(store, "seg/0a/1-1", 8..12, SOON).wait().expect_err("beyond the end");
    assert_eq!(get_part(store, "seg/0a/1-2", 0..1, SOON).wait(), Err(StoreError::Absent));
    assert!(matches!(get(store, "seg/0a/1-1", 9, SOON), Err(StoreError::Wrong(_))), "longer than it may be");

    put_text(store, "seg/0b/1-2", "", Cond::None).expect("an empty one");
    put_text(store, "map/0b/1-2", "", Cond::None).expect("another");
    assert_eq!(keys(store, "", "", 9), ["head", "map/0b/1-2", "seg/0a/1-1", "seg/0b/1-2"]);
    assert_eq!(keys(store, "seg/", "", 9), ["seg/0a/1-1", "seg/0b/1-2"]);
    assert_eq!(keys(store, "", "head", 2), ["map/0b/1-2", "seg/0a/1-1"]);
    for _ in 0..2 {
        let delete = Op::Delete { key: "seg/0a/1-1".into() };
        assert_eq!(store.submit(delete, SOON).wait(), Ok(Answer::Deleted));
    }
    assert_eq!(keys(store, "seg/", "", 9), ["seg/0b/1-2"]);
    for bad in ["../x", "a//b", "/a", ".lock", "a/.b", "", "a\0"] {
        assert!(put_text(store, bad, "", Cond::None).is_err(), "{bad:?}");
    }
}

/// Goal: of many writers with one condition one wins. Method: threads that race, several rounds.
fn one_wins(store: &(impl Store + 'static)) {
    let mut version = None;
    for round in 0..20 {
        let cond = version.clone().map_or(Cond::Absent, Cond::Match);
        let won: Vec<Version> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let cond = cond.clone();
                    scope.spawn(move || put_text(store, "race", &format!("{round} {n}"), cond))
                })
                .collect();
            threads.into_iter().filter_map(|t| t.join().expect("a thread").ok()).collect()
        });
        assert_eq!(won.len(), 1);
        assert_eq!(text(store, "race").expect("one").1, won[0]);
        version = won.into_iter().next();
    }
}

#[test]
fn memory_conforms() {
    conforms(&MemoryStore::new());
    one_wins(&MemoryStore::new());
    let named = MemoryStore::open("conforms", "a/b");
    conforms(&named);
    assert_eq!(keys(&MemoryStore::open("conforms", "a/b"), "", "", 9), keys(&named, "", "", 9));
    assert!(keys(&MemoryStore::open("conforms", "a"), "", "b/z", 9).is_empty());
}

/// Goal: the same of a directory, and nothing is left lying about.
#[test]
fn files_conform() {
    let dir = tempfile::tempdir().expect("dir");
    let host: Arc<dyn Host> = Arc::new(SystemHost::new());
    conforms(&FileStore::new(&dir.path().join("deep/inside"), host.clone()));
    one_wins(&FileStore::new(&dir.path().join("race"), host));
    let names = std::fs::read_dir(dir.path().join("race")).expect("dir").map(|e| e.expect("entry").file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, [".lock", "race"]);
}

/// Goal: the same of S3, or of the cloud that is named to the tests, over a server of others; what is told of keys is that they are below the prefix. Method: moto.
#[cfg(feature = "cloud")]
#[test]
fn s3_conforms() {
    let moto = oleo_sim::moto::Moto::start().expect("moto");
    let mut options = crate::StoreOptions::default();
    for word in oleo_sim::moto::Moto::options(moto.address()).split(',') {
        options.set(word).expect("an option");
    }
    let open = |prefix: &str| {
        let url = crate::Url::parse(&format!("{}/{prefix}", moto.base())).expect("url");
        CloudStore::open(&url, &options).expect("store")
    };
    let store = open("some where/deep");
    conforms(&store);
    assert!(store.now().is_some_and(|StoreTime(seconds)| seconds > 1_700_000_000));
    assert!(keys(&open("some where/dee"), "", "", 9).is_empty());
    one_wins(&open("race"));
    let (scheme, _) = moto.base().split_once("://").expect("a scheme");
    let nowhere = crate::Url::parse(&format!("{scheme}://nowhere/a")).expect("url");
    let nowhere = CloudStore::open(&nowhere, &options).expect("store");
    let no_bucket = |why: &str| ["NoSuchBucket", "ContainerNotFound"].iter().any(|code| why.contains(code));
    assert!(matches!(text(&nowhere, "head"), Err(StoreError::NoBucket(why)) if no_bucket(&why)));
    let put = put_text(&nowhere, "head", "one", Cond::Absent);
    assert!(matches!(&put, Err(StoreError::NoBucket(_))), "{put:?}");
    // More than one page.
    for n in 0..1005 {
        put_text(&store, &format!("many/{n:04}"), "", Cond::None).expect("stored");
    }
    assert_eq!(keys(&store, "many/", "many/0001", 5000).len(), 1003);
}

/// Goal: what is asked is counted, repetitions too.
#[test]
fn counted() {
    let store = Counted::new(Arc::new(MemoryStore::new()), Arc::new(SystemHost::new()));
    put_text(&store, "a", "text", Cond::Absent).expect("stored");
    put_text(&store, "a", "text", Cond::Absent).expect_err("there already");
    put_text(&store, "b", "more", Cond::None).expect("stored");
    text(&store, "a").expect("got");
    text(&store, "c").expect_err("absent");
    keys(&store, "", "", 9);
    let counted = store.counts();
    let of = |name: &str| counted.iter().find(|(known, _)| *known == name).expect("a count").1;
    assert_eq!((of("requests: get"), of("requests: put"), of("requests: put under a condition")), (2, 1, 2));
    assert_eq!((of("bytes sent to the store"), of("bytes that came from it")), (12, 4));
    assert_eq!((of("answers: condition not met"), of("answers: failed or none"), of("requests: list")), (1, 0, 1));
}

/// A store that fails so many times before it answers, and whose time is its own.
struct Failing {
    inner: MemoryStore,
    failures: AtomicU32,
    error: StoreError,
    asked: AtomicU32,
}

impl Store for Failing {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let fails = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        let error = self.error.clone();
        if fails { Ticket::new(move || Err(error)) } else { self.inner.submit(op, deadline) }
    }
    fn describe(&self) -> String {
        "failing".into()
    }
    fn now(&self) -> Option<StoreTime> {
        None
    }
}

/// Time that passes only by sleeping.
struct Still(std::sync::Mutex<Duration>);

impl Host for Still {
    fn now(&self) -> Duration {
        *self.0.lock().expect("lock")
    }
    fn sleep(&self, time: Duration) {
        *self.0.lock().expect("lock") += time;
    }
    fn random(&self) -> [u8; 16] {
        [0x80; 16]
    }
}

/// Goal: what may be repeated is, until its deadline and not longer; conditional storing never is, nor what is certain.
#[test]
fn repeated() {
    let with = |failures: u32, error: StoreError| {
        let failures = failures.into();
        let store = Arc::new(Failing { inner: MemoryStore::new(), failures, error, asked: 0.into() });
        let host = Arc::new(Still(std::sync::Mutex::new(Duration::ZERO)));
        (Retry::new(store.clone(), host.clone()), store, host)
    };
    let lost = StoreError::Unknown("cut off".into());
    let (store, _, host) = with(7, lost.clone());
    put_text(&store, "a", "text", Cond::None).expect("at last");
    assert_eq!(store.counts(), [(REPEATED, 7)]);
    assert!(host.now() > Duration::from_secs(1) && host.now() < Duration::from_secs(20), "{:?}", host.now());
    let (store, inner, host) = with(u32::MAX, StoreError::Throttled);
    assert_eq!(get(&store, "a", 1, Duration::from_secs(60)).expect_err("in vain"), StoreError::Throttled);
    assert!(host.now() <= Duration::from_secs(60) && host.now() > Duration::from_secs(50), "{:?}", host.now());
    assert!(inner.asked.load(Ordering::Relaxed) < 100, "with waits between");
    for cond in [Cond::Absent, Cond::Match(Version { etag: "1".into(), generation: None })] {
        let (store, inner, _) = with(1, lost.clone());
        assert_eq!(put_text(&store, "a", "text", cond).expect_err("once"), lost);
        assert_eq!(inner.asked.load(Ordering::Relaxed), 1);
    }
    let (store, inner, _) = with(1, StoreError::Denied("no".into()));
    assert!(matches!(get(&store, "a", 1, SOON), Err(StoreError::Denied(_))));
    assert_eq!(inner.asked.load(Ordering::Relaxed), 1);
}

/// Goal: the directory of a store is its maker's alone, and nothing is read, stored or deleted through links. Method: the mode of
/// the directory; a directory of keys, an object and the lock that are links, and an object that is a pipe.
#[test]
fn a_directory_of_another_user() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("volume");
    let store = FileStore::new(&root, Arc::new(SystemHost::new()));
    put_text(&store, "seg/a", "text", Cond::None).expect("put");
    assert_eq!(root.metadata().expect("made").permissions().mode() & 0o777, 0o700);
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    std::fs::write(elsewhere.join("a"), "text").expect("a file");
    symlink(&elsewhere, root.join("map")).expect("a link");
    symlink(elsewhere.join("a"), root.join("seg/b")).expect("a link");
    rustix::fs::mknodat(rustix::fs::CWD, root.join("seg/c"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("a pipe");
    for key in ["map/b", "map/0a/b"] {
        put_text(&store, key, "text", Cond::None).expect_err("through a link");
    }
    store.submit(Op::Delete { key: "map/a".into() }, SOON).wait().expect_err("through a link");
    get(&store, "seg/b", 9, SOON).expect_err("through a link");
    get(&store, "seg/c", 9, SOON).expect_err("of a pipe");
    symlink(elsewhere.join("lock"), root.join(".lock")).expect("a link");
    put_text(&store, "head", "text", Cond::Absent).expect_err("through a link");
    assert_eq!(std::fs::read_dir(&elsewhere).expect("a list").count(), 1);
}
