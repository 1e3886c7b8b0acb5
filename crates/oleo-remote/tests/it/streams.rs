//! Streams on a store: uploads, their ends, damage, pruning, two at the same time, and a store that loses answers.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oleo_remote::store::{Answer, Cond, Deadline, FileStore, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::streams::{
    ChainBytes, NewStream, Policy, Reason, StreamEntry, StreamPieces, Streams, Upload, chain, find,
};
use oleo_remote::{KeySlots, KeySource, RemoteError, StoreError, StoreOptions, SystemHost};
use oleo_sim::rng::Rng;
use uuid::Uuid;

const FOREVER: Duration = Duration::MAX;
const PART_LEN: usize = 70_000;

fn options(sealed: bool) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.owner = "test".into();
    options.key = sealed.then(|| KeySource::file(&[7; 32]).expect("a key file"));
    options.compress = sealed;
    options.bounds.segment_aim = PART_LEN as u32;
    options.bounds.flush_max = Duration::from_secs(20);
    options
}

fn make(store: &MemoryStore, sealed: bool) -> Streams {
    Streams::open_or_make_on(Arc::new(store.copy()), &options(sealed)).expect("streams")
}

fn new(n: u64, parent: Option<Uuid>) -> NewStream {
    NewStream {
        name: format!("snap{n}"),
        uuid: Uuid::from_u128(n.into()),
        ctransid: n,
        series: Uuid::nil(),
        taken: n as i64 * 86_400,
        parent,
        clone_sources: vec![],
    }
}

/// The bytes of a stream, half of which can be compressed.
fn contents(n: u64) -> Vec<u8> {
    let mut bytes = Rng::new(n).bytes(PART_LEN * 2 + 1000);
    bytes.extend((0..PART_LEN as u32).flat_map(|n| (n / 100).to_le_bytes()).take(PART_LEN + n as usize));
    bytes
}

fn send(streams: &Streams, n: u64, parent: Option<Uuid>) -> StreamEntry {
    let mut upload = Upload::begin(streams, new(n, parent)).expect("begin");
    for piece in contents(n).chunks(9999) {
        upload.write_all(piece).expect("write");
    }
    upload.finish(&[], &contents(n)[..100_000]).expect("finish")
}

fn read(streams: &Streams, chain: &[&StreamEntry]) -> Result<Vec<u8>, RemoteError> {
    let mut bytes = ChainBytes::open(streams, chain)?;
    let (error, mut out) = (bytes.error(), Vec::new());
    match bytes.read_to_end(&mut out) {
        Ok(_) => Ok(out),
        Err(_) => Err(error.get().expect("why").clone()),
    }
}

fn keys(store: &dyn Store) -> Vec<String> {
    let op = Op::List { prefix: "stream/".into(), after: String::new(), count_max: 10_000 };
    let Ok(Answer::Listed(listed)) = store.submit(op, FOREVER).wait() else { panic!("no list") };
    listed.into_iter().map(|object| object.key).collect()
}

fn get(store: &dyn Store, key: &str) -> Vec<u8> {
    let op = Op::Get { key: key.into(), range: None, len_max: u64::MAX, if_changed: None };
    let Ok(Answer::Object { body, .. }) = store.submit(op, FOREVER).wait() else { panic!("no object {key}") };
    body
}

fn put(store: &dyn Store, key: &str, body: Vec<u8>) {
    store.submit(Op::Put { key: key.into(), body: body.into(), cond: Cond::None }, FOREVER).wait().expect("put");
}

/// Goal: what was written is read again, whole, in a chain and in parts, sealed or not, in memory and in a directory; the key opens, nothing else
/// does; keys are added.
#[test]
fn written_and_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores: [Arc<dyn Store>; 2] =
        [Arc::new(MemoryStore::new()), Arc::new(FileStore::new(dir.path(), Arc::new(SystemHost::new())))];
    for store in stores {
        for sealed in [false, true] {
            let store: Arc<dyn Store> = match sealed {
                false => store.clone(),
                true => Arc::new(MemoryStore::new()),
            };
            let none = Streams::open_on(store.clone(), &options(sealed)).map(drop);
            assert!(matches!(none, Err(RemoteError::NoStreams { .. })), "{none:?}");
            let streams = Streams::open_or_make_on(store.clone(), &options(sealed)).expect("streams");
            let first = send(&streams, 1, None);
            let second = send(&streams, 2, Some(first.id));
            assert_eq!((first.number, second.number, second.incremental), (1, 2, true));
            assert_eq!(first.bytes, contents(1).len() as u64);
            assert_eq!(sealed, first.stored_bytes < first.bytes + first.index_bytes, "compressed");

            let streams = Streams::open_on(store.clone(), &options(sealed)).expect("streams");
            let list = streams.list().expect("list");
            assert_eq!(find(&list, None).expect("the newest"), &second);
            assert_eq!(find(&list, Some("snap1")).expect("by name"), &first);
            assert_eq!(find(&list, Some(&first.uuid.to_string())).expect("by uuid"), &first);
            assert!(matches!(find(&list, Some("snap")), Err(RemoteError::NoSnapshot { .. })));
            let both = chain(&list, &second, |_| false).expect("chain");
            assert_eq!(read(&streams, &both).expect("read"), [contents(1), contents(2)].concat());
            let one = chain(&list, &second, |stream| stream.id == first.id).expect("chain");
            assert_eq!(read(&streams, &one).expect("read"), contents(2));
            assert_eq!(streams.index(&first, 100_000).expect("index").as_deref(), Some(&contents(1)[..100_000]));
            assert!(matches!(streams.index(&first, 99_999), Err(RemoteError::Limit { .. })));
            let mut pieces = StreamPieces::open(&streams, &second).expect("pieces");
            for (at, len) in [(0, 10), (PART_LEN - 5, 10), (5, 3 * PART_LEN), (contents(2).len() - 1, 1)] {
                assert_eq!(pieces.get(at as u64, len as u32).expect("get"), &contents(2)[at..at + len]);
            }
            assert!(pieces.get(contents(2).len() as u64, 1).is_err() && pieces.get(u64::MAX, 5).is_err());
            let found = streams.verify(false, &mut |_| {}).expect("verify");
            assert!(found.findings.is_empty() && found.orphans == 0, "{found:?}");
            assert_eq!(found.parts, 2 * (4 + 2));
            let other = Streams::open_on(store.clone(), &options(!sealed)).map(drop);
            assert!(matches!(other, Err(RemoteError::Key { .. })), "{other:?}");
            if sealed {
                let slots = KeySlots::open(store.clone(), &options(true)).expect("slots");
                let phrase = KeySource::file(&[9; 32]).expect("a key file");
                slots.add(&phrase).expect("add");
                let mut with = options(true);
                with.key = Some(phrase);
                assert_eq!(Streams::open_on(store, &with).expect("open").list().expect("list"), list);
            }
        }
    }
}

/// Goal: any part, index or manifest that is changed, cut, missing or another's is noticed, by reading and by `verify`, and nothing of it
/// comes out. Method: each object in turn.
#[test]
fn damage_is_noticed() {
    for sealed in [false, true] {
        let store = MemoryStore::new();
        let streams = make(&store, sealed);
        let first = send(&streams, 1, None);
        send(&streams, 2, None);
        for key in keys(&store) {
            let good = get(&store, &key);
            let mut flipped = good.clone();
            flipped[good.len() / 3] ^= 1;
            let other = key.replace(&first.id.simple().to_string(), "x");
            let swapped = keys(&store).into_iter().find(|k| *k != key && (k.len() == key.len()) && other != *k);
            let bad = [flipped, good[..good.len() - 1].to_vec(), get(&store, &swapped.expect("another"))];
            for (n, bad) in bad.into_iter().enumerate() {
                put(&store, &key, bad);
                let found = streams.verify(false, &mut |_| {}).expect("verify");
                assert_eq!(found.findings.len(), 1, "{key}, {n}: {found:?}");
            }
            store.submit(Op::Delete { key: key.clone() }, FOREVER).wait().expect("delete");
            let found = streams.verify(false, &mut |_| {}).expect("verify");
            assert!(found.findings[0].what.to_string().contains("missing"), "{key}: {found:?}");
            if key.contains(&first.id.simple().to_string()) && !key.contains("index") {
                let error = read(&streams, &[&first]).expect_err("damaged");
                assert!(matches!(error, RemoteError::Corrupt(_)), "{key}: {error}");
            }
            put(&store, &key, good);
        }
        assert!(streams.verify(false, &mut |_| {}).expect("verify").findings.is_empty());
    }
}

/// Goal: nothing of an upload is seen before its end; one that fails leaves nothing; one that is cut leaves what `collect` finds once it is old,
/// and not before; its sender is refused if it comes back; repeated, it is there.
#[test]
fn uploads_that_are_cut() {
    let store = MemoryStore::new();
    let streams = make(&store, false);
    let mut cut = Upload::begin(&streams, new(1, None)).expect("begin");
    cut.write_all(&contents(1)).expect("write");
    let list = streams.list().expect("list");
    assert_eq!((list.streams.len(), list.uploads.len()), (0, 1));
    assert!(matches!(find(&list, None), Err(RemoteError::NoSnapshot { .. })));
    let stored = keys(&store).len();
    assert!(stored >= 3);
    let day = Duration::from_secs(86_400);
    let found = streams.collect(day, false).expect("collect");
    assert_eq!((found.deleted, found.given_up, found.under_way), (0, 0, 1));
    assert_eq!(streams.collect(Duration::ZERO, true).expect("dry").deleted as usize, stored);
    assert_eq!(keys(&store).len(), stored, "a dry run");
    let found = streams.collect(Duration::ZERO, false).expect("collect");
    assert_eq!((found.deleted as usize, found.given_up), (stored, 1));
    let late = cut.finish(&[], &[]).expect_err("it was given up");
    assert!(matches!(late, RemoteError::UploadGone { .. }), "{late}");
    assert!(streams.list().expect("list").streams.is_empty());
    assert!(keys(&store).is_empty(), "what the late one stored is gone");

    let mut failed = Upload::begin(&streams, new(1, None)).expect("begin");
    failed.write_all(&contents(1)).expect("write");
    failed.abandon();
    assert!(keys(&store).is_empty() && streams.list().expect("list").uploads.is_empty());

    let again = send(&streams, 1, None);
    assert_eq!(read(&streams, &[&again]).expect("read"), contents(1));
    assert!(matches!(Upload::begin(&streams, new(1, None)), Err(RemoteError::SnapshotExists { .. })));
    // An object that arrives late, of an upload that is on no list.
    put(&store, &format!("stream/{}/part-000000", Uuid::from_u128(5).simple()), vec![1]);
    assert_eq!(streams.verify(true, &mut |_| {}).expect("verify").orphans, 1);
    assert_eq!(streams.collect(day, false).expect("collect").deleted, 1);
}

/// Goal: of two that send the same, one is entered and the other told so, leaving nothing; of many that send different things, all are entered.
#[test]
fn several_senders() {
    let store = MemoryStore::new();
    let streams = make(&store, true);
    let [mut a, mut b] = [1, 2].map(|_| Upload::begin(&streams, new(1, None)).expect("begin"));
    a.write_all(&contents(1)).expect("write");
    b.write_all(&contents(1)).expect("write");
    let entered = b.finish(&[], &[]).expect("the first");
    assert!(matches!(a.finish(&[], &[]), Err(RemoteError::SnapshotExists { .. })));
    assert_eq!(read(&streams, &[&entered]).expect("read"), contents(1));
    std::thread::scope(|threads| {
        for n in 10..16 {
            let store = store.copy();
            threads.spawn(move || send(&make(&store, true), n, Some(entered.id)));
        }
    });
    let list = streams.list().expect("list");
    assert_eq!(list.streams.len(), 7);
    assert!(list.uploads.is_empty());
    let found = streams.verify(false, &mut |_| {}).expect("verify");
    assert!(found.findings.is_empty() && found.orphans == 0, "{found:?}");
}

/// Goal: what a policy does not keep goes with its objects; what is needed by what is kept, or by an upload under way, stays; a chain that lost a
/// link all the same says so. Method: two chains, and one stream that clones from the first.
#[test]
fn pruned() {
    let store = MemoryStore::new();
    let streams = make(&store, false);
    let one = send(&streams, 1, None);
    let two = send(&streams, 2, Some(one.id));
    let three = send(&streams, 3, Some(two.id));
    let ten = send(&streams, 10, None);
    let last = |n| Policy { last: n, ..Policy::default() };
    assert!(matches!(streams.prune(&Policy::default()), Err(RemoteError::Limit { .. })));
    let plan = streams.plan(&last(2)).expect("plan");
    assert!(plan.removed.is_empty(), "all are needed: {plan:?}");
    assert_eq!(plan.kept[0].1, [Reason::NeededBy("snap2".into())]);
    assert_eq!(plan.kept[1].1, [Reason::NeededBy("snap3".into())]);
    let begun = Upload::begin(&streams, new(11, Some(two.id))).expect("begin");
    let pruned = streams.prune(&last(1)).expect("prune");
    let names: Vec<&str> = pruned.removed.iter().map(|stream| stream.name.as_str()).collect();
    assert_eq!(names, ["snap3"]);
    assert_eq!(pruned.kept[1].1, [Reason::NeededByUpload("snap11".into())]);
    drop(begun);
    streams.collect(Duration::ZERO, false).expect("collect");
    assert_eq!(streams.prune(&last(1)).expect("prune").removed.len(), 2);
    let collected = streams.collect(Duration::MAX, false).expect("collect");
    assert_eq!(collected.deleted, 2 * (4 + 2 + 1));
    let left: HashSet<String> = keys(&store).iter().map(|key| key[7..39].to_owned()).collect();
    assert_eq!(left, [ten.id.simple().to_string()].into());
    let late = Upload::begin(&streams, new(4, Some(three.id)));
    assert!(matches!(late, Err(RemoteError::UploadGone { .. })));
    // Of a list that somebody has edited.
    let mut list = streams.list().expect("list");
    list.streams[0].needs = vec![one.id];
    let broken = chain(&list, &list.streams[0], |_| false);
    assert!(matches!(broken, Err(RemoteError::BrokenChain { .. })), "{broken:?}");
}

/// A store of which every few operations have no answer, though they may have been carried out.
struct Lossy {
    inner: MemoryStore,
    count: AtomicU64,
    every: u64,
}

impl Store for Lossy {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        if n % self.every != self.every - 1 {
            return self.inner.submit(op, deadline);
        }
        // Alternately carried out and not.
        if (n / self.every).is_multiple_of(2) {
            let _lost = self.inner.submit(op, deadline).wait();
        }
        Ticket::new(|| Err(StoreError::Unknown("lost".into())))
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn now(&self) -> Option<StoreTime> {
        self.inner.now()
    }
}

/// Goal: answers that are lost cost time and nothing else: each stream is entered once, whole, and nothing else is left. Method: with every second to
/// ninth operation lost, carried out or not.
#[test]
fn lost_answers() {
    let all = |every: u64| {
        let inner = MemoryStore::new();
        let lossy = Arc::new(Lossy { inner: inner.copy(), count: AtomicU64::new(0), every });
        let streams = Streams::open_or_make_on(lossy, &options(true)).expect("streams");
        let first = send(&streams, 1, None);
        let second = send(&streams, 2, Some(first.id));
        assert_eq!(read(&streams, &[&first, &second]).expect("read"), [contents(1), contents(2)].concat());
        let list = make(&inner, true).list().expect("list");
        assert_eq!((list.streams.len(), list.uploads.len()), (2, 0), "every {every}");
        let found = streams.verify(false, &mut |_| {}).expect("verify");
        assert!(found.findings.is_empty() && found.orphans == 0, "every {every}: {found:?}");
        assert_eq!(streams.prune(&Policy { last: 2, ..Policy::default() }).expect("prune").kept.len(), 2);
    };
    // Side by side: most of the time they wait before they ask again.
    std::thread::scope(|scope| [2, 3, 4, 5, 9].into_iter().for_each(|every| drop(scope.spawn(move || all(every)))));
}

/// Goal: a store that makes an object twice which is to be made once is refused before anything is sent to it.
#[test]
fn a_store_without_conditions() {
    struct Careless(MemoryStore);
    impl Store for Careless {
        fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
            let op = match op {
                Op::Put { key, body, .. } => Op::Put { key, body, cond: Cond::None },
                other => other,
            };
            self.0.submit(op, deadline)
        }
        fn describe(&self) -> String {
            "careless".into()
        }
        fn now(&self) -> Option<StoreTime> {
            None
        }
    }
    let made = Streams::open_or_make_on(Arc::new(Careless(MemoryStore::new())), &options(false)).map(drop);
    assert!(matches!(made, Err(RemoteError::NoConditions { .. })), "{made:?}");
}
