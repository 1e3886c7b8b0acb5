//! Helper threads for long requests, so that the threads at the rings stay free.
//!
//! (1) A queue thread [`give`](Helpers::give)s a slot; (2) a helper answers the request in it, (3) puts it into the
//! [`Done`] list of the thread it came from and raises that thread's event; (4) that thread submits the reply, since a
//! ring has one user. Helpers are started when they are needed, at most `threads_max`, and stay.
//!
//! Locks: one mutex for the queue of work, one for each list of slots that are done; never two together, never while
//! answering.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use oleo_device::affinity;
use oleo_lock::{Condvar, Mutex, rank};
use rustix::event::{EventfdFlags, eventfd};

use super::ring::Slot;
use super::{Scratch, answer};
use crate::transport::Handler;

/// Slots on their way back to the thread whose ring they belong to.
pub struct Done {
    /// With whether the request waited for others.
    slots: Mutex<rank::FuseReplies, Vec<(Slot, bool)>>,
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

    /// Empties the list: slots, and whether their requests were said to wait for others.
    pub fn take(&self) -> Vec<(Slot, bool)> {
        std::mem::take(&mut *self.slots.lock())
    }

    fn put(&self, slot: Slot, waited: bool) {
        self.slots.lock().push((slot, waited));
        self.wake();
    }
}

/// A slot with a request, where it goes, and whether the request waits for others.
type Given = (Slot, Arc<Done>, bool);

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
}

impl Helpers {
    /// None yet.
    pub fn new(threads_max: usize, handler: Arc<dyn Handler>) -> Helpers {
        Helpers { work: Mutex::default(), more: Condvar::new(), handler, threads_max: threads_max.max(1) }
    }

    /// Has the request in a slot answered; the slot goes to `done`.
    pub fn give(self: &Arc<Self>, slot: Slot, done: &Arc<Done>) {
        self.push((slot, done.clone(), false));
    }

    /// The same for a request that waits for others.
    pub fn give_waiting(self: &Arc<Self>, slot: Slot, done: &Arc<Done>) {
        self.push((slot, done.clone(), true));
    }

    fn push(self: &Arc<Self>, given: Given) {
        let mut work = self.work.lock();
        work.slots.push_back(given);
        if work.slots.len() > work.idle && work.threads.len() < self.threads_max {
            let helpers = self.clone();
            let name = format!("fuse-help-{}", work.threads.len());
            match std::thread::Builder::new().name(name).spawn(move || helpers.run()) {
                Ok(thread) => work.threads.push(thread),
                Err(_) if !work.threads.is_empty() => {}
                Err(_) => {
                    // Nobody else will.
                    let alone = work.slots.pop_back();
                    drop(work);
                    alone.into_iter().for_each(|given| self.one(given, &mut Scratch::new()));
                    return;
                }
            }
        }
        drop(work);
        self.more.notify_one();
    }

    fn one(&self, (mut slot, done, waits): Given, scratch: &mut Scratch) {
        answer(&*self.handler, &mut slot, scratch);
        done.put(slot, waits);
    }

    fn run(&self) {
        affinity::unbind();
        let mut scratch = Scratch::new();
        let mut work = self.work.lock();
        loop {
            if let Some(given) = work.slots.pop_front() {
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
