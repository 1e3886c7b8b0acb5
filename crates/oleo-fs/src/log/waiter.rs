//! One caller of fsync that waits for its round: parked on a word of its own, so that nobody else is woken with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};

/// What a waiting caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// Nobody leads: it does, unless somebody comes first.
    Look = 1,
    /// Its round is durable.
    Done = 2,
    /// Its round is not.
    Failed = 3,
}

/// Said nothing yet.
const SILENCE: u8 = 0;

/// How a thread is told something and woken. Tests substitute one that `shuttle` schedules.
pub(super) trait Parking {
    /// For the calling thread; nothing has been said.
    fn new() -> Self;
    /// What was said last.
    fn word(&self) -> u8;
    /// Says something instead of `old`; whether that was what had been said.
    fn replace(&self, old: u8, new: u8) -> bool;
    /// Says something, whatever was said before.
    fn say(&self, word: u8);
    /// Waits until the thread is woken, which may be for other reasons.
    fn park();
    /// Wakes the thread.
    fn unpark(&self);
}

/// A thread of the system.
pub(super) struct SystemThread {
    word: AtomicU8,
    thread: Thread,
}

impl Parking for SystemThread {
    fn new() -> SystemThread {
        SystemThread { word: AtomicU8::new(SILENCE), thread: thread::current() }
    }
    fn word(&self) -> u8 {
        self.word.load(Ordering::Acquire)
    }
    fn replace(&self, old: u8, new: u8) -> bool {
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
    fn say(&self, word: u8) {
        self.word.store(word, Ordering::Release);
    }
    fn park() {
        thread::park();
    }
    fn unpark(&self) {
        self.thread.unpark();
    }
}

/// A caller that waits.
pub(super) struct Waiter<P = SystemThread>(P);

/// How a caller's wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// It leads the round that it waited for.
    Leads,
    /// Its round is durable.
    Durable,
    /// Its round is not.
    Failed,
}

impl<P: Parking> Waiter<P> {
    /// The calling thread.
    pub(super) fn new() -> Waiter<P> {
        Waiter(P::new())
    }

    /// Waits for the end of the round; the thread that made it does. If told to look, it asks whether it leads.
    pub(super) fn wait(self: &Arc<Self>, leads: impl Fn(&Arc<Self>) -> bool) -> Ended {
        // Told to look once a round at most.
        loop {
            match self.0.word() {
                SILENCE => P::park(),
                look if look == Word::Look as u8 => {
                    // What is said meanwhile counts.
                    if self.0.replace(look, SILENCE) && leads(self) {
                        return Ended::Leads;
                    }
                }
                word if word == Word::Done as u8 => return Ended::Durable,
                _ => return Ended::Failed,
            }
        }
    }

    /// Says a word. Of [`Word::Done`] and [`Word::Failed`] one is said, once, and nothing after it counts.
    pub(super) fn wake(&self, word: Word) {
        if word == Word::Look {
            // Its round may be over by now, by somebody who came first.
            self.0.replace(SILENCE, word as u8);
        } else {
            self.0.say(word as u8);
        }
        self.0.unpark();
    }
}
