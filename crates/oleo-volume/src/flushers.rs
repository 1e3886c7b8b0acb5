//! Threads that flush devices, kept from one flush to the next: an fsync flushes twice, and starting a thread for each device but the
//! first would cost more than a flush of a fast device.
//!
//! Normal path: (1) [`Flushers::flush_all`] gives each device but the first to a thread that has nothing to do, or to a new one; (2) it
//! flushes the first itself; (3) it collects the results, and the threads wait for the next flush. So there are as many as flushes have
//! ever needed at a time; they end with the volume.
//!
//! They do nothing but flush, so none of them takes up work that wants the caller's locks.
//!
//! Locks: `idle`, a leaf, for a push or a pop. Crash: see `write`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use oleo_device::{Device, DeviceError, Latched, affinity};
use oleo_lock::{Mutex, rank};

type Flushed = Result<(), DeviceError>;

/// The threads that have nothing to do.
#[derive(Default)]
pub(crate) struct Flushers {
    idle: Mutex<rank::IdleFlushers, Vec<Flusher>>,
}

/// One thread: what it is given and what it returns. It ends when this is dropped.
struct Flusher {
    devices: SyncSender<Arc<Latched>>,
    results: Receiver<Flushed>,
}

impl Flusher {
    /// `None`: the system has no thread for it.
    fn start() -> Option<Flusher> {
        let (devices, given) = sync_channel::<Arc<Latched>>(1);
        let (done, results) = sync_channel(1);
        let run = move || {
            affinity::unbind();
            // Until nobody can give or take any more.
            while let Ok(device) = given.recv() {
                let result = device.flush();
                // Whoever gets the result may be about to close the device.
                drop(device);
                if done.send(result).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("flush".into()).spawn(run).ok()?;
        Some(Flusher { devices, results })
    }
}

impl Flushers {
    /// Flushes all devices in parallel; results in their order.
    pub(crate) fn flush_all(&self, devices: &[Arc<Latched>]) -> Vec<Flushed> {
        let Some((first, others)) = devices.split_first() else { return Vec::new() };
        let given: Vec<Option<Flusher>> = others.iter().map(|device| self.give(device)).collect();
        let mut results = vec![first.flush()];
        for (flusher, device) in given.into_iter().zip(others) {
            let Some(flusher) = flusher else {
                results.push(device.flush());
                continue;
            };
            results.push(flusher.results.recv().expect("a thread that flushes ends when nobody asks it any more"));
            self.idle.lock().push(flusher);
        }
        results
    }

    fn give(&self, device: &Arc<Latched>) -> Option<Flusher> {
        let idle = self.idle.lock().pop();
        let flusher = idle.or_else(Flusher::start)?;
        // It waits for this; were it gone, nothing would have been flushed yet.
        flusher.devices.send(device.clone()).is_ok().then_some(flusher)
    }
}

#[cfg(test)]
mod tests {
    use oleo_device::MemDevice;

    use super::*;

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
