//! What is kept and what goes, on stores that work: claims, pins, leases, branches, and the space of what is overwritten.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use oleo_device::Device;
use oleo_remote::format::head::{Head, Origin};
use oleo_remote::format::pins::PinKind;
use oleo_remote::store::{Answer, Body, Cond, Deadline, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::{
    GcOptions, Host, Parent, RemoteDevice, RemoteError, StoreError, StoreOptions, SystemHost, branch, create, gc, pin,
    pins, unpin,
};
use oleo_sim::rng::Rng;

const LEN: usize = 3_000_000;

/// Small segments, claims by word only, and nobody who does anything by itself.
fn small() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.claim = Duration::ZERO;
    options.keeper = false;
    options.take_over = true;
    options.bounds.segment_aim = 100_000;
    options.bounds.inline_max = 10_000;
    options.bounds.replay_count_max = 5;
    options.bounds.cache_bytes_max = 100_000;
    options
}

fn with_claim(keeper: bool, claim: Duration) -> StoreOptions {
    let mut options = small();
    (options.keeper, options.claim, options.take_over) = (keeper, claim, false);
    options
}

fn store(store: &MemoryStore) -> Arc<dyn Store> {
    Arc::new(store.copy())
}

fn writable(of: &MemoryStore) -> RemoteDevice {
    RemoteDevice::open_writable(store(of), &small()).expect("open")
}

fn read_all(dev: &RemoteDevice) -> Vec<u8> {
    let mut all = vec![9; dev.len() as usize];
    dev.read_at(0, &mut all).expect("read");
    all
}

fn opened(of: &MemoryStore, pin: Option<&str>) -> Vec<u8> {
    read_all(&RemoteDevice::open(store(of), pin, &small()).expect("open"))
}

/// How many objects and bytes are below the prefix, besides the head and the list of pins.
fn stored(of: &MemoryStore) -> (usize, u64) {
    let op = Op::List { prefix: String::new(), after: String::new(), count_max: 100_000 };
    let Ok(Answer::Listed(all)) = of.submit(op, Duration::MAX).wait() else { panic!("a list") };
    let all: Vec<_> = all.into_iter().filter(|listed| listed.key.contains('/')).collect();
    (all.len(), all.iter().map(|listed| listed.len).sum())
}

/// Writes something everywhere, in random order.
fn fill(dev: &RemoteDevice, rng: &mut Rng, want: &mut [u8]) {
    let mut places: Vec<usize> = (0..want.len() / 20_000).collect();
    for n in (1..places.len()).rev() {
        places.swap(n, rng.below(n as u64 + 1) as usize);
    }
    for place in places {
        let at = place * 20_000;
        let data = rng.bytes(20_000);
        dev.write_at(at as u64, &data).expect("write");
        want[at..at + data.len()].copy_from_slice(&data);
    }
    dev.flush().expect("flush");
}

/// Twice, since the pages of a checkpoint die with the next.
fn collect(dev: &RemoteDevice) -> oleo_remote::Deleted {
    dev.checkpoint().expect("checkpoint");
    dev.checkpoint().expect("checkpoint");
    dev.delete_dead(Duration::ZERO).expect("deleted")
}

/// The newest head.
fn head(of: &MemoryStore) -> Head {
    let op = Op::Get { key: "head".into(), range: None, len_max: 1 << 20, if_changed: None };
    let Ok(Answer::Object { body, .. }) = of.submit(op, Duration::MAX).wait() else { panic!("a head") };
    Head::parse(&body).expect("a head")
}

/// Waits for something that happens soon, however busy the machine is.
fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const CLAIM: Duration = Duration::from_secs(1);

fn try_open(of: &MemoryStore) -> Result<RemoteDevice, RemoteError> {
    RemoteDevice::open_writable(store(of), &with_claim(false, CLAIM))
}

/// Goal: a writer keeps its claim, whether it writes or is idle; one that is lost keeps others out for the time of its claim, and
/// they learn for whom they wait.
#[test]
fn claims() {
    let of = MemoryStore::new();
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let mut options = with_claim(true, CLAIM);
    options.owner = "first".into();
    let first = RemoteDevice::open_writable(store(&of), &options).expect("open");
    for written in [false, true, false] {
        if written {
            first.write_at(0, b"written").expect("write");
        }
        match try_open(&of) {
            Err(RemoteError::Held { owner }) => assert_eq!(owner, "first"),
            other => panic!("written {written}: {:?}", other.err()),
        }
    }
    // It is lost without a word.
    std::mem::forget(first);
    let waits = Arc::new(Mutex::new(Vec::new()));
    let mut options = with_claim(false, CLAIM);
    let said = waits.clone();
    options.on_wait = Some(Arc::new(move |wait| said.lock().unwrap().push((wait.owner.clone(), wait.most))));
    let second = loop {
        // Its threads live on, and renew the claim.
        match RemoteDevice::open_writable(store(&of), &options) {
            Err(RemoteError::Held { .. }) if waits.lock().unwrap().len() < 2 => options.take_over = true,
            opened => break opened.expect("taken over"),
        }
    };
    assert_eq!(waits.lock().unwrap().first().expect("a wait").0, "first");
    assert!(waits.lock().unwrap().iter().all(|wait| wait.1 >= CLAIM));
    std::mem::forget(second);
    let begin = Instant::now();
    drop(try_open(&of).expect("its claim has run out"));
    assert!(begin.elapsed() >= CLAIM, "{:?}", begin.elapsed());
}

/// Goal: with `release_idle` a writer with nothing to write releases the volume, and finds out if another took it.
#[test]
fn an_idle_writer_lets_go() {
    let of = MemoryStore::new();
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let mut options = with_claim(true, CLAIM);
    options.release_idle = true;
    let first = RemoteDevice::open_writable(store(&of), &options).expect("open");
    first.write_at(0, b"first").expect("write");
    wait_until("it does not let go", || head(&of).released);
    drop(try_open(&of).expect("let in"));
    first.write_at(0, b"late").expect("in memory");
    assert!(first.flush().is_err());
    assert!(matches!(*first.failure().expect("why"), RemoteError::Overtaken { .. }));
    assert_eq!(&opened(&of, None)[..5], b"first");
}

/// Goal: a writer that was stopped past its claim confirms no flush before it has found out whether it was overtaken, although
/// there is nothing to publish. Method: no thread renews; once without another writer, once with one.
#[test]
fn a_writer_that_was_stopped() {
    let of = MemoryStore::new();
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let first = try_open(&of).expect("open");
    first.write_at(0, b"first").expect("write");
    first.flush().expect("flush");
    std::thread::sleep(CLAIM + Duration::from_millis(100));
    let before = head(&of).sequence;
    first.flush().expect("it still has the volume");
    assert_eq!(head(&of).sequence, before + 1, "the claim is renewed");
    std::mem::forget(try_open(&of).expect("its claim has run out"));
    first.flush().expect_err("confirmed for a volume that another writer has");
    assert!(matches!(*first.failure().expect("why"), RemoteError::Overtaken { .. }));
}

/// A host whose processes have names, and have ended if the name says so.
struct Named(SystemHost, &'static str);

impl Host for Named {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn sleep(&self, time: Duration) {
        self.0.sleep(time);
    }
    fn random(&self) -> [u8; 16] {
        self.0.random()
    }
    fn process(&self) -> Option<String> {
        Some(self.1.into())
    }
    fn has_ended(&self, process: &str) -> bool {
        process == "killed"
    }
}

/// Goal: the claim of a process that has ended is not waited for, except with a claim of 0. Method: a claim of an hour.
#[test]
fn a_process_that_has_ended() {
    let of = MemoryStore::new();
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let named = |name| {
        let mut options = with_claim(false, Duration::from_secs(3600));
        options.host = Arc::new(Named(SystemHost::new(), name));
        options.owner = "root on here".into();
        options
    };
    let begin = Instant::now();
    std::mem::forget(RemoteDevice::open_writable(store(&of), &named("killed")).expect("open"));
    assert_eq!((head(&of).writer(), head(&of).process()), ("root on here", Some("killed")));
    let mut next = named("killed");
    next.claim = Duration::ZERO;
    std::mem::forget(RemoteDevice::open_writable(store(&of), &next).expect("the process has ended"));
    let held = RemoteDevice::open_writable(store(&of), &named("other")).err();
    assert!(matches!(&held, Some(RemoteError::Held { owner }) if owner == "root on here"), "{held:?}");
    assert!(begin.elapsed() < Duration::from_secs(1800));
}

/// Goal: what is overwritten goes, however often; what a pin keeps stays, whole, until the pin is ended; and all that is left
/// then is what the volume names.
#[test]
fn what_is_overwritten_goes() {
    let of = MemoryStore::new();
    let (mut rng, mut want) = (Rng::new(1), vec![0; LEN]);
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let dev = writable(&of);
    fill(&dev, &mut rng, &mut want);
    let pinned = want.clone();
    let made = pin(store(&of), "first", "a test", &small()).expect("pinned");
    assert_eq!(made.kind, PinKind::Pin);
    assert!(matches!(pin(store(&of), "first", "again", &small()), Err(RemoteError::PinExists { .. })));
    for round in 0..6 {
        fill(&dev, &mut rng, &mut want);
        let found = collect(&dev);
        assert!(found.deleted > 10 || round == 0, "round {round}: {found:?}");
        assert!(found.kept > 10, "round {round}: {found:?}");
        assert_eq!(found.waiting, 0);
        assert!(opened(&of, Some("first")) == pinned && read_all(&dev) == want, "round {round}");
    }
    let (_, with_pin) = stored(&of);
    assert!((2 * LEN as u64..5 * LEN as u64 / 2).contains(&with_pin), "{with_pin}");
    unpin(store(&of), "first", false, &small()).expect("ended");
    assert!(matches!(unpin(store(&of), "first", false, &small()), Err(RemoteError::NoPin { .. })));
    assert!(matches!(RemoteDevice::open(store(&of), Some("first"), &small()), Err(RemoteError::NoPin { .. })));
    assert_eq!(collect(&dev).kept, 0);
    let (count, without) = stored(&of);
    assert!(without < 4 * LEN as u64 / 3, "{without}");
    // The open segment is in the head.
    let named = dev.census().len();
    assert!(count <= named && named <= count + 1, "{count} stored, {named} named");
    // A writer that was lost leaves what it stored and did not publish.
    dev.write_at(0, &vec![1; 400_000]).expect("write");
    let next = writable(&of);
    drop(dev);
    assert!(read_all(&next) == want);
    let found = next.remove_orphans(Duration::from_secs(3600)).expect("looked");
    assert!(found.young > 1 && found.deleted == 0, "{found:?}");
    let found = next.remove_orphans(Duration::ZERO).expect("looked");
    assert!(found.young == 0 && found.deleted > 1, "{found:?}");
    assert!(read_all(&next) == want);
    next.close().expect("closed");
    assert!(opened(&of, None) == want);
}

/// Goal: segments of which little lives are emptied, and the volume is as it was.
#[test]
fn sparse_segments_are_emptied() {
    let of = MemoryStore::new();
    let (mut rng, mut want) = (Rng::new(2), vec![0; LEN]);
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let dev = writable(&of);
    fill(&dev, &mut rng, &mut want);
    // Something of each segment stays.
    for at in (0..LEN / 4096).filter(|block| block % 5 != 0).map(|block| block * 4096) {
        dev.discard(at as u64, 4096).expect("discard");
        want[at..at + 4096].fill(0);
    }
    assert!(read_all(&dev) == want);
    collect(&dev);
    let (_, before) = stored(&of);
    let moved = dev.repack(u64::MAX).expect("moved");
    dev.flush().expect("flush");
    assert!(moved > 100_000, "{moved}");
    collect(&dev);
    let (_, after) = stored(&of);
    assert!(after < before / 2, "{before} before, {after} after");
    assert!(read_all(&dev) == want);
    drop(dev);
    assert!(read_all(&writable(&of)) == want);
}

/// Goal: what is written while segments are emptied is never covered by what was there before. Method: a thread that moves
/// everything it may, and one that writes and reads; each block says how often it was written.
#[test]
fn what_is_moved_is_not_newer() {
    let of = MemoryStore::new();
    create(store(&of), 64 * 4096, false, &small()).expect("create");
    let dev = writable(&of);
    let done = AtomicBool::new(false);
    let moved = std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut moved = 0;
            while !done.load(Relaxed) {
                moved += dev.repack(1 << 20).expect("moved");
                dev.checkpoint().expect("checkpoint");
            }
            moved
        });
        let mut rng = Rng::new(3);
        let mut want = [0u64; 64];
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            // Few, so that old segments live on in some blocks.
            let block = rng.below(64).min(rng.below(64)) as usize;
            want[block] += 1;
            dev.write_at(block as u64 * 4096, &want[block].to_le_bytes().repeat(512)).expect("write");
            let looked = rng.below(64) as usize;
            let mut bytes = [0; 8];
            dev.read_at(looked as u64 * 4096, &mut bytes).expect("read");
            if u64::from_le_bytes(bytes) != want[looked] {
                done.store(true, Relaxed);
                panic!("block {looked} is {}, and was written {} times", u64::from_le_bytes(bytes), want[looked]);
            }
        }
        done.store(true, Relaxed);
        mover.join().expect("mover")
    });
    assert!(moved > 100_000, "{moved}");
}

/// Goal: collecting in one step deletes what has been dead for its time of grace, and with none what is dead at all.
#[test]
fn in_one_step() {
    let of = MemoryStore::new();
    let (mut rng, mut want) = (Rng::new(7), vec![0; LEN]);
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let dev = writable(&of);
    fill(&dev, &mut rng, &mut want);
    dev.checkpoint().expect("checkpoint");
    fill(&dev, &mut rng, &mut want);
    dev.checkpoint().expect("checkpoint");
    dev.close().expect("closed");
    let (before, _) = stored(&of);
    let grace = Duration::from_secs(2);
    let with = |grace| GcOptions { grace, ..GcOptions::default() };
    let found = gc(store(&of), &with(grace), &small()).expect("collected");
    assert!(found.dead.deleted == 0 && found.dead.waiting > 20, "{found:?}");
    std::thread::sleep(grace + Duration::from_secs(1));
    let found = gc(store(&of), &with(grace), &small()).expect("collected");
    assert!(found.dead.deleted > 20 && found.dead.waiting > 0, "{found:?}");
    let found = gc(store(&of), &with(Duration::ZERO), &small()).expect("collected");
    assert!(found.dead.deleted > 0 && found.dead.waiting == 0, "{found:?}");
    assert!(stored(&of).0 < before - 20 && opened(&of, None) == want);
}

/// Goal: a reader that wants one has a lease for as long as it is open, and what it reads stays.
#[test]
fn leases() {
    let of = MemoryStore::new();
    let (mut rng, mut want) = (Rng::new(4), vec![0; LEN]);
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let dev = writable(&of);
    fill(&dev, &mut rng, &mut want);
    let mut options = small();
    options.lease = true;
    let reader = RemoteDevice::open(store(&of), None, &options).expect("open");
    let without = RemoteDevice::open(store(&of), None, &small()).expect("open");
    let seen = want.clone();
    let listed = pins(store(&of), &small()).expect("a list");
    assert!(listed.len() == 1 && listed[0].kind == PinKind::Lease && reader.lease() == listed.first());
    fill(&dev, &mut rng, &mut want);
    collect(&dev);
    assert!(read_all(&reader) == seen);
    reader.close().expect("closed");
    assert!(pins(store(&of), &small()).expect("a list").is_empty());
    collect(&dev);
    let gone = without.read_at(0, &mut vec![0; LEN]).expect_err("it is gone");
    assert!(gone.to_string().contains("is gone"), "{gone}");
    assert!(opened(&of, None) == want);
}

/// Goal: a branch is what its parent was at that moment, each is written without the other noticing, the parent deletes nothing
/// that the branch needs, and a branch that is detached needs nothing of it. The same of a branch of a branch.
#[test]
fn branches() {
    let named = |prefix: &str| MemoryStore::open("branches", prefix);
    let (of, of_child, of_grandchild) = (named("parent"), named("child"), named("grandchild"));
    let (mut rng, mut want) = (Rng::new(5), vec![0; LEN]);
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let dev = writable(&of);
    fill(&dev, &mut rng, &mut want);
    dev.checkpoint().expect("checkpoint");
    fill(&dev, &mut rng, &mut want[..LEN / 2]);
    // Something in the tail.
    dev.write_at(5000, b"in the tail").expect("write");
    want[5000..5011].copy_from_slice(b"in the tail");
    dev.flush().expect("flush");
    let parent = Parent { store: store(&of), url: "memory://branches/parent", pin: None };
    let entry = branch(&parent, store(&of_child), "memory://branches/child", &small()).expect("a branch");
    let again = branch(&parent, store(&of_child), "again", &small()).expect_err("there is one");
    assert!(matches!(again, RemoteError::Exists { .. }), "{again}");
    assert!(opened(&of_child, None) == want);
    let (_, own) = stored(&of_child);
    assert!(own < 100_000, "{own} bytes of its own");
    // Both are written.
    let mut of_parent = want.clone();
    let child = writable(&of_child);
    child.write_at(1_000_000, b"of the child").expect("write");
    want[1_000_000..1_000_012].copy_from_slice(b"of the child");
    child.flush().expect("flush");
    fill(&dev, &mut rng, &mut of_parent);
    collect(&dev);
    assert!(read_all(&child) == want && read_all(&dev) == of_parent);
    let refused = unpin(store(&of), &entry.name, false, &small());
    assert!(matches!(refused, Err(RemoteError::PinNeeded { .. })));
    // One more, of a pin of the child.
    pin(store(&of_child), "moment", "a test", &small()).expect("pinned");
    let moment = want.clone();
    fill(&child, &mut rng, &mut want[..LEN / 3]);
    child.write_at(2_000_000, &[7; 30_000]).expect("write");
    want[2_000_000..2_030_000].fill(7);
    child.flush().expect("flush");
    collect(&child);
    let parent = Parent { store: store(&of_child), url: "memory://branches/child", pin: Some("moment") };
    branch(&parent, store(&of_grandchild), "memory://branches/grandchild", &small()).expect("a branch");
    unpin(store(&of_child), "moment", false, &small()).expect("ended");
    collect(&child);
    assert!(opened(&of_grandchild, None) == moment && opened(&of_child, None) == want);
    let refused = child.detach().expect_err("the grandchild needs it");
    assert!(matches!(refused, RemoteError::PinNeeded { .. }), "{refused}");
    // The youngest first, then the other.
    let grandchild = writable(&of_grandchild);
    grandchild.detach().expect("detached");
    assert!(read_all(&grandchild) == moment);
    grandchild.close().expect("closed");
    assert!(pins(store(&of_child), &small()).expect("a list").is_empty());
    child.detach().expect("detached");
    assert!(pins(store(&of), &small()).expect("a list").is_empty());
    child.close().expect("closed");
    // Nothing is needed of the parent any more.
    drop(dev);
    create(store(&of), LEN as u64, true, &small()).expect("made anew");
    writable(&of).remove_orphans(Duration::ZERO).expect("cleared");
    assert_eq!(stored(&of).0, 0);
    assert!(opened(&of_grandchild, None) == moment && opened(&of_child, None) == want);
    let child = writable(&of_child);
    fill(&child, &mut rng, &mut want);
    collect(&child);
    assert!(read_all(&child) == want);
}

/// Goal: detaching a volume ends no pin and no branch of a volume that it was not made of. Method: heads of a branch that name
/// entries of another volume as their origin: a pin, a branch, and one with the name that the entry of the branch has.
#[test]
fn detached_of_another_volume() {
    let named = |prefix: &str| MemoryStore::open("foreign", prefix);
    let (of, of_child, of_victim) = (named("parent"), named("child"), named("victim"));
    create(store(&of), LEN as u64, false, &small()).expect("create");
    create(store(&of_victim), LEN as u64, false, &small()).expect("create");
    let parent = Parent { store: store(&of), url: "memory://foreign/parent", pin: None };
    let entry = branch(&parent, store(&of_child), "child", &small()).expect("a branch");
    let parent = Parent { store: store(&of_victim), url: "memory://foreign/victim", pin: None };
    let other = branch(&parent, store(&named("other")), "other", &small()).expect("a branch");
    for name in ["keep", &entry.name] {
        pin(store(&of_victim), name, "a test", &small()).expect("pinned");
    }
    let kept = pins(store(&of_victim), &small()).expect("a list");
    let victim = head(&of_victim).uuid;
    for (uuid, pin) in [([7; 16], "keep"), (victim, "keep"), (victim, &other.name), (victim, &entry.name)] {
        let mut foreign = head(&of_child);
        foreign.origins = vec![Origin { uuid, pin: pin.into(), prefix: "memory://foreign/victim".into() }];
        let op = Op::Put { key: "head".into(), body: Body::from(foreign.encode()), cond: Cond::None };
        of_child.submit(op, Deadline::MAX).wait().expect("put");
        writable(&of_child).detach().expect("detached");
        assert_eq!(pins(store(&of_victim), &small()).expect("a list"), kept, "{pin}");
    }
}

/// Goal: a volume that is made where another was deletes nothing that pins of that one need.
#[test]
fn pins_of_the_volume_before() {
    let of = MemoryStore::new();
    let (mut rng, mut want) = (Rng::new(6), vec![0; LEN]);
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let dev = writable(&of);
    fill(&dev, &mut rng, &mut want);
    pin(store(&of), "old", "a test", &small()).expect("pinned");
    dev.close().expect("closed");
    create(store(&of), LEN as u64, true, &small()).expect("made anew");
    let dev = writable(&of);
    assert!(read_all(&dev).iter().all(|&b| b == 0));
    let found = dev.remove_orphans(Duration::ZERO).expect("looked");
    assert_eq!((found.deleted, found.other_pins), (0, 1));
    assert!(opened(&of, Some("old")) == want);
    assert!(matches!(pin(store(&of), "new", "a test", &small()), Err(RemoteError::Limit { .. })));
    unpin(store(&of), "old", false, &small()).expect("ended");
    assert!(dev.remove_orphans(Duration::ZERO).expect("looked").deleted > 20);
    pin(store(&of), "new", "a test", &small()).expect("pinned");
}

/// A store that goes away for heads: what it is sent meanwhile arrives before the first head that is sent after.
struct Late {
    inner: MemoryStore,
    away: AtomicBool,
    sent: Mutex<Vec<Op>>,
}

impl Store for Late {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        if op.key() == "head" && self.away.load(Relaxed) {
            if matches!(op, Op::Put { .. }) {
                self.sent.lock().unwrap().push(op);
            }
            return Ticket::new(|| Err(StoreError::Unknown("no answer".into())));
        }
        if op.key() == "head" {
            for late in self.sent.lock().unwrap().drain(..) {
                let _ = self.inner.submit(late, deadline).wait();
            }
        }
        self.inner.submit(op, deadline)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn now(&self) -> Option<StoreTime> {
        self.inner.now()
    }
}

/// Goal: a head that renews a claim, is given up and arrives later is no stranger's: the writer goes on behind it.
/// Method: the store is away while the claim is to be renewed; what was sent arrives just before the next flush's head.
#[test]
fn a_renewal_that_arrives_late() {
    let of = MemoryStore::new();
    create(store(&of), LEN as u64, false, &small()).expect("create");
    let late = Arc::new(Late { inner: of.copy(), away: AtomicBool::new(false), sent: Mutex::default() });
    let dev = RemoteDevice::open_writable(late.clone(), &with_claim(true, Duration::from_millis(600))).expect("open");
    late.away.store(true, Relaxed);
    dev.write_at(0, b"first").expect("write");
    let begin = Instant::now();
    while late.sent.lock().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(30), "no claim was renewed");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The keeper gives up after a third of the claim.
    std::thread::sleep(Duration::from_millis(400));
    dev.write_at(5, b"second").expect("write");
    late.away.store(false, Relaxed);
    dev.flush().expect("it is this writer's own head");
    assert!(late.sent.lock().unwrap().is_empty());
    drop(dev);
    assert_eq!(&opened(&of, None)[..11], b"firstsecond");
}

/// A store on which segments are stored when that is allowed.
struct HeldSegments {
    store: MemoryStore,
    allowed: Arc<(Mutex<bool>, Condvar)>,
}

impl Store for HeldSegments {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let is_held = op.key().starts_with("seg/");
        let (ticket, allowed) = (self.store.submit(op, deadline), self.allowed.clone());
        Ticket::new(move || {
            if is_held {
                let (lock, changed) = &*allowed;
                drop(changed.wait_while(lock.lock().unwrap(), |allowed| !*allowed).unwrap());
            }
            ticket.wait()
        })
    }
    fn describe(&self) -> String {
        "held".into()
    }
    fn now(&self) -> Option<StoreTime> {
        self.store.now()
    }
}

/// A volume on such a store, and what allows storing.
fn with_held_segments(of: &MemoryStore, options: &StoreOptions) -> (RemoteDevice, impl Fn() + use<>) {
    let allowed = Arc::<(Mutex<bool>, Condvar)>::default();
    let held = Arc::new(HeldSegments { store: of.copy(), allowed: allowed.clone() });
    create(store(of), LEN as u64, false, &small()).expect("create");
    let dev = RemoteDevice::open_writable(held, options).expect("open");
    let allow = move || {
        *allowed.0.lock().unwrap() = true;
        allowed.1.notify_all();
    };
    (dev, allow)
}

/// Goal: a claim is renewed while segments are being stored, and what was never flushed is published in the end.
/// Method: a segment that is held; a renewal in another thread; the head changes.
#[test]
fn renewals_wait_for_no_segment() {
    let of = MemoryStore::new();
    let (dev, allow) = with_held_segments(&of, &with_claim(false, Duration::from_millis(300)));
    let before = head(&of).sequence;
    dev.write_at(0, &[1; 50_000]).expect("write");
    std::thread::sleep(Duration::from_millis(200));
    std::thread::scope(|scope| {
        let renewal = scope.spawn(|| dev.renew());
        wait_until("the claim is not renewed", || head(&of).sequence > before);
        assert!(opened(&of, None)[0] == 0, "what is not stored is not published");
        allow();
        renewal.join().expect("renewed");
    });
    std::thread::sleep(Duration::from_millis(200));
    dev.renew();
    assert!(opened(&of, None)[0] == 1, "what is stored is published");
}

/// Goal: a flush that takes longer than the claim keeps it. Method: a segment that is held; the head changes again and again.
#[test]
fn a_long_flush_keeps_the_claim() {
    let of = MemoryStore::new();
    let (dev, allow) = with_held_segments(&of, &with_claim(true, Duration::from_millis(300)));
    dev.write_at(0, &[1; 50_000]).expect("write");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| dev.flush());
        let before = head(&of).sequence;
        wait_until("the claim is not renewed", || head(&of).sequence > before + 5);
        assert!(!flush.is_finished() && opened(&of, None)[0] == 0);
        allow();
        flush.join().expect("flush").expect("flushed");
    });
    assert!(opened(&of, None)[0] == 1);
}
