//! Threads that flush devices, kept from one flush to the next: an fsync flushes twice, and starting a thread for each device but the
//! first would cost more than a flush of a fast device.
//!
//! Normal path: (1) [`Flushers::flush_all`] gives each device but the first to a thread that has nothing to do, or to a new one; (2) it
//! flushes the first itself; (3) the last who is done wakes it, and the threads wait for the next flush. So there are as many as flushes have
//! ever needed at a time; they end with the volume.
//!
//! They do nothing but flush, so none of them takes up work that wants the caller's locks.
//!
//! Locks: `idle`, a leaf, for a push or a pop. Crash: see `write`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use oleo_device::{Device, DeviceError, Latched, affinity};
use oleo_lock::{Mutex, rank};

type Flushed = Result<(), DeviceError>;

/// The threads that have nothing to do.
#[derive(Default)]
pub(crate) struct Flushers {
    idle: Mutex<rank::IdleFlushers, Vec<Flusher>>,
}

/// One thread, by what it is given. It ends when this is dropped.
struct Flusher(SyncSender<Part>);

/// A flush of several devices. Who waits for it is woken once, by the last of those who have a part in it.
struct Round {
    results: Vec<OnceLock<Flushed>>,
    left: AtomicUsize,
    waits: Thread,
}

impl Round {
    fn wait(&self) {
        while self.left.load(Ordering::Acquire) > 0 {
            std::thread::park();
        }
    }
}

/// The flush of one device. It is done with when this is dropped, also by a panic.
struct Part {
    round: Arc<Round>,
    nth: usize,
    device: Option<Arc<Latched>>,
}

impl Part {
    fn flush(self) {
        if let Some(device) = &self.device {
            let _ = self.round.results[self.nth].set(device.flush());
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Whoever is woken may be about to close the device.
        self.device = None;
        if self.round.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.round.waits.unpark();
        }
    }
}

impl Flusher {
    /// `None`: the system has no thread for it.
    fn start() -> Option<Flusher> {
        let (parts, given) = sync_channel::<Part>(1);
        let run = move || {
            affinity::unbind();
            while let Ok(part) = given.recv() {
                // A thread that ended with a panic might still be given parts, which nothing would flush.
                let _ = catch_unwind(AssertUnwindSafe(|| part.flush()));
            }
        };
        std::thread::Builder::new().name("flush".into()).spawn(run).ok()?;
        Some(Flusher(parts))
    }
}

impl Flushers {
    /// Flushes all devices in parallel; results in their order.
    pub(crate) fn flush_all(&self, devices: &[Arc<Latched>]) -> Vec<Flushed> {
        let Some((first, others)) = devices.split_first() else { return Vec::new() };
        if others.is_empty() {
            return vec![first.flush()];
        }
        let results = devices.iter().map(|_| OnceLock::new()).collect();
        let left = AtomicUsize::new(devices.len());
        let round = Arc::new(Round { results, left, waits: std::thread::current() });
        let part = |nth: usize| Part { round: round.clone(), nth, device: Some(devices[nth].clone()) };
        let given: Vec<Flusher> = (1..devices.len()).filter_map(|nth| self.give(part(nth))).collect();
        part(0).flush();
        round.wait();
        self.idle.lock().extend(given);
        let result = |flushed: &OnceLock<Flushed>| flushed.get().cloned();
        round.results.iter().map(|flushed| result(flushed).expect("a thread that flushes has panicked")).collect()
    }

    /// Has a thread do it, or does it here.
    fn give(&self, part: Part) -> Option<Flusher> {
        let idle = self.idle.lock().pop();
        let Some(flusher) = idle.or_else(Flusher::start) else {
            part.flush();
            return None;
        };
        match flusher.0.send(part) {
            Ok(()) => Some(flusher),
            // Its thread has ended.
            Err(unsent) => {
                unsent.0.flush();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_device::MemDevice;

    use super::*;

    /// A device whose flush panics.
    struct Panics(MemDevice);

    impl Device for Panics {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
            self.0.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
            self.0.write_at(offset, buf)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            panic!("as it should")
        }
        fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
            self.0.discard(offset, len)
        }
        fn set_len(&self, len: u64) -> Result<(), DeviceError> {
            self.0.set_len(len)
        }
        fn name(&self) -> String {
            self.0.name()
        }
        fn read_only(&self) -> bool {
            false
        }
    }

    /// Goal: who waits for a flush that panics does not wait for ever, and others are flushed afterwards. Method: such a device among others, on a
    /// thread of its own and as the first.
    #[test]
    fn a_flush_that_panics() {
        let good = || Arc::new(Latched::new(Arc::new(MemDevice::new(1 << 20))));
        let bad = || Arc::new(Latched::new(Arc::new(Panics(MemDevice::new(1 << 20)))));
        let flushers = Flushers::default();
        for devices in [[good(), bad(), good()], [bad(), good(), good()]] {
            assert!(catch_unwind(AssertUnwindSafe(|| flushers.flush_all(&devices))).is_err());
            for _ in 0..3 {
                assert!(flushers.flush_all(&[good(), good(), good()]).iter().all(Result::is_ok));
            }
        }
    }

    /// Goal: every device is flushed, results are in their order, and threads are used again. Method: three devices, of which one is
    /// refused its flush; many flushes, some in parallel.
    #[test]
    fn threads_are_kept() {
        let good = || Arc::new(Latched::new(Arc::new(MemDevice::new(1 << 20))));
        let devices = [good(), good(), good()];
        let flushers = Flushers::default();
        for _ in 0..20 {
            assert!(flushers.flush_all(&devices).iter().all(Result::is_ok));
        }
        assert_eq!(flushers.idle.lock().len(), 2, "one after the other they need two");
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..50).for_each(|_| assert_eq!(flushers.flush_all(&devices).len(), 3)));
            }
        });
        let kept = flushers.idle.lock().len();
        assert!((2..=8).contains(&kept), "{kept}");
        assert!(flushers.flush_all(&[]).is_empty());
    }
}
