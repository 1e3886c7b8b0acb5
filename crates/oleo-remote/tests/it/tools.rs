//! Verifying a volume, probing a store, measuring one.

use std::sync::Arc;
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::store::{Answer, Cond, Deadline, FileStore, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::{
    KeySource, ProbeOptions, RemoteDevice, RemoteError, StoreOptions, SystemHost, VerifyOptions, VerifyReport, bench,
    create, probe, verify,
};
use oleo_sim::budget::budget;
use oleo_sim::rng::Rng;

const LEN: u64 = 4 << 30;
const FOREVER: Duration = Duration::MAX;

fn options(sealed: bool) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.take_over = true;
    options.key = sealed.then(|| KeySource::file(&[7; 32]).expect("a key file"));
    options.compress = sealed;
    options.bounds.segment_aim = 100_000;
    options.bounds.inline_max = 20_000;
    options.bounds.replay_count_max = 3;
    options
}

fn objects(store: &MemoryStore) -> Vec<(String, Vec<u8>)> {
    let list = Op::List { prefix: String::new(), after: String::new(), count_max: 10_000 };
    let Ok(Answer::Listed(listed)) = store.submit(list, FOREVER).wait() else { panic!("no list") };
    let get = |key: &str| Op::Get { key: key.into(), range: None, len_max: u64::MAX, if_changed: None };
    let body = |key: &str| match store.submit(get(key), FOREVER).wait() {
        Ok(Answer::Object { body, .. }) => body,
        other => panic!("{key}: {other:?}"),
    };
    listed.iter().map(|object| (object.key.clone(), body(&object.key))).collect()
}

fn put(store: &MemoryStore, key: &str, body: Vec<u8>) {
    store.submit(Op::Put { key: key.into(), body: body.into(), cond: Cond::None }, FOREVER).wait().expect("put");
}

/// A volume with data in several regions, some of it overwritten, and everything in segments: the tail is empty.
fn volume(sealed: bool) -> MemoryStore {
    let (store, mut rng) = (MemoryStore::new(), Rng::new(1));
    create(Arc::new(store.copy()), LEN, false, &options(sealed)).expect("create");
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &options(sealed)).expect("open");
    for _ in 0..60 {
        let len = 4096 * (1 + rng.below(60) as usize);
        let at = (rng.below(4) << 30) + (rng.below(500) << 12);
        dev.write_at(at, &rng.bytes(len)).expect("write");
        if rng.one_in(3) {
            dev.flush().expect("flush");
        }
    }
    dev.discard(1 << 30, 900_000).expect("discard");
    dev.close().expect("closed");
    store
}

fn verified(store: &MemoryStore, sealed: bool, heads_only: bool) -> VerifyReport {
    let what = VerifyOptions { heads_only };
    let store: Arc<dyn Store> = Arc::new(store.copy());
    verify(&store, &options(sealed), what, &mut |_| {}).expect("verified")
}

/// Goal: a sound volume is found sound, completely read, and its pins too; what nobody names is counted and no damage.
#[test]
fn sound_volumes() {
    for sealed in [false, true] {
        let store = volume(sealed);
        let report = verified(&store, sealed, false);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert!(report.heads == 1 && report.segments > 10 && report.frames > 50 && report.runs > 50, "{report:?}");
        assert!(report.live_blocks > 500, "{report:?}");
        let before = report.orphans;
        put(&store, &oleo_remote::format::ObjectId::segment(1, 0xabcde).key(), vec![1; 100]);
        let report = verified(&store, sealed, false);
        assert_eq!((report.orphans, report.findings.len()), (before + 1, 0));
        assert_eq!(verified(&store, sealed, true).segments, 0);
        oleo_remote::pin(Arc::new(store.copy()), "v1", "me", &options(sealed)).expect("pinned");
        let report = verified(&store, sealed, false);
        assert_eq!((report.heads, report.findings.len()), (2, 0), "{:?}", report.findings);
    }
}

/// Goal: any damage to an object that is needed is found, and named.
/// Method: each object with a bit changed, cut, in the place of another, or gone.
#[test]
fn damage_is_found() {
    let rounds = budget().count(24, 300) as usize;
    for sealed in [false, true] {
        let store = volume(sealed);
        let all = objects(&store);
        // Objects that are not needed are left out: those that can be removed without any damage.
        let mut needed = Vec::new();
        for (key, body) in &all {
            store.submit(Op::Delete { key: key.clone() }, FOREVER).wait().expect("deleted");
            let what = VerifyOptions::default();
            let shared: Arc<dyn Store> = Arc::new(store.copy());
            match verify(&shared, &options(sealed), what, &mut |_| {}) {
                Ok(report) if report.findings.is_empty() => {}
                _ => needed.push((key.clone(), body.clone())),
            }
            put(&store, key, body.clone());
        }
        assert!(needed.len() > 12, "{}", needed.len());
        let (mut rng, want, mut found) = (Rng::new(9), contents(&store, sealed), 0);
        for round in 0..rounds {
            let (key, body) = rng.pick(&needed).expect("objects");
            let mut other = body.clone();
            match round % 3 {
                0 => other = rng.pick(&needed).expect("objects").1.clone(),
                1 => other.truncate(rng.below(body.len() as u64) as usize),
                _ => other[rng.below(body.len() as u64) as usize] ^= 1 << rng.below(8),
            }
            if other == *body || key.starts_with("key/") {
                continue;
            }
            put(&store, key, other);
            let shared: Arc<dyn Store> = Arc::new(store.copy());
            if let Ok(report) = verify(&shared, &options(sealed), VerifyOptions::default(), &mut |_| {}) {
                // Pages that others have replaced stay in map objects, and nobody reads them.
                let harmless = || key.starts_with("map/") && contents(&store, sealed) == want;
                assert!(!report.findings.is_empty() || harmless(), "{key}, round {round}");
                found += report.findings.len();
            }
            put(&store, key, body.clone());
        }
        assert!(found > rounds / 3, "{found}");
        assert!(verified(&store, sealed, false).findings.is_empty());
    }
}

/// Where something is, and what, of the beginnings of all regions.
fn contents(store: &MemoryStore, sealed: bool) -> Vec<u8> {
    let dev = RemoteDevice::open(Arc::new(store.copy()), None, &options(sealed)).expect("open");
    let mut out = vec![0; 4 << 22];
    for (region, part) in (0..).zip(out.chunks_mut(1 << 22)) {
        dev.read_at(region << 30, part).expect("read");
    }
    out
}

/// How a store is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    Nothing,
    /// "Absent" is ignored.
    Creates,
    /// "Match" is ignored.
    Replaces,
    /// Looks first and writes later.
    LooksFirst,
    /// What is deleted is still there.
    Keeps,
    /// Parts are whole objects' beginnings.
    Parts,
}

struct Odd(MemoryStore, Wrong);

impl Store for Odd {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let op = match (self.1, op) {
            (Wrong::Creates, Op::Put { key, body, cond: Cond::Absent }) => Op::Put { key, body, cond: Cond::None },
            (Wrong::Replaces, Op::Put { key, body, cond: Cond::Match(_) }) => Op::Put { key, body, cond: Cond::None },
            (Wrong::LooksFirst, Op::Put { key, body, cond }) => {
                let get = Op::Get { key: key.clone(), range: None, len_max: u64::MAX, if_changed: None };
                let there = match self.0.submit(get, deadline).wait() {
                    Ok(Answer::Object { version, .. }) => version,
                    _ => None,
                };
                let holds = match &cond {
                    Cond::None => true,
                    Cond::Absent => there.is_none(),
                    Cond::Match(version) => there.as_ref() == Some(version),
                };
                std::thread::sleep(Duration::from_millis(5));
                let cond = if holds { Cond::None } else { cond };
                Op::Put { key, body, cond }
            }
            (Wrong::Keeps, Op::Delete { .. }) => return Ticket::new(|| Ok(Answer::Deleted)),
            (Wrong::Parts, Op::Get { key, range: Some(range), len_max, if_changed }) => {
                Op::Get { key, range: Some(0..range.end - range.start), len_max, if_changed }
            }
            (_, op) => op,
        };
        self.0.submit(op, deadline)
    }
    fn describe(&self) -> String {
        "odd".into()
    }
    fn now(&self) -> Option<StoreTime> {
        None
    }
}

/// Goal: stores that keep what is needed are accepted, others refused by the name of what they do not keep; nothing is left.
#[test]
fn stores_are_probed() {
    let dir = tempfile::tempdir().expect("dir");
    let good: [Arc<dyn Store>; 2] =
        [Arc::new(MemoryStore::new()), Arc::new(FileStore::new(dir.path(), Arc::new(SystemHost::new())))];
    for store in good {
        let report = probe(&store, &options(false), ProbeOptions::default()).expect("probed");
        assert!(report.failures.is_empty() && report.unclear == 0, "{report:?}");
        assert!(report.lists_at_once && report.replaces.len() == 10 && !report.versioned, "{report:?}");
        report.accepted().expect("accepted");
    }
    for (wrong, part) in [
        (Wrong::Nothing, ""),
        (Wrong::Creates, "a second time"),
        (Wrong::Replaces, "replaced again"),
        (Wrong::LooksFirst, "at once"),
        (Wrong::Keeps, "was deleted"),
        (Wrong::Parts, "part"),
    ] {
        let memory = MemoryStore::new();
        let store: Arc<dyn Store> = Arc::new(Odd(memory.copy(), wrong));
        let report = probe(&store, &options(false), ProbeOptions::default()).expect("probed");
        assert_eq!(report.failures.is_empty(), part.is_empty(), "{wrong:?}: {report:?}");
        assert!(report.failures.iter().any(|f| f.contains(part)) || part.is_empty(), "{wrong:?}: {report:?}");
        assert_eq!(matches!(report.accepted(), Err(RemoteError::NoConditions { .. })), !part.is_empty());
        if wrong != Wrong::Keeps {
            assert!(objects(&memory).is_empty(), "{wrong:?}");
        }
    }
}

/// Goal: what is measured has requests and bytes as the design says, and nothing is left behind.
#[test]
fn a_store_is_measured() {
    let memory = MemoryStore::new();
    let store: Arc<dyn Store> = Arc::new(memory.copy());
    let rows = bench(&store, &StoreOptions::default()).expect("measured");
    let row = |what: &str| rows.iter().find(|row| row.what == what).unwrap_or_else(|| panic!("{what}"));
    assert_eq!(row("flush of 4 KiB").requests, 1.0);
    assert_eq!(row("flush of 1 MiB").requests, 2.0);
    assert_eq!(row("get of 16 KiB").bytes, 16 << 10);
    assert!(row("flush of 1 MiB").bytes < (1 << 20) + 10_000);
    assert!(rows.iter().all(|row| row.p50 <= row.p99));
    assert!(objects(&memory).is_empty());
}

/// Goal: no volume is made on a store that does not keep conditions, unless the probe is left out; one that is there is refused before
/// anything is stored. What is short about the short probe is said: the races are fewer, and nothing is measured.
#[test]
fn making_a_volume_probes() {
    let report = probe(
        &(Arc::new(Odd(MemoryStore::new(), Wrong::LooksFirst)) as Arc<dyn Store>),
        &options(false),
        ProbeOptions::SHORT,
    )
    .expect("probed");
    assert!(!report.failures.is_empty() && report.replaces.is_empty(), "{report:?}");
    let url = oleo_remote::Url::parse("memory://probed/volume").expect("a name");
    let mut how = options(false);
    oleo_remote::create_at(&url, 1 << 20, false, &how).expect("made").close().expect("closed");
    let there = objects(&MemoryStore::open("probed", "volume"));
    assert!(there.iter().all(|(key, _)| !key.contains("probe")), "nothing of the probe is left");
    let again = oleo_remote::create_at(&url, 1 << 20, false, &how).err();
    assert!(matches!(again, Some(RemoteError::Exists { .. })), "{again:?}");
    assert_eq!(objects(&MemoryStore::open("probed", "volume")), there);
    how.probe = false;
    oleo_remote::create_at(&url, 1 << 20, true, &how).expect("made anew");
}
