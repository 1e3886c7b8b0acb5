//! The atomic integer of the lock-free parts. Tests substitute one whose every step `shuttle`'s scheduler decides.
//!

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// An atomic number; all steps are sequentially consistent.
pub trait AtomicCell {
    /// With a value.
    fn new(value: u64) -> Self;
    /// The value.
    fn load(&self) -> u64;
    /// The value before, as of all below.
    fn or(&self, bits: u64) -> u64;
    /// Keeps these bits.
    fn and(&self, bits: u64) -> u64;
    /// Wraps around.
    fn add(&self, value: u64) -> u64;
    /// Wraps around.
    fn sub(&self, value: u64) -> u64;
    /// May fail without a reason; the value seen is the error.
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

macro_rules! atomic_cell {
    ($atomic:ty) => {
        impl AtomicCell for $atomic {
            fn new(value: u64) -> Self {
                Self::new(value)
            }
            fn load(&self) -> u64 {
                self.load(SeqCst)
            }
            fn or(&self, bits: u64) -> u64 {
                self.fetch_or(bits, SeqCst)
            }
            fn and(&self, bits: u64) -> u64 {
                self.fetch_and(bits, SeqCst)
            }
            fn add(&self, value: u64) -> u64 {
                self.fetch_add(value, SeqCst)
            }
            fn sub(&self, value: u64) -> u64 {
                self.fetch_sub(value, SeqCst)
            }
            fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
                self.compare_exchange_weak(old, new, SeqCst, SeqCst)
            }
        }
    };
}

atomic_cell!(AtomicU64);
#[cfg(test)]
atomic_cell!(shuttle::sync::atomic::AtomicU64);
