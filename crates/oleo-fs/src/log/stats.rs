//! What fsyncs cost, counted since the file system was opened.
//!
//! Latencies are kept in buckets an eighth of an octave wide, so memory is bounded and a percentile is exact to 9 %.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use oleo_txn::{commits_of_this_thread, fallback};

/// Buckets per octave, as a shift.
const FINE_SHIFT: u32 = 3;
/// One bucket for each number below the first full octave, then so many per octave of 64 bits.
const BUCKETS: usize = (64 - FINE_SHIFT as usize + 1) << FINE_SHIFT;
/// Sizes of batches are counted in octaves: 1, 2, 3 to 4, 5 to 8, … and all larger ones.
const BATCH_OCTAVES: usize = 8;

/// What fsyncs have cost since the file system was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Calls of `fsync` and `fdatasync`.
    pub fsyncs: u64,
    /// Of these, calls that found nothing to write.
    pub idle: u64,
    /// Log commits.
    pub log_commits: u64,
    /// Whole commits in their place.
    pub full_commits: u64,
    /// The same by the rule that asked for them; see the essay of the log.
    pub full_commits_by: Vec<(&'static str, u64)>,
    /// Bytes of tree blocks that log commits wrote.
    pub log_bytes: u64,
    /// Commits and log commits made by calls of `link` and `rename`.
    pub commits_by_link_rename: u64,
    /// How many calls one log commit served: up to 1, 2, 4, … 64, and more.
    pub batches: [u64; BATCH_OCTAVES],
    /// The most calls that one served.
    pub batch_max: u64,
    /// Half of the calls took no longer, nanoseconds.
    pub latency_p50: u64,
    /// 99 of 100 took no longer, nanoseconds.
    pub latency_p99: u64,
    /// The longest, nanoseconds.
    pub latency_max: u64,
}

/// The counters behind [`LogStats`].
pub(crate) struct Counters {
    fsyncs: AtomicU64,
    idle: AtomicU64,
    log_commits: AtomicU64,
    log_bytes: AtomicU64,
    full_by: [AtomicU64; fallback::ALL.len()],
    by_names: AtomicU64,
    batches: [AtomicU64; BATCH_OCTAVES],
    batch_max: AtomicU64,
    latencies: Box<[AtomicU64]>,
    latency_max: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            fsyncs: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            log_commits: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
            full_by: Default::default(),
            by_names: AtomicU64::new(0),
            batches: Default::default(),
            batch_max: AtomicU64::new(0),
            latencies: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            latency_max: AtomicU64::new(0),
        }
    }
}

/// The bucket of a number.
fn bucket(n: u64) -> usize {
    if n < 1 << FINE_SHIFT {
        return n as usize;
    }
    let octave = 63 - n.leading_zeros() - FINE_SHIFT;
    let fine = (n >> octave) as usize;
    ((octave as usize) << FINE_SHIFT) + fine
}

/// The largest number in a bucket.
fn top(bucket: usize) -> u64 {
    let fine = 1 << FINE_SHIFT;
    if bucket < fine {
        return bucket as u64;
    }
    let octave = bucket / fine - 1;
    let first = (fine + bucket % fine) as u128;
    u64::try_from(((first + 1) << octave) - 1).unwrap_or(u64::MAX)
}

/// Counts the commits that a call of `link` or `rename` makes, from its making to its end.
pub(crate) struct Watch<'a> {
    counters: &'a Counters,
    before: u64,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let made = commits_of_this_thread() - self.before;
        if made > 0 {
            self.counters.by_names.fetch_add(made, Relaxed);
        }
    }
}

impl Counters {
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch { counters: self, before: commits_of_this_thread() }
    }

    pub(crate) fn fsync(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.fsyncs.fetch_add(1, Relaxed);
        if let Some(count) = self.latencies.get(bucket(nanos)) {
            count.fetch_add(1, Relaxed);
        }
        self.latency_max.fetch_max(nanos, Relaxed);
    }

    pub(crate) fn idle(&self) {
        self.idle.fetch_add(1, Relaxed);
    }

    pub(crate) fn log_commit(&self, bytes: u64) {
        self.log_commits.fetch_add(1, Relaxed);
        self.log_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn full_commit(&self, rule: &str) {
        if let Some(at) = fallback::ALL.iter().position(|known| *known == rule) {
            self.full_by[at].fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn batch(&self, calls: usize) {
        let octave = calls.max(1).next_power_of_two().trailing_zeros() as usize;
        self.batches[octave.min(BATCH_OCTAVES - 1)].fetch_add(1, Relaxed);
        self.batch_max.fetch_max(calls as u64, Relaxed);
    }

    pub(crate) fn read(&self) -> LogStats {
        let counts: Vec<u64> = self.latencies.iter().map(|n| n.load(Relaxed)).collect();
        let latency_max = self.latency_max.load(Relaxed);
        let quantile = |permille: u64| {
            let all: u64 = counts.iter().sum();
            let want = (all * permille).div_ceil(1000);
            let mut seen = 0;
            let found = counts.iter().position(|n| {
                seen += n;
                seen >= want && seen > 0
            });
            found.map_or(0, |at| top(at).min(latency_max))
        };
        let by: Vec<(&'static str, u64)> =
            fallback::ALL.iter().zip(&self.full_by).map(|(rule, n)| (*rule, n.load(Relaxed))).collect();
        LogStats {
            fsyncs: self.fsyncs.load(Relaxed),
            idle: self.idle.load(Relaxed),
            log_commits: self.log_commits.load(Relaxed),
            full_commits: by.iter().map(|(_, n)| n).sum(),
            full_commits_by: by,
            log_bytes: self.log_bytes.load(Relaxed),
            commits_by_link_rename: self.by_names.load(Relaxed),
            batches: std::array::from_fn(|i| self.batches[i].load(Relaxed)),
            batch_max: self.batch_max.load(Relaxed),
            latency_p50: quantile(500),
            latency_p99: quantile(990),
            latency_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a bucket holds the numbers that it says, and no other.
    /// Method: numbers around every power of two, and the ends: each is at most its bucket's top, and above the top below.
    #[test]
    fn buckets_cover_everything_once() {
        let around = |two: u64| [two - 1, two, two + 1, two + two / 2];
        let near = (0..64).flat_map(|shift| around(1 << shift));
        for n in near.chain([u64::MAX]) {
            let at = bucket(n);
            assert!(at < BUCKETS && n <= top(at), "{n} in bucket {at} up to {}", top(at));
            assert!(at == 0 || n > top(at - 1), "{n} in bucket {at} above {}", top(at - 1));
        }
    }

    #[test]
    fn percentiles_and_batches() {
        let counters = Counters::default();
        (1..=100).for_each(|micros| counters.fsync(Duration::from_micros(micros)));
        [1, 2, 3, 4, 5, 1000].into_iter().for_each(|calls| counters.batch(calls));
        let stats = counters.read();
        assert!((50_000..55_000).contains(&stats.latency_p50), "{}", stats.latency_p50);
        assert!((99_000..=100_000).contains(&stats.latency_p99), "{}", stats.latency_p99);
        assert_eq!((stats.fsyncs, stats.latency_max, stats.batch_max), (100, 100_000, 1000));
        assert_eq!(stats.batches, [1, 1, 2, 1, 0, 0, 0, 1]);
    }
}
