//! Data space that was promised ahead: so that threads which buffer small writes do not all change the counts of the pool.
//!
//! Normal path: a writer takes its promise out of what is ahead for its thread ([`DataAhead::take`]). If that is not enough, more is
//! reserved than it asks for, if there is more, and the rest is ahead. What a promise has left in the end goes back there ([`DataAhead::put`]).
//!
//! Invariants: what is ahead is an ordinary reservation. It is given back ([`DataAhead::release`]) before anybody is refused, and by each freeze;
//! from when space was short to the next freeze nothing is reserved ahead.
//! Locks: one for each of some threads, leaves. Crash: memory only.

use std::sync::atomic::AtomicU64;

use oleo_format::ByteLen;
use oleo_lock::{Mutex, rank};
use oleo_space::{Kind, Refusal, Reservation, Space};

use crate::barrier::{SHARDS, thread_shard};
use crate::count::Count;

/// Bytes reserved ahead. Half of it is the longest promise that is made out of it.
const AHEAD_LEN: u64 = 1 << 20;

/// A part of the space that is reserved; it gives back what is left of it when it is dropped. Tests substitute one.
pub(crate) trait Promise {
    fn left(&self) -> ByteLen;
    fn split(&self, len: ByteLen) -> Self;
    fn join(&self, other: Self);
}

impl Promise for Reservation {
    fn left(&self) -> ByteLen {
        self.left()
    }
    fn split(&self, len: ByteLen) -> Reservation {
        self.split(len)
    }
    fn join(&self, other: Reservation) {
        self.join(other);
    }
}

/// Where promises come from.
pub(crate) trait Pool<P> {
    fn reserve(&self, len: ByteLen) -> Result<P, Refusal>;
}

impl Pool<Reservation> for Space {
    fn reserve(&self, len: ByteLen) -> Result<Reservation, Refusal> {
        self.reserve(Kind::Data, len)
    }
}

/// A lock around what is ahead for a thread. Tests substitute one that `shuttle` schedules.
pub(crate) trait Place: Default {
    type Promise: Promise;
    fn with<A>(&self, f: impl FnOnce(&mut Option<Self::Promise>) -> A) -> A;
    /// Unless it would have to wait.
    fn try_with<A>(&self, f: impl FnOnce(&mut Option<Self::Promise>) -> A) -> Option<A>;
}

impl<P: Promise> Place for Mutex<rank::DataAhead, Option<P>> {
    type Promise = P;
    fn with<A>(&self, f: impl FnOnce(&mut Option<P>) -> A) -> A {
        f(&mut self.lock())
    }
    fn try_with<A>(&self, f: impl FnOnce(&mut Option<P>) -> A) -> Option<A> {
        self.try_lock().map(|mut own| f(&mut own))
    }
}

/// On lines of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Own<L>(L);

pub(crate) struct DataAhead<L = Mutex<rank::DataAhead, Option<Reservation>>, C = AtomicU64> {
    of_threads: Box<[Own<L>]>,
    /// 1: space was short.
    short: C,
}

impl DataAhead {
    pub(crate) fn new() -> DataAhead {
        DataAhead::with(SHARDS)
    }

    /// A promise for this thread, out of what is ahead, or else out of what the groups have: then more is reserved ahead, if there is more.
    pub(crate) fn take(&self, space: &Space, len: ByteLen) -> Result<Reservation, Refusal> {
        self.take_at(thread_shard(), space, len)
    }

    /// What is left of a promise. Never waits: the caller may hold anything.
    pub(crate) fn put(&self, left: Reservation) {
        self.put_at(thread_shard(), left);
    }

    /// Space is short: gives back what is ahead, and nothing is reserved ahead until the next freeze. Whether anything was.
    pub(crate) fn release(&self) -> bool {
        self.release_all()
    }

    /// Joins are blocked: what was reserved ahead for the transaction that ends is given back.
    pub(crate) fn freeze(&self) {
        self.release();
        self.short.set(0);
    }
}

impl<L: Place, C: Count> DataAhead<L, C> {
    fn with(places: usize) -> DataAhead<L, C> {
        DataAhead { of_threads: (0..places).map(|_| Own::default()).collect(), short: C::new() }
    }

    fn is_short(&self) -> bool {
        self.short.get() > 0
    }

    /// No chunk is made for what is only ahead: that is given back before `NeedChunk` is returned. So who makes a chunk, and when, does not
    /// depend on threads.
    fn take_at(&self, place: usize, pool: &impl Pool<L::Promise>, len: ByteLen) -> Result<L::Promise, Refusal> {
        if let Some(promise) = self.take_ahead(place, pool, len)? {
            return Ok(promise);
        }
        match pool.reserve(len) {
            Err(Refusal::NeedChunk(_)) if self.release_all() => pool.reserve(len),
            promise => promise,
        }
    }

    /// `None`: nothing may be ahead, or there is not enough for that.
    fn take_ahead(
        &self,
        place: usize,
        pool: &impl Pool<L::Promise>,
        len: ByteLen,
    ) -> Result<Option<L::Promise>, Refusal> {
        if len.0 > AHEAD_LEN / 2 {
            return Ok(None);
        }
        self.of_threads[place].0.with(|own| {
            // With the lock, so that who releases what is ahead either sees what is reserved here or is seen.
            if self.is_short() {
                return Ok(None);
            }
            if let Some(ahead) = own.as_ref().filter(|ahead| ahead.left() >= len) {
                return Ok(Some(ahead.split(len)));
            }
            let more = match pool.reserve(ByteLen(len.0 + AHEAD_LEN)) {
                Ok(more) => more,
                // It may be enough for what is needed.
                Err(Refusal::NeedChunk(_)) => return Ok(None),
                Err(refusal) => return Err(refusal),
            };
            let promise = more.split(len);
            match own.as_ref() {
                Some(ahead) => ahead.join(more),
                None => *own = Some(more),
            }
            Ok(Some(promise))
        })
    }

    fn put_at(&self, place: usize, left: L::Promise) {
        // What does not fit is dropped outside.
        let _left = self.of_threads[place].0.try_with(|own| {
            let fits = |ahead: &&L::Promise| !self.is_short() && ahead.left() + left.left() <= ByteLen(2 * AHEAD_LEN);
            match own.as_ref().filter(fits) {
                Some(ahead) => {
                    ahead.join(left);
                    None
                }
                None => Some(left),
            }
        });
    }

    fn release_all(&self) -> bool {
        self.short.set(1);
        let mut any = false;
        for own in &self.of_threads {
            any |= own.0.with(Option::take).is_some_and(|ahead| ahead.left().0 > 0);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use shuttle::sync::Mutex as Scheduled;
    use shuttle::sync::atomic::AtomicU64 as Number;

    use super::*;

    const SMALL: u64 = 8192;
    const ALL: u64 = 4 << 20;

    /// Space of which parts are reserved.
    struct Free(Scheduled<u64>);

    struct Part {
        of: Arc<Free>,
        left: Cell<u64>,
    }

    impl Drop for Part {
        fn drop(&mut self) {
            if self.left.get() > 0 {
                *self.of.0.lock().unwrap() += self.left.get();
            }
        }
    }

    impl Promise for Part {
        fn left(&self) -> ByteLen {
            ByteLen(self.left.get())
        }
        fn split(&self, len: ByteLen) -> Part {
            self.left.set(self.left.get() - len.0);
            Part { of: self.of.clone(), left: Cell::new(len.0) }
        }
        fn join(&self, other: Part) {
            self.left.set(self.left.get() + other.left.replace(0));
        }
    }

    impl Pool<Part> for Arc<Free> {
        fn reserve(&self, len: ByteLen) -> Result<Part, Refusal> {
            let mut free = self.0.lock().unwrap();
            *free = free.checked_sub(len.0).ok_or(Refusal::NeedChunk(Kind::Data))?;
            Ok(Part { of: self.clone(), left: Cell::new(len.0) })
        }
    }

    impl Place for Scheduled<Option<Part>> {
        type Promise = Part;
        fn with<A>(&self, f: impl FnOnce(&mut Option<Part>) -> A) -> A {
            f(&mut self.lock().unwrap())
        }
        fn try_with<A>(&self, f: impl FnOnce(&mut Option<Part>) -> A) -> Option<A> {
            self.try_lock().ok().map(|mut own| f(&mut own))
        }
    }

    /// Goal: whoever needs what others have ahead gets it, whenever they reserve it, nothing stays ahead from then on, and nothing is lost.
    /// Method: two writers take small promises, use half of each and put the other half back; a third thread takes all that they have not
    /// promised, which is only there when nothing is ahead. A scheduler decides every step.
    #[test]
    fn nobody_is_refused_for_what_is_ahead() {
        type Ahead = DataAhead<Scheduled<Option<Part>>, Number>;
        let model = || {
            let (free, ahead) = (Arc::new(Free(Scheduled::new(ALL))), Arc::new(Ahead::with(2)));
            let mut threads = Vec::new();
            for place in 0..2 {
                let (free, ahead) = (free.clone(), ahead.clone());
                threads.push(shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        // Refused when all is taken.
                        if let Ok(promise) = ahead.take_at(place, &free, ByteLen(SMALL)) {
                            assert_eq!(promise.left(), ByteLen(SMALL));
                            drop(promise.split(ByteLen(SMALL / 2)));
                            ahead.put_at(place, promise);
                        }
                    }
                }));
            }
            let (f, a) = (free.clone(), ahead.clone());
            threads.push(shuttle::thread::spawn(move || {
                let most = a.take_at(0, &f, ByteLen(ALL - 2 * SMALL));
                assert!(most.is_ok(), "it is there, if nothing is ahead");
                for _ in 0..2 {
                    assert!(a.of_threads.iter().all(|own| own.0.with(|own| own.is_none())), "space is short");
                }
            }));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            ahead.release_all();
            assert_eq!(*free.0.lock().unwrap(), ALL);
        };
        shuttle::check_random(model, 3000);
        shuttle::check_pct(model, 3000, 3);
    }
}
