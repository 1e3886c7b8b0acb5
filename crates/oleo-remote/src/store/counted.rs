//! A store that counts what is asked of it: each request, those that are repetitions too, bytes, and how long answers take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Answer, Deadline, Op, Store, StoreTime, Ticket};
use crate::error::StoreError;
use crate::host::Host;

#[derive(Default)]
struct Counts {
    gets: AtomicU64,
    puts: AtomicU64,
    conditional_puts: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    conditions: AtomicU64,
    throttled: AtomicU64,
    failures: AtomicU64,
    get_times: Times,
    conditional_times: Times,
}

/// Classes of times: four in each doubling of a microsecond, up to some 18 minutes.
const TIME_CLASSES: usize = 4 * 30;

/// How often something took how long.
struct Times([AtomicU64; TIME_CLASSES]);

impl Default for Times {
    fn default() -> Times {
        Times(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Times {
    fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(4);
        let octave = micros.ilog2() as usize;
        let quarter = ((micros >> (octave - 2)) & 3) as usize;
        self.0[(octave * 4 + quarter).min(TIME_CLASSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Microseconds below which so many of a hundred stayed, rounded up to the class.
    fn below(&self, percent: u64) -> u64 {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let wanted = (counts.iter().sum::<u64>() * percent).div_ceil(100);
        let mut seen = 0;
        let class = counts.iter().position(|count| {
            seen += count;
            seen >= wanted && wanted > 0
        });
        class.map_or(0, |class| (5 + class as u64 % 4) << (class / 4) >> 2)
    }
}

/// See the module's text.
pub struct Counted {
    inner: Arc<dyn Store>,
    host: Arc<dyn Host>,
    counts: Arc<Counts>,
}

impl Counted {
    /// Around a store.
    pub fn new(inner: Arc<dyn Store>, host: Arc<dyn Host>) -> Counted {
        Counted { inner, host, counts: Arc::default() }
    }
}

impl Counts {
    fn asked(&self, op: &Op) {
        let (count, bytes) = match op {
            Op::Get { .. } => (&self.gets, 0),
            Op::Put { body, .. } if op.may_repeat() => (&self.puts, body.len()),
            Op::Put { body, .. } => (&self.conditional_puts, body.len()),
            Op::Delete { .. } => (&self.deletes, 0),
            Op::List { .. } => (&self.lists, 0),
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    fn answered(&self, answer: &Result<Answer, StoreError>) {
        match answer {
            Ok(Answer::Object { body, .. }) => {
                self.bytes_in.fetch_add(body.len() as u64, Ordering::Relaxed);
            }
            Ok(Answer::NotChanged | Answer::Stored(_) | Answer::Deleted | Answer::Listed(_)) => {}
            // What an answer is, and no failure.
            Err(StoreError::Absent) => {}
            Err(StoreError::Condition) => {
                self.conditions.fetch_add(1, Ordering::Relaxed);
            }
            Err(StoreError::Throttled) => {
                self.throttled.fetch_add(1, Ordering::Relaxed);
            }
            Err(
                StoreError::Unknown(_)
                | StoreError::Denied(_)
                | StoreError::NoBucket(_)
                | StoreError::Away(_)
                | StoreError::Wrong(_)
                | StoreError::TimedOut,
            ) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Store for Counted {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        self.counts.asked(&op);
        let (counts, host) = (self.counts.clone(), self.host.clone());
        let times = match &op {
            Op::Get { .. } => Some(false),
            Op::Put { .. } if !op.may_repeat() => Some(true),
            Op::Put { .. } | Op::Delete { .. } | Op::List { .. } => None,
        };
        let begun = host.now();
        let ticket = self.inner.submit(op, deadline);
        Ticket::new(move || {
            let answer = ticket.wait();
            counts.answered(&answer);
            if let Some(is_conditional) = times {
                let times = if is_conditional { &counts.conditional_times } else { &counts.get_times };
                times.add(host.now().saturating_sub(begun));
            }
            answer
        })
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn now(&self) -> Option<StoreTime> {
        self.inner.now()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        vec![
            ("requests: get", get(&counts.gets)),
            ("requests: put", get(&counts.puts)),
            ("requests: put under a condition", get(&counts.conditional_puts)),
            ("requests: delete", get(&counts.deletes)),
            ("requests: list", get(&counts.lists)),
            ("bytes sent to the store", get(&counts.bytes_out)),
            ("bytes that came from it", get(&counts.bytes_in)),
            ("answers: condition not met", get(&counts.conditions)),
            ("answers: slow down", get(&counts.throttled)),
            ("answers: failed or none", get(&counts.failures)),
            ("us to get, median", counts.get_times.below(50)),
            ("us to get, 99 of 100 below", counts.get_times.below(99)),
            ("us to put under a condition, median", counts.conditional_times.below(50)),
            ("us to put under a condition, 99 of 100 below", counts.conditional_times.below(99)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times come out at most a quarter too long, never too short. Method: one long among a hundred of each length.
    #[test]
    fn times() {
        assert_eq!(Times::default().below(50), 0);
        for micros in [4, 5, 7, 8, 100, 1000, 12_345, 60_000_000] {
            let times = Times::default();
            (0..99).for_each(|_| times.add(Duration::from_micros(micros)));
            times.add(Duration::from_secs(u64::MAX));
            for percent in [50, 99] {
                let below = times.below(percent);
                assert!(below > micros && below <= micros * 5 / 4 + 1, "{micros}: {below}");
            }
            assert!(times.below(100) > 60_000_000);
        }
    }
}
