//! Other threads for those that a device keeps waiting.
//!
//! Any request may have to read from a device: a look-up of a name, the attributes of a file, a listing. As a rule
//! it takes as long as memory does, and waking another thread for each request would cost more than the answer. A device that
//! does not answer keeps such a request, and its thread, for up to a minute. So each thread answers the requests that it
//! takes, and a watching thread finds out if all of them are stuck:
//!
//! 1. A [`Crew`] counts its threads that wait for a request, and the requests that were answered.
//! 2. A thread that takes a request and leaves no thread waiting calls [`Watch::wake`], which wakes the watching thread unless it is awake.
//! 3. The watching thread looks each [`TICK`]. If no thread waits, and none has answered anything since the last look, the crew gets
//!    another thread. After [`QUIET`] looks at which a thread waited it sleeps again.
//!
//! The request does not say beforehand: a thread may wait for the device, for a lock of a thread that does, or for one that reads the same block.
//!
//! Invariants: a crew that has fewer threads than its limit takes requests again after two looks at most. A request costs two additions
//! while no crew is stuck. Bounds: `Relief::relieve` decides how many threads there may be; with as many requests stuck, all
//! others wait. Locks: none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use oleo_device::affinity;

/// How long a crew may be stuck before it is seen: a hundred times what a request takes.
const TICK: Duration = Duration::from_millis(5);
/// Looks without anything to see before the watching thread sleeps.
const QUIET: usize = 20;

/// The counts of threads that answer one request each at a time.
#[derive(Default)]
pub struct Crew {
    /// That wait for a request, or are on their way to.
    waiting: AtomicUsize,
    /// Requests that were answered, modulo 2⁶⁴ or less.
    answered: AtomicUsize,
}

impl Crew {
    /// A thread is about to wait for a request.
    pub fn waits(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// A thread has a request, or has stopped to wait. How many others wait.
    pub fn takes(&self) -> usize {
        self.waiting.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// A request was answered.
    pub fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// How many wait for a request.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Returns the state that the watching thread compares.
    pub fn look(&self) -> Look {
        Look { free: self.waiting() > 0, answered: self.answered.load(Ordering::Relaxed) }
    }
}

/// How a crew is at some moment.
#[derive(Clone, Copy)]
pub struct Look {
    /// The next request, or the one that waits for a thread, finds one.
    pub free: bool,
    /// Requests that were answered.
    pub answered: usize,
}

/// Threads that can be relieved.
pub trait Relief: Send + Sync {
    /// A look at the crew.
    fn look(&self) -> Look;
    /// Starts another thread, unless there are as many as there may be.
    fn relieve(self: Arc<Self>);
}

#[derive(Default)]
struct Shared {
    awake: AtomicBool,
    over: AtomicBool,
}

/// Wakes the watching thread.
#[derive(Clone)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Watch {
    /// Wakes the watching thread: no thread waits.
    #[inline]
    pub fn wake(&self) {
        // Only read, mostly.
        if !self.shared.awake.load(Ordering::Relaxed) && !self.shared.awake.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

/// The watching thread; it ends when this is dropped.
pub struct Watching {
    watch: Watch,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    /// Starts it. `of` makes the threads that it watches.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start<R: Relief + 'static>(of: impl FnOnce(Watch) -> Arc<R> + Send) -> io::Result<(Arc<R>, Watching)> {
        let shared = Arc::<Shared>::default();
        let (give, take) = std::sync::mpsc::channel::<Arc<R>>();
        let thread = std::thread::Builder::new().name("fuse-watch".to_owned()).spawn({
            let shared = shared.clone();
            move || {
                affinity::unbind();
                if let Ok(relief) = take.recv() {
                    watch(&shared, &relief);
                }
            }
        })?;
        let watch = Watch { shared, thread: thread.thread().clone() };
        let relief = of(watch.clone());
        // The thread ends only after this.
        let _ = give.send(relief.clone());
        Ok((relief, Watching { watch, thread: Some(thread) }))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.shared.over.store(true, Ordering::Release);
        self.watch.thread.unpark();
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn watch<R: Relief>(shared: &Shared, relief: &Arc<R>) {
    let is_over = || shared.over.load(Ordering::Acquire);
    // How many requests were answered at the last look, if no thread waited then.
    let mut seen = None;
    while !is_over() {
        if !shared.awake.load(Ordering::Acquire) {
            std::thread::park();
            continue;
        }
        let mut quiet = 0;
        while quiet < QUIET && !is_over() {
            std::thread::park_timeout(TICK);
            let look = relief.look();
            quiet = if look.free { quiet + 1 } else { 0 };
            if is_stuck(look, &mut seen) {
                relief.clone().relieve();
            }
        }
        // A thread that leaves no thread waiting after this store wakes it again; the look below sees those before it.
        shared.awake.store(false, Ordering::Release);
        if !relief.look().free {
            shared.awake.store(true, Ordering::Release);
        }
    }
}

/// Whether no thread waits, and none has answered anything since the last look.
fn is_stuck(look: Look, seen: &mut Option<usize>) -> bool {
    let answered = (!look.free).then_some(look.answered);
    let before = std::mem::replace(seen, answered);
    answered.is_some() && before == answered
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use oleo_lock::{Mutex, rank};

    use super::*;

    /// Goal: only a crew without a waiting thread that has answered nothing since the last look is stuck. Method: looks after each step of one.
    #[test]
    fn crews_that_answer_are_not_stuck() {
        let crew = Crew::default();
        let mut seen = None;
        let mut look = || (is_stuck(crew.look(), &mut seen), crew.waiting());
        crew.waits();
        crew.waits();
        assert_eq!(look(), (false, 2));
        assert_eq!(crew.takes(), 1);
        assert_eq!((look(), look()), ((false, 1), (false, 1)));
        assert_eq!(crew.takes(), 0);
        assert_eq!((look(), look()), ((false, 0), (true, 0)));
        crew.answered();
        assert_eq!((look(), look()), ((false, 0), (true, 0)));
        crew.waits();
        assert_eq!(look(), (false, 1));
        assert_eq!(crew.takes(), 0);
        assert_eq!((look(), look()), ((false, 0), (true, 0)));
    }

    /// Threads that are given work by a channel, as a transport's are by the kernel.
    struct Pool {
        crew: Crew,
        watch: Watch,
        left: AtomicUsize,
        work: std::sync::Mutex<mpsc::Receiver<Box<dyn FnOnce() + Send>>>,
        threads: Mutex<rank::FusePool, Vec<JoinHandle<()>>>,
    }

    impl Pool {
        fn start(self: &Arc<Self>) {
            let pool = self.clone();
            let thread = std::thread::spawn(move || {
                loop {
                    pool.crew.waits();
                    let work = pool.work.lock().unwrap().recv();
                    if pool.crew.takes() == 0 {
                        pool.watch.wake();
                    }
                    let Ok(work) = work else { return };
                    work();
                    pool.crew.answered();
                }
            });
            self.threads.lock().push(thread);
        }
    }

    impl Relief for Pool {
        fn look(&self) -> Look {
            self.crew.look()
        }
        fn relieve(self: Arc<Self>) {
            if self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok() {
                self.start();
            }
        }
    }

    /// Goal: work that is stuck does not keep other work waiting, up to the bound. Method: one thread; eleven pieces of work that wait until the
    /// end, each followed by one that does not; then more that wait than there may be threads.
    #[test]
    fn crews_that_are_stuck_are_relieved() {
        const EXTRA: usize = 12;
        let (work, taken) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (pool, watching) = Watching::start(|watch| {
            Arc::new(Pool {
                crew: Crew::default(),
                watch,
                left: AtomicUsize::new(EXTRA),
                work: std::sync::Mutex::new(taken),
                threads: Mutex::default(),
            })
        })
        .unwrap();
        pool.start();
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let stick = || {
            let gate = gate.clone();
            let wait = move || {
                let _ = gate.lock().unwrap().recv();
            };
            work.send(Box::new(wait)).unwrap();
        };
        let ask = || {
            let (done, is_done) = mpsc::channel();
            work.send(Box::new(move || done.send(()).unwrap())).unwrap();
            is_done
        };
        for _ in 0..EXTRA - 1 {
            stick();
            ask().recv_timeout(Duration::from_secs(20)).unwrap();
        }
        stick();
        stick();
        let late = ask();
        assert!(late.recv_timeout(20 * TICK).is_err(), "there are as many threads as there may be");
        assert_eq!(pool.left.load(Ordering::Acquire), 0);
        drop(open);
        late.recv_timeout(Duration::from_secs(20)).unwrap();
        drop((work, watching));
        let threads = std::mem::take(&mut *pool.threads.lock());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
