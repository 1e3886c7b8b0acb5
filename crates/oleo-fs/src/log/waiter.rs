//! One caller of fsync that waits for its round: parked on a word of its own, so that nobody else is woken with it.

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

/// A caller that waits.
pub(super) struct Waiter {
    word: AtomicU8,
    thread: Thread,
}

impl Waiter {
    /// The calling thread.
    pub(super) fn new() -> Waiter {
        Waiter { word: AtomicU8::new(SILENCE), thread: thread::current() }
    }

    /// Waits for a word; the thread that made it does. After [`Word::Look`] others come.
    pub(super) fn wait(&self) -> Word {
        // A thread may be woken for other reasons.
        loop {
            match self.word.load(Ordering::Acquire) {
                SILENCE => thread::park(),
                look if look == Word::Look as u8 => {
                    // What is said meanwhile counts.
                    if self.word.compare_exchange(look, SILENCE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                        return Word::Look;
                    }
                }
                word if word == Word::Done as u8 => return Word::Done,
                _ => return Word::Failed,
            }
        }
    }

    /// Says a word. Of [`Word::Done`] and [`Word::Failed`] one is said, once, and nothing after it counts.
    pub(super) fn wake(&self, word: Word) {
        if word == Word::Look {
            // Its round may be over by now, by somebody who came first.
            let _ = self.word.compare_exchange(SILENCE, word as u8, Ordering::AcqRel, Ordering::Relaxed);
        } else {
            self.word.store(word as u8, Ordering::Release);
        }
        self.thread.unpark();
    }
}
