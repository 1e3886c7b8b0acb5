//! Which locks each thread holds, and whether it may take more.
//!
//! Debug builds keep a list per thread: a rank, a key, and where it was taken. A lock is checked before the thread
//! waits for it, so a violation is reported instead of a deadlock, and entered once it is taken. Guards leave the list
//! when they are dropped, in any order. Release builds have no list: [`Held`] is empty, and every function here does
//! nothing.

use std::marker::PhantomData;

#[cfg(debug_assertions)]
use crate::Rank;
use crate::Ranked;

/// The order of several locks of one rank: compared from the first number on.
pub type Key = [u64; 3];

/// That this thread holds a rank, until it is dropped. Guards have one.
pub struct Held<R> {
    #[cfg(debug_assertions)]
    id: u64,
    rank: PhantomData<fn() -> R>,
    /// It stays with its thread.
    _stays: PhantomData<parking_lot::MutexGuard<'static, ()>>,
}

impl<R: Ranked> Held<R> {
    /// Notes that this thread holds the rank from now on, if it may wait for it.
    ///
    /// # Panics
    /// In debug builds if the order of ranks forbids it.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn enter() -> Held<R> {
        Held::<R>::check(None);
        Held::note(None)
    }

    /// Whether this thread may wait for the rank.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn check(key: Option<Key>) {
        #[cfg(debug_assertions)]
        list::check(R::RANK, key, std::panic::Location::caller());
        #[cfg(not(debug_assertions))]
        let _ = key;
    }

    /// Notes that this thread holds the rank, however it was taken.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn note(key: Option<Key>) -> Held<R> {
        #[cfg(not(debug_assertions))]
        let _ = key;
        Held {
            #[cfg(debug_assertions)]
            id: list::push(R::RANK, key, std::panic::Location::caller()),
            rank: PhantomData,
            _stays: PhantomData,
        }
    }

    /// Whether this thread may give the lock up for a while and wait for it again.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn check_again(&self) {
        #[cfg(debug_assertions)]
        list::check_again(self.id, std::panic::Location::caller());
    }
}

#[cfg(debug_assertions)]
impl<R> Drop for Held<R> {
    fn drop(&mut self) {
        list::remove(self.id);
    }
}

/// To be called before a device is read, written, flushed or discarded.
///
/// # Panics
/// In debug builds if this thread holds a lock whose rank forbids I/O.
#[inline]
#[cfg_attr(debug_assertions, track_caller)]
pub fn before_io() {
    #[cfg(debug_assertions)]
    list::check_io(std::panic::Location::caller());
}

/// How many locks were taken so far by all threads, which says how much work was done; `None` in release builds.
#[doc(hidden)]
pub fn taken() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(list::taken());
    #[cfg(not(debug_assertions))]
    None
}

/// What a thread holds that waits for others to do its work: they do it under its locks.
pub struct Carried {
    #[cfg(debug_assertions)]
    entries: Vec<list::Entry>,
}

/// What this thread holds.
pub fn carry() -> Carried {
    Carried {
        #[cfg(debug_assertions)]
        entries: list::all(),
    }
}

impl Carried {
    /// Runs `work` as if this thread held what is carried.
    pub fn run<T>(self, work: impl FnOnce() -> T) -> T {
        #[cfg(debug_assertions)]
        let _held = list::Borrowed::new(self.entries);
        work()
    }
}

#[cfg(debug_assertions)]
mod list {
    use std::cell::{Cell, RefCell};
    use std::panic::Location;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Key, Rank};
    use crate::{Io, Kind};

    #[derive(Clone)]
    pub struct Entry {
        id: u64,
        rank: Rank,
        key: Option<Key>,
        at: &'static Location<'static>,
    }

    thread_local! {
        static HELD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }

    /// Looks at what the thread holds; nothing to see while the thread ends, or unwinds: a second panic would abort.
    fn look<T>(at: impl FnOnce(&[Entry]) -> Option<T>) -> Option<T> {
        if std::thread::panicking() {
            return None;
        }
        HELD.try_with(|held| at(&held.borrow())).ok().flatten()
    }

    /// Why `rank` must not be taken while `held` is.
    fn refusal(held: &Entry, rank: Rank, key: Option<Key>) -> Option<&'static str> {
        if held.rank.entry().kind == Kind::Leaf {
            return Some("nothing is taken under");
        }
        if held.rank != rank {
            return (held.rank > rank).then_some("it comes before");
        }
        match (rank.entry().kind, held.key, key) {
            (Kind::Several(_), Some(first), Some(second)) if first < second => None,
            (Kind::Several(_), _, _) => Some("the keys of several must rise, unlike those of"),
            _ => Some("only one is held at a time of"),
        }
    }

    fn describe(entry: &Entry) -> String {
        let key = entry.key.map(|key| format!(" {key:?}")).unwrap_or_default();
        format!("{}{key}, taken at {}", entry.rank, entry.at)
    }

    #[track_caller]
    pub fn check(rank: Rank, key: Option<Key>, at: &'static Location<'static>) {
        let taken = Entry { id: 0, rank, key, at };
        let found =
            look(|held| held.iter().find_map(|held| Some(format!("{} {}", refusal(held, rank, key)?, describe(held)))));
        if let Some(why) = found {
            panic!("locks out of order: {}: {why}; the order is in docs/locking.md", describe(&taken));
        }
    }

    #[track_caller]
    pub fn check_again(id: u64, at: &'static Location<'static>) {
        let found = look(|held| {
            let own = held.iter().find(|entry| entry.id == id)?;
            let others = held.iter().filter(|entry| entry.id != id);
            let above = others.filter_map(|other| refusal(other, own.rank, own.key).map(|_| other)).next()?;
            Some(format!("{} waits at {at} while it holds {}", describe(own), describe(above)))
        });
        if let Some(why) = found {
            panic!("locks out of order: {why}; the order is in docs/locking.md");
        }
    }

    #[track_caller]
    pub fn check_io(at: &'static Location<'static>) {
        let found = look(|held| held.iter().find(|entry| entry.rank.entry().io == Io::No).map(describe));
        if let Some(held) = found {
            panic!("I/O at {at} under {held}; docs/locking.md says which locks allow it");
        }
    }

    pub fn all() -> Vec<Entry> {
        look(|held| Some(held.to_vec())).unwrap_or_default()
    }

    /// Another thread's entries, until it is dropped.
    pub struct Borrowed(Vec<u64>);

    impl Borrowed {
        pub fn new(entries: Vec<Entry>) -> Borrowed {
            Borrowed(entries.into_iter().map(|entry| push(entry.rank, entry.key, entry.at)).collect())
        }
    }

    impl Drop for Borrowed {
        fn drop(&mut self) {
            self.0.iter().for_each(|&id| remove(id));
        }
    }

    /// How many locks were taken; by all threads.
    static TAKEN: AtomicU64 = AtomicU64::new(0);

    pub fn taken() -> u64 {
        TAKEN.load(Ordering::Relaxed)
    }

    pub fn push(rank: Rank, key: Option<Key>, at: &'static Location<'static>) -> u64 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        let id = NEXT.get();
        NEXT.set(id + 1);
        let _ = HELD.try_with(|held| held.borrow_mut().push(Entry { id, rank, key, at }));
        id
    }

    pub fn remove(id: u64) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(place) = held.iter().rposition(|entry| entry.id == id) {
                held.remove(place);
            }
        });
    }
}
