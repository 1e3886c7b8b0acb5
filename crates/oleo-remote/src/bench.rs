//! What operations take on a store, and what they cost: requests and bytes.
//!
//! First the store itself (parts read, objects stored, one object replaced again and again), then a volume that is made below
//! `bench-ID/`: a small flush, a flush of 1 MiB in small pieces as a commit has, one of 1 MiB in one piece, and opening it.
//! Everything is deleted at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oleo_device::Device;

use crate::create::create;
use crate::device::RemoteDevice;
use crate::error::{RemoteError, StoreError};
use crate::host::fill;
use crate::options::StoreOptions;
use crate::store::{Answer, Body, Cond, Deadline, Op, Retry, Store, StoreTime, Ticket, get_part, part_of, put};

/// How often small things are done.
const SMALL_COUNT: usize = 20;
/// And long ones.
const LONG_COUNT: usize = 4;
/// Length of the volume that is made.
const VOLUME_LEN: u64 = 1 << 30;

/// One kind of operation.
#[derive(Clone, PartialEq, Debug)]
pub struct BenchRow {
    /// What was done.
    pub what: &'static str,
    /// How long half of them took at most.
    pub p50: Duration,
    /// How long 99 of 100 took at most; of few, the longest.
    pub p99: Duration,
    /// Requests of one, on average.
    pub requests: f64,
    /// Bytes of one, both ways, on average.
    pub bytes: u64,
}

/// A store below a prefix of another, with counts.
struct Below {
    inner: Arc<dyn Store>,
    prefix: String,
    requests: AtomicU64,
    bytes: Arc<AtomicU64>,
}

impl Store for Below {
    fn submit(&self, mut op: Op, deadline: Deadline) -> Ticket {
        let own = self.prefix.len();
        self.requests.fetch_add(1, Ordering::Relaxed);
        match &mut op {
            Op::Get { key, .. } | Op::Delete { key } => key.insert_str(0, &self.prefix),
            Op::Put { key, body, .. } => {
                key.insert_str(0, &self.prefix);
                self.bytes.fetch_add(body.len(), Ordering::Relaxed);
            }
            Op::List { prefix, after, .. } => {
                prefix.insert_str(0, &self.prefix);
                if !after.is_empty() {
                    after.insert_str(0, &self.prefix);
                }
            }
        }
        let (ticket, bytes) = (self.inner.submit(op, deadline), self.bytes.clone());
        Ticket::new(move || {
            let mut answer = ticket.wait()?;
            match &mut answer {
                Answer::Object { body, .. } => _ = bytes.fetch_add(body.len() as u64, Ordering::Relaxed),
                Answer::Listed(listed) => {
                    listed.iter_mut().for_each(|object| object.key = object.key.get(own..).unwrap_or("").into());
                }
                Answer::NotChanged | Answer::Stored(_) | Answer::Deleted => {}
            }
            Ok(answer)
        })
    }
    fn describe(&self) -> String {
        format!("{}/{}", self.inner.describe(), self.prefix.trim_end_matches('/'))
    }
    fn now(&self) -> Option<StoreTime> {
        self.inner.now()
    }
}

struct Bench<'a> {
    below: Arc<Below>,
    options: &'a StoreOptions,
    rows: Vec<BenchRow>,
}

/// Measures a store; see the module's text.
pub fn bench(store: &Arc<dyn Store>, options: &StoreOptions) -> Result<Vec<BenchRow>, RemoteError> {
    let id = uuid::Uuid::from_bytes(options.host.random()).simple();
    let below = Arc::new(Below {
        inner: Arc::new(Retry::new(store.clone(), options.host.clone())),
        prefix: format!("bench-{id}/"),
        requests: AtomicU64::new(0),
        bytes: Arc::default(),
    });
    let options = StoreOptions { cache: None, ..options.clone() };
    let mut bench = Bench { below, options: &options, rows: Vec::new() };
    let done = bench.store().and_then(|()| bench.volume());
    let cleaned = bench.clean_up();
    done?;
    cleaned?;
    Ok(bench.rows)
}

impl Bench<'_> {
    fn deadline(&self) -> Deadline {
        self.options.host.now() + self.options.bounds.flush_max
    }

    fn noise(&self, len: usize) -> Vec<u8> {
        let mut some = vec![0; 4096];
        fill(&*self.options.host, &mut some);
        some.into_iter().cycle().take(len).collect()
    }

    fn time(
        &mut self,
        what: &'static str,
        count: usize,
        mut one: impl FnMut(&mut Self, usize) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let before = self.counts();
        let mut times = Vec::with_capacity(count);
        for n in 0..count {
            let begun = self.options.host.now();
            one(self, n)?;
            times.push(self.options.host.now() - begun);
        }
        let after = self.counts();
        times.sort_unstable();
        let share = |of: usize| times.get(((count * of).div_ceil(100)).saturating_sub(1)).copied().unwrap_or_default();
        let (p50, p99) = (share(50), share(99));
        let requests = (after.0 - before.0) as f64 / count as f64;
        self.rows.push(BenchRow { what, p50, p99, requests, bytes: (after.1 - before.1) / count as u64 });
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (self.below.requests.load(Ordering::Relaxed), self.below.bytes.load(Ordering::Relaxed))
    }

    fn store(&mut self) -> Result<(), RemoteError> {
        let (long, short) = (self.noise(16 << 20), self.noise(4096));
        let failed = |e| RemoteError::store("measure", "bench", e);
        self.time("put of 16 MiB", LONG_COUNT, |bench, n| {
            let body = Body::from(long.clone());
            put(&*bench.below, &format!("long-{n}"), body, Cond::None, bench.deadline()).map(|_| ()).map_err(failed)
        })?;
        self.time("put of 4 KiB", SMALL_COUNT, |bench, n| {
            let body = Body::from(short.clone());
            put(&*bench.below, &format!("short-{n}"), body, Cond::None, bench.deadline()).map(|_| ()).map_err(failed)
        })?;
        self.time("get of 16 KiB", SMALL_COUNT, |bench, n| {
            let from = (n as u64) << 16;
            let ticket = get_part(&*bench.below, "long-0", from..from + (16 << 10), bench.deadline());
            ticket.wait().and_then(|answer| part_of(answer, 16 << 10)).map(|_| ()).map_err(failed)
        })?;
        let mut cond = Cond::Absent;
        self.time("replacing 4 KiB", SMALL_COUNT, |bench, _| {
            let body = Body::from(bench.noise(4096));
            let version = put(&*bench.below, "replaced", body, cond.clone(), bench.deadline()).map_err(failed)?;
            cond = Cond::Match(version);
            Ok(())
        })
    }

    fn volume(&mut self) -> Result<(), RemoteError> {
        create(self.below.clone(), VOLUME_LEN, false, self.options)?;
        let dev = RemoteDevice::open_writable(self.below.clone(), self.options)?;
        let noise = self.noise(1 << 20);
        let written = |dev: &RemoteDevice, done: Result<(), oleo_device::DeviceError>| match done {
            Ok(()) => Ok(()),
            Err(e) => Err(dev.failure().map_or_else(
                || RemoteError::store("measure", "bench", StoreError::Wrong(e.to_string())),
                |first| (*first).clone(),
            )),
        };
        self.time("flush of 4 KiB", SMALL_COUNT, |_, n| {
            written(&dev, dev.write_at((n as u64) << 20, &noise[..4096]).and_then(|()| dev.flush()))
        })?;
        self.time("flush of 64 times 16 KiB", SMALL_COUNT, |_, n| {
            let place = |part: usize| ((n as u64) << 22) + ((part as u64) << 15) + (256 << 20);
            let mut parts = noise.chunks(16 << 10).enumerate();
            let all = parts.try_for_each(|(part, bytes)| dev.write_at(place(part), bytes));
            written(&dev, all.and_then(|()| dev.flush()))
        })?;
        self.time("flush of 1 MiB", SMALL_COUNT, |_, n| {
            written(&dev, dev.write_at(((n as u64) << 20) + (512 << 20), &noise).and_then(|()| dev.flush()))
        })?;
        dev.close()?;
        self.time("opening to read", LONG_COUNT, |bench, _| {
            RemoteDevice::open(bench.below.clone(), None, bench.options).map(|_| ())
        })
    }

    fn clean_up(&self) -> Result<(), RemoteError> {
        let failed = |e| RemoteError::store("delete", self.below.prefix.clone(), e);
        let mut after = String::new();
        loop {
            let list = Op::List { prefix: String::new(), after: after.clone(), count_max: 1000 };
            let keys: Vec<String> = match self.below.submit(list, self.deadline()).wait().map_err(failed)? {
                Answer::Listed(listed) => listed.into_iter().map(|object| object.key).collect(),
                _ => return Ok(()),
            };
            match keys.last() {
                Some(last) if *last > after => after = last.clone(),
                _ => return Ok(()),
            }
            let delete = |key| self.below.submit(Op::Delete { key }, self.deadline());
            let begun: Vec<Ticket> = keys.into_iter().map(delete).collect();
            begun.into_iter().try_for_each(|ticket| ticket.wait().map(|_| ()).map_err(failed))?;
        }
    }
}
