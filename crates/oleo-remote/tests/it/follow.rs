//! Readers that go on to newer moments, and reads of a store that is away or has damaged frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use oleo_device::{Device, ReadReq};
use oleo_remote::store::{Answer, Deadline, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::{Follower, Host, KeySource, RemoteDevice, RemoteError, StoreError, StoreOptions, SystemHost, create};

const LEN: u64 = 4 << 20;

/// A store that can be away, change bytes, and counts what is read.
#[derive(Clone, Default)]
struct Odd {
    inner: Arc<MemoryStore>,
    away: Arc<AtomicBool>,
    damages: Arc<AtomicBool>,
    gets: Arc<AtomicU64>,
}

impl Store for Odd {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        if self.away.load(Relaxed) {
            return Ticket::new(|| Err(StoreError::Away("unplugged".into())));
        }
        let is_segment = op.key().starts_with("seg/") && matches!(op, Op::Get { .. });
        self.gets.fetch_add(u64::from(matches!(op, Op::Get { .. })), Relaxed);
        let damages = is_segment && self.damages.load(Relaxed);
        let ticket = self.inner.submit(op, deadline);
        Ticket::new(move || {
            let mut answer = ticket.wait();
            if let (Ok(Answer::Object { body, .. }), true) = (&mut answer, damages) {
                body.iter_mut().step_by(100).for_each(|byte| *byte ^= 1);
            }
            answer
        })
    }
    fn describe(&self) -> String {
        "odd".into()
    }
    fn now(&self) -> Option<StoreTime> {
        self.inner.now()
    }
}

/// Time that passes as it does, and when it is told to.
struct Clock(SystemHost, AtomicU64);

impl Host for Clock {
    fn now(&self) -> Duration {
        self.0.now() + Duration::from_secs(self.1.load(Relaxed))
    }
    fn sleep(&self, time: Duration) {
        self.0.sleep(time);
    }
    fn random(&self) -> [u8; 16] {
        self.0.random()
    }
}

fn options(sealed: bool) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.keeper = false;
    options.take_over = true;
    options.bounds.segment_aim = 200_000;
    options.bounds.inline_max = 10_000;
    options.key = sealed.then(|| KeySource::file(&[7; 32]).expect("a key file"));
    options
}

fn byte_at(dev: &RemoteDevice, offset: u64) -> u8 {
    let mut byte = [0];
    dev.read_at(offset, &mut byte).expect("read");
    byte[0]
}

/// Goal: each moment is what was flushed, and stays so; asking costs one request if nothing is new, and little if something is;
/// another volume in the same place ends it. Method: a writer and a follower on one store, sealed or not; requests counted.
#[test]
fn moments() {
    for sealed in [false, true] {
        let store = Odd::default();
        let arc = || Arc::new(store.clone()) as Arc<dyn Store>;
        create(arc(), LEN, false, &options(sealed)).expect("create");
        let dev = RemoteDevice::open_writable(arc(), &options(sealed)).expect("open");
        dev.write_at(0, &vec![1; 600_000]).expect("write");
        dev.flush().expect("flush");
        let (mut follower, first) = Follower::open(arc(), &options(sealed)).expect("follow");
        let mut open = vec![first];
        assert!(follower.newer().expect("asked").is_none());
        for n in 2..20u8 {
            dev.write_at(u64::from(n) * 1000, &[n; 5000]).expect("write");
            assert!(follower.newer().expect("asked").is_none(), "nothing that is not flushed");
            dev.flush().expect("flush");
            let before = store.gets.load(Relaxed);
            let next = follower.newer().expect("asked").expect("a newer moment");
            let (found, gets) = (byte_at(&next, u64::from(n) * 1000), store.gets.load(Relaxed) - before);
            assert_eq!(found, n);
            assert!(gets <= 4, "{gets} requests for a small change");
            let before = store.gets.load(Relaxed);
            assert!(follower.newer().expect("asked").is_none());
            assert_eq!(store.gets.load(Relaxed) - before, 1);
            open.push(next);
        }
        for (at, moment) in open.iter().enumerate() {
            let n = at as u8 + 1;
            assert_eq!(byte_at(moment, u64::from(n) * 1000), n, "moment {n}");
            assert_eq!(byte_at(moment, u64::from(n + 1) * 1000 + 4999), 1, "nothing of what came after moment {n}");
        }
        dev.close().expect("close");
        create(arc(), LEN, true, &options(sealed)).expect("made anew");
        assert!(matches!(follower.newer(), Err(RemoteError::Replaced { .. })));
        assert_eq!(byte_at(&open[3], 4000), 4, "what is open stays");
    }
}

/// Goal: the head that a follower asks for must not go back. Method: the object is put back by hand.
#[test]
fn put_back() {
    let store = Odd::default();
    let arc = || Arc::new(store.clone()) as Arc<dyn Store>;
    create(arc(), LEN, false, &options(false)).expect("create");
    let dev = RemoteDevice::open_writable(arc(), &options(false)).expect("open");
    let get = Op::Get { key: "head".into(), range: None, len_max: 1 << 20, if_changed: None };
    let Ok(Answer::Object { body: old, .. }) = store.submit(get, Duration::MAX).wait() else { panic!("a head") };
    dev.write_at(0, &[1; 4096]).expect("write");
    dev.flush().expect("flush");
    let (mut follower, first) = Follower::open(arc(), &options(false)).expect("follow");
    let put = Op::Put { key: "head".into(), body: old.into(), cond: oleo_remote::store::Cond::None };
    store.submit(put, Duration::MAX).wait().expect("put back");
    assert!(matches!(follower.newer(), Err(RemoteError::Older { .. })));
    assert_eq!(byte_at(&first, 0), 1);
}

/// Goal: a member of a mirror whose store is away is waited for once, then not, but for a probe now and then; when it is back, so are
/// its reads. One that has no mirror waits each time. Method: a clock that jumps; reads timed.
#[test]
fn away() {
    for mirrored in [true, false] {
        let store = Odd::default();
        let arc = || Arc::new(store.clone()) as Arc<dyn Store>;
        let clock = Arc::new(Clock(SystemHost::new(), 0.into()));
        let mut options = options(false);
        options.host = clock.clone();
        options.mirrored = mirrored;
        options.bounds.read_max = Duration::from_millis(400);
        options.bounds.cache_bytes_max = 0;
        create(arc(), LEN, false, &options).expect("create");
        let dev = RemoteDevice::open_writable(arc(), &options).expect("open");
        // Bytes that no compression brings together.
        let bytes: Vec<u8> = (0..900_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        dev.write_at(0, &bytes).expect("write");
        dev.write_at(LEN / 2, &bytes).expect("write");
        dev.flush().expect("flush");
        drop(dev);
        let dev = RemoteDevice::open(arc(), None, &options).expect("open");
        // In one batch, since what is refused beside the read that is sent must not be taken for its answer.
        let read_both = || {
            let (mut one, mut two) = ([0; 4096], [0; 4096]);
            let mut reads = [ReadReq::new(0, &mut one), ReadReq::new(LEN / 2, &mut two)];
            dev.read_batch(&mut reads);
            reads.iter().filter(|read| read.result.is_ok()).count()
        };
        let read = || {
            let (begun, mut byte) = (Instant::now(), [0; 4096]);
            let done = dev.read_at(0, &mut byte).is_ok();
            (done, begun.elapsed())
        };
        let count = |name: &str| dev.stats().expect("counts").extra.iter().find(|(of, _)| *of == name).expect(name).1;
        assert!(read().0);
        store.away.store(true, Relaxed);
        let (done, time) = read();
        assert!(!done && time >= Duration::from_millis(80), "{time:?}");
        let not_sent = "reads not sent because it was away";
        assert!((0..30).all(|_| !read().0));
        assert_eq!(
            count(not_sent),
            if mirrored { 30 } else { 0 },
            "a mirror has another copy, so nothing waits for this one"
        );
        assert_eq!((count("away now"), count("times it went away")), (u64::from(mirrored), u64::from(mirrored)));
        store.away.store(false, Relaxed);
        assert_eq!(read().0, !mirrored, "that it is back is not known yet");
        clock.1.fetch_add(11, Relaxed);
        let first = read_both();
        assert!(first > 0 && (mirrored || first == 2), "{first}");
        assert_eq!(read_both(), 2, "it is back");
        assert!(read().0 && read().0);
        assert_eq!(count("away now"), 0);
    }
}

/// Goal: a frame that stays wrong is asked for again a few times, then not for a while. Method: a store that changes what it carries.
#[test]
fn damaged_frames() {
    let store = Odd::default();
    let arc = || Arc::new(store.clone()) as Arc<dyn Store>;
    let clock = Arc::new(Clock(SystemHost::new(), 0.into()));
    let mut options = options(false);
    options.host = clock.clone();
    create(arc(), LEN, false, &options).expect("create");
    let dev = RemoteDevice::open_writable(arc(), &options).expect("open");
    dev.write_at(0, &vec![1; 900_000]).expect("write");
    dev.flush().expect("flush");
    dev.checkpoint().expect("checkpoint");
    drop(dev);
    let dev = RemoteDevice::open(arc(), None, &options).expect("open");
    store.damages.store(true, Relaxed);
    let read = || {
        let before = store.gets.load(Relaxed);
        let done = dev.read_at(0, &mut [0; 4096]).is_ok();
        (done, store.gets.load(Relaxed) - before)
    };
    let (done, gets) = read();
    assert!(!done && gets > 1, "{gets}");
    assert!((0..10).all(|_| read() == (false, 0)), "it is asked for again");
    store.damages.store(false, Relaxed);
    clock.1.fetch_add(31, Relaxed);
    assert!(read().0, "it was wrong on the way only");
}
