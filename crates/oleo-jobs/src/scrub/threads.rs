//! The threads of a scrub: one reads each device, as many as there are cores look at what was read, and whoever runs it waits for them.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use oleo_fs::Fs;

use super::run::{AHEAD_PER_CORE, Orders, Run, Task};
use super::{Shared, walk};
use crate::JobError;

/// How often the state is kept.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether they are done.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Scrubs; `keep` is called every few seconds. What could not be looked at is the error, when all else is done.
pub(super) fn run(fs: &Fs, shared: &Shared, orders: &Orders<'_>, keep: &dyn Fn()) -> Result<(), JobError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let run = Run::new(fs, shared, orders, cores);
    let chunks = run.volume().chunks();
    let left = AtomicUsize::new(orders.devices.len());
    std::thread::scope(|threads| {
        let (jobs, work) = bounded(cores * AHEAD_PER_CORE);
        for _ in 0..cores {
            let (run, work) = (&run, work.clone());
            threads.spawn(move || work.iter().for_each(|given| run.look_at(given)));
        }
        drop(work);
        for (&devid, &from) in &orders.devices {
            let task = Task { devid, jobs: jobs.clone() };
            let (run, chunks, left) = (&run, &chunks, Leaves(&left, shared));
            threads.spawn(move || {
                let _left = left;
                walk::read_device(run, &task, chunks, from);
            });
        }
        drop(jobs);
        let mut kept = Instant::now();
        while left.load(SeqCst) > 0 {
            std::thread::sleep(LOOK_EVERY);
            if kept.elapsed() >= KEEP_EVERY {
                keep();
                kept = Instant::now();
            }
        }
    });
    run.into_result()
}

/// Counts a thread that ends, however it does: for one that panicked nobody shall wait.
struct Leaves<'a>(&'a AtomicUsize, &'a Shared);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.1.stop.store(true, SeqCst);
        }
        self.0.fetch_sub(1, SeqCst);
    }
}
