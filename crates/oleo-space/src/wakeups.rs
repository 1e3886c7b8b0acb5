//! Events that threads wait for: a load has ended, something held was released. All groups share one, as they are rare.

use std::sync::atomic::AtomicU64;

use oleo_lock::{Condvar, Mutex, rank};

use crate::atomic::AtomicCell;

/// How threads sleep. Tests substitute one that `shuttle` schedules.
pub(crate) trait Sleep: Default {
    /// Sleeps until `over`, which is looked at with the lock held, and again after each waking.
    fn until(&self, over: impl Fn() -> bool);
    /// Does something with the lock held, and then wakes all.
    fn wake(&self, change: impl FnOnce());
}

/// Locks of the house.
#[derive(Default)]
pub(crate) struct Sleepers {
    waiting: Mutex<rank::Wakeups, ()>,
    changed: Condvar,
}

impl Sleep for Sleepers {
    fn until(&self, over: impl Fn() -> bool) {
        let mut waiting = self.waiting.lock();
        while !over() {
            self.changed.wait(&mut waiting);
        }
    }
    fn wake(&self, change: impl FnOnce()) {
        let waiting = self.waiting.lock();
        change();
        drop(waiting);
        self.changed.notify_all();
    }
}

/// Counts events, so that none is missed between a check and the wait.
///
/// 1. A thread that may have to wait takes [`Wakeups::seen`], *then* checks what it waits for.
/// 2. If that is not so yet it releases all locks and calls [`Wakeups::wait`] with what it took; then it looks again.
/// 3. A thread that changes such a thing calls [`Wakeups::notify`] *after* the change.
pub(crate) struct Wakeups<C = AtomicU64, S = Sleepers> {
    count: C,
    sleepers: S,
}

impl<C: AtomicCell, S: Sleep> Default for Wakeups<C, S> {
    fn default() -> Wakeups<C, S> {
        Wakeups { count: C::new(0), sleepers: S::default() }
    }
}

impl<C: AtomicCell, S: Sleep> Wakeups<C, S> {
    /// How many events there were.
    pub(crate) fn seen(&self) -> u64 {
        self.count.load()
    }

    /// Waits until there is more than `seen`; what it is about, the caller looks.
    pub(crate) fn wait(&self, seen: u64) {
        self.sleepers.until(|| self.count.load() != seen);
    }

    /// Something has changed that somebody may wait for.
    pub(crate) fn notify(&self) {
        self.sleepers.wake(|| {
            self.count.add(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Goal: nobody sleeps through an event. Method: two threads hand a number to and fro, each waiting for the other's turn; a
    /// turn that were missed would leave both asleep for good. (`models` has the same in every order.)
    #[test]
    fn no_wakeup_is_missed() {
        let (wakeups, turn) = (Wakeups::<AtomicU64, Sleepers>::default(), AtomicU32::new(0));
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
