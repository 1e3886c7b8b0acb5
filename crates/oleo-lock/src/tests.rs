use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;

/// Ranks of the table that the tests borrow, in their order.
type Low = rank::Moving;
type Middle = rank::FileFlush;
type High = rank::Commit;
type Leaf = rank::DirtyFiles;

const LOW: Rank = Rank::Moving;
const HIGH: Rank = Rank::Commit;

fn mutex<R>() -> Mutex<R, u32> {
    Mutex::new(0)
}

/// The message of a refusal; `None` if nothing is refused.
fn refusal<T>(work: impl FnOnce() -> T) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(work()))).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

/// Goal: locks are taken in rising rank and in no other order; the message of a refusal names both and where each was
/// taken. Method: two ranks in both orders, mutexes and read-write locks.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn ranks_rise() {
    assert!(LOW < Rank::FileFlush && Rank::FileFlush < HIGH);
    let (low, high) = (mutex::<Low>(), mutex::<High>());
    let (shared_low, shared_high) = (RwLock::<Low, u32>::default(), RwLock::<High, u32>::default());
    {
        let _low = low.lock();
        let _high = high.lock();
    }
    {
        let _high = high.lock();
        let line = line!() - 1;
        let why = refusal(|| low.lock()).expect("refused");
        for part in ["Moving (`Core::moving`)", "Commit (`Inner::commit_lock`)", &format!("tests.rs:{line}:")] {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert_eq!(why.matches("tests.rs:").count(), 2, "{why}");
        assert!(refusal(|| shared_low.read()).is_some());
        assert!(refusal(|| shared_low.write()).is_some());
        assert!(refusal(|| low.try_lock_for(Duration::from_millis(1))).is_some());
    }
    let _low = shared_low.read();
    let _high = shared_high.write();
}

/// Goal: a second lock of one rank is refused, also for reading, and the same lock twice. Method: two locks of one rank.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn one_of_a_rank() {
    let (a, b) = (mutex::<Low>(), mutex::<Low>());
    let held = a.lock();
    assert!(refusal(|| b.lock()).is_some());
    drop(held);
    let shared = RwLock::<Low, u32>::new(0);
    let _held = shared.read();
    assert!(refusal(|| shared.read()).is_some(), "a writer may wait in between");
    // A key changes nothing if the rank does not allow several.
    assert!(refusal(|| b.lock_by([9, 0, 0])).is_some());
}

/// Goal: if a rank allows several, their keys rise; without a key there is one. Method: rising keys, equal and falling
/// ones.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn several_by_key() {
    assert!(matches!(Rank::FileFlush.entry().kind, Kind::Several(_)));
    let locks: Vec<Mutex<Middle, u32>> = (0..4).map(|_| mutex()).collect();
    let _first = locks[0].lock_by([0, 5, 1]);
    let second = locks[1].lock_by([0, 5, 2]);
    assert!(refusal(|| locks[2].lock_by([0, 5, 2])).is_some(), "equal");
    assert!(refusal(|| locks[2].lock_by([0, 4, 9])).is_some(), "lower");
    assert!(refusal(|| locks[2].lock()).is_some(), "no key");
    drop(second);
    let _third = locks[3].lock_by([1, 0, 0]);
    assert!(refusal(|| locks[1].lock_by([0, 5, 2])).is_some(), "between");
}

/// Goal: nothing is taken under a leaf, whatever its rank; a leaf is taken under anything that comes before. Method: a leaf first,
/// then something of a higher rank and something of a lower one.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn leaves_are_last() {
    assert_eq!(Rank::DirtyFiles.entry().kind, Kind::Leaf);
    let (low, leaf, behind) = (mutex::<Low>(), mutex::<Leaf>(), mutex::<rank::Overlay>());
    let other = mutex::<rank::MemDevice>();
    {
        let _low = low.lock();
        let _leaf = leaf.lock();
        assert!(refusal(|| other.lock()).is_some());
        assert!(refusal(|| behind.lock()).is_some());
    }
    let _leaf = leaf.lock();
    assert!(refusal(|| low.lock()).is_some());
}

/// Goal: trying is never refused, and what it takes counts as held. Method: a try out of order, then a wait for a rank in between.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn trying_is_allowed_and_noted() {
    let (low, middle, high) = (mutex::<Low>(), mutex::<Middle>(), mutex::<High>());
    let another = mutex::<Low>();
    let high = high.lock();
    let tried = low.try_lock().expect("it is free");
    assert!(refusal(|| middle.lock()).is_some(), "the first one is held");
    drop(high);
    let middle = middle.lock();
    drop(middle);
    assert!(refusal(|| another.lock()).is_some(), "the tried one is held");
    drop(tried);
    drop(another.lock());
    assert!(low.try_lock().is_some());
    let held = low.lock();
    assert!(low.try_lock().is_none());
    drop(held);
}

/// Goal: guards may be dropped in any order, and only what is still held counts. Method: three, the middle one and the first one
/// dropped before the last.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn guards_go_in_any_order() {
    let (low, middle, high) = (mutex::<Low>(), mutex::<Middle>(), mutex::<High>());
    let (first, second, third) = (low.lock(), middle.lock(), high.lock());
    drop(second);
    assert!(refusal(|| middle.lock()).is_some());
    drop(first);
    assert!(refusal(|| low.lock()).is_some());
    drop(third);
    drop(low.lock());
    drop(middle.lock());
}

/// Goal: one thread's locks do not matter to another, unless it works for the first. Method: a low rank taken on
/// another thread while this one holds a high one; the same with the held ranks carried over.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn threads_are_independent() {
    let (low, high) = (mutex::<Low>(), mutex::<High>());
    let _high = high.lock();
    let carried = carry();
    let (alone, for_us, after) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let alone = refusal(|| low.lock());
            let for_us = carried.run(|| refusal(|| low.lock()));
            (alone, for_us, refusal(|| low.lock()))
        });
        other.join().expect("it catches its panics")
    });
    assert_eq!((alone, after), (None, None));
    assert!(for_us.is_some_and(|why| why.contains("Commit")));
}

/// Goal: a thread that waits at a condition variable holds nothing that comes later; its lock is free meanwhile, and
/// counts as held afterwards. Method: a wait with a timeout, with and without a lock of higher rank.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn waits_are_checked() {
    let (low, another, high, event) = (mutex::<Low>(), mutex::<Low>(), mutex::<High>(), Condvar::new());
    let mut guard = low.lock();
    assert!(event.wait_for(&mut guard, Duration::from_millis(1)).timed_out());
    assert!(refusal(|| another.lock()).is_some(), "it is held again");
    let above = high.lock();
    assert!(refusal(|| event.wait_for(&mut guard, Duration::from_millis(1))).is_some());
    drop(above);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *low.lock() = 1;
            event.notify_all();
        });
        while *guard == 0 {
            event.wait(&mut guard);
        }
    });
    assert_eq!(*guard, 1);
}

/// Goal: I/O is refused under a lock whose rank forbids it. Method: one that allows it, then one that does not.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn io_needs_leave() {
    assert_ne!(HIGH.entry().io, Io::No);
    before_io();
    let high = mutex::<High>();
    let _high = high.lock();
    before_io();
    let leaf = mutex::<Leaf>();
    let _leaf = leaf.lock();
    assert!(refusal(before_io).is_some_and(|why| why.contains("DirtyFiles")));
}

/// Goal: other things that are waited for like locks have a rank. Method: the transaction barrier before and after a
/// lock of lower rank.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not check")]
fn others_have_ranks_too() {
    let low = mutex::<Low>();
    {
        let _low = low.lock();
        let _joined = Held::<rank::Join>::enter();
        assert!(refusal(Held::<rank::Join>::enter).is_some());
    }
    let _joined = Held::<rank::Join>::enter();
    assert!(refusal(|| low.lock()).is_some());
}

/// Goal: the table is whole. Method: every rank is in the table of its crate, once; names and locks are unique; leaves come last.
#[test]
fn the_table_is_whole() {
    let mut seen = std::collections::HashSet::new();
    for (place, rank) in Rank::ALL.iter().enumerate() {
        let entry = rank.entry();
        assert_eq!(*rank as usize, place);
        assert!(seen.insert((entry.krate, entry.lock)), "{rank} is there twice");
        let line = format!("| {} | {}", entry.name, entry.lock);
        assert_eq!(table(entry.krate).matches(&line).count(), 1, "{rank}");
        let leaf = entry.kind == Kind::Leaf;
        let last = Rank::ALL[place..].iter().all(|later| later.entry().kind == Kind::Leaf);
        assert_eq!(leaf, last, "{rank}: leaves come last, and nothing else does");
    }
}

/// Goal: a lock is as large as one of `parking_lot`, and without the check its guard is too. Method: sizes; those of guards in release
/// builds only.
#[test]
fn ranks_take_no_room() {
    assert_eq!(size_of::<Mutex<Low, u32>>(), size_of::<parking_lot::Mutex<u32>>());
    assert_eq!(size_of::<RwLock<Low, u32>>(), size_of::<parking_lot::RwLock<u32>>());
    assert_eq!(size_of::<Condvar>(), size_of::<parking_lot::Condvar>());
    if !cfg!(debug_assertions) {
        assert_eq!(size_of::<MutexGuard<'_, Low, u32>>(), size_of::<parking_lot::MutexGuard<'_, u32>>());
        assert_eq!(size_of::<RwLockReadGuard<'_, Low, u32>>(), size_of::<parking_lot::RwLockReadGuard<'_, u32>>());
        assert_eq!(size_of::<RwLockWriteGuard<'_, Low, u32>>(), size_of::<parking_lot::RwLockWriteGuard<'_, u32>>());
        assert_eq!((size_of::<Held<Low>>(), size_of::<Carried>()), (0, 0));
        assert!(!std::mem::needs_drop::<Held<Low>>());
    }
}
