//! What was counted ahead: items and item bytes that a shared count has already, for threads to take in small steps without touching it.
//!
//! Whoever must count something in counts in more ([`Slabs::ahead`]) and puts the rest into the slab of its thread; the next operations there
//! take theirs from it. What is left can be collected at any time ([`Slabs::drain`]) and be counted out again: so nothing is refused because
//! somebody else has something ahead.
//!
//! Invariants: the shared count is what operations have counted in plus what is in the slabs. What is taken was put in once. Items and bytes
//! of one slab are one number, so that they change together.
//! Locks: none. Crash: memory only.

use std::sync::atomic::AtomicU64;

use crate::count::Count;

/// Operations like the one that counts ahead that the rest is enough for, at least.
const OPERATIONS: u64 = 8;
/// One of so many parts of what is counted in already may be ahead of one thread.
const PART: u64 = 1024;
/// Items and bytes that a slab holds at most, so that threads which do nothing more do not keep much. Half of it is the most that is counted ahead in one step.
const ITEMS_MAX: u64 = 1 << 10;
const BYTES_MAX: u64 = 128 << 10;

/// Items and item bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    fn packed(self) -> u64 {
        self.items << 32 | self.bytes
    }

    fn of_packed(packed: u64) -> Amount {
        Amount { items: packed >> 32, bytes: packed & u64::from(u32::MAX) }
    }

    pub(crate) fn plus(self, more: Amount) -> Amount {
        Amount { items: self.items + more.items, bytes: self.bytes + more.bytes }
    }

    fn less(self, less: Amount) -> Option<Amount> {
        Some(Amount { items: self.items.checked_sub(less.items)?, bytes: self.bytes.checked_sub(less.bytes)? })
    }
}

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
struct Slab<C>(C);

/// The slabs of all threads.
pub(crate) struct Slabs<C = AtomicU64>(Box<[Slab<C>]>);

impl<C: Count> Slabs<C> {
    pub(crate) fn new(slabs: usize) -> Slabs<C> {
        Slabs((0..slabs).map(|_| Slab(C::new())).collect())
    }

    /// How much to count ahead beside `need`, if `counted` is counted in.
    pub(crate) fn ahead(need: Amount, counted: Amount) -> Amount {
        let of = |need: u64, counted: u64, max: u64| (need * OPERATIONS).max(counted / PART).min(max / 2);
        Amount { items: of(need.items, counted.items, ITEMS_MAX), bytes: of(need.bytes, counted.bytes, BYTES_MAX) }
    }

    /// Changes a slab, unless `change` does not want to.
    fn change(&self, slab: usize, change: impl Fn(Amount) -> Option<Amount>) -> Option<Amount> {
        let slab = &self.0[slab % self.0.len()].0;
        let mut now = slab.get();
        loop {
            let new = change(Amount::of_packed(now))?;
            match slab.exchange(now, new.packed()) {
                Ok(_) => return Some(Amount::of_packed(now)),
                Err(seen) => now = seen,
            }
        }
    }

    /// Takes so much from a slab, if it has it.
    pub(crate) fn take(&self, slab: usize, amount: Amount) -> bool {
        self.change(slab, |has| has.less(amount)).is_some()
    }

    /// Puts so much into a slab, which the count has; `false` if that would be too much.
    pub(crate) fn put(&self, slab: usize, amount: Amount) -> bool {
        let fits = |has: Amount| has.items <= ITEMS_MAX && has.bytes <= BYTES_MAX;
        self.change(slab, |has| Some(has.plus(amount)).filter(|all| fits(*all))).is_some()
    }

    /// Takes everything from all slabs.
    pub(crate) fn drain(&self) -> Amount {
        (0..self.0.len()).fold(Amount::default(), |all, slab| {
            let has_some = |has: Amount| (has != Amount::default()).then(Amount::default);
            all.plus(self.change(slab, has_some).unwrap_or_default())
        })
    }

    /// What is in all slabs; while others take and put, about that.
    pub(crate) fn left(&self) -> Amount {
        self.0.iter().fold(Amount::default(), |all, slab| all.plus(Amount::of_packed(slab.0.get())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Goal: nothing that is counted ahead is lost or comes twice, and what is collected is enough for who needs it. Method: two threads count in
    /// what they use, ahead of themselves, and out again; a third collects and counts out what is left; in the end the count is what is in
    /// use. A scheduler decides every step.
    #[test]
    fn the_count_is_what_is_used_and_what_is_ahead() {
        use shuttle::sync::atomic::AtomicU64 as Scheduled;
        let model = || {
            let slabs = Arc::new(Slabs::<Scheduled>::new(2));
            let counted = Arc::new(Scheduled::new(0));
            let one = Amount { items: 1, bytes: 2 };
            let mut threads = Vec::new();
            for slab in [0, 1, 1] {
                let (slabs, counted) = (slabs.clone(), counted.clone());
                threads.push(shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        if !slabs.take(slab, one) {
                            counted.add(3);
                            assert!(slabs.put(slab, one.plus(one)));
                        }
                    }
                    // One of the two is over.
                    assert!(slabs.put(slab, one));
                }));
            }
            let (s, c) = (slabs.clone(), counted.clone());
            threads.push(shuttle::thread::spawn(move || {
                let got = s.drain();
                assert_eq!(got.bytes, 2 * got.items, "they change together");
                c.sub(got.items);
            }));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(counted.get(), 3 + slabs.left().items, "three are in use");
            counted.sub(slabs.drain().items);
            assert_eq!((counted.get(), slabs.left()), (3, Amount::default()));
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }

    /// Goal: a slab holds no more than it may, and what does not fit is said so. Method: it is filled.
    #[test]
    fn slabs_are_bounded() {
        let slabs = Slabs::<AtomicU64>::new(1);
        let some = Amount { items: 1, bytes: BYTES_MAX / 4 };
        let fitted = (0..10).filter(|_| slabs.put(0, some)).count();
        assert_eq!((fitted, slabs.left().bytes), (4, BYTES_MAX));
        let need = Amount { items: 5, bytes: 440 };
        let at_first = Slabs::<AtomicU64>::ahead(need, need);
        assert_eq!(at_first, Amount { items: 40, bytes: 3520 });
        let later = Slabs::<AtomicU64>::ahead(need, Amount { items: 100 * PART, bytes: u64::MAX });
        assert_eq!(later, Amount { items: 100, bytes: BYTES_MAX / 2 });
    }
}
