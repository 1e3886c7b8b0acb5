//! The lock types of the ledger. Tests substitute ones whose every step `shuttle`'s scheduler decides.
//!

use oleo_lock::{Mutex, Ranked, RwLock};

/// A lock for one at a time.
pub trait MutexLike<T>: Default {
    /// Waits, and does it.
    fn with<A>(&self, f: impl FnOnce(&mut T) -> A) -> A;
}

/// A lock for many who read or one who writes.
pub trait RwLockLike<T>: Default {
    /// Waits for writers.
    fn read<A>(&self, f: impl FnOnce(&T) -> A) -> A;
    /// Waits for all.
    fn write<A>(&self, f: impl FnOnce(&mut T) -> A) -> A;
}

/// A set of them.
pub trait SyncPrimitives {
    /// For one at a time.
    type Lock<R: Ranked, T: Default>: MutexLike<T>;
    /// For many who read.
    type SharedLock<R: Ranked, T: Default>: RwLockLike<T>;
}

/// Those of `oleo_lock`, which programs use.
#[derive(Debug)]
pub struct ParkingLot;

impl SyncPrimitives for ParkingLot {
    type Lock<R: Ranked, T: Default> = Mutex<R, T>;
    type SharedLock<R: Ranked, T: Default> = RwLock<R, T>;
}

impl<R: Ranked, T: Default> MutexLike<T> for Mutex<R, T> {
    fn with<A>(&self, f: impl FnOnce(&mut T) -> A) -> A {
        f(&mut self.lock())
    }
}

impl<R: Ranked, T: Default> RwLockLike<T> for RwLock<R, T> {
    fn read<A>(&self, f: impl FnOnce(&T) -> A) -> A {
        f(&self.read())
    }
    fn write<A>(&self, f: impl FnOnce(&mut T) -> A) -> A {
        f(&mut self.write())
    }
}
