//! What is counted in: items and item bytes, two numbers that many threads add to without a lock.
//!
//! Invariant: if everybody counts in by [`Counted::add_if`] and with one rule that smaller amounts fit, too, then all that are counted in fit together: the
//! last to have added sees what all others have.
//! Locks: none. Crash: memory only.

use std::sync::atomic::AtomicU64;

use crate::count::Count;
use crate::slabs::Amount;

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
pub(crate) struct Counted<C = AtomicU64> {
    items: C,
    bytes: C,
}

impl<C: Count> Counted<C> {
    pub(crate) fn new() -> Self {
        Self { items: C::new(), bytes: C::new() }
    }

    pub(crate) fn add(&self, more: Amount) {
        self.items.add(more.items);
        self.bytes.add(more.bytes);
    }

    pub(crate) fn sub(&self, less: Amount) {
        self.items.sub(less.items);
        self.bytes.sub(less.bytes);
    }

    pub(crate) fn get(&self) -> Amount {
        Amount { items: self.items.get(), bytes: self.bytes.get() }
    }

    /// The items alone, which is cheaper.
    pub(crate) fn items(&self) -> u64 {
        self.items.get()
    }

    /// Counts so much in if `fits` says so of all that is then counted, what others take away again in a moment included.
    pub(crate) fn add_if(&self, more: Amount, fits: impl FnOnce(Amount) -> bool) -> bool {
        self.add(more);
        // Both numbers are read anew: of two who add, each may have been the first with one of them, and then neither sum has all.
        let fits = fits(self.get());
        if !fits {
            self.sub(more);
        }
        fits
    }

    /// Counts in if nothing else is.
    pub(crate) fn add_first(&self, first: Amount) -> bool {
        loop {
            match self.items.exchange(0, first.items) {
                Ok(_) => break,
                // It may fail without a reason.
                Err(0) => {}
                Err(_) => return false,
            }
        }
        self.bytes.add(first.bytes);
        true
    }

    /// Counts everything out. Nobody counts in meanwhile.
    pub(crate) fn take(&self) -> Amount {
        let all = self.get();
        self.sub(all);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shuttle::sync::atomic::AtomicU64 as Scheduled;

    use super::*;

    /// Goal: what is counted in fits, all together. Method: three threads count in amounts that do not all fit, of which some have many items and
    /// others many bytes; who was refused tries once more. A scheduler decides every step.
    #[test]
    fn what_is_counted_in_fits() {
        let fits = |all: Amount| 4 * all.items + all.bytes <= 14;
        let amounts = [Amount { items: 2, bytes: 1 }, Amount { items: 1, bytes: 4 }, Amount { items: 1, bytes: 2 }];
        let model = move || {
            let counted = Arc::new(Counted::<Scheduled>::new());
            let threads = amounts.map(|amount| {
                let counted = counted.clone();
                shuttle::thread::spawn(move || counted.add_if(amount, fits) || counted.add_if(amount, fits))
            });
            let mut all = Amount::default();
            for (thread, amount) in threads.into_iter().zip(amounts) {
                if thread.join().unwrap() {
                    all = all.plus(amount);
                }
            }
            assert_eq!(counted.get(), all, "what was refused is counted out");
            assert!(fits(all), "{all:?} do not fit together");
        };
        shuttle::check_random(model, 5000);
        shuttle::check_pct(model, 5000, 3);
    }

    /// Goal: of one who wants to be the only one and one who counts in, at most one succeeds, if the latter looks for the former after counting in. Method: the
    /// two steps of each, in any order.
    #[test]
    fn alone_or_not() {
        let model = || {
            let counted = Arc::new(Counted::<Scheduled>::new());
            let alone = Arc::new(Scheduled::new(0));
            let one = Amount { items: 1, bytes: 1 };
            let (c, a) = (counted.clone(), alone.clone());
            let other = shuttle::thread::spawn(move || c.add_if(one, |_| a.get() == 0));
            alone.set(1);
            let first = counted.add_first(one);
            let other = other.join().unwrap();
            assert!(!(first && other), "both are counted in");
            assert_eq!(counted.take().items, u64::from(first) + u64::from(other));
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }
}
