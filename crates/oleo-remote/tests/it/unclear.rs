//! Answers that do not come, at each moment in turn: what was asked for under a condition has been done or not, and whoever asked finds out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::kit::Still;
use oleo_device::Device;
use oleo_remote::store::{Answer, Cond, Deadline, MemoryStore, Op, Store, StoreTime, Ticket, Version};
use oleo_remote::{
    KeySlots, KeySource, ProbeOptions, RemoteDevice, RemoteError, StoreError, StoreOptions, create, probe,
};

/// Which of the stores under a condition stay without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loses {
    None,
    /// This one, which does not arrive.
    Request(u32),
    /// This one, whose answer does not come back.
    Answer(u32),
    /// All that are refused: the connection ends before the whole request was read.
    Refusals,
    /// All but the first, and they are carried out whatever their condition is. Versions have numbers.
    AllDone,
}

struct Lossy {
    inner: MemoryStore,
    loses: Loses,
    asked: AtomicU32,
}

impl Lossy {
    fn new(inner: &MemoryStore, loses: Loses) -> Arc<Lossy> {
        Arc::new(Lossy { inner: inner.copy(), loses, asked: 0.into() })
    }
    fn asked(&self) -> u32 {
        self.asked.load(Relaxed)
    }
}

fn numbered(version: Version) -> Version {
    Version { generation: Some(version.etag.clone()), ..version }
}

impl Store for Lossy {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        let lost = Ticket::new(|| Err(StoreError::Unknown("cut off".into())));
        let nth = if op.may_repeat() { u32::MAX } else { self.asked.fetch_add(1, Relaxed) };
        let op = match op {
            Op::Put { key, body, .. } if self.loses == Loses::AllDone && (1..u32::MAX).contains(&nth) => {
                Op::Put { key, body, cond: Cond::None }
            }
            Op::Put { key, body, cond: Cond::Match(version) } => {
                Op::Put { key, body, cond: Cond::Match(Version { generation: None, ..version }) }
            }
            op => op,
        };
        if self.loses == Loses::Request(nth) {
            return lost;
        }
        let answer = self.inner.submit(op, deadline).wait();
        let is_lost = match self.loses {
            Loses::None | Loses::Request(_) => false,
            Loses::Answer(which) => which == nth,
            Loses::Refusals => answer == Err(StoreError::Condition),
            Loses::AllDone => (1..u32::MAX).contains(&nth),
        };
        let answer = match answer {
            Ok(Answer::Stored(version)) if self.loses == Loses::AllDone => Ok(Answer::Stored(numbered(version))),
            Ok(Answer::Object { body, version }) if self.loses == Loses::AllDone => {
                Ok(Answer::Object { body, version: version.map(numbered) })
            }
            answer => answer,
        };
        if is_lost { lost } else { Ticket::new(move || answer) }
    }
    fn describe(&self) -> String {
        "lossy".into()
    }
    fn now(&self) -> Option<StoreTime> {
        None
    }
}

/// `time`: how long may be asked again; less than the first wait: not at all.
fn options(time: Duration) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.host = Arc::new(Still::default());
    options.keeper = false;
    options.take_over = true;
    options.bounds.attach_max = time;
    options
}

const LONG: Duration = Duration::from_secs(120);
const NO_TIME: Duration = Duration::from_millis(50);

fn volume() -> MemoryStore {
    let store = MemoryStore::new();
    create(Arc::new(store.copy()), 1 << 20, false, &options(LONG)).expect("create");
    store
}

/// Goal: opening for writing finds out what became of its two stores of the head, and does not fail because one of their answers is lost, even
/// where there is no time to ask again; only a claim that did not arrive then fails. Method: each request and each answer lost
/// in turn; what was opened writes, and the next one reads it.
#[test]
fn opening() {
    for time in [LONG, NO_TIME] {
        for loses in [Loses::None, Loses::Request(0), Loses::Answer(0), Loses::Request(1), Loses::Answer(1)] {
            let volume = volume();
            let store = Lossy::new(&volume, loses);
            let opened = RemoteDevice::open_writable(store.clone(), &options(time));
            if (time, loses) == (NO_TIME, Loses::Request(0)) {
                assert!(matches!(opened.err(), Some(RemoteError::Store { doing: "replace", .. })));
                continue;
            }
            let dev = opened.unwrap_or_else(|e| panic!("{loses:?} within {time:?}: {e}"));
            assert!(store.asked() >= 2, "{loses:?}: conditions were tried");
            dev.write_at(0, b"written").expect("write");
            dev.flush().expect("flush");
            let mut back = [0; 7];
            RemoteDevice::open(Arc::new(volume.copy()), None, &options(LONG))
                .expect("open")
                .read_at(0, &mut back)
                .expect("read");
            assert_eq!(&back, b"written", "{loses:?} within {time:?}");
        }
    }
}

/// Goal: a store that ends the connection whenever it refuses something is one that volumes can be on, and opening one does not ask for ever; one that
/// carries out everything is refused although no answer says so, if it has numbers for versions.
#[test]
fn no_refusal_is_answered() {
    let volume = volume();
    let store = Lossy::new(&volume, Loses::Refusals);
    let how = options(LONG);
    let dev = RemoteDevice::open_writable(store.clone(), &how).expect("open");
    assert_eq!(store.asked(), 1 + 3);
    assert!(how.host.now() < Duration::from_secs(20), "{:?}", how.host.now());
    let second = RemoteDevice::open_writable(Lossy::new(&volume, Loses::Refusals), &options(LONG)).expect("open");
    dev.write_at(0, b"late").expect("in memory");
    dev.flush().expect_err("overtaken");
    second.write_at(0, b"more").expect("write");
    second.flush().expect("flush");
    let done = RemoteDevice::open_writable(Lossy::new(&volume, Loses::AllDone), &options(LONG)).err();
    assert!(matches!(done, Some(RemoteError::NoConditions { .. })), "{done:?}");
}

/// Goal: a store is not refused because a request or an answer was lost while it was probed. Method: each in turn.
#[test]
fn probing() {
    let unclear = |loses| {
        let store = Lossy::new(&MemoryStore::new(), loses);
        let shared: Arc<dyn Store> = store.clone();
        let report = probe(&shared, &options(LONG), ProbeOptions::SHORT).unwrap_or_else(|e| panic!("{loses:?}: {e}"));
        assert!(report.failures.is_empty(), "{loses:?}: {report:?}");
        (report.unclear, store.asked())
    };
    let (none, asked) = unclear(Loses::None);
    assert!(none == 0 && asked > 10, "{none} of {asked}");
    for nth in 0..asked {
        assert!(unclear(Loses::Request(nth)).0 == 1 && unclear(Loses::Answer(nth)).0 == 1, "{nth}");
    }
    assert!(unclear(Loses::Refusals).0 > 3);
}

/// Goal: the same of keys: one that is added or taken away is, once.
#[test]
fn keys() {
    let key = |byte| KeySource::file(&[byte; 32]).expect("a key file");
    let mut how = options(LONG);
    how.key = Some(key(1));
    for loses in [Loses::None, Loses::Request(0), Loses::Answer(0), Loses::Request(1), Loses::Answer(1)] {
        let volume = MemoryStore::new();
        create(Arc::new(volume.copy()), 1 << 20, false, &how).expect("create");
        let slots = KeySlots::open(Lossy::new(&volume, loses), &how).expect("slots");
        let name = slots.add(&key(2)).unwrap_or_else(|e| panic!("{loses:?}: {e}"));
        assert_eq!(slots.list().expect("list").len(), 2, "{loses:?}");
        slots.remove(&name).unwrap_or_else(|e| panic!("{loses:?}: {e}"));
        assert_eq!(slots.list().expect("list").len(), 1, "{loses:?}");
    }
}
