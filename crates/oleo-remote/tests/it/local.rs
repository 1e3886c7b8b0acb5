//! Volumes with a log on the local disk: what is confirmed survives the writer, on its machine, whatever the store does meanwhile;
//! and nobody is told that it does when it does not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use oleo_device::Device;
use oleo_remote::store::{Cond, Deadline, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::{CacheOptions, Durable, KeySource, RemoteDevice, RemoteError, StoreError, StoreOptions, create};
use oleo_sim::rng::Rng;

const BLOCK: usize = 4096;
const LEN: usize = 2 << 20;

/// What the way to the store does.
const WORKS: u8 = 0;
/// No request arrives, and that is said.
const AWAY: u8 = 1;
/// The process is gone.
const DEAD: u8 = 2;
/// Heads arrive, and their answers do not.
const MUTE: u8 = 3;

/// One client's way to a store.
#[derive(Clone)]
struct Way {
    store: Arc<MemoryStore>,
    state: Arc<AtomicU8>,
}

impl Way {
    fn new(store: &MemoryStore) -> Way {
        Way { store: Arc::new(store.copy()), state: Arc::default() }
    }

    fn set(&self, state: u8) {
        self.state.store(state, Relaxed);
    }
}

impl Store for Way {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let conditional = matches!(op, Op::Put { cond: Cond::Match(_), .. });
        match self.state.load(Relaxed) {
            AWAY => Ticket::new(|| Err(StoreError::Away("no network".into()))),
            DEAD => Ticket::new(|| Err(StoreError::Denied("dead".into()))),
            MUTE if conditional => {
                let _lost = self.store.submit(op, deadline).wait();
                self.set(DEAD);
                Ticket::new(|| Err(StoreError::Denied("dead".into())))
            }
            _ => self.store.submit(op, deadline),
        }
    }

    fn describe(&self) -> String {
        "way".into()
    }

    fn now(&self) -> Option<StoreTime> {
        self.store.now()
    }
}

fn options(dir: &Path) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.cache = Some(CacheOptions { dir: dir.join("cache"), bytes_max: 1 << 20 });
    options.durable = Durable::Local;
    options.keeper = false;
    options.log_bytes_max = 1 << 20;
    options.bounds.segment_aim = 100_000;
    options.bounds.inline_max = 10_000;
    options.bounds.replay_count_max = 5;
    options.bounds.flush_max = Duration::from_secs(1);
    options
}

fn with_take_over(options: &StoreOptions) -> StoreOptions {
    let mut options = options.clone();
    options.take_over = true;
    options
}

fn read_all(dev: &RemoteDevice) -> Vec<u8> {
    let mut all = vec![9; dev.len() as usize];
    dev.read_at(0, &mut all).expect("read");
    all
}

fn count(dev: &RemoteDevice, name: &str) -> u64 {
    dev.stats().expect("counts").extra.iter().find(|(of, _)| *of == name).map_or(0, |count| count.1)
}

const CONFIRMED: &str = "flushes confirmed by the local log";

/// Goal: what was confirmed is there after the writer was lost, at whatever moment, and after losses in a row; also what is
/// compressed or sealed, and when the next writer keeps no log itself.
/// Method: rounds of writes, discards and flushes, some of them published, each with another end; compared with a vector.
#[test]
fn losses_in_a_row() {
    for kind in 0..3 {
        let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
        let mut how = options(dir.path());
        // Where there is no log, it has to run out.
        how.claim = Duration::from_secs(1);
        match kind {
            1 => how.compress = true,
            2 => how.key = Some(KeySource::file(&[1; 32]).expect("a key file")),
            _ => {}
        }
        create(Arc::new(store.copy()), LEN as u64, false, &how).expect("create");
        let (mut rng, mut want) = (Rng::new(kind), vec![0u8; LEN]);
        let (mut by_log, mut replayed) = (0, 0);
        for round in 0..30 {
            let way = Way::new(&store);
            how.durable = if round % 5 == 4 { Durable::Remote } else { Durable::Local };
            let dev = RemoteDevice::open_writable(Arc::new(way.clone()), &how)
                .unwrap_or_else(|e| panic!("kind {kind}, round {round}: {e}"));
            assert!(read_all(&dev) == want, "kind {kind}, round {round}");
            for _ in 0..rng.below(12) {
                for _ in 0..1 + rng.below(4) {
                    let first = rng.below((LEN / BLOCK) as u64 - 8) as usize * BLOCK;
                    let len = (1 + rng.below(8) as usize) * BLOCK;
                    let data = if rng.one_in(4) { vec![0; len] } else { rng.bytes(len) };
                    if rng.one_in(4) {
                        want[first..first + len].fill(0);
                        dev.discard(first as u64, len as u64).expect("discard");
                    } else {
                        dev.write_at(first as u64, &data).expect("write");
                        want[first..first + len].copy_from_slice(&data);
                    }
                }
                dev.flush().expect("flush");
                if rng.one_in(4) {
                    dev.renew();
                }
            }
            by_log += count(&dev, CONFIRMED);
            replayed += count(&dev, "frames replayed from the local log");
            match round % 4 {
                0 => way.set(DEAD),
                1 => {
                    // The last head arrives, and nobody knows.
                    way.set(MUTE);
                    dev.renew();
                    way.set(DEAD);
                }
                2 => {
                    // Nobody was told that this is there. It may be in what is published next, so it is what is there already.
                    dev.write_at(0, &want[..BLOCK]).expect("write");
                    way.set(DEAD);
                }
                _ => {
                    dev.close().expect("closed");
                    continue;
                }
            }
            drop(dev);
        }
        assert!(by_log > 50 && replayed > 20, "{by_log} {replayed}");
    }
}

/// Goal: what another machine has taken over is never overwritten by an old log; the log is kept and named, if the store has not
/// all that it confirmed, and only then.
#[test]
fn taken_over_meanwhile() {
    for lost in [true, false] {
        let (here, there) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let store = MemoryStore::new();
        let how = options(here.path());
        create(Arc::new(store.copy()), LEN as u64, false, &how).expect("create");
        let way = Way::new(&store);
        let dev = RemoteDevice::open_writable(Arc::new(way.clone()), &how).expect("open");
        dev.write_at(0, &[1; BLOCK]).expect("write");
        dev.flush().expect("confirmed");
        if !lost {
            dev.renew();
        }
        way.set(DEAD);
        drop(dev);
        let mut other = options(there.path());
        other.claim = Duration::from_secs(1);
        let held = RemoteDevice::open_writable(Arc::new(store.copy()), &other).err();
        assert!(matches!(held, Some(RemoteError::Held { .. })), "its claim does not run out: {held:?}");
        let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &with_take_over(&other)).expect("taken over");
        dev.write_at(BLOCK as u64, &[2; BLOCK]).expect("write");
        dev.close().expect("closed");
        let open = || RemoteDevice::open_writable(Arc::new(store.copy()), &how);
        if lost {
            match open().err() {
                Some(RemoteError::LogKept { path, what }) => {
                    assert!(path.exists() && what.contains("1 writes"), "{what}");
                }
                other => panic!("{other:?}"),
            }
        }
        let dev = open().expect("as the store has it");
        let mut blocks = [9; 2 * BLOCK];
        dev.read_at(0, &mut blocks).expect("read");
        assert!(blocks[..BLOCK] == [if lost { 0 } else { 1 }; BLOCK] && blocks[BLOCK..] == [2; BLOCK]);
    }
}

/// Goal: a writer that is overtaken while it lives learns it, and its next opening names what was lost.
#[test]
fn overtaken_alive() {
    let (here, there) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let store = MemoryStore::new();
    let how = options(here.path());
    create(Arc::new(store.copy()), LEN as u64, false, &how).expect("create");
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &how).expect("open");
    let other = with_take_over(&options(there.path()));
    let second = RemoteDevice::open_writable(Arc::new(store.copy()), &other).expect("taken over");
    dev.write_at(0, &[1; BLOCK]).expect("write");
    dev.flush().expect("it does not know yet");
    dev.renew();
    assert!(matches!(dev.failure().as_deref(), Some(RemoteError::Overtaken { .. })));
    assert!(dev.flush().is_err() && dev.write_at(0, &[1; BLOCK]).is_err());
    drop((dev, second));
    let kept = RemoteDevice::open_writable(Arc::new(store.copy()), &how).err();
    assert!(matches!(kept, Some(RemoteError::LogKept { .. })), "{kept:?}");
}

/// Goal: while the store is away, what fits in log and memory is confirmed, and then writers wait and get an error within the
/// bound; nothing that was confirmed is lost. When the store comes back in time, nobody notices.
#[test]
fn the_store_is_away() {
    for full in [true, false] {
        let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
        let mut how = options(dir.path());
        how.bounds.dirty_bytes_max = if full { 100 << 20 } else { 400_000 };
        create(Arc::new(store.copy()), LEN as u64, false, &how).expect("create");
        let way = Way::new(&store);
        let dev = RemoteDevice::open_writable(Arc::new(way.clone()), &how).expect("open");
        let mut want = vec![0; LEN];
        // An outage that ends: publishing gives up, and goes on later.
        way.set(AWAY);
        dev.write_at(0, &[1; BLOCK]).expect("write");
        want[..BLOCK].fill(1);
        dev.flush().expect("confirmed");
        dev.renew();
        assert!(dev.failure().is_none());
        way.set(WORKS);
        dev.renew();
        let reader = RemoteDevice::open(Arc::new(store.copy()), None, &how).expect("reader");
        assert!(read_all(&reader) == want);
        // One that does not.
        way.set(AWAY);
        let (mut n, mut confirmed) = (1, want.clone());
        let error = loop {
            assert!(n < LEN / BLOCK, "it takes everything");
            let begin = Instant::now();
            let done = dev.write_at((n * BLOCK) as u64, &[n as u8; BLOCK]).and_then(|()| {
                want[n * BLOCK..][..BLOCK].fill(n as u8);
                dev.flush()
            });
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
            match done {
                Ok(()) => confirmed.clone_from(&want),
                Err(e) => break e,
            }
            n += 1;
        };
        assert!(n > 50, "{n}: {error}");
        assert!(dev.read_only() && dev.dirty_bytes() < (2 << 20), "{}", dev.dirty_bytes());
        way.set(DEAD);
        drop(dev);
        let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &how).expect("open again");
        let found = read_all(&dev);
        let kept = confirmed.chunks(BLOCK).zip(found.chunks(BLOCK)).filter(|(want, _)| want[0] != 0);
        assert!(kept.clone().count() == n && kept.clone().all(|(want, have)| want == have), "full {full}");
    }
}

/// Goal: a full log is begun anew behind a publish, without a gap in what it confirms; the keeper publishes by itself.
#[test]
fn full_and_kept() {
    let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
    let mut how = options(dir.path());
    how.keeper = true;
    create(Arc::new(store.copy()), LEN as u64, false, &how).expect("create");
    let way = Way::new(&store);
    let dev = RemoteDevice::open_writable(Arc::new(way.clone()), &how).expect("open");
    let mut want = vec![0; LEN];
    for n in 0..LEN / BLOCK {
        // More than the log has room for, twice over.
        for _ in 0..2 {
            let data = [n as u8 | 1; BLOCK];
            dev.write_at((n * BLOCK) as u64, &data).expect("write");
            want[n * BLOCK..][..BLOCK].copy_from_slice(&data);
            dev.flush().expect("flush");
        }
    }
    let by_log = count(&dev, CONFIRMED);
    assert!(by_log > LEN as u64 / BLOCK as u64, "{by_log}");
    let until = Instant::now() + Duration::from_secs(10);
    while read_all(&RemoteDevice::open(Arc::new(store.copy()), None, &how).expect("reader")) != want {
        assert!(Instant::now() < until, "the keeper publishes nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
    dev.write_at(0, &[7; BLOCK]).expect("write");
    want[..BLOCK].fill(7);
    dev.flush().expect("confirmed");
    way.set(DEAD);
    drop(dev);
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &how).expect("open again");
    assert!(read_all(&dev) == want);
    dev.close().expect("closed");
    let left: Vec<_> =
        walk(dir.path()).into_iter().filter(|name| name == "log" || name.starts_with("log.kept")).collect();
    assert!(left.is_empty(), "a volume that was closed has no log: {left:?}");
    let mut bare = how.clone();
    bare.cache = None;
    let refused = RemoteDevice::open_writable(Arc::new(store.copy()), &bare).err();
    assert!(matches!(refused, Some(RemoteError::Unsupported { .. })), "{refused:?}");
}

/// Names of all files below a directory.
fn walk(dir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).expect("directory").flatten() {
        match entry.file_type().expect("type").is_dir() {
            true => out.extend(walk(&entry.path())),
            false => out.push(entry.file_name().to_string_lossy().into_owned()),
        }
    }
    out
}
