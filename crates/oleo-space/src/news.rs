//! News that threads wait for: that a load has ended, that something held was let go. All groups share one, as it is rare.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::{Condvar, Mutex};

/// Counts news, so that none is missed between looking and waiting.
///
/// 1. Who may have to wait takes [`News::seen`], *then* looks at what it waits for.
/// 2. If that is not so yet it lets go of all locks and calls [`News::wait`] with what it took; then it looks again.
/// 3. Whoever changes such a thing calls [`News::tell`] *after* the change.
#[derive(Default)]
pub(crate) struct News {
    count: AtomicU64,
    waiting: Mutex<()>,
    told: Condvar,
}

impl News {
    /// How much news there was.
    pub(crate) fn seen(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Waits until there is more than `seen`; what it is about, the caller looks.
    pub(crate) fn wait(&self, seen: u64) {
        let mut waiting = self.waiting.lock();
        while self.count.load(SeqCst) == seen {
            self.told.wait(&mut waiting);
        }
    }

    /// Something has changed that somebody may wait for.
    pub(crate) fn tell(&self) {
        let waiting = self.waiting.lock();
        self.count.fetch_add(1, SeqCst);
        drop(waiting);
        self.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Goal: nobody sleeps through news. Method: two threads hand a number to and fro, each waiting for the other's turn; a
    /// turn that were missed would leave both asleep for good.
    #[test]
    fn no_news_is_missed() {
        let (news, turn) = (News::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for own in 0..2 {
                let (news, turn) = (&news, &turn);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        loop {
                            let seen = news.seen();
                            if turn.load(SeqCst) % 2 == own {
                                break;
                            }
                            news.wait(seen);
                        }
                        turn.fetch_add(1, SeqCst);
                        news.tell();
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), 4000);
    }
}
