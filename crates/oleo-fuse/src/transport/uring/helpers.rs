//! Helper threads for long requests, so that the processors of their callers stay free.
//!
//! (1) A queue thread [`give`](Helpers::give)s its slot; (2) a helper answers the request in it, (3) puts it into the
//! [`Done`] list of the thread it came from and raises that thread's event; (4) that thread submits the reply, since a
//! ring has one user. Helpers are started when they are needed, at most `threads_max`, and stay; if all of them are stuck and more
//! requests wait, `stalled` has more started, up to [`RELIEVED_MAX`].
//!
//! Locks: one mutex for the queue of work, one for each list of slots that are done; never two together, never while
//! answering.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use oleo_device::affinity;
use oleo_lock::{Condvar, Mutex, rank};
use rustix::event::{EventfdFlags, eventfd};

use super::ring::Slot;
use super::{Scratch, answer};
use crate::transport::Handler;
use crate::transport::stalled::{Look, Watch};

/// Helpers beyond `threads_max` for requests that a device keeps waiting.
const RELIEVED_MAX: usize = 256;

/// Slots on their way back to the thread whose ring they belong to.
pub struct Done {
    slots: Mutex<rank::FuseReplies, Vec<Slot>>,
    event: Arc<OwnedFd>,
}

impl Done {
    /// An empty list.
    pub fn new() -> io::Result<Done> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Done { slots: Mutex::default(), event: Arc::new(event) })
    }

    /// The event raised when the list is not empty.
    pub fn event(&self) -> Arc<OwnedFd> {
        self.event.clone()
    }

    /// Raises the event.
    pub fn wake(&self) {
        // A full counter counts as raised, too.
        let _ = rustix::io::write(&*self.event, zerocopy::IntoBytes::as_bytes(&1u64));
    }

    /// Empties the list.
    pub fn take(&self) -> Vec<Slot> {
        std::mem::take(&mut *self.slots.lock())
    }

    fn put(&self, slot: Slot) {
        self.slots.lock().push(slot);
        self.wake();
    }
}

/// A slot with a request, and where it goes.
type Given = (Slot, Arc<Done>);

#[derive(Default)]
struct Work {
    slots: VecDeque<Given>,
    /// Threads that wait for work.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

/// The threads and their work.
pub struct Helpers {
    work: Mutex<rank::FuseWork, Work>,
    more: Condvar,
    handler: Arc<dyn Handler>,
    threads_max: usize,
    watch: Watch,
    /// Requests that no helper has taken yet; set with the lock of `work` held.
    left: AtomicUsize,
    answered: AtomicUsize,
}

impl Helpers {
    /// None yet.
    pub fn new(threads_max: usize, handler: Arc<dyn Handler>, watch: Watch) -> Helpers {
        let (left, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let threads_max = threads_max.max(1);
        Helpers { work: Mutex::default(), more: Condvar::new(), handler, threads_max, watch, left, answered }
    }

    /// Has the request in a slot answered; the slot goes to `done`.
    pub fn give(self: &Arc<Self>, slot: Slot, done: &Arc<Done>) {
        let mut work = self.work.lock();
        work.slots.push_back((slot, done.clone()));
        self.left.store(work.slots.len(), Ordering::Release);
        if work.slots.len() > work.idle {
            if work.threads.len() >= self.threads_max {
                self.watch.wake();
            } else if self.start(&mut work).is_err() && work.threads.is_empty() {
                // There is no other thread to do it.
                let alone = work.slots.pop_back();
                self.left.store(work.slots.len(), Ordering::Release);
                drop(work);
                alone.into_iter().for_each(|given| self.one(given, &mut Scratch::new()));
                return;
            }
        }
        drop(work);
        self.more.notify_one();
    }

    fn start(self: &Arc<Self>, work: &mut Work) -> io::Result<()> {
        let helpers = self.clone();
        let name = format!("fuse-help-{}", work.threads.len());
        work.threads.push(std::thread::Builder::new().name(name).spawn(move || helpers.run())?);
        Ok(())
    }

    /// Returns the state that the watching thread compares.
    pub fn look(&self) -> Look {
        Look { free: self.left.load(Ordering::Acquire) == 0, answered: self.answered.load(Ordering::Relaxed) }
    }

    /// Starts another helper if requests wait for one.
    pub fn relieve(self: &Arc<Self>) {
        let mut work = self.work.lock();
        if !work.closed && !work.slots.is_empty() && work.threads.len() < self.threads_max + RELIEVED_MAX {
            // Without another thread the requests wait.
            let _ = self.start(&mut work);
        }
    }

    fn one(&self, (mut slot, done): Given, scratch: &mut Scratch) {
        answer(&*self.handler, &mut slot, scratch);
        self.answered.fetch_add(1, Ordering::Relaxed);
        done.put(slot);
    }

    fn run(&self) {
        affinity::unbind();
        let mut scratch = Scratch::new();
        let mut work = self.work.lock();
        loop {
            if let Some(given) = work.slots.pop_front() {
                self.left.store(work.slots.len(), Ordering::Release);
                drop(work);
                self.one(given, &mut scratch);
                work = self.work.lock();
            } else if work.closed {
                return;
            } else {
                work.idle += 1;
                self.more.wait(&mut work);
                work.idle -= 1;
            }
        }
    }

    /// Ends the threads when they have done what there is.
    pub fn close(&self) {
        let threads = {
            let mut work = self.work.lock();
            work.closed = true;
            std::mem::take(&mut work.threads)
        };
        self.more.notify_all();
        for thread in threads {
            // A panic was caught when the request was answered; nothing else in these threads can fail.
            let _ended = thread.join();
        }
    }
}
