//! What threads do not share: a number for each, and places of which each thread mostly uses its own.
//!
//! The numbers decide where counts are kept and which of several equal locks is taken, never which address an allocation
//! gets.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// More of anything than this does not pay: it costs a write of the table, and a sum, as many steps.
pub(crate) const SPREAD_MAX: usize = 32;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A thread that has not asked yet.
const NONE: usize = usize::MAX;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
}

/// This thread's number, counted from 0 in the order in which threads first asked.
pub(crate) fn number() -> usize {
    NUMBER.with(|number| {
        if number.get() == NONE {
            number.set(NEXT.fetch_add(1, Relaxed));
        }
        number.get()
    })
}

/// This thread's of several places, of which there is a power of two.
pub(crate) fn own<T>(places: &[T]) -> &T {
    &places[number() & (places.len() - 1)]
}

/// How many places are worth having: a power of two, by the number of processors.
pub(crate) fn spread() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).next_power_of_two().min(SPREAD_MAX)
}

/// Something on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CachePadded<T>(pub(crate) T);
