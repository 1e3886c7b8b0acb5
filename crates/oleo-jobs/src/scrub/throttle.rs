//! Bytes a second, of all devices together and of each. What is allowed may change at any time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oleo_format::DevId;
use oleo_lock::{Mutex, rank};

/// How long to sleep before it is looked whether something has changed.
const NAP: Duration = Duration::from_millis(50);

/// When the next byte may be read.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// 0: as many as there are.
    bytes_per_second: u64,
    next: Option<Instant>,
}

impl Pace {
    fn wait(&self, now: Instant) -> Option<Duration> {
        let next = self.next.filter(|_| self.bytes_per_second > 0)?;
        next.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    fn took(&mut self, now: Instant, bytes: u64) {
        if self.bytes_per_second > 0 {
            let lasts = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            // What was not used does not pile up.
            self.next = Some(self.next.map_or(now, |next| next.max(now)) + lasts);
        }
    }

    fn set(&mut self, bytes_per_second: u64) {
        *self = Pace { bytes_per_second, next: None };
    }
}

#[derive(Default)]
struct Paces {
    all: Pace,
    of: BTreeMap<DevId, Pace>,
}

/// See the text of the module.
#[derive(Default)]
pub(super) struct Throttle(Mutex<rank::ScrubRun, Paces>);

impl Throttle {
    /// Sets the limit of a device, or of all together; 0 for none.
    pub fn set(&self, device: Option<DevId>, bytes_per_second: u64) {
        let mut paces = self.0.lock();
        match device {
            None => paces.all.set(bytes_per_second),
            Some(device) => paces.of.entry(device).or_default().set(bytes_per_second),
        }
    }

    /// The limits: of all together, and of devices that have one.
    pub fn limits(&self) -> (u64, BTreeMap<DevId, u64>) {
        let paces = self.0.lock();
        let limited = paces.of.iter().filter(|(_, pace)| pace.bytes_per_second > 0);
        (paces.all.bytes_per_second, limited.map(|(device, pace)| (*device, pace.bytes_per_second)).collect())
    }

    /// Waits until so many bytes of a device may be read; `false` if it is to stop before.
    pub fn take(&self, device: DevId, bytes: u64, goes_on: &dyn Fn() -> bool) -> bool {
        while goes_on() {
            let now = Instant::now();
            let wait = {
                let mut paces = self.0.lock();
                let of = paces.of.get(&device).and_then(|pace| pace.wait(now));
                let wait = of.max(paces.all.wait(now));
                if wait.is_none() {
                    paces.all.took(now, bytes);
                    if let Some(pace) = paces.of.get_mut(&device) {
                        pace.took(now, bytes);
                    }
                }
                wait
            };
            match wait {
                None => return true,
                Some(wait) => std::thread::sleep(wait.min(NAP)),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no more is let through than allowed, of one device and of all, and a change counts for who waits already.
    /// Method: many small takes against the clock; a limit that would take minutes, lifted from another thread.
    #[test]
    fn limits_hold_and_change() {
        let throttle = Throttle::default();
        let timed = |devices: &[u64], each: u64, times: usize| {
            let began = Instant::now();
            (0..times).for_each(|nth| assert!(throttle.take(DevId(devices[nth % devices.len()]), each, &|| true)));
            began.elapsed()
        };
        assert!(timed(&[1], 1 << 20, 100) < Duration::from_secs(30));
        throttle.set(Some(DevId(1)), 1 << 20);
        assert!(timed(&[1], 64 << 10, 9) >= Duration::from_millis(500));
        assert!(timed(&[2], 1 << 20, 100) < Duration::from_secs(30), "another device has no limit");
        throttle.set(None, 2 << 20);
        assert!(timed(&[2, 3], 128 << 10, 9) >= Duration::from_millis(500), "both together");
        assert_eq!(throttle.limits(), (2 << 20, BTreeMap::from([(DevId(1), 1 << 20)])));
        throttle.set(None, 1);
        assert!(throttle.take(DevId(2), 600, &|| true), "the first is free");
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| throttle.take(DevId(2), 1, &|| true));
            std::thread::sleep(Duration::from_millis(100));
            throttle.set(None, 0);
            assert!(waits.join().unwrap());
        });
        throttle.set(None, 1);
        assert!(throttle.take(DevId(2), 600, &|| true) && !throttle.take(DevId(2), 600, &|| false), "told to stop");
    }
}
