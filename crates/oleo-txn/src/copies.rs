//! A value behind a lock, of which threads keep copies of parts: a copy is used again, without the lock, while the value is unchanged.
//!
//! (1) [`Counted::copy`] takes a part under the lock, with how many changes there were; (2) who has a copy asks [`Counted::is_newest`], which only
//! reads; (3) [`Counted::change`] changes the value and counts that, both under the lock.
//!
//! Invariants: a change that has returned is seen by whoever asks from then on. The count is read under the lock, so it is never newer than
//! the part that it is kept with; it is raised before the change returns, and not before the lock is taken.
//! Locks: the value's, for the caller's closure.

use std::sync::atomic::AtomicU64;

use oleo_lock::{Ranked, RwLock};

use crate::count::Count;

/// The lock. Tests substitute one that `shuttle` schedules.
pub(crate) trait Guarded {
    type Value;
    fn look<A>(&self, f: impl FnOnce(&Self::Value) -> A) -> A;
    fn edit<A>(&self, f: impl FnOnce(&mut Self::Value) -> A) -> A;
}

impl<R: Ranked, T> Guarded for RwLock<R, T> {
    type Value = T;
    fn look<A>(&self, f: impl FnOnce(&T) -> A) -> A {
        f(&self.read())
    }
    fn edit<A>(&self, f: impl FnOnce(&mut T) -> A) -> A {
        f(&mut self.write())
    }
}

/// A part of the value, as of so many changes.
pub(crate) struct Copied<P> {
    changes: u64,
    pub(crate) part: P,
}

pub(crate) struct Counted<L, C = AtomicU64> {
    changes: C,
    /// For looks that keep nothing, and for what is filled in: no copy can be of what was not there.
    pub(crate) value: L,
}

impl<L: Guarded, C: Count> Counted<L, C> {
    pub(crate) fn new(value: L) -> Counted<L, C> {
        Counted { changes: C::new(), value }
    }

    /// Changes the value.
    pub(crate) fn change<A>(&self, f: impl FnOnce(&mut L::Value) -> A) -> A {
        self.value.edit(|value| {
            let result = f(value);
            self.changes.add(1);
            result
        })
    }

    /// A part of it, if there is one, to be kept.
    pub(crate) fn copy<P>(&self, part: impl FnOnce(&L::Value) -> Option<P>) -> Option<Copied<P>> {
        self.value.look(|value| {
            let changes = self.changes.get();
            part(value).map(|part| Copied { changes, part })
        })
    }

    /// Whether the value has not been changed since the copy was made.
    pub(crate) fn is_newest<P>(&self, copied: &Copied<P>) -> bool {
        copied.changes == self.changes.get()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    impl<T> Guarded for shuttle::sync::RwLock<T> {
        type Value = T;
        fn look<A>(&self, f: impl FnOnce(&T) -> A) -> A {
            f(&self.read().unwrap())
        }
        fn edit<A>(&self, f: impl FnOnce(&mut T) -> A) -> A {
            f(&mut self.write().unwrap())
        }
    }

    /// Goal: a change that is over is seen by all who look from then on, whatever they keep, and nobody goes back to an older value.
    /// Method: two threads raise a number three times in all and say how far they have come; two others look at it again and again as the roots
    /// of trees are looked at, and keep what they saw. A scheduler decides every step.
    #[test]
    fn what_is_kept_is_never_older_than_a_change() {
        use shuttle::sync::atomic::AtomicU64 as Scheduled;
        let model = || {
            let number = Arc::new(Counted::<_, Scheduled>::new(shuttle::sync::RwLock::new(0u64)));
            let over = Arc::new(Scheduled::new(0));
            let mut threads = Vec::new();
            for changes in [2, 1] {
                let (number, over) = (number.clone(), over.clone());
                threads.push(shuttle::thread::spawn(move || {
                    for _ in 0..changes {
                        number.change(|number| *number += 1);
                        over.add(1);
                    }
                }));
            }
            for _ in 0..2 {
                let (number, over) = (number.clone(), over.clone());
                threads.push(shuttle::thread::spawn(move || {
                    let (mut kept, mut last) = (None, 0);
                    for _ in 0..4 {
                        let least = over.get().max(last);
                        let copied = match kept.take() {
                            Some(copied) if number.is_newest(&copied) => copied,
                            _ => number.copy(|number| Some(*number)).unwrap(),
                        };
                        assert!(copied.part >= least, "{} is older than {least}", copied.part);
                        last = copied.part;
                        kept = Some(copied);
                    }
                }));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }
}
