//! Volumes that are sealed or compressed, and parts of them on the local disk.

use std::sync::Arc;
use std::time::Duration;

use oleo_device::Device;
use oleo_format::Classified;
use oleo_remote::format::pins::{Pin, Pins};
use oleo_remote::store::{Answer, Cond, MemoryStore, Op, Store};
use oleo_remote::{
    CacheOptions, KeySlots, KeySource, Opener, Parent, RemoteDevice, RemoteError, StoreOptions, VerifyOptions, branch,
    create, pin, pins, verify,
};
use oleo_sim::rng::Rng;

const TEXT: &[u8] = b"what nobody else is to read. ";
const LEN: u64 = 8 << 20;

fn options(key: Option<KeySource>, compress: bool) -> StoreOptions {
    let mut options = StoreOptions::default();
    (options.key, options.compress) = (key, compress);
    options.take_over = true;
    options.bounds.segment_aim = 300_000;
    options.bounds.inline_max = 20_000;
    options.bounds.replay_count_max = 3;
    options.bounds.cache_bytes_max = 100_000;
    options
}

fn file(byte: u8) -> KeySource {
    KeySource::file(&[byte; 32]).expect("a key file")
}

fn texts(len: usize) -> Vec<u8> {
    TEXT.iter().copied().cycle().take(len).collect()
}

fn store_of(store: &MemoryStore) -> Arc<dyn Store> {
    Arc::new(store.copy())
}

const FOREVER: Duration = Duration::MAX;

/// Every object of a store.
fn objects(store: &MemoryStore) -> Vec<(String, Vec<u8>)> {
    let list = Op::List { prefix: String::new(), after: String::new(), count_max: 10_000 };
    let Ok(Answer::Listed(listed)) = store.submit(list, FOREVER).wait() else { panic!("no list") };
    listed.into_iter().map(|object| (object.key.clone(), get(store, &object.key))).collect()
}

fn get(store: &MemoryStore, key: &str) -> Vec<u8> {
    let op = Op::Get { key: key.into(), range: None, len_max: u64::MAX, if_changed: None };
    match store.submit(op, FOREVER).wait() {
        Ok(Answer::Object { body, .. }) => body,
        other => panic!("{key}: {other:?}"),
    }
}

fn put(store: &MemoryStore, key: &str, body: Vec<u8>) {
    store.submit(Op::Put { key: key.into(), body: body.into(), cond: Cond::None }, FOREVER).wait().expect("put");
}

/// A volume with texts in segments, in map objects and in the tail, left without being closed.
fn volume(options: &StoreOptions) -> MemoryStore {
    let store = MemoryStore::new();
    fill(&store, options);
    store
}

fn fill(store: &MemoryStore, options: &StoreOptions) {
    create(store_of(store), LEN, false, options).expect("create");
    let dev = RemoteDevice::open_writable(store_of(store), options).expect("open");
    for n in 0..8 {
        dev.write_at(n << 20, &texts(1 << 19)).expect("write");
        dev.flush().expect("flush");
    }
    dev.discard(5 << 20, 1 << 19).expect("discard");
    dev.write_at(6 << 20, &texts(9000)).expect("write");
    dev.flush().expect("flush");
}

fn read_all(dev: &dyn Device) -> Vec<u8> {
    let mut out = vec![1; dev.len() as usize];
    dev.read_at(0, &mut out).expect("read");
    out
}

/// Goal: of a sealed volume nobody reads a thing without the key, and with it everything, by readers and by the next writer.
/// Method: texts that would be found in any object; a volume as it is, in which they are found.
#[test]
fn nothing_is_readable() {
    let found = |store: &MemoryStore| {
        let is_in = |body: &[u8]| body.windows(TEXT.len()).any(|window| window == TEXT);
        objects(store).iter().filter(|(_, body)| is_in(body)).count()
    };
    let plain = volume(&options(None, false));
    assert!(found(&plain) > 5);
    let want = read_all(&RemoteDevice::open(store_of(&plain), None, &options(None, false)).expect("open"));
    for compress in [false, true] {
        let how = options(Some(file(7)), compress);
        let store = volume(&how);
        assert_eq!(found(&store), 0);
        assert!(compress || objects(&store).iter().any(|(key, _)| key.starts_with("map/")));
        assert!(read_all(&RemoteDevice::open(store_of(&store), None, &how).expect("open")) == want);
        let dev = RemoteDevice::open_writable(store_of(&store), &how).expect("open");
        assert!(read_all(&dev) == want);
        dev.close().expect("closed");
        for key in [None, Some(file(8)), Some(KeySource::passphrase("7").expect("a passphrase"))] {
            let other = options(key, false);
            for failed in [
                RemoteDevice::open(store_of(&store), None, &other).err(),
                RemoteDevice::open_writable(store_of(&store), &other).err(),
            ] {
                let failed = failed.expect("not opened");
                assert!(matches!(failed, RemoteError::Key { .. }), "{failed}");
                assert_eq!(failed.class().errno, oleo_format::errno::EACCES);
            }
        }
    }
    // Who has a key expects a sealed volume, and would not notice another in its place.
    let other = RemoteDevice::open(store_of(&plain), None, &options(Some(file(7)), false)).err();
    assert!(matches!(other, Some(RemoteError::Key { .. })), "{other:?}");
}

/// Goal: a change of any object of a sealed volume is noticed or without effect: never are other bytes read.
/// Method: single bits, objects cut, and objects put in the place of others.
#[test]
fn nothing_can_be_changed() {
    let how = options(Some(file(7)), true);
    let store = volume(&how);
    let want = read_all(&RemoteDevice::open(store_of(&store), None, &how).expect("open"));
    let all = objects(&store);
    let (mut rng, mut noticed) = (Rng::new(4), 0);
    for round in 0..600 {
        let (key, body) = rng.pick(&all).expect("objects");
        let mut other = body.clone();
        match round % 4 {
            0 => other = rng.pick(&all).expect("objects").1.clone(),
            1 => other.truncate(rng.below(body.len() as u64) as usize),
            _ => other[rng.below(body.len() as u64) as usize] ^= 1 << rng.below(8),
        }
        put(&store, key, other);
        match RemoteDevice::open(store_of(&store), None, &how) {
            Err(_) => noticed += 1,
            Ok(dev) => {
                for n in 0..LEN >> 16 {
                    let mut part = vec![0; 1 << 16];
                    match dev.read_at(n << 16, &mut part) {
                        Ok(()) => assert!(part == want[(n as usize) << 16..][..1 << 16], "{key}, round {round}"),
                        Err(_) => noticed += 1,
                    }
                }
            }
        }
        put(&store, key, body.clone());
    }
    assert!(noticed > 200, "{noticed}");
}

/// Goal: several may open a volume, each in its own way; who is taken away may not, and the last one stays.
#[test]
fn keys_are_added_and_removed() {
    let phrase = KeySource::passphrase("correct horse").expect("a passphrase");
    let store = volume(&options(Some(file(7)), false));
    let opens = |key: &KeySource| RemoteDevice::open(store_of(&store), None, &options(Some(key.clone()), false));
    let slots = |key: &KeySource| KeySlots::open(store_of(&store), &options(Some(key.clone()), false)).expect("slots");
    assert!(matches!(slots(&phrase).add(&file(9)), Err(RemoteError::Key { .. })));
    let only = slots(&file(7)).list().expect("one")[0].id.clone();
    assert!(matches!(slots(&file(7)).remove(&only), Err(RemoteError::Key { .. })));
    let name = slots(&file(7)).add(&phrase).expect("added");
    let listed = slots(&phrase).list().expect("two");
    assert_eq!(listed.iter().map(|slot| slot.opener == Opener::File).collect::<Vec<_>>(), [true, false]);
    assert_eq!(listed[1].id, name);
    opens(&phrase).expect("opened");
    assert!(opens(&KeySource::passphrase("correct house").expect("a passphrase")).is_err());
    slots(&phrase).remove(&only[..12]).expect("removed");
    assert!(matches!(opens(&file(7)).err(), Some(RemoteError::Key { .. })));
    opens(&KeySource::passphrase("correct horse").expect("a passphrase")).expect("opened");
    for n in 0..7 {
        slots(&phrase).add(&file(100 + n)).expect("added");
    }
    assert!(matches!(slots(&phrase).add(&file(1)), Err(RemoteError::Limit { .. })));
    assert!(matches!(slots(&phrase).remove(""), Err(RemoteError::Key { .. })));
    assert!(matches!(
        KeySlots::open(store_of(&volume(&options(None, false))), &options(None, false)).err(),
        Some(RemoteError::Key { .. })
    ));
    // A file of digits is the same as one of bytes.
    let digits = "07".repeat(32) + "\n";
    let same = KeySource::file(digits.as_bytes()).expect("a key file");
    RemoteDevice::open(store_of(&volume(&options(Some(file(7)), false))), None, &options(Some(same), false))
        .expect("opened");
    for odd in [&b""[..], b"short", &[b'g'; 64], &[0; 33]] {
        assert!(KeySource::file(odd).is_err());
    }
}

/// Goal: who makes a volume in the place of a sealed one, or fails to, does not touch that one's key.
#[test]
fn made_over_a_sealed_one() {
    let how = options(Some(file(7)), false);
    let store = volume(&how);
    let exists = create(store_of(&store), LEN, false, &options(Some(file(8)), false));
    assert!(matches!(exists, Err(RemoteError::Exists { .. })));
    let old = RemoteDevice::open_writable(store_of(&store), &how).expect("open");
    old.write_at(0, b"late").expect("in memory");
    create(store_of(&store), LEN, true, &options(Some(file(8)), false)).expect("made anew");
    old.flush().expect_err("replaced");
    assert!(matches!(*old.failure().expect("why"), RemoteError::Replaced { .. }), "{:?}", old.failure());
    let new = RemoteDevice::open_writable(store_of(&store), &options(Some(file(8)), false)).expect("open");
    assert!(new.epoch() > old.epoch() && read_all(&new).iter().all(|&b| b == 0));
}

/// Goal: a branch of a sealed volume is sealed with the same key, shares what it can, and goes its own way.
#[test]
fn branches_are_sealed() {
    let how = options(Some(file(7)), false);
    let (parent, child) = (MemoryStore::open("sealed", "parent"), MemoryStore::open("sealed", "child"));
    fill(&parent, &how);
    let mut want = read_all(&RemoteDevice::open(store_of(&parent), None, &how).expect("open"));
    let of = Parent { store: store_of(&parent), url: "memory://sealed/parent", pin: None };
    branch(&of, store_of(&child), "memory://sealed/child", &how).expect("a branch");
    assert!(matches!(
        RemoteDevice::open(store_of(&child), None, &options(None, false)).err(),
        Some(RemoteError::Key { .. })
    ));
    let dev = RemoteDevice::open_writable(store_of(&child), &how).expect("open");
    assert!(read_all(&dev) == want);
    dev.write_at(1 << 20, &[3; 70_000]).expect("write");
    want[1 << 20..(1 << 20) + 70_000].fill(3);
    dev.close().expect("closed");
    assert!(read_all(&RemoteDevice::open(store_of(&child), None, &how).expect("open")) == want);
    let shared = store_of(&child);
    let report = verify(&shared, &how, VerifyOptions::default(), &mut |_| {}).expect("verified");
    assert!(report.findings.is_empty() && report.segments > 3, "{report:?}");
    let dev = RemoteDevice::open_writable(store_of(&child), &how).expect("open");
    dev.detach().expect("detached");
    assert!(read_all(&dev) == want);
}

/// Goal: what can be compressed takes less on the store, what cannot takes no more, and both are read as they were written.
#[test]
fn compression_saves() {
    let bytes = |compress: bool, data: &[u8]| -> usize {
        let how = options(None, compress);
        let store = MemoryStore::new();
        create(store_of(&store), LEN, false, &how).expect("create");
        let dev = RemoteDevice::open_writable(store_of(&store), &how).expect("open");
        dev.write_at(4096, data).expect("write");
        let mut back = vec![0; data.len()];
        dev.read_at(4096, &mut back).expect("read");
        assert!(back == data, "in memory");
        dev.close().expect("closed");
        RemoteDevice::open(store_of(&store), None, &how).expect("open").read_at(4096, &mut back).expect("read");
        assert!(back == data, "from the store");
        objects(&store).iter().map(|(_, body)| body.len()).sum()
    };
    let (text, noise) = (texts(1 << 20), Rng::new(1).bytes(1 << 20));
    assert!(bytes(true, &text) < bytes(false, &text) / 10);
    assert_eq!(bytes(true, &noise), bytes(false, &noise));
}

fn cached(dir: &std::path::Path, bytes_max: u64) -> StoreOptions {
    let mut how = options(Some(file(7)), false);
    how.cache = Some(CacheOptions { dir: dir.into(), bytes_max });
    how.bounds.cache_bytes_max = 0;
    how
}

fn count(dev: &RemoteDevice, name: &str) -> u64 {
    dev.stats().expect("counts").extra.iter().find(|(n, _)| *n == name).expect("a count").1
}

/// All bytes of the files below a directory.
fn on_disk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { out.extend(on_disk(&path)) } else { out.push(path) }
    }
    out
}

/// Goal: what was read once is not read from the store again, by nobody with the same directory; whatever happens to the
/// files is noticed; the bound is kept; what is sealed stays sealed; and only the user may look into it.
#[test]
fn parts_on_the_local_disk() {
    let dir = tempfile::tempdir().expect("dir");
    let (at, how) = (dir.path().join("cache"), cached(&dir.path().join("cache"), 64 << 20));
    let store = volume(&options(Some(file(7)), false));
    let want = read_all(&RemoteDevice::open(store_of(&store), None, &options(Some(file(7)), false)).expect("open"));
    let open = || RemoteDevice::open(store_of(&store), None, &how).expect("open");
    let first = open();
    assert!(read_all(&first) == want);
    assert!(count(&first, "parts read from the store") > 8 && count(&first, "frames from the disk") == 0);
    let second = open();
    let attached = count(&second, "parts read from the store");
    assert!(read_all(&second) == want && read_all(&first) == want);
    assert_eq!(count(&second, "parts read from the store"), attached, "only what opening reads");
    // Damage of every kind: bits, holes, cut files, files that are gone.
    let mut rng = Rng::new(3);
    let is_data = |path: &std::path::PathBuf| !path.ends_with("seen") && !path.starts_with(at.join("names"));
    for path in on_disk(&at).into_iter().filter(is_data) {
        assert!(!std::fs::read(&path).expect("read").windows(TEXT.len()).any(|window| window == TEXT));
        let mut bytes = std::fs::read(&path).expect("read");
        match rng.below(4) {
            0 => std::fs::remove_file(&path).expect("removed"),
            1 => {
                bytes.iter_mut().step_by(1000).for_each(|b| *b ^= 1);
                std::fs::write(&path, &bytes).expect("damaged");
            }
            2 => std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut"),
            _ => std::fs::write(&path, vec![0; bytes.len()]).expect("a hole"),
        }
    }
    let third = open();
    let attached = count(&third, "parts read from the store");
    assert!(read_all(&third) == want && read_all(&second) == want);
    assert!(count(&third, "parts read from the store") > attached);
    // A bound of 2 MiB, for 4 MiB of data.
    let small = cached(&at, 2 << 20);
    let dev = RemoteDevice::open(store_of(&store), None, &small).expect("open");
    for _ in 0..3 {
        assert!(read_all(&dev) == want);
    }
    let used: u64 = on_disk(&at)
        .iter()
        .map(|p| p.metadata().expect("meta"))
        .map(|m| std::os::unix::fs::MetadataExt::blocks(&m) * 512)
        .sum();
    assert!(used <= (2 << 20) * 5 / 4, "{used}");
    // A directory that others may look into is none.
    let open_to_all = dir.path().join("open");
    std::fs::create_dir(&open_to_all).expect("made");
    std::fs::set_permissions(&open_to_all, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    let refused = RemoteDevice::open(store_of(&store), None, &cached(&open_to_all, 1 << 20)).err();
    assert!(matches!(refused, Some(RemoteError::Local { .. })), "{refused:?}");
}

/// Goal: a store that was put back to an older state is noticed by who has seen a newer one, and opened only by word.
#[test]
fn an_older_state_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let mut how = cached(&dir.path().join("cache"), 64 << 20);
    let store = volume(&options(Some(file(7)), false));
    let old = get(&store, "head");
    RemoteDevice::open_writable(store_of(&store), &how).expect("open").close().expect("closed");
    let new = get(&store, "head");
    put(&store, "head", old);
    for failed in [
        RemoteDevice::open(store_of(&store), None, &how).err(),
        RemoteDevice::open_writable(store_of(&store), &how).err(),
    ] {
        assert!(matches!(failed, Some(RemoteError::Older { .. })), "{failed:?}");
    }
    // Others have seen nothing.
    RemoteDevice::open(store_of(&store), None, &options(Some(file(7)), false)).expect("open");
    put(&store, "head", new);
    RemoteDevice::open(store_of(&store), None, &how).expect("as it was");
    how.accept_older = true;
    RemoteDevice::open(store_of(&store), None, &how).expect("by word");
}

/// Goal: a sealed volume in the place of another of the same key is noticed by a machine that has seen the other one, and opened
/// only by word. Method: the objects of one under the name of the other; then it is made anew in its own place.
#[test]
fn another_volume_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let mut how = cached(&dir.path().join("cache"), 64 << 20);
    let named = |name: &str| MemoryStore::open("another", name);
    let (one, two) = (named("one"), named("two"));
    for store in [&one, &two] {
        fill(store, &options(Some(file(7)), false));
        RemoteDevice::open(store_of(store), None, &how).expect("open");
    }
    pin(store_of(&two), "p", "a test", &options(Some(file(7)), false)).expect("pinned");
    for (key, body) in objects(&two) {
        put(&one, &key, body);
    }
    for failed in [
        RemoteDevice::open(store_of(&one), None, &how).err(),
        RemoteDevice::open(store_of(&one), Some("p"), &how).err(),
        RemoteDevice::open_writable(store_of(&one), &how).err(),
    ] {
        assert!(matches!(failed, Some(RemoteError::Another { .. })), "{failed:?}");
    }
    how.accept_older = true;
    RemoteDevice::open(store_of(&one), None, &how).expect("by word");
    how.accept_older = false;
    RemoteDevice::open(store_of(&one), None, &how).expect("known now");
    create(store_of(&one), LEN, true, &how).expect("made anew");
    RemoteDevice::open_writable(store_of(&one), &how).expect("open");
}

/// Goal: the store can give a pin no other head, and does not see for whom it was made. Method: the head of another pin, with the
/// entry as it was, with what the entry says changed, and without its seal; a text that is in no object.
#[test]
fn pins_are_sealed() {
    let how = options(Some(file(7)), false);
    let store = volume(&how);
    let by = "somebody in secret";
    pin(store_of(&store), "monday", by, &how).expect("pinned");
    let dev = RemoteDevice::open_writable(store_of(&store), &how).expect("open");
    dev.write_at(0, b"later").expect("write");
    dev.close().expect("closed");
    pin(store_of(&store), "tuesday", by, &how).expect("pinned");
    assert!(pins(store_of(&store), &how).expect("a list").iter().all(|pin| pin.by == by));
    assert!(objects(&store).iter().all(|(_, body)| !body.windows(by.len()).any(|text| text == by.as_bytes())));
    let open = |how: &StoreOptions| RemoteDevice::open(store_of(&store), Some("monday"), how).map(drop);
    open(&how).expect("open");
    let list: Pins = Pins::parse(&get(&store, "pins")).expect("a list");
    let key_of = |pin: &Pin| format!("pin/{}/{}", pin.name, pin.id);
    let (monday, tuesday) = (&list.pins[0], &list.pins[1]);
    put(&store, &key_of(monday), get(&store, &key_of(tuesday)));
    let is_refused = || {
        let failed = open(&how).expect_err("another head");
        assert!(matches!(failed, RemoteError::Corrupt(_)), "{failed}");
        let report = verify(&store_of(&store), &how, VerifyOptions::default(), &mut |_| {}).expect("verified");
        assert_eq!(report.findings.len(), 1, "{report:?}");
        let parent = Parent { store: store_of(&store), url: "memory://x/y", pin: Some("monday") };
        branch(&parent, store_of(&MemoryStore::new()), "x", &how).expect_err("another head");
    };
    is_refused();
    let forged = Pin { name: monday.name.clone(), id: monday.id.clone(), ..tuesday.clone() };
    for entry in [forged.clone(), Pin { sealed: None, ..forged }] {
        let list = Pins { pins: vec![entry, tuesday.clone()], ..list.clone() };
        put(&store, "pins", list.encode());
        is_refused();
    }
    // Without a seal, as of older versions.
    let mut older = how.clone();
    older.accept_older = true;
    open(&older).expect("by word");
}

/// Goal: what a branch shares with its parent is read from the store once, whether the parent, this branch or another reads it.
#[test]
fn what_branches_share_is_on_the_local_disk() {
    let dir = tempfile::tempdir().expect("dir");
    let (bare, how) = (options(Some(file(7)), false), cached(&dir.path().join("cache"), 64 << 20));
    let named = |name: &str| MemoryStore::open("shared", name);
    fill(&named("parent"), &bare);
    let want = read_all(&RemoteDevice::open(store_of(&named("parent")), None, &bare).expect("open"));
    let of = Parent { store: store_of(&named("parent")), url: "memory://shared/parent", pin: None };
    for child in ["one", "two"] {
        branch(&of, store_of(&named(child)), &format!("memory://shared/{child}"), &bare).expect("a branch");
    }
    for (round, child) in ["one", "one", "two"].into_iter().enumerate() {
        let dev = RemoteDevice::open(store_of(&named(child)), None, &how).expect("open");
        let attached = count(&dev, "parts read from the store");
        assert!(read_all(&dev) == want);
        let read = count(&dev, "parts read from the store") - attached;
        // Each has a map of its own.
        assert!(if round == 0 { read > 8 } else { read <= 1 }, "{child}: {read} parts");
    }
}
