//! The lock types of the ledger. Tests substitute ones whose every step `shuttle`'s scheduler decides.
//!

use parking_lot::{Mutex, RwLock};

/// A lock for one at a time.
pub trait MutexLike<T>: Default {
    /// Waits, and does it.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A lock for many who read or one who writes.
pub trait RwLockLike<T>: Default {
    /// Waits for writers.
    fn read<R>(&self, f: impl FnOnce(&T) -> R) -> R;
    /// Waits for all.
    fn write<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A set of them.
pub trait SyncPrimitives {
    /// For one at a time.
    type Lock<T: Default>: MutexLike<T>;
    /// For many who read.
    type SharedLock<T: Default>: RwLockLike<T>;
}

/// Those of `parking_lot`, which programs use.
#[derive(Debug)]
pub struct ParkingLot;

impl SyncPrimitives for ParkingLot {
    type Lock<T: Default> = Mutex<T>;
    type SharedLock<T: Default> = RwLock<T>;
}

impl<T: Default> MutexLike<T> for Mutex<T> {
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock())
    }
}

impl<T: Default> RwLockLike<T> for RwLock<T> {
    fn read<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.read())
    }
    fn write<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.write())
    }
}
