//! The threads of a scrub: one goes through each device, others read what it says and look at it, and whoever runs it waits for them.
//!
//! Of each device at least two parts are under way, so that one is read while another is looked at; more where there are more cores than devices. Rows of
//! many devices are fewer (`buffers`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use oleo_fs::Fs;

use super::run::{Orders, Places, Run, Task};
use super::{Shared, walk};
use crate::JobError;

/// How often the state is kept.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked whether they are done.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Scrubs; `keep` is called every few seconds. What could not be looked at is the error, when all else is done.
pub(super) fn run(fs: &Fs, shared: &Shared, orders: &Orders<'_>, keep: &dyn Fn()) -> Result<(), JobError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let run = Run::new(fs, shared, orders);
    let chunks = run.volume().chunks();
    let left = AtomicUsize::new(orders.devices.len());
    std::thread::scope(|threads| {
        let per_device = cores.div_ceil(orders.devices.len().max(1)) + 1;
        let under_way = per_device * orders.devices.len();
        let places: BTreeMap<_, _> = orders.devices.keys().map(|&devid| (devid, Places::new(per_device))).collect();
        let (jobs, work) = bounded(under_way);
        for _ in 0..under_way {
            let (run, work) = (&run, work.clone());
            threads.spawn(move || {
                let mut buffer = run.buffers().of_thread();
                work.iter().for_each(|given| run.look_at(given, &mut buffer));
            });
        }
        drop(work);
        for (&devid, &from) in &orders.devices {
            let task = Task { devid, jobs: jobs.clone(), places: places.clone() };
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
    shared.buffers.let_go();
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
