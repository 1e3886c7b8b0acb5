//! Devices in parallel: one thread each, for as long as the call lasts.
//!
//! Not a thread pool: a caller may hold locks, and a pool thread that waits for its own work may pick up other work,
//! which needs those locks. Starting a thread costs some twenty microseconds, so small work stays on one.

use std::thread;

use oleo_device::affinity;
use oleo_lock::{Mutex, rank};

/// Bytes from which reads and writes of several devices get a thread each.
pub(crate) const PARALLEL_BYTES_MIN: u64 = 256 << 10;

/// Does `work` on each item: the first on this thread, the others on threads of their own if `parallel` and the system
/// has some. Results come in the order of the items.
pub(crate) fn each<T: Send, R: Send>(items: Vec<T>, parallel: bool, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    if items.len() < 2 || !parallel {
        return items.into_iter().map(work).collect();
    }
    let results: Vec<Mutex<rank::ParallelSlot, Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let items: Vec<Mutex<rank::ParallelSlot, Option<T>>> =
        items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let run = |i: usize| {
        let item = items[i].lock().take();
        if let Some(item) = item {
            let result = work(item);
            *results[i].lock() = Some(result);
        }
    };
    thread::scope(|scope| {
        for i in 1..items.len() {
            let run = &run;
            // If no thread can be started, the item stays in its slot.
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                affinity::unbind();
                run(i);
            });
        }
        run(0);
    });
    (0..items.len()).for_each(run);
    results.into_iter().filter_map(Mutex::into_inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order() {
        for parallel in [false, true] {
            assert_eq!(each((0..9).collect(), parallel, |i| i * i), (0..9).map(|i| i * i).collect::<Vec<_>>());
        }
    }
}
