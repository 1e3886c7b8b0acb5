//! How many bytes are buffered: a count that threads add to without meeting.
//!
//! Each thread counts for itself and adds to what all share when it has come to [`BufferedBytes::step`]. So the shared count is wrong by as much for
//! each of the places of threads, up or down; their sum is right.
//! Locks: none. Crash: memory only.

use std::sync::atomic::{AtomicI64, Ordering};

use oleo_txn::thread_number;

/// The number that threads add to. Tests substitute one whose every step `shuttle`'s scheduler decides.
pub(super) trait Sum: Default {
    /// What it was.
    fn add(&self, bytes: i64) -> i64;
    /// Takes all of it.
    fn take(&self) -> i64;
    fn get(&self) -> i64;
}

macro_rules! sum {
    ($atomic:ty) => {
        impl Sum for $atomic {
            fn add(&self, bytes: i64) -> i64 {
                self.fetch_add(bytes, Ordering::Relaxed)
            }
            fn take(&self) -> i64 {
                self.swap(0, Ordering::Relaxed)
            }
            fn get(&self) -> i64 {
                self.load(Ordering::Relaxed)
            }
        }
    };
}

sum!(AtomicI64);
#[cfg(test)]
sum!(shuttle::sync::atomic::AtomicI64);

/// More threads than that share lines.
const PLACES: usize = 64;
/// All places together may have one of so many parts of the limit that is compared with.
const PART: u64 = 16;
/// A smaller step does not pay.
const STEP_MIN: u64 = 16 << 10;

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Place<S>(S);

pub(super) struct BufferedBytes<S = AtomicI64> {
    shared: Place<S>,
    of_threads: Box<[Place<S>]>,
    /// Bytes from which on a place is added to what all share; 0: each time.
    step: u64,
}

impl BufferedBytes {
    /// A count that is compared with a limit.
    pub(super) fn new(limit: u64) -> BufferedBytes {
        let step = limit / PART / PLACES as u64;
        BufferedBytes::with(PLACES, if step < STEP_MIN { 0 } else { step })
    }

    pub(super) fn add(&self, bytes: i64) {
        self.add_at(thread_number() % PLACES, bytes);
    }
}

impl<S: Sum> BufferedBytes<S> {
    fn with(places: usize, step: u64) -> BufferedBytes<S> {
        BufferedBytes { shared: Place::default(), of_threads: (0..places).map(|_| Place::default()).collect(), step }
    }

    fn add_at(&self, place: usize, bytes: i64) {
        if self.step == 0 {
            self.shared.0.add(bytes);
            return;
        }
        let own = &self.of_threads[place].0;
        let sum = own.add(bytes).wrapping_add(bytes);
        if sum.unsigned_abs() >= self.step {
            // Another thread with this place may have taken some meanwhile: then it was added, too.
            self.shared.0.add(own.take());
        }
    }

    /// The sum, but for what threads have not added yet.
    pub(super) fn about(&self) -> u64 {
        u64::try_from(self.shared.0.get()).unwrap_or(0)
    }

    /// The sum; while others add, as of some moment of each of them.
    pub(super) fn sum(&self) -> u64 {
        let all = self.of_threads.iter().map(|place| place.0.get()).sum::<i64>();
        u64::try_from(self.shared.0.get() + all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Goal: nothing is lost or counted twice when threads share a place. Method: three threads, two in one place, add and take away so that places are
    /// added to what all share in between; under a scheduler that decides every step, at random and with few ill-timed interruptions.
    #[test]
    fn places_are_shared_without_loss() {
        let model = || {
            let bytes = Arc::new(BufferedBytes::<shuttle::sync::atomic::AtomicI64>::with(2, 10));
            let threads = [(0, 7), (1, 4), (1, 9)].map(|(place, n)| {
                let bytes = bytes.clone();
                shuttle::thread::spawn(move || {
                    for part in [n, n, -n, n] {
                        bytes.add_at(place, part);
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(bytes.sum(), 40);
            assert!(bytes.about().abs_diff(40) < 2 * bytes.step);
        };
        shuttle::check_random(model, 2000);
        shuttle::check_pct(model, 2000, 3);
    }

    /// Goal: the sum is right when nobody adds, and what is compared with the limit is never further from it than said. Method: threads add and take
    /// away, one more than the others; limits for which each counts ahead, and one for which none does.
    #[test]
    fn the_sum_is_right() {
        for limit in [1 << 20, 128 << 20, 1 << 40] {
            let bytes = BufferedBytes::new(limit);
            std::thread::scope(|s| {
                for n in 1..=8 {
                    let bytes = &bytes;
                    s.spawn(move || {
                        for step in 0..1000 {
                            bytes.add(8192 * n);
                            if step % 10 > 0 {
                                bytes.add(-8192 * n);
                            }
                        }
                    });
                }
            });
            let want = 100 * 8192 * (1..=8).sum::<u64>();
            assert_eq!(bytes.sum(), want);
            assert!(bytes.about().abs_diff(want) <= limit / PART, "{} of {want}", bytes.about());
        }
        assert_eq!(BufferedBytes::new(1 << 20).step, 0);
    }
}
