//! Threads of an engine's own: commits, and the computing that file data needs, run on them.
//!
//! Why not the threads that rayon shares in a process: callers run operations on those. Such an operation may wait for
//! a lock that a commit holds, or a flush; if the commit then waited for that very thread to do a part of its work,
//! neither would get on. Nobody waits for a lock of ours on these threads.
//!
//! Commits and data have threads of their own each, since a thread that waits for the rest of its job takes up another
//! job meanwhile: a read must not have to wait for a whole commit.
//!
//! They are started when they are first needed. What is computed does not depend on how many there are.

use std::sync::OnceLock;

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
            ThreadPoolBuilder::new().num_threads(self.count).thread_name(named).build().ok()
        };
        self.pool.get_or_init(build).as_ref()
    }

    /// Runs `f`, and what it does in parallel, on these threads.
    pub(crate) fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        let Some(pool) = self.pool() else { return f() };
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
    use std::sync::Mutex;

    /// Goal: work is done however busy the process's shared threads are with waiting for it.
    /// Method: every shared thread waits for a lock that is held here until our work is done, which is itself asked for
    /// from a shared thread the second time.
    #[test]
    fn shared_threads_may_all_wait() {
        let shared = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let workers = Workers::new("test", 2);
        let lock = Mutex::new(0u64);
        let sum = |n: u64| {
            workers.run(|| {
                use rayon::prelude::*;
                (0..n).into_par_iter().map(|x| x * x % 7).sum::<u64>()
            })
        };
        let alone = sum(10_000);
        shared.scope(|s| {
            let held = lock.lock().unwrap();
            for _ in 0..2 {
                s.spawn(|_| {
                    let mut found = lock.lock().unwrap();
                    *found += sum(10_000);
                });
            }
            assert_eq!(sum(10_000), alone);
            drop(held);
        });
        assert_eq!(*lock.lock().unwrap(), 2 * alone);
    }
}
