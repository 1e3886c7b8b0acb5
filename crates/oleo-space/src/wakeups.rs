//! Events that threads wait for: a load has ended, something held was released. All groups share one, as they are rare.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use oleo_lock::{Condvar, Mutex, rank};

/// Counts events, so that none is missed between a check and the wait.
///
/// 1. A thread that may have to wait takes [`Wakeups::seen`], *then* checks what it waits for.
/// 2. If that is not so yet it releases all locks and calls [`Wakeups::wait`] with what it took; then it looks again.
/// 3. A thread that changes such a thing calls [`Wakeups::notify`] *after* the change.
#[derive(Default)]
pub(crate) struct Wakeups {
    count: AtomicU64,
    waiting: Mutex<rank::Wakeups, ()>,
    changed: Condvar,
}

impl Wakeups {
    /// How many events there were.
    pub(crate) fn seen(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Waits until there is more than `seen`; what it is about, the caller looks.
    pub(crate) fn wait(&self, seen: u64) {
        let mut waiting = self.waiting.lock();
        while self.count.load(SeqCst) == seen {
            self.changed.wait(&mut waiting);
        }
    }

    /// Something has changed that somebody may wait for.
    pub(crate) fn notify(&self) {
        let waiting = self.waiting.lock();
        self.count.fetch_add(1, SeqCst);
        drop(waiting);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Goal: nobody sleeps through an event. Method: two threads hand a number to and fro, each waiting for the other's turn; a
    /// turn that were missed would leave both asleep for good.
    #[test]
    fn no_wakeup_is_missed() {
        let (wakeups, turn) = (Wakeups::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for own in 0..2 {
                let (wakeups, turn) = (&wakeups, &turn);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        loop {
                            let seen = wakeups.seen();
                            if turn.load(SeqCst) % 2 == own {
                                break;
                            }
                            wakeups.wait(seen);
                        }
                        turn.fetch_add(1, SeqCst);
                        wakeups.notify();
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), 4000);
    }
}
