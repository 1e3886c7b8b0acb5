//! The locks: those of `parking_lot`, with a rank in the type. Everything not documented here is as there.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use parking_lot::WaitTimeoutResult;

use crate::{Held, Key, Ranked};

/// A lock for one thread at a time.
pub struct Mutex<R, T: ?Sized> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::Mutex<T>,
}

/// Holds a [`Mutex`].
#[must_use = "the lock is given up when the guard is dropped"]
pub struct MutexGuard<'a, R, T: ?Sized> {
    inner: parking_lot::MutexGuard<'a, T>,
    held: Held<R>,
}

impl<R, T> Mutex<R, T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Mutex<R, T> {
        Mutex { rank: PhantomData, inner: parking_lot::Mutex::new(value) }
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<R: Ranked, T: ?Sized> Mutex<R, T> {
    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds if the order of ranks forbids it, as do all that wait.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, R, T> {
        Held::<R>::check(None);
        MutexGuard { inner: self.inner.lock(), held: Held::note(None) }
    }

    /// Waits for the lock, which may be one of several: those of lower keys come first.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock_by(&self, key: Key) -> MutexGuard<'_, R, T> {
        Held::<R>::check(Some(key));
        MutexGuard { inner: self.inner.lock(), held: Held::note(Some(key)) }
    }

    /// Takes the lock if it is free.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: Held::note(None) })
    }

    /// [`Mutex::try_lock`] of one of several.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock_by(&self, key: Key) -> Option<MutexGuard<'_, R, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, held: Held::note(Some(key)) })
    }

    /// Waits for the lock up to a timeout. A wait out of order is refused all the same.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_lock_for(&self, timeout: Duration) -> Option<MutexGuard<'_, R, T>> {
        Held::<R>::check(None);
        let inner = self.inner.try_lock_for(timeout)?;
        Some(MutexGuard { inner, held: Held::note(None) })
    }

    /// The value: exclusive access makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<R, T: Default> Default for Mutex<R, T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<R, T: ?Sized + fmt::Debug> fmt::Debug for Mutex<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<R, T: ?Sized> Deref for MutexGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<R, T: ?Sized> DerefMut for MutexGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A lock for many threads that read or one that writes.
pub struct RwLock<R, T: ?Sized> {
    rank: PhantomData<fn() -> R>,
    inner: parking_lot::RwLock<T>,
}

/// Holds a [`RwLock`] for reading.
#[must_use = "the lock is given up when the guard is dropped"]
pub struct RwLockReadGuard<'a, R, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held<R>,
}

/// Holds a [`RwLock`] for writing.
#[must_use = "the lock is given up when the guard is dropped"]
pub struct RwLockWriteGuard<'a, R, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held<R>,
}

impl<R, T> RwLock<R, T> {
    /// A lock around a value.
    pub const fn new(value: T) -> RwLock<R, T> {
        RwLock { rank: PhantomData, inner: parking_lot::RwLock::new(value) }
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<R: Ranked, T: ?Sized> RwLock<R, T> {
    /// Waits for a writer.
    ///
    /// # Panics
    /// In debug builds if the order of ranks forbids it, as do all that wait.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, R, T> {
        Held::<R>::check(None);
        RwLockReadGuard { inner: self.inner.read(), _held: Held::note(None) }
    }

    /// Waits for a writer; the lock may be one of several: those of lower keys come first.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read_by(&self, key: Key) -> RwLockReadGuard<'_, R, T> {
        Held::<R>::check(Some(key));
        RwLockReadGuard { inner: self.inner.read(), _held: Held::note(Some(key)) }
    }

    /// Waits for readers and a writer.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, R, T> {
        Held::<R>::check(None);
        RwLockWriteGuard { inner: self.inner.write(), _held: Held::note(None) }
    }

    /// Waits for readers and a writer; the lock may be one of several: those of lower keys come first.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_by(&self, key: Key) -> RwLockWriteGuard<'_, R, T> {
        Held::<R>::check(Some(key));
        RwLockWriteGuard { inner: self.inner.write(), _held: Held::note(Some(key)) }
    }

    /// The value: exclusive access makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<R, T: Default> Default for RwLock<R, T> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<R, T: ?Sized + fmt::Debug> fmt::Debug for RwLock<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<R, T: ?Sized> Deref for RwLockReadGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<R, T: ?Sized> Deref for RwLockWriteGuard<'_, R, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<R, T: ?Sized> DerefMut for RwLockWriteGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition that threads wait for while they hold a [`Mutex`], which is free meanwhile.
#[derive(Default, Debug)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Waits to be woken.
    ///
    /// # Panics
    /// In debug builds if the thread holds a lock that must not be held when this one is taken again, as do all that wait.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait<R: Ranked, T: ?Sized>(&self, guard: &mut MutexGuard<'_, R, T>) {
        guard.held.check_again();
        self.0.wait(&mut guard.inner);
    }

    /// Waits to be woken, no longer than `timeout`.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait_for<R: Ranked, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        guard.held.check_again();
        self.0.wait_for(&mut guard.inner, timeout)
    }

    /// Waits to be woken, not after `deadline`.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait_until<R: Ranked, T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, R, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        guard.held.check_again();
        self.0.wait_until(&mut guard.inner, deadline)
    }

    /// Wakes one.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    /// Wakes all.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}
