//! The atomic number of the pieces without locks. Tests substitute one whose every step `shuttle`'s scheduler decides.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// An atomic number; all steps are sequentially consistent.
pub(crate) trait Count {
    fn new() -> Self;
    fn get(&self) -> u64;
    fn add(&self, n: u64);
    fn sub(&self, n: u64);
    fn set(&self, n: u64);
    /// May fail without a reason; the number seen is the error.
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

macro_rules! count {
    ($atomic:ty) => {
        impl Count for $atomic {
            fn new() -> Self {
                Self::new(0)
            }
            fn get(&self) -> u64 {
                self.load(SeqCst)
            }
            fn add(&self, n: u64) {
                self.fetch_add(n, SeqCst);
            }
            fn sub(&self, n: u64) {
                self.fetch_sub(n, SeqCst);
            }
            fn set(&self, n: u64) {
                self.store(n, SeqCst);
            }
            fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
                self.compare_exchange_weak(old, new, SeqCst, SeqCst)
            }
        }
    };
}

count!(AtomicU64);
#[cfg(test)]
count!(shuttle::sync::atomic::AtomicU64);
