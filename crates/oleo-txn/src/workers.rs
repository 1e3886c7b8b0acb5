//! The engine's own threads, for commits and for the computing that file data needs.
//!
//! The threads that rayon shares in a process will not do: callers run operations on those. Such an operation may wait for
//! a lock that a commit holds, or a flush; if the commit then waited for that very thread to do a part of its work,
//! both would wait forever. Nothing waits for a lock of ours on these threads.
//!
//! Commits and data have separate threads, since a thread that waits for the rest of its job takes up another
//! job meanwhile: a read must not have to wait for a whole commit.
//!
//! They are started when they are first needed. What is computed does not depend on how many there are.

use std::sync::OnceLock;

use oleo_device::affinity;
use rayon::{ThreadPool, ThreadPoolBuilder};

pub(crate) struct Workers {
    name: &'static str,
    /// 0: as many as there are cores.
    count: usize,
    /// `None` inside: the system gave no threads; the caller's own does the work.
    pool: OnceLock<Option<ThreadPool>>,
}

impl Workers {
    pub(crate) fn new(name: &'static str, count: usize) -> Workers {
        Workers { name, count, pool: OnceLock::new() }
    }

    fn pool(&self) -> Option<&ThreadPool> {
        let name = self.name;
        let build = || {
            let named = move |n| format!("{name}-{n}");
            let pool = ThreadPoolBuilder::new().num_threads(self.count).thread_name(named);
            pool.start_handler(|_| affinity::unbind()).build().ok()
        };
        self.pool.get_or_init(build).as_ref()
    }

    /// Runs `f`, and what it does in parallel, on these threads.
    pub(crate) fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let Some(pool) = self.pool() else { return f() };
        let carried = oleo_lock::carry();
        let f = || carried.run(f);
        // A thread of another pool would take up another of its jobs while it waits, with our locks held.
        let elsewhere = rayon::current_thread_index().is_some() && pool.current_thread_index().is_none();
        if !elsewhere {
            return pool.install(f);
        }
        let done = std::thread::scope(|scope| scope.spawn(|| pool.install(f)).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    /// Goal: work is done however busy the threads that the process shares are with waiting for it.
    /// Method: more jobs than there are shared threads wait for a lock, which is held here until a piece of work is done,
    /// and each does such a piece with the lock held when its turn comes. An alarm goes off where they wait for
    /// themselves.
    #[test]
    fn shared_threads_may_all_wait() {
        let workers = Arc::new(Workers::new("test", 2));
        let sum = |workers: &Workers| workers.run(|| (0..100_000u64).into_par_iter().map(|x| x * x % 7).sum::<u64>());
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().unwrap();
        let jobs = 4 * rayon::current_num_threads();
        let (said, heard) = mpsc::channel();
        for _ in 0..jobs {
            let (workers, lock, said) = (workers.clone(), lock.clone(), said.clone());
            rayon::spawn(move || {
                said.send(0).unwrap();
                let _held = lock.lock().unwrap();
                said.send(sum(&workers)).unwrap();
            });
        }
        for _ in 0..rayon::current_num_threads() {
            assert_eq!(heard.recv(), Ok(0), "all shared threads are there");
        }
        let main = std::thread::spawn({
            let (workers, said) = (workers.clone(), said);
            move || said.send(sum(&workers)).unwrap()
        });
        let alarm = Duration::from_secs(30);
        let first = heard.recv_timeout(alarm).expect("work waits for those who wait for it");
        main.join().unwrap();
        drop(held);
        let sums = heard.iter().take(2 * jobs - rayon::current_num_threads());
        assert!(first > 0 && sums.filter(|n| *n > 0).all(|n| n == first));
    }
}
