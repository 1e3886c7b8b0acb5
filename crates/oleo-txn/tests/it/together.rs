//! Several callers that commit concurrently.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Weak, mpsc};

use oleo_device::{Device, MemDevice};
use oleo_mkfs::MkfsOptions;
use oleo_txn::{DeltaSource, Engine, EngineOptions, Need, Stage, TxnError};
use oleo_volume::{OpenOptions, Volume};
use parking_lot::Mutex;

/// A `DeltaSource` without changes, whose first commit waits until the test lets it continue.
struct Slow {
    frozen: AtomicU64,
    reported: Mutex<mpsc::Receiver<()>>,
    reached: mpsc::Sender<()>,
}

impl DeltaSource for Slow {
    fn freeze(&self) {
        self.frozen.fetch_add(1, Ordering::SeqCst);
    }
    fn itemise(&self) -> Result<Stage, TxnError> {
        if self.frozen.load(Ordering::SeqCst) == 1 {
            self.reached.send(()).unwrap();
            self.reported.lock().recv().unwrap();
        }
        Ok(Stage::default())
    }
    fn published(&self) {}
}

fn open() -> Engine {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 << 20));
    oleo_mkfs::make(std::slice::from_ref(&device), &MkfsOptions::default()).unwrap();
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    Engine::open(Arc::new(volume), &EngineOptions::default()).unwrap()
}

/// Goal: whoever asks for a commit while one is under way gets one that began after asking, and all of them the same.
/// Method: a commit is held up; four threads change something and ask; then it goes on. Two commits happen in all, and
/// the four are told the second one's generation.
#[test]
fn one_commit_for_all_who_wait() {
    let engine = open();
    let (go, reported) = mpsc::channel();
    let (reached, is_there) = mpsc::channel();
    let slow = Arc::new(Slow { frozen: AtomicU64::new(0), reported: Mutex::new(reported), reached });
    let source: Arc<dyn DeltaSource> = slow.clone();
    engine.set_source(Arc::downgrade(&source) as Weak<dyn DeltaSource>);
    let change = || drop(engine.join(Need { items: 1, bytes: 10, ..Need::default() }).unwrap());
    assert!(!engine.has_changes());
    change();
    assert!(engine.has_changes());
    let (start, ready) = (engine.durable(), Barrier::new(5));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| engine.commit().unwrap());
        is_there.recv().unwrap();
        assert!(!engine.has_changes(), "what there was is being committed");
        let others: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    change();
                    ready.wait();
                    engine.commit().unwrap()
                })
            })
            .collect();
        ready.wait();
        assert_eq!(engine.durable(), start, "nothing is on disk yet");
        go.send(()).unwrap();
        let first = first.join().unwrap();
        for other in others {
            assert_eq!(other.join().unwrap().0, first.0 + 1);
        }
    });
    assert_eq!(slow.frozen.load(Ordering::SeqCst), 2);
    assert!(!engine.has_changes() && engine.poisoned_by().is_none());
}
