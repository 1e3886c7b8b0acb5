//! What the ledger's threads meet at, so that the tests can put locks in its place whose every step a scheduler of theirs
//! decides.

use parking_lot::{Mutex, RwLock};

/// A lock for one at a time.
pub trait Lock<T>: Default {
    /// Waits, and does it.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A lock for many who read or one who writes.
pub trait SharedLock<T>: Default {
    /// Waits for writers.
    fn read<R>(&self, f: impl FnOnce(&T) -> R) -> R;
    /// Waits for all.
    fn write<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A set of them.
pub trait Locks {
    /// For one at a time.
    type Lock<T: Default>: Lock<T>;
    /// For many who read.
    type SharedLock<T: Default>: SharedLock<T>;
}

/// Those of programs.
#[derive(Debug)]
pub struct Real;

impl Locks for Real {
    type Lock<T: Default> = Mutex<T>;
    type SharedLock<T: Default> = RwLock<T>;
}

impl<T: Default> Lock<T> for Mutex<T> {
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.lock())
    }
}

impl<T: Default> SharedLock<T> for RwLock<T> {
    fn read<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.read())
    }
    fn write<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.write())
    }
}
