//! How many bytes are buffered: a count that threads add to without meeting.
//!
//! Each thread counts for itself and adds to what all share when it has come to [`BufferedBytes::step`]. So the shared count is wrong by as much for
//! each of the places of threads, up or down; their sum is right.
//! Locks: none. Crash: memory only.

use std::sync::atomic::{AtomicI64, Ordering};

use oleo_txn::thread_number;

/// More threads than that share lines.
const PLACES: usize = 64;
/// All places together may have one of so many parts of the limit that is compared with.
const PART: u64 = 16;
/// A smaller step does not pay.
const STEP_MIN: u64 = 16 << 10;

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Place(AtomicI64);

pub(super) struct BufferedBytes {
    shared: Place,
    of_threads: Box<[Place]>,
    /// Bytes from which on a place is added to what all share; 0: each time.
    step: u64,
}

impl BufferedBytes {
    /// A count that is compared with a limit.
    pub(super) fn new(limit: u64) -> BufferedBytes {
        let step = limit / PART / PLACES as u64;
        BufferedBytes {
            shared: Place::default(),
            of_threads: (0..PLACES).map(|_| Place::default()).collect(),
            step: if step < STEP_MIN { 0 } else { step },
        }
    }

    pub(super) fn add(&self, bytes: i64) {
        if self.step == 0 {
            self.shared.0.fetch_add(bytes, Ordering::Relaxed);
            return;
        }
        let own = &self.of_threads[thread_number() % PLACES].0;
        let sum = own.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        if sum.unsigned_abs() >= self.step {
            // Another thread with this place may have taken some meanwhile: then it was added, too.
            self.shared.0.fetch_add(own.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The sum, but for what threads have not added yet.
    pub(super) fn about(&self) -> u64 {
        u64::try_from(self.shared.0.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// The sum; while others add, as of some moment of each of them.
    pub(super) fn sum(&self) -> u64 {
        let all = self.of_threads.iter().map(|place| place.0.load(Ordering::Relaxed)).sum::<i64>();
        u64::try_from(self.shared.0.load(Ordering::Relaxed) + all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
